//! The limit on open files, which is a limit on connections: the server shares it out among the store and the fronts, and the
//! load generator raises it.

use quipu_store::cold::OPEN_TABLES_MAX_DEFAULT;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::http::FAREWELLS_MAX;

/// Files beside connections and tables of the cold store: some twenty at rest (listeners, wake-ups, locks), the log's
/// segments, and what a merge and a checkpoint read and write.
const OTHER_FILES: u64 = 64;
/// With fewer tables held open, the cold store would open one for nearly every read.
const OPEN_TABLES_MIN: u64 = 32;
/// Who cannot have so many connections in each front is better told than served.
const CONNECTIONS_MIN: u64 = 8;

/// What each may have open, so that nobody takes what the others need: a connection too many is refused, a file of the
/// store that cannot be opened would be a write that fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shares {
    /// Tables of the cold store.
    pub open_tables_max: usize,
    /// Connections of RESP, two thirds where there is not enough for all: those stay, while HTTP ends idle ones.
    pub resp_connections_max: usize,
    /// Connections of HTTP.
    pub http_connections_max: usize,
    /// What RESP could have beside the connections of HTTP, if somebody asks for it later.
    pub resp_connections_possible: usize,
}

impl Shares {
    /// The fewest files a server can do with.
    pub const FILES_MIN: u64 = OTHER_FILES + OPEN_TABLES_MIN + 3 * 2 * CONNECTIONS_MIN;

    /// Out of so many files, for so many connections of each front. `None` where they are too few to begin with.
    pub fn of(files: u64, connections_wanted: usize) -> Option<Shares> {
        if files < Shares::FILES_MIN {
            return None;
        }
        let wanted = connections_wanted as u64;
        let for_all = files - OTHER_FILES;
        let open_tables = (for_all / 4).clamp(OPEN_TABLES_MIN, OPEN_TABLES_MAX_DEFAULT as u64);
        let room = for_all - open_tables;
        let resp = wanted.min(room / 3 * 2);
        // HTTP also has a file for everyone who is told that there are too many, as many as it serves at most.
        let rest = room - resp;
        let http = wanted.min((rest / 2).max(rest.saturating_sub(FAREWELLS_MAX as u64)));
        let whole = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        Some(Shares {
            open_tables_max: whole(open_tables),
            resp_connections_max: whole(resp),
            http_connections_max: whole(http),
            resp_connections_possible: whole(room - http - http.min(FAREWELLS_MAX as u64)),
        })
    }
}

/// Raises the limit as far as this user may, or at least to `wanted`. Returns what is allowed from now on.
pub fn raise_limit(wanted: u64) -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // No limit at all.
    let Some(current) = current else { return u64::MAX };
    let set = |limit: u64| setrlimit(Resource::Nofile, Rlimit { current: Some(limit), maximum }).is_ok();
    // The second is for systems whose word on the maximum is not to be taken.
    let steps = [maximum.unwrap_or(wanted), maximum.map_or(wanted, |maximum| maximum.min(wanted))];
    steps.into_iter().find(|limit| *limit > current && set(*limit)).unwrap_or(current)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_rises_and_never_falls() {
        let before = raise_limit(0);
        assert_eq!(raise_limit(before.saturating_sub(1)), before);
        assert!(raise_limit(before.saturating_add(1)) >= before);
    }

    #[test]
    fn nobody_takes_what_others_need() {
        assert_eq!(Shares::of(Shares::FILES_MIN - 1, 10_000), None);
        for files in [Shares::FILES_MIN, 200, 256, 1_024, 4_096, 20_000, 1 << 20, u64::MAX] {
            for wanted in [1, 30, 10_000] {
                let shares = Shares::of(files, wanted).unwrap();
                let [tables, resp, http, most] = [
                    shares.open_tables_max,
                    shares.resp_connections_max,
                    shares.http_connections_max,
                    shares.resp_connections_possible,
                ]
                .map(|number| number as u64);
                let others = OTHER_FILES + tables + http + http.min(FAREWELLS_MAX as u64);
                assert!(most >= resp && others + most <= files, "{files}: {shares:?}");
                assert!(resp.min(http) >= CONNECTIONS_MIN.min(wanted as u64), "{files}: {shares:?}");
                assert!(
                    (resp, http) == (wanted as u64, wanted as u64) || files < 21_000,
                    "{files}: {shares:?}"
                );
            }
        }
    }
}

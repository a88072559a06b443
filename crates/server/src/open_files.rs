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
    /// Connections of each front.
    pub connections_max: usize,
    /// What RESP could have beside the connections of HTTP, if somebody asks for it later.
    pub resp_connections_possible: usize,
}

impl Shares {
    /// Out of so many files, for so many connections of each front. `None` where they are too few to begin with.
    pub fn of(files: u64, connections_wanted: usize) -> Option<Shares> {
        let for_all = files.checked_sub(OTHER_FILES)?;
        let open_tables = (for_all / 4).clamp(OPEN_TABLES_MIN, OPEN_TABLES_MAX_DEFAULT as u64);
        let room = for_all.checked_sub(open_tables)?;
        // HTTP also has a file for everyone who is told that there are too many.
        let each = (room / 3).max(room.saturating_sub(FAREWELLS_MAX as u64) / 2);
        if each < CONNECTIONS_MIN {
            return None;
        }
        let connections = each.min(connections_wanted as u64);
        let http = connections + connections.min(FAREWELLS_MAX as u64);
        let whole = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        Some(Shares {
            open_tables_max: whole(open_tables),
            connections_max: whole(connections),
            resp_connections_possible: whole(room - http),
        })
    }

    /// The fewest files a server can do with.
    pub const FILES_MIN: u64 = OTHER_FILES + OPEN_TABLES_MIN + 3 * CONNECTIONS_MIN;
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
                let (each, tables) = (shares.connections_max as u64, shares.open_tables_max as u64);
                let http = each + each.min(FAREWELLS_MAX as u64);
                assert!(OTHER_FILES + tables + each + http <= files, "{files}: {shares:?}");
                let most = shares.resp_connections_possible as u64;
                assert!(most >= each && OTHER_FILES + tables + most + http <= files, "{files}: {shares:?}");
                assert!(each == wanted as u64 || files < 30_000, "{files}: {shares:?}");
            }
        }
    }
}

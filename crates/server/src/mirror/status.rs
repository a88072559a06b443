//! How the mirror is doing.

use parking_lot::Mutex;
use quipu_external::mirror::Written;
use quipu_wire::json::mirror::{MirrorBody, MirrorSweep};
use quipu_wire::json::timestamp::rfc3339;

/// What is known of a mirror.
pub struct Status {
    /// Where it is, for people.
    place: String,
    facts: Mutex<Facts>,
}

#[derive(Clone, Debug, Default)]
struct Facts {
    /// Everything that was acknowledged before this is in the table; `None` before that was ever so.
    as_of_ms: Option<u64>,
    since_ms: u64,
    pending: usize,
    sweep: Option<u64>,
    swept_at_ms: Option<u64>,
    rows: u64,
    gone: u64,
    errors: u64,
    /// Why it does not go on, while it does not.
    problem: Option<String>,
}

/// Name, help and value of a metric.
pub type Figure = (&'static str, &'static str, u64);

impl Status {
    /// Of a mirror that begins.
    pub fn new(url: &str, now_ms: u64) -> Status {
        let facts = Facts { since_ms: now_ms, ..Facts::default() };
        Status { place: without_password(url), facts: Mutex::new(facts) }
    }

    pub(super) fn failed(&self, why: &str) {
        let mut facts = self.facts.lock();
        facts.errors += 1;
        facts.problem = Some(why.to_owned());
    }

    pub(super) fn works(&self, pending: usize, sweep: Option<u64>, swept_at_ms: Option<u64>) {
        let mut facts = self.facts.lock();
        (facts.pending, facts.sweep, facts.swept_at_ms, facts.problem) = (pending, sweep, swept_at_ms, None);
    }

    pub(super) fn wrote(&self, written: Written) {
        let mut facts = self.facts.lock();
        facts.rows += written.rows;
        facts.gone += written.gone;
    }

    pub(super) fn is_complete(&self, as_of_ms: u64) {
        self.facts.lock().as_of_ms = Some(as_of_ms);
    }

    /// As it is told.
    pub fn body(&self, now_ms: u64) -> MirrorBody {
        let facts = self.facts.lock().clone();
        MirrorBody {
            target: self.place.clone(),
            ok: facts.problem.is_none(),
            as_of: facts.as_of_ms.map(rfc3339),
            lag_ms: facts.lag_ms(now_ms),
            pending: facts.pending as u64,
            sweep: facts.sweep.map(|counters| MirrorSweep { counters }),
            swept_at: facts.swept_at_ms.map(rfc3339),
            rows_written: facts.rows,
            rows_removed: facts.gone,
            errors: facts.errors,
            problem: facts.problem,
        }
    }

    /// For `/metrics`: those that go up and down, and those that only grow.
    pub fn numbers(&self, now_ms: u64) -> ([Figure; 3], [Figure; 3]) {
        let facts = self.facts.lock();
        (
            [
                (
                    "mirror_lag_milliseconds",
                    "How far the table in PostgreSQL is behind",
                    facts.lag_ms(now_ms),
                ),
                ("mirror_pending", "Counters that wait to be written to the table", facts.pending as u64),
                ("mirror_ok", "Whether the table can be written", facts.problem.is_none().into()),
            ],
            [
                ("mirror_rows_written", "Rows of the table that were written", facts.rows),
                ("mirror_rows_removed", "Rows of the table that were removed", facts.gone),
                ("mirror_errors", "Times that the table could not be written", facts.errors),
            ],
        )
    }
}

impl Facts {
    fn lag_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.as_of_ms.unwrap_or(self.since_ms))
    }
}

/// The address without what only its owner should know.
pub fn without_password(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("postgres", url));
    let place = rest.split(['?', '#']).next().unwrap_or_default();
    let place = place.rsplit_once('@').map_or(place, |(_, place)| place);
    format!("{scheme}://{place}")
}

#[cfg(test)]
mod tests {
    use super::{Status, without_password};

    #[test]
    fn passwords_are_not_shown() {
        for (url, shown) in [
            ("postgres://u:p@ss@h:5432/d?password=x", "postgres://h:5432/d"),
            ("postgres://h/d", "postgres://h/d"),
            ("postgres://h?user=u&password=p", "postgres://h"),
        ] {
            assert_eq!(without_password(url), shown);
        }
    }

    #[test]
    fn the_lag_grows_from_the_start_until_everything_was_written() {
        let status = Status::new("postgres://h/d", 1_000);
        assert_eq!(status.body(5_000).lag_ms, 4_000);
        status.is_complete(4_500);
        assert_eq!(status.body(5_000).lag_ms, 500);
        status.failed("gone");
        assert!(!status.body(5_000).ok);
        status.works(0, None, None);
        assert!(status.body(5_000).ok && status.body(5_000).errors == 1);
    }
}

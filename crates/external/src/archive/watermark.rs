//! Up to where a stream is in the tables, and whether that can be: a stream that had fewer entries up to there than the tables know of
//! has come back older, and one that had more has lost some that the tables never saw.

use tokio_postgres::{Client, Row};

use super::ArchiveError;
use super::streams::{Place, Position};
use crate::groups::GROUPS;

/// The watermark of a stream, if nobody is at it.
pub(super) const FREE: &str =
    "SELECT stream_group, epoch, event_ms, event_sequence, entries_added, whole_from_ms,
        whole_from_sequence, drained_at_ms, births
    FROM counter_watermark WHERE stream_group = $1 FOR UPDATE SKIP LOCKED";
/// The same once nobody is.
pub(super) const ANY: &str =
    "SELECT stream_group, epoch, event_ms, event_sequence, entries_added, whole_from_ms,
        whole_from_sequence, drained_at_ms, births
    FROM counter_watermark WHERE stream_group = $1 FOR UPDATE";
/// All of them, as they are.
const ALL: &str = "SELECT stream_group, epoch, event_ms, event_sequence, entries_added, whole_from_ms,
        whole_from_sequence, drained_at_ms, births
    FROM counter_watermark ORDER BY stream_group";

/// A row.
#[derive(Clone, Debug, Default)]
pub(super) struct Watermark {
    pub(super) group: u16,
    /// Empty before anything is known.
    pub(super) epoch: String,
    /// The last entry that is in the tables.
    pub(super) place: Place,
    /// How many there ever were up to it, if that is known.
    pub(super) added: Option<i64>,
    /// From this entry on the tables have all that Redis has; nothing if they lack something.
    pub(super) whole_from: Option<Place>,
    pub(super) drained_at_ms: i64,
    /// The newest birth.
    pub(super) births: i64,
}

/// What a stream and its watermark say of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Judged {
    Whole,
    /// Redis has come back older than it was.
    RedisIsBehind,
    /// Entries are gone from the stream that never came to the tables.
    TablesLack,
}

impl Watermark {
    pub(super) fn of(row: &Row) -> Watermark {
        let from: (Option<i64>, Option<i64>) = (row.get(5), row.get(6));
        Watermark {
            group: u16::try_from(row.get::<_, i32>(0)).unwrap_or(GROUPS),
            epoch: row.get(1),
            place: Place { ms: row.get(2), sequence: row.get(3) },
            added: row.get(4),
            whole_from: from.0.zip(from.1).map(|(ms, sequence)| Place { ms, sequence }),
            drained_at_ms: row.get(7),
            births: row.get(8),
        }
    }

    pub(super) fn judge(&self, found: &Position) -> Judged {
        if found.last < self.place {
            return Judged::RedisIsBehind;
        }
        match self.added.map(|added| found.before.cmp(&added)) {
            None | Some(std::cmp::Ordering::Equal) => Judged::Whole,
            Some(std::cmp::Ordering::Less) => Judged::RedisIsBehind,
            Some(std::cmp::Ordering::Greater) => Judged::TablesLack,
        }
    }

    /// Whether the tables have all that Redis had up to here.
    pub(super) fn is_whole(&self) -> bool {
        self.whole_from.is_some_and(|from| from <= self.place)
    }

    pub(super) fn log_behind(&self, found: &Position) {
        tracing::error!(
            group = self.group,
            watermark = %self.place,
            last = %found.last,
            "Redis has come back older than it was: it has lost changes that the archive has; the group is rebuilt"
        );
    }

    /// Everything up to there is in the tables. A stream in which nothing happens was seen empty later than its last entry.
    pub(super) fn known_until(&self) -> Place {
        self.place.max(Place { ms: self.drained_at_ms, sequence: 0 })
    }
}

/// All watermarks, by group.
pub(super) async fn all(client: &Client) -> Result<Vec<Watermark>, ArchiveError> {
    let rows = client.query(ALL, &[]).await?;
    let all: Vec<Watermark> = rows.iter().map(Watermark::of).collect();
    if all.len() != usize::from(GROUPS) {
        return Err(ArchiveError::Unfit(format!("counter_watermark has {} rows, not {GROUPS}", all.len())));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_that_had_more_or_less_has_lost_something() {
        let at = |ms| Place { ms, sequence: 0 };
        let known = Watermark { place: at(5), added: Some(3), ..Watermark::default() };
        for (before, last, judged) in [
            (3, 5, Judged::Whole),
            (3, 9, Judged::Whole),
            (2, 9, Judged::RedisIsBehind),
            (3, 4, Judged::RedisIsBehind),
            (0, 0, Judged::RedisIsBehind),
            (4, 9, Judged::TablesLack),
        ] {
            assert_eq!(known.judge(&Position { before, last: at(last), left: 0 }), judged, "{before} {last}");
        }
        let unknown = Watermark { added: None, ..known };
        assert_eq!(unknown.judge(&Position { before: 9, last: at(5), left: 0 }), Judged::Whole);
        assert_eq!(unknown.judge(&Position { before: 9, last: at(4), left: 0 }), Judged::RedisIsBehind);
    }

    #[test]
    fn tables_are_whole_once_they_are_past_the_walk() {
        let at = |ms| Place { ms, sequence: 0 };
        let of = |whole_from| Watermark { place: at(5), whole_from, ..Watermark::default() };
        assert!(of(Some(at(5))).is_whole() && of(Some(at(0))).is_whole());
        assert!(!of(Some(at(6))).is_whole() && !of(None).is_whole());
    }
}

//! What is told about a recovery: what came back, and what did not.

use tokio_postgres::{Client, Row};

use super::ArchiveError;

/// One recovery. Times are UTC milliseconds by the clock of the node that did it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// The epoch that was lost.
    pub epoch_before: String,
    /// The one that it came back as.
    pub epoch_after: String,
    /// When the loss was noticed.
    pub detected_at_ms: i64,
    /// When everything was there again.
    pub finished_at_ms: i64,
    /// Of 64 groups of slots.
    pub groups_lost: i32,
    /// Counters that came back.
    pub counters: i64,
    /// Request ids that came back.
    pub request_ids: i64,
    /// Changes that were in no table yet, but still in the streams.
    pub replayed: i64,
    /// From when to when changes were acknowledged that may be gone; none if nothing is.
    pub gap_ms: Option<(i64, i64)>,
    /// The last entry in the tables, of the group that is furthest behind.
    pub watermark: String,
}

/// How many are told about.
const TOLD_MAX: i64 = 20;

impl Recovery {
    pub(super) fn log(&self) {
        let Recovery { groups_lost, counters, request_ids, replayed, watermark, .. } = self;
        let took_ms = self.finished_at_ms.saturating_sub(self.detected_at_ms);
        tracing::warn!(
            groups_lost,
            counters,
            request_ids,
            replayed,
            took_ms,
            "Redis was rebuilt from the archive, as epoch {}",
            self.epoch_after
        );
        match self.gap_ms {
            Some((from, to)) => tracing::error!(
                gap_from_ms = from,
                gap_to_ms = to,
                watermark,
                "what was acknowledged in these {} ms and not flushed before is gone: see `quipu backend`",
                to.saturating_sub(from)
            ),
            None => tracing::info!("nothing that was acknowledged is missing"),
        }
    }

    fn of(row: &Row) -> Recovery {
        let (from, to): (Option<i64>, Option<i64>) = (row.get(8), row.get(9));
        Recovery {
            epoch_before: row.get(0),
            epoch_after: row.get(1),
            detected_at_ms: row.get(2),
            finished_at_ms: row.get(3),
            groups_lost: row.get(4),
            counters: row.get(5),
            request_ids: row.get(6),
            replayed: row.get(7),
            gap_ms: from.zip(to),
            watermark: row.get(10),
        }
    }
}

/// How many there were, and the last of them, the newest first.
pub(super) async fn recoveries(client: &Client) -> Result<(u64, Vec<Recovery>), ArchiveError> {
    let count: i64 = client.query_one("SELECT count(*) FROM counter_recovery", &[]).await?.get(0);
    let last = "SELECT epoch_before, epoch_after, detected_at_ms, finished_at_ms, groups_lost, counters, request_ids, replayed,
            gap_from_ms, gap_to_ms, watermark
        FROM counter_recovery ORDER BY id DESC LIMIT $1";
    let rows = client.query(last, &[&TOLD_MAX]).await?;
    Ok((u64::try_from(count).unwrap_or(0), rows.iter().map(Recovery::of).collect()))
}

//! All counters in rows, page by page: in the order of their keys, or of their births, by which a scan finds on.

use quipu_counting::{Cell, Unavailable};
use tokio::time::timeout;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::rows::{self, COLUMNS};
use super::{Strong, TRANSACTION_MAX};

/// Counters of one page of a walk over everything.
const PAGE: i64 = 2_000;
/// Which of them are there.
const LIVE: &str = "is_there AND (expires_at_ms IS NULL OR expires_at_ms > $2::bigint)";

type Given<'a> = &'a [&'a (dyn ToSql + Sync)];

impl Strong {
    /// Some of the counters from a key on, in the order of keys; none where there are no more.
    pub(crate) async fn from(&self, key: &[u8], now_ms: u64) -> Result<Vec<(Vec<u8>, Cell)>, Unavailable> {
        let page = format!(
            "SELECT {COLUMNS} FROM counter_strong WHERE counter_key >= $1 AND {LIVE} ORDER BY counter_key LIMIT {PAGE}"
        );
        let rows = self.look(&page, &[&key, &time(now_ms)]).await?;
        Ok(rows.iter().map(rows::cell).filter_map(|(key, cell)| Some((key, cell?))).collect())
    }

    /// So many of the counters that were born after a birth, in that order, each with its own.
    pub(crate) async fn born_after(
        &self,
        birth: u64,
        count: usize,
        now_ms: u64,
    ) -> Result<Vec<(u64, Vec<u8>)>, Unavailable> {
        let page = format!(
            "SELECT birth, counter_key FROM counter_strong WHERE birth > $1 AND {LIVE} ORDER BY birth LIMIT $3"
        );
        let (birth, count) = (time(birth), i64::try_from(count).unwrap_or(i64::MAX));
        let rows = self.look(&page, &[&birth, &time(now_ms), &count]).await?;
        Ok(rows.iter().map(|row| (row.get::<_, i64>(0) as u64, row.get(1))).collect())
    }

    /// The last birth of all.
    pub(crate) async fn newest_birth(&self) -> Result<u64, Unavailable> {
        let newest = "SELECT coalesce(max(birth), 0) FROM counter_strong WHERE is_there";
        let rows = self.look(newest, &[]).await?;
        Ok(rows.first().map_or(0, |row| row.get::<_, i64>(0) as u64))
    }

    /// Asks over the connection of walks. It may have ended since it was last used, so there is a second try.
    async fn look(&self, query: &str, given: Given<'_>) -> Result<Vec<Row>, Unavailable> {
        let mut walker = self.walker.lock().await;
        let had_one = walker.is_some();
        match self.look_with(&mut walker, query, given).await {
            Err(_) if had_one => self.look_with(&mut walker, query, given).await,
            looked => looked,
        }
    }

    async fn look_with(
        &self,
        walker: &mut Option<tokio_postgres::Client>,
        query: &str,
        given: Given<'_>,
    ) -> Result<Vec<Row>, Unavailable> {
        // What fails in between leaves none behind.
        let known = walker.take();
        let looked = async {
            let client = match known {
                Some(client) => client,
                None => rows::connect(&self.archive).await.map_err(|error| error.to_string())?,
            };
            let rows = client.query(query, given).await;
            Ok((client, rows.map_err(|error| crate::archive::postgres_says(&error))?))
        };
        let looked =
            timeout(TRANSACTION_MAX, looked).await.unwrap_or_else(|_| Err("no answer in time".to_owned()));
        let (client, rows) = looked.map_err(|why: String| {
            Unavailable::NoLeader(format!("strong counters cannot be walked: PostgreSQL: {why}"))
        })?;
        *walker = Some(client);
        Ok(rows)
    }
}

/// As the tables have it.
fn time(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

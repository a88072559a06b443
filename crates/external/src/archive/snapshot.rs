//! Reads from the tables, while Redis cannot be asked: as old as they are, and they say how old. What was read is kept for a
//! minute, here and nowhere else: nothing of it ever goes to Redis.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use quipu_counting::{Cell, NEVER};
use tokio_postgres::Client;

use super::{Archive, ArchiveError};
use crate::groups::{self, GROUPS};

/// How long something that was read is good for.
const CACHE_TTL: Duration = Duration::from_secs(60);
/// The most counters that are kept.
const CACHE_MAX: usize = 65_536;
/// No read lasts longer: who asks is waiting, and others behind it.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A counter as the tables have it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) cell: Option<Cell>,
    /// It is more than its numbers, and only Redis can say what.
    pub(crate) has_body: bool,
    /// Every change before is in it.
    pub(crate) as_of_ms: u64,
}

/// The tables, for who reads.
pub(crate) struct Snapshot {
    archive: Arc<Archive>,
    client: tokio::sync::Mutex<Option<Client>>,
    cache: Mutex<HashMap<Vec<u8>, (Seen, Instant)>>,
}

impl Snapshot {
    pub(crate) fn new(archive: Arc<Archive>) -> Snapshot {
        Snapshot { archive, client: tokio::sync::Mutex::new(None), cache: Mutex::default() }
    }

    /// Forgets everything: Redis can be asked again.
    pub(crate) fn clear(&self) {
        self.cache.lock().clear();
    }

    /// These counters, in order; nothing if they cannot be read.
    pub(crate) async fn read(&self, keys: &[Vec<u8>]) -> Option<Vec<Seen>> {
        let now = Instant::now();
        let missing: Vec<&[u8]> = {
            let cache = self.cache.lock();
            let is_fresh = |key: &&Vec<u8>| cache.get(*key).is_some_and(|(_, until)| now < *until);
            keys.iter().filter(|key| !is_fresh(key)).map(|key| &key[..]).collect()
        };
        if !missing.is_empty() {
            let fetched = tokio::time::timeout(TIMEOUT, self.fetch(&missing)).await.ok()?;
            match fetched {
                Ok(fetched) => self.keep(fetched, now),
                Err(error) => {
                    tracing::debug!(%error, "the snapshot cannot be read");
                    return None;
                }
            }
        }
        let cache = self.cache.lock();
        keys.iter().map(|key| cache.get(key).map(|(seen, _)| *seen)).collect()
    }

    fn keep(&self, fetched: HashMap<Vec<u8>, Seen>, now: Instant) {
        let mut cache = self.cache.lock();
        if cache.len() + fetched.len() > CACHE_MAX {
            cache.clear();
        }
        cache.extend(fetched.into_iter().map(|(key, seen)| (key, (seen, now + CACHE_TTL))));
    }

    async fn fetch(&self, keys: &[&[u8]]) -> Result<HashMap<Vec<u8>, Seen>, ArchiveError> {
        let mut known = self.client.lock().await;
        let client = match known.take().filter(|client| !client.is_closed()) {
            Some(client) => client,
            None => self.archive.connect().await?,
        };
        // The places first: what is read after is not older.
        let places = "SELECT stream_group, greatest(event_ms, drained_at_ms) FROM counter_watermark";
        let mut as_of = vec![0_u64; usize::from(GROUPS)];
        for row in client.query(places, &[]).await? {
            if let Some(place) =
                usize::try_from(row.get::<_, i32>(0)).ok().and_then(|group| as_of.get_mut(group))
            {
                *place = u64::try_from(row.get::<_, i64>(1)).unwrap_or(0);
            }
        }
        let absent = |key: &[u8]| Seen {
            cell: None,
            has_body: false,
            as_of_ms: as_of[usize::from(groups::group(key))],
        };
        let mut seen: HashMap<Vec<u8>, Seen> = keys.iter().map(|key| (key.to_vec(), absent(key))).collect();
        let cells =
            "SELECT counter_key, value, version, birth, (extract(epoch FROM updated_at) * 1000)::bigint,
                expires_at_ms::text
            FROM counter_shard_snapshot WHERE counter_key = ANY($1) AND shard_id = 0";
        for row in client.query(cells, &[&keys]).await? {
            let expires: Option<String> = row.get(5);
            let cell = Cell {
                value: row.get(1),
                version: row.get::<_, i64>(2) as u64,
                birth: row.get::<_, i64>(3) as u64,
                updated_at_ms: u64::try_from(row.get::<_, i64>(4)).unwrap_or(0),
                expires_at_ms: expires.and_then(|expires| expires.parse().ok()).unwrap_or(NEVER),
            };
            if let Some(seen) = seen.get_mut(&row.get::<_, Vec<u8>>(0)) {
                seen.cell = Some(cell);
            }
        }
        let bodies = "SELECT counter_key FROM counter_body_snapshot WHERE counter_key = ANY($1)";
        for row in client.query(bodies, &[&keys]).await? {
            if let Some(seen) = seen.get_mut(&row.get::<_, Vec<u8>>(0)) {
                seen.has_body = true;
            }
        }
        *known = Some(client);
        Ok(seen)
    }
}

//! Reads from the tables, while Redis cannot be asked: as old as they are, and they say how old. What was read is kept for a
//! minute, here and nowhere else: nothing of it ever goes to Redis.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use quipu_counting::{Cell, NEVER};
use tokio_postgres::Client;

use super::{Archive, ArchiveError};
use crate::groups::GROUPS;
use crate::stripes::group_of_stripe;

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
    cache: Mutex<HashMap<Place, (Seen, Instant)>>,
}

/// A counter, and which stripe of it.
pub(crate) type Place = (Vec<u8>, u16);

impl Snapshot {
    pub(crate) fn new(archive: Arc<Archive>) -> Snapshot {
        Snapshot { archive, client: tokio::sync::Mutex::new(None), cache: Mutex::default() }
    }

    /// Forgets everything: Redis can be asked again.
    pub(crate) fn clear(&self) {
        self.cache.lock().clear();
    }

    /// These counters, in order; nothing if they cannot be read.
    pub(crate) async fn read(&self, places: &[Place]) -> Option<Vec<Seen>> {
        let now = Instant::now();
        let missing: Vec<&Place> = {
            let cache = self.cache.lock();
            let is_fresh = |place: &&Place| cache.get(*place).is_some_and(|(_, until)| now < *until);
            places.iter().filter(|place| !is_fresh(place)).collect()
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
        places.iter().map(|place| cache.get(place).map(|(seen, _)| *seen)).collect()
    }

    fn keep(&self, fetched: HashMap<Place, Seen>, now: Instant) {
        let mut cache = self.cache.lock();
        if cache.len() + fetched.len() > CACHE_MAX {
            cache.clear();
        }
        cache.extend(fetched.into_iter().map(|(place, seen)| (place, (seen, now + CACHE_TTL))));
    }

    async fn fetch(&self, wanted: &[&Place]) -> Result<HashMap<Place, Seen>, ArchiveError> {
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
        let absent = |(key, stripe): &Place| Seen {
            cell: None,
            has_body: false,
            as_of_ms: as_of[usize::from(group_of_stripe(key, i32::from(*stripe)))],
        };
        let mut seen: HashMap<Place, Seen> =
            wanted.iter().map(|place| (Place::clone(place), absent(place))).collect();
        let keys: Vec<&[u8]> = wanted.iter().map(|(key, _)| &key[..]).collect();
        let cells =
            "SELECT counter_key, value, version, birth, (extract(epoch FROM updated_at) * 1000)::bigint,
                expires_at_ms::text, shard_id
            FROM counter_shard_snapshot WHERE counter_key = ANY($1)";
        for row in client.query(cells, &[&keys]).await? {
            let expires: Option<String> = row.get(5);
            let cell = Cell {
                value: row.get(1),
                version: row.get::<_, i64>(2) as u64,
                birth: row.get::<_, i64>(3) as u64,
                updated_at_ms: u64::try_from(row.get::<_, i64>(4)).unwrap_or(0),
                expires_at_ms: expires.and_then(|expires| expires.parse().ok()).unwrap_or(NEVER),
            };
            let stripe = u16::try_from(row.get::<_, i32>(6)).unwrap_or(0);
            if let Some(seen) = seen.get_mut(&(row.get(0), stripe)) {
                seen.cell = Some(cell);
            }
        }
        let bodies = "SELECT counter_key FROM counter_body_snapshot WHERE counter_key = ANY($1)";
        for row in client.query(bodies, &[&keys]).await? {
            // What lies in stripes has none.
            if let Some(seen) = seen.get_mut(&(row.get(0), 0)) {
                seen.has_body = true;
            }
        }
        *known = Some(client);
        Ok(seen)
    }
}

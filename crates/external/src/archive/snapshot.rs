//! Reads from the tables, while Redis cannot be asked: as old as they are, and they say how old. What was read is kept for a
//! minute, here and nowhere else: nothing of it ever goes to Redis.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use quipu_counting::{Body, Cell, NEVER, Whole};
use tokio_postgres::{Client, Row};

use super::{Archive, ArchiveError, watermark};
use crate::stripes::group_of_stripe;

/// How long something that was read is good for.
const CACHE_TTL: Duration = Duration::from_secs(60);
/// The most counters that are kept.
const CACHE_MAX: usize = 65_536;
/// No read lasts longer: who asks is waiting, and others behind it.
const TIMEOUT: Duration = Duration::from_secs(2);

/// A counter as the tables have it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) whole: Whole,
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
        let mut seen: HashMap<Place, Seen> = {
            let cache = self.cache.lock();
            let fresh = |place: &Place| cache.get(place).filter(|(_, until)| now < *until);
            places.iter().filter_map(|place| Some((place.clone(), fresh(place)?.0.clone()))).collect()
        };
        let missing: Vec<&Place> = places.iter().filter(|place| !seen.contains_key(*place)).collect();
        if !missing.is_empty() {
            match tokio::time::timeout(TIMEOUT, self.fetch(&missing)).await.ok()? {
                Ok(fetched) => {
                    self.keep(&fetched, now);
                    seen.extend(fetched);
                }
                Err(error) => {
                    tracing::debug!(%error, "the snapshot cannot be read");
                    return None;
                }
            }
        }
        places.iter().map(|place| seen.get(place).cloned()).collect()
    }

    /// Bodies are not kept: they may be large.
    fn keep(&self, fetched: &HashMap<Place, Seen>, now: Instant) {
        let mut cache = self.cache.lock();
        if cache.len() + fetched.len() > CACHE_MAX {
            cache.clear();
        }
        let plain = fetched.iter().filter(|(_, seen)| seen.whole.body.is_none());
        cache.extend(plain.map(|(place, seen)| (place.clone(), (seen.clone(), now + CACHE_TTL))));
    }

    async fn fetch(&self, wanted: &[&Place]) -> Result<HashMap<Place, Seen>, ArchiveError> {
        let mut known = self.client.lock().await;
        let client = match known.take().filter(|client| !client.is_closed()) {
            Some(client) => client,
            None => self.archive.connect().await?,
        };
        // The watermarks first: what is read after is not older.
        let watermarks = watermark::all(&client).await?;
        let mut seen: HashMap<Place, Seen> = HashMap::with_capacity(wanted.len());
        for (key, stripe) in wanted {
            let group = group_of_stripe(key, i32::from(*stripe));
            let watermark = &watermarks[usize::from(group)];
            let as_of_ms = u64::try_from(watermark.known_until().ms).unwrap_or(0);
            // What the tables lack would be taken for what is not there.
            if !watermark.is_whole() || as_of_ms == 0 {
                *known = Some(client);
                return Err(ArchiveError::Unfit(format!("the tables have not got all of group {group} yet")));
            }
            seen.insert((key.clone(), *stripe), Seen { whole: Whole::default(), as_of_ms });
        }
        let keys: Vec<&[u8]> = wanted.iter().map(|(key, _)| &key[..]).collect();
        let cells = "SELECT plain.counter_key, plain.shard_id, plain.value, plain.version, plain.birth,
                (extract(epoch FROM plain.updated_at) * 1000)::bigint, plain.expires_at_ms::text,
                whole.value, whole.version, whole.birth, whole.changed_at_ms, whole.expires_at_ms::text, whole.body
            FROM counter_shard_snapshot plain LEFT JOIN counter_body_snapshot whole
                ON whole.counter_key = plain.counter_key AND plain.shard_id = 0
                    AND CASE WHEN whole.birth = plain.birth THEN whole.version >= plain.version
                        ELSE whole.changed_at_ms >= (extract(epoch FROM plain.updated_at) * 1000)::bigint END
            WHERE plain.counter_key = ANY($1)";
        for row in client.query(cells, &[&keys]).await? {
            let stripe = u16::try_from(row.get::<_, i32>(1)).unwrap_or(0);
            let Some(seen) = seen.get_mut(&(row.get(0), stripe)) else { continue };
            let body: Option<&[u8]> = row.get(12);
            seen.whole = match body.map(Body::read) {
                None => Whole { cell: Some(cell(&row, 2)), body: None },
                Some(Some(body)) => Whole { cell: Some(cell(&row, 7)), body: Some(Arc::new(body)) },
                Some(None) => return Err(ArchiveError::Unfit("a body in the tables cannot be read".into())),
            };
        }
        *known = Some(client);
        Ok(seen)
    }
}

/// The numbers of a counter, from five columns in a row.
fn cell(row: &Row, first: usize) -> Cell {
    let expires: Option<String> = row.get(first + 4);
    Cell {
        value: row.get(first),
        version: row.get::<_, i64>(first + 1) as u64,
        birth: row.get::<_, i64>(first + 2) as u64,
        updated_at_ms: u64::try_from(row.get::<_, i64>(first + 3)).unwrap_or(0),
        expires_at_ms: expires.and_then(|expires| expires.parse().ok()).unwrap_or(NEVER),
    }
}

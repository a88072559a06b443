//! All counters: a walk over the keys of every master, page by page.
//!
//! Redis has no order of keys, so every page of a list passes all counters and keeps what belongs on it. A walk sees every
//! counter that is there all the time, unless slots move or a master is replaced meanwhile: cursors are a master's own.
//!
//! Strong counters lie in rows of PostgreSQL, which are walked after the masters. Which of the two a key belongs to is said by its policy,
//! for a walk as for everybody; what may lie on the other side is not shown.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use quipu_counting::aggregate::{Part, Selector};
use quipu_counting::service::ScanPage;
use quipu_counting::{
    Aggregate, Body, Cell, Kind, ListOrder, ListPage, ListPlace, Listed, Listing, Policies, Totals,
    Unavailable,
};
use redis::{Pipeline, RedisResult, Value};

use crate::call::stored_parts;
use crate::groups::{self, place_of_cell};
use crate::masters::{Links, Map, is_said_by_server, within};
use crate::policies::is_strong;
use crate::striped::summed_cell;
use crate::stripes::Stripes;
use crate::strong::Strong;

/// About so many keys are looked at in one step of a walk over everything.
const STEP: usize = 1_000;
/// The most counters of one sum: each costs some bytes, because Redis may show a key twice.
const SUM_MAX: usize = 16_000_000;
/// The place of the master in a cursor.
const MASTER_BITS: u32 = 10;
/// What stands there for the rows of PostgreSQL, however many masters there are.
const ROWS: usize = (1 << MASTER_BITS) - 1;
/// Among so many rows one that is to be shown is looked for when any will do.
const ROWS_DRAWN: usize = 100;

/// The numbers of a cell are not longer than this, and the first byte of a body says what it counts.
const NUMBERS_BYTES: usize = 106;

/// A counter that a walk came by.
pub(crate) struct Seen {
    key: Vec<u8>,
    /// The group that it lies in.
    group: u16,
    cell: Cell,
    /// What it counts, if it has a body.
    kind: Option<Kind>,
    /// The body, where it was wanted.
    body: Option<Arc<Body>>,
    /// It comes only once, since it lies in a row, or in stripes: its birth may be that of another in its group.
    comes_once: bool,
}

type Found = Vec<Seen>;

/// A place in the order of a list.
type Rank = (std::cmp::Reverse<i64>, Vec<u8>);

/// How much of a counter a walk wants.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Numbers,
    Bodies,
}

/// One walk.
pub(crate) struct Walk {
    pub(crate) links: Arc<Links>,
    pub(crate) map: Arc<Map>,
    pub(crate) stripes: Arc<Stripes>,
    /// Where strong counters lie, and which are; if there are any, and they are wanted.
    pub(crate) rows: Option<(Arc<Strong>, Arc<Policies>)>,
    pub(crate) timeout: std::time::Duration,
    pub(crate) now_ms: u64,
}

fn failed(error: impl std::fmt::Display) -> Unavailable {
    Unavailable::NoLeader(format!("Redis cannot be walked: {error}"))
}

impl Walk {
    /// Counters that begin with `prefix` among about so many keys of one master, and the cursor of the next step.
    async fn step(
        &self,
        address: &str,
        cursor: u64,
        count: usize,
        prefix: &[u8],
        wanted: Wanted,
    ) -> RedisResult<(u64, Found)> {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(pattern(prefix)).arg("COUNT").arg(count);
        let (next, names): (u64, Vec<Vec<u8>>) = self.links.ask_for(address, &scan).await?;
        if names.is_empty() {
            return Ok((next, Found::new()));
        }
        let mut pipeline = Pipeline::with_capacity(names.len());
        for name in &names {
            match wanted {
                Wanted::Numbers => pipeline.cmd("GETRANGE").arg(&name[..]).arg(0).arg(NUMBERS_BYTES - 1),
                Wanted::Bodies => pipeline.cmd("GET").arg(&name[..]),
            };
        }
        let mut link = self.links.get(address).await?;
        let cells = within(self.timeout, link.send_packed_commands(&pipeline, 0, names.len())).await;
        if cells.as_ref().is_err_and(|error| !is_said_by_server(error)) {
            self.links.forget(address);
        }
        let mut found = Found::new();
        for (name, value) in names.iter().zip(cells?) {
            // One that has just expired is gone.
            let Some(stored) = redis::from_redis_value::<Option<Vec<u8>>>(Value::extract_error(value)?)?
            else {
                continue;
            };
            let (Some((group, key)), Some((cell, body))) = (place_of_cell(name), stored_parts(&stored))
            else {
                continue;
            };
            if cell.is_live(self.now_ms) && key.starts_with(prefix) && !self.is_strong(key) {
                let kind = body.and_then(Body::kind_of);
                let body = body.filter(|_| wanted == Wanted::Bodies).and_then(Body::read).map(Arc::new);
                found.push(Seen { key: key.to_vec(), group, cell, kind, body, comes_once: false });
            }
        }
        Ok((next, found))
    }

    fn is_strong(&self, key: &[u8]) -> bool {
        self.rows.as_ref().is_some_and(|(_, policies)| is_strong(policies, key))
    }

    /// Passes all strong counters that begin with `prefix`.
    async fn rows(
        &self,
        prefix: &[u8],
        mut see: impl FnMut(Seen) -> Result<(), Unavailable>,
    ) -> Result<(), Unavailable> {
        let Some((rows, _)) = &self.rows else { return Ok(()) };
        let mut from = prefix.to_vec();
        loop {
            let page = rows.from(&from, self.now_ms).await?;
            let Some((last, _)) = page.last() else { return Ok(()) };
            // The first key that can come behind it.
            from = [last, &[0][..]].concat();
            for (key, cell) in page {
                if !key.starts_with(prefix) {
                    return Ok(());
                }
                if self.is_strong(&key) {
                    let group = groups::group(&key);
                    see(Seen { key, group, cell, kind: None, body: None, comes_once: true })?;
                }
            }
        }
    }

    /// Passes all counters that begin with `prefix`; some may come twice, but not those in stripes, which come last and as one.
    async fn all(
        &self,
        prefix: &[u8],
        wanted: Wanted,
        mut see: impl FnMut(Seen) -> Result<(), Unavailable>,
    ) -> Result<(), Unavailable> {
        let mut striped: BTreeMap<Vec<u8>, BTreeMap<u16, Cell>> = BTreeMap::new();
        let mut see_one = |seen: Seen| {
            if self.stripes.is_empty() || self.stripes.widest(&seen.key) == 1 {
                return see(seen);
            }
            striped.entry(seen.key).or_default().insert(seen.group, seen.cell);
            Ok(())
        };
        for address in self.map.masters() {
            let mut cursor = 0;
            loop {
                let step = self.step(&address, cursor, STEP, prefix, wanted);
                let (next, found) = step.await.map_err(failed)?;
                found.into_iter().try_for_each(&mut see_one)?;
                if next == 0 {
                    break;
                }
                cursor = next;
            }
        }
        for (key, cells) in striped {
            let (group, cell) = (groups::group(&key), summed_cell(cells.values()));
            see(Seen { key, group, cell, kind: None, body: None, comes_once: true })?;
        }
        self.rows(prefix, see).await
    }

    /// A page of a scan. The cursor is a master's, with the master's place below it; or the birth of the last row that was shown.
    pub(crate) async fn scan(&self, cursor: u64, count: usize) -> Result<ScanPage, Unavailable> {
        let masters = self.map.masters();
        let place = (cursor & ((1 << MASTER_BITS) - 1)) as usize;
        if place == ROWS {
            return self.scan_rows(cursor >> MASTER_BITS, count.max(1)).await;
        }
        let behind_masters = if self.rows.is_some() { ROWS as u64 } else { 0 };
        let Some(address) = masters.get(place) else {
            return Ok(ScanPage { keys: Vec::new(), cursor: behind_masters });
        };
        let step = self.step(address, cursor >> MASTER_BITS, count.max(1), b"", Wanted::Numbers);
        let (next, found) = step.await.map_err(failed)?;
        let cursor = match next {
            0 if place + 1 < masters.len() => place as u64 + 1,
            0 => behind_masters,
            next if next >> (64 - MASTER_BITS) != 0 => return Err(failed("a cursor is too large")),
            next => next << MASTER_BITS | place as u64,
        };
        let keys: BTreeSet<Vec<u8>> = found.into_iter().map(|seen| seen.key).collect();
        Ok(ScanPage { keys: keys.into_iter().collect(), cursor })
    }

    async fn scan_rows(&self, after: u64, count: usize) -> Result<ScanPage, Unavailable> {
        let Some((rows, _)) = &self.rows else { return Ok(ScanPage::default()) };
        let page = rows.born_after(after, count, self.now_ms).await?;
        let cursor = match page.last() {
            Some((birth, _)) if page.len() == count => {
                if birth >> (64 - MASTER_BITS) != 0 {
                    return Err(failed("a cursor is too large"));
                }
                birth << MASTER_BITS | ROWS as u64
            }
            _ => 0,
        };
        let keys = page.into_iter().map(|(_, key)| key).filter(|key| self.is_strong(key)).collect();
        Ok(ScanPage { keys, cursor })
    }

    /// Any key.
    pub(crate) async fn random_key(&self, draw: u64) -> Result<Option<Vec<u8>>, Unavailable> {
        let masters = self.map.masters();
        let places = masters.len() + usize::from(self.rows.is_some());
        // By other digits than the key: else only some keys of each place would ever be chosen.
        let count = places.max(1) as u64;
        let (first, digits) = ((draw % count) as usize, draw / count);
        for turn in 0..places {
            let found = match masters.get((first + turn) % places) {
                Some(address) => self.random_key_of(address, draw, digits).await?,
                None => self.random_row(digits).await?,
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// Any key from somewhere in the middle of a master.
    async fn random_key_of(
        &self,
        address: &str,
        draw: u64,
        digits: u64,
    ) -> Result<Option<Vec<u8>>, Unavailable> {
        // Any number is a cursor. What lies before it is looked at last.
        for begin in [draw >> 32, 0] {
            let mut cursor = begin;
            loop {
                let step = self.step(address, cursor, STEP, b"", Wanted::Numbers);
                let (next, found) = step.await.map_err(failed)?;
                if !found.is_empty() {
                    let chosen = (digits % found.len() as u64) as usize;
                    return Ok(found.into_iter().nth(chosen).map(|seen| seen.key));
                }
                if next == 0 {
                    break;
                }
                cursor = next;
            }
        }
        Ok(None)
    }

    async fn random_row(&self, draw: u64) -> Result<Option<Vec<u8>>, Unavailable> {
        let Some((rows, _)) = &self.rows else { return Ok(None) };
        let newest = rows.newest_birth().await?;
        for after in [draw % newest.max(1), 0] {
            let page = rows.born_after(after, ROWS_DRAWN, self.now_ms).await?;
            let found = page.into_iter().map(|(_, key)| key).find(|key| self.is_strong(key));
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    /// A page of a list. What is stored has no order here, so its order is that of keys.
    pub(crate) async fn list(&self, listing: &Listing) -> Result<ListPage, Unavailable> {
        let place = |key: &[u8], value: i64| {
            let rank = match listing.order {
                ListOrder::Value => std::cmp::Reverse(value),
                ListOrder::Storage | ListOrder::Key => std::cmp::Reverse(0),
            };
            (rank, key.to_vec())
        };
        let after = listing.after.as_ref().map(|ListPlace { value, key }| place(key, *value));
        let mut kept: BTreeMap<Rank, (Cell, Option<Kind>)> = BTreeMap::new();
        // A counter that comes twice may have changed in between: only one of its places is kept.
        let mut places: BTreeMap<Vec<u8>, Rank> = BTreeMap::new();
        let keep = |Seen { key, cell, kind, .. }: Seen| {
            let place = place(&key, cell.value);
            if let Some(before) = places.remove(&key) {
                kept.remove(&before);
            }
            if after.as_ref().is_none_or(|after| place > *after) {
                places.insert(key, place.clone());
                kept.insert(place, (cell, kind));
            }
            if kept.len() > listing.limit + 1
                && let Some(((_, key), _)) = kept.pop_last()
            {
                places.remove(&key);
            }
            Ok(())
        };
        self.all(&listing.prefix, Wanted::Numbers, keep).await?;
        let more = kept.len() > listing.limit;
        let counters = kept
            .into_iter()
            .take(listing.limit)
            .map(|((_, key), (cell, body))| Listed { key, cell, body })
            .collect();
        Ok(ListPage { counters, more })
    }

    /// How many counters that begin with `prefix` are so.
    pub(crate) async fn count(
        &self,
        prefix: &[u8],
        is_so: impl Fn(&[u8]) -> bool,
    ) -> Result<u64, Unavailable> {
        // Some may come twice, and of many the keys would take too much.
        let mut found: HashSet<u64> = HashSet::new();
        let hasher = RandomState::new();
        let add = |Seen { key, .. }: Seen| {
            if is_so(&key) {
                found.insert(hasher.hash_one(&key));
            }
            Ok(())
        };
        self.all(prefix, Wanted::Numbers, add).await?;
        Ok(found.len() as u64)
    }

    /// The totals of a pattern, by group.
    pub(crate) async fn aggregate(
        &self,
        selector: &Selector,
        policies: &Policies,
    ) -> Result<Aggregate, Unavailable> {
        let mut totals: BTreeMap<u16, Totals> = BTreeMap::new();
        // Births are given out once in a group.
        let mut seen: HashSet<(u16, u64)> = HashSet::new();
        let add = |Seen { key, group, cell, body, comes_once, .. }: Seen| {
            if !selector.selects(&key) || !comes_once && !seen.insert((group, cell.birth)) {
                return Ok(());
            }
            if seen.len() > SUM_MAX {
                let why = format!("a sum of more than {SUM_MAX} counters; add up parts of them");
                return Err(Unavailable::Unsupported(why));
            }
            selector.add(totals.entry(group).or_default(), (&key, cell.value), body.as_ref(), policies);
            Ok(())
        };
        let wanted = if selector.slice().is_some() { Wanted::Bodies } else { Wanted::Numbers };
        self.all(selector.prefix(), wanted, add).await?;
        totals.retain(|_, totals| totals.count > 0);
        let part = |(partition, totals)| Part { partition, node: None, totals };
        Ok(Aggregate { parts: totals.into_iter().map(part).collect(), missing: Vec::new() })
    }
}

/// What cells are called whose keys begin with `prefix`, as a pattern of Redis.
fn pattern(prefix: &[u8]) -> Vec<u8> {
    let mut pattern = b"{q*}:c:".to_vec();
    for byte in prefix {
        if matches!(byte, b'*' | b'?' | b'[' | b']' | b'\\' | b'^') {
            pattern.push(b'\\');
        }
        pattern.push(*byte);
    }
    pattern.push(b'*');
    pattern
}

//! Walks over all counters: whoever leads a partition is asked for it, page by page.
//!
//! A page of one partition is a selection in some order of keys and values (`quipu_engine`'s lists), which is the same at every
//! replica. So a walk goes on at whoever leads then, and shows what it would have shown at the one before.
//!
//! The place where SCAN goes on is a key, and a cursor is a number, below 2^53 for clients that keep it in a double:
//!
//! ```text
//! cursor := 0 | 1 + (partition:14 node:10 place:28)      place 0 is the beginning of the partition
//! ```
//! The node that made a cursor remembers the key of the place, and is asked for it by others. If it is gone, or has forgotten, the
//! walk begins the partition anew: that repeats keys, and misses none.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use parking_lot::Mutex;
use quipu_counting::service::ScanPage;
use quipu_counting::slot::{partition as partition_of, slot};
use quipu_counting::{
    Action, AuditPage, AuditQuery, Batch, KEY_BYTES_MAX, Kind, ListOrder, ListPage, ListPlace, Listed,
    Listing,
};
use quipu_wire::audit::{put_change, read_change};
use quipu_wire::entry::{Malformed, Reader, put_bytes, put_cell, put_varint, put_zigzag};

use crate::blocking::blocking;
use crate::node::{ANSWER_MAX, Node, within};
use crate::questions::{kind, question, read_partition};
use crate::raft::{NodeId, NotDone};

/// Places remembered, one for every page of every walk; the oldest is forgotten first.
const PLACES_MAX: usize = 8_192;
/// Keys of a page of SCAN at least: a page costs a way to another node and back, and a look through what is not yet on disk.
const KEYS_MIN: usize = 100;
/// Keys of a page at most.
const KEYS_MAX: usize = 10_000;

const PLACE_BITS: u32 = 28;
const NODE_BITS: u32 = 10;

/// Which partitions a walk is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All.
    All,
    /// Those that this node leads. One in which a walk has begun is walked to its end, whoever leads it then.
    Led,
}

/// Where walks go on.
pub(crate) struct Places {
    last: u32,
    /// Partition and key by number.
    known: BTreeMap<u32, (u16, Vec<u8>)>,
}

impl Places {
    /// Numbers begin with the time: those that were given out before a restart should name nothing.
    pub(crate) fn new(now_ms: u64) -> Mutex<Places> {
        Mutex::new(Places { last: now_ms as u32, known: BTreeMap::new() })
    }

    fn keep(&mut self, partition: u16, key: Vec<u8>) -> u32 {
        self.last = (self.last.wrapping_add(1) & ((1 << PLACE_BITS) - 1)).max(1);
        self.known.insert(self.last, (partition, key));
        if self.known.len() > PLACES_MAX {
            // The first behind the newest is the oldest, also when the numbers have begun anew.
            let oldest = self.known.range(self.last + 1..).next().or_else(|| self.known.iter().next());
            if let Some(oldest) = oldest.map(|(number, _)| *number) {
                self.known.remove(&oldest);
            }
        }
        self.last
    }

    fn find(&self, partition: u16, place: u32) -> Option<Vec<u8>> {
        self.known.get(&place).filter(|(known, _)| *known == partition).map(|(_, key)| key.clone())
    }
}

/// What a cursor says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cursor {
    partition: u16,
    /// Of the number of the node that remembers the place, the last bits.
    node: u64,
    place: u32,
}

impl Cursor {
    fn encode(self) -> u64 {
        1 + ((u64::from(self.partition) << NODE_BITS | self.node) << PLACE_BITS | u64::from(self.place))
    }

    /// A number that was never a cursor means something too, as in Redis: at worst the end.
    fn decode(cursor: u64) -> Cursor {
        let rest = cursor.saturating_sub(1);
        Cursor {
            partition: u16::try_from(rest >> (NODE_BITS + PLACE_BITS)).unwrap_or(u16::MAX),
            node: (rest >> PLACE_BITS) & ((1 << NODE_BITS) - 1),
            place: (rest & ((1 << PLACE_BITS) - 1)) as u32,
        }
    }
}

fn last_bits(node: NodeId) -> u64 {
    node & ((1 << NODE_BITS) - 1)
}

impl Node {
    /// About so many keys of a walk; the rest with the cursor that comes with them, at any node.
    pub async fn scan(&self, cursor: u64, count: usize, scope: Scope) -> Result<ScanPage, NotDone> {
        let wanted = count.clamp(KEYS_MIN, KEYS_MAX);
        let from = Cursor::decode(cursor);
        let mut after = self.remembered(from).await;
        let mut partition = from.partition;
        let mut is_begun = from.place != 0;
        let mut keys = Vec::new();
        while partition < self.partitions {
            let is_wanted = scope == Scope::All || is_begun || self.leads(partition);
            is_begun = false;
            if is_wanted && keys.len() < wanted {
                let after = after.take().map(|key| ListPlace { value: 0, key });
                let limit = wanted - keys.len();
                let listing = Listing { order: ListOrder::Key, after, limit, ..Listing::default() };
                let page = self.page(partition, &listing).await?;
                let next = page.next();
                keys.extend(page.counters.into_iter().map(|listed| listed.key));
                if let Some(next) = next {
                    let place = self.places.lock().keep(partition, next.key);
                    let cursor = Cursor { partition, node: last_bits(self.id), place };
                    return Ok(ScanPage { keys, cursor: cursor.encode() });
                }
            } else if is_wanted {
                let cursor = Cursor { partition, node: 0, place: 0 };
                return Ok(ScanPage { keys, cursor: cursor.encode() });
            }
            partition += 1;
        }
        Ok(ScanPage { keys, cursor: 0 })
    }

    fn leads(&self, partition: u16) -> bool {
        self.leader(partition) == Some(self.id)
    }

    /// The key behind which a walk goes on in its partition; `None` for the beginning.
    async fn remembered(&self, Cursor { partition, node, place }: Cursor) -> Option<Vec<u8>> {
        if place == 0 {
            return None;
        }
        let nodes: Vec<NodeId> = self.meta(|meta| meta.nodes.keys().copied().collect());
        for node in nodes.into_iter().filter(|known| last_bits(*known) == node) {
            let asked = question(kind::PLACE, partition, |out| put_varint(out, u64::from(place)));
            if let Ok(Some(key)) = self.ask(node, asked, ANSWER_MAX, read_maybe_key).await {
                return Some(key);
            }
        }
        None
    }

    /// One page of a list of all counters.
    pub async fn list(&self, listing: &Listing) -> Result<ListPage, NotDone> {
        let listing = Listing { limit: listing.limit.clamp(1, KEYS_MAX), ..listing.clone() };
        match listing.order {
            ListOrder::Storage => self.list_by_storage(&listing).await,
            ListOrder::Key | ListOrder::Value => self.list_in_order(&listing).await,
        }
    }

    /// Partition by partition, each in the order of keys.
    async fn list_by_storage(&self, listing: &Listing) -> Result<ListPage, NotDone> {
        let first = listing.after.as_ref().map_or(0, |place| partition_of(slot(&place.key), self.partitions));
        let mut whole = ListPage::default();
        for partition in first..self.partitions {
            let after = listing.after.clone().filter(|_| partition == first);
            // Where the page is full, one more tells whether others follow.
            let limit = (listing.limit - whole.counters.len()).max(1);
            let page = self.page(partition, &Listing { after, limit, ..listing.clone() }).await?;
            if whole.counters.len() == listing.limit {
                whole.more = !page.counters.is_empty();
            } else {
                whole.more = page.more;
                whole.counters.extend(page.counters);
            }
            if whole.more {
                break;
            }
        }
        Ok(whole)
    }

    /// All partitions into one order.
    async fn list_in_order(&self, listing: &Listing) -> Result<ListPage, NotDone> {
        let pages = join_all((0..self.partitions).map(|partition| self.page(partition, listing))).await;
        let mut whole = ListPage::default();
        for page in pages {
            let page = page?;
            whole.more |= page.more;
            whole.counters.extend(page.counters);
        }
        match listing.order {
            ListOrder::Value => whole.counters.sort_unstable_by(|one, other| {
                other.cell.value.cmp(&one.cell.value).then_with(|| one.key.cmp(&other.key))
            }),
            _ => whole.counters.sort_unstable_by(|one, other| one.key.cmp(&other.key)),
        }
        whole.more |= whole.counters.len() > listing.limit;
        whole.counters.truncate(listing.limit);
        Ok(whole)
    }

    async fn page(&self, partition: u16, listing: &Listing) -> Result<ListPage, NotDone> {
        let asked = question(kind::PAGE, partition, |out| put_listing(out, listing));
        self.ask_leader(partition, asked, read_page).await
    }

    /// One page of the trail of a counter.
    pub async fn audit(&self, query: &AuditQuery) -> Result<AuditPage, NotDone> {
        let partition = partition_of(slot(&query.key), self.partitions);
        let asked = question(kind::AUDIT, partition, |out| put_audit_query(out, query));
        self.ask_leader(partition, asked, read_audit_page).await
    }

    /// One of the keys, or none if there are none; `draw` is a random number that chooses.
    pub async fn random_key(&self, draw: u64, scope: Scope) -> Result<Option<Vec<u8>>, NotDone> {
        let first = (draw % u64::from(self.partitions)) as u16;
        for partition in (first..self.partitions).chain(0..first) {
            if scope == Scope::Led && !self.leads(partition) {
                continue;
            }
            let asked = question(kind::DRAW, partition, |out| put_varint(out, draw));
            if let Some(key) = self.ask_leader(partition, asked, read_maybe_key).await? {
                return Ok(Some(key));
            }
        }
        Ok(None)
    }

    /// How many counters are in the partitions that this node leads.
    pub async fn count_led(&self) -> Result<u64, NotDone> {
        let counts = (0..self.partitions).filter(|partition| self.leads(*partition)).map(|partition| {
            let mut batch = Batch::default();
            batch.push(b"", Action::Count);
            self.do_here(partition, batch)
        });
        let mut count = 0_u64;
        for replies in join_all(counts).await {
            match replies {
                Ok(replies) => {
                    let counted = replies.first().map_or(0, |reply| reply.cell.value);
                    count = count.saturating_add(counted.max(0).unsigned_abs());
                }
                // Whoever leads it now counts it.
                Err(NotDone::NotLeader(_)) => {}
                Err(other) => return Err(other),
            }
        }
        Ok(count)
    }

    /// Answers the questions of this file.
    pub(crate) async fn answer_walk(
        &self,
        asked_for: u8,
        reader: &mut Reader<'_>,
    ) -> Result<Result<Vec<u8>, NotDone>, Malformed> {
        let partition = read_partition(reader)?;
        Ok(match asked_for {
            kind::PAGE => {
                let listing = read_listing(reader)?;
                let page = self.of_led(partition, move |node, now_ms| {
                    node.engine.list_of(partition, &listing, now_ms).map_err(|error| error.to_string())
                });
                page.await.map(|page| encode_page(&page))
            }
            kind::AUDIT => {
                let query = read_audit_query(reader)?;
                if partition_of(slot(&query.key), self.partitions) != partition {
                    return Err(Malformed("a key of another partition"));
                }
                let page = self.of_led(partition, move |node, now_ms| {
                    node.engine.audit_of(partition, &query, now_ms).map_err(|error| error.to_string())
                });
                page.await.map(|page| encode_audit_page(&page))
            }
            kind::DRAW => {
                let draw = reader.varint()?;
                let key = self.of_led(partition, move |node, now_ms| {
                    node.engine.draw_key_of(partition, draw, now_ms).map_err(|error| error.to_string())
                });
                key.await.map(|key| encode_maybe_key(key.as_deref()))
            }
            _ => {
                let place = u32::try_from(reader.varint()?).map_err(|_| Malformed("place"))?;
                Ok(encode_maybe_key(self.places.lock().find(partition, place).as_deref()))
            }
        })
    }

    /// Looks at all of a partition that this node leads, after everything that was acknowledged before is carried out.
    pub(crate) async fn of_led<T: Send + 'static>(
        &self,
        partition: u16,
        look: impl FnOnce(&Node, u64) -> Result<T, String> + Send + 'static,
    ) -> Result<T, NotDone> {
        let group = self.leading(partition)?;
        within(ANSWER_MAX, group.confirm()).await?;
        let node = self.myself.upgrade().ok_or(NotDone::NotLeader(None))?;
        let now_ms = self.now_ms();
        let looked = blocking(move || look(&node, now_ms)).await;
        let looked =
            looked.map_err(|error| error.to_string()).and_then(|looked| looked).map_err(NotDone::Stopped)?;
        self.is_still(partition, &group)?;
        Ok(looked)
    }
}

fn put_listing(out: &mut Vec<u8>, listing: &Listing) {
    put_bytes(out, &listing.prefix);
    out.push(match listing.order {
        ListOrder::Storage => 0,
        ListOrder::Key => 1,
        ListOrder::Value => 2,
    });
    out.push(u8::from(listing.after.is_some()));
    if let Some(place) = &listing.after {
        put_zigzag(out, place.value);
        put_bytes(out, &place.key);
    }
    put_varint(out, listing.limit as u64);
}

fn read_listing(reader: &mut Reader<'_>) -> Result<Listing, Malformed> {
    let prefix = reader.bytes()?.to_vec();
    let order = match reader.byte()? {
        0 => ListOrder::Storage,
        1 => ListOrder::Key,
        2 => ListOrder::Value,
        _ => return Err(Malformed("unknown order; sent by a newer version?")),
    };
    let after = match reader.flag()? {
        true => Some(ListPlace { value: reader.zigzag()?, key: reader.bytes_up_to(KEY_BYTES_MAX)?.to_vec() }),
        false => None,
    };
    let limit = usize::try_from(reader.varint()?).map_err(|_| Malformed("limit of a list"))?;
    Ok(Listing { prefix, order, after, limit })
}

fn encode_page(page: &ListPage) -> Vec<u8> {
    let mut out = vec![u8::from(page.more)];
    put_varint(&mut out, page.counters.len() as u64);
    for Listed { key, cell, .. } in &page.counters {
        put_bytes(&mut out, key);
        put_cell(&mut out, cell);
    }
    // Nodes that do not know bodies know of none, and hear of none.
    for (place, listed) in page.counters.iter().enumerate() {
        if let Some(kind) = listed.body {
            put_varint(&mut out, place as u64);
            out.push(kind as u8);
        }
    }
    out
}

fn read_page(reader: &mut Reader<'_>) -> Result<ListPage, Malformed> {
    let more = reader.flag()?;
    let counter = |reader: &mut Reader<'_>| {
        Ok(Listed { key: reader.bytes_up_to(KEY_BYTES_MAX)?.to_vec(), cell: reader.cell()?, body: None })
    };
    let counters = (0..reader.count()?).map(|_| counter(reader));
    let mut counters = counters.collect::<Result<Vec<_>, Malformed>>()?;
    while !reader.is_empty() {
        let place = usize::try_from(reader.varint()?).map_err(|_| Malformed("place in a page"))?;
        let listed = counters.get_mut(place).ok_or(Malformed("place in a page"))?;
        let (kind, _) = Kind::ALL.get(usize::from(reader.byte()?)).ok_or(Malformed("kind of a counter"))?;
        listed.body = Some(*kind);
    }
    Ok(ListPage { counters, more })
}

fn put_audit_query(out: &mut Vec<u8>, query: &AuditQuery) {
    put_bytes(out, &query.key);
    put_varint(out, query.from_ms);
    put_varint(out, query.to_ms);
    put_maybe_number(out, query.before);
    put_varint(out, query.limit as u64);
}

fn read_audit_query(reader: &mut Reader<'_>) -> Result<AuditQuery, Malformed> {
    Ok(AuditQuery {
        key: reader.bytes_up_to(KEY_BYTES_MAX)?.to_vec(),
        from_ms: reader.varint()?,
        to_ms: reader.varint()?,
        before: read_maybe_number(reader)?,
        limit: usize::try_from(reader.varint()?).map_err(|_| Malformed("limit of a page"))?,
    })
}

fn encode_audit_page(page: &AuditPage) -> Vec<u8> {
    let mut out = vec![u8::from(page.more)];
    put_maybe_number(&mut out, page.since_ms);
    put_varint(&mut out, page.changes.len() as u64);
    page.changes.iter().for_each(|change| put_change(&mut out, change));
    out
}

fn read_audit_page(reader: &mut Reader<'_>) -> Result<AuditPage, Malformed> {
    let (more, since_ms) = (reader.flag()?, read_maybe_number(reader)?);
    let changes = (0..reader.count()?).map(|_| read_change(reader)).collect::<Result<_, Malformed>>()?;
    Ok(AuditPage { changes, more, since_ms })
}

fn put_maybe_number(out: &mut Vec<u8>, number: Option<u64>) {
    out.push(u8::from(number.is_some()));
    number.iter().for_each(|number| put_varint(out, *number));
}

fn read_maybe_number(reader: &mut Reader<'_>) -> Result<Option<u64>, Malformed> {
    if reader.flag()? { reader.varint().map(Some) } else { Ok(None) }
}

fn encode_maybe_key(key: Option<&[u8]>) -> Vec<u8> {
    let mut out = vec![u8::from(key.is_some())];
    key.iter().for_each(|key| put_bytes(&mut out, key));
    out
}

fn read_maybe_key(reader: &mut Reader<'_>) -> Result<Option<Vec<u8>>, Malformed> {
    if reader.flag()? { Ok(Some(reader.bytes_up_to(KEY_BYTES_MAX)?.to_vec())) } else { Ok(None) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_read_as_written_and_fit_a_double() {
        for partition in [0, 1, 16_383] {
            for (node, place) in [(0, 0), (1, 1), (1023, (1 << PLACE_BITS) - 1)] {
                let cursor = Cursor { partition, node, place };
                assert_eq!(Cursor::decode(cursor.encode()), cursor);
                assert!((1..1 << 53).contains(&cursor.encode()));
            }
        }
        assert_eq!(Cursor::decode(0), Cursor { partition: 0, node: 0, place: 0 });
        assert_eq!(Cursor::decode(u64::MAX).partition, u16::MAX);
    }

    #[test]
    fn the_oldest_place_is_forgotten_first() {
        // Numbers begin anew on the way.
        let places = Places::new((1 << PLACE_BITS) - 5);
        let mut places = places.lock();
        let first = places.keep(7, b"first".to_vec());
        assert_eq!(places.find(7, first).as_deref(), Some(&b"first"[..]));
        assert_eq!(places.find(6, first), None, "of another partition");
        let others: Vec<u32> = (0..PLACES_MAX).map(|_| places.keep(7, b"other".to_vec())).collect();
        assert_eq!(places.find(7, first), None);
        assert!(others.iter().all(|other| places.find(7, *other).is_some()));
    }

    #[test]
    fn listings_and_pages_are_read_as_written() {
        let listing = Listing {
            prefix: b"a".to_vec(),
            order: ListOrder::Value,
            after: Some(ListPlace { value: -3, key: b"ab".to_vec() }),
            limit: 7,
        };
        for listing in [listing, Listing::default()] {
            let mut bytes = Vec::new();
            put_listing(&mut bytes, &listing);
            assert_eq!(read_listing(&mut Reader::new(&bytes)).unwrap(), listing);
            for length in 0..bytes.len() {
                assert!(read_listing(&mut Reader::new(&bytes[..length])).is_err());
            }
        }
        let listed =
            |key: &[u8], body| Listed { key: key.to_vec(), cell: quipu_counting::Cell::ABSENT, body };
        let sums = vec![listed(b"ab", None), listed(b"abc", None)];
        let others =
            vec![listed(b"a", Some(Kind::Window)), listed(b"b", None), listed(b"c", Some(Kind::Sum))];
        for counters in [sums, others] {
            let page = ListPage { counters, more: true };
            assert_eq!(read_page(&mut Reader::new(&encode_page(&page))).unwrap(), page);
        }
        let query = AuditQuery { key: b"k".to_vec(), from_ms: 1, to_ms: u64::MAX, before: Some(9), limit: 7 };
        let mut bytes = Vec::new();
        put_audit_query(&mut bytes, &query);
        assert_eq!(read_audit_query(&mut Reader::new(&bytes)).unwrap(), query);
        let page = AuditPage { changes: Vec::new(), more: true, since_ms: Some(5) };
        assert_eq!(read_audit_page(&mut Reader::new(&encode_audit_page(&page))).unwrap(), page);
    }
}

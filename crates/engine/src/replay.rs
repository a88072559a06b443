//! Carrying out effects of the log on cells, many at a time.
//!
//! A replay is bound by cache misses as much as serving is, so effects wait in a queue until there are enough
//! of them to have their slots and records under way together. Order is kept.

use std::sync::Arc;

use quipu_counting::identity::fingerprint;
use quipu_counting::{Action, Add, Body, Cell, Identity, NEVER, Outcome, Remembered};
use quipu_store::cold::{ColdError, ColdStore};
use quipu_wire::entry::Malformed;

use crate::fetch::read_whole;
use crate::partition::Partition;
use crate::prefetch::prefetch;
use crate::record::{Flags, RECORD_BYTES_MIN, UNIT};
use crate::table::RecordNumber;

/// Effects carried out together: enough to hide memory behind memory, few enough to stay in the first cache.
const QUEUE_LENGTH: usize = 64;
/// Ids are record numbers of the process that wrote the log, so two of them are at least this far apart.
const ID_STRIDE: u32 = (RECORD_BYTES_MIN / UNIT) as u32;
const PAGE_IDS: usize = 1 << 14;

/// Why a record of the log cannot be carried out.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// It is not what this version writes.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// What it needs cannot be read.
    #[error(transparent)]
    Cold(#[from] ColdError),
}

/// Where and when an effect belongs.
#[derive(Clone, Copy)]
pub struct At {
    /// Which of the partitions that are carried out together.
    pub index: usize,
    /// Entry time.
    pub time_ms: u64,
}

/// What happens to a cell that is known by an id.
#[derive(Clone, Copy)]
pub enum Step {
    /// Add this in so many changes.
    Add(i64, u64),
    /// Add this, and remember what it came to.
    AddUnder(i64, Identity),
    /// It is now this.
    Put(Cell),
    /// It is now this, and its body changed by the events at this place of the queue's bytes.
    PutWhole(Cell, Place),
    /// It no longer exists.
    Remove,
}

/// A place in the queue's bytes.
pub type Place = (usize, usize);

struct Queued {
    at: At,
    id: u32,
    what: What,
}

enum What {
    /// The id stands for the key at this place of the queue's bytes.
    Define {
        start: usize,
        end: usize,
        hash: u32,
        cell: Option<Cell>,
        has_body: bool,
    },
    Step(Step),
}

/// See the head of this file.
pub struct Queue {
    waiting: Vec<Queued>,
    /// Keys and events of what waits.
    bytes: Vec<u8>,
    /// Record numbers by id, by partition.
    ids: Vec<Ids>,
}

impl Queue {
    /// For so many partitions.
    pub fn new(partitions: usize) -> Queue {
        Queue {
            waiting: Vec::new(),
            bytes: Vec::new(),
            ids: (0..partitions).map(|_| Ids::default()).collect(),
        }
    }

    /// Whether it is time to [`Queue::apply`].
    pub fn is_full(&self) -> bool {
        self.waiting.len() >= QUEUE_LENGTH
    }

    /// Queues a definition.
    pub fn define(&mut self, at: At, id: u32, key: &[u8], cell: Option<Cell>, has_body: bool) {
        let (start, end) = self.keep(key);
        let what = What::Define { start, end, hash: 0, cell, has_body };
        self.waiting.push(Queued { at, id, what });
    }

    /// Keeps bytes for as long as what they belong to waits.
    pub fn keep(&mut self, bytes: &[u8]) -> Place {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        (start, self.bytes.len())
    }

    /// Queues a step.
    pub fn push(&mut self, at: At, id: u32, step: Step) {
        self.waiting.push(Queued { at, id, what: What::Step(step) });
    }

    /// The ids of a partition mean nothing any more. Nothing may be waiting.
    pub fn forget(&mut self, partition: usize) {
        self.ids[partition] = Ids::default();
    }

    /// Carries out what waits.
    pub fn apply(&mut self, partitions: &mut [Partition], cold: &dyn ColdStore) -> Result<(), ReplayError> {
        for queued in &mut self.waiting {
            let index = queued.at.index;
            match &mut queued.what {
                What::Define { start, end, hash, .. } => {
                    *hash = partitions[index].hash(&self.bytes[*start..*end]);
                    partitions[index].table.prefetch_slot(*hash);
                }
                What::Step(_) => self.ids[index].prefetch(queued.id),
            }
        }
        for queued in &self.waiting {
            let index = queued.at.index;
            match &queued.what {
                What::Define { hash, .. } => partitions[index].table.prefetch_record(*hash),
                What::Step(_) => {
                    if let Some(number) = self.ids[index].get(queued.id) {
                        partitions[index].table.prefetch_number(number);
                    }
                }
            }
        }
        for queued in self.waiting.drain(..) {
            let index = queued.at.index;
            let (partition, ids) = (&mut partitions[index], &mut self.ids[index]);
            let number = match queued.what {
                What::Define { start, end, hash, cell, has_body } => {
                    let key = &self.bytes[start..end];
                    let number = define(partition, hash, key, cell);
                    if has_body {
                        find_body(partition, number, key, cold)?;
                    }
                    number
                }
                What::Step(step) => {
                    let number = ids.get(queued.id).ok_or(Malformed("id without definition"))?;
                    carry_out(partition, number, step, queued.at, &self.bytes)?
                }
            };
            ids.set(queued.id, number);
        }
        self.bytes.clear();
        Ok(())
    }
}

fn define(partition: &mut Partition, hash: u32, key: &[u8], cell: Option<Cell>) -> RecordNumber {
    match partition.table.find(hash, key) {
        Some(number) => partition.table.set_cell(hash, number, cell),
        None => {
            if let Some(cell) = cell {
                partition.expiries.changed(hash, NEVER, cell.expires_at_ms);
            }
            partition.table.insert(hash, key, cell, Flags::NONE)
        }
    }
}

/// The body of a counter that was defined: what was replayed so far knows it, or it is as the checkpoint has it.
fn find_body(
    partition: &mut Partition,
    number: RecordNumber,
    key: &[u8],
    cold: &dyn ColdStore,
) -> Result<(), ReplayError> {
    if partition.bodies.get(key).is_none() {
        let found = read_whole(cold, partition.index, partition.generation, key)?;
        let body = found.body.ok_or(Malformed("a counter without the body it had"))?;
        partition.set_body(number, key, Some(body));
    }
    Ok(())
}

fn carry_out(
    partition: &mut Partition,
    number: RecordNumber,
    step: Step,
    at: At,
    bytes: &[u8],
) -> Result<RecordNumber, Malformed> {
    let before = partition.table.cell(number);
    let after = match step {
        Step::Put(cell) | Step::PutWhole(cell, _) => Some(cell),
        Step::Remove => None,
        Step::Add(delta, times) => Some(added(before, delta, times, at)?),
        Step::AddUnder(delta, _) => Some(added(before, delta, 1, at)?),
    };
    let hash = partition.hash(partition.table.key(number));
    if let (Step::AddUnder(delta, identity), Some(before), Some(after)) = (step, before, after) {
        partition.ids.remember(Remembered {
            identity,
            fingerprint: fingerprint(&Action::Add(Add::plain(delta))),
            at_ms: at.time_ms,
            outcome: Outcome::of_addition(&before, &after),
        });
    }
    partition.mark_dirty(number, before);
    partition.account(hash, before, after);
    let has_body = partition.table.flags(number).any(Flags::BODY);
    let number = partition.table.set_cell(hash, number, after);
    if has_body {
        let key = partition.table.key(number).to_vec();
        partition.leave_body(number, &key, before, after);
    }
    if let Step::PutWhole(_, (start, end)) = step {
        let key = partition.table.key(number).to_vec();
        let mut body = partition.bodies.lend(&key).map(Arc::unwrap_or_clone);
        Body::apply_all(&mut body, &bytes[start..end], at.time_ms).ok_or(Malformed("events of a body"))?;
        partition.set_body(number, &key, body.map(Arc::new));
    }
    Ok(number)
}

fn added(before: Option<Cell>, delta: i64, times: u64, at: At) -> Result<Cell, Malformed> {
    let before = before.ok_or(Malformed("addition to nothing"))?;
    let value = before.value.checked_add(delta).ok_or(Malformed("addition beyond 64 bits"))?;
    let version = before.version.wrapping_add(times);
    Ok(Cell { value, version, updated_at_ms: at.time_ms, ..before })
}

/// Record numbers by the ids of the log (not request ids): pages that are made where ids are.
#[derive(Default)]
struct Ids {
    pages: Vec<Vec<RecordNumber>>,
}

fn place(id: u32) -> (usize, usize) {
    let slot = (id / ID_STRIDE) as usize;
    (slot / PAGE_IDS, slot % PAGE_IDS)
}

impl Ids {
    fn get(&self, id: u32) -> Option<RecordNumber> {
        let (page, slot) = place(id);
        self.pages.get(page)?.get(slot).copied().filter(|number| *number != 0)
    }

    fn prefetch(&self, id: u32) {
        let (page, slot) = place(id);
        if let Some(entry) = self.pages.get(page).and_then(|page| page.get(slot)) {
            prefetch(entry);
        }
    }

    fn set(&mut self, id: u32, number: RecordNumber) {
        let (page, slot) = place(id);
        if page >= self.pages.len() {
            self.pages.resize_with(page + 1, Vec::new);
        }
        let page = &mut self.pages[page];
        if page.is_empty() {
            page.resize(PAGE_IDS, 0);
        }
        page[slot] = number;
    }
}

//! Carrying out effects of the log on cells, many at a time.
//!
//! A replay is bound by cache misses as much as serving is, so effects wait in a queue until there are enough
//! of them to have their slots and records under way together. Order is kept.

use quipu_counting::identity::fingerprint;
use quipu_counting::{Action, Add, Cell, Identity, NEVER, Outcome, Remembered};
use quipu_wire::entry::Malformed;

use crate::partition::Partition;
use crate::prefetch::prefetch;
use crate::record::{Flags, RECORD_BYTES_MIN, UNIT};
use crate::table::RecordNumber;

/// Effects carried out together: enough to hide memory behind memory, few enough to stay in the first cache.
const QUEUE_LENGTH: usize = 64;
/// Ids are record numbers of the process that wrote the log, so two of them are at least this far apart.
const ID_STRIDE: u32 = (RECORD_BYTES_MIN / UNIT) as u32;
const PAGE_IDS: usize = 1 << 14;

/// Where and when an effect belongs.
#[derive(Clone, Copy)]
pub struct At {
    /// Partition.
    pub partition: u16,
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
    /// It no longer exists.
    Remove,
}

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
    },
    Step(Step),
}

/// See the head of this file.
pub struct Queue {
    waiting: Vec<Queued>,
    keys: Vec<u8>,
    /// Record numbers by id, by partition.
    ids: Vec<Ids>,
}

impl Queue {
    /// For so many partitions.
    pub fn new(partitions: usize) -> Queue {
        Queue {
            waiting: Vec::new(),
            keys: Vec::new(),
            ids: (0..partitions).map(|_| Ids::default()).collect(),
        }
    }

    /// Whether it is time to [`Queue::apply`].
    pub fn is_full(&self) -> bool {
        self.waiting.len() >= QUEUE_LENGTH
    }

    /// Queues a definition.
    pub fn define(&mut self, at: At, id: u32, key: &[u8], cell: Option<Cell>) {
        let start = self.keys.len();
        self.keys.extend_from_slice(key);
        let what = What::Define { start, end: self.keys.len(), hash: 0, cell };
        self.waiting.push(Queued { at, id, what });
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
    pub fn apply(&mut self, partitions: &mut [Partition]) -> Result<(), Malformed> {
        for queued in &mut self.waiting {
            let index = usize::from(queued.at.partition);
            match &mut queued.what {
                What::Define { start, end, hash, .. } => {
                    *hash = partitions[index].hash(&self.keys[*start..*end]);
                    partitions[index].table.prefetch_slot(*hash);
                }
                What::Step(_) => self.ids[index].prefetch(queued.id),
            }
        }
        for queued in &self.waiting {
            let index = usize::from(queued.at.partition);
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
            let index = usize::from(queued.at.partition);
            let (partition, ids) = (&mut partitions[index], &mut self.ids[index]);
            let number = match queued.what {
                What::Define { start, end, hash, cell } => {
                    define(partition, hash, &self.keys[start..end], cell)
                }
                What::Step(step) => {
                    let number = ids.get(queued.id).ok_or(Malformed("id without definition"))?;
                    carry_out(partition, number, step, queued.at)?
                }
            };
            ids.set(queued.id, number);
        }
        self.keys.clear();
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

fn carry_out(
    partition: &mut Partition,
    number: RecordNumber,
    step: Step,
    at: At,
) -> Result<RecordNumber, Malformed> {
    let before = partition.table.cell(number);
    let after = match step {
        Step::Put(cell) => Some(cell),
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
    Ok(partition.table.set_cell(hash, number, after))
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

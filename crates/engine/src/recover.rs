//! Recovery: the newest checkpoint of every partition, then the log after it.
//!
//! A segment is folded from its start, because that is where the ids of its keys are defined. Effects that a
//! partition's checkpoint already contains only bring the fold to the state of the checkpoint; effects after it
//! are changes and leave dirty cells, totals, request ids and sessions behind.

use std::ops::{Bound, ControlFlow};
use std::sync::Arc;

use quipu_counting::Policies;
use quipu_store::cold::{ColdError, ColdStore};
use quipu_store::{Disk, Durability, LOG_START, Log, LogError, LogOptions, Visit};
use quipu_wire::entry::{self, Effect, Malformed, Reader, Section, sections};

use crate::folder::Folder;
use crate::ids::{BUCKET_BITS_MAX, Run, Slice};
use crate::options::{OpenError, Options};
use crate::partition::Partition;
use crate::replay::{At, Queue, Step};
use crate::rows::{self, Cut};

/// What a restart found.
pub struct Recovered {
    pub partitions: Vec<Partition>,
    pub policies: Policies,
    pub log: Log,
    /// Offset of every partition's checkpoint.
    pub cuts: Vec<u64>,
}

/// A counter's birth is a sequence. In modes that acknowledge before the log is durable a power cut may lose
/// changes whose births somebody saw; going on so far above makes sure that none is given out twice.
const SEQUENCE_GAP: u64 = 1 << 24;

/// Brings everything back.
pub fn recover(
    disk: Arc<dyn Disk>,
    folder: &Folder,
    cold: &dyn ColdStore,
    options: &Options,
    hash_seed: u64,
) -> Result<Recovered, OpenError> {
    let mut replay = Replay::new(usize::from(folder.meta.partitions), hash_seed);
    if folder.is_new && !cold.spaces()?.is_empty() {
        return Err(folder.missing("quipu.meta"));
    }
    replay.load_checkpoints(cold)?;
    // The log of a folder in use has begun, whatever checkpoints there are.
    let begun = if folder.is_new { 0 } else { LOG_START };
    let from = replay.cuts.iter().map(|cut| cut.offset).min().unwrap_or(0).max(begun);
    let log_options = LogOptions { prewrites: options.durability == Durability::Sync, ..options.log };
    let log = Log::open(disk, &folder.path.join("log"), log_options, from, &mut |visit| replay.visit(visit))?;
    replay.apply_queued()?;
    if folder.is_new && log.recovery().records > 0 {
        // With secrets other than those of its request ids, each of them would count again.
        return Err(folder.missing("quipu.meta"));
    }
    let mut partitions = replay.partitions;
    if !folder.is_new {
        partitions.iter_mut().for_each(|partition| partition.sequence += SEQUENCE_GAP);
        if options.durability != Durability::Sync {
            log_sequences(&log, &partitions)?;
        }
    }
    for partition in &mut partitions {
        partition.last_offset = log.end();
        partition.cut_sequence = partition.sequence;
    }
    let cuts = replay.cuts.iter().map(|cut| cut.offset).collect();
    Ok(Recovered { partitions, policies: replay.policies, log, cuts })
}

/// Makes the gap last: of a life that a power cut takes away as a whole, the next one must not repeat the
/// sequences.
fn log_sequences(log: &Log, partitions: &[Partition]) -> Result<(), LogError> {
    let mut record = Vec::new();
    for partition in partitions {
        entry::put_section(&mut record, partition.index, partition.time_ms, partition.sequence, &[]);
    }
    let appender = match log.appender(record.len()) {
        // Without space nothing can be born either.
        Err(LogError::Full(_)) => return Ok(()),
        other => other?,
    };
    let end = appender.append(&[&record])?;
    drop(appender);
    log.commit(end)
}

struct Replay {
    partitions: Vec<Partition>,
    policies: Policies,
    cuts: Vec<Cut>,
    /// Effects on cells that wait to be carried out together.
    queue: Queue,
}

impl Replay {
    fn new(count: usize, hash_seed: u64) -> Replay {
        let never = Cut { sequence: 0, time_ms: 0, offset: 0, count: 0, ledger: 0 };
        Replay {
            partitions: (0..count).map(|index| Partition::new(index as u16, hash_seed)).collect(),
            policies: Policies::default(),
            cuts: vec![never; count],
            queue: Queue::new(count),
        }
    }

    fn load_checkpoints(&mut self, cold: &dyn ColdStore) -> Result<(), ColdError> {
        for space in cold.spaces()? {
            if let Some((partition, generation)) = rows::parse_partition_space(&space) {
                self.load_partition(cold, &space, partition, generation)?;
            } else if let Some(slice) = Slice::from_space(&space) {
                self.load_tags(cold, &space, slice)?;
            }
        }
        Ok(())
    }

    /// Takes over a partition's checkpoint if it is the newest life of the partition seen so far.
    fn load_partition(
        &mut self,
        cold: &dyn ColdStore,
        space: &str,
        index: u16,
        generation: u32,
    ) -> Result<(), ColdError> {
        let damaged = |malformed: Malformed| ColdError::Damaged(format!("space {space}: {malformed}"));
        let Some(partition) = self.partitions.get_mut(usize::from(index)) else {
            return Err(ColdError::Damaged(format!(
                "space {space} belongs to a partition that does not exist"
            )));
        };
        // The cut is part of the one write that makes a checkpoint: without it the space is empty.
        let Some(value) = cold.get(space, rows::CUT_KEY)? else { return Ok(()) };
        let cut = Cut::decode(&value).map_err(damaged)?;
        if self.cuts[usize::from(index)].sequence > cut.sequence {
            return Ok(());
        }
        self.cuts[usize::from(index)] = cut;
        partition.sequence = cut.sequence;
        partition.time_ms = cut.time_ms;
        partition.count = cut.count;
        partition.ledger = cut.ledger;
        partition.generation = generation;
        partition.complete = cut.count == 0;
        if index == 0
            && let Some(value) = cold.get(space, rows::POLICIES_KEY)?
        {
            self.policies = rows::decode_policies(&value).map_err(damaged)?;
        }
        let mut malformed = Ok(());
        let sessions = (Bound::Included(rows::SESSION_PREFIX), Bound::Excluded(&b"T"[..]));
        cold.scan(space, sessions.0, sessions.1, &mut |key, value| match Reader::new(value).session() {
            Ok(session) => {
                partition.sessions.insert(key[rows::SESSION_PREFIX.len()..].into(), (session, false));
                ControlFlow::Continue(())
            }
            Err(error) => {
                malformed = Err(damaged(error));
                ControlFlow::Break(())
            }
        })?;
        malformed
    }

    /// Reads the tags of a slice's ids, not the ids.
    fn load_tags(&mut self, cold: &dyn ColdStore, space: &str, slice: Slice) -> Result<(), ColdError> {
        let mut from = Vec::new();
        loop {
            let mut first_row = None;
            cold.scan(space, Bound::Included(&from), Bound::Unbounded, &mut |row, _| {
                first_row = Some(row.to_vec());
                ControlFlow::Break(())
            })?;
            let Some(first_row) = first_row else { return Ok(()) };
            let damaged = || ColdError::Damaged(format!("a run of request ids in space {space}"));
            let (index, offset) = rows::parse_run(&first_row).ok_or_else(damaged)?;
            let partition = self.partitions.get_mut(usize::from(index)).ok_or_else(damaged)?;
            let described = cold.get(space, &rows::run_key(index, offset))?.ok_or_else(damaged)?;
            match described.split_first() {
                Some((bits, tags)) if u32::from(*bits) <= BUCKET_BITS_MAX => {
                    let run = Run { offset, bucket_bits: u32::from(*bits) };
                    let (tags, _) = tags.as_chunks::<4>();
                    partition.ids.add_run(slice, run, tags.iter().map(|tag| u32::from_le_bytes(*tag)));
                }
                _ => return Err(damaged()),
            }
            from = rows::after_run(index, offset);
        }
    }

    fn apply_queued(&mut self) -> Result<(), LogError> {
        self.queue.apply(&mut self.partitions).map_err(|error| LogError::Record(error.to_string()))
    }

    fn visit(&mut self, visit: Visit<'_>) -> Result<(), LogError> {
        match visit {
            Visit::Segment { .. } => Ok(()),
            Visit::Record { start, payload, .. } => {
                let malformed = |error: Malformed| LogError::Record(format!("offset {start}: {error}"));
                for section in sections(payload) {
                    self.section(&section.map_err(malformed)?).map_err(malformed)?;
                }
                Ok(())
            }
        }
    }

    fn section(&mut self, section: &Section<'_>) -> Result<(), Malformed> {
        let index = usize::from(section.partition);
        let partition = self.partitions.get_mut(index).ok_or(Malformed("partition number"))?;
        if section.sequence <= self.cuts[index].sequence {
            // In the checkpoint as a whole. What follows defines anew whatever it names.
            return Ok(());
        }
        partition.sequence = section.sequence;
        partition.time_ms = partition.time_ms.max(section.time_ms);
        let at = At { partition: section.partition, time_ms: section.time_ms };
        for effect in section.effects() {
            match effect? {
                Effect::Define { id, key, cell } => self.queue.define(at, id, key, cell),
                Effect::Add { id, delta, times } => self.queue.push(at, id, Step::Add(delta, times)),
                Effect::AddUnder { id, delta, identity } => {
                    self.queue.push(at, id, Step::AddUnder(delta, identity));
                }
                Effect::Put { id, cell } => self.queue.push(at, id, Step::Put(cell)),
                Effect::Remove { id } => self.queue.push(at, id, Step::Remove),
                Effect::Clear => {
                    self.queue.apply(&mut self.partitions)?;
                    self.queue.forget(index);
                    let partition = &mut self.partitions[index];
                    partition.clear();
                    partition.effects.clear();
                    partition.sequence = section.sequence;
                }
                Effect::Remember(remembered) => self.partitions[index].ids.remember(remembered),
                Effect::Session { producer, session } => {
                    self.partitions[index].sessions.insert(producer.into(), (session, true));
                }
                Effect::Policy { pattern, policy } => {
                    self.policies.set(pattern, policy);
                }
            }
            if self.queue.is_full() {
                self.queue.apply(&mut self.partitions)?;
            }
        }
        Ok(())
    }
}

//! Recovery: the newest checkpoint of every partition, then the log after it.
//!
//! Sections that a partition's checkpoint contains are skipped; those after it define every key anew before they name it,
//! and leave dirty cells, totals, request ids and sessions behind.

use std::ops::{Bound, ControlFlow};
use std::sync::Arc;
use std::thread;

use quipu_counting::Policies;
use quipu_store::cold::{ColdError, ColdStore};
use quipu_store::{Disk, Durability, LOG_START, Log, LogError, LogOptions, Visit};
use quipu_wire::entry::{self, Malformed, Reader};

use crate::folder::Folder;
use crate::ids::{BIN_BITS_MAX, Run, Slice};
use crate::options::{OpenError, Options};
use crate::partition::Partition;
use crate::replaying::Replaying;
use crate::replicated::read_meta;
use crate::rows::{self, Cut};

/// What a restart found.
pub struct Recovered {
    pub partitions: Vec<Partition>,
    pub log: Log,
    /// Offset of every partition's checkpoint.
    pub cuts: Vec<u64>,
    /// From where on the log is needed.
    pub from: u64,
    /// From where on whoever orders replicated partitions needs it for its own state.
    pub meta_from: u64,
}

/// Is shown where a record of the log begins, and its bytes.
pub type OnRecord<'a> = dyn FnMut(u64, &[u8]) -> Result<(), LogError> + 'a;

/// What the records of the log are.
pub enum Records<'a> {
    /// What was decided, for [`crate::replay`].
    Effects,
    /// The business of whoever orders the partitions.
    Entries(&'a mut OnRecord<'a>),
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
    records: Records<'_>,
) -> Result<Recovered, OpenError> {
    let mut loaded = Loaded::new(usize::from(folder.meta.partitions), hash_seed);
    if folder.is_new && !cold.spaces()?.is_empty() {
        return Err(folder.missing("quipu.meta"));
    }
    loaded.load_checkpoints(cold, matches!(records, Records::Entries(_)))?;
    // The log of a folder in use has begun, whatever checkpoints there are.
    let begun = if folder.is_new { 0 } else { LOG_START };
    let meta_from = read_meta(cold)?.map_or(u64::MAX, |(needed_from, _)| needed_from);
    let needed = match &records {
        Records::Effects => loaded.cuts.iter().map(|cut| cut.offset).min(),
        Records::Entries(_) => {
            let held = loaded.partitions.iter().zip(&loaded.cuts).filter(|(held, _)| !held.mark.is_empty());
            held.map(|(_, cut)| cut.offset)
                .chain([meta_from].into_iter().filter(|from| *from != u64::MAX))
                .min()
        }
    };
    let from = needed.unwrap_or(0).max(begun);
    let log_options = LogOptions { prewrites: options.durability == Durability::Sync, ..options.log };
    let path = folder.path.join("log");
    let (log, is_replicated) = match records {
        Records::Effects => {
            let Loaded { partitions, policies, cuts } = &mut loaded;
            let log = thread::scope(|scope| {
                let mut replaying = Replaying::new(scope, partitions, policies, cuts, cold);
                Log::open(disk, &path, log_options, from, &mut |visit| replaying.visit(visit))
            });
            (log?, false)
        }
        Records::Entries(record) => {
            let mut visit = |visit: Visit<'_>| match visit {
                Visit::Record { start, payload, .. } if start >= from => record(start, payload),
                _ => Ok(()),
            };
            (Log::open(disk, &path, log_options, from, &mut visit)?, true)
        }
    };
    if folder.is_new && log.recovery().records > 0 {
        // With secrets other than those of its request ids, each of them would count again.
        return Err(folder.missing("quipu.meta"));
    }
    let mut partitions = loaded.partitions;
    if !folder.is_new && !is_replicated {
        partitions.iter_mut().for_each(|partition| partition.sequence += SEQUENCE_GAP);
        if options.durability != Durability::Sync {
            log_sequences(&log, &partitions)?;
        }
    }
    for partition in &mut partitions {
        if !is_replicated {
            partition.policies = Arc::clone(&loaded.policies);
        }
        partition.last_offset = log.end();
        partition.cut_sequence = partition.sequence;
    }
    let cuts = loaded.cuts.iter().map(|cut| cut.offset).collect();
    Ok(Recovered { partitions, log, cuts, from, meta_from })
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

/// What the checkpoints say, and then also what the log says after them.
struct Loaded {
    partitions: Vec<Partition>,
    policies: Arc<Policies>,
    cuts: Vec<Cut>,
}

impl Loaded {
    fn new(count: usize, hash_seed: u64) -> Loaded {
        let never = Cut { sequence: 0, time_ms: 0, offset: 0, count: 0, ledger: 0 };
        Loaded {
            partitions: (0..count).map(|index| Partition::new(index as u16, hash_seed)).collect(),
            policies: Arc::default(),
            cuts: vec![never; count],
        }
    }

    fn load_checkpoints(&mut self, cold: &dyn ColdStore, is_replicated: bool) -> Result<(), ColdError> {
        for space in cold.spaces()? {
            if let Some((partition, generation)) = rows::parse_partition_space(&space) {
                self.load_newest(cold, &space, partition, generation)?;
            }
        }
        let cuts = &self.cuts;
        // Effects are applied again whatever ids are known; what is decided again must not find its own.
        let wants = |index: u16, number: u64| {
            !is_replicated || cuts.get(usize::from(index)).is_some_and(|cut| number <= cut.sequence)
        };
        let partitions = &mut self.partitions;
        load_ids(cold, wants, |index, slice, run, tags| {
            if let Some(partition) = partitions.get_mut(usize::from(index)) {
                partition.ids.add_run(slice, run, tags.iter().map(|tag| u32::from_le_bytes(*tag)));
            }
        })
    }

    /// Takes over a partition's checkpoint if it is the newest life of the partition seen so far.
    fn load_newest(
        &mut self,
        cold: &dyn ColdStore,
        space: &str,
        index: u16,
        generation: u32,
    ) -> Result<(), ColdError> {
        let Some(partition) = self.partitions.get_mut(usize::from(index)) else {
            return Err(ColdError::Damaged(format!(
                "space {space} belongs to a partition that does not exist"
            )));
        };
        // The cut is part of the one write that makes a checkpoint, and comes last of a snapshot. Without it the space is nobody's, and
        // must be empty should the partition come to this generation.
        let Some(value) = cold.get(space, rows::CUT_KEY)? else { return cold.drop_space(space) };
        let cut = Cut::decode(&value).map_err(damaged(space))?;
        if self.cuts[usize::from(index)].sequence > cut.sequence {
            return Ok(());
        }
        self.cuts[usize::from(index)] = cut;
        load_partition(cold, space, &cut, generation, partition)?;
        if index == 0 {
            self.policies = Arc::clone(&partition.policies);
        }
        Ok(())
    }
}

fn damaged(space: &str) -> impl Fn(Malformed) -> ColdError {
    move |malformed| ColdError::Damaged(format!("space {space}: {malformed}"))
}

/// Brings an empty partition to the state of a checkpoint.
pub fn load_partition(
    cold: &dyn ColdStore,
    space: &str,
    cut: &Cut,
    generation: u32,
    partition: &mut Partition,
) -> Result<(), ColdError> {
    partition.sequence = cut.sequence;
    partition.time_ms = cut.time_ms;
    partition.count = cut.count;
    partition.ledger = cut.ledger;
    partition.generation = generation;
    partition.durable_generation = generation;
    partition.complete = cut.count == 0;
    partition.mark = cold.get(space, rows::MARK_KEY)?.unwrap_or_default();
    partition.durable_mark.clone_from(&partition.mark);
    if let Some(value) = cold.get(space, rows::POLICIES_KEY)? {
        partition.policies = Arc::new(rows::decode_policies(&value).map_err(damaged(space))?);
    }
    let mut malformed = Ok(());
    let sessions = (Bound::Included(rows::SESSION_PREFIX), Bound::Excluded(&b"T"[..]));
    cold.scan(space, sessions.0, sessions.1, &mut |key, value| match Reader::new(value).session() {
        Ok(session) => {
            partition.sessions.insert(key[rows::SESSION_PREFIX.len()..].into(), (session, false));
            ControlFlow::Continue(())
        }
        Err(error) => {
            malformed = Err(damaged(space)(error));
            ControlFlow::Break(())
        }
    })?;
    malformed
}

/// Shows the tags of all runs of request ids that are wanted, by partition and number: not the ids.
pub fn load_ids(
    cold: &dyn ColdStore,
    wants: impl Fn(u16, u64) -> bool,
    mut add: impl FnMut(u16, Slice, Run, &[[u8; 4]]),
) -> Result<(), ColdError> {
    for space in cold.spaces()? {
        let Some(slice) = Slice::from_space(&space) else { continue };
        for (index, number) in runs_in(cold, &space)? {
            if !wants(index, number) {
                continue;
            }
            let described = cold.get(&space, &rows::run_key(index, number))?.unwrap_or_default();
            match described.split_first() {
                Some((bits, tags)) if u32::from(*bits) <= BIN_BITS_MAX => {
                    let run = Run { number, bin_bits: u32::from(*bits) };
                    add(index, slice, run, tags.as_chunks().0);
                }
                _ => return Err(ColdError::Damaged(format!("a run of request ids in space {space}"))),
            }
        }
    }
    Ok(())
}

/// The runs of a space, in order: partitions and numbers.
pub fn runs_in(cold: &dyn ColdStore, space: &str) -> Result<Vec<(u16, u64)>, ColdError> {
    let mut runs = Vec::new();
    let mut from = Vec::new();
    loop {
        let mut first_row = None;
        cold.scan(space, Bound::Included(&from), Bound::Unbounded, &mut |row, _| {
            first_row = Some(row.to_vec());
            ControlFlow::Break(())
        })?;
        let Some(first_row) = first_row else { return Ok(runs) };
        let Some((index, number)) = rows::parse_run(&first_row) else {
            return Err(ColdError::Damaged(format!("a run of request ids in space {space}")));
        };
        runs.push((index, number));
        from = rows::after_run(index, number);
    }
}

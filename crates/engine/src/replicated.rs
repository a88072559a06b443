//! Partitions that live on several nodes: others agree on the order of what is asked, and every replica decides.
//!
//! Nothing of such a partition is in the log but what was agreed on, and that is the business of whoever orders it: the
//! engine keeps, beside the counters, a *mark* that says up to where it has carried things out. A checkpoint holds both,
//! so after a restart everything behind its mark is carried out again, and comes to the same: time comes with each entry,
//! policies are part of the partition, and nothing here asks a clock.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use quipu_counting::kinds::RULES;
use quipu_counting::session::{SESSIONS_PER_PARTITION_MAX, Session};
use quipu_counting::{Batch, Policies, Policy, Unavailable};
use quipu_store::cold::{ColdError, ColdStore, Rows};
use quipu_store::{Disk, Log, LogError, RealDisk};
use quipu_wire::entry::{self, Reader};

use crate::engine::{Engine, cold_unavailable};
use crate::execute::{Attempt, FETCHES_MAX, Scope, too_much_for_memory};
use crate::fetch::{Fetched, Missing};
use crate::folder;
use crate::ids::SLICES_PER_WINDOW;
use crate::options::{OpenError, Options};
use crate::partition::Partition;
use crate::recover::{OnRecord, Records};

/// Whoever orders the changes of the partitions of a node, as far as checkpoints need to know.
pub trait Replication: Send + Sync {
    /// Where in the node's log the first thing behind `mark` begins that this partition needs, or a place before it. When
    /// this returns, whoever reads the log from there on learns all there is to know.
    fn needed_from(&self, partition: u16, mark: &[u8]) -> Result<u64, LogError>;

    /// A checkpoint of the partition is durable.
    fn checkpointed(&self, partition: u16);
}

/// From which mark to which something leads that was agreed on. It is not carried out where the partition has another mark: then it is
/// not the replica that whoever carries it out takes it for.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// What the partition must have carried out.
    pub from: &'a [u8],
    /// What it has carried out then.
    pub to: &'a [u8],
}

/// What a data folder is.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// How many partitions it has.
    pub partitions: u16,
    /// Whether it is that of a node of a cluster.
    pub is_replicated: bool,
    /// Its secret, which keys request ids: the same on all nodes of a cluster.
    pub secret: [u8; 16],
}

/// However short the window of ids is, the time of a partition that nobody changes is moved no more often than this.
const LAG_MS_MIN: u64 = 60_000;

/// The state of whoever orders, kept beside the counters.
const META_SPACE: &str = "meta";
const META_KEY: &[u8] = b"M";

impl Engine {
    /// Opens a data folder whose partitions are replicated. `record` is shown what the log holds, from where it is needed:
    /// where each record begins, and its bytes. Nothing but what is called happens until [`Engine::start_threads`].
    pub fn open_replicated<'a>(
        path: impl AsRef<Path>,
        options: Options,
        record: &'a mut OnRecord<'a>,
    ) -> Result<Arc<Engine>, OpenError> {
        Engine::open_still(path.as_ref(), options, Records::Entries(record))
    }

    /// The same on a given disk and cold store.
    pub fn open_replicated_on<'a>(
        disk: Arc<dyn Disk>,
        cold: Arc<dyn ColdStore>,
        path: &Path,
        options: Options,
        record: &'a mut OnRecord<'a>,
    ) -> Result<Arc<Engine>, OpenError> {
        Engine::open_with(disk, path, |_| Ok(cold), options, Records::Entries(record))
    }

    /// What a data folder is, if it is one.
    pub fn look(path: impl AsRef<Path>) -> Result<Option<Found>, OpenError> {
        let found = folder::look(&RealDisk, path.as_ref())?;
        Ok(found.map(|meta| Found {
            partitions: meta.partitions,
            is_replicated: meta.is_replicated,
            secret: meta.identity_key.0,
        }))
    }

    /// Makes a data folder that was used alone one of a node of a cluster, with everything it has counted. If it fails, the
    /// folder is still used alone, with all it has.
    pub fn make_replicated(path: impl AsRef<Path>, options: Options) -> Result<(), OpenError> {
        let engine = Engine::open_still(path.as_ref(), options, Records::Effects)?;
        let sessions = engine.newest_sessions();
        if sessions.len() > SESSIONS_PER_PARTITION_MAX {
            return Err(OpenError::Options(format!(
                "the data folder knows {} producers; in a cluster every partition knows all of them, at most {SESSIONS_PER_PARTITION_MAX}",
                sessions.len()
            )));
        }
        for partition in 0..engine.partitions.len() as u16 {
            // Runs of request ids were named by offsets, and are named by sequences from now on, which must be above.
            let mut held = engine.partitions[usize::from(partition)].lock();
            held.sequence = held.sequence.max(engine.log.end());
            // How far a producer is was known in one place for all partitions, and is known in each from now on.
            for (producer, session) in &sessions {
                held.sessions.insert(producer.clone(), (*session, true));
            }
            drop(held);
            engine.checkpoint(partition)?;
        }
        let end = engine.log.end();
        engine.save_meta(end, &[])?;
        engine.close().map_err(|error| OpenError::Options(error.to_string()))?;
        let Ok(outcome) =
            Arc::try_unwrap(engine).map(|mut engine| engine.folder.become_replicated(&RealDisk))
        else {
            return Err(OpenError::Options("the data folder is still in use".into()));
        };
        outcome
    }

    /// How far every producer is.
    fn newest_sessions(&self) -> HashMap<Box<[u8]>, Session> {
        let mut newest: HashMap<Box<[u8]>, Session> = HashMap::new();
        for partition in &self.partitions {
            for (producer, (session, _)) in &partition.lock().sessions {
                let known = newest.entry(producer.clone()).or_insert(*session);
                if (session.epoch, session.sequence) > (known.epoch, known.sequence) {
                    *known = *session;
                }
            }
        }
        newest
    }

    /// Learns who orders its changes; from now on there can be checkpoints.
    pub fn replicate(&self, by: Arc<dyn Replication>) {
        if let Some(replication) = &self.replication {
            let _ = replication.set(by);
        }
    }

    /// The node's log.
    pub fn log(&self) -> &Arc<Log> {
        &self.log
    }

    /// Up to where a partition has carried things out; empty for one that is not here.
    pub fn mark(&self, partition: u16) -> Vec<u8> {
        self.partitions[usize::from(partition)].lock().mark.clone()
    }

    /// The same of its last durable checkpoint.
    pub fn durable_mark(&self, partition: u16) -> Vec<u8> {
        self.partitions[usize::from(partition)].lock().durable_mark.clone()
    }

    /// A folder for files that nobody needs after a restart.
    pub fn scratch_folder(&self) -> PathBuf {
        self.folder.path.join("scratch")
    }

    /// Whether the node has this partition.
    pub fn holds(&self, partition: u16) -> bool {
        !self.partitions[usize::from(partition)].lock().mark.is_empty()
    }

    /// Begins to hold a partition: empty, at this mark, durably. From then on the log is kept for it.
    pub fn begin_to_hold(&self, partition: u16, mark: &[u8]) -> Result<(), ColdError> {
        let held = || self.partitions[usize::from(partition)].lock();
        held().set_mark(mark);
        // What a restart would not find is not here.
        self.checkpoint(partition).inspect_err(|_| held().mark.clear())
    }

    /// Holds a partition no longer: nothing of it stays.
    pub fn let_go(&self, partition: u16) -> Result<(), ColdError> {
        let mut cuts = self.cuts.lock();
        let index = usize::from(partition);
        self.partitions[index].lock().replace(Partition::new(partition, self.hash_seed));
        self.drop_earlier_lives(partition, u32::MAX)?;
        cuts[index] = 0;
        Ok(())
    }

    /// The policies of a partition.
    pub fn policies_of(&self, partition: u16) -> Arc<Policies> {
        Arc::clone(&self.partitions[usize::from(partition)].lock().policies)
    }

    /// The number of the data folder, which no other has.
    pub fn folder_number(&self) -> u128 {
        self.folder.meta.node_id
    }

    /// Carries out a batch that was agreed on, all of it for counters of this partition, with replies. What it needs is
    /// fetched first, so this may block. An error is the end: a replica must not leave anything out. Where somebody waits for
    /// the replies, the requests are counted among those of hot keys. Whether that is so comes last, with the rules by which the leader
    /// wants it decided.
    pub fn apply(
        &self,
        partition: u16,
        batch: &mut Batch,
        time_ms: u64,
        step: Step<'_>,
        (is_asked_here, rules): (bool, u64),
    ) -> Result<(), Unavailable> {
        let scope = Scope::Partition { index: partition, step: Some(step), is_asked_here, rules };
        self.run_in(scope, batch, time_ms)
    }

    /// The same if all it needs is in memory and nothing has to be written out first; returns whether it was so. Does not block.
    pub fn apply_from_memory(
        &self,
        partition: u16,
        batch: &mut Batch,
        time_ms: u64,
        step: Step<'_>,
        (is_asked_here, rules): (bool, u64),
    ) -> Result<bool, Unavailable> {
        let scope = Scope::Partition { index: partition, step: Some(step), is_asked_here, rules };
        let attempt = self.attempt(batch, time_ms, &Fetched::default(), true, scope)?;
        Ok(matches!(attempt, Attempt::Done(_)))
    }

    /// Answers a batch that only looks, as the partition is here. What it needs is fetched first, so this may block.
    pub fn read(&self, partition: u16, batch: &mut Batch, now_ms: u64) -> Result<(), Unavailable> {
        let scope = Scope::Partition { index: partition, step: None, is_asked_here: true, rules: RULES };
        self.run_in(scope, batch, now_ms)
    }

    /// Answers it if all it needs is in memory, and returns whether it was so.
    pub fn read_from_memory(
        &self,
        partition: u16,
        batch: &mut Batch,
        now_ms: u64,
    ) -> Result<bool, Unavailable> {
        let scope = Scope::Partition { index: partition, step: None, is_asked_here: true, rules: RULES };
        let attempt = self.attempt(batch, now_ms, &Fetched::default(), true, scope)?;
        Ok(matches!(attempt, Attempt::Done(_)))
    }

    fn run_in(&self, scope: Scope<'_>, batch: &mut Batch, time_ms: u64) -> Result<(), Unavailable> {
        let mut fetched = Fetched::default();
        let mut yields = true;
        // What was agreed on is carried out, however long it takes.
        let is_agreed_on = matches!(scope, Scope::Partition { step: Some(_), .. });
        for _ in (0..FETCHES_MAX).chain(is_agreed_on.then_some(FETCHES_MAX..usize::MAX).into_iter().flatten())
        {
            match self.attempt(batch, time_ms, &fetched, yields, scope)? {
                Attempt::Done(_) => return Ok(()),
                Attempt::Missing(missing) => self.fetch(missing, &mut fetched).map_err(cold_unavailable)?,
                Attempt::Crowded(partition) => {
                    self.relieve(partition).map_err(cold_unavailable)?;
                    yields = false;
                }
            }
        }
        Err(too_much_for_memory())
    }

    /// Carries out a change of policy.
    pub fn apply_policy(
        &self,
        partition: u16,
        pattern: &[u8],
        policy: Option<Policy>,
        time_ms: u64,
        step: Step<'_>,
    ) -> Result<(), Unavailable> {
        let mut held = self.partitions[usize::from(partition)].lock();
        held.check_step(step)?;
        held.begin(time_ms);
        held.sequence += 1;
        let mut policies = Policies::clone(&held.policies);
        policies.set(pattern, policy);
        held.policies = Arc::new(policies);
        held.set_mark(step.to);
        Ok(())
    }

    /// Removes those of these counters whose time has come.
    pub fn apply_expiries(
        &self,
        partition: u16,
        keys: &[Vec<u8>],
        time_ms: u64,
        step: Step<'_>,
    ) -> Result<(), Unavailable> {
        loop {
            let mut held = self.partitions[usize::from(partition)].lock();
            held.check_step(step)?;
            let mut missing = Missing::default();
            for key in keys {
                let hash = held.hash(key);
                if !held.complete && held.table.find(hash, key).is_none() {
                    missing.cell(&held, hash, key);
                }
            }
            if !missing.is_empty() {
                drop(held);
                self.fetch(missing, &mut Fetched::default()).map_err(cold_unavailable)?;
                continue;
            }
            held.begin(time_ms);
            for key in keys {
                self.expire(&mut held, key);
            }
            held.effects.clear();
            held.set_mark(step.to);
            return Ok(());
        }
    }

    fn expire(&self, held: &mut Partition, key: &[u8]) {
        let hash = held.hash(key);
        let Some(number) = held.table.find(hash, key) else { return };
        if let Some(cell) = held.table.cell(number)
            && !cell.is_live(held.time_ms)
        {
            held.expire(hash, key, number, cell);
            self.counts.expired.add(1);
        }
    }

    /// Carries out something that changes no counter.
    pub fn apply_nothing(&self, partition: u16, step: Step<'_>) -> Result<(), Unavailable> {
        let mut held = self.partitions[usize::from(partition)].lock();
        held.check_step(step)?;
        held.set_mark(step.to);
        Ok(())
    }

    /// Whether the time of a partition, which only entries move, is so far behind that ids and trails of all partitions are kept for its sake.
    pub fn lags(&self, partition: u16, now_ms: u64) -> bool {
        let patience_ms = (self.id_window_ms / SLICES_PER_WINDOW).max(LAG_MS_MIN);
        self.partitions[usize::from(partition)].lock().time_ms.saturating_add(patience_ms) < now_ms
    }

    /// Counters in memory whose time has come, as many as these at most: for whoever orders to have them removed.
    pub fn due(&self, partition: u16, now_ms: u64, most: usize) -> Vec<Vec<u8>> {
        let mut held = self.partitions[usize::from(partition)].lock();
        let mut hashes = Vec::new();
        while hashes.len() < most
            && let Some(hash) = held.expiries.pop_due(now_ms)
        {
            hashes.push(hash);
        }
        let mut keys = Vec::new();
        for hash in hashes {
            let mut numbers = Vec::new();
            held.table.find_by_hash(hash, |number| numbers.push(number));
            for number in numbers {
                if let Some(cell) = held.table.cell(number)
                    && cell.expires_at_ms != quipu_counting::NEVER
                {
                    if !cell.is_live(now_ms) {
                        keys.push(held.table.key(number).to_vec());
                    }
                    held.expiries.put_back(hash, cell.expires_at_ms);
                }
            }
        }
        keys
    }

    /// Keeps the state of whoever orders, durably, with the place in the log from which on it needs to read.
    pub fn save_meta(&self, needed_from: u64, state: &[u8]) -> Result<(), ColdError> {
        let mut rows = Rows::new();
        let mut value = Vec::new();
        entry::put_varint(&mut value, needed_from);
        value.extend_from_slice(state);
        rows.push(META_KEY, Some(&value))?;
        self.cold.write(META_SPACE, &rows)?;
        self.meta_needed_from.store(needed_from, std::sync::atomic::Ordering::Release);
        Ok(())
    }

    /// From where on whoever orders needs the log for its own state, as was said last.
    pub fn meta_needed_from(&self) -> u64 {
        self.meta_needed_from.load(std::sync::atomic::Ordering::Acquire)
    }

    /// What was kept.
    pub fn meta(&self) -> Result<Option<Vec<u8>>, ColdError> {
        Ok(read_meta(&*self.cold)?.map(|(_, state)| state))
    }

    pub(crate) fn replication(&self) -> Option<&Arc<dyn Replication>> {
        self.replication.as_ref().and_then(OnceLock::get)
    }

    /// The smallest place in the log that is still needed, given each partition's last cut.
    pub(crate) fn needed_from(&self, cuts: &[u64]) -> u64 {
        if self.replication.is_none() {
            return cuts.iter().copied().min().unwrap_or(0);
        }
        let held = (0..cuts.len()).filter(|index| self.holds(*index as u16)).map(|index| cuts[index]);
        let meta = self.meta_needed_from();
        held.min().unwrap_or(u64::MAX).min(meta)
    }
}

/// The place in the log and the state that [`Engine::save_meta`] kept.
pub(crate) fn read_meta(cold: &dyn ColdStore) -> Result<Option<(u64, Vec<u8>)>, ColdError> {
    let Some(value) = cold.get(META_SPACE, META_KEY)? else { return Ok(None) };
    let mut reader = Reader::new(&value);
    let needed_from = reader
        .varint()
        .map_err(|malformed| ColdError::Damaged(format!("space {META_SPACE}: {malformed}")))?;
    Ok(Some((needed_from, value[value.len() - reader.len()..].to_vec())))
}

impl Partition {
    /// Whether this is where it goes on.
    pub(crate) fn check_step(&self, step: Step<'_>) -> Result<(), Unavailable> {
        match self.mark == step.from {
            true => Ok(()),
            false => Err(Unavailable::Failed(format!("partition {} is another than it was", self.index))),
        }
    }

    /// Everything up to this mark is carried out.
    pub(crate) fn set_mark(&mut self, mark: &[u8]) {
        self.mark.clear();
        self.mark.extend_from_slice(mark);
    }
}

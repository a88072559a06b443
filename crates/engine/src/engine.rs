//! The engine: partitions over one log and one cold store.
//!
//! [`Engine::open`] is the way in for everybody; [`Engine::open_on`] takes the disk and the cold store as
//! arguments and starts no thread, which is how simulations drive it step by step.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use quipu_counting::service::{Finished, ScanPage};
use quipu_counting::slot::PARTITIONS_MAX;
use quipu_counting::{
    Aggregate, AuditPage, AuditQuery, Batch, Changes, Counters, Execution, HotKeys, IdentityKey, Interest,
    ListPage, Listing, Policies, Policy, Selector, Unavailable,
};
use quipu_store::cold::{ColdError, ColdOptions, ColdStore, LsmStore};
use quipu_store::{Disk, Durability, Log, LogError, RealDisk, spawn_syncer};
use quipu_wire::entry;

use crate::execute::{Attempt, Progress, Scope, unavailable};
use crate::fetch::Fetched;
use crate::folder::{Folder, Meta};
use crate::hot::HotFacts;
use crate::keeper::Keeper;
use crate::options::{Clock, ID_WINDOW_MS_MIN, OpenError, Options, memory_bytes_min};
use crate::partition::Partition;
use crate::pool::Pool;
use crate::recover::{Records, recover};
use crate::replicated::Replication;
use crate::scan::Scans;
use crate::tend::{Chores, expiries_per_round};

/// Counters of one machine, in memory and on disk.
pub struct Engine {
    pub(crate) partitions: Vec<Mutex<Partition>>,
    pub(crate) log: Arc<Log>,
    pub(crate) cold: Arc<dyn ColdStore>,
    /// End in the log of the last change of a policy.
    pub(crate) policies_offset: AtomicU64,
    /// Whether some policy has a trail kept; changed with all partitions locked, so whoever holds one knows.
    pub(crate) audits: AtomicBool,
    /// Whether some policy has the log say more of changes: trails, roll-ups. Changed with all partitions locked.
    pub(crate) says_more: AtomicBool,
    pub(crate) durability: Durability,
    pub(crate) id_window_ms: u64,
    pub(crate) identity_key: IdentityKey,
    pub(crate) hash_seed: u64,
    /// Bytes of memory a partition may use before it evicts.
    pub(crate) partition_budget_bytes: usize,
    pub(crate) log_tail_bytes: u64,
    /// Expired counters removed per partition and round.
    pub(crate) expiries_per_round: usize,
    /// One checkpoint at a time; says where each partition's last cut is in the log.
    pub(crate) cuts: Mutex<Vec<u64>>,
    /// The smallest of those: what lies before it in the log is not needed.
    pub(crate) oldest_cut: AtomicU64,
    /// Who orders the changes, where that is not this engine.
    pub(crate) replication: Option<OnceLock<Arc<dyn Replication>>>,
    /// From where on they need the log for their own state.
    pub(crate) meta_needed_from: AtomicU64,
    pub(crate) chores: Mutex<Chores>,
    pub(crate) scans: Mutex<Scans>,
    pub(crate) counts: Counts,
    /// Whether requests are counted by key, to find the hot ones.
    pub(crate) finds_hot_keys: bool,
    /// What the keeper has last seen of them.
    pub(crate) hot_facts: HotFacts,
    /// Why nothing more can be acknowledged.
    failed: OnceLock<String>,
    /// The most requests that may wait for the disk, and how long one may.
    pending_requests_max: usize,
    pending_wait_max: Duration,
    /// Threads; empty in a simulation.
    pub(crate) pool: OnceLock<Pool>,
    keeper: OnceLock<Keeper>,
    syncer: Mutex<Option<quipu_store::Syncer>>,
    /// Keeps other processes out.
    pub(crate) folder: Folder,
}

/// The most memory a partition may use; with half as much again it still fits the 16 GiB of its arena.
const PARTITION_BYTES_MAX: usize = 8 << 30;

/// Writers wait when the log behind the oldest checkpoint is this many times as long as it should be.
const TAIL_LIMIT: u64 = 4;

/// Who watches through [`Counters`]; nodes of a cluster have numbers above.
const OWN_WATCHER: u64 = 0;

/// A number that several threads raise.
#[derive(Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Raises it.
    pub fn add(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    /// Reads it.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What happened since the start, for INFO and metrics.
#[derive(Default)]
pub struct Counts {
    /// Cells read from the cold store.
    pub cold_reads: Count,
    /// Request ids looked up in the cold store.
    pub cold_id_reads: Count,
    /// Checkpoints of partitions that became durable.
    pub checkpoints: Count,
    /// Checkpoints that failed.
    pub checkpoint_failures: Count,
    /// Rows those checkpoints wrote.
    pub checkpoint_rows: Count,
    /// Counters removed because they expired.
    pub expired: Count,
    /// Batches that had to wait for the cold store.
    pub pending_batches: Count,
}

impl Engine {
    /// Opens the data folder, creating it when it is missing, and starts serving: when this returns everything
    /// that was ever acknowledged is there.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Arc<Engine>, OpenError> {
        let clock = Arc::clone(&options.clock);
        let given = options.memory_bytes;
        let engine = Engine::open_still(path.as_ref(), options, Records::Effects)?;
        let least = memory_bytes_min(engine.partitions.len() as u16);
        if given < least {
            let what = format!("memory is {given} bytes; this data folder needs at least {}MiB", least >> 20);
            return Err(OpenError::Options(what));
        }
        engine.start_threads(&clock)?;
        Ok(engine)
    }

    /// Opens the data folder and does nothing by itself: no expiry, no checkpoints, no forgetting. For looking.
    pub(crate) fn open_still(
        path: &Path,
        options: Options,
        records: Records<'_>,
    ) -> Result<Arc<Engine>, OpenError> {
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let cache_bytes = (options.memory_bytes / 32).clamp(8 << 20, 64 << 20);
        let cold_options = ColdOptions { cache_bytes, open_tables_max: options.open_tables_max };
        let open_cold = |folder: &Folder| -> Result<Arc<dyn ColdStore>, OpenError> {
            let path = folder.path.join("cold");
            if !folder.is_new && !LsmStore::is_at(&path) {
                return Err(folder.missing("its cold store (the folder cold)"));
            }
            Ok(Arc::new(LsmStore::open(path, cold_options)?))
        };
        Engine::open_with(disk, path, open_cold, options, records)
    }

    /// Opens on a given disk and cold store, without threads: nothing happens but what is called.
    /// [`Engine::tend`] does what the threads would do.
    pub fn open_on(
        disk: Arc<dyn Disk>,
        cold: Arc<dyn ColdStore>,
        path: &Path,
        options: Options,
    ) -> Result<Arc<Engine>, OpenError> {
        Engine::open_with(disk, path, |_| Ok(cold), options, Records::Effects)
    }

    pub(crate) fn open_with(
        disk: Arc<dyn Disk>,
        path: &Path,
        open_cold: impl FnOnce(&Folder) -> Result<Arc<dyn ColdStore>, OpenError>,
        options: Options,
        records: Records<'_>,
    ) -> Result<Arc<Engine>, OpenError> {
        check_options(&options)?;
        let entropy = match options.entropy {
            Some(entropy) => entropy,
            None => system_entropy().map_err(|source| OpenError::io(Path::new("/dev/urandom"), source))?,
        };
        let (secrets, seed) = entropy.split_at(32);
        let (identity, node) = secrets.split_at(16);
        let fresh = Meta {
            partitions: options.partitions,
            incarnation: 1,
            identity_key: IdentityKey(array(identity)),
            node_id: u128::from_le_bytes(array(node)),
            is_replicated: matches!(records, Records::Entries(_)),
        };
        let hash_seed = u64::from_le_bytes(array(seed));
        let folder = Folder::open(&*disk, path, fresh)?;
        folder.check_kind(fresh.is_replicated)?;
        let cold = open_cold(&folder)?;
        let recovered = recover(Arc::clone(&disk), &folder, &*cold, &options, hash_seed, records)?;
        folder.establish(&*disk)?;
        let partition_budget_bytes =
            (options.memory_bytes as usize / usize::from(folder.meta.partitions)).min(PARTITION_BYTES_MAX);
        let audits = recovered.partitions.iter().any(|held| held.policies.longest_audit_ms().is_some());
        let policies = recovered.partitions.first().map(|first| Arc::clone(&first.policies));
        Ok(Arc::new(Engine {
            audits: AtomicBool::new(audits),
            partitions: recovered.partitions.into_iter().map(Mutex::new).collect(),
            log: Arc::new(recovered.log),
            cold,
            policies_offset: AtomicU64::new(0),
            says_more: AtomicBool::new(policies.is_some_and(|policies| policies.say_more())),
            durability: options.durability,
            id_window_ms: options.id_window_ms,
            identity_key: folder.meta.identity_key,
            hash_seed,
            partition_budget_bytes,
            log_tail_bytes: options.log_tail_bytes,
            expiries_per_round: expiries_per_round(options.log.segment_bytes),
            oldest_cut: AtomicU64::new(recovered.from),
            replication: fresh.is_replicated.then(OnceLock::new),
            meta_needed_from: AtomicU64::new(recovered.meta_from),
            chores: Mutex::new(Chores::new(usize::from(folder.meta.partitions))),
            cuts: Mutex::new(recovered.cuts),
            scans: Mutex::default(),
            counts: Counts::default(),
            finds_hot_keys: options.finds_hot_keys,
            hot_facts: HotFacts::default(),
            failed: OnceLock::new(),
            pending_requests_max: options.pending_requests_max,
            pending_wait_max: Duration::from_millis(options.pending_wait_ms),
            pool: OnceLock::new(),
            keeper: OnceLock::new(),
            syncer: Mutex::new(None),
            folder,
        }))
    }

    /// Starts the threads that sync, fetch, and do all chores.
    pub fn start_threads(self: &Arc<Engine>, clock: &Clock) -> Result<(), OpenError> {
        let spawn = |source| OpenError::io(Path::new("a thread"), source);
        *self.syncer.lock() = Some(spawn_syncer(&self.log, self.durability)?);
        let pool = Pool::start(Arc::downgrade(self), self.pending_requests_max, self.pending_wait_max);
        let _ = self.pool.set(pool.map_err(spawn)?);
        let _ = self.keeper.set(Keeper::start(Arc::downgrade(self), Arc::clone(clock)).map_err(spawn)?);
        Ok(())
    }

    /// Runs a batch, fetching what it needs. Blocks while it reads from the cold store. Returns the offset its
    /// replies reveal; pass it to [`Counters::settle`] before showing them to anybody.
    pub fn run(&self, batch: &mut Batch, now_ms: u64) -> Result<u64, Unavailable> {
        let mut fetched = Fetched::default();
        let mut reliefs_left = self.reliefs_max();
        loop {
            match self.advance(batch, now_ms, &mut fetched, reliefs_left > 0)? {
                Progress::Done(offset) => return Ok(offset),
                Progress::Crowded(partition) => {
                    self.relieve(partition).map_err(cold_unavailable)?;
                    reliefs_left -= 1;
                }
            }
        }
    }

    /// Where checkpoints of all partitions do not help, waiting for more of them does not either.
    fn reliefs_max(&self) -> usize {
        self.partitions.len() + 1
    }

    /// Whether a partition holds so much that is not in the cold store yet, or the log behind the checkpoints
    /// is so long, that writers must wait for a checkpoint.
    pub(crate) fn is_crowded(&self, held: &Partition) -> bool {
        let tail = self.log.end().saturating_sub(self.oldest_cut.load(Ordering::Acquire));
        held.excess_bytes(self.partition_budget_bytes) > self.partition_budget_bytes / 2
            || tail > self.log_tail_bytes * TAIL_LIMIT
    }

    /// The log did not take what memory already shows: nothing more may be acknowledged.
    pub(crate) fn poison(&self, error: LogError) -> Unavailable {
        self.fail(error.to_string());
        Unavailable::Failed(error.to_string())
    }

    /// From now on nothing is acknowledged.
    pub(crate) fn fail(&self, reason: String) {
        let _ = self.failed.set(reason);
    }

    /// The newest entry time of any partition: what a clock must not be behind.
    pub fn newest_time_ms(&self) -> u64 {
        self.partitions.iter().map(|held| held.lock().time_ms).max().unwrap_or(0)
    }

    /// Why nothing more can be acknowledged, if so. The process should say it and stop.
    pub fn failed(&self) -> Option<String> {
        if self.log.is_poisoned() && self.failed.get().is_none() {
            let reason = self.log.commit(self.log.end()).err().map(|error| error.to_string());
            let _ = self.failed.set(reason.unwrap_or_else(|| "the log failed".to_string()));
        }
        self.failed.get().cloned()
    }

    /// Makes everything durable and ends the threads; when the last reference is gone the folder is free for
    /// others. Without it that happens a little later, when a thread that is still busy notices.
    pub fn close(&self) -> Result<(), Unavailable> {
        if let Some(keeper) = self.keeper.get() {
            keeper.stop();
        }
        if let Some(pool) = self.pool.get() {
            pool.stop();
        }
        let closed = self.log.close().map_err(unavailable);
        self.syncer.lock().take();
        closed
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::error!("closing: {error}");
        }
    }
}

impl Counters for Engine {
    fn execute(&self, batch: &mut Batch, now_ms: u64) -> Result<Execution, Unavailable> {
        match self.attempt(batch, now_ms, &Fetched::default(), true, Scope::Node)? {
            Attempt::Done(offset) => Ok(Execution::Done { offset }),
            Attempt::Missing(_) | Attempt::Crowded(_) => Ok(Execution::Pending),
        }
    }

    fn finish(&self, mut batch: Batch, now_ms: u64, finished: Finished) {
        self.counts.pending_batches.add(1);
        match self.pool.get() {
            Some(pool) => pool.submit(batch, now_ms, self.reliefs_max(), finished),
            None => {
                let result = self.run(&mut batch, now_ms);
                finished(batch, result);
            }
        }
    }

    fn settle(&self, offset: u64) -> Result<(), Unavailable> {
        let settled = match self.durability {
            Durability::Sync => self.log.commit(offset),
            // Handed to the system before the reply, so that only a power cut can take it back.
            Durability::Interval { .. } | Durability::None => self.log.write_up_to(offset),
        };
        settled.map_err(|error| self.poison(error))
    }

    fn is_settled(&self, offset: u64) -> bool {
        let settled = match self.durability {
            Durability::Sync => self.log.durable(),
            Durability::Interval { .. } | Durability::None => self.log.written(),
        };
        settled >= offset && !self.log.is_poisoned()
    }

    fn when_settled(&self, offset: u64, settled: Box<dyn FnOnce(Result<(), Unavailable>) + Send>) {
        match self.durability {
            Durability::Sync => {
                self.log.when_durable(offset, Box::new(move |result| settled(result.map_err(unavailable))));
            }
            Durability::Interval { .. } | Durability::None => settled(self.settle(offset)),
        }
    }

    fn policies(&self) -> Result<Policies, Unavailable> {
        let policies = Policies::clone(&self.partitions[0].lock().policies);
        self.settle(self.policies_offset.load(Ordering::Acquire))?;
        Ok(policies)
    }

    fn set_policy(&self, pattern: &[u8], policy: Option<Policy>, now_ms: u64) -> Result<bool, Unavailable> {
        if policy.as_ref().is_some_and(Policy::is_striped) {
            return Err(Unavailable::Unsupported(quipu_counting::policy::NOT_STRIPED_HERE.into()));
        }
        let mut said = Vec::new();
        entry::put_policy(&mut said, pattern, policy.as_ref());
        let room = 1024 + said.len();
        let appender = self.log.appender(room).map_err(unavailable)?;
        // All of them, so that no batch is decided half by the old and half by the new.
        let mut all: Vec<_> = self.partitions.iter().map(Mutex::lock).collect();
        if let Some(reason) = self.failed() {
            return Err(Unavailable::Failed(reason));
        }
        let mut policies = Policies::clone(&all[0].policies);
        let is_new = policy.is_some() && policies.get(pattern).is_none();
        if is_new && policies.len() >= quipu_counting::policy::POLICIES_MAX {
            return Err(Unavailable::Unsupported(format!(
                "there are already {} policies, the most there can be; remove one or use a wider pattern",
                policies.len()
            )));
        }
        let home = &mut all[0];
        home.begin(now_ms);
        home.sequence += 1;
        home.effects.extend_from_slice(&said);
        let mut record = Vec::with_capacity(room);
        home.put_section(&mut record);
        let offset = appender.append(&[&record]).map_err(|error| self.poison(error))?;
        home.appended(offset);
        self.policies_offset.store(offset, Ordering::Release);
        let existed = policies.set(pattern, policy);
        self.audits.store(policies.longest_audit_ms().is_some(), Ordering::Relaxed);
        self.says_more.store(policies.say_more(), Ordering::Relaxed);
        let policies = Arc::new(policies);
        all.iter_mut().for_each(|held| held.policies = Arc::clone(&policies));
        drop((all, appender));
        // The policy has happened: a segment that cannot be had now is the next appender's error.
        let _ = self.log.roll_if_full();
        self.settle(offset)?;
        Ok(existed)
    }

    fn scan(&self, cursor: u64, count: usize, now_ms: u64) -> Result<ScanPage, Unavailable> {
        self.scan_page(cursor, count, now_ms)
    }

    fn list(&self, listing: &Listing, now_ms: u64) -> Result<ListPage, Unavailable> {
        self.list_page(listing, now_ms)
    }

    fn aggregate(&self, selector: &Selector, now_ms: u64) -> Result<Aggregate, Unavailable> {
        self.aggregate_all(selector, now_ms)
    }

    fn audits(&self) -> bool {
        self.audits.load(Ordering::Relaxed)
    }

    fn audit(&self, query: &AuditQuery, now_ms: u64) -> Result<AuditPage, Unavailable> {
        self.audit_page(query, now_ms)
    }

    fn random_key(&self, draw: u64, now_ms: u64) -> Result<Option<Vec<u8>>, Unavailable> {
        self.draw_key(draw, now_ms)
    }

    fn watch(&self, interest: Interest, watched: Box<dyn FnOnce() + Send>) {
        self.watch_for(OWN_WATCHER, interest);
        watched();
    }

    fn changes(&self) -> Changes {
        self.take_changes(OWN_WATCHER)
    }

    fn hot(&self, n: usize, now_ms: u64) -> Result<HotKeys, Unavailable> {
        if !self.finds_hot_keys {
            return Err(Unavailable::Unsupported(
                "hot keys are not looked for here (hot_keys = false)".into(),
            ));
        }
        Ok(self.hot_here(n, now_ms))
    }

    fn facts(&self) -> Vec<(&'static str, u64)> {
        crate::facts::facts(self)
    }
}

/// What the fronts are told when the cold store did not do its part. A batch that needs it has not run yet.
pub(crate) fn cold_unavailable(error: ColdError) -> Unavailable {
    match error {
        ColdError::Full { .. } => Unavailable::Full(error.to_string()),
        other => Unavailable::Unreadable(other.to_string()),
    }
}

fn check_options(options: &Options) -> Result<(), OpenError> {
    let refuse = |what: String| Err(OpenError::Options(what));
    if !options.partitions.is_power_of_two() || options.partitions > PARTITIONS_MAX {
        return refuse(format!(
            "partitions is {}; use a power of two up to {PARTITIONS_MAX}",
            options.partitions
        ));
    }
    if options.id_window_ms < ID_WINDOW_MS_MIN {
        return refuse(format!("the window of request ids is {} ms; use at least 1 s", options.id_window_ms));
    }
    Ok(())
}

fn system_entropy() -> std::io::Result<[u8; 40]> {
    let mut bytes = [0; 40];
    std::io::Read::read_exact(&mut std::fs::File::open("/dev/urandom")?, &mut bytes)?;
    Ok(bytes)
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(bytes);
    array
}

//! `--mirror postgres://...`: a row in PostgreSQL for every counter, written behind.
//!
//! | file | what it says |
//! |---|---|
//! | here | what changed, and how it comes to the table |
//! | `sweep` | all counters and all rows, where it is not known what changed |
//! | `status` | how it goes, for people and for metrics |
//!
//! The engine notes which counters change (`quipu_engine::watching`: keys, each once, bounded) and nothing else; here they are taken
//! every so often, read like any client reads them, and written. So a counter costs one read and one row an interval, however often it
//! changes, and nobody who counts ever waits for PostgreSQL. While that is away keys gather in the engine up to its bound; above
//! it, everything is swept.
//!
//! In a cluster each node mirrors the partitions that it leads. Who begins to lead one sweeps it, because nobody knows what the
//! leader before did not come to. That two may think they lead does no harm: see `quipu_external::mirror`.

mod status;
mod sweep;

use std::collections::{BTreeSet, HashSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use quipu_cluster::node::Node;
use quipu_counting::slot::{PARTITIONS_MAX, partition, slot};
use quipu_counting::{Action, Batch, Counters, Interest, NEVER};
use quipu_engine::Engine;
use quipu_external::mirror::{MirrorRow, MirrorTable};
use tokio::runtime::Runtime;
use tokio::time::{Instant, timeout};

use self::sweep::Sweep;
use crate::clock::Clock;
use crate::config::Config;
use crate::deployment::Deployment;
use crate::http::run_on;

pub use status::{Status, without_password};

/// Names the mirror among those who watch: nodes have numbers from 1 on, and the fronts have 0.
const WATCHER: u64 = u64::MAX;
/// Counters of one transaction: many enough that its cost is shared, few enough that it is short.
const ROWS_PER_TURN: usize = 5_000;
/// Counters read at once: no longer than a usual batch of a client, so that nobody waits for it.
const READS_PER_BATCH: usize = 500;
/// How long one transaction may take, with all it waits for.
const TURN_MAX: Duration = Duration::from_secs(90);
/// After what failed: not for long at first, because a restart is soon over.
const PAUSE_MIN: Duration = Duration::from_millis(200);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// How often everything is compared, although nothing is known to be missing.
const SWEEP_EVERY: Duration = Duration::from_secs(60 * 60);
/// How often the table is told that everything is in it, while nothing changes.
const NOTE_EVERY: Duration = Duration::from_secs(1);

/// Why a round did not succeed.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Table(#[from] quipu_external::archive::ArchiveError),
    #[error("counters cannot be read: {0}")]
    Counters(String),
    #[error("PostgreSQL does not answer")]
    TooLate,
}

/// What the mirror works with.
pub struct Mirror {
    /// Of the table.
    url: String,
    /// Between two looks at what changed.
    interval: Duration,
    /// Notes what changes.
    engine: Arc<Engine>,
    /// Read like anybody reads them.
    counters: Arc<dyn Counters>,
    /// The node, where it is one of a cluster.
    node: Option<Arc<Node>>,
    /// The time of entries.
    clock: Arc<Clock>,
    /// Where it says how it goes.
    status: Arc<Status>,
}

/// What is to be done; it outlives a connection.
#[derive(Default)]
struct Work {
    partitions: u16,
    /// The partitions that are mirrored here.
    led: BTreeSet<u16>,
    /// Counters that may have changed.
    pending: HashSet<Vec<u8>>,
    /// Whatever changed before this is pending, swept or written.
    taken_at_ms: u64,
    /// Partitions of which more may have changed.
    to_sweep: BTreeSet<u16>,
    sweep: Option<Sweep>,
    swept_at_ms: Option<u64>,
    next_sweep: Option<Instant>,
    next_note: Option<Instant>,
}

impl Mirror {
    /// Begins to mirror, if that is wanted.
    pub fn start(
        config: &Config,
        deployment: &Deployment,
        clock: &Arc<Clock>,
        runtime: &Runtime,
    ) -> Option<Arc<Status>> {
        let url = config.mirror.as_ref()?.reveal().to_owned();
        let status = Arc::new(Status::new(&url, clock.now_ms()));
        let mirror = Mirror {
            url,
            interval: Duration::from_millis(config.mirror_interval_ms),
            engine: Arc::clone(deployment.engine()?),
            counters: deployment.counters(),
            node: deployment.member().map(|member| Arc::clone(member.node())),
            clock: Arc::clone(clock),
            status: Arc::clone(&status),
        };
        runtime.spawn(mirror.run());
        Some(status)
    }

    /// Mirrors until the process ends. What fails is tried again.
    async fn run(self) {
        self.engine.watch_for(WATCHER, Interest::new([], [Vec::new()]));
        let is_there = |partition: &u16| self.engine.take_changes_of(WATCHER, *partition).is_some();
        let partitions = (0..PARTITIONS_MAX).take_while(is_there).count() as u16;
        let mut work = Work { partitions, ..Work::default() };
        let mut pause = PAUSE_MIN;
        loop {
            let connected_at = Instant::now();
            let Err(failed) = self.serve(&mut work).await;
            self.status.failed(&failed.to_string());
            if connected_at.elapsed() > PAUSE_MAX {
                pause = PAUSE_MIN;
            }
            tracing::warn!("the mirror cannot be written: {failed}; trying again");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn serve(&self, work: &mut Work) -> Result<Infallible, Failed> {
        let mut table =
            timeout(TURN_MAX, MirrorTable::open(&self.url)).await.map_err(|_| Failed::TooLate)??;
        loop {
            let began = Instant::now();
            let is_idle =
                timeout(TURN_MAX, self.round(&mut table, work)).await.map_err(|_| Failed::TooLate)??;
            // A sweep leaves as much time to others as it takes.
            let pause = if is_idle { self.interval } else { began.elapsed().min(self.interval) };
            tokio::time::sleep(pause).await;
        }
    }

    /// Some of the work. Returns whether there is no more for now.
    async fn round(&self, table: &mut MirrorTable, work: &mut Work) -> Result<bool, Failed> {
        if work.pending.is_empty() {
            self.take(work);
        }
        let mut some: Vec<Vec<u8>> = work.pending.iter().take(ROWS_PER_TURN).cloned().collect();
        // In one order, as rows are locked.
        some.sort_unstable();
        if !some.is_empty() {
            self.refresh(table, &some).await?;
            some.iter().for_each(|key| {
                work.pending.remove(key);
            });
        } else {
            self.sweep(table, work).await?;
        }
        let is_repairing =
            work.sweep.as_ref().is_some_and(|sweep| sweep.is_repair) || !work.to_sweep.is_empty();
        if work.pending.is_empty() && !is_repairing {
            self.note(table, work).await?;
        }
        self.status.works(work.pending.len(), work.sweep.as_ref().map(|sweep| sweep.done), work.swept_at_ms);
        Ok(work.pending.is_empty() && work.sweep.is_none() && work.to_sweep.is_empty())
    }

    /// Takes what was noted since the last time.
    fn take(&self, work: &mut Work) {
        work.taken_at_ms = self.clock.now_ms();
        for partition in 0..work.partitions {
            let changes = self.engine.take_changes_of(WATCHER, partition).unwrap_or_default();
            let leads = self.node.as_ref().is_none_or(|node| node.leader(partition) == Some(node.id()));
            if !leads {
                work.led.remove(&partition);
                continue;
            }
            if work.led.insert(partition) || changes.lost || changes.cleared {
                work.to_sweep.insert(partition);
            }
            work.pending.extend(changes.keys);
        }
    }

    /// Writes these counters as they are.
    async fn refresh(&self, table: &mut MirrorTable, keys: &[Vec<u8>]) -> Result<(), Failed> {
        let turn = table.turn().await?;
        let (mut rows, mut gone) = (Vec::with_capacity(keys.len()), Vec::new());
        for keys in keys.chunks(READS_PER_BATCH) {
            let mut batch = Batch::with_room(keys.len());
            for key in keys {
                batch.push(key, Action::Read);
            }
            let read = run_on(&*self.counters, self.clock.now_ms(), batch).await;
            let batch = read.map_err(|refused| Failed::Counters(refused.problem().detail.clone()))?;
            for (key, reply) in keys.iter().zip(&batch.replies) {
                if let Some(refusal) = reply.refusal {
                    return Err(Failed::Counters(refusal.code().to_owned()));
                }
                if !reply.exists {
                    gone.push(key.as_slice());
                    continue;
                }
                let cell = &reply.cell;
                rows.push(MirrorRow {
                    key: key.clone(),
                    value: cell.value,
                    version: cell.version,
                    kind: reply.kind.name(),
                    updated_at_ms: cell.updated_at_ms,
                    expires_at_ms: (cell.expires_at_ms != NEVER).then_some(cell.expires_at_ms),
                });
            }
        }
        let written = turn.write(&rows, &gone).await?;
        self.status.wrote(written);
        Ok(())
    }

    /// Begins a sweep where one is due, and does a part of the one that is under way.
    async fn sweep(&self, table: &MirrorTable, work: &mut Work) -> Result<(), Failed> {
        let is_due = work.next_sweep.is_none_or(|at| at <= Instant::now());
        if work.sweep.is_none() && (is_due || !work.to_sweep.is_empty()) {
            let is_repair = !work.to_sweep.is_empty();
            let partitions = if is_due { work.led.clone() } else { work.to_sweep.clone() };
            work.to_sweep.clear();
            if is_due {
                work.next_sweep = Some(Instant::now() + SWEEP_EVERY);
            }
            work.sweep = Some(Sweep::new(partitions, is_repair));
        }
        let Some(sweep) = &mut work.sweep else { return Ok(()) };
        let found = sweep.next(table, &self.counters, self.clock.now_ms()).await?;
        let Some(mut keys) = found else {
            work.swept_at_ms = Some(self.clock.now_ms());
            work.sweep = None;
            return Ok(());
        };
        keys.retain(|key| sweep.partitions.contains(&partition(slot(key), work.partitions)));
        sweep.done += keys.len() as u64;
        work.pending.extend(keys);
        Ok(())
    }

    /// Everything that was taken is in the table: says so there, and to those who ask.
    async fn note(&self, table: &MirrorTable, work: &mut Work) -> Result<(), Failed> {
        self.status.is_complete(work.taken_at_ms);
        if work.next_note.is_some_and(|at| at > Instant::now()) {
            return Ok(());
        }
        work.next_note = Some(Instant::now() + NOTE_EVERY);
        let writer = self.node.as_ref().map_or("embedded".to_owned(), |node| format!("node {}", node.id()));
        Ok(table.note(&writer, work.taken_at_ms, work.swept_at_ms).await?)
    }
}

//! Nodes and the machines they live on: their lives and ends.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use quipu_cluster::meta::{LEVEL, Member};
use quipu_cluster::node::{Node, Settings};
use quipu_cluster::raft::{NodeId, Pace};
use quipu_engine::{Clock, Engine, Options};
use quipu_store::LogOptions;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::time::{Instant, sleep, timeout};

use super::network::Net;
use crate::config::START_MS;
use crate::machine::Machine;
use crate::plant::Plant;

/// How long an end may take before nobody waits for it any more.
const END_MAX: Duration = Duration::from_secs(5);

/// A machine and what runs on it.
pub struct Slot {
    pub machine: Machine,
    pub node: Option<Arc<Node>>,
    /// How often its disk was replaced by an empty one.
    disks: u8,
    /// How wrong its clock is.
    skew_ms: Arc<AtomicI64>,
    /// How long its disk may take.
    sync_ms_max: Arc<AtomicU64>,
    /// How much log there may be behind its checkpoints.
    log_tail_bytes: u64,
}

/// All of them.
pub struct Machines {
    pub net: Arc<Net>,
    pub partitions: u16,
    pub slots: Mutex<BTreeMap<NodeId, Slot>>,
    folder: tempfile::TempDir,
    random: Mutex<SmallRng>,
    began: Instant,
}

impl Machines {
    pub fn new(net: Arc<Net>, partitions: u16, random: SmallRng) -> std::io::Result<Machines> {
        Ok(Machines {
            net,
            partitions,
            slots: Mutex::default(),
            folder: tempfile::tempdir()?,
            random: Mutex::new(random),
            began: Instant::now(),
        })
    }

    /// A new machine.
    pub fn add(&self, id: NodeId) {
        let (seed, tail): (u64, bool) = self.random.lock().random();
        let slot = Slot {
            machine: Machine::new(seed, Plant::None),
            node: None,
            disks: 0,
            skew_ms: Arc::default(),
            sync_ms_max: Arc::new(AtomicU64::new(4)),
            log_tail_bytes: if tail { 4 << 10 } else { 64 << 10 },
        };
        self.slots.lock().insert(id, slot);
    }

    /// A machine that is down gets a new, empty disk.
    pub fn empty_disk(&self, id: NodeId) -> Result<(), String> {
        let seed = self.random.lock().random();
        let mut slots = self.slots.lock();
        let slot = slots.get_mut(&id).ok_or("no such machine")?;
        if slot.node.is_some() {
            return Err("it runs".into());
        }
        slot.machine = Machine::new(seed, Plant::None);
        slot.disks += 1;
        Ok(())
    }

    pub fn node(&self, id: NodeId) -> Option<Arc<Node>> {
        self.slots.lock().get(&id)?.node.clone()
    }

    pub fn ids(&self) -> Vec<NodeId> {
        self.slots.lock().keys().copied().collect()
    }

    /// Those that run.
    pub fn running(&self) -> Vec<Arc<Node>> {
        self.slots.lock().values().filter_map(|slot| slot.node.clone()).collect()
    }

    pub fn set_skew(&self, id: NodeId, ms: i64) {
        if let Some(slot) = self.slots.lock().get(&id) {
            slot.skew_ms.store(ms, Ordering::Relaxed);
        }
    }

    pub fn set_sync_ms_max(&self, id: NodeId, ms: u64) {
        if let Some(slot) = self.slots.lock().get(&id) {
            slot.sync_ms_max.store(ms, Ordering::Relaxed);
        }
    }

    pub fn fill_cold(&self, id: NodeId, is_full: bool) {
        if let Some(slot) = self.slots.lock().get(&id) {
            slot.machine.fill_cold(is_full);
        }
    }

    pub fn fill_log(&self, id: NodeId, is_full: bool) {
        if let Some(slot) = self.slots.lock().get(&id) {
            let disk = slot.machine.sim_disk();
            disk.set_capacity(is_full.then(|| disk.used_bytes()));
        }
    }

    fn path(&self, id: NodeId) -> PathBuf {
        self.folder.path().join(id.to_string())
    }

    /// How a node is known to others.
    pub fn member(&self, node: &Node) -> Member {
        Member {
            level: LEVEL,
            address: format!("node-{}:7072", node.id()),
            zone: None,
            folder: node.engine().folder_number(),
            is_leaving: false,
            resp: format!("resp-{}", node.id()),
            http: format!("http-{}", node.id()),
        }
    }

    /// Starts the node of a machine.
    pub async fn start(&self, id: NodeId) -> Result<Arc<Node>, String> {
        let wire = Arc::new(self.net.begin_life(id));
        let (storage, disks, clock, sync_ms_max, log_tail_bytes) = {
            let slots = self.slots.lock();
            let slot = slots.get(&id).ok_or("no such machine")?;
            let (skew, began) = (Arc::clone(&slot.skew_ms), self.began);
            let clock: Clock = Arc::new(move || {
                let now = START_MS + began.elapsed().as_millis() as u64;
                now.saturating_add_signed(skew.load(Ordering::Relaxed))
            });
            let storage = (slot.machine.disk(), slot.machine.cold());
            (storage, slot.disks, clock, Arc::clone(&slot.sync_ms_max), slot.log_tail_bytes)
        };
        // The same secret everywhere: request ids must be the same. Not so the number of the folder.
        let mut entropy = [7; 40];
        entropy[16] = id as u8;
        entropy[17] = disks;
        let settings = Settings {
            id,
            path: self.path(id),
            wall_clock: None,
            options: Options {
                partitions: self.partitions,
                memory_bytes: u64::from(self.partitions) * (16 << 20),
                log: LogOptions { segment_bytes: 16 << 10, ..LogOptions::default() },
                log_tail_bytes,
                entropy: Some(entropy),
                clock: Arc::clone(&clock),
                ..Options::default()
            },
            pace: Pace {
                heartbeat: Duration::from_millis(50),
                election: Duration::from_millis(200),
                entries_kept: 4,
            },
            patience: Duration::from_secs(3),
            storage: Some(storage),
        };
        let node = Node::open(settings, wire).await?;
        self.net.connect(id, &node);
        let random = SmallRng::seed_from_u64(self.random.lock().random());
        tokio::spawn(work(Arc::downgrade(node.engine()), sync_ms_max, clock, random));
        if let Some(slot) = self.slots.lock().get_mut(&id) {
            slot.node = Some(Arc::clone(&node));
        }
        Ok(node)
    }

    /// Ends a node without asking it: what it had not synced is gone, if the power is. Returns whether it ran.
    pub async fn end(&self, id: NodeId, loses_power: bool) -> bool {
        let node = {
            let mut slots = self.slots.lock();
            let Some(slot) = slots.get_mut(&id) else { return false };
            let Some(node) = slot.node.take() else { return false };
            self.net.end_life(id);
            match loses_power {
                true => slot.machine.lose_power(),
                false => slot.machine.kill(),
            }
            node
        };
        // What it would still write goes nowhere: the machine has gone on.
        let _ = timeout(END_MAX, node.stop()).await;
        true
    }

    /// Ends a node in order.
    pub async fn stop(&self, id: NodeId) {
        let node = self.slots.lock().get_mut(&id).and_then(|slot| slot.node.take());
        if let Some(node) = node {
            node.stop().await;
            self.net.end_life(id);
            if let Some(slot) = self.slots.lock().get_mut(&id) {
                slot.machine.kill();
            }
        }
    }
}

/// What the threads of an engine do where there are threads.
async fn work(engine: Weak<Engine>, sync_ms_max: Arc<AtomicU64>, clock: Clock, mut random: SmallRng) {
    loop {
        let within = sync_ms_max.load(Ordering::Relaxed);
        sleep(Duration::from_micros(random.random_range(100..=within * 1_000))).await;
        let Some(engine) = engine.upgrade() else { return };
        engine.log().serve_waiters();
        if random.random_ratio(1, 20) {
            engine.tend(clock());
        }
    }
}

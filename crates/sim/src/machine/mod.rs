//! The simulated machine: a disk and a cold store that go down together.
//!
//! The machine outlives its engines. When either part stops, by a planned crash at some operation, the other
//! stops with it; [`Machine::lose_power`] and [`Machine::kill`] begin the next life.

mod cold;
mod disk;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use quipu_store::cold::{ColdStore, ModelStore};
use quipu_store::{Disk, SimDisk};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::plant::Plant;
use cold::{MachineCold, Memory};
use disk::MachineDisk;

/// See the head of this file.
pub struct Machine {
    disk: SimDisk,
    cold: Arc<ModelStore>,
    plant: Plant,
    /// What the planted bugs of the cold store need to know.
    memory: Arc<Mutex<Memory>>,
    random: SmallRng,
    /// Whether this is a copy of another machine.
    is_copy: bool,
    damage: Option<(PathBuf, u64)>,
}

impl Machine {
    /// A new machine with an empty disk.
    pub fn new(seed: u64, plant: Plant) -> Machine {
        Machine {
            disk: SimDisk::new(seed),
            cold: Arc::new(ModelStore::new(seed ^ 0x5eed)),
            plant,
            memory: Arc::default(),
            random: SmallRng::seed_from_u64(seed ^ 0xacc1),
            is_copy: false,
            damage: None,
        }
    }

    /// The disk in the form the engine takes it.
    pub fn disk(&self) -> Arc<dyn Disk> {
        let (disk, cold) = (self.disk.clone(), Arc::clone(&self.cold));
        Arc::new(MachineDisk { disk, cold, plant: self.plant, damage: self.damage.clone() })
    }

    /// The cold store in the form the engine takes it.
    pub fn cold(&self) -> Arc<dyn ColdStore> {
        Arc::new(MachineCold {
            disk: self.disk.clone(),
            cold: Arc::clone(&self.cold),
            plant: self.plant,
            memory: Arc::clone(&self.memory),
            is_copy: self.is_copy,
        })
    }

    /// Whether request ids in the cold store cannot be seen.
    pub fn hide_ids(&self, hides: bool) {
        self.memory.lock().hides_ids = hides;
    }

    /// Whether the cold store has no room.
    pub fn fill_cold(&self, is_full: bool) {
        self.memory.lock().is_full = is_full;
    }

    /// The disk itself, for faults and damage.
    pub fn sim_disk(&self) -> &SimDisk {
        &self.disk
    }

    /// The cold store itself, for faults.
    pub fn model_store(&self) -> &ModelStore {
        &self.cold
    }

    /// Whether the machine stopped.
    pub fn is_down(&self) -> bool {
        self.disk.has_stopped() || self.cold.has_crashed()
    }

    /// Changes one byte of a file where it lies.
    pub fn damage(&mut self, path: &Path, position: u64) {
        self.disk.flip_byte(path, position);
        self.damage = Some((path.to_path_buf(), position));
    }

    /// Power loss and restart.
    pub fn lose_power(&mut self) {
        self.disk.crash();
        let last_write_undone = self.memory.lock().before_last_write.take();
        self.cold = match last_write_undone {
            Some(before) if self.plant == Plant::ColdForgetsTheLastWrite && self.random.random() => {
                Arc::new(before.reopen())
            }
            _ => Arc::new(self.cold.reopen()),
        };
    }

    /// The process ends and starts again; what it wrote is still there.
    pub fn kill(&mut self) {
        self.disk.kill();
        self.cold = Arc::new(self.cold.reopen());
    }

    /// A machine of its own with a copy of this one's disk and cold store.
    pub fn copy(&self, seed: u64) -> Machine {
        let disk = self.disk.fork(seed);
        disk.kill();
        Machine {
            disk,
            cold: Arc::new(self.cold.fork(seed)),
            plant: self.plant,
            memory: Arc::new(Mutex::new(self.memory.lock().copy())),
            random: SmallRng::seed_from_u64(seed),
            is_copy: true,
            damage: None,
        }
    }
}

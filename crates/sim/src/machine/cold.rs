//! The machine's cold store: the model, down when the disk is, and the bugs that can be planted in it.

use std::collections::BTreeMap;
use std::io;
use std::ops::Bound;
use std::sync::Arc;

use parking_lot::Mutex;
use quipu_store::SimDisk;
use quipu_store::cold::{ColdError, ColdStats, ColdStore, ModelStore, Rows, Visit};

use crate::plant::Plant;

/// What planted bugs remember.
#[derive(Default)]
pub(super) struct Memory {
    /// The store as it was before its last write.
    pub(super) before_last_write: Option<ModelStore>,
    /// Rows as they were before their last change.
    stale_rows: BTreeMap<(String, Vec<u8>), Vec<u8>>,
    /// Calls so far, so that a bug can strike now and then.
    calls: u64,
    /// Request ids cannot be seen at the moment.
    pub(super) hides_ids: bool,
    /// There is no room at the moment.
    pub(super) is_full: bool,
}

impl Memory {
    pub(super) fn copy(&self) -> Memory {
        Memory { before_last_write: None, stale_rows: self.stale_rows.clone(), ..*self }
    }

    fn is_turn(&mut self, every: u64) -> bool {
        self.calls += 1;
        self.calls.is_multiple_of(every)
    }
}

/// See the head of this file.
pub(super) struct MachineCold {
    pub(super) disk: SimDisk,
    pub(super) cold: Arc<ModelStore>,
    pub(super) plant: Plant,
    pub(super) memory: Arc<Mutex<Memory>>,
    pub(super) is_copy: bool,
}

impl MachineCold {
    fn check_up(&self) -> Result<(), ColdError> {
        if self.disk.has_stopped() { Err(down()) } else { Ok(()) }
    }

    fn remember_rows(&self, space: &str, rows: &Rows) -> Result<(), ColdError> {
        for (key, _) in rows.iter() {
            if let Some(value) = self.cold.get(space, key)? {
                self.memory.lock().stale_rows.insert((space.to_string(), key.to_vec()), value);
            }
        }
        Ok(())
    }

    fn write_half(&self, space: &str, rows: &Rows) -> Result<(), ColdError> {
        let mut half = Rows::new();
        // The latter half, with the row that says what the checkpoint contains.
        for (key, value) in rows.iter().skip(rows.len() / 2) {
            half.push(key, value)?;
        }
        self.cold.write(space, &half)?;
        self.cold.crash();
        Err(down())
    }
}

fn down() -> ColdError {
    ColdError::Io {
        action: "the simulated machine is down".into(),
        source: io::ErrorKind::Interrupted.into(),
    }
}

fn is_cell(key: &[u8]) -> bool {
    key.first() == Some(&b'C')
}

impl ColdStore for MachineCold {
    fn spaces(&self) -> Result<Vec<String>, ColdError> {
        self.check_up()?;
        let mut spaces = self.cold.spaces()?;
        if self.memory.lock().hides_ids {
            spaces.retain(|space| !space.starts_with("ids-"));
        }
        Ok(spaces)
    }

    fn get(&self, space: &str, key: &[u8]) -> Result<Option<Vec<u8>>, ColdError> {
        self.check_up()?;
        if self.plant == Plant::ColdReadsStaleRows && self.memory.lock().is_turn(3) {
            let stale = self.memory.lock().stale_rows.get(&(space.to_string(), key.to_vec())).cloned();
            if is_cell(key) && stale.is_some() {
                return Ok(stale);
            }
        }
        if self.plant == Plant::ColdDiffersBetweenCopies && self.is_copy && is_cell(key) {
            return Ok(None);
        }
        self.cold.get(space, key)
    }

    fn scan(
        &self,
        space: &str,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        visit: &mut Visit<'_>,
    ) -> Result<(), ColdError> {
        self.check_up()?;
        self.cold.scan(space, from, to, visit)
    }

    fn write(&self, space: &str, rows: &Rows) -> Result<(), ColdError> {
        self.check_up()?;
        if self.memory.lock().is_full {
            let (action, source) = (format!("writing to {space}"), io::ErrorKind::StorageFull.into());
            return Err(ColdError::Full { action, source });
        }
        match self.plant {
            Plant::ColdForgetsTheLastWrite => self.memory.lock().before_last_write = Some(self.cold.fork(1)),
            Plant::ColdReadsStaleRows => self.remember_rows(space, rows)?,
            Plant::ColdDropsTrails if space.starts_with("audit-") => return Ok(()),
            Plant::ColdDropsRequestIds if space.starts_with("ids-") => return Ok(()),
            Plant::ColdTearsWrites if rows.len() > 3 && self.memory.lock().is_turn(4) => {
                return self.write_half(space, rows);
            }
            _ => {}
        }
        self.cold.write(space, rows)
    }

    fn drop_space(&self, space: &str) -> Result<(), ColdError> {
        self.check_up()?;
        self.cold.drop_space(space)
    }

    fn stats(&self) -> ColdStats {
        self.cold.stats()
    }

    fn sizes(&self, prefix: &str) -> (u64, u64) {
        self.cold.sizes(prefix)
    }
}

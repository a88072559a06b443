//! WATCH: keys that must be as they were for the next transaction to run.
//!
//! WATCH reads the keys in a batch like any other and the connection remembers what it saw; EXEC sends that along as
//! checks before its commands, in one batch. What counts is the state of a key and not what touched it meanwhile, so it
//! makes no difference who changed it, or on which node. A key that did not exist, was created and deleted again is as
//! it was; Redis would say that it was touched.

use std::collections::{BTreeMap, VecDeque};

use quipu_counting::{Action, Cell, Condition, KEY_BYTES_MAX, Reply};
use quipu_wire::resp::Arguments;

use super::commands::{Drafted, check_keys};
use super::plan::{Draft, Plan};
use super::session::TRANSACTION_COMMANDS_MAX;

/// The most keys one connection watches: half of what is executed as one, so that there is room for a transaction.
const KEYS_MAX: usize = TRANSACTION_COMMANDS_MAX as usize / 2;

/// The watched keys of a connection.
#[derive(Debug, Default)]
pub struct Watched {
    /// How each was when it was first watched.
    seen: BTreeMap<Vec<u8>, Condition>,
    /// Keys of commands that are drafted and not executed yet, in their order.
    asked: VecDeque<Vec<u8>>,
}

impl Watched {
    /// Drafts WATCH. Keys that are watched already keep the state they were first seen in.
    pub fn watch(&mut self, draft: &mut Draft, keys: Arguments<'_, '_>) -> Drafted {
        check_keys(keys.iter())?;
        if self.seen.len() + self.asked.len() + keys.len() > KEYS_MAX {
            return Err(format!("ERR a connection can watch at most {KEYS_MAX} keys").into());
        }
        let before = self.asked.len();
        for key in keys.iter().filter(|key| !self.seen.contains_key(*key)) {
            draft.batch.push(key, Action::Read);
            self.asked.push_back(key.to_vec());
        }
        draft.plans.push(Plan::Watch((self.asked.len() - before) as u32));
        Ok(())
    }

    /// The next key that was asked for was in this state; without a reply it is not watched.
    pub fn learn(&mut self, reply: Option<&Reply>) {
        let (Some(key), Some(reply)) = (self.asked.pop_front(), reply) else { return };
        let Cell { birth, version, .. } = reply.cell;
        let state = if reply.exists { Condition::Tag { birth, version } } else { Condition::Absent };
        self.seen.entry(key).or_insert(state);
    }

    /// What is watched.
    pub fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.seen.keys().chain(&self.asked).map(Vec::as_slice)
    }

    /// Whether something is drafted that this still has to learn from.
    pub fn is_learning(&self) -> bool {
        !self.asked.is_empty()
    }

    /// What it may take of memory, at most.
    #[inline]
    pub fn held_bytes(&self) -> usize {
        self.seen.len() * (KEY_BYTES_MAX + size_of::<(Vec<u8>, Condition)>())
    }

    /// UNWATCH.
    pub fn forget(&mut self) {
        self.seen.clear();
    }

    /// The watched keys, each with what must hold. They are no longer watched.
    pub fn take(&mut self) -> impl ExactSizeIterator<Item = (Vec<u8>, Condition)> + use<> {
        std::mem::take(&mut self.seen).into_iter()
    }
}

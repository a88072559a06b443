//! What a node takes for true of counters, request ids and producers while it decides, and what of it a decision rests on.

use std::collections::{BTreeSet, HashMap};

use quipu_counting::{Batch, GroupKind, Refusal, Remembered, Session, Whole};

use super::producer::Producer;
use crate::call::stored_id;
use crate::groups;
use crate::units::Unit;

/// What is known. What is not in it is taken for absent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known {
    pub(crate) counters: HashMap<Vec<u8>, Whole>,
    /// What lies in Redis under the names of request ids.
    pub(crate) ids: HashMap<Vec<u8>, String>,
    pub(crate) producers: HashMap<Vec<u8>, Producer>,
}

impl Known {
    /// What is remembered under a request id, by its name in Redis.
    pub(crate) fn remembered(&self, name: &[u8]) -> Option<Remembered> {
        self.ids.get(name).and_then(|text| stored_id(text))
    }

    /// What is known of a producer, or why nothing can be.
    pub(crate) fn session(&self, producer: &[u8]) -> Result<Option<Session>, Refusal> {
        match self.producers.get(producer) {
            None => Ok(None),
            Some(Producer::Known(session)) => Ok(Some(*session)),
            Some(Producer::NoRoom) => Err(Refusal::TooManyProducers),
        }
    }

    pub(crate) fn extend(&mut self, other: Known) {
        self.counters.extend(other.counters);
        self.ids.extend(other.ids);
        self.producers.extend(other.producers);
    }
}

/// What a decision about some units rests on, each thing once and always in the same order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Needs {
    pub(crate) keys: BTreeSet<Vec<u8>>,
    /// The names of request ids in Redis.
    pub(crate) ids: BTreeSet<Vec<u8>>,
    pub(crate) producers: BTreeSet<Vec<u8>>,
}

/// The name in Redis of a request's id.
pub(crate) fn id_name(group: u16, batch: &Batch, index: usize) -> Option<Vec<u8>> {
    let id = batch.requests[index].id?;
    Some(groups::id(group, batch.key(index), id.index, batch.bytes(id.span)))
}

impl Needs {
    pub(crate) fn add(&mut self, unit: &Unit) {
        let batch = unit.batch();
        for index in unit.range() {
            self.keys.insert(batch.key(index).to_vec());
            self.ids.extend(id_name(unit.group, batch, index));
        }
        for group in unit.groups() {
            if let GroupKind::Session { producer, .. } = group.kind {
                self.producers.insert(batch.bytes(producer).to_vec());
            }
        }
    }
}

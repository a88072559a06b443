//! How nodes reach each other. Bytes go and bytes come back: whatever carries them, every message is encoded and decoded.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;

use crate::raft::NodeId;

/// An answer that is on its way.
pub type Answering = Pin<Box<dyn Future<Output = Result<Bytes, Unreached>> + Send>>;

/// A node was not reached, or did not answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Unreached {
    /// Why.
    pub why: String,
    /// Whether it may have heard the question: then nobody knows whether it did what it was asked.
    pub was_sent: bool,
}

impl Unreached {
    /// It has not heard anything.
    pub fn not_sent(why: impl Into<String>) -> Unreached {
        Unreached { why: why.into(), was_sent: false }
    }

    /// It may have heard it.
    pub fn lost(why: impl Into<String>) -> Unreached {
        Unreached { why: why.into(), was_sent: true }
    }
}

/// The way to other nodes.
pub trait Transport: Send + Sync + 'static {
    /// Asks a node. Never blocks; who waits too long drops the future.
    fn ask(&self, node: NodeId, question: Bytes) -> Answering;

    /// Learns where nodes are, whenever that may have changed.
    fn learn(&self, _addresses: &BTreeMap<NodeId, String>) {}
}

//! How nodes reach each other. Bytes go and bytes come back: whatever carries them, every message is encoded and decoded.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;

use crate::raft::NodeId;

/// An answer that is on its way.
pub type Answering = Pin<Box<dyn Future<Output = Result<Bytes, Unreached>> + Send>>;

/// A node was not reached, or did not answer: whether it did what it was asked is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unreached(pub String);

/// The way to other nodes.
pub trait Transport: Send + Sync + 'static {
    /// Asks a node. Never blocks; who waits too long drops the future.
    fn ask(&self, node: NodeId, question: Bytes) -> Answering;

    /// Learns where nodes are, whenever that may have changed.
    fn learn(&self, _addresses: &BTreeMap<NodeId, String>) {}
}

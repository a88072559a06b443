//! What a group agrees on.

use std::fmt;

use bytes::Bytes;
use openraft::type_config::alias;
use quipu_counting::Reply;

use super::runtime::Runtime;

/// A node's number, for ever.
pub type NodeId = u64;

openraft::declare_raft_types!(
    /// What the groups of quipu are made of. Members are numbers: where a node is reached is not the groups' business.
    pub Types:
        D = Command,
        R = Answer,
        NodeId = NodeId,
        Node = (),
        AsyncRuntime = Runtime,
);

/// When something was agreed on, and by whom: term, leader, index.
pub type LogId = alias::LogIdOf<Types>;
/// Whom a node follows.
pub type Vote = alias::VoteOf<Types>;
/// One place of a group's log.
pub type Entry = alias::EntryOf<Types>;
/// Who belongs to a group.
pub type Membership = openraft::Membership<NodeId, ()>;

/// What a group is asked to do: encoded, because it is written, sent and kept far more often than it is carried out.
#[derive(Clone, PartialEq, Eq)]
pub struct Command(pub Bytes);

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.0.len())
    }
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// One reply per request.
    pub replies: Vec<Reply>,
    /// Why a change of the cluster was refused.
    pub refused: Option<String>,
}

//! Many machines that count as one: every partition a Raft group over the nodes that hold it.
//!
//! | module | what lives there |
//! |---|---|
//! | [`blocking`] | work that blocks, on a thread of its own |
//! | [`certificates`] | certificates for nodes |
//! | [`command`] | what a group of a partition is asked to do |
//! | [`digest`] | what a node's data folder holds, as numbers that replicas share |
//! | [`meta`] | what all nodes agree on: who they are, who holds what |
//! | [`node`] | one of the machines: its groups, and the way of a batch through them |
//! | [`peers`] | nodes that reach each other by TCP and TLS |
//! | [`placing`] | who holds what, brought about |
//! | [`plant`] | bugs planted on purpose, for the simulation |
//! | [`reads`] | reads that need not see the newest |
//! | [`split`] | a batch cut into what each partition is asked |
//! | [`together`] | batches that go the same way go as one message, or one entry |
//! | [`transport`] | how nodes reach each other |
//! | [`walks`] | walks over all counters |
//! | [`raft`] | consensus: what `openraft` is told and asked, and nowhere else |

pub mod blocking;
pub mod certificates;
pub mod command;
pub mod digest;
pub mod meta;
pub mod node;
pub mod peers;
pub mod placing;
pub mod plant;
pub mod raft;
pub mod reads;
pub mod split;
pub mod together;
pub mod transport;
pub mod walks;

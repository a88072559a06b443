//! Many machines that count as one: every partition a Raft group over the nodes that hold it.
//!
//! | module | what lives there |
//! |---|---|
//! | [`aggregates`] | totals over the counters of a pattern |
//! | [`belonging`] | how a cluster begins, how nodes come to it, what all agree on |
//! | [`blocking`] | work that blocks, on a thread of its own |
//! | [`certificates`] | certificates for nodes |
//! | [`chores`] | what a node looks after without being asked |
//! | `clocks` | whether a node may say what time it is |
//! | [`command`] | what a group of a partition is asked to do |
//! | [`digest`] | what a node's data folder holds, as numbers that replicas share |
//! | [`gathering`] | batches of many clients, split together |
//! | [`hot`] | which keys are asked for most |
//! | [`meta`] | what all nodes agree on: who they are, who holds what |
//! | [`node`] | one of the machines: what it holds, how it begins and ends |
//! | [`peers`] | nodes that reach each other by TCP and TLS |
//! | [`placing`] | who holds what, brought about |
//! | [`plant`] | bugs planted on purpose, for the simulation |
//! | [`questions`] | what nodes ask each other |
//! | [`reads`] | reads that need not see the newest |
//! | [`routing`] | the way of a batch to whoever leads, and back |
//! | `runs` | one node, one process: copies of a data folder are not spoken to |
//! | [`split`] | a batch cut into what each partition is asked |
//! | [`together`] | batches that go the same way go as one message, or one entry |
//! | [`transport`] | how nodes reach each other |
//! | [`walks`] | walks over all counters |
//! | [`watching`] | which watched counters changed, wherever they are |
//! | [`raft`] | consensus: what `openraft` is told and asked, and nowhere else |

pub mod aggregates;
pub mod belonging;
pub mod blocking;
pub mod certificates;
pub mod chores;
mod clocks;
pub mod command;
pub mod digest;
pub mod gathering;
pub mod hot;
pub mod meta;
pub mod node;
pub mod peers;
pub mod placing;
pub mod plant;
pub mod questions;
pub mod raft;
pub mod reads;
pub mod routing;
mod runs;
pub mod split;
pub mod together;
pub mod transport;
pub mod walks;
pub mod watching;

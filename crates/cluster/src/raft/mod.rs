//! Consensus. Only this module names `openraft`: its alphas still change, and nothing of it is on our disks.
//!
//! | file | what lives there |
//! |---|---|
//! | `types.rs` | what a group agrees on |
//! | `runtime.rs`, `watch.rs` | where groups run: on tokio, in a way that a simulation can repeat |
//! | `codec.rs` | our own form of votes, log ids and entries, on disk and between nodes |
//! | `journal.rs` | the logs of all groups of a node in its one log |
//! | `group.rs` | one group on one node: its replica |
//! | `link.rs`, `message.rs` | the way to the other replicas, and what they say to each other |
//! | `machine.rs`, `meta_machine.rs` | the states groups agree on: a partition of the engine; the cluster itself |

pub mod codec;
pub mod group;
pub mod journal;
mod link;
pub mod machine;
pub mod message;
pub mod meta_machine;
pub mod runtime;
pub mod types;
pub mod watch;

pub use group::{Group, NotDone, Pace, State, Status};
pub use journal::{GroupLog, Journal, JournalReader};
pub use machine::{Machine, Mark, SnapshotSource};
pub use meta_machine::{MetaMachine, MetaState};
pub use types::{Answer, Command, Entry, LogId, Membership, NodeId, Types, Vote};

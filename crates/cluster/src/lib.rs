//! Many machines that count as one: every partition a Raft group over the nodes that hold it.
//!
//! | module | what lives there |
//! |---|---|
//! | [`command`] | what a group of a partition is asked to do |
//! | [`raft`] | consensus: what `openraft` is told and asked, and nowhere else |

pub mod command;
pub mod raft;

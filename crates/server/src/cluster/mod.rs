//! A server that is a node of a cluster.
//!
//! | file | what it says |
//! |---|---|
//! | `folder` | what a data folder knows of its cluster: who it is, whom it trusts, whom it asks first |
//! | `member` | the running node: opened, founded or joined, stopped |
//! | `counters` | the cluster as the fronts see it |
//! | `map` | the cluster as clients of the Redis Cluster protocol see it |

mod counters;
pub mod folder;
pub mod map;
mod member;

pub use counters::not_agreed;
pub use member::{Reached, Running};

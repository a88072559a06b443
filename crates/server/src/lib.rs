//! The edges of quipu: settings, the fronts (HTTP and RESP), metrics, the load generator and the command line.
//!
//! | file | what it says |
//! |---|---|
//! | `cli` | the commands of the binary |
//! | `config` | settings and where they come from |
//! | `serve` | `quipu serve`, from the first check to the last flush |
//! | `deployment` | what stands behind the fronts: a data folder, a node of a cluster, or Redis |
//! | `cluster` | a server that is a node of a cluster |
//! | `http` | the JSON API |
//! | `resp` | the Redis protocol |
//! | `clock` | the time of entries, shared by both |
//! | `metrics` | what `/metrics` shows |
//! | `mirror` | counters written behind to PostgreSQL |
//! | `bench` | the load generator |
//! | `drill` | failures on purpose, on a stage of their own |
//! | `open_files` | the limit on connections that the system sets |
//!
//! Deliberately absent: counting rules and storage. A front turns bytes into a
//! [`Batch`](quipu_counting::Batch), hands it to [`Counters`](quipu_counting::Counters) and turns replies into bytes.

pub mod bench;
pub mod cli;
pub mod clock;
pub mod cluster;
pub mod config;
pub mod deployment;
mod drill;
pub mod http;
pub mod metrics;
pub mod mirror;
pub mod open_files;
pub mod resp;
pub mod serve;

//! The port of a cluster's nodes that speaks the Redis Cluster protocol: its replies, and clients that people have.
//!
//! | file | what it drives |
//! |---|---|
//! | `nodes` | three servers that are a cluster |
//! | `replies` | CLUSTER, MOVED and CROSSSLOT, byte for byte |
//! | `clients` | redis-cli, redis-rs; redis-py (`redis_py.py`) and ioredis (`ioredis.cjs`), which find the node of a key by themselves |
#![allow(clippy::unwrap_used)] // a panic here is a failed test

mod clients;
#[allow(dead_code)] // of a server that is alone
#[path = "../clients/host.rs"]
mod host;
#[path = "../clients/installed.rs"]
mod installed;
mod nodes;
mod replies;
#[path = "../resp_support/mod.rs"]
mod resp_support;
#[path = "../support/mod.rs"]
mod support;

/// The interpreter that sees the distribution's Python packages, also where another python3 comes first in PATH.
const SYSTEM_PYTHON: &str = "/usr/bin/python3";

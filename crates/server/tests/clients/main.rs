//! Clients that people already have, unmodified, against the real binary.
//!
//! | file | client | also |
//! |---|---|---|
//! | `redis_py.py` | redis-py, the distribution's and the newest, both protocols | asyncio, threads |
//! | `node/ioredis.cjs`, `node/node_redis.cjs` | ioredis; node-redis, both protocols | |
//! | `redis_rs.rs` | redis-rs | tokio, `ConnectionManager`, `MultiplexedConnection` |
//! | `hiredis.c` | hiredis, in C | |
//! | `redis_cli.rs` | redis-cli | at a terminal, mass insertion, its tools |
//! | `redis_benchmark.rs` | redis-benchmark | |
//!
//! Each library counts, lets counters expire, pipelines, runs transactions, walks, is refused, and goes on after the server
//! was killed and started again. A client that is not installed is a failure; `cargo xtask test` installs the programs, and
//! [`installed`] fetches the libraries at their pinned versions.
#![allow(clippy::unwrap_used)] // a panic here is a failed test

mod host;
mod installed;
mod redis_benchmark;
mod redis_cli;
mod redis_rs;
#[path = "../support/mod.rs"]
mod support;

use host::Host;
use std::process::Command;

/// The interpreter that sees the distribution's Python packages, also where another python3 comes first in PATH.
const SYSTEM_PYTHON: &str = "/usr/bin/python3";

#[test]
fn redis_py_of_the_distribution() {
    let mut python = Command::new(SYSTEM_PYTHON);
    python.arg(installed::source("redis_py.py"));
    Host::start().converse(python, &["distribution"]);
}

#[test]
fn redis_py_newest() {
    let mut python = Command::new(installed::python());
    python.arg(installed::source("redis_py.py"));
    Host::start().converse(python, &["newest"]);
}

#[test]
fn ioredis() {
    Host::start().converse(node("node/ioredis.cjs"), &[]);
}

#[test]
fn node_redis() {
    Host::start().converse(node("node/node_redis.cjs"), &[]);
}

fn node(script: &str) -> Command {
    let mut node = Command::new("node");
    node.arg(installed::source(script)).env("NODE_PATH", installed::node_modules());
    node
}

#[test]
fn hiredis() {
    let program = installed::folder().join("hiredis");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-Wall", "-Werror", "-o"]).arg(&program).arg(installed::source("hiredis.c"));
    host::succeeds(compiler.arg("-lhiredis"));
    Host::start().converse(Command::new(program), &[]);
}

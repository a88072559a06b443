//! What goes wrong on real machines, done to the real binary: full disks, disks that fail, damaged, missing and newer
//! files, folders and ports in use, mistakes on the command line, stopping under load.
//!
//! The same holds for every fault: the server refuses (a request, or to start, with an exit code that is not 0), says
//! what is wrong and what to do next, and nothing that was acknowledged is lost. The [`ledger`] proves the last: it
//! repeats every request id and compares the answers, then the counters, then runs `quipu check`.
#![allow(clippy::unwrap_used)] // a panic here is a failed test

#[path = "../support/mod.rs"]
mod support;

mod disk_full;
mod failing_disk;
mod ledger;
mod old_folder;
mod refused_start;
mod scene;
mod stopping;

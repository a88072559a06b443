//! Seeded worlds: an engine on a simulated machine, clients that ask at random, faults at any operation, and
//! an oracle that knows what must be found afterwards. Nothing here runs on threads or real time; a seed is a
//! world, the same each time.
//!
//! | file | what lives there |
//! |---|---|
//! | `config` | what differs from world to world |
//! | `machine` | disk and cold store that go down together |
//! | `ask`, `workload` | what clients ask |
//! | `oracle` | what must be answered and what may be found after a crash |
//! | `world`, `asking`, `lives` | one world: its steps, its clients, its ends and its new beginnings |
//! | `properties` | what is checked, one property per file |
//! | `kinds` | worlds of uniques, windows and holds, with a model of their own |
//! | `cluster` | worlds of many nodes |
//! | `plant` | bugs planted on purpose, so that the properties are known to notice them |

#![allow(missing_docs)] // Not shipped; names of fields say what there is to say.

pub mod ask;
pub mod asking;
pub mod cluster;
pub mod config;
pub mod kinds;
pub mod lives;
pub mod machine;
pub mod observe;
pub mod oracle;
pub mod plant;
pub mod properties;
pub mod violation;
pub mod workload;
pub mod world;

pub use plant::Plant;
pub use violation::{Invariant, Violation};
pub use world::{Stats, run};

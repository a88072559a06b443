//! One machine's counters as a library: exact, durable, exactly once.
//!
//! ```
//! use quipu_counting::{Action, Add, Batch, Counters};
//! use quipu_engine::{Engine, Options};
//!
//! let folder = tempfile::tempdir()?;
//! let engine = Engine::open(folder.path(), Options::default())?;
//!
//! let mut batch = Batch::default();
//! batch.push(b"likes:post:7", Action::Add(Add::plain(1)));
//! batch.push_with_id(b"stock:shirt", Action::Add(Add { min: 0, ..Add::plain(-1) }), b"order-4711", 0);
//! let offset = engine.run(&mut batch, 1_790_000_000_000)?;
//! engine.settle(offset)?; // now the replies may be shown: no crash can take them back
//!
//! assert_eq!(batch.replies[0].cell.value, 1);
//! assert!(batch.replies[1].refusal.is_some(), "there was no shirt left");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The way of a batch: `engine` (the seam), `execute` (decide and log), `partition` (state of a range of slots) over
//! `table`, `record` and `bodies` (how counters lie in memory), `fetch` on a thread of `pool`, in the order of `queue` (what
//! memory does not have). Behind it: `checkpoint` (to `rows` of the cold store), `recover`, `replaying` and `replay`, `tend` (the
//! chores, on the thread of `keeper`), `ids` and `recent` (remembered requests), `expiries`, `scan`, `list`,
//! `aggregate`, `hot`, `check`, `watching` (what changed), `trail` (who changed it).
//! Partitions that are ordered elsewhere: `replicated`, `snapshot`, `digest`.

mod aggregate;
mod bodies;
mod check;
mod checkpoint;
mod digest;
mod engine;
mod execute;
mod expiries;
mod facts;
mod fetch;
mod folder;
mod hot;
mod ids;
mod keeper;
mod list;
mod options;
mod partition;
mod pool;
mod prefetch;
mod queue;
mod recent;
mod record;
mod recover;
mod replay;
mod replaying;
mod replicated;
mod rows;
mod scan;
mod snapshot;
mod table;
mod tend;
mod trail;
mod watching;

pub use check::{CheckReport, check};
pub use digest::Digest;
pub use engine::Engine;
pub use execute::REQUESTS_PER_BATCH_MAX;
pub use options::{Clock, ID_WINDOW_MS_MIN, MEMORY_BYTES_MIN, OpenError, Options, memory_bytes_min};
pub use replicated::{Found, Replication, Step};
pub use snapshot::SnapshotError;

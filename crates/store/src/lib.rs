//! Durability of opaque records: nothing here knows what a counter is.
//!
//! - [`disk`]: the seam to the file system, and its real form; [`disk_sim`] is the simulated form, which
//!   loses power, tears writes, fills up and fails syncs on demand, repeatably from a seed.
//! - [`log`]: the segmented log with group commit. Every change goes through it.
//! - [`cold`]: the ordered store of cells that left memory.
//!
//! Deliberately absent: async, clocks that decide anything, and the meaning of the bytes.

pub mod cold;
pub mod disk;
pub mod disk_sim;
pub mod log;

pub use disk::{Disk, DiskFile, RealDisk};
pub use disk_sim::SimDisk;
pub use log::{Appender, Durability, LOG_START, Log, LogError, LogOptions, Syncer, Visit, spawn_syncer};

//! The segmented log: records in, offsets out, one sync for many.
//!
//! ```text
//!   append ──> pending buffer ──write_out──> segment file ──sync──> durable
//!             end()                written()               durable()
//! ```
//! An **offset** is a byte position over all segments that ever were; it never goes back. `append` copies a
//! record into the pending buffer and returns the offset where the record ends; [`Log::commit`] returns
//! when the log is durable up to an offset. Whoever comes first writes and syncs for everybody who appended
//! before.
//!
//! | file | what lives there |
//! |---|---|
//! | `segment.rs`, `frame.rs` | the bytes on disk, drawn |
//! | `append.rs`, `pending.rs` | the way in: reservations, the buffer of frames |
//! | `commit.rs` | the way down: write, sync, poison |
//! | `roll.rs`, `pool.rs` | from one segment to the next; files made ready, freed, used again |
//! | `recovery.rs` | the way back: what is there, what is torn, what is damage |
//! | `syncer.rs` | the threads that do it in the background |
//! | `options.rs`, `error.rs` | what can be set; what can go wrong |
//!
//! What holds at every moment:
//! - the header of a segment is written only after everything before it was synced, and synced before any
//!   frame follows it: a valid header proves the segments before it, a valid frame proves its header;
//! - after a failed write or sync nothing succeeds any more (no sync is ever tried twice);
//! - what was accepted into the buffer has room on disk: the reservation comes first.
//!
//! Locks, in the order they are taken: `pool`, `gate`, then `pending`; or `pool`, `io`, then `pending`.
//! Nobody holds `io` while waiting for the gate, so an appender may commit while it lives.

mod append;
mod commit;
mod error;
mod frame;
mod options;
mod pending;
mod pool;
mod recovery;
mod roll;
mod segment;
mod syncer;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{Condvar, Mutex, RwLock};

pub use append::Appender;
pub use error::LogError;
pub use frame::{RECORD_BYTES_MAX, RECORD_OVERHEAD_BYTES_MAX};
pub use options::{Durability, LogOptions, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
pub use recovery::{Recovery, Visit};
pub use syncer::{Syncer, spawn_syncer};

use crate::disk::{Disk, DiskFile};
use commit::Io;
use pending::Pending;
use pool::Pool;
use roll::Active;
use syncer::{Preparation, Waiter};

/// The offset of the first record of all: a log that has begun is durable up to here.
pub const LOG_START: u64 = segment::SEGMENT_HEADER_BYTES as u64;

/// The log of one folder. Shared between threads by reference.
pub struct Log {
    options: LogOptions,
    /// Shared by appenders; exclusive only for the switch from one segment to the next, which is pure memory.
    gate: RwLock<Active>,
    /// Where appends go. Held for a copy, never for I/O.
    pending: Mutex<Pending>,
    /// Whoever holds it writes, for everybody.
    io: Mutex<Io>,
    /// Held for a sync; taken after `io` where both are.
    syncing: Mutex<()>,
    /// Somebody commits; those who come meanwhile wait for `leader_done`.
    has_leader: Mutex<bool>,
    leader_done: Condvar,
    /// Segment files other than the one in `io`. Held while files are made and removed.
    pool: Mutex<Pool>,

    /// End of the last record appended. Changed under `pending`.
    end: AtomicU64,
    /// Where the pending buffer begins. Changed under `pending`.
    pending_start: AtomicU64,
    /// Handed to the file system up to here. Changed under `io`.
    written: AtomicU64,
    /// On disk up to here, whatever happens. Changed under `syncing`.
    durable: AtomicU64,
    /// Bytes that living appenders may still append, at worst.
    reserved: AtomicU64,
    /// The end from which on a roll is due.
    roll_at: AtomicU64,
    /// Syncs of segment files since the start.
    syncs: AtomicU64,

    /// Set before the reason below is read.
    poisoned: AtomicBool,
    poison: OnceLock<Arc<str>>,
    /// There was no space for the next segment when it was last tried.
    full: AtomicBool,
    /// Somebody makes segments ready in the background.
    has_preparer: AtomicBool,

    waiters: Mutex<Vec<Waiter>>,
    waiters_changed: Condvar,
    preparation: Mutex<Preparation>,
    preparation_changed: Condvar,

    recovery: Recovery,
    /// Keeps other processes out for as long as the log lives.
    _lock: Arc<dyn DiskFile>,
}

impl Log {
    /// Opens the log in `dir`, creating both when they are missing.
    ///
    /// Reads all segments from the one that contains offset `from`, in order: [`Visit::Segment`] at the
    /// start of each, [`Visit::Record`] for every record in it, those before `from` included, then [`Visit::End`]. A torn tail is cut off; damage is an
    /// error, never skipped. Everything visited is durable when this returns: replies will reveal it.
    ///
    /// `from` also testifies: all that lies before it was durable once.
    pub fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        options: LogOptions,
        from: u64,
        visit: &mut dyn FnMut(Visit<'_>) -> Result<(), LogError>,
    ) -> Result<Log, LogError> {
        options.check()?;
        disk.create_dir_all(dir).map_err(LogError::io("create", dir))?;
        let lock = recovery::lock(&*disk, dir)?;
        let recovered = recovery::recover(disk, dir, &options, from, visit)?;
        let recovery::Recovered { active, base, end, pool, report } = recovered;
        Ok(Log {
            gate: RwLock::new(Active { number: active.number, base, capacity: active.capacity }),
            pending: Mutex::new(Pending::new(end)),
            syncing: Mutex::new(()),
            has_leader: Mutex::new(false),
            leader_done: Condvar::new(),
            pool: Mutex::new(pool),
            end: AtomicU64::new(end),
            pending_start: AtomicU64::new(end),
            written: AtomicU64::new(end),
            durable: AtomicU64::new(end),
            reserved: AtomicU64::new(0),
            roll_at: AtomicU64::new(roll::threshold(base, active.capacity)),
            syncs: AtomicU64::new(0),
            poisoned: AtomicBool::new(false),
            poison: OnceLock::new(),
            full: AtomicBool::new(false),
            has_preparer: AtomicBool::new(false),
            waiters: Mutex::default(),
            waiters_changed: Condvar::new(),
            preparation: Mutex::default(),
            preparation_changed: Condvar::new(),
            recovery: report,
            io: Mutex::new(Io { segment: active, base, buffer: Vec::new() }),
            options,
            _lock: lock,
        })
    }

    /// Everything before this offset survives whatever happens.
    pub fn durable(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Everything before this offset survives the end of the process, though not of the machine.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// The end of the last record appended.
    pub fn end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// Syncs of segment files since the log was opened: commits divided by this is what one sync serves.
    pub fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    /// What was found when the log was opened.
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }
}

#[cfg(test)]
mod tests;

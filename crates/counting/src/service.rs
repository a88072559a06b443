//! The seam between every front and every deployment.
//!
//! A front (RESP, HTTP, a library user) builds a [`Batch`] and calls [`Counters::execute`]. What runs inline
//! stays inline; what must wait (a counter that lies on disk, another node) comes back as
//! [`Execution::Pending`] and is finished elsewhere.

use crate::aggregate::{Aggregate, Selector};
use crate::audit::{AuditPage, AuditQuery};
use crate::batch::Batch;
use crate::hot::HotKeys;
use crate::listing::{ListPage, Listing};
use crate::policy::{Policies, Policy};
use crate::watching::{Changes, Interest};

/// How a batch went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Execution {
    /// Every reply is in the batch. They may be sent once the log is durable up to `offset`.
    Done {
        /// What the replies reveal is durable when the log is durable up to here.
        offset: u64,
    },
    /// It cannot be answered at once (something must be fetched, or others asked); nothing was changed. Hand the batch to [`Counters::finish`].
    Pending,
}

/// Why the service cannot answer at all. Never remembered under a request id; the caller may retry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unavailable {
    /// The disk is full; nothing was changed.
    #[error("the disk is full: {0}; nothing was changed, free some space and retry")]
    Full(String),
    /// A write or sync of the log failed. What was acknowledged is safe; this request's outcome is unknown until a
    /// restart has read the log.
    #[error("the data folder failed: {0}; outcome unknown, retry with the same request id")]
    Failed(String),
    /// It may be done or not, and has no request id under which that could be learned.
    #[error("{0}: outcome unknown, look before you ask for it again")]
    Unknown(String),
    /// What the request needs lies on disk and cannot be read, or could not be written out to make room; nothing was
    /// changed.
    #[error("the data folder cannot be used: {0}; nothing was changed, retry later")]
    Unreadable(String),
    /// More work than can be queued.
    #[error("overloaded, nothing was changed: {0}; retry later")]
    Busy(String),
    /// Others have to be asked, and nobody leads them.
    #[error("{0}; nothing was changed, retry")]
    NoLeader(String),
    /// The node that was asked was removed from its cluster.
    #[error("{0}; nothing was changed, ask another node")]
    NotMember(String),
    /// The request asks for something that is too large or that this deployment does not do.
    #[error("{0}")]
    Unsupported(String),
}

/// Called once with the batch and the offset its replies reveal.
pub type Finished = Box<dyn FnOnce(Batch, Result<u64, Unavailable>) + Send>;

/// One page of a scan over all keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanPage {
    /// Keys of this page; a key may come more than once over a whole scan.
    pub keys: Vec<Vec<u8>>,
    /// Where to go on; 0 when the scan is complete.
    pub cursor: u64,
}

/// What every deployment offers.
pub trait Counters: Send + Sync {
    /// Runs the batch if everything it needs is at hand.
    fn execute(&self, batch: &mut Batch, now_ms: u64) -> Result<Execution, Unavailable>;

    /// Finishes a batch that was [`Execution::Pending`], on another thread.
    fn finish(&self, batch: Batch, now_ms: u64, finished: Finished);

    /// Makes sure that everything up to `offset` may be revealed, as the durability mode demands. Blocks.
    fn settle(&self, offset: u64) -> Result<(), Unavailable>;

    /// Whether everything up to `offset` may be revealed already. A deployment that cannot tell says no.
    fn is_settled(&self, _offset: u64) -> bool {
        false
    }

    /// The same as [`settle`](Counters::settle) without waiting for a sync: calls back, at once where none is to be
    /// waited for.
    fn when_settled(&self, offset: u64, settled: Box<dyn FnOnce(Result<(), Unavailable>) + Send>);

    /// All policies. Blocks.
    fn policies(&self) -> Result<Policies, Unavailable>;

    /// Stores or removes a policy; durable and in force when it returns. Returns whether one was there before.
    /// Blocks.
    fn set_policy(&self, pattern: &[u8], policy: Option<Policy>, now_ms: u64) -> Result<bool, Unavailable>;

    /// Walks over all keys: about `count` keys a call, starting with cursor 0. A key that exists during the
    /// whole walk is returned at least once. Blocks.
    fn scan(&self, cursor: u64, count: usize, now_ms: u64) -> Result<ScanPage, Unavailable>;

    /// One page of a list of counters. In the orders of storage and of keys a counter that exists while all pages
    /// are fetched is on exactly one of them, whatever is written meanwhile. Blocks.
    fn list(&self, listing: &Listing, now_ms: u64) -> Result<ListPage, Unavailable>;

    /// The totals of all counters that a pattern selects (see [`crate::policy`]), or of a part of each. Blocks.
    fn aggregate(&self, selector: &Selector, now_ms: u64) -> Result<Aggregate, Unavailable>;

    /// Whether who need not see the newest (READONLY) is answered at times when others are not.
    fn has_older(&self) -> bool {
        false
    }

    /// Whether some policy has a trail kept: then batches should say who asks.
    fn audits(&self) -> bool {
        false
    }

    /// One page of the trail of a counter. Blocks.
    fn audit(&self, _query: &AuditQuery, _now_ms: u64) -> Result<AuditPage, Unavailable> {
        Err(Unavailable::Unsupported("no trail is kept here".into()))
    }

    /// One of the keys, or none if there are none. `draw` is a random number that chooses; how likely each key is, is the
    /// deployment's business. Blocks.
    fn random_key(&self, draw: u64, now_ms: u64) -> Result<Option<Vec<u8>>, Unavailable>;

    /// From now on changes of these counters are noted, and of no others: for [`changes`](Counters::changes). Calls back once
    /// that is so, at once where nobody else has to be told. There is one who watches; who watches nothing costs nothing.
    fn watch(&self, _interest: Interest, watched: Box<dyn FnOnce() + Send>) {
        watched();
    }

    /// What became of watched counters since the last call. A read that begins now shows all of it.
    fn changes(&self) -> Changes {
        Changes::default()
    }
    /// The keys that were asked for most in the last seconds, so many of them, up to [`crate::hot::HOT_KEYS_MAX`]. Blocks.
    fn hot(&self, n: usize, now_ms: u64) -> Result<HotKeys, Unavailable>;

    /// Facts about the running service, by name, for INFO and /metrics.
    fn facts(&self) -> Vec<(&'static str, u64)>;
}

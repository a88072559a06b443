//! How much HTTP may take on at a time, and how much it has.
//!
//! Four things are bounded beside connections: requests in flight, the bytes of large bodies (of requests being read
//! and of replies being sent), walks over many counters, and clients that watch. What is above a bound is told to come again, before any
//! work is done for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use quipu_wire::json::problem::Problem;
use quipu_wire::json::request::BATCH_ITEMS_MAX;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::answer::Refused;

/// What may be set.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Connections at a time.
    pub connections_max: usize,
    /// Requests in flight at a time, over all connections.
    pub in_flight_max: usize,
    /// Bytes of large bodies held at a time.
    pub body_memory_bytes: usize,
    /// Bytes of one body, also after it was unpacked.
    pub body_bytes_max: usize,
    /// Bytes of the head of a request.
    pub head_bytes_max: usize,
    /// Items of one batch.
    pub batch_items_max: usize,
    /// How long the head of a request may take.
    pub head_timeout: Duration,
    /// How long the body of a request may take.
    pub body_timeout: Duration,
    /// How long a connection may be idle between two requests.
    pub idle_timeout: Duration,
    /// How long the other end may take nothing of a reply.
    pub write_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections_max: 10_000,
            in_flight_max: 4_096,
            body_memory_bytes: 64 << 20,
            body_bytes_max: 1 << 20,
            head_bytes_max: 32 << 10,
            batch_items_max: BATCH_ITEMS_MAX,
            head_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(20),
            idle_timeout: Duration::from_secs(60),
            write_timeout: Duration::from_secs(20),
        }
    }
}

/// Bodies below this take no room: the bounds on requests and connections bound them too.
const SMALL_BODY_BYTES: usize = 16 << 10;
/// Walks at the same time. A walk reads memory and disk for as long as they last; more of them take from everybody
/// else and make none faster.
const WALKS_MAX: usize = 2;
/// How long a walk waits for its turn.
const TURN_TIMEOUT: Duration = Duration::from_secs(5);

/// How much there is at the moment.
pub struct Load {
    /// What was set.
    pub limits: Limits,
    in_flight: AtomicUsize,
    /// In units of [`SMALL_BODY_BYTES`], because a semaphore counts to 2^32 only.
    room: Arc<Semaphore>,
    walks: Arc<Semaphore>,
    /// Open connections.
    pub connections: AtomicUsize,
    /// Connections turned away.
    pub connections_rejected: AtomicU64,
    /// Requests told to come again.
    pub shed: AtomicU64,
    watching: AtomicUsize,
}

/// A client that watches, until dropped.
pub struct Watching(Arc<Load>);

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.watching.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request in flight, until dropped.
pub struct InFlight<'a>(&'a Load);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Room for a large body, until dropped. Nothing for a small one.
#[derive(Debug, Default)]
pub struct Room {
    permit: Option<OwnedSemaphorePermit>,
}

impl Room {
    /// Whether it is that of a small body.
    pub fn is_empty(&self) -> bool {
        self.permit.is_none()
    }
}

impl Load {
    /// Nothing so far.
    pub fn new(limits: Limits) -> Load {
        Load {
            in_flight: AtomicUsize::new(0),
            room: Arc::new(Semaphore::new(limits.body_memory_bytes / SMALL_BODY_BYTES)),
            walks: Arc::new(Semaphore::new(WALKS_MAX)),
            connections: AtomicUsize::new(0),
            connections_rejected: AtomicU64::new(0),
            shed: AtomicU64::new(0),
            watching: AtomicUsize::new(0),
            limits,
        }
    }

    /// How many requests are in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Admits a request, if there is room for it.
    pub fn enter(&self) -> Option<InFlight<'_>> {
        let before = self.in_flight.fetch_add(1, Ordering::Relaxed);
        let entered = InFlight(self);
        (before < self.limits.in_flight_max).then_some(entered)
    }

    /// How many clients watch.
    pub fn watching(&self) -> usize {
        self.watching.load(Ordering::Relaxed)
    }

    /// Admits a client that stays for as long as it likes: half of the connections at most, so that others are served too.
    pub fn watch(self: &Arc<Load>) -> Result<Watching, Refused> {
        let before = self.watching.fetch_add(1, Ordering::Relaxed);
        let watching = Watching(Arc::clone(self));
        if before >= self.limits.connections_max.div_ceil(2) {
            return Err(self.busy("too many clients watch counters; retry later"));
        }
        Ok(watching)
    }

    /// Room for a body of so many bytes.
    pub fn reserve(&self, bytes: usize) -> Result<Room, Refused> {
        if bytes <= SMALL_BODY_BYTES {
            return Ok(Room::default());
        }
        let units = u32::try_from(bytes.div_ceil(SMALL_BODY_BYTES)).unwrap_or(u32::MAX);
        match Arc::clone(&self.room).try_acquire_many_owned(units) {
            Ok(permit) => Ok(Room { permit: Some(permit) }),
            Err(_) => {
                Err(self.busy("too many large bodies are in flight; retry later, or send smaller batches"))
            }
        }
    }

    /// The turn to walk over many counters.
    pub async fn walk(&self) -> Result<OwnedSemaphorePermit, Refused> {
        match tokio::time::timeout(TURN_TIMEOUT, Arc::clone(&self.walks).acquire_owned()).await {
            Ok(Ok(turn)) => Ok(turn),
            _ => Err(self.busy("too many lists of counters are being made; retry later")),
        }
    }

    /// Counts a request that is told to come again.
    pub fn busy(&self, detail: &str) -> Refused {
        self.shed.fetch_add(1, Ordering::Relaxed);
        Problem::new(503, "busy", detail).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_above_a_bound_is_refused_until_room_is_given_back() {
        let limits = Limits { in_flight_max: 1, body_memory_bytes: 64 << 10, ..Limits::default() };
        let load = Load::new(limits);
        let first = load.enter();
        assert!(first.is_some() && load.enter().is_none());
        assert_eq!(load.in_flight(), 1);
        drop(first);
        assert!(load.enter().is_some());

        let room = load.reserve(40 << 10).unwrap();
        assert!(load.reserve(40 << 10).is_err() && load.reserve(10).is_ok());
        drop(room);
        assert!(load.reserve(40 << 10).is_ok() && load.reserve(usize::MAX).is_err());
        assert_eq!(load.shed.load(Ordering::Relaxed), 2);

        let load = Arc::new(Load::new(Limits { connections_max: 3, ..Limits::default() }));
        let (first, second) = (load.watch(), load.watch());
        assert!(first.is_ok() && second.is_ok() && load.watch().is_err());
        drop(first);
        assert_eq!(load.watching(), 1);
        assert!(load.watch().is_ok());
    }
}

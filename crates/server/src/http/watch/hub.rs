//! Where changes of watched counters come together, once for all clients.
//!
//! One task, which exists while somebody watches, goes round: it takes what the deployment has noted (`Counters::changes`), reads
//! those counters like any client would, and tells the topics. A read waits until what it reveals is durable, so nobody is
//! shown what a crash can take back; and it shows the newest, so what changes often costs one read a round.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use futures_util::future::join_all;
use parking_lot::Mutex;
use quipu_counting::slot::{SLOTS, slot};
use quipu_counting::{Action, Batch, Changes, Counters, Interest, Reply};
use quipu_wire::json::problem::Problem;
use quipu_wire::json::reply::CounterBody;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;

use super::topics::{Change, Event, Full, Selection, Topics};
use crate::clock::Clock;
use crate::http::answer::Refused;
use crate::http::execute::run_on;

/// Between two rounds at least.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// And at most, however much there was to read.
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// What every counter that was read adds to the pause: reading for those who watch takes a small part of a core.
const PAUSE_PER_READ: Duration = Duration::from_micros(10);
/// Before trying again what did not succeed.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(100);
/// Counters read at once: no longer than a usual batch of a client, so that nobody waits for it.
const READS_PER_BATCH: usize = 256;
/// Counters of so many slots are read together: of a partition, by default.
const GROUP_SLOTS: u16 = SLOTS / 16;
/// How long a read may take before it is tried again in the next round.
const READ_MAX: Duration = Duration::from_secs(2);
/// Counters that wait to be read. With more of them, while reads fail, whoever watches a prefix begins anew.
const PENDING_MAX: usize = 65_536;

/// See the head of this file.
pub struct Hub {
    counters: Arc<dyn Counters>,
    clock: Arc<Clock>,
    /// Names this run of the server: numbers of events mean nothing in another.
    run: u64,
    state: Mutex<State>,
    /// Somebody new is there.
    nudge: Notify,
    rounds: watch::Sender<Rounds>,
    closing: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    topics: Topics,
    is_running: bool,
}

/// How many rounds have begun, and how many are over.
#[derive(Clone, Copy, Default)]
struct Rounds {
    begun: u64,
    over: u64,
}

/// What is to be read.
#[derive(Default)]
struct Pending {
    cleared: bool,
    /// Counters that may have changed.
    keys: BTreeSet<Vec<u8>>,
    /// Counters watched by name of which it is not known, or not for certain, what they are.
    unknown: BTreeSet<Vec<u8>>,
}

impl Hub {
    /// For the counters of this deployment.
    pub fn new(counters: Arc<dyn Counters>, clock: Arc<Clock>) -> Arc<Hub> {
        Arc::new(Hub {
            counters,
            clock,
            run: SmallRng::from_os_rng().random(),
            state: Mutex::default(),
            nudge: Notify::new(),
            rounds: watch::Sender::new(Rounds::default()),
            closing: watch::Sender::new(false),
        })
    }

    /// From now on nobody hears anything: the server stops.
    pub fn close(&self) {
        self.closing.send_replace(true);
        self.nudge.notify_one();
    }

    /// Waits until the server stops.
    pub async fn closed(&self) {
        // The sender lives as long as this.
        let _ = self.closing.subscribe().wait_for(|is_closing| *is_closing).await;
    }

    /// The name of an event, by which a client says what it has heard.
    pub fn event_id(&self, number: u64) -> String {
        format!("{:016x}-{number}", self.run)
    }

    /// The number of an event of this run.
    pub fn event_number(&self, id: &str) -> Option<u64> {
        let (run, number) = id.split_once('-')?;
        let is_ours = u64::from_str_radix(run, 16).is_ok_and(|run| run == self.run);
        is_ours.then(|| number.parse().ok()).flatten()
    }

    /// One more who watches.
    pub fn subscribe(self: &Arc<Hub>, selection: Selection) -> Result<Subscription, Full> {
        let wake = Arc::new(Notify::new());
        let mut state = self.state.lock();
        let watcher = state.topics.subscribe(&selection, &wake, Instant::now())?;
        if !std::mem::replace(&mut state.is_running, true) {
            tokio::spawn(Arc::clone(self).go_round());
        }
        drop(state);
        self.nudge.notify_one();
        Ok(Subscription { hub: Arc::clone(self), watcher, selection, wake })
    }

    async fn go_round(self: Arc<Hub>) {
        let mut pending = Pending::default();
        loop {
            if self.is_over() {
                return;
            }
            self.rounds.send_modify(|rounds| rounds.begun += 1);
            self.learn_interest(&mut pending).await;
            self.take(self.counters.changes(), &mut pending);
            let pause = match self.tell(&mut pending).await {
                Ok(reads) => (PAUSE_MIN + PAUSE_PER_READ * reads as u32).min(PAUSE_MAX),
                Err(refused) => {
                    tracing::debug!(?refused, "watched counters were not read");
                    PAUSE_AFTER_FAILURE
                }
            };
            self.rounds.send_modify(|rounds| rounds.over = rounds.begun);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.nudge.notified() => {}
            }
        }
    }

    /// Whether nobody watches, or the server stops.
    fn is_over(&self) -> bool {
        let mut state = self.state.lock();
        state.topics.forget_lingering(Instant::now());
        state.is_running = !state.topics.is_empty() && !*self.closing.borrow();
        if !state.is_running {
            // Before anybody else can come and watch something.
            self.counters.watch(Interest::default(), Box::new(|| {}));
        }
        !state.is_running
    }

    /// Has the changes noted that somebody new wants to hear of.
    async fn learn_interest(&self, pending: &mut Pending) {
        let Some(interest) = self.state.lock().topics.take_interest() else { return };
        let (tell, told) = oneshot::channel();
        let watched = move || {
            let _ = tell.send(());
        };
        self.counters.watch(interest.clone(), Box::new(watched));
        // A deployment that forgets to call back is being torn down.
        let _ = told.await;
        pending.unknown.extend(self.state.lock().topics.are_noted(&interest));
    }

    fn take(&self, changes: Changes, pending: &mut Pending) {
        let mut state = self.state.lock();
        if changes.cleared {
            pending.cleared = true;
            // Those that came back are among what changed after.
            pending.keys.clear();
        }
        pending.keys.extend(changes.keys.into_iter().filter(|key| state.topics.wants(key)));
        if changes.lost || pending.keys.len() > PENDING_MAX {
            state.topics.lose();
            pending.keys.clear();
            // Everybody begins anew, and must not hear afterwards that what is there now is gone.
            pending.cleared = false;
            pending.unknown = state.topics.keys().map(|key| key.to_vec()).collect();
        }
    }

    /// Reads what is pending and tells the topics. Returns how much was read; the rest stays pending.
    async fn tell(&self, pending: &mut Pending) -> Result<usize, Refused> {
        if pending.cleared {
            // Reveals the newest of every partition.
            let mut batch = Batch::default();
            batch.push(b"", Action::Count);
            let counted = self.read(batch).await?;
            if counted.iter().any(|reply| reply.refusal.is_some()) {
                return Err(too_late());
            }
            self.state.lock().topics.clear(|key| to_json(key, &Reply::state(None), 0));
            pending.cleared = false;
        }
        let mut groups: BTreeMap<u16, Vec<Vec<u8>>> = BTreeMap::new();
        for key in pending.keys.union(&pending.unknown) {
            groups.entry(slot(key) / GROUP_SLOTS).or_default().push(key.clone());
        }
        // Each for itself: one that nobody leads at the moment, or that lies on a slow disk, must not hold up the others.
        let chunks = groups.values().flat_map(|keys| keys.chunks(READS_PER_BATCH));
        let told = join_all(chunks.map(|keys| self.tell_some(keys, &pending.keys))).await;
        let (mut reads, mut failed) = (0, None);
        for told in told {
            match told {
                Ok(keys) => {
                    reads += keys.len();
                    for key in keys {
                        pending.keys.remove(&key);
                        pending.unknown.remove(&key);
                    }
                }
                Err(refused) => failed = Some(refused),
            }
        }
        failed.map_or(Ok(reads), Err)
    }

    /// Reads some counters and tells the topics. Returns those that were read.
    async fn tell_some(
        &self,
        keys: &[Vec<u8>],
        changed: &BTreeSet<Vec<u8>>,
    ) -> Result<Vec<Vec<u8>>, Refused> {
        let mut batch = Batch::with_room(keys.len());
        for key in keys {
            batch.push(key, Action::Read);
        }
        let replies = self.read(batch).await?;
        let now_ms = self.clock.now_ms();
        let mut state = self.state.lock();
        let read = keys.iter().zip(&replies).filter(|(_, reply)| reply.refusal.is_none());
        let told = read.map(|(key, reply)| {
            let cell = reply.exists.then_some(reply.cell);
            match changed.contains(key) {
                true => state.topics.publish(key, cell, || to_json(key, reply, now_ms)),
                false => state.topics.learn(key, cell, || to_json(key, reply, now_ms)),
            }
            key.clone()
        });
        Ok(told.collect())
    }

    /// What a batch is answered, once it may be shown.
    async fn read(&self, batch: Batch) -> Result<Vec<Reply>, Refused> {
        let reading = run_on(&*self.counters, self.clock.now_ms(), batch);
        match tokio::time::timeout(READ_MAX, reading).await {
            Ok(batch) => Ok(batch?.replies),
            Err(_) => Err(too_late()),
        }
    }

    fn topics<T>(&self, look: impl FnOnce(&Topics) -> T) -> T {
        look(&self.state.lock().topics)
    }

    /// The number of the newest event.
    pub fn number(&self) -> u64 {
        self.topics(Topics::number)
    }

    /// Waits for the end of the round that is under way: what is told from then on was read later than this was called.
    pub async fn round_over(&self) {
        let mut rounds = self.rounds.subscribe();
        let begun = rounds.borrow().begun;
        let _ = rounds.wait_for(|rounds| rounds.over >= begun).await;
    }
}

fn too_late() -> Refused {
    Problem::new(503, "busy", "what is watched was not read in time").into()
}

/// A counter as who reads it at this time sees it.
pub fn to_json(key: &[u8], reply: &Reply, now_ms: u64) -> Bytes {
    body_to_json(&CounterBody::of_read(key, reply, now_ms))
}

/// A struct of text and numbers: there is nothing in it that JSON cannot say.
pub fn body_to_json(body: &CounterBody) -> Bytes {
    serde_json::to_vec(body).unwrap_or_default().into()
}

/// One who watches, until dropped.
pub struct Subscription {
    hub: Arc<Hub>,
    watcher: u64,
    selection: Selection,
    wake: Arc<Notify>,
}

impl Subscription {
    /// Whom it belongs to.
    pub fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    /// What is watched.
    pub fn selection(&self) -> &Selection {
        &self.selection
    }

    /// Waits until there may be something new. What was new before the call counts, too.
    pub async fn news(&self) {
        self.wake.notified().await;
    }

    /// Whether changes of everything are noted, and the counters watched by name are known.
    pub fn is_known(&self) -> bool {
        self.hub.topics(|topics| topics.is_known(&self.selection))
    }

    /// Whether everything that happened after an event is known.
    pub fn covers(&self, since: u64) -> bool {
        self.hub.topics(|topics| topics.covers(&self.selection, since))
    }

    /// See [`Topics::events`].
    pub fn events(&self, since: u64, until: u64, most: usize) -> Option<Vec<(u64, Event)>> {
        self.hub.topics(|topics| topics.events(&self.selection, since, until, most))
    }

    /// Counters watched by name as they are, and the newest event.
    pub fn known_now(&self) -> (u64, Vec<Arc<Change>>) {
        self.hub.topics(|topics| (topics.number(), topics.known(&self.selection, topics.number())))
    }

    /// Counters watched by name as they were after this event, as far as they have not changed since.
    pub fn known(&self, at: u64) -> Vec<Arc<Change>> {
        self.hub.topics(|topics| topics.known(&self.selection, at))
    }

    /// Those of these keys of which there is an event after that one.
    pub fn changed<'a>(&self, keys: impl Iterator<Item = &'a [u8]>, since: u64) -> HashSet<Vec<u8>> {
        let has_changed = |topics: &Topics, key: &[u8]| topics.has_changed(&self.selection, key, since);
        self.hub.topics(|topics| keys.filter(|key| has_changed(topics, key)).map(<[u8]>::to_vec).collect())
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.hub.state.lock().topics.unsubscribe(self.watcher, &self.selection, Instant::now());
    }
}

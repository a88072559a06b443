//! Where changes of watched counters come together, once for all clients.
//!
//! One task, which exists while somebody watches, goes round: it takes what the deployment has noted (`Counters::changes`), reads
//! those counters like any client would, and tells the topics. A read waits until what it reveals is durable, so nobody is
//! shown what a crash can take back; and it shows the newest, so what changes often costs one read a round. A read that takes its time, because
//! nobody leads a partition or a disk is slow, goes on beside the rounds: others do not wait for it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use parking_lot::Mutex;
use quipu_counting::slot::{SLOTS, slot};
use quipu_counting::{Action, Batch, Changes, Counters, Interest, Reply};
use quipu_wire::json::problem::Problem;
use quipu_wire::json::reply::CounterBody;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::{JoinError, JoinSet};
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
/// How long a round waits for its reads; what takes longer comes with a later one.
const ROUND_MAX: Duration = Duration::from_millis(100);
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

/// Counters that are being read together: all of some slots, and of these nobody reads others meanwhile.
struct Reading {
    /// Which slots.
    group: u16,
    /// Since which round.
    round: u64,
    /// Each, and whether it may have changed.
    keys: Vec<(Vec<u8>, bool)>,
}

/// The slots of a read that is over, and what came of it.
type Done = (u16, Result<Vec<Reply>, Refused>);

/// Reads under way, and what became of those that are over.
#[derive(Default)]
struct Reads {
    tasks: JoinSet<Done>,
    by_group: BTreeMap<u16, Reading>,
}

impl Reads {
    /// The last round of which nothing is read any more.
    fn over(&self, begun: u64) -> u64 {
        self.by_group.values().map(|reading| reading.round - 1).min().unwrap_or(begun)
    }

    /// The next that is over: any that is so already, and those of this round for as long as there is time.
    async fn next(&mut self, round: u64, until: Instant) -> Option<Result<Done, JoinError>> {
        if let Some(done) = self.tasks.try_join_next() {
            return Some(done);
        }
        match self.by_group.values().any(|reading| reading.round == round) {
            true => tokio::time::timeout_at(until, self.tasks.join_next()).await.ok().flatten(),
            false => None,
        }
    }

    /// What is read is not wanted any more, or not as it was.
    fn give_up(&mut self, pending: &mut Pending) {
        self.tasks = JoinSet::new();
        std::mem::take(&mut self.by_group).into_values().for_each(|reading| pending.take_back(reading));
    }
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

impl Pending {
    /// Some of what is to be read, of slots of which nothing is read yet.
    fn next(&mut self, reads: &Reads, round: u64) -> Vec<Reading> {
        let mut groups: BTreeMap<u16, Vec<Vec<u8>>> = BTreeMap::new();
        for key in self.keys.union(&self.unknown) {
            let keys = groups.entry(slot(key) / GROUP_SLOTS).or_default();
            if keys.len() < READS_PER_BATCH {
                keys.push(key.clone());
            }
        }
        groups.retain(|group, _| !reads.by_group.contains_key(group));
        let reading = |(group, keys): (u16, Vec<Vec<u8>>)| {
            let keys = keys.into_iter().map(|key| {
                self.unknown.remove(&key);
                let has_changed = self.keys.remove(&key);
                (key, has_changed)
            });
            Reading { group, round, keys: keys.collect() }
        };
        groups.into_iter().map(reading).collect()
    }

    /// What was not read is to be read again.
    fn take_back(&mut self, reading: Reading) {
        for (key, has_changed) in reading.keys {
            let into = if has_changed { &mut self.keys } else { &mut self.unknown };
            into.insert(key);
        }
    }
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
        let (mut pending, mut reads) = (Pending::default(), Reads::default());
        loop {
            if self.is_over() {
                return;
            }
            self.rounds.send_modify(|rounds| rounds.begun += 1);
            self.learn_interest(&mut pending).await;
            self.take(self.counters.changes(), &mut pending);
            let pause = match self.tell(&mut pending, &mut reads).await {
                Ok(count) => (PAUSE_MIN + PAUSE_PER_READ * count as u32).min(PAUSE_MAX),
                Err(refused) => {
                    tracing::debug!(?refused, "watched counters were not read");
                    PAUSE_AFTER_FAILURE
                }
            };
            self.rounds.send_modify(|rounds| rounds.over = reads.over(rounds.begun));
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
            pending.unknown = state.topics.keys().map(|key| key.to_vec()).collect();
        }
    }

    /// Reads what is pending and tells the topics what was read in time. Returns how much that was.
    async fn tell(self: &Arc<Hub>, pending: &mut Pending, reads: &mut Reads) -> Result<usize, Refused> {
        if pending.cleared {
            // What was read before must not be told after.
            reads.give_up(pending);
            self.tell_cleared().await?;
            pending.cleared = false;
        }
        let round = self.rounds.borrow().begun;
        // Each for itself: one that nobody leads at the moment, or that lies on a slow disk, must not hold up the others.
        for reading in pending.next(reads, round) {
            let mut batch = Batch::with_room(reading.keys.len());
            reading.keys.iter().for_each(|(key, _)| {
                batch.push(key, Action::Read);
            });
            let (hub, group) = (Arc::clone(self), reading.group);
            reads.tasks.spawn(async move { (group, hub.read(batch).await) });
            reads.by_group.insert(group, reading);
        }
        let (until, mut count, mut failed) = (Instant::now() + ROUND_MAX, 0, None);
        while let Some(done) = reads.next(round, until).await {
            let Ok((group, replies)) = done else {
                reads.give_up(pending);
                break;
            };
            let Some(reading) = reads.by_group.remove(&group) else { continue };
            match replies {
                Ok(replies) => count += self.tell_some(reading, &replies, pending),
                Err(refused) => {
                    pending.take_back(reading);
                    failed = Some(refused);
                }
            }
        }
        failed.map_or(Ok(count), Err)
    }

    async fn tell_cleared(&self) -> Result<(), Refused> {
        // Reveals the newest of every partition.
        let mut batch = Batch::default();
        batch.push(b"", Action::Count);
        let counted = self.read(batch).await?;
        if counted.iter().any(|reply| reply.refusal.is_some()) {
            return Err(too_late());
        }
        self.state.lock().topics.clear(|key| to_json(key, &Reply::state(None), 0));
        Ok(())
    }

    /// Tells the topics what was read, and how much that was; what was refused is to be read again.
    fn tell_some(&self, reading: Reading, replies: &[Reply], pending: &mut Pending) -> usize {
        let Reading { group, round, keys } = reading;
        let now_ms = self.clock.now_ms();
        let (mut told, mut refused) = (0, Vec::new());
        let mut state = self.state.lock();
        for ((key, has_changed), reply) in keys.into_iter().zip(replies) {
            if reply.refusal.is_some() {
                refused.push((key, has_changed));
                continue;
            }
            let cell = reply.exists.then_some(reply.cell);
            match has_changed {
                true => state.topics.publish(&key, cell, || to_json(&key, reply, now_ms)),
                false => state.topics.learn(&key, cell, || to_json(&key, reply, now_ms)),
            }
            told += 1;
        }
        pending.take_back(Reading { group, round, keys: refused });
        told
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
    // A struct of text and numbers: there is nothing in it that JSON cannot say.
    serde_json::to_vec(&CounterBody::of_read(key, reply, now_ms)).unwrap_or_default().into()
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

//! Counters in rows of PostgreSQL, for keys whose policy says `"consistency": "strong"`: slower than Redis, and as durable as PostgreSQL.
//!
//! | file | what lives there |
//! |---|---|
//! | here | the rounds: what is gathered, done as one transaction, and asked again |
//! | `held` | counters and ids whose rows are locked, decided by `quipu_counting` |
//! | `rows` | the tables, and how they are read and written |
//! | `walk` | all of them, for lists, sums and scans |
//!
//! A transaction locks the rows of all counters that it may change, in the order of their keys, reads what is remembered of the
//! requests' ids, has `quipu_counting` decide, and writes counters and ids. However many nodes there are, what is decided is decided on what
//! is there, so no bound is crossed; and a change and its id are kept or lost together.
//!
//! What comes while a transaction is under way travels with the next one. Keys are spread over some connections, always the same for a
//! key, so that requests for one counter meet in one transaction instead of waiting for each other's locks.

mod held;
mod rows;
mod walk;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use quipu_counting::{Policies, Refusal, Reply, Unavailable};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_postgres::Client;

use crate::archive::Archive;
use crate::breaker::Breaker;
use crate::external::Options;
use crate::retry::full_jitter;
use crate::units::{Answer, Unit};

use self::held::Held;
use self::rows::Session;

/// Connections of a node: some transactions at once, far fewer than PostgreSQL allows to all nodes together.
const WAYS: usize = 4;
/// The most requests of one transaction.
const REQUESTS_MAX: usize = 500;
/// How long a transaction may take, with all the locks that it waits for.
const TRANSACTION_MAX: Duration = Duration::from_secs(5);
/// How often ids that are over are forgotten, and how many at once.
const PURGE_EVERY: Duration = Duration::from_secs(60);

/// Counters in rows.
pub(crate) struct Strong {
    archive: Arc<Archive>,
    options: Options,
    /// Those that came with the newest request.
    policies: RwLock<Arc<Policies>>,
    ways: Vec<Way>,
    /// Entry times do not go back.
    time_ms: AtomicU64,
    chance: Mutex<SmallRng>,
    tasks: Mutex<Vec<AbortHandle>>,
    /// The connection of walks.
    walker: tokio::sync::Mutex<Option<Client>>,
    transactions: AtomicU64,
    failures: AtomicU64,
}

/// One connection, and what waits for it.
struct Way {
    waiting: Mutex<VecDeque<Unit>>,
    come: Notify,
    breaker: Mutex<Breaker>,
}

/// Why a transaction did not succeed.
enum Failed {
    /// It was not committed: everything may be asked again.
    NotDone(String),
    /// Nobody knows.
    Unknown(String),
    /// PostgreSQL says no, and will say so again.
    Refused(Unavailable),
}

impl Strong {
    /// Begins. Whoever asks first has it connect, so PostgreSQL may come later. Called within the runtime.
    pub(crate) fn start(archive: Arc<Archive>, options: &Options) -> Arc<Strong> {
        let way = || Way {
            waiting: Mutex::default(),
            come: Notify::new(),
            breaker: Mutex::new(Breaker::new(options.breaker)),
        };
        let strong = Arc::new(Strong {
            archive,
            options: options.clone(),
            policies: RwLock::default(),
            ways: (0..WAYS).map(|_| way()).collect(),
            time_ms: AtomicU64::new(0),
            chance: Mutex::new(SmallRng::from_os_rng()),
            tasks: Mutex::default(),
            walker: tokio::sync::Mutex::default(),
            transactions: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        });
        let tasks = (0..WAYS).map(|number| {
            let weak = Arc::downgrade(&strong);
            let task = tokio::spawn(async move {
                let mut session = None;
                loop {
                    let Some(strong) = weak.upgrade() else { return };
                    if !strong.round(number, &mut session).await {
                        // Somebody who comes now has left a permit behind.
                        let idle = timeout(PURGE_EVERY, strong.ways[number].come.notified()).await.is_err();
                        if idle && number == 0 {
                            strong.purge(&mut session).await;
                        }
                    }
                }
            });
            task.abort_handle()
        });
        *strong.tasks.lock() = tasks.collect();
        strong
    }

    /// How it goes.
    pub(crate) fn facts(&self) -> Vec<(&'static str, u64)> {
        let read = |fact: &AtomicU64| fact.load(Ordering::Relaxed);
        vec![("strong_transactions", read(&self.transactions)), ("strong_failures", read(&self.failures))]
    }

    /// How many counters there are of a pattern.
    pub(crate) async fn count(&self, pattern: &[u8]) -> Result<u64, Unavailable> {
        rows::count(&self.archive, pattern, self.time_ms.load(Ordering::Relaxed)).await
    }

    /// Ends all rounds. Who waits hears that nothing was done.
    pub(crate) fn stop(&self) {
        self.tasks.lock().drain(..).for_each(|task| task.abort());
        for way in &self.ways {
            let waiting: Vec<Unit> = way.waiting.lock().drain(..).collect();
            waiting.into_iter().for_each(|unit| give_up(unit, Refusal::NoLeader));
        }
    }

    /// Takes these on.
    pub(crate) fn add(&self, units: Vec<Unit>, policies: Arc<Policies>) {
        *self.policies.write() = policies;
        self.put(units);
    }

    fn put(&self, units: Vec<Unit>) {
        for unit in units {
            let way = &self.ways[usize::from(unit.group) % WAYS];
            let mut waiting = way.waiting.lock();
            if waiting.len() >= self.options.queue / WAYS && unit.attempts == 0 {
                let why = format!("{} requests wait for PostgreSQL", waiting.len());
                drop(waiting);
                unit.answer(Answer::Unavailable(Unavailable::Busy(why)));
                continue;
            }
            waiting.push_back(unit);
            way.come.notify_one();
        }
    }

    /// Does what waits, as one transaction. Says no if nothing waited.
    async fn round(self: &Arc<Self>, number: usize, session: &mut Option<Session>) -> bool {
        let way = &self.ways[number];
        let units = take(&mut way.waiting.lock());
        if units.is_empty() {
            return false;
        }
        if !way.breaker.lock().admits(Instant::now()) {
            units.into_iter().for_each(|unit| give_up(unit, Refusal::NoLeader));
            return true;
        }
        let done = match timeout(TRANSACTION_MAX, self.transact(&units, session)).await {
            Ok(done) => done,
            // Only who is being committed may be committed; what was sent before that ends with the connection.
            Err(_) => match session.as_ref().is_some_and(Session::is_committing) {
                true => Err(Failed::Unknown("no answer in time".to_owned())),
                false => Err(Failed::NotDone("no answer in time".to_owned())),
            },
        };
        self.transactions.fetch_add(1, Ordering::Relaxed);
        match done {
            Ok(replies) => {
                way.breaker.lock().succeeded();
                for (unit, replies) in units.into_iter().zip(replies) {
                    unit.answer(Answer::Replies(replies));
                }
            }
            Err(failed) => {
                *session = None;
                self.set_all_back(units, failed, way);
            }
        }
        true
    }

    async fn transact(
        &self,
        units: &[Unit],
        session: &mut Option<Session>,
    ) -> Result<Vec<Vec<Reply>>, Failed> {
        if session.is_none() {
            *session = Some(Session::open(&self.archive).await?);
        }
        let Some(session) = session else { return Err(Failed::NotDone("no connection".to_owned())) };
        let newest = units.iter().map(Unit::time_ms).max().unwrap_or(0);
        let now_ms = self.time_ms.fetch_max(newest, Ordering::Relaxed).max(newest);
        let policies = Arc::clone(&self.policies.read());
        let (cells, ids, births) = session.begin(units).await?;
        let mut held = Held::new(cells, ids, births, now_ms, self.options.id_window_ms);
        let replies: Vec<Vec<Reply>> = units.iter().map(|unit| held.run(unit, &policies)).collect();
        session.commit(&held).await?;
        Ok(replies)
    }

    fn set_all_back(self: &Arc<Self>, units: Vec<Unit>, failed: Failed, way: &Way) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let (is_unknown, why) = match failed {
            Failed::Refused(why) => {
                tracing::warn!(%why, "PostgreSQL refuses to count");
                for unit in units {
                    match unit.may_be_done {
                        true => give_up(unit, Refusal::OutcomeUnknown),
                        false => unit.answer(Answer::Unavailable(why.clone())),
                    }
                }
                return;
            }
            Failed::NotDone(why) => (false, why),
            Failed::Unknown(why) => (true, why),
        };
        tracing::debug!(why, "a transaction failed");
        if way.breaker.lock().failed(Instant::now()) {
            tracing::warn!(why, "PostgreSQL fails again and again and is left alone for a while");
        }
        for mut unit in units {
            unit.may_be_done |= is_unknown && unit.writes();
            let is_over = unit.began().elapsed() >= self.options.patience;
            if is_over || unit.may_be_done && !unit.can_repeat() {
                give_up(unit, Refusal::NoLeader);
                continue;
            }
            let wait = full_jitter(unit.attempts, self.chance.lock().random());
            unit.attempts = unit.attempts.saturating_add(1);
            let strong = Arc::clone(self);
            tokio::spawn(async move {
                tokio::time::sleep(wait).await;
                strong.put(vec![unit]);
            });
        }
    }

    async fn purge(&self, session: &mut Option<Session>) {
        let now_ms = self.time_ms.load(Ordering::Relaxed);
        let Some(before_ms) = now_ms.checked_sub(self.options.id_window_ms) else { return };
        if let Some(open) = session
            && timeout(TRANSACTION_MAX, open.purge(before_ms)).await.is_ok_and(|purged| purged.is_ok())
        {
            return;
        }
        *session = None;
    }
}

impl Drop for Strong {
    fn drop(&mut self) {
        self.stop();
    }
}

/// As much as one transaction may hold.
fn take(waiting: &mut VecDeque<Unit>) -> Vec<Unit> {
    let (mut units, mut requests) = (Vec::new(), 0);
    while let Some(unit) = waiting.front() {
        requests += unit.range().len();
        if !units.is_empty() && requests > REQUESTS_MAX {
            break;
        }
        units.extend(waiting.pop_front());
    }
    units
}

fn give_up(unit: Unit, refusal: Refusal) {
    let refusal = if unit.may_be_done { Refusal::OutcomeUnknown } else { refusal };
    unit.answer(Answer::Refused(refusal));
}

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
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use quipu_counting::{Policies, Refusal, Reply, Unavailable};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_postgres::Client;

use crate::archive::{Archive, ArchiveError};
use crate::breaker::Breaker;
use crate::external::Options;
use crate::groups::number_of_home;
use crate::retry::full_jitter;
use crate::units::{Answer, Unit};

use self::held::Held;
use self::rows::{PURGE_ROWS, Session};

/// Connections of a node: some transactions at once, far fewer than PostgreSQL allows to all nodes together.
const WAYS: usize = 4;
/// The most requests of one transaction.
const REQUESTS_MAX: usize = 500;
/// How long a transaction may take, with all the locks that it waits for.
const TRANSACTION_MAX: Duration = Duration::from_secs(5);
/// How often ids that are over are forgotten.
const PURGE_EVERY: Duration = Duration::from_secs(60);

/// Counters in rows.
pub(crate) struct Strong {
    archive: Arc<Archive>,
    options: Options,
    /// Those that came with the newest request.
    policies: RwLock<Arc<Policies>>,
    ways: Vec<Way>,
    /// How long ids are remembered.
    id_window_ms: AtomicU64,
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
    /// Why the last transaction failed that did.
    problem: Mutex<String>,
}

impl Way {
    /// Nothing was done, because of that.
    fn refusal(&self) -> Unavailable {
        Unavailable::NoLeader(format!("PostgreSQL: {}", self.problem.lock()))
    }
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
            problem: Mutex::default(),
        };
        let strong = Arc::new(Strong {
            archive,
            options: options.clone(),
            policies: RwLock::default(),
            ways: (0..WAYS).map(|_| way()).collect(),
            id_window_ms: AtomicU64::new(options.id_window_ms),
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
                        strong.ways[number].come.notified().await;
                    }
                }
            });
            task.abort_handle()
        });
        let purging = tokio::spawn(purge_for_ever(Arc::downgrade(&strong), PURGE_EVERY));
        *strong.tasks.lock() = tasks.chain([purging.abort_handle()]).collect();
        strong
    }

    /// How it goes.
    pub(crate) fn facts(&self) -> Vec<(&'static str, u64)> {
        let read = |fact: &AtomicU64| fact.load(Ordering::Relaxed);
        vec![("strong_transactions", read(&self.transactions)), ("strong_failures", read(&self.failures))]
    }

    /// Others remember ids for so long.
    pub(crate) fn remember_for(&self, id_window_ms: u64) {
        self.id_window_ms.fetch_max(id_window_ms, Ordering::Relaxed);
    }

    /// How many counters are so.
    pub(crate) async fn count(&self, is_so: impl Fn(&[u8]) -> bool) -> Result<u64, Unavailable> {
        rows::count(&self.archive, self.time_ms.load(Ordering::Relaxed), is_so).await
    }

    /// Ends all rounds. Who waits hears that nothing was done.
    pub(crate) fn stop(&self) {
        self.tasks.lock().drain(..).for_each(|task| task.abort());
        for way in &self.ways {
            let waiting: Vec<Unit> = way.waiting.lock().drain(..).collect();
            let why = Unavailable::NoLeader("the node is stopping".into());
            waiting.into_iter().for_each(|unit| give_up(unit, &why));
        }
    }

    /// Takes these on.
    pub(crate) fn add(&self, units: Vec<Unit>, policies: Arc<Policies>) {
        *self.policies.write() = policies;
        self.put(units);
    }

    fn put(&self, units: Vec<Unit>) {
        let mut of_ways: [Vec<Unit>; WAYS] = Default::default();
        units.into_iter().for_each(|unit| of_ways[way_of(unit.group)].push(unit));
        for (way, units) in self.ways.iter().zip(of_ways).filter(|(_, units)| !units.is_empty()) {
            let mut refused = Vec::new();
            {
                // All at once: no round takes the beginning of a batch whose end is not there yet.
                let mut waiting = way.waiting.lock();
                for unit in units {
                    match waiting.len() >= self.options.queue / WAYS && unit.attempts == 0 {
                        true => refused.push((unit, waiting.len())),
                        false => waiting.push_back(unit),
                    }
                }
            }
            way.come.notify_one();
            for (unit, count) in refused {
                let why = format!("{count} requests wait for PostgreSQL");
                unit.answer(Answer::Unavailable(Unavailable::Busy(why)));
            }
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
            let why = way.refusal();
            units.into_iter().for_each(|unit| give_up(unit, &why));
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
        let mut held = Held::new(cells, ids, births, now_ms, self.id_window_ms.load(Ordering::Relaxed));
        let replies: Vec<Vec<Reply>> = units.iter().map(|unit| held.run(unit, &policies)).collect();
        session.commit(&held).await?;
        Ok(replies)
    }

    fn set_all_back(self: &Arc<Self>, units: Vec<Unit>, failed: Failed, way: &Way) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let (is_unknown, why) = match failed {
            Failed::Refused(why) => {
                tracing::warn!(%why, "PostgreSQL refuses to count");
                units.into_iter().for_each(|unit| give_up(unit, &why));
                return;
            }
            Failed::NotDone(why) => (false, why),
            Failed::Unknown(why) => (true, why),
        };
        tracing::debug!(why, "a transaction failed");
        way.problem.lock().clone_from(&why);
        if way.breaker.lock().failed(Instant::now()) {
            tracing::warn!(why, "PostgreSQL fails again and again and is left alone for a while");
        }
        let mut again = Vec::with_capacity(units.len());
        for mut unit in units {
            unit.may_be_done |= is_unknown && unit.writes();
            let is_over = unit.began().elapsed() >= self.options.patience;
            if is_over || unit.may_be_done && !unit.can_repeat() {
                give_up(unit, &way.refusal());
                continue;
            }
            unit.attempts = unit.attempts.saturating_add(1);
            again.push(unit);
        }
        let Some(attempts) = again.iter().map(|unit| unit.attempts).max() else { return };
        take_rest(&mut again, &mut way.waiting.lock());
        let wait = full_jitter(attempts.saturating_sub(1), self.chance.lock().random());
        let strong = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            // All at once, in their order: what one client asks for first is done first.
            strong.put(again);
        });
    }

    /// Forgets ids that are over, some at a time. Returns how many those were.
    async fn purge(&self) -> Result<u64, ArchiveError> {
        let now_ms = self.time_ms.load(Ordering::Relaxed);
        // Before anything was asked, there may be no tables.
        let id_window_ms = self.id_window_ms.load(Ordering::Relaxed);
        let Some(before_ms) = now_ms.checked_sub(id_window_ms) else { return Ok(0) };
        let purged = timeout(TRANSACTION_MAX, rows::purge(&self.archive, before_ms)).await;
        purged.unwrap_or(Err(ArchiveError::Silent(TRANSACTION_MAX)))
    }
}

/// Apart from the rounds: these may never rest.
async fn purge_for_ever(strong: Weak<Strong>, every: Duration) {
    loop {
        tokio::time::sleep(every).await;
        let Some(strong) = strong.upgrade() else { return };
        // While PostgreSQL is away there is nothing to be said that requests are not told.
        while let Ok(PURGE_ROWS..) = strong.purge().await {}
    }
}

impl Drop for Strong {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Counters lie in homes alone, so those are spread, and not all groups.
fn way_of(group: u16) -> usize {
    usize::from(number_of_home(group)) % WAYS
}

/// As much as one transaction may hold. A batch of one client goes as a whole, unless it is more than that by itself.
fn take(waiting: &mut VecDeque<Unit>) -> Vec<Unit> {
    let (mut requests, mut end) = (0, 0);
    while let Some(first) = waiting.get(end) {
        let of_batch = waiting.range(end..).take_while(|unit| unit.is_of_same_batch(first));
        let (mut more, mut size) = (0, 0);
        for length in of_batch.map(|unit| unit.range().len()) {
            if more > 0 && size + length > REQUESTS_MAX {
                break;
            }
            (more, size) = (more + 1, size + length);
        }
        if end > 0 && requests + size > REQUESTS_MAX {
            break;
        }
        (requests, end) = (requests + size, end + more);
    }
    waiting.drain(..end).collect()
}

/// Takes along what is left of the batches of these: it would be done before them, while they wait. It comes first in the queue, since
/// batches come as a whole, and are taken from the front.
fn take_rest(again: &mut Vec<Unit>, waiting: &mut VecDeque<Unit>) {
    let is_left = |unit: &mut Unit| again.iter().any(|other| other.is_of_same_batch(unit));
    let mut rest = Vec::new();
    while let Some(mut unit) = waiting.pop_front_if(is_left) {
        // It was taken on before: a full queue does not refuse it.
        unit.attempts = unit.attempts.max(1);
        rest.push(unit);
    }
    again.append(&mut rest);
}

/// Nothing was done, unless it may have been.
fn give_up(unit: Unit, why: &Unavailable) {
    let answer = match unit.may_be_done {
        true => Answer::Refused(Refusal::OutcomeUnknown),
        false => Answer::Unavailable(why.clone()),
    };
    unit.answer(answer);
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "what a test cannot go on without")]
mod tests {
    use std::collections::BTreeSet;

    use quipu_counting::{Action, Add, Batch};

    use super::*;
    use crate::groups::group;
    use crate::support::PATIENCE;
    use crate::support::postgres::Postgres;
    use crate::units::split;

    #[test]
    fn counters_take_all_ways() {
        let ways: BTreeSet<usize> =
            (0..200).map(|number| way_of(group(format!("{number}").as_bytes()))).collect();
        assert_eq!(ways.len(), WAYS);
    }

    /// PostgreSQL cannot be reached: what is asked again waits together, and in its order.
    #[tokio::test]
    async fn what_is_asked_again_keeps_its_order() {
        let nowhere = Archive::new("postgres://quipu@127.0.0.1:1/postgres").unwrap();
        let strong = Strong::start(Arc::new(nowhere), &Options::default());
        strong.tasks.lock().drain(..).for_each(|task| task.abort());
        let mut batch = Batch::default();
        (0..50).for_each(|delta| _ = batch.push(b"stock:1", Action::Add(Add::plain(delta))));
        let mut units = split(batch, 0, Box::new(|_, _| {}));
        // Some were set back more often than others, and would wait longer.
        units.iter_mut().step_by(2).for_each(|unit| unit.attempts = 6);
        let way = &strong.ways[way_of(group(b"stock:1"))];
        strong.set_all_back(units, Failed::NotDone("away".to_owned()), way);
        let begin = Instant::now();
        while way.waiting.lock().len() < 50 {
            assert!(way.waiting.lock().is_empty() && begin.elapsed() < PATIENCE);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let order: Vec<usize> = way.waiting.lock().iter().map(|unit| unit.range().start).collect();
        assert_eq!(order, (0..50).collect::<Vec<_>>());
    }

    fn additions(count: i64) -> Vec<Unit> {
        let mut batch = Batch::default();
        (0..count).for_each(|delta| _ = batch.push(b"stock:1", Action::Add(Add::plain(delta))));
        split(batch, 0, Box::new(|_, _| {}))
    }

    #[test]
    fn a_batch_goes_as_a_whole_where_it_can() {
        let sizes = |batches: &[i64]| -> Vec<usize> {
            let mut waiting: VecDeque<Unit> = batches.iter().flat_map(|count| additions(*count)).collect();
            std::iter::from_fn(|| Some(take(&mut waiting).len()).filter(|count| *count > 0)).collect()
        };
        assert_eq!(sizes(&[1, 1, 498, 1]), [500, 1]);
        assert_eq!(sizes(&[300, 300, 200]), [300, 500]);
        assert_eq!(sizes(&[10, 1_012, 10]), [10, 500, 500, 22]);
    }

    /// The first piece of a batch that is too large for one transaction fails: what is left of it does not overtake it.
    #[tokio::test]
    async fn what_is_left_of_a_batch_waits_for_what_is_asked_again() {
        let nowhere = Archive::new("postgres://quipu@127.0.0.1:1/postgres").unwrap();
        let strong = Strong::start(Arc::new(nowhere), &Options::default());
        strong.tasks.lock().drain(..).for_each(|task| task.abort());
        let way = &strong.ways[way_of(group(b"stock:1"))];
        strong.put(additions(512));
        strong.put(additions(7));
        let piece = take(&mut way.waiting.lock());
        assert_eq!(piece.len(), REQUESTS_MAX);
        strong.set_all_back(piece, Failed::NotDone("away".to_owned()), way);
        assert_eq!(way.waiting.lock().len(), 7, "only the other batch may be done");
        let begin = Instant::now();
        while way.waiting.lock().len() == 7 {
            assert!(begin.elapsed() < PATIENCE);
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let order: Vec<usize> = way.waiting.lock().iter().map(|unit| unit.range().start).collect();
        assert_eq!(order, (0..7).chain(0..512).collect::<Vec<_>>());
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn ids_that_are_over_go_while_others_come() {
        let postgres = Postgres::start();
        let archive = Arc::new(Archive::new(&postgres.url()).unwrap());
        archive.note_bound();
        let client = rows::connect(&archive).await.unwrap();
        let many = "INSERT INTO counter_strong_request
            SELECT 'stock:1', number::text::bytea, 0, 1, number, 0, true, true, 0, 1, 1, 1
            FROM generate_series(1, 25000) AS number";
        client.execute(many, &[]).await.unwrap();
        let options = Options { id_window_ms: 1_000, ..Options::default() };
        let strong = Strong::start(Arc::clone(&archive), &options);
        strong.time_ms.store(25_001, Ordering::Relaxed);
        let purging = tokio::spawn(purge_for_ever(Arc::downgrade(&strong), Duration::from_millis(10)));
        let begin = Instant::now();
        let left = "SELECT count(*) FROM counter_strong_request";
        while client.query_one(left, &[]).await.unwrap().get::<_, i64>(0) != 1_000 {
            assert!(begin.elapsed() < PATIENCE, "they do not go");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        purging.abort();
        strong.stop();
    }
}

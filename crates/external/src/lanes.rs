//! The rounds to each master.
//!
//! A lane is the way to one master. While a round is under way there, what comes meanwhile gathers, and travels together
//! when the round is back: one pipeline for a master, one call for each group in it. So a call costs the less the more is
//! asked, and who asks alone does not wait. When many ask, rounds to several masters go together: whose round is back first waits a moment for
//! the others, since whoever is answered by those is about to ask again.
//!
//! What was not done is asked again until its time is over. What may have been done is asked again only if that cannot count
//! twice, and otherwise its outcome is unknown.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use quipu_counting::kinds::{Asked, RULES, Ruled, decide_whole};
use quipu_counting::{Action, Policies, Refusal, Reply, Unavailable};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use redis::{Pipeline, RedisError, Value};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::archive::{Seen, Snapshot};
use crate::breaker::Breaker;
use crate::call::{self, Answered, Terms};
use crate::external::{OpenError, Options};
use crate::groups::{self, GROUPS};
use crate::masters::{Links, Map, Said, said, within};
use crate::retry::{Budget, full_jitter};
use crate::rights;
use crate::stripes::{Stripes, stripe_in};
use crate::units::{Answer, REQUESTS_PER_CALL_MAX, Unit};
use crate::wholes::{Heard, OwnTerms, WholeCall, Wholes};

/// The most requests of one round.
const REQUESTS_PER_ROUND_MAX: usize = 16_384;
/// How long a master waits for its replicas. Less than an attempt may last.
const REPLICAS_TIMEOUT: Duration = Duration::from_millis(500);
/// When what is written of whole counters has so many bytes, the other groups wait for the next round: it must be there and back in
/// the time of an attempt.
const WHOLE_BYTES_PER_ROUND: usize = 8 << 20;
/// How long a round waits at most for those of other masters, and how many units must have gone with the one before it.
const COMPANY_WAIT: Duration = Duration::from_millis(1);
const COMPANY_MIN: usize = 4;
/// At least so long lies between two looks at where the slots are.
const MAP_INTERVAL: Duration = Duration::from_millis(50);

/// What all lanes share.
pub(crate) struct Lanes {
    pub(crate) options: Options,
    /// For calls alone: what fails here fails calls.
    links: Links,
    epoch: RwLock<Arc<str>>,
    pub(crate) policies: RwLock<Arc<Policies>>,
    /// Which counters are spread over several groups.
    pub(crate) stripes: RwLock<Arc<Stripes>>,
    map: RwLock<Arc<Map>>,
    /// When the map was last asked for.
    mapped: Mutex<Option<Instant>>,
    /// What waits for a round, by group.
    waiting: Mutex<Vec<VecDeque<Unit>>>,
    /// Units about whole counters, which this node decides; they wait there by group too.
    wholes: Wholes,
    /// Requests that wait or are under way.
    pub(crate) under_way: AtomicUsize,
    lanes: Mutex<HashMap<String, Arc<Lane>>>,
    /// Rounds that are under way, and who waits until none is.
    rounds: AtomicUsize,
    back: Notify,
    /// How long ids are remembered.
    id_window_ms: AtomicU64,
    /// Entry times do not go back.
    time_ms: AtomicU64,
    chance: Mutex<SmallRng>,
    pub(crate) facts: Facts,
    /// A call has found something lost: whoever looks after that should look now.
    pub(crate) look_now: Notify,
    /// By how much the clock of Redis, which dates what the archive has, is ahead of this node's.
    pub(crate) redis_ahead_ms: AtomicI64,
    /// Where reads go while Redis cannot answer them.
    pub(crate) snapshot: Option<Arc<Snapshot>>,
}

/// What happened so far.
#[derive(Default)]
pub(crate) struct Facts {
    pub(crate) rounds: AtomicU64,
    pub(crate) calls: AtomicU64,
    pub(crate) requests: AtomicU64,
    pub(crate) retries: AtomicU64,
    pub(crate) failures: AtomicU64,
    pub(crate) breaker_opened: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(crate) conflicts: AtomicU64,
    /// Reads that were answered from the snapshot.
    pub(crate) stale_reads: AtomicU64,
    /// Rounds that too few replicas had in time.
    pub(crate) unreplicated: AtomicU64,
}

fn count(fact: &AtomicU64, more: usize) {
    fact.fetch_add(more as u64, Ordering::Relaxed);
}

/// What one call asks of a group.
enum Call {
    /// Redis decides.
    Plain(u16, Vec<Unit>),
    /// It was decided here.
    Whole(WholeCall),
}

impl Call {
    fn units(&self) -> usize {
        match self {
            Call::Plain(_, units) => units.len(),
            Call::Whole(call) => call.units().count(),
        }
    }

    fn group(&self) -> u16 {
        match self {
            Call::Plain(group, _) => *group,
            Call::Whole(call) => call.group,
        }
    }

    /// Whether one of its units is so.
    fn any(&self, is_so: impl Fn(&Unit) -> bool) -> bool {
        match self {
            Call::Plain(_, units) => units.iter().any(is_so),
            Call::Whole(call) => call.units().any(is_so),
        }
    }

    fn into_units(self) -> Vec<Unit> {
        match self {
            Call::Plain(_, units) => units,
            Call::Whole(call) => call.into_units(),
        }
    }
}

struct Lane {
    address: String,
    /// Something waits.
    come: Notify,
    breaker: Mutex<Breaker>,
    budget: Mutex<Budget>,
    /// How much speaks against it since it last answered.
    doubt: AtomicUsize,
    task: Mutex<Option<AbortHandle>>,
}

/// With so much doubt reads that may be older do not wait for a master. One connection that was cut is not enough; silence is.
const DOUBT_MAX: usize = 2;

impl Lane {
    fn is_in_doubt(&self) -> bool {
        self.doubt.load(Ordering::Relaxed) >= DOUBT_MAX
    }
}

/// Why a call has to be asked again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Setback {
    /// It was answered that nothing was done.
    NotDone,
    /// The master could not be asked.
    Unreached,
    /// It was asked, and did not answer.
    Unanswered,
}

impl Lanes {
    pub(crate) fn new(
        options: Options,
        links: Links,
        epoch: String,
        map: Map,
        snapshot: Option<Arc<Snapshot>>,
    ) -> Lanes {
        Lanes {
            wholes: Wholes::new(options.cache_bytes),
            id_window_ms: AtomicU64::new(options.id_window_ms),
            options,
            links,
            epoch: RwLock::new(epoch.into()),
            policies: RwLock::default(),
            stripes: RwLock::default(),
            map: RwLock::new(Arc::new(map)),
            mapped: Mutex::new(None),
            waiting: Mutex::new((0..GROUPS).map(|_| VecDeque::new()).collect()),
            under_way: AtomicUsize::new(0),
            lanes: Mutex::default(),
            rounds: AtomicUsize::new(0),
            back: Notify::new(),
            time_ms: AtomicU64::new(0),
            chance: Mutex::new(SmallRng::from_os_rng()),
            facts: Facts::default(),
            look_now: Notify::new(),
            redis_ahead_ms: AtomicI64::new(0),
            snapshot,
        }
    }

    /// From now on every call names this one.
    pub(crate) fn set_epoch(&self, epoch: &str) {
        *self.epoch.write() = epoch.into();
        self.wholes.forget(0..GROUPS);
    }

    /// The epoch that every call names.
    pub(crate) fn epoch(&self) -> Arc<str> {
        Arc::clone(&self.epoch.read())
    }

    pub(crate) fn map(&self) -> Arc<Map> {
        Arc::clone(&self.map.read())
    }

    /// How long ids are remembered.
    pub(crate) fn id_window_ms(&self) -> u64 {
        self.id_window_ms.load(Ordering::Relaxed)
    }

    /// Others remember ids for so long.
    pub(crate) fn remember_for(&self, id_window_ms: u64) {
        self.id_window_ms.fetch_max(id_window_ms, Ordering::Relaxed);
    }

    /// Any number.
    pub(crate) fn draw(&self) -> u64 {
        self.chance.lock().random()
    }

    /// Ends all rounds. What waits was not done and is refused; of what is under way nobody knows.
    pub(crate) fn stop(self: &Arc<Self>) {
        for (_, lane) in self.lanes.lock().drain() {
            lane.task.lock().take().inspect(AbortHandle::abort);
        }
        let waiting: Vec<Unit> = self.waiting.lock().iter_mut().flat_map(|queue| queue.drain(..)).collect();
        let wholes = self.wholes.drain();
        for unit in waiting.into_iter().chain(wholes) {
            // Not from the snapshot: there may be no runtime any more.
            let refusal = if unit.may_be_done { Refusal::OutcomeUnknown } else { Refusal::NoLeader };
            self.answer(unit, Answer::Refused(refusal));
        }
    }

    /// Takes these on. Called within the runtime.
    pub(crate) fn add(self: &Arc<Self>, mut units: Vec<Unit>) {
        self.wholes.mark(&mut units, &self.policies.read());
        let requests = units.iter().map(|unit| unit.range().len()).sum();
        self.under_way.fetch_add(requests, Ordering::Relaxed);
        count(&self.facts.requests, requests);
        self.put(units);
    }

    fn put(self: &Arc<Self>, units: Vec<Unit>) {
        let (mut lanes, mut homeless, mut older): (Vec<Arc<Lane>>, Vec<Unit>, Vec<Unit>) = Default::default();
        let diverts = self.snapshot.is_some();
        {
            let mut waiting = self.waiting.lock();
            // The map changes under this lock, so what is put here waits for somebody who is woken.
            let map = self.map();
            for unit in units {
                match map.of_group(unit.group) {
                    Some(address) => {
                        let known = lanes.iter().position(|lane| lane.address == address);
                        let place = known.unwrap_or_else(|| {
                            lanes.push(self.lane(address));
                            lanes.len() - 1
                        });
                        match unit.is_for_whole {
                            _ if diverts && lanes[place].is_in_doubt() && unit.may_be_older() => {
                                older.push(unit)
                            }
                            true => self.wholes.push(unit),
                            false => waiting[usize::from(unit.group)].push_back(unit),
                        }
                    }
                    None => homeless.push(unit),
                }
            }
        }
        older.into_iter().for_each(|unit| _ = self.read_snapshot(unit, None, true));
        lanes.iter().for_each(|lane| lane.come.notify_one());
        self.set_back(homeless, Setback::NotDone, None);
    }

    fn lane(self: &Arc<Self>, address: &str) -> Arc<Lane> {
        let mut lanes = self.lanes.lock();
        let lane = lanes.entry(address.to_owned()).or_insert_with(|| {
            let lane = Arc::new(Lane {
                address: address.to_owned(),
                come: Notify::new(),
                breaker: Mutex::new(Breaker::new(self.options.breaker)),
                budget: Mutex::new(Budget::new(self.options.budget)),
                doubt: AtomicUsize::new(0),
                task: Mutex::new(None),
            });
            let (lanes, served) = (Arc::downgrade(self), Arc::clone(&lane));
            let task = tokio::spawn(async move {
                loop {
                    served.come.notified().await;
                    // Others who are awake may have something for the same round.
                    tokio::task::yield_now().await;
                    let Some(lanes) = lanes.upgrade() else { return };
                    loop {
                        let units = lanes.round(&served).await;
                        if units == 0 {
                            break;
                        }
                        lanes.wait_for_company(units).await;
                    }
                }
            });
            *lane.task.lock() = Some(task.abort_handle());
            lane
        });
        Arc::clone(lane)
    }

    /// After a round of so many units.
    async fn wait_for_company(&self, units: usize) {
        if units < COMPANY_MIN {
            return;
        }
        let back = self.back.notified();
        tokio::pin!(back);
        // From here on it hears of the last one.
        back.as_mut().enable();
        if self.rounds.load(Ordering::SeqCst) > 0 {
            let _ = tokio::time::timeout(COMPANY_WAIT, back).await;
        }
    }

    /// Takes what waits for a master, and has it done. Says how many units that was.
    async fn round(self: &Arc<Self>, lane: &Lane) -> usize {
        let calls = self.take(&lane.address);
        if calls.is_empty() {
            return 0;
        }
        self.rounds.fetch_add(1, Ordering::SeqCst);
        let units = self.run(lane, calls).await;
        if self.rounds.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.back.notify_waiters();
        }
        units
    }

    async fn run(self: &Arc<Self>, lane: &Lane, mut calls: Vec<Call>) -> usize {
        let units: usize = calls.iter().map(Call::units).sum();
        lane.budget.lock().earn(units);
        count(&self.facts.rounds, 1);
        count(&self.facts.calls, calls.len());
        if !lane.breaker.lock().admits(Instant::now()) {
            let give_up = |unit| self.give_up(unit, Refusal::NoLeader);
            calls.into_iter().flat_map(Call::into_units).for_each(give_up);
            return units;
        }
        let mut pipeline = Pipeline::with_capacity(calls.len() + 2);
        for call in &mut calls {
            pipeline.add_command(match call {
                Call::Plain(group, units) => self.command(*group, units),
                Call::Whole(call) => call.command(),
            });
        }
        let waits = self.wait_for_replicas(&calls, &mut pipeline);
        let mut link = match self.links.get(&lane.address).await {
            Ok(link) => link,
            Err(error) => {
                self.note_failure(lane, &error.to_string(), error.is_timeout());
                self.set_all_back(calls, Setback::Unreached, lane).await;
                return units;
            }
        };
        let sent = link.send_packed_commands(&pipeline, 0, calls.len() + waits);
        match within(self.options.timeout, sent).await {
            Ok(mut answers) if answers.len() == calls.len() + waits => {
                lane.breaker.lock().succeeded();
                lane.doubt.store(0, Ordering::Relaxed);
                let replicas = answers.split_off(calls.len()).pop();
                let is_replicated = waits == 0 || self.are_enough(replicas);
                self.hear(calls, answers, lane, is_replicated).await;
            }
            outcome => {
                let error = outcome.err();
                let is_silent = error.as_ref().is_some_and(RedisError::is_timeout);
                let why = error.map_or("too few answers".to_owned(), |error| error.to_string());
                self.links.forget(&lane.address);
                self.note_failure(lane, &why, is_silent);
                self.set_all_back(calls, Setback::Unanswered, lane).await;
            }
        }
        units
    }

    /// Has the master wait for its replicas, behind the calls, where something may be changed. Says with how many commands.
    fn wait_for_replicas(&self, calls: &[Call], pipeline: &mut Pipeline) -> usize {
        if self.options.wait_replicas == 0 || !calls.iter().any(|call| call.any(|unit| !only_looks(unit))) {
            return 0;
        }
        let mut waits = 1;
        // WAIT speaks of what this connection has written. What can be recognized may have been written by another one, or at another
        // node, and is answered with what is remembered, which writes nothing: so something is written here.
        if let Some(call) = calls.iter().find(|call| call.any(|unit| unit.may_be_known())) {
            pipeline.cmd("HSET").arg(groups::marker(call.group())).arg("waited").arg(1);
            waits += 1;
        }
        pipeline.cmd("WAIT").arg(self.options.wait_replicas).arg(REPLICAS_TIMEOUT.as_millis() as u64);
        waits
    }

    fn are_enough(&self, replicas: Option<Value>) -> bool {
        let enough =
            matches!(replicas, Some(Value::Int(count)) if count >= self.options.wait_replicas as i64);
        count(&self.facts.unreplicated, usize::from(!enough));
        enough
    }

    fn note_failure(&self, lane: &Lane, why: &str, is_silent: bool) {
        count(&self.facts.failures, 1);
        lane.doubt.fetch_add(if is_silent { DOUBT_MAX } else { 1 }, Ordering::Relaxed);
        tracing::debug!(address = lane.address, why, "a round failed");
        if lane.breaker.lock().failed(Instant::now()) {
            count(&self.facts.breaker_opened, 1);
            tracing::warn!(
                address = lane.address,
                why,
                "a master fails again and again and is left alone for a while"
            );
        }
    }

    async fn set_all_back(self: &Arc<Self>, calls: Vec<Call>, setback: Setback, lane: &Lane) {
        // It may come back with less than it had.
        self.wholes.forget(self.map().groups_of(&lane.address));
        let mut units: Vec<Unit> = calls.into_iter().flat_map(Call::into_units).collect();
        if lane.is_in_doubt() {
            units = self.divert(units);
            self.divert_waiting(&lane.address);
        }
        self.find_masters().await;
        self.set_back(units, setback, Some(lane));
    }

    /// This master has answered somebody.
    pub(crate) fn trust(&self, address: &str) {
        if let Some(lane) = self.lanes.lock().get(address) {
            lane.doubt.store(0, Ordering::Relaxed);
        }
    }

    /// Has what may be older answered from the snapshot, and gives back the rest.
    fn divert(self: &Arc<Self>, units: Vec<Unit>) -> Vec<Unit> {
        if self.snapshot.is_none() {
            return units;
        }
        let (older, others): (Vec<Unit>, Vec<Unit>) = units.into_iter().partition(Unit::may_be_older);
        older.into_iter().for_each(|unit| _ = self.read_snapshot(unit, None, true));
        others
    }

    /// The same for what waits for a master.
    fn divert_waiting(self: &Arc<Self>, address: &str) {
        let mut waiting = self.waiting.lock();
        for group in self.map().groups_of(address) {
            let queue = &mut waiting[usize::from(group)];
            if queue.iter().any(Unit::may_be_older) {
                *queue = self.divert(queue.drain(..).collect()).into();
            }
        }
    }

    /// What waits for this master, in calls: by group, and not more than one may hold, where a batch is torn only if it has to.
    fn take(&self, address: &str) -> Vec<Call> {
        let map = self.map();
        let mut calls: Vec<Call> = Vec::new();
        {
            let mut waiting = self.waiting.lock();
            let mut left = REQUESTS_PER_ROUND_MAX;
            for group in map.groups_of(address) {
                let queue = &mut waiting[usize::from(group)];
                while left > 0 && !queue.is_empty() {
                    let end = call_end(queue);
                    let units: Vec<Unit> = queue.drain(..end).collect();
                    left = left.saturating_sub(units.iter().map(|unit| unit.range().len()).sum());
                    calls.push(Call::Plain(group, units));
                }
            }
        }
        let terms = |units: &[Unit]| OwnTerms {
            epoch: self.epoch(),
            time_ms: self.time_of(units),
            id_window_ms: self.id_window_ms(),
            policies: Arc::clone(&self.policies.read()),
        };
        // Each round begins with another group, since bodies may fill it before all have had their turn.
        let groups: Vec<u16> = map.groups_of(address).collect();
        let first = self.facts.rounds.load(Ordering::Relaxed) as usize % groups.len().max(1);
        let mut bytes = 0;
        for group in groups[first..].iter().chain(&groups[..first]) {
            if bytes > WHOLE_BYTES_PER_ROUND {
                break;
            }
            if let Some(call) = self.wholes.take(*group, call_end, terms) {
                bytes += call.bytes();
                calls.push(Call::Whole(call));
            }
        }
        calls
    }

    /// When these are decided: the newest time that anybody in them knows.
    fn time_of(&self, units: &[Unit]) -> u64 {
        let newest = units.iter().map(Unit::time_ms).max().unwrap_or(0);
        self.time_ms.fetch_max(newest, Ordering::Relaxed).max(newest)
    }

    fn command(&self, group: u16, units: &mut Vec<Unit>) -> redis::Cmd {
        let time_ms = self.time_of(units);
        let policies = Arc::clone(&self.policies.read());
        let (epoch, id_window_ms) = (self.epoch(), self.id_window_ms());
        call::command(&Terms { group, epoch: &epoch, time_ms, id_window_ms, policies: &policies }, units)
    }

    async fn hear(self: &Arc<Self>, calls: Vec<Call>, answers: Vec<Value>, lane: &Lane, is_replicated: bool) {
        let (mut is_elsewhere, mut has_no_function, mut set_back) = (false, false, Vec::new());
        for (call, answer) in calls.into_iter().zip(answers) {
            if let Value::ServerError(error) = &answer {
                let units = call.into_units();
                let text = error.details().unwrap_or_default();
                match said(error.kind(), error.code(), text) {
                    Said::Full => {
                        // What takes no memory was only in bad company.
                        let (mut spare, units): (Vec<Unit>, Vec<Unit>) =
                            units.into_iter().partition(|unit| unit.is_spare() && !unit.is_apart);
                        spare.iter_mut().for_each(|unit| unit.is_apart = true);
                        self.put(spare);
                        self.refuse(units, Unavailable::Full(format!("Redis at {}: {text}", lane.address)));
                    }
                    Said::HalfDone => {
                        tracing::error!(address = lane.address, text, "a call has failed half done");
                        let (looks, changes): (Vec<Unit>, Vec<Unit>) =
                            units.into_iter().partition(only_looks);
                        self.set_back(looks, Setback::NotDone, None);
                        self.answer_unknown(changes);
                    }
                    Said::Other => {
                        let why = format!("Redis at {} says {} {text}", lane.address, error.code());
                        tracing::warn!(why, "a call was refused");
                        self.refuse(units, Unavailable::NoLeader(why));
                    }
                    waits => {
                        is_elsewhere |= waits == Said::Elsewhere;
                        has_no_function |= waits == Said::NoFunction;
                        set_back.extend(units);
                    }
                }
                continue;
            }
            match call {
                Call::Plain(group, units) => self.hear_plain(group, units, &answer, is_replicated),
                Call::Whole(call) => self.hear_whole(call, &answer, is_replicated),
            }
        }
        if has_no_function {
            match self.links.load(&lane.address).await {
                Ok(()) => self.check_rights(&lane.address).await,
                Err(error) => {
                    tracing::warn!(address = lane.address, %error, "the function library could not be loaded");
                }
            }
        }
        if is_elsewhere {
            self.find_masters().await;
        }
        self.set_back(set_back, Setback::NotDone, None);
    }

    fn hear_plain(self: &Arc<Self>, group: u16, units: Vec<Unit>, answer: &Value, is_replicated: bool) {
        match call::answered(answer, &units) {
            Some(Answered::Replies(replies)) => {
                let mut wholes = Vec::new();
                for (mut unit, replies) in units.into_iter().zip(replies) {
                    match replies {
                        Some(replies) => self.acknowledge(unit, replies, is_replicated),
                        None => {
                            unit.is_for_whole = true;
                            wholes.push(unit);
                        }
                    }
                }
                self.put(wholes);
            }
            Some(Answered::Lost(found)) => self.refuse_lost(group, units, &found),
            None => self.refuse_unknown(units),
        }
    }

    fn hear_whole(self: &Arc<Self>, call: WholeCall, answer: &Value, is_replicated: bool) {
        let group = call.group;
        match self.wholes.hear(call, answer) {
            Heard::Pieces { answered, again } => {
                for (unit, replies) in answered {
                    self.acknowledge(unit, replies, is_replicated);
                }
                self.decide_again(again);
            }
            Heard::Lost(units, found) => self.refuse_lost(group, units, &found),
            Heard::Unknown(units) => self.refuse_unknown(units),
        }
    }

    /// Others were faster. Nobody waits before deciding again: of all who compete one gets through each time.
    fn decide_again(self: &Arc<Self>, units: Vec<Unit>) {
        count(&self.facts.conflicts, units.len());
        let is_over = |unit: &Unit| unit.began().elapsed() >= self.options.patience;
        let (over, again): (Vec<Unit>, Vec<Unit>) = units.into_iter().partition(is_over);
        self.refuse(over, Unavailable::Busy("others change this counter all the time".into()));
        let Some(first) = again.first() else { return };
        let map = self.map();
        let address = map.of_group(first.group);
        self.wholes.push_first(again);
        address.into_iter().for_each(|address| self.lane(address).come.notify_one());
    }

    fn acknowledge(self: &Arc<Self>, unit: Unit, replies: Vec<Reply>, is_replicated: bool) {
        if is_replicated || only_looks(&unit) {
            self.answer(unit, Answer::Replies(replies));
        } else {
            // It is done, but a failover may undo it: nobody can say yet what will have been.
            self.set_back([unit], Setback::Unanswered, None);
        }
    }

    fn refuse_lost(self: &Arc<Self>, group: u16, units: Vec<Unit>, found: &str) {
        if found == &*self.epoch() {
            // The call was written before the epoch changed.
            self.set_back(units, Setback::NotDone, None);
            return;
        }
        count(&self.facts.lost, 1);
        self.look_now.notify_one();
        self.refuse(units, lost(group, &self.epoch(), found));
    }

    fn refuse_unknown(&self, units: Vec<Unit>) {
        tracing::error!("an answer of Redis is not one of the function's");
        self.answer_unknown(units);
    }

    fn answer_unknown(&self, units: Vec<Unit>) {
        for unit in units {
            self.answer(unit, Answer::Refused(Refusal::OutcomeUnknown));
        }
    }

    /// Asks again later, or says how it ends. What is answered in a healthy way takes nothing from the budget.
    fn set_back(
        self: &Arc<Self>,
        units: impl IntoIterator<Item = Unit>,
        setback: Setback,
        lane: Option<&Lane>,
    ) {
        let again = |unit: Unit| self.ask_again(unit, setback, lane);
        let again: Vec<Unit> = units.into_iter().filter_map(again).collect();
        let Some(attempts) = again.iter().map(|unit| unit.attempts).max() else { return };
        count(&self.facts.retries, again.len());
        let wait = full_jitter(attempts.saturating_sub(1), self.chance.lock().random());
        let lanes = Arc::clone(self);
        tokio::spawn(async move {
            tokio::time::sleep(wait).await;
            // All at once, in their order: what one client asks for first is done first.
            lanes.put(again);
        });
    }

    /// Gives a unit back that is asked once more.
    fn ask_again(self: &Arc<Self>, mut unit: Unit, setback: Setback, lane: Option<&Lane>) -> Option<Unit> {
        unit.may_be_done |= setback == Setback::Unanswered && !only_looks(&unit);
        let is_over = unit.began().elapsed() >= self.options.patience;
        let may_repeat = !unit.may_be_done || unit.can_repeat();
        if is_over || !may_repeat || lane.is_some_and(|lane| !lane.budget.lock().spend()) {
            self.give_up(unit, Refusal::NoLeader);
            return None;
        }
        unit.attempts = unit.attempts.saturating_add(1);
        Some(unit)
    }

    fn give_up(self: &Arc<Self>, unit: Unit, refusal: Refusal) {
        let Some(unit) = self.read_snapshot(unit, None, false) else { return };
        let refusal = if unit.may_be_done { Refusal::OutcomeUnknown } else { refusal };
        self.answer(unit, Answer::Refused(refusal));
    }

    fn refuse(self: &Arc<Self>, units: Vec<Unit>, why: Unavailable) {
        for unit in units {
            if unit.may_be_done {
                self.give_up(unit, Refusal::OutcomeUnknown);
            } else if let Some(unit) = self.read_snapshot(unit, Some(&why), false) {
                self.answer(unit, Answer::Unavailable(why.clone()));
            }
        }
    }

    /// Has a read that may be older answered from the snapshot. Gives back what cannot be answered so. What turns out not to be there
    /// may wait for its master, or is refused.
    fn read_snapshot(
        self: &Arc<Self>,
        mut unit: Unit,
        why: Option<&Unavailable>,
        may_wait: bool,
    ) -> Option<Unit> {
        let Some(snapshot) = self.snapshot.clone().filter(|_| unit.may_be_older()) else { return Some(unit) };
        let (lanes, why) = (Arc::clone(self), why.cloned());
        tokio::spawn(async move {
            let place = |index: usize| {
                let key = unit.batch().key(index);
                (key.to_vec(), stripe_in(key, unit.group))
            };
            let seen = snapshot.read(&unit.range().map(place).collect::<Vec<_>>()).await;
            let now_ms = unit.time_ms();
            let there_ms = now_ms.saturating_add_signed(lanes.redis_ahead_ms.load(Ordering::Relaxed));
            let stale_ms = |seen: &Seen| there_ms.saturating_sub(seen.as_of_ms).max(1);
            let answer = match seen {
                Some(seen) if seen.iter().all(|seen| unit.allows_staleness(stale_ms(seen))) => {
                    count(&lanes.facts.stale_reads, seen.len());
                    let policies = Arc::clone(&lanes.policies.read());
                    let reply = |(index, seen): (usize, Seen)| {
                        let stale_ms = stale_ms(&seen);
                        (state_of(unit.batch().key(index), seen, &policies, now_ms), stale_ms)
                    };
                    Answer::Older(unit.range().zip(seen).map(reply).collect())
                }
                _ if may_wait => {
                    unit.is_for_master = true;
                    return lanes.put(vec![unit]);
                }
                _ => why.map_or(Answer::Refused(Refusal::NoLeader), Answer::Unavailable),
            };
            lanes.answer(unit, answer);
        });
        None
    }

    fn answer(&self, unit: Unit, answer: Answer) {
        self.under_way.fetch_sub(unit.range().len(), Ordering::Relaxed);
        unit.answer(answer);
    }

    /// Says if a master that came later is not allowed what is needed: what is counted there may fail half done.
    async fn check_rights(&self, address: &str) {
        let doing = self.options.doing(self.snapshot.is_some());
        match rights::check(&self.links, address, doing).await {
            Err(OpenError::Denied(why)) => tracing::error!("{why}"),
            Err(error) => tracing::debug!(address, %error, "it cannot be asked what is allowed"),
            Ok(()) => {}
        }
    }

    /// Asks where the slots are, unless somebody just did. What waits for a master that has lost some is woken for the next.
    pub(crate) async fn find_masters(self: &Arc<Self>) {
        let now = Instant::now();
        {
            let mut mapped = self.mapped.lock();
            if mapped.is_some_and(|last| now < last + MAP_INTERVAL) {
                return;
            }
            *mapped = Some(now);
        }
        let known = self.map();
        let map = match self.links.map_again(&known, &self.epoch()).await {
            Ok(map) => Arc::new(map),
            Err(error) => {
                tracing::debug!(%error, "nobody says where the slots are");
                return;
            }
        };
        if *map == *known {
            return;
        }
        tracing::info!(masters = ?map.masters(), "slots have moved");
        let moved = (0..GROUPS).filter(|group| map.of_group(*group) != known.of_group(*group));
        // Before, so that nothing of the old master is shown to the new one; and after, because the old one may have been asked in between.
        self.wholes.forget(moved.clone());
        {
            let _waiting = self.waiting.lock();
            *self.map.write() = Arc::clone(&map);
        }
        self.wholes.forget(moved);
        for address in map.masters() {
            self.lane(&address).come.notify_one();
        }
        for address in map.masters().iter().filter(|address| !known.masters().contains(address)) {
            self.check_rights(address).await;
        }
    }
}

/// What is said of a counter as the tables have it.
fn state_of(key: &[u8], mut seen: Seen, policies: &Policies, now_ms: u64) -> Reply {
    let ruled = Ruled { limits: policies.limits(key), policy: policies.policy_for(key), rules: RULES };
    decide_whole(&mut seen.whole, Asked { action: &Action::Read, payload: &[] }, ruled, now_ms, 0).reply
}

fn only_looks(unit: &Unit) -> bool {
    unit.batch().only_looks(unit.range())
}

/// Where the first call of a queue ends.
fn call_end(queue: &VecDeque<Unit>) -> usize {
    let (mut requests, mut end) = (0, 0);
    while end < queue.len() {
        // A batch of one client goes as a whole, so that nobody sees a later request of it without an earlier one.
        let of_batch = queue
            .range(end..)
            .take_while(|unit| unit.is_of_same_batch(&queue[end]) && unit.is_apart == queue[end].is_apart)
            .map(|unit| unit.range().len());
        let (mut more, mut size) = (0, 0);
        for length in of_batch {
            if size + length > REQUESTS_PER_CALL_MAX {
                break;
            }
            (more, size) = (more + 1, size + length);
        }
        if requests + size > REQUESTS_PER_CALL_MAX || queue[end].is_apart != queue[0].is_apart {
            break;
        }
        (requests, end) = (requests + size, end + more);
    }
    end
}

fn lost(group: u16, epoch: &str, found: &str) -> Unavailable {
    let found = if found.is_empty() { "has none".to_owned() } else { format!("is of {found}") };
    Unavailable::NoLeader(format!(
        "Redis has lost the counters of group {group}: they were of epoch {epoch}, and what is there now {found}"
    ))
}

#[cfg(test)]
mod tests {
    use quipu_counting::{Add, Batch};

    use super::*;
    use crate::units::split;

    /// What is recognized writes nothing, whoever wrote it; newer servers have WAIT speak of what the connection itself has written.
    #[test]
    fn something_is_written_before_replicas_are_waited_for() {
        let links = Links::new("redis://127.0.0.1:1", Duration::from_secs(1)).expect("an address");
        let options = Options { wait_replicas: 1, ..Options::default() };
        let map = Map::single("127.0.0.1:1".to_owned());
        let lanes = Lanes::new(options, links, "epoch".to_owned(), map, None);
        let waits = |fill: &dyn Fn(&mut Batch)| {
            let mut batch = Batch::default();
            fill(&mut batch);
            let calls = [Call::Plain(0, split(batch, 0, Box::new(|_, _| {})))];
            let mut pipeline = Pipeline::new();
            (lanes.wait_for_replicas(&calls, &mut pipeline), pipeline.len())
        };
        let add = Action::Add(Add::plain(1));
        assert_eq!(waits(&|batch| _ = batch.push(b"likes", Action::Read)), (0, 0));
        assert_eq!(waits(&|batch| _ = batch.push(b"likes", add)), (1, 1));
        assert_eq!(waits(&|batch| _ = batch.push_with_id(b"likes", add, b"a", 0)), (2, 2));
    }
}

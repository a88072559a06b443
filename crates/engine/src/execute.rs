//! The path of a batch through the engine.
//!
//! 1. Every key gets its place: partition and hash.
//! 2. All touched partitions are locked in ascending order, slots and records are prefetched.
//! 3. What is not in memory is collected; if there is any, nothing runs: the caller fetches it first.
//! 4. Requests are decided and carried out in command order.
//! 5. Which counters they were for is counted, for those who ask which are hot.
//! 6. The effects of all partitions become one record of the log, appended under the same locks.
//!
//! Before that, room in the log is reserved, which is the only step that may wait for a disk: when the log's buffer
//! is full, or its segment is and the next one is not ready. Nothing waits under a partition's lock.

mod groups;

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;
use quipu_counting::identity::{fingerprint, group_fingerprint, request_fingerprint};
use quipu_counting::kinds::{Asked, RULES, Ruled, WholeItem, decide_whole, decide_whole_group, recall};
use quipu_counting::rules::GroupItem;
use quipu_counting::session::{SESSIONS_PER_PARTITION_MAX, admit};
use quipu_counting::slot::{partition, slot};
use quipu_counting::{
    Action, Add, Batch, Cell, Change, Deed, Group, GroupKind, Identity, Kind, Outcome, Refusal, Remembered,
    Reply, Request, Session, SessionVerdict, Unavailable, Whole, decide, decide_group,
};
use quipu_store::{Appender, LogError};
use quipu_wire::audit::CHANGE_BYTES_MAX;
use quipu_wire::entry;
use smallvec::SmallVec;

use crate::engine::{Engine, cold_unavailable};
use crate::fetch::{Fetched, Missing};
use crate::hot;
use crate::ids::Known;
use crate::partition::{Partition, hash, plain_delta};
use crate::record::Flags;
use crate::replicated::Step;
use crate::table::RecordNumber;
use crate::trail::Told;

/// Requests in one batch. The fronts cut far earlier; this bounds the size of a log record and the time locks
/// are held.
pub const REQUESTS_PER_BATCH_MAX: usize = 65_536;
/// Room in the log for a batch beside its requests. A producer session finds room in that of its requests, which
/// are not remembered one by one.
const RECORD_BASE_BYTES: usize = 1024;

/// How often what a batch needs is fetched because it was evicted again meanwhile. What does not fit into memory together never stays.
pub(crate) const FETCHES_MAX: usize = 16;

/// What who asks for that is told.
pub(crate) fn too_much_for_memory() -> Unavailable {
    Unavailable::Unsupported(
        "these counters do not fit into memory together, nothing was changed; ask for fewer at once, or give more with --memory".into(),
    )
}

/// How an attempt to run a batch went.
pub enum Attempt {
    /// It ran; its replies reveal the log up to this offset.
    Done(u64),
    /// It did not run: this must be fetched first.
    Missing(Missing),
    /// It did not run: this partition has too much that is not yet in the cold store.
    Crowded(u16),
}

/// Whose counters a batch is for.
#[derive(Clone, Copy)]
pub enum Scope<'a> {
    /// The node's; what it does goes to the log.
    Node,
    /// Those of one partition, whose changes are ordered elsewhere.
    Partition {
        /// Which.
        index: u16,
        /// Where in what was agreed on this batch stands; `None` for one that only looks.
        step: Option<Step<'a>>,
        /// Somebody waits for the replies here; other replicas carry the same out for nobody.
        is_asked_here: bool,
        /// By which rules it is decided.
        rules: u64,
    },
}

impl Scope<'_> {
    /// By which rules is decided.
    fn rules(self) -> u64 {
        match self {
            Scope::Node => RULES,
            Scope::Partition { rules, .. } => rules,
        }
    }

    /// Whether its requests are counted here: each once, wherever its partition is carried out.
    fn is_asked_here(self) -> bool {
        matches!(self, Scope::Node | Scope::Partition { is_asked_here: true, .. })
    }
}

/// How far a batch came with everything it needs being fetched.
pub enum Progress {
    /// It ran; its replies reveal the log up to this offset.
    Done(u64),
    /// It did not run: this partition needs a checkpoint first.
    Crowded(u16),
}

/// Where a request's counter lives.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) partition: u16,
    pub(crate) hash: u32,
    /// It is the counter of the request before: many ask for a hot one at once.
    pub(crate) is_repeated: bool,
    /// What is about all counters has none.
    pub(crate) has_key: bool,
    /// Identity of the request id, 0 without one.
    identity: Identity,
}

/// Buffers that a thread reuses from batch to batch.
#[derive(Default)]
struct Scratch {
    places: Vec<Place>,
    record: Vec<u8>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::default());
}

pub(crate) type Guards<'a> = SmallVec<[Option<MutexGuard<'a, Partition>>; 16]>;

impl Engine {
    /// Fetches what the batch needs and runs it, unless it has to make way for a checkpoint.
    pub(crate) fn advance(
        &self,
        batch: &mut Batch,
        now_ms: u64,
        fetched: &mut Fetched,
        yields: bool,
    ) -> Result<Progress, Unavailable> {
        for _ in 0..FETCHES_MAX {
            match self.attempt(batch, now_ms, fetched, yields, Scope::Node)? {
                Attempt::Done(offset) => return Ok(Progress::Done(offset)),
                Attempt::Crowded(partition) => return Ok(Progress::Crowded(partition)),
                Attempt::Missing(missing) => self.fetch(missing, fetched).map_err(cold_unavailable)?,
            }
        }
        Err(too_much_for_memory())
    }

    /// Runs the batch if everything it needs is in memory or in `fetched`. With `yields` it makes way for the
    /// checkpoint of a crowded partition.
    pub(crate) fn attempt(
        &self,
        batch: &mut Batch,
        now_ms: u64,
        fetched: &Fetched,
        yields: bool,
        scope: Scope<'_>,
    ) -> Result<Attempt, Unavailable> {
        if batch.requests.len() > REQUESTS_PER_BATCH_MAX {
            let count = batch.requests.len();
            return Err(Unavailable::Unsupported(format!(
                "{count} requests in one batch; the limit is {REQUESTS_PER_BATCH_MAX}, send several"
            )));
        }
        SCRATCH.with_borrow_mut(|scratch| {
            let attempt = self.attempt_with(batch, now_ms, fetched, yields, scope, scratch);
            scratch.record.clear();
            scratch.record.shrink_to(1 << 20);
            attempt
        })
    }

    fn attempt_with(
        &self,
        batch: &mut Batch,
        now_ms: u64,
        fetched: &Fetched,
        yields: bool,
        scope: Scope<'_>,
        scratch: &mut Scratch,
    ) -> Result<Attempt, Unavailable> {
        let writes = may_write(batch);
        let policies_at = self.policies_offset.load(Ordering::Acquire);
        let appender = match (writes, scope) {
            (true, Scope::Node | Scope::Partition { step: None, .. }) if self.replication.is_some() => {
                return Err(Unavailable::Unsupported(
                    "what changes a replicated counter must be agreed on".into(),
                ));
            }
            (true, Scope::Node) => {
                let room = self.record_bytes(batch) + self.policies_bytes(batch);
                Some(self.log.appender(room).map_err(unavailable)?)
            }
            _ => None,
        };
        self.find_places(batch, &mut scratch.places);
        let mut guards = match scope {
            Scope::Node => self.lock_touched(batch, &scratch.places),
            Scope::Partition { index, .. } => self.lock_one(index, batch, &scratch.places)?,
        };
        if appender.is_some()
            && self.says_more.load(Ordering::Relaxed)
            && self.policies_offset.load(Ordering::Acquire) != policies_at
        {
            // A policy came between the reservation and the locks, under which more may be said.
            drop((guards, appender));
            return self.attempt_with(batch, now_ms, fetched, yields, scope, scratch);
        }
        // Asked under the locks: memory may show a change that the log did not take.
        if let Some(reason) = self.failed() {
            return Err(Unavailable::Failed(reason));
        }
        if let Scope::Partition { step: Some(step), .. } = scope {
            guards.iter().flatten().try_for_each(|held| held.check_step(step))?;
        }
        if let Some(crowded) = guards.iter().flatten().find(|held| yields && writes && self.is_crowded(held))
        {
            return Ok(Attempt::Crowded(crowded.index));
        }
        let mut look_ahead = LookAhead::default();
        let is_all_here = guards.iter().flatten().all(|held| held.complete)
            && scratch.places.iter().all(|place| place.identity == 0);
        if !is_all_here
            && let Some(missing) = find_missing(batch, &scratch.places, &guards, fetched, &mut look_ahead)
        {
            return Ok(Attempt::Missing(missing));
        }
        let times: SmallVec<[u64; 16]> = guards.iter().flatten().map(|held| held.time_ms).collect();
        guards.iter_mut().flatten().for_each(|held| held.begin(now_ms));
        let mut run = Run {
            guards: &mut guards,
            places: &scratch.places,
            fetched,
            engine: self,
            fingerprinted: None,
            look_ahead: LookAhead::default(),
            last: None,
            scope,
        };
        run.all(batch);
        match scope {
            Scope::Partition { index, step: Some(step), .. } => {
                let held = run.held(index);
                held.effects.clear();
                held.set_mark(step.to);
            }
            // Time is agreed on like everything else: looking does not move it.
            _ if self.replication.is_some() => {
                guards.iter_mut().flatten().zip(times).for_each(|(held, time_ms)| held.time_ms = time_ms);
            }
            _ => {}
        }
        if self.finds_hot_keys && scope.is_asked_here() {
            hot::count(&mut guards, batch, &scratch.places, now_ms);
        }
        let offset = match appender {
            Some(appender) => {
                let offset = append(&appender, &mut guards, &mut scratch.record)
                    .map_err(|error| self.poison(error))?;
                drop(guards);
                drop(appender);
                // The batch has happened: a segment that cannot be had now is the next appender's error.
                let _ = self.log.roll_if_full();
                offset
            }
            None => newest_offset(&guards),
        };
        // What a policy allowed or refused must not be shown before the policy itself is durable.
        Ok(Attempt::Done(offset.max(self.policies_offset.load(Ordering::Acquire))))
    }

    /// The most the batch can take in the log, but for what policies have it say.
    fn record_bytes(&self, batch: &Batch) -> usize {
        let clears = batch.requests.iter().filter(|request| matches!(request.action, Action::Clear)).count();
        RECORD_BASE_BYTES
            + batch.bytes_len()
            + clears * self.partitions.len()
            + batch.requests.len() * entry::EFFECTS_BYTES_MAX
            + self.partitions.len() * entry::SECTION_HEADER_BYTES_MAX
    }

    /// The most that the log says of roll-ups, of calendars, and in trails: of a change a row, and one of a counter that had expired.
    fn policies_bytes(&self, batch: &Batch) -> usize {
        if !self.says_more.load(Ordering::Relaxed) {
            return 0;
        }
        let policies = Arc::clone(&self.partitions[0].lock().policies);
        let rollup_bytes = policies.rollup_bytes_max();
        let mut bytes = if policies.longest_audit_ms().is_some() { 2 * batch.bytes_len() } else { 0 };
        for request in &batch.requests {
            let policy = match request.action.is_global() {
                true => {
                    bytes += self.partitions.len() * CHANGE_BYTES_MAX;
                    None
                }
                false => policies.policy_for(batch.bytes(request.key)),
            };
            if let Some(policy) = policy {
                bytes += if policy.audit_ms.is_some() { 2 * CHANGE_BYTES_MAX } else { 0 };
                bytes += if policy.rollups.is_some() { rollup_bytes } else { 0 };
                bytes += policy.recut_bytes_max();
            }
        }
        bytes
    }

    fn find_places(&self, batch: &Batch, places: &mut Vec<Place>) {
        let count = self.partitions.len() as u16;
        places.clear();
        let (mut last_key, mut last) = (&[][..], (0, 0));
        places.extend(batch.requests.iter().map(|request| {
            let key = batch.bytes(request.key);
            let identity = match &request.id {
                Some(id) => self.identity_key.identity(NAMESPACE, key, batch.bytes(id.span), id.index),
                None => 0,
            };
            // Different keys mostly differ at their ends.
            let is_repeated = key.last() == last_key.last() && key == last_key && !key.is_empty();
            if !is_repeated {
                last_key = key;
                last = (partition(slot(key), count), hash(key, self.hash_seed));
            }
            Place { partition: last.0, hash: last.1, is_repeated, has_key: !key.is_empty(), identity }
        }));
    }

    /// Ascending order, so that two batches never wait for each other.
    fn lock_touched(&self, batch: &Batch, places: &[Place]) -> Guards<'_> {
        let mut touched: SmallVec<[bool; 16]> = SmallVec::from_elem(false, self.partitions.len());
        for (request, place) in batch.requests.iter().zip(places) {
            match request.action.is_global() {
                true => touched.fill(true),
                false => touched[usize::from(place.partition)] = true,
            }
        }
        for group in &batch.groups {
            if let GroupKind::Session { producer, .. } = group.kind {
                touched[usize::from(self.session_partition(batch.bytes(producer)))] = true;
            }
        }
        self.partitions
            .iter()
            .zip(touched)
            .map(|(partition, touched)| touched.then(|| partition.lock()))
            .collect()
    }

    fn lock_one(&self, index: u16, batch: &Batch, places: &[Place]) -> Result<Guards<'_>, Unavailable> {
        let is_of_it =
            |(request, place): (&Request, &Place)| request.action.is_global() || place.partition == index;
        if !batch.requests.iter().zip(places).all(is_of_it) {
            return Err(Unavailable::Unsupported(format!("a request is not for partition {index}")));
        }
        let numbered = self.partitions.iter().zip(0u16..);
        Ok(numbered.map(|(partition, number)| (number == index).then(|| partition.lock())).collect())
    }

    /// The partition that keeps a producer's session.
    pub(crate) fn session_partition(&self, producer: &[u8]) -> u16 {
        partition(slot(producer), self.partitions.len() as u16)
    }
}

/// Whether the batch could leave anything behind: a change, or that a request is remembered, if only a read.
fn may_write(batch: &Batch) -> bool {
    batch.requests.iter().any(|request| request.action.is_write() || request.id.is_some())
        || batch.groups.iter().any(|group| matches!(group.kind, GroupKind::Session { .. }))
}

/// All counters are in namespace 0 for now; ids and rows carry it so that tenants can have their own.
pub(crate) const NAMESPACE: u32 = 0;

/// Starts loading what the next requests will touch, a few requests ahead of the one at hand: far enough to hide memory,
/// near enough to find it still in the first cache.
#[derive(Default)]
struct LookAhead {
    slots_to: usize,
    records_to: usize,
}

impl LookAhead {
    /// How many requests ahead a record is loaded; its slot must be there by then and is loaded as many further ahead.
    const REQUESTS: usize = 16;

    #[inline]
    fn advance(&mut self, index: usize, guards: &Guards<'_>, places: &[Place]) {
        let slots_to = (index + 2 * Self::REQUESTS).min(places.len());
        while self.slots_to < slots_to {
            let place = &places[self.slots_to];
            if let Some(held) = &guards[usize::from(place.partition)]
                && (!place.is_repeated || place.identity != 0)
            {
                held.table.prefetch_slot(place.hash);
                if place.identity != 0 {
                    held.ids.prefetch(place.identity);
                }
            }
            self.slots_to += 1;
        }
        let records_to = (index + Self::REQUESTS).min(places.len());
        while self.records_to < records_to {
            let place = &places[self.records_to];
            if let Some(held) = &guards[usize::from(place.partition)]
                && !place.is_repeated
            {
                held.table.prefetch_record(place.hash);
            }
            self.records_to += 1;
        }
    }
}

/// What memory cannot tell of the counters and ids of the batch.
fn find_missing(
    batch: &Batch,
    places: &[Place],
    guards: &Guards<'_>,
    fetched: &Fetched,
    look_ahead: &mut LookAhead,
) -> Option<Missing> {
    let mut missing = Missing::default();
    for (index, place) in places.iter().enumerate() {
        look_ahead.advance(index, guards, places);
        let Some(held) = &guards[usize::from(place.partition)] else { continue };
        if place.identity != 0
            && held.ids.is_perhaps_on_disk(place.identity)
            && !fetched.knows(place.partition, place.identity, held.checkpoints)
        {
            missing.id(held, place.identity);
        }
        let key = batch.key(index);
        if !held.complete && !key.is_empty() && held.table.find(place.hash, key).is_none() {
            missing.cell(held, place.hash, key);
        }
    }
    (!missing.is_empty()).then_some(missing)
}

/// Makes the effects of all partitions one record.
fn append(appender: &Appender<'_>, guards: &mut Guards<'_>, record: &mut Vec<u8>) -> Result<u64, LogError> {
    record.clear();
    guards.iter().flatten().for_each(|held| held.put_section(record));
    if !record.is_empty() {
        let end = appender.append(&[record])?;
        guards.iter_mut().flatten().for_each(|held| held.appended(end));
    }
    Ok(newest_offset(guards))
}

fn newest_offset(guards: &Guards<'_>) -> u64 {
    guards.iter().flatten().map(|held| held.last_offset).max().unwrap_or(0)
}

/// What the fronts are told of a log that did not take a record.
pub(crate) fn unavailable(error: LogError) -> Unavailable {
    match error {
        LogError::Full(what) => Unavailable::Full(what.to_string()),
        LogError::TooLarge { .. } => Unavailable::Unsupported(error.to_string()),
        other => Unavailable::Failed(other.to_string()),
    }
}

/// One batch under way, all locks held.
struct Run<'a, 'guard> {
    guards: &'a mut Guards<'guard>,
    places: &'a [Place],
    fetched: &'a Fetched,
    engine: &'a Engine,
    /// The last plain addition under an id, and its fingerprint.
    fingerprinted: Option<(i64, u64)>,
    look_ahead: LookAhead,
    /// The record of the request before, if that was for one counter and its record is known.
    last: Option<RecordNumber>,
    scope: Scope<'a>,
}

impl Run<'_, '_> {
    fn all(&mut self, batch: &mut Batch) {
        let mut replies = std::mem::take(&mut batch.replies);
        replies.clear();
        let mut groups = batch.groups.iter().peekable();
        let mut index = 0;
        while index < batch.requests.len() {
            self.look_ahead.advance(index, self.guards, self.places);
            // What a failed guard has skipped.
            while groups.next_if(|group| group.start < index).is_some() {}
            match groups.next_if(|group| group.start == index) {
                Some(group) => {
                    self.last = None;
                    index = self.group(batch, group, &mut replies).max(index);
                }
                None => {
                    let until = groups.peek().map_or(batch.requests.len(), |group| group.start);
                    let repeated = self.repeats(batch, index, until, &mut replies);
                    if repeated == 0 {
                        replies.push(self.single(batch, index));
                    }
                    index += repeated.max(1);
                }
            }
        }
        for held in self.guards.iter_mut().flatten() {
            held.make_room(self.engine.partition_budget_bytes);
        }
        batch.replies = replies;
    }

    fn held(&mut self, partition: u16) -> &mut Partition {
        // Every partition of a place is locked before a run begins.
        #[allow(clippy::expect_used)]
        self.guards[usize::from(partition)].as_mut().expect("the partition of a request is locked")
    }

    #[inline]
    fn single(&mut self, batch: &Batch, index: usize) -> Reply {
        let request = &batch.requests[index];
        if request.action.is_global() {
            self.last = None;
            return self.global(batch, index);
        }
        let place = self.places[index];
        // Of a plain addition the log can say in one effect what was done and what is remembered.
        let plain = match request.action {
            Action::Add(add) if place.identity != 0 && add == Add::plain(add.delta) => Some(add.delta),
            _ => None,
        };
        let fingerprint = match (place.identity, plain) {
            (0, _) => 0,
            (_, Some(delta)) => self.plain_fingerprint(delta),
            (_, None) => request_fingerprint(batch, index),
        };
        if let Some(known) = self.remembered(place) {
            self.last = None;
            return self.answer_again(batch, index, &known, fingerprint);
        }
        let key = batch.bytes(request.key);
        let last = if place.is_repeated { self.last } else { None };
        let held = self.held(place.partition);
        let limits = held.limits(key);
        let found = last.or_else(|| held.table.find(place.hash, key));
        if request.action.is_for_whole() || limits.is_for_whole || held.has_body(found) {
            self.last = None;
            return self.whole(batch, index, fingerprint);
        }
        let before = found.and_then(|number| held.table.cell(number));
        let verdict = decide(before, &request.action, &limits, held.time_ms, held.sequence + 1);
        let under = plain.map(|delta| (place.identity, delta));
        let (number, is_in_log) = held.change_under(place.hash, key, found, before, &verdict.change, under);
        if let (Action::Read, Some(number)) = (&request.action, found) {
            held.mark_used(number);
        }
        if place.identity != 0 {
            held.remember_reply(place.identity, fingerprint, &verdict.reply, is_in_log);
        }
        self.last = number;
        verdict.reply
    }

    /// A request for a counter that is more than its numbers, or that only such counters know.
    #[cold]
    fn whole(&mut self, batch: &Batch, index: usize, fingerprint: u64) -> Reply {
        let (place, key) = (self.places[index], batch.key(index));
        let action = &batch.requests[index].action;
        let rules = self.scope.rules();
        let held = self.held(place.partition);
        let policies = Arc::clone(&held.policies);
        let ruled = Ruled { limits: held.limits(key), policy: policies.policy_for(key), rules };
        let found = held.table.find(place.hash, key);
        let before = found.and_then(|number| held.table.cell(number));
        if let (true, Some(number)) = (action.is_write(), found) {
            held.save_image(number, before);
        }
        let mut whole = Whole { cell: before, body: held.bodies.lend(key) };
        let asked = Asked { action, payload: batch.payload(index) };
        let decided = decide_whole(&mut whole, asked, ruled, held.time_ms, held.sequence + 1);
        held.change_whole(place.hash, key, (found, before), &decided, whole.body);
        if ruled.limits.audit_ms > 0 {
            let told = Told { held: decided.held, ..told(batch, index) };
            held.trace_change(key, ruled.limits.audit_ms, before, &decided.change, told);
        }
        if let (false, Some(number)) = (action.is_write(), found) {
            held.mark_used(number);
        }
        if place.identity != 0 {
            held.remember_reply(place.identity, fingerprint, &decided.reply, false);
        }
        decided.reply
    }

    /// What a request is told that was decided before.
    fn answer_again(&mut self, batch: &Batch, index: usize, known: &Remembered, fingerprint: u64) -> Reply {
        let mut reply = known.answer(fingerprint);
        let action = &batch.requests[index].action;
        let (place, key, rules) = (self.places[index], batch.key(index), self.scope.rules());
        let held = self.held(place.partition);
        let found = held.table.find(place.hash, key);
        let is_whole = held.has_body(found);
        if is_whole || action.is_for_whole() {
            let cell = found.and_then(|number| held.table.cell(number));
            // Whether what has expired is still here must not show.
            let is_live = is_whole && cell.is_some_and(|cell| cell.is_live(held.time_ms));
            let body = if is_live { held.bodies.get(key).cloned() } else { None };
            reply.kind = body.as_ref().map_or(Kind::Sum, |body| body.kind());
            if action.is_for_whole() && reply.refusal.is_none() {
                let policies = Arc::clone(&held.policies);
                let ruled = Ruled { limits: held.limits(key), policy: policies.policy_for(key), rules };
                let asked = Asked { action, payload: batch.payload(index) };
                let whole = Whole { cell, body };
                reply.detail = recall(&whole, asked, ruled, (&reply, known.at_ms), held.time_ms);
            }
        }
        reply
    }

    /// Carries out the plain additions from `from` on that repeat the counter of the request before, and says how many:
    /// however often a batch asks for a hot counter, it is read and written once, and the log says once how often.
    #[inline]
    fn repeats(&mut self, batch: &Batch, from: usize, until: usize, replies: &mut Vec<Reply>) -> usize {
        let place = self.places[from];
        let (true, Some(number)) = (place.is_repeated, self.last) else { return 0 };
        let key = batch.bytes(batch.requests[from].key);
        let places = self.places;
        let held = self.held(place.partition);
        let limits = held.limits(key);
        let Some(before) = held.table.cell(number) else { return 0 };
        if limits.is_for_whole || held.has_body(Some(number)) {
            return 0;
        }
        let (mut after, mut times) = (before, 0);
        for (request, place) in batch.requests[from..until].iter().zip(&places[from..until]) {
            let is_alike = place.is_repeated
                && place.identity == 0
                && matches!(request.action, Action::Add(add) if add == Add::plain(add.delta));
            if !is_alike {
                break;
            }
            let verdict =
                decide(Some(after), &request.action, &limits, held.time_ms, held.sequence + times + 1);
            let Change::Put(cell) = verdict.change else { break };
            let is_plain = plain_delta(Some(after), Some(cell), held.time_ms).is_some();
            // The log adds the sum at once, which must be a number too.
            if !is_plain || cell.value.checked_sub(before.value).is_none() {
                break;
            }
            replies.push(verdict.reply);
            (after, times) = (cell, times + 1);
        }
        if times > 0 {
            self.last = Some(held.add_times(place.hash, key, number, (before, after), times));
        }
        times as usize
    }

    /// Nearly all additions are of the same amount.
    fn plain_fingerprint(&mut self, delta: i64) -> u64 {
        match self.fingerprinted {
            Some((known, fingerprint)) if known == delta => fingerprint,
            _ => {
                let fingerprint = fingerprint(&Action::Add(Add::plain(delta)));
                self.fingerprinted = Some((delta, fingerprint));
                fingerprint
            }
        }
    }

    /// What is remembered under a request's id and still counts.
    fn remembered(&mut self, place: Place) -> Option<Remembered> {
        if place.identity == 0 {
            return None;
        }
        let (fetched, window_ms) = (self.fetched, self.engine.id_window_ms);
        let held = self.held(place.partition);
        let known = match held.ids.find(place.identity) {
            Known::New => None,
            Known::Here(remembered) => Some(remembered),
            Known::Perhaps => fetched.remembered(place.partition, place.identity),
        };
        known.filter(|remembered| remembered.is_current(held.time_ms, window_ms))
    }

    fn global(&mut self, batch: &Batch, index: usize) -> Reply {
        let counters: u64 = self.guards.iter().flatten().map(|held| held.count).sum();
        if matches!(batch.requests[index].action, Action::Clear) {
            for held in self.guards.iter_mut().flatten() {
                held.clear();
                held.trace_clear(told(batch, index));
            }
        }
        Reply { cell: Cell { value: counters as i64, ..Cell::ABSENT }, ..Reply::state(None) }
    }
}

/// What the trail says of a request beside what came of it.
fn told(batch: &Batch, index: usize) -> Told<'_> {
    let request = &batch.requests[index];
    let (deed, reason) = Deed::of(&request.action, batch.payload(index));
    Told {
        deed,
        reason,
        request_id: request.id.map(|id| batch.bytes(id.span)),
        by: batch.origin(index).map(|origin| &**origin),
        held: 0,
    }
}

impl Partition {
    fn remember_reply(&mut self, identity: Identity, fingerprint: u64, reply: &Reply, is_in_log: bool) {
        if reply.refusal.is_none_or(Refusal::is_remembered) {
            let outcome = Outcome::of(reply);
            self.remember(Remembered { identity, fingerprint, at_ms: self.time_ms, outcome }, is_in_log);
        }
    }

    /// Whether the counter of a record is more than its numbers.
    #[inline]
    fn has_body(&self, found: Option<RecordNumber>) -> bool {
        found.is_some_and(|number| self.table.flags(number).any(Flags::BODY))
    }

    fn mark_used(&mut self, number: RecordNumber) {
        let flags = self.table.flags(number);
        if !flags.any(Flags::REFERENCED) {
            self.table.set_flags(number, flags.with(Flags::REFERENCED));
        }
    }
}

//! One world: an engine that is asked, checkpointed, crashed and opened again, and the model beside it.

use std::sync::Arc;

use quipu_counting::{
    Action, Add, AuditQuery, Batch, Counters, Deed, Execution, Policies, Reply, Unavailable,
};
use quipu_engine::{Digest, Engine, Options};
use quipu_store::LogOptions;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::asks::{Ask, Drawing, Item, keys};
use super::ground::Ground;
use super::model::{Model, Trace};
use crate::config::START_MS;
use crate::violation::{Invariant, Violation};

/// How long a world lasts, usually.
pub const STEPS: usize = 200;
/// Ids are remembered for longer than any world lasts.
const ID_WINDOW_MS: u64 = 1 << 40;
/// Memory of a partition in which bodies do not all fit: a chunk of records and a little.
const TIGHT_BYTES: u64 = 300 << 10;
const ROOMY_BYTES: u64 = 64 << 20;

/// What happened, to see that worlds do what they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub asks: u64,
    pub retries: u64,
    pub lives: u64,
    pub checkpoints: u64,
    pub evicted: u64,
    pub cold_reads: u64,
    pub steps_lost: u64,
    pub digests: u64,
}

impl Stats {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Stats) -> Stats {
        Stats {
            asks: self.asks + other.asks,
            retries: self.retries + other.retries,
            lives: self.lives + other.lives,
            checkpoints: self.checkpoints + other.checkpoints,
            evicted: self.evicted + other.evicted,
            cold_reads: self.cold_reads + other.cold_reads,
            steps_lost: self.steps_lost + other.steps_lost,
            digests: self.digests + other.digests,
        }
    }
}

/// How many sums with long names there are in some worlds: several chunks of records for each of some partitions.
const FILLERS: usize = 2_400;
const FILLERS_AT_ONCE: usize = 100;
const FILLER_BYTES: usize = 400;

fn fillers() -> Vec<Vec<u8>> {
    (0..FILLERS).map(|number| format!("sum:{number:0>FILLER_BYTES$}").into_bytes()).collect()
}

struct World {
    random: SmallRng,
    ground: Ground,
    engine: Option<Arc<Engine>>,
    partitions: u16,
    memory_bytes: u64,
    segment_bytes: u64,
    items_max: usize,
    keys: Vec<Vec<u8>>,
    /// Sums with long names, so many that chunks of records are swept.
    fillers: Vec<Vec<u8>>,
    next_id: u64,
    now: u64,
    /// As it was after every batch since the last that is certainly durable, that one included.
    history: Vec<Model>,
    /// Up to here of the log somebody was told something.
    newest_offset: u64,
    is_armed: bool,
    is_broken: bool,
    is_traced: bool,
    stats: Stats,
}

/// Runs a world on this ground. A panic counts as a violation.
pub fn run(seed: u64, ground: Ground, steps: usize, is_traced: bool) -> Result<Stats, Violation> {
    let whole = std::panic::AssertUnwindSafe(|| run_to_the_end(seed, ground, steps, is_traced));
    std::panic::catch_unwind(whole)
        .unwrap_or_else(|_| Err(Violation::new(Invariant::Progress, "a panic, told above")))
}

fn run_to_the_end(seed: u64, ground: Ground, steps: usize, is_traced: bool) -> Result<Stats, Violation> {
    let mut random = SmallRng::seed_from_u64(seed);
    let partitions = 1 << random.random_range(0..3);
    let is_tight = random.random_ratio(1, 2);
    let count = random.random_range(7..if is_tight { 70 } else { 25 });
    let mut world = World {
        ground,
        engine: None,
        partitions,
        memory_bytes: u64::from(partitions) * if is_tight { TIGHT_BYTES } else { ROOMY_BYTES },
        segment_bytes: (256 << 10) << random.random_range(0..3),
        items_max: if is_tight { 1_200 } else { 300 },
        keys: keys(count),
        fillers: if is_tight && random.random_ratio(1, 3) { fillers() } else { Vec::new() },
        next_id: 0,
        now: START_MS,
        history: vec![Model::default()],
        newest_offset: 0,
        is_armed: false,
        is_broken: false,
        is_traced,
        stats: Stats::default(),
        random,
    };
    world.begin_life(None)?;
    for _ in 0..steps {
        world.step()?;
        if world.is_broken || world.ground.is_down() {
            world.end_life()?;
        }
    }
    world.ground.disarm();
    world.is_armed = false;
    world.end_life()?;
    world.count_life();
    Ok(world.stats)
}

fn surprise(what: &str) -> impl Fn(Unavailable) -> Violation {
    move |error| Violation::new(Invariant::Progress, format!("{what}: {error}"))
}

/// By key.
type Trails = Vec<(Vec<u8>, Vec<Trace>)>;

impl World {
    fn trace(&self, what: impl FnOnce() -> String) {
        if self.is_traced {
            eprintln!("{:>8} {}", self.now - START_MS, what());
        }
    }

    fn engine(&self) -> Arc<Engine> {
        Arc::clone(self.engine.as_ref().expect("between two lives nobody asks for the engine"))
    }

    fn model(&self) -> &Model {
        self.history.last().expect("there is always a last one")
    }

    fn step(&mut self) -> Result<(), Violation> {
        match self.random.random_range(0..100) {
            0..66 => self.ask(false),
            66..74 => {
                self.now += match self.random.random_range(0..8) {
                    0..6 => self.random.random_range(0..700),
                    6 => self.random.random_range(0..20_000),
                    _ => self.random.random_range(0..400_000),
                };
                Ok(())
            }
            74..78 => {
                self.trace(|| "tend".into());
                self.engine().tend(self.now);
                Ok(())
            }
            78..86 => self.checkpoint(),
            86..90 => self.set_policy(),
            90 => self.clear(),
            91..93 => self.settle(),
            93..97 => {
                self.is_armed |= self.ground.arm(&mut self.random);
                Ok(())
            }
            _ => self.end_life(),
        }
    }

    fn draw(&mut self) -> Vec<Ask> {
        if !self.fillers.is_empty() && self.random.random_ratio(1, 6) {
            let from = self.random.random_range(0..self.fillers.len() - FILLERS_AT_ONCE);
            let plain = |key: &Vec<u8>| Item {
                key: key.clone(),
                action: Action::Add(Add::plain(1)),
                payload: Vec::new(),
            };
            let asked = self.fillers[from..from + FILLERS_AT_ONCE].iter();
            return asked.map(|key| Ask { items: vec![plain(key)], is_group: false, id: None }).collect();
        }
        let model = self.history.last().cloned().unwrap_or_default();
        let count = self.random.random_range(1..5);
        let mut drawing = Drawing {
            random: &mut self.random,
            model: &model,
            keys: &self.keys,
            next_id: &mut self.next_id,
            now_ms: self.now,
            items_max: self.items_max,
        };
        (0..count).map(|_| drawing.ask()).collect()
    }

    /// One batch; `in_between` while a checkpoint is running, when nothing may wait for another.
    fn ask(&mut self, in_between: bool) -> Result<(), Violation> {
        let asks = self.draw();
        let mut batch = Batch::default();
        asks.iter().for_each(|ask| ask.push(&mut batch));
        let engine = self.engine();
        let ran = match in_between {
            true => match engine.execute(&mut batch, self.now) {
                Ok(Execution::Pending) => return Ok(()),
                Ok(Execution::Done { offset }) => Ok(offset),
                Err(error) => Err(error),
            },
            false => engine.run(&mut batch, self.now),
        };
        let actions = || asks.iter().flat_map(|ask| &ask.items).map(|item| format!("{:?}", item.action));
        self.trace(|| format!("{ran:?} {:?}", actions().collect::<Vec<_>>()));
        let mut model = self.model().clone();
        let offset = match ran {
            Ok(offset) => offset,
            Err(Unavailable::Failed(_)) if self.is_armed => {
                // Perhaps it happened. Nobody knows the births then.
                self.expect(&mut model, &asks, &batch, None)?;
                model.forget_unknown_to(self.model());
                self.history.push(model);
                self.is_broken = true;
                return Ok(());
            }
            Err(error) => return self.excuse(error),
        };
        let replies = std::mem::take(&mut batch.replies);
        self.expect(&mut model, &asks, &batch, Some(&replies))?;
        self.history.push(model);
        self.newest_offset = self.newest_offset.max(offset);
        self.stats.asks += replies.len() as u64;
        self.stats.retries += replies.iter().filter(|reply| reply.duplicate).count() as u64;
        if !in_between && self.random.random_ratio(1, 2) {
            self.settle()?;
        }
        Ok(())
    }

    /// What the model says to a batch, against what the engine said.
    fn expect(
        &self,
        model: &mut Model,
        asks: &[Ask],
        batch: &Batch,
        replies: Option<&[Reply]>,
    ) -> Result<(), Violation> {
        let mut start = 0;
        for ask in asks {
            let end = start + ask.items.len();
            let births: Vec<u64> = match replies.map(|replies| &replies[start..end]) {
                // What was born in a group that was refused, nobody is told: it is not the one that was there before.
                Some(replies) if replies.len() > 1 && replies.iter().any(|reply| reply.refusal.is_some()) => {
                    (0..replies.len() as u64).map(|place| u64::MAX - place).collect()
                }
                Some(replies) => replies.iter().map(|reply| reply.cell.birth).collect(),
                None => vec![0; ask.items.len()],
            };
            let expected = model.ask(ask, batch, start, &births, self.now);
            if let Some(replies) = replies
                && let Some(place) =
                    (0..expected.len()).find(|place| expected[*place] != replies[start + place])
            {
                let what = format!(
                    "{:?} of {:?}\n  is told {:?}\n  expected {:?}",
                    ask.items[place].action,
                    String::from_utf8_lossy(&ask.items[place].key),
                    replies[start + place],
                    expected[place]
                );
                return Err(Violation::new(Invariant::Answers, what));
            }
            start = end;
        }
        Ok(())
    }

    fn excuse(&mut self, error: Unavailable) -> Result<(), Violation> {
        match error {
            Unavailable::Failed(_) | Unavailable::Unreadable(_) if self.is_armed => {
                self.is_broken = true;
                Ok(())
            }
            Unavailable::Full(_) if self.is_armed => Ok(()),
            other => Err(surprise("without any fault")(other)),
        }
    }

    /// Everybody is told: what happened so far is certain.
    fn settle(&mut self) -> Result<(), Violation> {
        match self.engine().settle(self.newest_offset) {
            Ok(()) => {
                self.history.drain(..self.history.len() - 1);
                Ok(())
            }
            Err(error) => self.excuse(error),
        }
    }

    fn set_policy(&mut self) -> Result<(), Violation> {
        let mut model = self.model().clone();
        let mut drawing = Drawing {
            random: &mut self.random,
            model: &model,
            keys: &self.keys,
            next_id: &mut self.next_id,
            now_ms: self.now,
            items_max: 0,
        };
        let (pattern, policy) = drawing.policy();
        let result = self.engine().set_policy(&pattern, policy.clone(), self.now);
        self.trace(|| format!("policy {} {policy:?}: {result:?}", String::from_utf8_lossy(&pattern)));
        model.policies.set(&pattern, policy);
        match result {
            Ok(_) => self.history = vec![model],
            Err(error) => {
                if let Unavailable::Failed(_) = error {
                    self.history.push(model);
                }
                self.excuse(error)?;
            }
        }
        Ok(())
    }

    fn clear(&mut self) -> Result<(), Violation> {
        if self.random.random_ratio(2, 3) {
            return Ok(());
        }
        let mut batch = Batch::default();
        batch.push(b"", Action::Clear);
        let mut model = self.model().clone();
        model.counters.clear();
        let result = self.engine().run(&mut batch, self.now);
        self.trace(|| format!("clear: {result:?}"));
        match result {
            Ok(offset) => {
                self.history.push(model);
                self.newest_offset = self.newest_offset.max(offset);
                Ok(())
            }
            Err(error) => {
                if let Unavailable::Failed(_) = error {
                    self.history.push(model);
                }
                self.excuse(error)
            }
        }
    }

    /// A checkpoint, with batches wherever other threads could run some, and now and then a crash in the middle of it.
    fn checkpoint(&mut self) -> Result<(), Violation> {
        let partition = self.random.random_range(0..self.partitions);
        let mut result = Ok(());
        let mut left = None;
        self.trace(|| format!("checkpoint of {partition} begins"));
        let outcome = self.engine().checkpoint_in_steps(partition, &mut || {
            if result.is_err() || self.is_broken || self.ground.is_down() {
                return;
            }
            if self.random.random_ratio(1, 2) {
                result = self.ask(true);
            }
            if left.is_none() && self.random.random_ratio(1, 30) {
                result = result.clone().and_then(|()| self.settle());
                let copy = self.ground.copy(self.random.random());
                left = copy.ok().map(|copy| (copy, self.history.clone()));
            }
        });
        self.trace(|| format!("checkpoint of {partition} ends: {outcome:?}"));
        result?;
        match outcome {
            Err(error) if !self.is_armed => {
                return Err(Violation::new(Invariant::Progress, format!("checkpoint: {error}")));
            }
            _ => {}
        }
        if let Some((copy, history)) = left.filter(|_| !self.is_armed) {
            self.trace(|| "that checkpoint never ended".into());
            self.count_life();
            self.engine = None;
            self.ground = copy;
            self.history = history;
            return self.begin_life(None);
        }
        Ok(())
    }

    /// Closes the engine, or leaves it to a crash, and opens the next.
    fn end_life(&mut self) -> Result<(), Violation> {
        let is_sound = !self.is_armed && !self.is_broken;
        let mut digests = None;
        if is_sound && self.random.random_ratio(1, 2) {
            self.settle()?;
            digests = Some(self.digests()?);
            if self.random.random() {
                self.engine().close().map_err(surprise("closing"))?;
            }
        }
        self.trace(|| format!("the end of a life, {} models possible", self.history.len()));
        self.count_life();
        let engine = self.engine.take();
        self.ground
            .crash(&mut self.random)
            .map_err(|error| Violation::new(Invariant::Progress, format!("copying: {error}")))?;
        drop(engine);
        self.begin_life(digests)
    }

    fn begin_life(&mut self, digests: Option<Vec<Digest>>) -> Result<(), Violation> {
        self.ground.disarm();
        (self.is_armed, self.is_broken) = (false, false);
        let twin = self.ground.copy(self.random.random());
        let options = self.options();
        let engine = self
            .ground
            .open(options)
            .map_err(|error| Violation::new(Invariant::Survival, format!("cannot open again: {error}")))?;
        self.engine = Some(Arc::clone(&engine));
        self.stats.lives += 1;
        self.newest_offset = 0;
        self.explain(&engine)?;
        let after = self.digests()?;
        if let Some(before) = digests {
            self.compare_digests(&before, &after, "before and after")?;
        }
        if let (Ok(twin), true) = (twin, self.random.random_ratio(1, 4)) {
            let other = twin.open(self.options()).map_err(|error| {
                Violation::new(Invariant::Twins, format!("the twin cannot open: {error}"))
            })?;
            let its = digests_of(&other, self.partitions, self.now)?;
            self.compare_digests(&after, &its, "of twins")?;
        }
        Ok(())
    }

    fn options(&mut self) -> Options {
        let mut entropy = [0; 40];
        self.random.fill(&mut entropy[..]);
        Options {
            memory_bytes: self.memory_bytes,
            partitions: self.partitions,
            id_window_ms: ID_WINDOW_MS,
            log_tail_bytes: self.segment_bytes * 3,
            log: LogOptions { segment_bytes: self.segment_bytes, ..LogOptions::default() },
            entropy: Some(entropy),
            ..Options::default()
        }
    }

    /// Which of the possible models is found; all others are history.
    fn explain(&mut self, engine: &Engine) -> Result<(), Violation> {
        let problems = engine
            .verify()
            .map_err(|error| Violation::new(Invariant::Progress, format!("after a restart: {error}")))?;
        if !problems.problems.is_empty() {
            return Err(Violation::new(Invariant::Ledger, problems.problems.join("; ")));
        }
        let mut batch = Batch::default();
        let keys: Vec<Vec<u8>> = self.keys.iter().chain(&self.fillers).cloned().collect();
        for key in &keys {
            batch.push(key, Action::Read);
        }
        engine.run(&mut batch, self.now).map_err(surprise("reading all"))?;
        let policies = engine.policies().map_err(surprise("policies"))?;
        let trails = self.trails(engine)?;
        let mut differences = Vec::new();
        let mut explained: Vec<usize> = Vec::new();
        for index in 0..self.history.len() {
            let model = &mut self.history[index];
            let differs = difference(model, &keys, &batch.replies, &policies, self.now)
                .or_else(|| trails_differ(model, &trails));
            match differs {
                None => explained.push(index),
                Some(difference) => differences.push(difference),
            }
        }
        let (Some(first), Some(last)) = (explained.first(), explained.last()) else {
            let what = format!(
                "{} models are possible, none is found: {}",
                self.history.len(),
                differences.join("\n")
            );
            return Err(Violation::new(Invariant::Survival, what));
        };
        self.stats.steps_lost += (self.history.len() - 1 - last) as u64;
        // Where several look the same, requests that only some remember are never asked again.
        let certain = self.history[*first].clone();
        let mut found = self.history[*last].clone();
        found.forget_unknown_to(&certain);
        self.history = vec![found];
        Ok(())
    }

    /// The trails of all counters, the oldest row first, without what no request did.
    fn trails(&self, engine: &Engine) -> Result<Trails, Violation> {
        let mut trails = Vec::new();
        for key in &self.keys {
            let mut query =
                AuditQuery { key: key.clone(), from_ms: 0, to_ms: u64::MAX, before: None, limit: 50 };
            let mut trail: Vec<Trace> = Vec::new();
            loop {
                let page = engine.audit(&query, self.now).map_err(surprise("a trail"))?;
                query.before = page.next();
                let asked =
                    page.changes.into_iter().filter(|it| !matches!(it.deed, Deed::Expired | Deed::Clear));
                trail.extend(asked.map(|it| Trace {
                    deed: it.deed,
                    applied: it.applied,
                    held: it.held,
                    value: it.value,
                    version: it.version,
                }));
                if query.before.is_none() {
                    break;
                }
            }
            trail.reverse();
            trails.push((key.clone(), trail));
        }
        Ok(trails)
    }

    fn digests(&self) -> Result<Vec<Digest>, Violation> {
        digests_of(&self.engine(), self.partitions, self.now)
    }

    fn compare_digests(&mut self, before: &[Digest], after: &[Digest], what: &str) -> Result<(), Violation> {
        self.stats.digests += 1;
        for (partition, (before, after)) in before.iter().zip(after).enumerate() {
            // Sequences go on with a gap.
            let after = Digest { sequence: before.sequence, ..after.clone() };
            if *before != after {
                let what = format!("digests {what} of partition {partition}: {before:?} and {after:?}");
                return Err(Violation::new(Invariant::Twins, what));
            }
        }
        Ok(())
    }

    fn count_life(&mut self) {
        for (name, count) in self.engine().facts() {
            match name {
                "checkpoints" => self.stats.checkpoints += count,
                "evicted" => self.stats.evicted += count,
                "cold_reads" => self.stats.cold_reads += count,
                _ => {}
            }
        }
    }
}

/// All partitions at the same time, and as they will be found again.
fn digests_of(engine: &Engine, partitions: u16, now_ms: u64) -> Result<Vec<Digest>, Violation> {
    let mut batch = Batch::default();
    batch.push(b"", Action::Count);
    let offset = engine.run(&mut batch, now_ms).map_err(surprise("counting all"))?;
    // Also what nobody asked for, such as the removal of what has expired.
    engine.settle(offset).map_err(surprise("settling all"))?;
    (0..partitions)
        .map(|partition| engine.digest(partition))
        .collect::<Result<_, _>>()
        .map_err(|error| Violation::new(Invariant::Progress, format!("digest: {error}")))
}

/// Which trail is not that of the model, if any.
fn trails_differ(model: &Model, found: &[(Vec<u8>, Vec<Trace>)]) -> Option<String> {
    let (key, found) = (found.iter())
        .find(|(key, found)| model.trails.get(key).map_or(&[][..], Vec::as_slice) != found.as_slice())?;
    let expected = model.trails.get(key);
    Some(format!("the trail of {}:\n  {found:?}\n  expected {expected:?}", String::from_utf8_lossy(key)))
}

/// What of the model is not found, if anything. Births that it does not know are learned.
fn difference(
    model: &mut Model,
    keys: &[Vec<u8>],
    found: &[Reply],
    policies: &Policies,
    now_ms: u64,
) -> Option<String> {
    if !policies.iter().eq(model.policies.iter()) {
        return Some("the policies".into());
    }
    for (key, reply) in keys.iter().zip(found) {
        let learned = model.counters.get_mut(key).and_then(|whole| whole.cell.as_mut());
        if let Some(cell) = learned.filter(|cell| cell.birth == 0) {
            cell.birth = reply.cell.birth;
        }
        let expected = model.read(key, now_ms);
        if expected != *reply {
            return Some(format!(
                "{}:\n  found {reply:?}\n  expected {expected:?}",
                String::from_utf8_lossy(key)
            ));
        }
    }
    None
}

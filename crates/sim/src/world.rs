//! One world: an engine, its clients, and what happens to them, step by step.

use std::collections::BTreeMap;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use quipu_counting::{Counters, Unavailable};
use quipu_engine::Engine;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::ask::{Touched, Universe};
use crate::asking::Unsettled;
use crate::config::{Config, Kind, START_MS};
use crate::machine::Machine;
use crate::observe;
use crate::oracle::answers::is_counter;
use crate::oracle::history::{Ending, Found, History, Step};
use crate::oracle::model::Model;
use crate::plant::Plant;
use crate::properties::scans::Walk;
use crate::properties::{damage, exactly_once, expiry, ledger};
use crate::violation::{Invariant, Violation};
use crate::workload::Workload;

/// Where the engine lives on the simulated disk.
pub const FOLDER: &str = "/data";

/// What happened in a world, to see that worlds do what they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub asks: u64,
    pub lives: u64,
    pub power_losses: u64,
    pub steps_lost: u64,
    pub checkpoints: u64,
    pub evicted: u64,
    pub cold_reads: u64,
    pub refused_for_space: u64,
    pub walks: u64,
    pub damages: u64,
}

impl Stats {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Stats) -> Stats {
        Stats {
            asks: self.asks + other.asks,
            lives: self.lives + other.lives,
            power_losses: self.power_losses + other.power_losses,
            steps_lost: self.steps_lost + other.steps_lost,
            checkpoints: self.checkpoints + other.checkpoints,
            evicted: self.evicted + other.evicted,
            cold_reads: self.cold_reads + other.cold_reads,
            refused_for_space: self.refused_for_space + other.refused_for_space,
            walks: self.walks + other.walks,
            damages: self.damages + other.damages,
        }
    }
}

/// See the head of this file.
pub struct World {
    pub(crate) random: SmallRng,
    pub(crate) config: Config,
    pub(crate) universe: Rc<Universe>,
    pub(crate) machine: Machine,
    pub(crate) engine: Option<Arc<Engine>>,
    pub(crate) model: Model,
    pub(crate) history: History,
    pub(crate) stats: Stats,
    pub(crate) now: u64,
    pub(crate) plant: Plant,
    /// A fault was planned in this life, so errors are no surprise.
    pub(crate) is_armed: bool,
    /// The engine said that its log failed.
    pub(crate) is_broken: bool,
    workload: Workload,
    pub(crate) unsettled: Vec<Unsettled>,
    walk: Option<Walk>,
    is_traced: bool,
}

/// Runs the world of a seed to its end. A panic counts as a violation.
pub fn run(seed: u64, plant: Plant, is_traced: bool) -> Result<Stats, Violation> {
    let outcome = std::panic::catch_unwind(|| run_to_the_end(seed, plant, is_traced));
    outcome.unwrap_or_else(|_| Err(Violation::new(Invariant::Progress, "a panic, told above")))
}

fn run_to_the_end(seed: u64, plant: Plant, is_traced: bool) -> Result<Stats, Violation> {
    let mut random = SmallRng::seed_from_u64(seed);
    let config = Config::draw(&mut random);
    let universe = Universe::new(config.keys, config.key_bytes_min, config.key_bytes_max, config.partitions);
    let universe = Rc::new(universe);
    let mut world = World {
        machine: Machine::new(random.random(), plant),
        engine: None,
        model: Model::new(Rc::clone(&universe), config.window_ms),
        history: History::default(),
        stats: Stats::default(),
        now: START_MS,
        plant,
        is_armed: false,
        is_broken: false,
        workload: Workload::new(&config, Rc::clone(&universe)),
        unsettled: Vec::new(),
        walk: None,
        is_traced,
        universe,
        random,
        config,
    };
    world.trace(|world| format!("{:?}", world.config));
    world.begin_life(Ending::Kill)?;
    for step in 0..world.config.steps {
        world.step(step)?;
        if world.is_broken || world.machine.is_down() {
            let ending = world.draw_ending();
            world.end_life(ending)?;
        }
    }
    world.finish()
}

impl World {
    pub(crate) fn trace(&self, what: impl FnOnce(&World) -> String) {
        if self.is_traced {
            eprintln!("{:>8} {}", self.now - START_MS.min(self.now), what(self));
        }
    }

    pub(crate) fn engine(&self) -> Arc<Engine> {
        Arc::clone(self.engine.as_ref().expect("between two lives nobody asks for the engine"))
    }

    fn step(&mut self, step: usize) -> Result<(), Violation> {
        match self.random.random_range(0..100) {
            0..60 => {
                let ask = self.workload.draw(&mut self.random, &self.model, self.now);
                self.ask(&ask, false)
            }
            60..66 => self.settle_one(),
            66..72 => {
                self.pass_time();
                Ok(())
            }
            72..78 => {
                self.trace(|_| "tend".to_string());
                self.engine().tend(self.now);
                Ok(())
            }
            78..83 => self.checkpoint(),
            83..87 => self.walk(),
            87..90 => self.set_policy(),
            90..92 => self.sync(),
            92..94 => self.check_ledger(),
            94..98 if self.config.has_faults(step) => {
                self.plan_a_fault();
                Ok(())
            }
            98.. if self.config.has_faults(step) => {
                let ending = self.draw_ending();
                self.end_life(ending)
            }
            _ => Ok(()),
        }
    }

    fn pass_time(&mut self) {
        let ms = match self.random.random_range(0..8) {
            0..5 => self.random.random_range(0..50),
            5 | 6 => self.random.random_range(0..2_000),
            _ => self.random.random_range(0..self.config.window_ms.min(1 << 30) * 2),
        };
        self.now = match self.config.kind == Kind::WanderingClock && self.random.random() {
            true => self.now - ms.min(100_000),
            false => self.now + ms,
        };
        self.trace(|_| format!("time passes by {ms} ms"));
    }

    fn checkpoint(&mut self) -> Result<(), Violation> {
        let partition = self.random.random_range(0..self.config.partitions);
        self.trace(|_| format!("checkpoint of {partition} begins"));
        let mut result = Ok(());
        let outcome = self.engine().checkpoint_in_steps(partition, &mut || {
            let goes_on = result.is_ok() && !self.is_broken && !self.machine.is_down();
            if goes_on && self.random.random_ratio(1, 4) {
                let ask = self.workload.draw(&mut self.random, &self.model, self.now);
                result = self.ask(&ask, true);
            }
        });
        self.trace(|_| format!("checkpoint of {partition} ends: {outcome:?}"));
        result?;
        match outcome {
            Err(error) if !self.is_armed => {
                Err(Violation::new(Invariant::Progress, format!("checkpoint: {error}")))
            }
            _ => Ok(()),
        }
    }

    fn walk(&mut self) -> Result<(), Violation> {
        let mut walk = self.walk.take().unwrap_or_else(|| Walk::begin(&self.model, self.now));
        let count = self.random.random_range(1..20);
        self.trace(|_| format!("scan from {} for {count}", walk.cursor));
        let mut page = match self.engine().scan(walk.cursor, count, self.now) {
            Ok(page) => page,
            Err(error) => return self.excuse(error),
        };
        if self.plant == Plant::ScansLoseAKey {
            page.keys.pop();
        }
        let (keys, is_complete) = walk.page(&page, &self.model, self.now)?;
        let touched =
            keys.iter().fold(Touched::default(), |touched, key| touched.with(self.universe.partition(*key)));
        let protected = self.protected();
        self.history.show(touched, self.history.len(), None, protected);
        self.stats.walks += u64::from(is_complete);
        self.walk = (!is_complete).then_some(walk);
        Ok(())
    }

    fn set_policy(&mut self) -> Result<(), Violation> {
        let (pattern, policy) = self.workload.policy(&mut self.random);
        let existed = self.model.policies.contains_key(&pattern);
        let result = self.engine().set_policy(&pattern, policy.clone(), self.now);
        self.trace(|_| format!("policy {:?} {policy:?} -> {result:?}", String::from_utf8_lossy(&pattern)));
        if matches!(result, Ok(_) | Err(Unavailable::Failed(_))) {
            self.model.advance(Touched::default().with(0), self.now);
            let edit = self.model.set_policy(&pattern, policy);
            let first_ticket = self.model.births.next();
            self.history.push(Step::new(vec![edit], &[], first_ticket, &self.universe));
        }
        match result {
            Ok(said) if said != existed => Err(Violation::new(
                Invariant::Answers,
                format!("a policy existed: {existed}, the engine says {said}"),
            )),
            Ok(_) => {
                let (own, protected) = (self.history.len() - 1, self.protected());
                self.history.show(Touched::default().with(0), own + 1, Some(own), protected);
                Ok(())
            }
            Err(error) => self.excuse(error),
        }
    }

    /// Makes everything durable, as the syncer of the interval mode and an orderly end do.
    fn sync(&mut self) -> Result<(), Violation> {
        self.trace(|_| "sync".to_string());
        match self.engine().close() {
            Ok(()) => {
                self.history.is_certain();
                Ok(())
            }
            Err(error) => self.excuse(error),
        }
    }

    pub(crate) fn check_ledger(&mut self) -> Result<(), Violation> {
        match ledger::check(&self.engine()) {
            Ok(report) => report.map(|_| ()),
            Err(_) if self.is_armed => Ok(()),
            Err(error) => Err(Violation::new(Invariant::Progress, format!("verify: {error}"))),
        }
    }

    pub(crate) fn forget_clients(&mut self) {
        self.unsettled.clear();
        self.walk = None;
    }

    /// Takes note of what the life that ends has done.
    pub(crate) fn count_life(&mut self, engine: &Engine) {
        let facts: BTreeMap<&str, u64> = engine.facts().into_iter().collect();
        let fact = |name| facts.get(name).copied().unwrap_or(0);
        self.stats.checkpoints += fact("checkpoints");
        self.stats.evicted += fact("evicted");
        self.stats.cold_reads += fact("cold_reads");
    }

    /// No more faults; everything is compared, retried, expired, closed, damaged.
    fn finish(mut self) -> Result<Stats, Violation> {
        self.disarm();
        if self.engine().failed().is_some() {
            self.end_life(Ending::Kill)?;
        }
        let surprise =
            |error: Unavailable| Violation::new(Invariant::Progress, format!("at the end: {error}"));
        let engine = self.engine();
        let found = observe::everything(&engine, &self.universe, self.now).map_err(surprise)?;
        self.model.advance_all(self.now);
        self.compare_all(&found)?;
        self.check_ledger()?;
        exactly_once::check(&engine, &mut self.model, self.now).map_err(surprise)??;
        if self.config.expires {
            self.now = expiry::check(&engine, &self.model, self.now).map_err(surprise)??;
        }
        let intact = observe::everything(&engine, &self.universe, self.now).map_err(surprise)?;
        self.sync()?;
        self.count_life(&engine);
        drop((engine, self.engine.take()));
        for _ in 0..self.random.random_range(0..4) {
            self.stats.damages += 1;
            let machine = self.machine.copy(self.random.random());
            let options = self.config.options(&mut self.random);
            let (universe, now) = (&self.universe, self.now);
            damage::check(machine, Path::new(FOLDER), options, universe, &intact, now, &mut self.random)?;
        }
        Ok(self.stats)
    }

    fn compare_all(&self, found: &Found) -> Result<(), Violation> {
        for (key, cell) in found.cells.iter().enumerate() {
            let counter = self.model.live(key);
            if !is_counter(counter.as_ref(), cell.as_ref(), &self.model.births) {
                let what = format!("key {key} is {cell:?} at the end, expected {counter:?}");
                return Err(Violation::new(Invariant::Answers, what));
            }
        }
        if found.policies != self.model.policies {
            return Err(Violation::new(Invariant::Answers, "the policies at the end differ"));
        }
        Ok(())
    }
}

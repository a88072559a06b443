//! How lives of the engine end and begin: faults, power losses, recovery, and what must be found then.

use std::path::Path;

use quipu_counting::{Counters, Refusal, Unavailable};
use quipu_engine::Engine;
use quipu_store::Durability;
use rand::Rng;

use crate::ask::Ask;
use crate::config::Kind;
use crate::machine::Machine;
use crate::observe;
use crate::oracle::answers::compare;
use crate::oracle::history::{Ending, Found};
use crate::properties::{exactly_once, ledger, twins};
use crate::violation::{Invariant, Violation};
use crate::world::{FOLDER, World};

/// Starts that are disturbed at most before one is left alone.
const DISTURBED_STARTS_MAX: usize = 4;
/// More operations than any life performs.
const NEVER: u64 = 1 << 40;

impl World {
    pub(crate) fn draw_ending(&mut self) -> Ending {
        if self.random.random_ratio(2, 3) { Ending::PowerLoss } else { Ending::Kill }
    }

    /// Plans that something goes wrong soon.
    pub(crate) fn plan_a_fault(&mut self) {
        self.is_armed = true;
        let disk = self.machine.sim_disk();
        let what = match self.random.random_range(0..7) {
            0..3 => {
                let after = self.random.random_range(0..40);
                disk.crash_after(after);
                format!("the machine stops after {after} operations of the disk")
            }
            3 => {
                let after = self.random.random_range(0..30);
                self.machine.model_store().crash_after(after);
                format!("the machine stops after {after} operations of the cold store")
            }
            4 => {
                let nth = self.random.random_range(1..6);
                disk.fail_sync(nth);
                format!("sync number {nth} fails")
            }
            5 => {
                let after = self.random.random_range(0..4);
                self.machine.model_store().full_after(after);
                format!("write number {after} of the cold store finds no space")
            }
            _ => {
                let left = self.random.random_range(0..2 * self.config.segment_bytes);
                let capacity = self.random.random_ratio(2, 3).then_some(disk.used_bytes() + left);
                disk.set_capacity(capacity);
                format!("the disk has {capacity:?} bytes")
            }
        };
        self.trace(|_| what);
    }

    /// Nothing goes wrong from here on.
    pub(crate) fn disarm(&mut self) {
        let disk = self.machine.sim_disk();
        disk.crash_after(NEVER);
        disk.fail_sync(NEVER);
        disk.set_capacity(None);
        self.machine.model_store().crash_after(NEVER);
        self.machine.model_store().full_after(NEVER);
        self.is_armed = false;
    }

    /// Ends the engine's life and begins the next.
    pub(crate) fn end_life(&mut self, ending: Ending) -> Result<(), Violation> {
        self.forget_clients();
        if let Some(engine) = self.engine.take() {
            self.count_life(&engine);
            self.end_machine(ending);
            // What it would still write on its way out goes nowhere: the machine has gone on.
            drop(engine);
        }
        self.begin_life(ending)
    }

    fn end_machine(&mut self, ending: Ending) {
        self.trace(|_| format!("{ending:?}"));
        self.is_broken = false;
        match ending {
            Ending::PowerLoss => {
                self.stats.power_losses += 1;
                self.machine.lose_power();
            }
            Ending::Kill => self.machine.kill(),
        }
        self.machine.sim_disk().set_capacity(None);
    }

    /// Opens the engine, however often that takes, and compares what it found with what may be there.
    pub(crate) fn begin_life(&mut self, mut ending: Ending) -> Result<(), Violation> {
        for start in 0.. {
            self.is_armed = false;
            if start < DISTURBED_STARTS_MAX
                && self.config.kind != Kind::WanderingClock
                && self.random.random_ratio(1, 4)
            {
                self.disturb_start();
            }
            let copy = self.machine.copy(self.random.random());
            let options = self.config.options(&mut self.random);
            match Engine::open_on(self.machine.disk(), self.machine.cold(), Path::new(FOLDER), options) {
                Ok(engine) => {
                    self.stats.lives += 1;
                    self.engine = Some(engine);
                    self.disarm();
                    return self.take_over(copy, ending);
                }
                Err(_) if self.is_armed => {}
                Err(error) => {
                    return Err(Violation::new(Invariant::Survival, format!("cannot open again: {error}")));
                }
            }
            let next = self.draw_ending();
            self.end_machine(next);
            if next == Ending::PowerLoss {
                ending = next;
            }
        }
        Ok(())
    }

    fn disturb_start(&mut self) {
        self.is_armed = true;
        match self.random.random_range(0..4) {
            0 | 1 => self.machine.sim_disk().crash_after(self.random.random_range(0..14)),
            2 => self.machine.model_store().crash_after(self.random.random_range(0..12)),
            _ => self.machine.sim_disk().fail_sync(self.random.random_range(1..4)),
        }
        self.trace(|_| "the start is disturbed".to_string());
    }

    fn take_over(&mut self, copy: Machine, ending: Ending) -> Result<(), Violation> {
        let surprise =
            |error: Unavailable| Violation::new(Invariant::Progress, format!("after a restart: {error}"));
        self.check_ledger()?;
        let found = observe::everything(&self.engine(), &self.universe, self.now).map_err(surprise)?;
        self.model.advance_all(self.now);
        let before = self.history.len();
        let candidates = self.history.explain(&mut self.model, &found, ending)?;
        self.trace(|_| format!("{candidates:?} of {before} steps survived"));
        self.learn_births(&found)?;
        if self.random.random_ratio(1, 2) {
            self.check_twin(&copy, &found, candidates.len() == 1)?;
        }
        drop(copy);
        self.find_out(&candidates).map_err(surprise)??;
        self.stats.steps_lost += before.saturating_sub(self.history.len()) as u64;
        Ok(())
    }

    fn learn_births(&mut self, found: &Found) -> Result<(), Violation> {
        for (key, cell) in found.cells.iter().enumerate() {
            if let (Some(counter), Some(cell)) = (self.model.live(key), cell)
                && !self.model.births.learn(counter.born, cell.birth)
            {
                return Err(Violation::new(
                    Invariant::Answers,
                    format!("key {key} has a birth of an earlier life"),
                ));
            }
        }
        Ok(())
    }

    /// Which of several numbers of steps it was: retries tell.
    fn find_out(&mut self, candidates: &[usize]) -> Result<Result<(), Violation>, Unavailable> {
        let mut survived = candidates[0];
        for next in candidates[1..].iter().copied() {
            let probe = (survived..next).rev().find_map(|index| self.probe(index));
            let Some(ask) = probe else {
                // Nothing tells the two apart, now or ever.
                (survived..next).for_each(|index| self.model.redo_perhaps(&self.history.step(index).edits));
                survived = next;
                continue;
            };
            let mut batch = ask.batch(&self.universe);
            let engine = self.engine();
            let offset = engine.run(&mut batch, self.now)?;
            let is_known = batch.replies[0].duplicate || batch.replies[0].refusal == Some(Refusal::Fenced);
            self.trace(|_| format!("{next} steps survived: {is_known}, says {ask:?}"));
            if is_known {
                (survived..next).for_each(|index| self.model.redo(&self.history.step(index).edits));
                survived = next;
                continue;
            }
            self.forget_after(survived);
            let first_ticket = self.model.births.next();
            let (expected, edits) = self.model.ask(&ask, self.now);
            for (expected, reply) in expected.iter().zip(&batch.replies) {
                if let Err(difference) = compare(expected, reply, &mut self.model.births) {
                    let what = format!("a retry of {ask:?} {difference}");
                    return Ok(Err(Violation::new(Invariant::ExactlyOnce, what)));
                }
            }
            if let Some(own) = self.push_step(&ask, edits, first_ticket) {
                engine.settle(offset)?;
                let protected = self.protected();
                self.history.show(ask.touched(&self.universe), own + 1, Some(own), protected);
            }
            return Ok(Ok(()));
        }
        self.forget_after(survived);
        Ok(Ok(()))
    }

    /// A retry that tells whether this step survived.
    fn probe(&self, index: usize) -> Option<Ask> {
        let counts = |at: &Option<u64>| at.is_none_or(|at| self.now - at < self.config.window_ms);
        let probe = self.history.step(index).probes.iter().find(|(_, at)| counts(at));
        probe.map(|(unit, _)| Ask { units: vec![unit.clone()] })
    }

    fn forget_after(&mut self, survived: usize) {
        if survived < self.history.len() {
            if self.config.durability == Durability::Sync {
                // Nobody was shown what is lost: the numbers of its births may be given out again.
                let first_ticket = self.history.step(survived).first_ticket;
                self.model.births.forget_from(first_ticket);
            }
            self.history.truncate(survived);
        }
        // An engine that opened has made durable what it found.
        self.history.is_certain();
    }

    /// A second engine on a copy of the disk finds the same, and knows every id.
    fn check_twin(&mut self, copy: &Machine, found: &Found, ids_are_known: bool) -> Result<(), Violation> {
        let surprise = |what: String| Violation::new(Invariant::Twins, format!("the twin: {what}"));
        let options = self.config.options(&mut self.random);
        let twin = Engine::open_on(copy.disk(), copy.cold(), Path::new(FOLDER), options)
            .map_err(|error| surprise(error.to_string()))?;
        let its = observe::everything(&twin, &self.universe, self.now)
            .map_err(|error| surprise(error.to_string()))?;
        let verify = |engine: &Engine| match ledger::check(engine) {
            Ok(report) => report,
            Err(error) => Err(surprise(error.to_string())),
        };
        let (mine, reports) = (self.engine(), verify(&twin)?);
        twins::check((found, &verify(&mine)?), (&its, &reports))?;
        if ids_are_known {
            exactly_once::check(&twin, &mut self.model, self.now)
                .map_err(|error| surprise(error.to_string()))??;
        }
        Ok(())
    }
}

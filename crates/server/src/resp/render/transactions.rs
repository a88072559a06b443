//! Plans that are about other plans: transactions, and what is not sent.

use std::collections::VecDeque;

use quipu_counting::{Refusal, Reply};
use quipu_wire::refusal::unavailable_line;

use super::{Renderer, first_refused};
use crate::resp::plan::Plan;
use crate::resp::transaction::Outcome;

impl Renderer<'_, '_> {
    /// What is written is not sent.
    pub(super) fn mute(&mut self) {
        let before = self.encoder.out.len();
        self.answer_next(1);
        self.encoder.out.truncate(before);
    }

    fn answer_next(&mut self, count: u32) {
        for _ in 0..count {
            if let Some(plan) = self.next_plan() {
                self.answer(plan);
            }
        }
    }

    pub(super) fn transaction(&mut self, count: u32) {
        let before = self.encoder.out.len();
        if self.unavailable.is_none() {
            self.encoder.array(count as usize);
        }
        self.answer_next(count);
        if let Some(reason) = self.unavailable {
            self.encoder.out.truncate(before);
            let reason = unavailable_line(reason);
            self.encoder.error(format!("EXECABORT Transaction discarded because of: {reason}"));
        }
    }

    /// A transaction that was carried out only if so many checks hold.
    pub(super) fn guarded(&mut self, count: u32) {
        let checks = match self.unavailable {
            Some(_) => &[],
            None => self.take(count),
        };
        let has_changed = |check: &Reply| check.refusal == Some(Refusal::ConditionUnmet);
        let refused = first_refused(checks);
        let before = self.encoder.out.len();
        self.answer_next(1);
        let Some((refusal, reply)) = refused else { return };
        self.encoder.out.truncate(before);
        match checks.iter().any(has_changed) {
            true => self.encoder.null_array(),
            // Who hears that a key has changed tries again, and would for ever.
            false => self.refuse(refusal, reply),
        }
    }

    /// The session learns how so many watched keys are.
    pub(super) fn watch(&mut self, count: u32) {
        if let Some(reason) = self.unavailable {
            (0..count).for_each(|_| self.session.watched.learn(None));
            return self.encoder.error(unavailable_line(reason));
        }
        let replies = self.take(count);
        match first_refused(replies) {
            Some((refusal, reply)) => {
                (0..count).for_each(|_| self.session.watched.learn(None));
                self.refuse(refusal, reply);
            }
            None => {
                replies.iter().for_each(|reply| self.session.watched.learn(Some(reply)));
                self.encoder.ok();
            }
        }
    }

    /// Gives the session what the counters of a transaction answered, one reply for each plan.
    pub(super) fn stage(&mut self, checks: u32) {
        let unavailable = self.unavailable;
        let outcome = match unavailable {
            Some(reason) => Outcome::Unavailable(unavailable_line(reason)),
            None if self.take(checks).iter().any(|check| check.refusal.is_some()) => Outcome::Stopped,
            None => {
                let mut replies = VecDeque::new();
                while let Some(plan) = self.next_plan() {
                    let before = self.encoder.out.len();
                    self.answer(plan);
                    if !matches!(plan, Plan::Speak(_)) {
                        replies.push_back(self.encoder.out.split_off(before));
                    }
                }
                Outcome::Done(replies)
            }
        };
        self.plans = &[];
        if let Some(staged) = &mut self.session.staged {
            staged.outcome = outcome;
        }
    }
}

//! How clients ask: a batch is sent, its answer compared with the model's, and its replies shown once they are
//! settled. Planted bugs of clients are here too.

use quipu_counting::{Action, Add, Counters, Execution, Reply, Unavailable};
use quipu_store::Durability;
use rand::Rng;

use crate::ask::{Ask, Touched, Unit};
use crate::oracle::answers::compare;
use crate::oracle::history::{Ending, Step};
use crate::oracle::model::{Edit, Expected};
use crate::oracle::policies::policy_of;
use crate::oracle::rules::Ticket;
use crate::plant::Plant;
use crate::properties::bounds;
use crate::violation::{Invariant, Violation};
use crate::world::World;

/// A batch that ran and whose replies nobody has seen yet.
pub struct Unsettled {
    offset: u64,
    touched: Touched,
    /// Steps when it ran, its own included.
    count: usize,
    own: Option<usize>,
}

/// The offset and the replies of a batch that ran; `None` for one that would have had to wait.
type Answer = Result<Option<(u64, Vec<Reply>)>, Unavailable>;

impl World {
    /// One batch; `in_between` when a checkpoint is running, during which nothing may wait for another.
    pub(crate) fn ask(&mut self, ask: &Ask, in_between: bool) -> Result<(), Violation> {
        self.stats.asks += 1;
        let result = match self.plant {
            Plant::GroupsTornApart => self.send_torn(ask, in_between),
            _ => self.send(&self.planted(ask), in_between),
        };
        let offset = result.as_ref().map(|answer| answer.as_ref().map(|(offset, _)| *offset));
        self.trace(|world| format!("{ask:?}\n         -> {offset:?} (step {})", world.history.len()));
        match result {
            Ok(None) => Ok(()),
            Ok(Some((offset, replies))) => self.answered(ask, offset, &replies),
            Err(error) => {
                if let Unavailable::Failed(_) = &error {
                    // Perhaps it happened, perhaps not.
                    let first_ticket = self.model.births.next();
                    let (_, edits) = self.model.ask(ask, self.now);
                    self.push_step(ask, edits, first_ticket);
                }
                self.excuse(error)
            }
        }
    }

    /// An error is no violation where a fault was planned.
    pub(crate) fn excuse(&mut self, error: Unavailable) -> Result<(), Violation> {
        match error {
            Unavailable::Failed(_) | Unavailable::Unreadable(_) if self.is_armed => {
                self.is_broken = true;
                Ok(())
            }
            Unavailable::Full(_) if self.is_armed => {
                self.stats.refused_for_space += 1;
                Ok(())
            }
            other => Err(Violation::new(Invariant::Progress, format!("without any fault: {other}"))),
        }
    }

    fn send(&self, ask: &Ask, in_between: bool) -> Answer {
        let mut batch = ask.batch(&self.universe);
        let engine = self.engine();
        let offset = match in_between {
            false => engine.run(&mut batch, self.now)?,
            true => match engine.execute(&mut batch, self.now)? {
                Execution::Done { offset } => offset,
                Execution::Pending => return Ok(None),
            },
        };
        Ok(Some((offset, batch.replies)))
    }

    /// What the planted client sends instead.
    fn planted(&self, ask: &Ask) -> Ask {
        let mut ask = ask.clone();
        for unit in &mut ask.units {
            match (self.plant, unit) {
                (Plant::RetriesWithoutId, Unit::Single { key, id, .. }) => {
                    *id = id.filter(|id| !self.model.ids.contains_key(&(*key, *id, 0)));
                }
                (Plant::BoundsLeftAway, Unit::Single { action: Action::Add(add), .. }) => {
                    *add = Add { min: i64::MIN, max: i64::MAX, ..*add };
                }
                _ => {}
            }
        }
        ask
    }

    /// Every item of groups without id in a batch of its own, where the group would be accepted.
    fn send_torn(&mut self, ask: &Ask, in_between: bool) -> Answer {
        let (mut last, mut replies) = (0, Vec::new());
        for unit in &ask.units {
            let alone = Ask { units: vec![unit.clone()] };
            let (expected, edits) = self.model.ask(&alone, self.now);
            self.model.undo(&edits);
            let is_refused = |told: &Expected| matches!(told, Expected::One(told) if told.refusal.is_some());
            let parts = match unit {
                Unit::Atomic { items, id: None } if !expected.iter().any(is_refused) => items
                    .iter()
                    .map(|(key, action)| Unit::Single { key: *key, action: *action, id: None })
                    .collect(),
                other => vec![other.clone()],
            };
            for part in parts {
                let Some((offset, part)) = self.send(&Ask { units: vec![part] }, in_between)? else {
                    return Ok(None);
                };
                last = offset.max(last);
                replies.extend(part);
            }
        }
        Ok(Some((last, replies)))
    }

    fn answered(&mut self, ask: &Ask, offset: u64, replies: &[Reply]) -> Result<(), Violation> {
        self.check_bounds(ask, replies)?;
        let first_ticket = self.model.births.next();
        let (expected, edits) = self.model.ask(ask, self.now);
        if expected.len() != replies.len() {
            return Err(Violation::new(Invariant::Answers, format!("{} replies to {ask:?}", replies.len())));
        }
        for (expected, reply) in expected.iter().zip(replies) {
            if let Err(difference) = compare(expected, reply, &mut self.model.births) {
                let is_retry = matches!(expected, Expected::One(told) if told.duplicate) || reply.duplicate;
                let invariant = if is_retry { Invariant::ExactlyOnce } else { Invariant::Answers };
                return Err(Violation::new(invariant, format!("{ask:?} {difference}")));
            }
        }
        let own = self.push_step(ask, edits, first_ticket);
        let touched = ask.touched(&self.universe);
        self.unsettled.push(Unsettled { offset, touched, count: self.history.len(), own });
        match self.unsettled.len() >= self.config.clients || self.random.random_ratio(2, 3) {
            true => self.settle_one(),
            false => Ok(()),
        }
    }

    /// Adds the step of a batch that changed anything.
    pub(crate) fn push_step(&mut self, ask: &Ask, edits: Vec<Edit>, first_ticket: Ticket) -> Option<usize> {
        if edits.is_empty() {
            return None;
        }
        self.history.push(Step::new(edits, &ask.units, first_ticket, &self.universe));
        Some(self.history.len() - 1)
    }

    fn check_bounds(&self, ask: &Ask, replies: &[Reply]) -> Result<(), Violation> {
        let mut replies = replies.iter();
        for unit in &ask.units {
            let mine: Vec<&Reply> = replies.by_ref().take(unit.requests()).collect();
            let items: &[_] = match unit {
                Unit::Single { key, action, .. } => &[(*key, *action)],
                Unit::Atomic { items, .. } => items,
                Unit::Guarded { .. } | Unit::Session { .. } | Unit::Count | Unit::Clear => &[],
            };
            for ((key, action), reply) in items.iter().zip(mine) {
                bounds::check(action, &policy_of(&self.model.policies, &self.universe.keys[*key]), reply)?;
            }
        }
        Ok(())
    }

    /// What an acknowledgement protects from.
    pub(crate) fn protected(&self) -> &'static [Ending] {
        match self.config.durability {
            Durability::Sync => &[Ending::PowerLoss, Ending::Kill],
            Durability::Interval { .. } | Durability::None => &[Ending::Kill],
        }
    }

    pub(crate) fn settle_one(&mut self) -> Result<(), Violation> {
        if self.unsettled.is_empty() {
            return Ok(());
        }
        let at = self.random.random_range(0..self.unsettled.len());
        let waiting = self.unsettled.swap_remove(at);
        let settled = match self.plant {
            Plant::RepliesBeforeSettling => Ok(()),
            _ => self.engine().settle(waiting.offset),
        };
        match settled {
            Ok(()) => {
                self.history.show(waiting.touched, waiting.count, waiting.own, self.protected());
                Ok(())
            }
            Err(error) => self.excuse(error),
        }
    }
}

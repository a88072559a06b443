//! Transactions: commands are kept from MULTI to EXEC and then executed as one.
//!
//! Commands about counters become one batch, so nobody sees them half done, and nothing of it runs if a watched key has
//! changed. Most transactions hold nothing else and are drafted like one command with many replies.
//!
//! Some commands do something that cannot be part of a batch or be taken back: HELLO changes how replies look, SCAN runs
//! in the background. A transaction with such a command is *staged*: its counters are executed first, in one batch as
//! ever; then EXEC is asked again and answers command by command, doing the others as it comes to them. So these see all
//! that the transaction did to counters, also what stands behind them.

use std::collections::VecDeque;

use quipu_counting::slot::slot;
use quipu_counting::{Action, Condition, GroupKind, Refusal};
use quipu_wire::commands::{Command, CommandSpec, Flags};
use quipu_wire::refusal::error_line;
use quipu_wire::resp::{Arguments, Decoder, Encoder, Pipeline, errors};

use super::commands::connection::Hello;
use super::commands::{Complaint, Drafted, kinds, resolve};
use super::interpret::{Interpreter, Step, job, moved};
use super::plan::Plan;
use super::session::{Mute, Transaction};

const TRANSACTION_FULL: &str = "ERR the transaction is too large";
const REPLIES_FULL: &str =
    "EXECABORT Transaction discarded because of: its replies are too large, ask for less at a time";

/// A transaction that is executed in steps.
#[derive(Debug)]
pub struct Staged {
    frames: Vec<u8>,
    pipeline: Pipeline,
    /// Whether the answer has begun.
    begun: bool,
    /// The first command that is not answered yet.
    next: usize,
    /// What became of the counters.
    pub outcome: Outcome,
    /// The connection was killed by the transaction itself.
    closes: bool,
}

impl Staged {
    /// What it takes of the memory for buffers.
    pub fn held_bytes(&self) -> usize {
        let replies = match &self.outcome {
            Outcome::Done(replies) => replies.iter().map(Vec::len).sum(),
            _ => 0,
        };
        self.frames.len() + replies
    }
}

/// What became of the counters of a staged transaction.
#[derive(Debug)]
pub enum Outcome {
    /// They are not executed yet.
    Unknown,
    /// A watched key has changed: nothing was done.
    Stopped,
    /// Nothing was done, and this is why.
    Unavailable(String),
    /// These are the replies, one for each command about counters.
    Done(VecDeque<Vec<u8>>),
}

/// Whether a command does, or shows, what is no part of a batch. On the port of the Redis Cluster protocol a node counts what it
/// leads.
fn is_staged(command: Command, is_of_cluster: bool) -> bool {
    if command == Command::DbSize {
        return is_of_cluster;
    }
    matches!(
        command,
        Command::Hello
            | Command::ClientSetName
            | Command::ClientSetInfo
            | Command::ClientReply
            | Command::ClientKill
            | Command::ConfigSet
            | Command::ConfigResetStat
            | Command::Info
            | Command::MemoryStats
            | Command::Scan
            | Command::Keys
            | Command::RandomKey
            | Command::QSum
            | Command::QTop
            | Command::QHot
            | Command::QAudit
            | Command::QPolicySet
            | Command::QPolicyDel
            | Command::QPolicyGet
            | Command::QPolicyList
            | Command::ClusterCountKeysInSlot
            | Command::ClusterGetKeysInSlot
            | Command::ReadOnly
            | Command::ReadWrite
    )
}

impl Interpreter<'_> {
    /// MULTI.
    pub(super) fn begin(&mut self) -> Drafted {
        if self.session.transaction.is_some() {
            return Err(errors::NESTED_MULTI.into());
        }
        self.session.transaction = Some(Transaction::default());
        self.draft.fixed(b"+OK\r\n");
        Ok(())
    }

    /// DISCARD.
    pub(super) fn discard(&mut self) -> Drafted {
        self.session.transaction.take().ok_or(errors::DISCARD_WITHOUT_MULTI)?;
        self.session.watched.forget();
        self.draft.fixed(b"+OK\r\n");
        Ok(())
    }

    /// A command behind MULTI.
    pub(super) fn queue(&mut self, spec: &CommandSpec, arguments: Arguments<'_, '_>) -> Drafted {
        let Some(transaction) = &mut self.session.transaction else { return Ok(()) };
        if spec.command == Command::PfMerge {
            transaction.aborted = true;
            return Err("ERR PFMERGE is not possible in a transaction: it reads before it writes".into());
        }
        if !transaction.queue(arguments) {
            transaction.aborted = true;
            return Err(TRANSACTION_FULL.into());
        }
        if self.shared.map.is_some() {
            // What is decided together is decided by one leader, whichever port it came through.
            let hold = match spec.command {
                Command::QCommit | Command::QVoid => arguments.get(1).and_then(kinds::hold_of),
                _ => None,
            };
            let keys = spec.key_positions(arguments.len()).filter_map(|at| arguments.get(at));
            for slot in keys.chain(hold.as_ref().map(|hold| &hold.key[..])).map(slot) {
                transaction.crosses_slots |= *transaction.slot.get_or_insert(slot) != slot;
            }
        }
        transaction.writes |= spec.flags.contains(Flags::WRITE);
        self.draft.fixed(b"+QUEUED\r\n");
        Ok(())
    }

    /// Why EXEC cannot be done, or should not have come here: the leader may be another than when the commands were queued.
    fn misdirected_transaction(&self, transaction: &Transaction) -> Option<Complaint> {
        if transaction.crosses_slots {
            return Some(error_line(Refusal::CrossSlot, 0).into());
        }
        let (map, slot) = (self.map()?, transaction.slot?);
        moved(map, slot, self.session.looks_anywhere && !transaction.writes)
    }

    /// EXEC.
    pub(super) fn execute_transaction(&mut self) -> Step {
        let Some(mut transaction) = self.session.transaction.take() else {
            return self.reply(|_| Err(errors::EXEC_WITHOUT_MULTI.into()));
        };
        if self.shared.map.is_some() && transaction.commands > 0 {
            // What is watched is looked at by who decides the rest.
            for slot in self.session.watched.keys().map(slot) {
                transaction.crosses_slots |= *transaction.slot.get_or_insert(slot) != slot;
            }
        }
        let watched = self.session.watched.take();
        if let Some(complaint) = self.misdirected_transaction(&transaction) {
            return self.reply(|_| Err(complaint));
        }
        if transaction.aborted {
            return self.reply(|_| Err(errors::EXEC_ABORT.into()));
        }
        let Transaction { mut frames, commands, .. } = transaction;
        let mut pipeline = Pipeline::new();
        let decoded =
            Decoder::new(self.shared.options.limits).decode(&mut frames, &mut pipeline, commands as usize);
        if decoded.is_err() || pipeline.len() != commands as usize {
            debug_assert!(false, "queued frames were written by ourselves");
            return self.reply(|_| Err(errors::EXEC_ABORT.into()));
        }
        let (checks, guard) = (watched.len() as u32, self.draft.batch.groups.len());
        if checks > 0 {
            self.guard(watched);
        }
        let is_of_cluster = self.session.card.is_of_cluster;
        let stages = pipeline
            .commands(&frames)
            .any(|queued| resolve(queued).is_ok_and(|spec| is_staged(spec.command, is_of_cluster)));
        match (stages, checks) {
            (true, _) => self.draft.plans.push(Plan::Staged(checks)),
            (false, 0) => self.draft.plans.push(Plan::Transaction(commands)),
            (false, _) => self.draft.plans.extend([Plan::Guarded(checks), Plan::Transaction(commands)]),
        }
        if !self.draft_queued(&pipeline, &frames, stages) {
            // It stands alone in the draft, and nothing of it has run.
            self.draft.clear();
            return self.reply(|_| Err(REPLIES_FULL.into()));
        }
        if checks > 0 {
            let until = self.draft.batch.requests.len();
            self.draft.batch.groups[guard].kind = GroupKind::Guard { until };
        }
        if !stages {
            return Step::Drafted;
        }
        self.session.staged = Some(Box::new(Staged {
            frames,
            pipeline,
            begun: false,
            next: 0,
            outcome: Outcome::Unknown,
            closes: false,
        }));
        // The answers begin when this is asked again.
        Step::Alone
    }

    /// Drafts the commands of the transaction; of a staged one only those about counters. Says no if the replies that are
    /// known already are too large.
    fn draft_queued(&mut self, pipeline: &Pipeline, frames: &[u8], stages: bool) -> bool {
        for arguments in pipeline.commands(frames) {
            let Ok(spec) = resolve(arguments) else { continue };
            let command = spec.command;
            if stages && command == Command::Hello {
                // What it says is said later; how the replies behind it look is known now.
                if let Ok(Hello { protocol: Some(protocol), .. }) = Hello::read(arguments) {
                    self.draft.plans.push(Plan::Speak(protocol));
                }
            } else if stages && !is_about_counters(command, self.session.card.is_of_cluster) {
                continue;
            } else {
                self.count(command);
                self.reply(|this| this.draft_command(command, arguments).map(|_| ()));
            }
            if self.draft.literals.len() > self.shared.options.output_bytes_max {
                return false;
            }
        }
        true
    }

    /// Drafts the checks of watched keys. How far they reach is known later.
    fn guard(&mut self, watched: impl Iterator<Item = (Vec<u8>, Condition)>) {
        let batch = &mut self.draft.batch;
        let start = batch.requests.len();
        for (key, state) in watched {
            batch.push(&key, Action::Check(state));
        }
        batch.group(start, GroupKind::Guard { until: start });
    }

    /// EXEC is asked again: the counters of the staged transaction are executed, or a job of it is done.
    pub(super) fn continue_transaction(&mut self) -> Step {
        let Some(mut staged) = self.session.staged.take() else { return Step::Drafted };
        let mut replies = match std::mem::replace(&mut staged.outcome, Outcome::Unknown) {
            Outcome::Done(replies) => replies,
            Outcome::Stopped => return self.conclude(&staged, |encoder| encoder.null_array()),
            Outcome::Unavailable(reason) => {
                let reason = format!("EXECABORT Transaction discarded because of: {reason}");
                return self.conclude(&staged, |encoder| encoder.error(reason));
            }
            Outcome::Unknown => return self.conclude(&staged, |encoder| encoder.error(errors::EXEC_ABORT)),
        };
        if !staged.begun {
            staged.begun = true;
            let count = staged.pipeline.len();
            self.answer_part(&staged, |this| {
                this.draft.literal(this.session.protocol, |encoder| encoder.array(count));
                Ok(false)
            });
        }
        // Taken out, because a command is borrowed from it while others of its fields change.
        let (pipeline, frames) = (std::mem::take(&mut staged.pipeline), std::mem::take(&mut staged.frames));
        let mut waits_for = None;
        for arguments in pipeline.commands(&frames).skip(staged.next) {
            let Ok(spec) = resolve(arguments) else { continue };
            let command = spec.command;
            // The rest is answered when the client has taken what is too much.
            if self.draft.is_full() {
                waits_for = Some(Step::Alone);
                break;
            }
            match job(self.map(), command, arguments) {
                Some(Ok(_)) if !self.draft.is_empty() => {
                    waits_for = Some(Step::Alone);
                    break;
                }
                Some(Ok(job)) => {
                    self.count(command);
                    staged.next += 1;
                    let muted = staged.closes || self.session.mute == Mute::All;
                    waits_for = Some(Step::Background { job: Box::new(job), muted, again: true });
                    break;
                }
                Some(Err(complaint)) => drop(self.answer_part(&staged, |_| Err(complaint))),
                None if is_about_counters(command, self.session.card.is_of_cluster) => {
                    let reply = replies.pop_front().unwrap_or_default();
                    self.answer_part(&staged, |this| {
                        this.draft.fixed(&reply);
                        Ok(false)
                    });
                }
                None => {
                    self.count(command);
                    staged.closes |= self.answer_part(&staged, |this| this.draft_command(command, arguments));
                }
            }
            staged.next += 1;
        }
        match waits_for {
            Some(step) => {
                staged.outcome = Outcome::Done(replies);
                (staged.pipeline, staged.frames) = (pipeline, frames);
                self.session.staged = Some(staged);
                step
            }
            None if staged.closes => Step::Close,
            None => Step::Drafted,
        }
    }

    /// The answer to a staged transaction that was not run.
    fn conclude(&mut self, staged: &Staged, write: impl FnOnce(&mut Encoder<'_>)) -> Step {
        self.answer_part(staged, |this| {
            this.draft.literal(this.session.protocol, write);
            Ok(false)
        });
        Step::Drafted
    }

    /// Drafts one reply of a staged transaction, and takes it back where the connection is silent. Says whether the connection
    /// ends with it.
    fn answer_part(
        &mut self,
        staged: &Staged,
        draft: impl FnOnce(&mut Self) -> Result<bool, Complaint>,
    ) -> bool {
        let (plans, literals) = (self.draft.plans.len(), self.draft.literals.len());
        let closes = draft(self).unwrap_or_else(|complaint| {
            self.complain(&complaint);
            false
        });
        if staged.closes || self.session.mute == Mute::All {
            self.draft.plans.truncate(plans);
            self.draft.literals.truncate(literals);
        }
        closes
    }
}

/// Whether a command of a transaction has its part in the batch.
fn is_about_counters(command: Command, is_of_cluster: bool) -> bool {
    let is_about_all = matches!(command, Command::DbSize | Command::FlushAll | Command::FlushDb);
    !is_staged(command, is_of_cluster) && (command.spec().keys.first > 0 || is_about_all)
}

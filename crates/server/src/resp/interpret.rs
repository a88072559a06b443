//! From a decoded command to its draft: dispatch, and which commands must stand alone.

use std::sync::Arc;

use quipu_counting::slot::slot;
use quipu_counting::{Ending, Refusal};
use quipu_wire::commands::{Command, CommandSpec, Flags, is_http_request};
use quipu_wire::refusal::error_line;
use quipu_wire::resp::{Arguments, errors};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::Shared;
use super::background::Job;
use super::commands::{
    Complaint, Deadline, Drafted, additions, audit, cluster, dimensions, history, is_option, keyspace, kinds,
    objects, own, resolve, totals, values, walks,
};
use super::plan::{Draft, Plan, REQUESTS_PER_DRAFT_MAX, Unit};
use super::session::{Mute, Session};
use crate::cluster::map::Map;

/// What to do about a command.
#[derive(Debug)]
pub enum Step {
    /// It is in the draft.
    Drafted,
    /// It depends on what is in the draft: execute that, then ask again.
    Alone,
    /// It is to be done in the background.
    Background {
        /// What is to be done.
        job: Box<Job>,
        /// The reply is not wanted.
        muted: bool,
        /// There is more to it: ask again when the job is done.
        again: bool,
    },
    /// It is in the draft, and the connection ends with it.
    Close,
    /// The connection ends now.
    Drop,
}

/// Reads commands of one connection into the draft of the round, behind those of the connections before it.
pub struct Interpreter<'a> {
    /// The server.
    pub shared: &'a Shared,
    /// The connection.
    pub session: &'a mut Session,
    /// What was understood so far.
    pub draft: &'a mut Draft,
    /// The time of this wake-up.
    pub now_ms: u64,
}

/// A name of the length of a frequent one as a number, letters in upper case and the length behind them; 0 for others.
const fn packed(name: &[u8]) -> u64 {
    let word = match *name {
        [a, b, c] => [a, b, c, 0, 0, 0, 0, 3],
        [a, b, c, d] => [a, b, c, d, 0, 0, 0, 4],
        [a, b, c, d, e, f] => [a, b, c, d, e, f, 0, 6],
        _ => return 0,
    };
    u64::from_le_bytes(word) & u64::from_le_bytes([!0x20; 8])
}

const INCR: u64 = packed(b"INCR");
const DECR: u64 = packed(b"DECR");
const GET: u64 = packed(b"GET");
const INCRBY: u64 = packed(b"INCRBY");

impl Interpreter<'_> {
    /// Understands one command.
    #[inline]
    pub fn interpret(&mut self, arguments: Arguments<'_, '_>) -> Step {
        if self.session.transaction.is_none()
            && self.session.mute == Mute::No
            && !self.session.card.is_of_cluster
            && let Some(drafted) = self.frequent(arguments)
        {
            if let Err(complaint) = drafted {
                self.complain(&complaint);
            }
            return Step::Drafted;
        }
        self.interpret_any(arguments)
    }

    /// The commands that make up nearly all of the traffic, without the table.
    #[inline]
    fn frequent(&mut self, arguments: Arguments<'_, '_>) -> Option<Drafted> {
        match (packed(arguments.name()), arguments.len()) {
            (INCR, 2) => {
                self.session.last_command = "incr";
                self.count(Command::Incr);
                Some(additions::add(self.draft, arguments.get(1)?, 1))
            }
            (GET, 2) => {
                self.session.last_command = "get";
                self.count(Command::Get);
                Some(values::get(self.draft, arguments.get(1)?))
            }
            (INCRBY, 3) => {
                self.session.last_command = "incrby";
                self.count(Command::IncrBy);
                Some(additions::increase_by(self.draft, arguments.get(1)?, arguments.get(2)?))
            }
            (DECR, 2) => {
                self.session.last_command = "decr";
                self.count(Command::Decr);
                Some(additions::add(self.draft, arguments.get(1)?, -1))
            }
            _ => None,
        }
    }

    /// Keeps the numbers of INFO commandstats. A loop is the only one to write its own.
    #[inline]
    pub(super) fn count(&self, command: Command) {
        self.shared.calls[self.session.card.event_loop].count(command);
    }

    fn interpret_any(&mut self, arguments: Arguments<'_, '_>) -> Step {
        if self.session.staged.is_some() {
            return self.continue_transaction();
        }
        let mute = self.session.mute;
        if mute == Mute::Next {
            self.session.mute = Mute::This;
        }
        let planned = self.draft.plans.len();
        let step = match resolve(arguments) {
            Ok(spec) => self.dispatch(spec, arguments),
            Err(_) if is_http_request(arguments.name()) => Step::Drop,
            Err(complaint) => self.misunderstood(arguments, complaint),
        };
        if matches!(step, Step::Alone) {
            self.session.mute = mute;
            return step;
        }
        // The one command that is heard although it came muted is the one that ends the silence.
        let muted = mute != Mute::No && self.session.mute != Mute::No;
        if self.session.mute == Mute::This {
            self.session.mute = Mute::No;
        }
        if muted && self.draft.plans.len() > planned {
            self.draft.plans.insert(planned, Plan::Mute);
        }
        match step {
            Step::Background { job, again, .. } => Step::Background { job, muted, again },
            step => step,
        }
    }

    /// A command that is not even understood spoils the transaction it stands in; an EXEC that is not ends it.
    fn misunderstood(&mut self, arguments: Arguments<'_, '_>, complaint: Complaint) -> Step {
        if is_option(arguments.name(), "exec") {
            if self.session.watched.is_learning() {
                return Step::Alone;
            }
            self.session.transaction = None;
            self.session.watched.forget();
            let reason = complaint.0.strip_prefix(b"ERR ").unwrap_or(&complaint.0);
            let aborted = [b"EXECABORT Transaction discarded because of: ", reason].concat();
            return self.reply(|_| Err(aborted.into()));
        }
        if let Some(transaction) = &mut self.session.transaction {
            transaction.aborted = true;
        }
        self.reply(|_| Err(complaint))
    }

    fn dispatch(&mut self, spec: &'static CommandSpec, arguments: Arguments<'_, '_>) -> Step {
        self.session.last_command = spec.name;
        match spec.command {
            command if sees_the_rest(command) && !self.draft.is_empty() => return Step::Alone,
            // What is to be forgotten must have been seen.
            Command::Unwatch | Command::Discard if self.session.watched.is_learning() => return Step::Alone,
            // What has many keys is not joined with others: a batch has a limit, and others shall not fail with it.
            _ if arguments.len() > REQUESTS_PER_DRAFT_MAX && !self.draft.is_empty() => return Step::Alone,
            _ => {}
        }
        if let Some(complaint) = self.misdirected(spec, arguments) {
            if let Some(transaction) = &mut self.session.transaction {
                transaction.aborted = true;
            }
            return self.reply(|_| Err(complaint));
        }
        let in_transaction = self.session.transaction.is_some();
        match spec.command {
            Command::Exec | Command::Discard | Command::Multi | Command::Quit | Command::Reset => {
                self.count(spec.command);
                self.control(spec.command)
            }
            Command::Watch if in_transaction => self.reply(|_| Err(errors::WATCH_INSIDE_MULTI.into())),
            _ if in_transaction => self.reply(|this| this.queue(spec, arguments)),
            command => match job(self.map(), command, arguments) {
                Some(job) => self.background(command, job),
                None => {
                    self.count(command);
                    self.run(command, arguments)
                }
            },
        }
    }

    /// What a connection that speaks the Redis Cluster protocol is told.
    pub(super) fn map(&self) -> Option<&Arc<Map>> {
        self.shared.map.as_ref().filter(|_| self.session.card.is_of_cluster)
    }

    /// Why a client that finds the node of a key by itself should not have sent this here.
    fn misdirected(&mut self, spec: &CommandSpec, arguments: Arguments<'_, '_>) -> Option<Complaint> {
        let map = self.shared.map.as_ref().filter(|_| self.session.card.is_of_cluster)?;
        let keys = spec.key_positions(arguments.len()).filter_map(|at| arguments.get(at));
        let mut slots = keys.map(slot);
        let slot = slots.next()?;
        if slots.any(|other| other != slot) {
            return Some(error_line(Refusal::CrossSlot, 0).into());
        }
        let looks = self.session.looks_anywhere && !spec.flags.contains(Flags::WRITE);
        if !spec.flags.contains(Flags::READONLY) {
            return moved(map, slot, looks);
        }
        // Some clients read from replicas without saying READONLY to those that also lead something. Who was sent away and comes
        // back has not misread the map: the leader is asked from here.
        let insists = self.session.sent_away.contains(&map.partition(slot));
        let complaint = moved(map, slot, looks || insists)?;
        self.session.sent_away.insert(map.partition(slot));
        Some(complaint)
    }

    /// Commands that are never queued.
    fn control(&mut self, command: Command) -> Step {
        match command {
            Command::Exec => self.execute_transaction(),
            Command::Discard => self.reply(Interpreter::discard),
            Command::Multi => self.reply(Interpreter::begin),
            Command::Quit => {
                self.draft.fixed(b"+OK\r\n");
                Step::Close
            }
            _ => {
                self.session.reset();
                self.draft.fixed(b"+RESET\r\n");
                Step::Drafted
            }
        }
    }

    fn run(&mut self, command: Command, arguments: Arguments<'_, '_>) -> Step {
        match self.draft_command(command, arguments) {
            Ok(true) => Step::Close,
            Ok(false) => Step::Drafted,
            Err(complaint) => self.reply(|_| Err(complaint)),
        }
    }

    /// Drafts what `draft` understands, or its complaint.
    pub(super) fn reply(&mut self, draft: impl FnOnce(&mut Self) -> Drafted) -> Step {
        if let Err(complaint) = draft(self) {
            self.complain(&complaint);
        }
        Step::Drafted
    }

    pub(super) fn complain(&mut self, complaint: &Complaint) {
        self.draft.literal(self.session.protocol, |encoder| encoder.error(&complaint.0));
    }

    /// A job sees everything before it, and everything after it waits, so it stands alone.
    fn background(&mut self, command: Command, job: Result<Job, Complaint>) -> Step {
        match job {
            Err(complaint) => self.reply(|_| Err(complaint)),
            Ok(_) if !self.draft.is_empty() => Step::Alone,
            Ok(job) => {
                self.count(command);
                Step::Background { job: Box::new(job), muted: false, again: false }
            }
        }
    }

    /// One plan for any command but those that are controlled above. Says whether the connection ends with it.
    pub(super) fn draft_command(
        &mut self,
        command: Command,
        arguments: Arguments<'_, '_>,
    ) -> Result<bool, Complaint> {
        let (draft, now_ms) = (&mut *self.draft, self.now_ms);
        let key = arguments.get(1).unwrap_or_default();
        let value = arguments.get(2).unwrap_or_default();
        let drafted = match command {
            Command::Get => values::get(draft, key),
            Command::MGet => values::get_many(draft, arguments.tail(1)),
            Command::Set => values::set(draft, arguments, now_ms),
            Command::SetNx => values::set_if_absent(draft, key, value),
            Command::SetEx => values::set_with_expiry(draft, arguments, Deadline::InSeconds, now_ms, "setex"),
            Command::PSetEx => {
                values::set_with_expiry(draft, arguments, Deadline::InMilliseconds, now_ms, "psetex")
            }
            Command::GetSet => values::get_and_set(draft, key, value),
            Command::GetDel => values::get_and_delete(draft, key),
            Command::GetEx => values::get_and_expire(draft, arguments, now_ms),
            Command::MSet => values::set_many(draft, arguments.tail(1)),
            Command::Incr => additions::add(draft, key, 1),
            Command::Decr => additions::add(draft, key, -1),
            Command::IncrBy => additions::increase_by(draft, key, value),
            Command::DecrBy => additions::decrease_by(draft, key, value),
            Command::IncrEx => additions::increase_extended(draft, arguments, now_ms),
            Command::Del | Command::Unlink => keyspace::delete(draft, arguments.tail(1)),
            Command::Exists | Command::Touch => keyspace::exists(draft, arguments.tail(1)),
            Command::Type => keyspace::look(draft, key, Plan::TypeName),
            Command::StrLen => keyspace::look(draft, key, Plan::TextLength),
            Command::Ttl => keyspace::look(draft, key, Plan::TimeLeft(Unit::Seconds)),
            Command::PTtl => keyspace::look(draft, key, Plan::TimeLeft(Unit::Milliseconds)),
            Command::ExpireTime => keyspace::look(draft, key, Plan::ExpiresAt(Unit::Seconds)),
            Command::PExpireTime => keyspace::look(draft, key, Plan::ExpiresAt(Unit::Milliseconds)),
            Command::Expire => keyspace::expire(draft, arguments, Deadline::InSeconds, now_ms, "expire"),
            Command::PExpire => {
                keyspace::expire(draft, arguments, Deadline::InMilliseconds, now_ms, "pexpire")
            }
            Command::ExpireAt => keyspace::expire(draft, arguments, Deadline::AtSeconds, now_ms, "expireat"),
            Command::PExpireAt => {
                keyspace::expire(draft, arguments, Deadline::AtMilliseconds, now_ms, "pexpireat")
            }
            Command::Persist => keyspace::persist(draft, key),
            Command::DbSize => keyspace::count(draft),
            Command::FlushAll | Command::FlushDb => keyspace::clear(draft, arguments.tail(1)),
            Command::QAdd => own::add(draft, arguments, now_ms),
            Command::QAdjust => audit::adjust(draft, arguments),
            Command::QBatch => own::batch(draft, arguments),
            Command::PfAdd => kinds::observe(draft, key, arguments.tail(2)),
            Command::PfCount => kinds::estimate(draft, arguments.tail(1)),
            Command::QWGet => kinds::window(draft, key, value),
            Command::QDGet => dimensions::get(draft, key, arguments.tail(2)),
            Command::QObserve => kinds::observe_at(draft, arguments),
            Command::QAcquire => kinds::acquire(draft, arguments),
            Command::QAcquireAll => kinds::acquire_all(draft, arguments),
            Command::QHistory => history::points(draft, arguments, now_ms),
            Command::QHold => kinds::hold(draft, arguments),
            Command::QCommit => {
                kinds::amount(arguments.get(2)).and_then(|ending| kinds::end(draft, key, ending))
            }
            Command::QVoid => kinds::end(draft, key, Ending::Void),
            Command::QStat => keyspace::look(draft, key, Plan::Statistics),
            Command::ObjectEncoding
            | Command::ObjectFreq
            | Command::ObjectIdleTime
            | Command::ObjectRefCount => objects::object(draft, command, value),
            Command::MemoryUsage => objects::usage(draft, arguments),
            Command::Dump => keyspace::look(draft, key, Plan::Dump),
            Command::Restore => objects::restore(draft, arguments),
            Command::Watch => self.session.watched.watch(draft, arguments.tail(1)),
            other => return self.draft_answer(other, arguments),
        };
        drafted.map(|()| false)
    }
}

/// Where a client is sent that asks about a slot here, if it is.
pub(super) fn moved(map: &Map, slot: u16, looks: bool) -> Option<Complaint> {
    map.elsewhere(slot, looks).map(|address| format!("MOVED {slot} {address}").into())
}

/// Whether a command depends on what the commands before it did, or changes how they are answered.
fn sees_the_rest(command: Command) -> bool {
    matches!(
        command,
        Command::Exec
            | Command::Reset
            | Command::Hello
            | Command::Info
            | Command::MemoryStats
            | Command::QPolicyGet
            | Command::QPolicyList
            | Command::ReadOnly
            | Command::ReadWrite
    )
}

/// The job of a command that is done in the background; none for all others.
pub(super) fn job(
    map: Option<&Arc<Map>>,
    command: Command,
    arguments: Arguments<'_, '_>,
) -> Option<Result<Job, Complaint>> {
    let operand = || arguments.get(1).unwrap_or_default();
    match command {
        Command::Scan => Some(walks::scan(map, arguments)),
        Command::Keys => Some(Ok(Job::Keys { map: map.cloned(), pattern: operand().to_vec() })),
        Command::RandomKey => {
            Some(Ok(Job::RandomKey { map: map.cloned(), draw: SmallRng::from_os_rng().random() }))
        }
        Command::DbSize => map.map(|map| Ok(Job::CountLed { map: Arc::clone(map) })),
        Command::PfMerge => Some(kinds::merge(arguments.tail(1))),
        Command::QSum => Some(totals::sum(arguments)),
        Command::QTop => Some(totals::top(arguments)),
        Command::QAudit => Some(audit::audit(arguments)),
        Command::QHot => Some(own::hot(arguments.tail(1))),
        Command::QPolicySet | Command::QPolicyDel => Some(own::change_policy(command, arguments.tail(2))),
        Command::ClusterCountKeysInSlot | Command::ClusterGetKeysInSlot => {
            map.map(|map| cluster::keys_in_slot(map, command, arguments))
        }
        _ => None,
    }
}

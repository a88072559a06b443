//! From a decoded command to its draft: dispatch, transactions, and which commands must stand alone.

use quipu_counting::{Action, Condition, GroupKind};
use quipu_wire::commands::{Command, CommandSpec, is_http_request, lookup};
use quipu_wire::resp::{Arguments, Decoder, Pipeline, errors};
use quipu_wire::subcommands::refuse_subcommand;

use super::Shared;
use super::background::Job;
use super::commands::own::{self, PolicyCommand};
use super::commands::{
    Complaint, Deadline, Drafted, additions, client, connection, info, is_option, keyspace, server, values,
    walks,
};
use super::plan::{Draft, Plan, REQUESTS_PER_BATCH_MAX, Unit};
use super::session::{Mute, Session, Transaction};

const NOT_IN_TRANSACTION: &str = "ERR Command not allowed inside a transaction";
const TRANSACTION_FULL: &str = "ERR the transaction is too large";
const TRANSACTION_REPLIES_FULL: &str =
    "EXECABORT Transaction discarded because of: its replies are too large, ask for less at a time";

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
        job: Job,
        /// The reply is not wanted.
        muted: bool,
    },
    /// It is in the draft, and the connection ends with it.
    Close,
    /// The connection ends now.
    Drop,
}

/// Reads commands of one connection into its draft.
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

/// A name of the length of a frequent one as a number, letters in upper case; 0 for others.
const fn packed(name: &[u8]) -> u64 {
    let word = match *name {
        [a, b, c] => [a, b, c, 0, 0, 0, 0, 0],
        [a, b, c, d] => [a, b, c, d, 0, 0, 0, 0],
        [a, b, c, d, e, f] => [a, b, c, d, e, f, 0, 0],
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
                Some(additions::add(self.draft, arguments.get(1)?, 1))
            }
            (GET, 2) => {
                self.session.last_command = "get";
                Some(values::get(self.draft, arguments.get(1)?))
            }
            (INCRBY, 3) => {
                self.session.last_command = "incrby";
                Some(additions::increase_by(self.draft, arguments.get(1)?, arguments.get(2)?))
            }
            (DECR, 2) => {
                self.session.last_command = "decr";
                Some(additions::add(self.draft, arguments.get(1)?, -1))
            }
            _ => None,
        }
    }

    fn interpret_any(&mut self, arguments: Arguments<'_, '_>) -> Step {
        let mute = self.session.mute;
        if mute == Mute::Next {
            self.session.mute = Mute::This;
        }
        let planned = self.draft.plans.len();
        let name = arguments.name();
        let step = match lookup(name) {
            Some(spec) if spec.accepts(arguments.len()) => {
                match refuse_subcommand(spec.command, arguments.get(1), arguments.len()) {
                    None => self.dispatch(spec, arguments),
                    Some(complaint) => self.misunderstood(arguments, complaint.into()),
                }
            }
            Some(spec) => self.misunderstood(arguments, errors::wrong_arity(spec.name).into()),
            None if is_http_request(name) => Step::Drop,
            None => {
                self.misunderstood(arguments, errors::unknown_command(name, arguments.tail(1).iter()).into())
            }
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
            Step::Background { job, .. } => Step::Background { job, muted },
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
            Command::Exec | Command::Reset | Command::Hello | Command::Info if !self.draft.is_empty() => {
                Step::Alone
            }
            // What is to be forgotten must have been seen.
            Command::Unwatch | Command::Discard if self.session.watched.is_learning() => Step::Alone,
            // What has many keys is not joined with others: a batch has a limit, and others shall not fail with it.
            _ if arguments.len() > REQUESTS_PER_BATCH_MAX && !self.draft.is_empty() => Step::Alone,
            Command::Exec => self.reply(Interpreter::execute_transaction),
            Command::Discard => self.reply(Interpreter::discard),
            Command::Multi => self.reply(Interpreter::begin),
            Command::Quit => {
                self.draft.fixed(b"+OK\r\n");
                Step::Close
            }
            Command::Reset => {
                self.session.reset();
                self.draft.fixed(b"+RESET\r\n");
                Step::Drafted
            }
            Command::Watch if self.session.transaction.is_some() => {
                self.reply(|_| Err(errors::WATCH_INSIDE_MULTI.into()))
            }
            _ if self.session.transaction.is_some() => self.queue(spec, arguments),
            Command::Hello => self.reply(|this| connection::hello(this.draft, this.session, arguments)),
            Command::Client => self.client(arguments),
            Command::Scan => self.background(walks::scan(arguments)),
            Command::Keys => {
                let pattern = arguments.get(1).unwrap_or_default().to_vec();
                self.background(Ok(Job::Keys { pattern }))
            }
            Command::QPolicy => match own::policy(arguments) {
                Ok(PolicyCommand::Change(job)) => self.background(Ok(job)),
                Ok(_) if !self.draft.is_empty() => Step::Alone,
                _ => self.reply(|this| this.draft_command(spec.command, arguments)),
            },
            command => self.reply(|this| this.draft_command(command, arguments)),
        }
    }

    /// Drafts what `draft` understands, or its complaint.
    fn reply(&mut self, draft: impl FnOnce(&mut Self) -> Drafted) -> Step {
        if let Err(complaint) = draft(self) {
            self.complain(&complaint);
        }
        Step::Drafted
    }

    fn complain(&mut self, complaint: &Complaint) {
        self.draft.literal(self.session.protocol, |encoder| encoder.error(&complaint.0));
    }

    /// A job sees everything before it, and everything after it waits, so it stands alone.
    fn background(&mut self, job: Result<Job, Complaint>) -> Step {
        match job {
            Err(complaint) => self.reply(|_| Err(complaint)),
            Ok(_) if !self.draft.is_empty() => Step::Alone,
            Ok(job) => Step::Background { job, muted: false },
        }
    }

    fn client(&mut self, arguments: Arguments<'_, '_>) -> Step {
        match connection::client(self.draft, self.session, arguments) {
            Ok(true) => return Step::Drafted,
            Ok(false) => {}
            Err(complaint) => return self.reply(|_| Err(complaint)),
        }
        self.session.publish(self.now_ms);
        match self.others(arguments) {
            Ok(true) => Step::Close,
            Ok(false) => Step::Drafted,
            Err(complaint) => self.reply(|_| Err(complaint)),
        }
    }

    /// CLIENT INFO, LIST, KILL; says whether this connection itself was killed.
    fn others(&mut self, arguments: Arguments<'_, '_>) -> Result<bool, Complaint> {
        let (shared, session, now_ms) = (self.shared, &*self.session, self.now_ms);
        self.draft.try_literal(session.protocol, |encoder| {
            client::answer(shared, session, arguments, now_ms, encoder)
        })
    }

    fn begin(&mut self) -> Drafted {
        if self.session.transaction.is_some() {
            return Err(errors::NESTED_MULTI.into());
        }
        self.session.transaction = Some(Transaction::default());
        self.draft.fixed(b"+OK\r\n");
        Ok(())
    }

    fn discard(&mut self) -> Drafted {
        self.session.transaction.take().ok_or(errors::DISCARD_WITHOUT_MULTI)?;
        self.session.watched.forget();
        self.draft.fixed(b"+OK\r\n");
        Ok(())
    }

    fn queue(&mut self, spec: &CommandSpec, arguments: Arguments<'_, '_>) -> Step {
        let excluded = match spec.command {
            Command::Hello | Command::Scan | Command::Keys | Command::QPolicy => true,
            Command::Client => {
                arguments.get(1).is_some_and(|word| is_option(word, "reply") || is_option(word, "kill"))
            }
            _ => false,
        };
        let Some(transaction) = &mut self.session.transaction else { return Step::Drafted };
        let complaint = if excluded {
            NOT_IN_TRANSACTION
        } else if transaction.queue(arguments) {
            self.draft.fixed(b"+QUEUED\r\n");
            return Step::Drafted;
        } else {
            TRANSACTION_FULL
        };
        transaction.aborted = true;
        self.reply(|_| Err(complaint.into()))
    }

    /// All commands of the transaction become one batch, so nobody sees it half done.
    fn execute_transaction(&mut self) -> Drafted {
        let transaction = self.session.transaction.take().ok_or(errors::EXEC_WITHOUT_MULTI)?;
        let watched = self.session.watched.take();
        if transaction.aborted {
            return Err(errors::EXEC_ABORT.into());
        }
        let Transaction { mut frames, commands, .. } = transaction;
        let mut pipeline = Pipeline::new();
        let decoded =
            Decoder::new(self.shared.options.limits).decode(&mut frames, &mut pipeline, commands as usize);
        if decoded.is_err() || pipeline.len() != commands as usize {
            debug_assert!(false, "queued frames were written by ourselves");
            return Err(errors::EXEC_ABORT.into());
        }
        let guard = (watched.len() > 0).then(|| self.guard(watched));
        self.draft.plans.push(Plan::Transaction(commands));
        for arguments in pipeline.commands(&frames) {
            let Some(spec) = lookup(arguments.name()) else { continue };
            self.reply(|this| match spec.command {
                Command::Client => match connection::client(this.draft, this.session, arguments)? {
                    true => Ok(()),
                    false => this.others(arguments).map(|_| ()),
                },
                command => this.draft_command(command, arguments),
            });
            if self.draft.literals.len() > self.shared.options.output_bytes_max {
                // It stands alone in the draft, and nothing of it has run.
                self.draft.clear();
                return Err(TRANSACTION_REPLIES_FULL.into());
            }
        }
        if let Some(guard) = guard {
            let until = self.draft.batch.requests.len();
            self.draft.batch.groups[guard].kind = GroupKind::Guard { until };
        }
        Ok(())
    }

    /// Drafts the checks of watched keys and answers the place of their group, which is to learn how far it reaches.
    fn guard(&mut self, watched: impl ExactSizeIterator<Item = (Vec<u8>, Condition)>) -> usize {
        self.draft.plans.push(Plan::Guarded(watched.len() as u32));
        let batch = &mut self.draft.batch;
        let start = batch.requests.len();
        for (key, state) in watched {
            batch.push(&key, Action::Check(state));
        }
        batch.group(start, GroupKind::Guard { until: start });
        batch.groups.len() - 1
    }

    /// Commands that need nothing but their arguments: one plan each.
    fn draft_command(&mut self, command: Command, arguments: Arguments<'_, '_>) -> Drafted {
        let (draft, now_ms) = (&mut *self.draft, self.now_ms);
        let key = arguments.get(1).unwrap_or_default();
        let value = arguments.get(2).unwrap_or_default();
        match command {
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
            Command::Exists => keyspace::exists(draft, arguments.tail(1)),
            Command::Type => keyspace::look(draft, key, Plan::TypeName),
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
            Command::QAdd => own::add(draft, arguments),
            Command::QBatch => own::batch(draft, arguments),
            Command::QStat => keyspace::look(draft, key, Plan::Statistics),
            other => self.draft_answer(other, arguments),
        }
    }

    /// Commands whose answer is known at once.
    fn draft_answer(&mut self, command: Command, arguments: Arguments<'_, '_>) -> Drafted {
        let (draft, shared, protocol) = (&mut *self.draft, self.shared, self.session.protocol);
        let operand = arguments.get(1).unwrap_or_default();
        match command {
            Command::Ping => return connection::ping(draft, self.session, arguments),
            Command::Select => return connection::select(draft, operand),
            Command::Auth => return connection::authenticate(draft, arguments),
            Command::Unwatch => {
                self.session.watched.forget();
                draft.fixed(b"+OK\r\n");
            }
            Command::Watch => return self.session.watched.watch(draft, arguments.tail(1)),
            Command::Echo => draft.literal(protocol, |encoder| encoder.bulk(operand)),
            Command::Time => draft.literal(protocol, |encoder| connection::time(shared, encoder)),
            Command::Info => {
                let text = info::text(shared, arguments.tail(1));
                draft.literal(protocol, |encoder| encoder.verbatim(b"txt", text.as_bytes()));
            }
            Command::QPolicy => match own::policy(arguments)? {
                PolicyCommand::Get(pattern) => draft.literal(protocol, |encoder| {
                    own::answer_policy(&*shared.counters, pattern, encoder);
                }),
                PolicyCommand::List => draft.literal(protocol, |encoder| {
                    own::answer_policies(&*shared.counters, encoder);
                }),
                PolicyCommand::Change(_) => return Err(NOT_IN_TRANSACTION.into()),
            },
            Command::CommandInfo => {
                draft.try_literal(protocol, |encoder| server::command(arguments, encoder))?
            }
            Command::Config => {
                draft.try_literal(protocol, |encoder| server::config(shared, arguments, encoder))?
            }
            other => {
                return Err(errors::unknown_command(other.spec().name.as_bytes(), std::iter::empty()).into());
            }
        }
        Ok(())
    }
}

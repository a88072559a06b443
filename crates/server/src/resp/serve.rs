//! The turns of connections in a wake-up: decode, draft, execute, render. No sockets here.
//!
//! A turn ends when all its commands are drafted; they are executed together with those of others (`round.rs`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use mio::Token;
use quipu_counting::{Batch, Execution, Freshness, Unavailable};
use quipu_wire::resp::{Encoder, Pipeline};

use super::Shared;
use super::background::Job;
use super::connection::{Connection, Waiting};
use super::inbox::Message;
use super::interpret::{Interpreter, Step};
use super::plan::{Draft, REQUESTS_PER_DRAFT_MAX, View};
use super::render::render;
use super::round::{Part, Round};
use super::session::Mute;
use super::slots::Slots;

/// What the turns of one wake-up share.
pub struct Turn<'a> {
    /// The server.
    pub shared: &'a Arc<Shared>,
    /// Which loop this is.
    pub event_loop: usize,
    /// The time of this wake-up.
    pub now_ms: u64,
    /// The commands of the running turn; reused from turn to turn.
    pub pipeline: &'a mut Pipeline,
    /// What was drafted in this wake-up and not yet executed.
    pub round: &'a mut Round,
    /// The other connections: their replies may come in this one's turn.
    pub connections: &'a mut Slots<Box<Connection>>,
    /// The newest offset any reply of this wake-up reveals; none if nothing was executed.
    pub revealed: &'a mut Option<u64>,
    /// Commands understood.
    pub commands: &'a mut u64,
}

impl Turn<'_> {
    /// Serves what is in `buffer` and tells how much of it is done with. The rest must be kept at the head of the
    /// connection's input.
    pub fn digest(&mut self, connection: &mut Connection, token: Token, buffer: &mut [u8]) -> usize {
        let mut done = 0;
        connection.backlog = false;
        loop {
            if connection.closing {
                return buffer.len();
            }
            if connection.unsent() > self.shared.options.output_bytes_max {
                connection.backlog = true;
                return done;
            }
            let decoded =
                connection.decoder.decode(&mut buffer[done..], self.pipeline, REQUESTS_PER_DRAFT_MAX);
            let taken = decoded.unwrap_or(buffer.len() - done);
            connection.protocol_error = decoded.err();
            if taken == 0 {
                return done;
            }
            let pipeline = std::mem::take(self.pipeline);
            self.run(connection, token, pipeline, &buffer[done..done + taken], 0);
            if connection.waiting.is_some() {
                return done;
            }
            done += taken;
        }
    }

    /// A batch that was pending is done.
    pub fn finish(&mut self, connection: &mut Connection, batch: Batch, result: Result<u64, Unavailable>) {
        let Some(mut waiting) = connection.waiting.take() else { return };
        waiting.draft.batch = batch;
        let result = result.map(|offset| self.reveal(offset));
        self.render(connection, waiting.draft.view(), result.as_ref().copied(), waiting.now_ms);
        connection.pause(waiting);
    }

    /// A job of the background is done.
    pub fn answer(connection: &mut Connection, reply: &[u8]) {
        let Some(waiting) = connection.waiting.take() else { return };
        if !waiting.muted {
            connection.output.extend_from_slice(reply);
        }
        connection.pause(waiting);
    }

    /// Runs the rest of the pipeline that had to wait, and what was received meanwhile.
    pub fn go_on(&mut self, connection: &mut Connection, token: Token, waiting: Waiting) {
        let Waiting { pipeline, taken, next, .. } = waiting;
        let mut input = std::mem::take(&mut connection.input);
        self.run(connection, token, pipeline, &input[..taken], next);
        let done = match connection.waiting {
            Some(_) => 0,
            None => taken + self.digest(connection, token, &mut input[taken..]),
        };
        connection.keep_input(input, done);
    }

    /// Runs the commands of a pipeline from `next` on. Afterwards either all of them are answered or drafted, or the
    /// connection waits, or it closes.
    fn run(
        &mut self,
        connection: &mut Connection,
        token: Token,
        pipeline: Pipeline,
        buffer: &[u8],
        next: usize,
    ) {
        let stop = match self.draft_all(connection, token, &pipeline, buffer, next) {
            Stop::Drafted if connection.protocol_error.is_some() || self.round.is_worth_executing() => self
                .execute(connection, token)
                .map_or(Stop::Drafted, |draft| Stop::Pending { draft, next: pipeline.len() }),
            stop => stop,
        };
        let waiting = Waiting { taken: buffer.len(), now_ms: self.now_ms, ..Waiting::default() };
        match stop {
            Stop::Drafted => {
                self.round.end_part(token);
                if let Some(error) = connection.protocol_error.take()
                    && !connection.closing
                {
                    if connection.session.mute == Mute::No {
                        Encoder::new(&mut connection.output, connection.session.protocol)
                            .protocol_error(error);
                    }
                    connection.closing = true;
                }
                *self.pipeline = pipeline;
            }
            Stop::Pending { draft, next } => {
                self.wait(connection, token, Waiting { pipeline, next, draft, ..waiting });
            }
            Stop::Background { job, muted, next } => {
                self.wait_for_job(connection, token, job, Waiting { pipeline, next, muted, ..waiting });
            }
            Stop::Paused { next } => {
                connection.pause(Waiting { pipeline, next, ..waiting });
            }
        }
    }

    fn draft_all(
        &mut self,
        connection: &mut Connection,
        token: Token,
        pipeline: &Pipeline,
        buffer: &[u8],
        mut next: usize,
    ) -> Stop {
        let audits = self.shared.counters.audits();
        // What others asked before is theirs.
        self.round.draft.batch.ask_from(None);
        for arguments in pipeline.commands(buffer).skip(next) {
            let step = loop {
                if audits {
                    self.round.draft.batch.ask_from(Some(connection.session.origin()));
                }
                let mut interpreter = Interpreter {
                    shared: self.shared,
                    session: &mut connection.session,
                    draft: &mut self.round.draft,
                    now_ms: self.now_ms,
                };
                match interpreter.interpret(arguments) {
                    Step::Alone => {
                        if let Some(draft) = self.execute(connection, token) {
                            return Stop::Pending { draft, next };
                        }
                        if connection.has_had_its_turn() {
                            return Stop::Paused { next };
                        }
                    }
                    step => break step,
                }
            };
            next += 1;
            *self.commands += 1;
            match step {
                Step::Drafted | Step::Alone => {}
                Step::Background { job, muted, again } => {
                    return Stop::Background { job: *job, muted, next: next - usize::from(again) };
                }
                Step::Close => {
                    connection.closing = true;
                    break;
                }
                Step::Drop => {
                    self.round.withdraw();
                    connection.retract();
                    connection.closing = true;
                    break;
                }
            }
            if self.round.draft.is_full() {
                if let Some(draft) = self.execute(connection, token) {
                    return Stop::Pending { draft, next };
                }
                if connection.has_had_its_turn() {
                    return Stop::Paused { next };
                }
            }
        }
        Stop::Drafted
    }

    /// Executes everything that was drafted in this wake-up, of this connection last, and renders all replies. What this
    /// connection has to wait for comes back.
    fn execute(&mut self, connection: &mut Connection, token: Token) -> Option<Draft> {
        self.round.end_part(token);
        let mut pending = None;
        self.execute_round(|turn, part, executed| {
            if part.token == token {
                match executed {
                    Executed::Answered(view, result) => turn.render(connection, view, result, turn.now_ms),
                    Executed::Pending(draft) => pending = Some(draft),
                }
            } else {
                turn.deliver(part, executed);
            }
        });
        pending
    }

    /// Executes everything that was drafted in this wake-up and renders all replies. No connection has its turn.
    pub fn execute_rest(&mut self) {
        self.execute_round(Turn::deliver);
    }

    fn execute_round(&mut self, mut deliver: impl FnMut(&mut Self, &Part, Executed<'_>)) {
        if self.round.parts().is_empty() {
            return;
        }
        let mut round = std::mem::take(self.round);
        match self.execute_batch(round.batch()) {
            Some(Ok(())) => {
                round.stay_together();
                for part in round.parts() {
                    deliver(self, part, Executed::Answered(round.view(part), Ok(())));
                }
            }
            pending if round.parts().len() == 1 => {
                let part = round.parts()[0];
                match pending {
                    Some(result) => {
                        let result = result.as_ref().copied();
                        deliver(self, &part, Executed::Answered(round.view(&part), result));
                    }
                    None => deliver(self, &part, Executed::Pending(round.take())),
                }
            }
            _ => {
                round.stay_apart();
                for part in round.parts() {
                    let mut draft = round.separate(part);
                    match self.execute_batch(&mut draft.batch) {
                        Some(result) => {
                            let result = result.as_ref().copied();
                            deliver(self, part, Executed::Answered(draft.view(), result));
                        }
                        None => deliver(self, part, Executed::Pending(draft)),
                    }
                }
            }
        }
        round.clear();
        *self.round = round;
    }

    /// Says nothing if the batch did not run and has to be finished elsewhere.
    fn execute_batch(&mut self, batch: &mut Batch) -> Option<Result<(), Unavailable>> {
        if batch.requests.is_empty() {
            return Some(Ok(()));
        }
        match self.shared.counters.execute(batch, self.now_ms) {
            Ok(Execution::Done { offset }) => {
                self.reveal(offset);
                Some(Ok(()))
            }
            Ok(Execution::Pending) => None,
            Err(reason) => Some(Err(reason)),
        }
    }

    /// Gives a connection that had its turn what became of it. The connection may be gone.
    fn deliver(&mut self, part: &Part, executed: Executed<'_>) {
        let Some(mut connection) = self.connections.take(part.token) else { return };
        match executed {
            Executed::Answered(view, result) => self.render(&mut connection, view, result, self.now_ms),
            Executed::Pending(draft) => {
                let waiting = Waiting { draft, now_ms: self.now_ms, ..Waiting::default() };
                self.wait(&mut connection, part.token, waiting);
            }
        }
        self.connections.put_back(part.token, connection);
    }

    #[inline]
    fn render(
        &self,
        connection: &mut Connection,
        executed: View<'_>,
        result: Result<(), &Unavailable>,
        now_ms: u64,
    ) {
        let Connection { session, output, .. } = connection;
        render(executed, result, now_ms, (session, &self.shared.outcomes), output);
    }

    fn reveal(&mut self, offset: u64) {
        *self.revealed = Some(self.revealed.unwrap_or(0).max(offset));
    }

    /// The draft's batch is finished elsewhere.
    #[cold]
    fn wait(&mut self, connection: &mut Connection, token: Token, mut waiting: Waiting) {
        let mut batch = std::mem::take(&mut waiting.draft.batch);
        if connection.session.looks_anywhere {
            batch.freshness = Freshness::Eventual { max_staleness_ms: None };
        }
        let now_ms = waiting.now_ms;
        connection.waiting = Some(waiting);
        self.shared.statistics.waiting.fetch_add(1, Ordering::Relaxed);
        let (shared, event_loop) = (Arc::clone(self.shared), self.event_loop);
        let finished = move |batch, result| {
            shared.statistics.waiting.fetch_sub(1, Ordering::Relaxed);
            shared.inboxes[event_loop].push(Message::Finished { token, batch, result });
        };
        self.shared.counters.finish(batch, now_ms, Box::new(finished));
    }

    /// A job is done elsewhere.
    #[cold]
    fn wait_for_job(&mut self, connection: &mut Connection, token: Token, mut job: Job, waiting: Waiting) {
        if let Job::Merge { by, .. } = &mut job
            && self.shared.counters.audits()
        {
            *by = Some(Arc::clone(connection.session.origin()));
        }
        let now_ms = waiting.now_ms;
        connection.waiting = Some(waiting);
        self.shared.statistics.waiting.fetch_add(1, Ordering::Relaxed);
        let (shared, event_loop) = (Arc::clone(self.shared), self.event_loop);
        let answered = move |reply| {
            shared.statistics.waiting.fetch_sub(1, Ordering::Relaxed);
            shared.inboxes[event_loop].push(Message::Answered { token, reply });
        };
        self.shared.background.submit(job, now_ms, connection.session.protocol, Box::new(answered));
    }
}

/// Why the commands of a pipeline are no longer run.
enum Stop {
    /// All of them are drafted, or the connection closes.
    Drafted,
    /// The draft's batch must be waited for; commands from `next` on come after it.
    Pending { draft: Draft, next: usize },
    /// A job must be waited for; commands from `next` on come after it.
    Background { job: Job, muted: bool, next: usize },
    /// Others have their turn first; commands from `next` on come after it.
    Paused { next: usize },
}

/// What became of a part of the round.
enum Executed<'d> {
    /// It has run, or could not.
    Answered(View<'d>, Result<(), &'d Unavailable>),
    /// It did not run and must be waited for.
    Pending(Draft),
}

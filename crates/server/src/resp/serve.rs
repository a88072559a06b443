//! One connection's turn in a wake-up: decode, draft, execute, render. No sockets here.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use mio::Token;
use quipu_counting::{Batch, Execution, Unavailable};
use quipu_wire::resp::{Encoder, Pipeline};

use super::Shared;
use super::background::Job;
use super::connection::{Connection, Waiting};
use super::inbox::Message;
use super::interpret::{Interpreter, Step};
use super::plan::{Draft, REQUESTS_PER_BATCH_MAX, Work};
use super::render::render;

/// What the turns of one wake-up share.
pub struct Turn<'a> {
    /// The server.
    pub shared: &'a Arc<Shared>,
    /// Which loop this is.
    pub event_loop: usize,
    /// The time of this wake-up.
    pub now_ms: u64,
    /// Reused from turn to turn.
    pub work: &'a mut Work,
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
            let pipeline = &mut self.work.pipeline;
            let decoded = connection.decoder.decode(&mut buffer[done..], pipeline, REQUESTS_PER_BATCH_MAX);
            let taken = decoded.unwrap_or(buffer.len() - done);
            connection.protocol_error = decoded.err();
            if taken == 0 {
                return done;
            }
            let pipeline = std::mem::take(&mut self.work.pipeline);
            self.run(connection, token, pipeline, &buffer[done..done + taken], 0);
            if connection.waiting.is_some() {
                return done;
            }
            done += taken;
        }
    }

    /// A batch that was pending is done.
    pub fn finish(
        &mut self,
        connection: &mut Connection,
        token: Token,
        batch: Batch,
        result: Result<u64, Unavailable>,
    ) {
        let Some(mut waiting) = connection.waiting.take() else { return };
        waiting.draft.batch = batch;
        let result = result.map(|offset| self.reveal(offset));
        render(
            &waiting.draft,
            result.as_ref().copied(),
            waiting.now_ms,
            connection.session.protocol,
            &mut connection.output,
        );
        self.go_on(connection, token, waiting);
    }

    /// A job of the background is done.
    pub fn answer(&mut self, connection: &mut Connection, token: Token, reply: &[u8]) {
        let Some(waiting) = connection.waiting.take() else { return };
        if !waiting.muted {
            connection.output.extend_from_slice(reply);
        }
        self.go_on(connection, token, waiting);
    }

    /// Runs the rest of the pipeline that had to wait, and what was received meanwhile.
    fn go_on(&mut self, connection: &mut Connection, token: Token, waiting: Waiting) {
        let Waiting { pipeline, taken, next, mut draft, .. } = waiting;
        draft.clear();
        self.work.draft = draft;
        let mut input = std::mem::take(&mut connection.input);
        self.run(connection, token, pipeline, &input[..taken], next);
        let done = match connection.waiting {
            Some(_) => 0,
            None => taken + self.digest(connection, token, &mut input[taken..]),
        };
        input.drain(..done);
        if !input.is_empty() {
            connection.input = input;
        }
    }

    /// Runs the commands of a pipeline from `next` on. Afterwards either all of them are answered, or the connection
    /// waits, or it closes.
    fn run(
        &mut self,
        connection: &mut Connection,
        token: Token,
        pipeline: Pipeline,
        buffer: &[u8],
        next: usize,
    ) {
        match self.draft_and_execute(connection, &pipeline, buffer, next) {
            Stop::Answered => {
                if let Some(error) = connection.protocol_error.take()
                    && !connection.closing
                {
                    Encoder::new(&mut connection.output, connection.session.protocol).protocol_error(error);
                    connection.closing = true;
                }
                self.work.pipeline = pipeline;
            }
            Stop::Pending { next } => {
                let draft = std::mem::take(&mut self.work.draft);
                let (taken, now_ms) = (buffer.len(), self.now_ms);
                self.wait(connection, token, Waiting { pipeline, taken, next, draft, now_ms, muted: false });
            }
            Stop::Background { job, muted, next } => {
                let (taken, now_ms) = (buffer.len(), self.now_ms);
                let waiting = Waiting { pipeline, taken, next, draft: Draft::default(), now_ms, muted };
                self.wait_for_job(connection, token, job, waiting);
            }
        }
    }

    fn draft_and_execute(
        &mut self,
        connection: &mut Connection,
        pipeline: &Pipeline,
        buffer: &[u8],
        mut next: usize,
    ) -> Stop {
        for arguments in pipeline.commands(buffer).skip(next) {
            let step = loop {
                let mut interpreter = Interpreter {
                    shared: self.shared,
                    session: &mut connection.session,
                    draft: &mut self.work.draft,
                    now_ms: self.now_ms,
                };
                match interpreter.interpret(arguments) {
                    Step::Alone if self.execute(connection) => {}
                    Step::Alone => return Stop::Pending { next },
                    step => break step,
                }
            };
            next += 1;
            *self.commands += 1;
            match step {
                Step::Drafted | Step::Alone => {}
                Step::Background { job, muted } => return Stop::Background { job, muted, next },
                Step::Close => {
                    connection.closing = true;
                    break;
                }
                Step::Drop => {
                    self.work.draft.clear();
                    connection.retract();
                    connection.closing = true;
                    return Stop::Answered;
                }
            }
            if self.work.draft.is_full() && !self.execute(connection) {
                return Stop::Pending { next };
            }
        }
        if self.execute(connection) { Stop::Answered } else { Stop::Pending { next } }
    }

    /// Executes the draft and renders its replies. Says no if they have to be waited for.
    #[inline]
    fn execute(&mut self, connection: &mut Connection) -> bool {
        let draft = &mut self.work.draft;
        if draft.is_empty() {
            return true;
        }
        let mut result = Ok(());
        if !draft.batch.requests.is_empty() {
            match self.shared.counters.execute(&mut draft.batch, self.now_ms) {
                Ok(Execution::Done { offset }) => {
                    *self.revealed = Some(self.revealed.unwrap_or(0).max(offset));
                }
                Ok(Execution::Pending) => return false,
                Err(reason) => result = Err(reason),
            }
        }
        let protocol = connection.session.protocol;
        render(draft, result.as_ref().copied(), self.now_ms, protocol, &mut connection.output);
        draft.clear();
        true
    }

    fn reveal(&mut self, offset: u64) {
        *self.revealed = Some(self.revealed.unwrap_or(0).max(offset));
    }

    /// The draft's batch is finished elsewhere.
    #[cold]
    fn wait(&mut self, connection: &mut Connection, token: Token, mut waiting: Waiting) {
        let batch = std::mem::take(&mut waiting.draft.batch);
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
    fn wait_for_job(&mut self, connection: &mut Connection, token: Token, job: Job, waiting: Waiting) {
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
    /// All of them are answered, or the connection closes.
    Answered,
    /// The draft's batch must be waited for; commands from `next` on come after it.
    Pending { next: usize },
    /// A job must be waited for; commands from `next` on come after it.
    Background { job: Job, muted: bool, next: usize },
}

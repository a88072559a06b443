//! The log after the checkpoints, carried out by several threads.
//!
//! Whoever reads the log hands its records on in pieces; every thread takes its own partitions' sections from each of them.
//! Partitions do not know of each other, so what comes out is the same for any number of threads. A log that ends before the
//! first piece is full is carried out by the thread that read it.

use std::collections::VecDeque;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, Scope, ScopedJoinHandle};

use quipu_counting::Policies;
use quipu_store::cold::ColdStore;
use quipu_store::{LogError, Visit};
use quipu_wire::entry::{Effect, Malformed, Section, sections};

use crate::partition::Partition;
use crate::replay::{At, Queue, ReplayError, Step};
use crate::rows::Cut;

/// A piece has this many bytes, or little more.
const PIECE_BYTES: usize = 256 << 10;
/// Pieces that wait for a thread: enough for both sides to go on while the other is held up.
const PIECES_WAITING: usize = 16;

/// Some records of the log.
#[derive(Default)]
struct Piece {
    bytes: Vec<u8>,
    /// Where each begins in the log, and where it ends in `bytes`.
    records: Vec<(u64, usize)>,
}

/// Hands on what it is shown.
pub(crate) struct Replaying<'scope, 'env, 'a> {
    scope: &'scope Scope<'scope, 'env>,
    piece: Piece,
    /// Those that were handed on: memory that is used again costs less than new.
    handed_on: VecDeque<Arc<Piece>>,
    /// Until they have to begin.
    resting: Vec<Worker<'a>>,
    running: Vec<(SyncSender<Arc<Piece>>, Thread<'scope>)>,
}

type Thread<'scope> = ScopedJoinHandle<'scope, Result<(), LogError>>;

impl<'scope, 'a: 'scope> Replaying<'scope, '_, 'a> {
    /// For these partitions, of which the checkpoints contain what is up to `cuts`.
    pub(crate) fn new<'env>(
        scope: &'scope Scope<'scope, 'env>,
        partitions: &'a mut [Partition],
        policies: &'a mut Arc<Policies>,
        cuts: &'a [Cut],
        cold: &'a dyn ColdStore,
    ) -> Replaying<'scope, 'env, 'a> {
        let (count, mut policies) = (partitions.len(), Some(policies));
        let threads = thread::available_parallelism().map_or(1, NonZero::get).min(count).max(1);
        let size = count.div_ceil(threads).max(1);
        let worker = |(number, partitions): (usize, &'a mut [Partition])| Worker {
            first: number * size,
            count,
            queue: Queue::new(partitions.len()),
            partitions,
            policies: policies.take(),
            cuts,
            cold,
        };
        let resting = partitions.chunks_mut(size).enumerate().map(worker).collect();
        let (piece, handed_on) = Default::default();
        Replaying { scope, piece, handed_on, resting, running: Vec::new() }
    }

    /// Takes what the log shows.
    pub(crate) fn visit(&mut self, visit: Visit<'_>) -> Result<(), LogError> {
        match visit {
            Visit::Segment { .. } => Ok(()),
            Visit::Record { start, payload, .. } => {
                self.piece.bytes.extend_from_slice(payload);
                self.piece.records.push((start, self.piece.bytes.len()));
                if self.piece.bytes.len() < PIECE_BYTES {
                    return Ok(());
                }
                self.begin()?;
                // Who takes no more has failed.
                if self.hand_on() { Ok(()) } else { self.end() }
            }
            Visit::End => {
                self.hand_on();
                self.end()
            }
        }
    }

    fn begin(&mut self) -> Result<(), LogError> {
        for worker in self.resting.drain(..) {
            let (sender, pieces) = sync_channel::<Arc<Piece>>(PIECES_WAITING);
            let builder = thread::Builder::new().name("quipu-replay".into());
            let thread = builder
                .spawn_scoped(self.scope, move || worker.run(pieces))
                .map_err(|error| LogError::Record(format!("no thread to carry it out: {error}")))?;
            self.running.push((sender, thread));
        }
        Ok(())
    }

    /// Gives the piece to all threads, and says whether they took it.
    fn hand_on(&mut self) -> bool {
        if self.running.is_empty() {
            return true;
        }
        let next = self.handed_on.pop_front_if(|oldest| Arc::strong_count(oldest) == 1);
        let mut next = next.and_then(Arc::into_inner).unwrap_or_default();
        next.bytes.clear();
        next.records.clear();
        let piece = Arc::new(std::mem::replace(&mut self.piece, next));
        self.handed_on.push_back(Arc::clone(&piece));
        self.running.iter().all(|(sender, _)| sender.send(Arc::clone(&piece)).is_ok())
    }

    /// Waits until everything was carried out.
    fn end(&mut self) -> Result<(), LogError> {
        let piece = std::mem::take(&mut self.piece);
        for mut worker in self.resting.drain(..) {
            worker.piece(&piece)?;
            worker.apply()?;
        }
        let (senders, threads): (Vec<_>, Vec<_>) = self.running.drain(..).unzip();
        drop(senders);
        let ended = |_| LogError::Record("a thread that carried it out has ended".into());
        threads.into_iter().try_for_each(|thread| thread.join().map_err(ended)?)
    }
}

/// Carries out what concerns some partitions.
struct Worker<'a> {
    /// The number of the first.
    first: usize,
    /// How many there are altogether.
    count: usize,
    partitions: &'a mut [Partition],
    /// Of whoever has the first of all partitions: they are logged there.
    policies: Option<&'a mut Arc<Policies>>,
    /// Of all partitions.
    cuts: &'a [Cut],
    cold: &'a dyn ColdStore,
    /// Effects on cells that wait to be carried out together.
    queue: Queue,
}

impl Worker<'_> {
    fn run(mut self, pieces: Receiver<Arc<Piece>>) -> Result<(), LogError> {
        for piece in pieces {
            self.piece(&piece)?;
        }
        self.apply()
    }

    fn piece(&mut self, piece: &Piece) -> Result<(), LogError> {
        let mut begin = 0;
        for (start, end) in &piece.records {
            let failed = |error: ReplayError| LogError::Record(format!("offset {start}: {error}"));
            for section in sections(&piece.bytes[begin..*end]) {
                let section = section.map_err(|error| failed(error.into()))?;
                self.section(&section).map_err(failed)?;
            }
            begin = *end;
        }
        Ok(())
    }

    fn apply(&mut self) -> Result<(), LogError> {
        self.queue.apply(self.partitions, self.cold).map_err(|error| LogError::Record(error.to_string()))
    }

    fn section(&mut self, section: &Section<'_>) -> Result<(), ReplayError> {
        let number = usize::from(section.partition);
        if number >= self.count {
            return Err(Malformed("partition number").into());
        }
        let index = number.wrapping_sub(self.first);
        let Some(partition) = self.partitions.get_mut(index) else { return Ok(()) };
        if section.sequence <= self.cuts[number].sequence {
            // In the checkpoint as a whole. What follows defines anew whatever it names.
            return Ok(());
        }
        partition.sequence = section.sequence;
        partition.time_ms = partition.time_ms.max(section.time_ms);
        let at = At { index, time_ms: section.time_ms };
        for effect in section.effects() {
            match effect? {
                Effect::Define { id, key, cell, has_body } => self.queue.define(at, id, key, cell, has_body),
                Effect::Add { id, delta, times } => self.queue.push(at, id, Step::Add(delta, times)),
                Effect::AddUnder { id, delta, identity } => {
                    self.queue.push(at, id, Step::AddUnder(delta, identity));
                }
                Effect::Put { id, cell } => self.queue.push(at, id, Step::Put(cell)),
                Effect::PutWhole { id, cell, events } => {
                    let place = self.queue.keep(events);
                    self.queue.push(at, id, Step::PutWhole(cell, place));
                }
                Effect::Remove { id } => self.queue.push(at, id, Step::Remove),
                Effect::Clear => {
                    self.queue.apply(self.partitions, self.cold)?;
                    self.queue.forget(index);
                    let partition = &mut self.partitions[index];
                    partition.clear();
                    partition.effects.clear();
                    partition.sequence = section.sequence;
                }
                Effect::Audit { key, keep_ms, change } => {
                    self.partitions[index].trail.add(key, keep_ms, change)?;
                }
                Effect::Remember(remembered) => self.partitions[index].ids.remember(remembered),
                Effect::Session { producer, session } => {
                    self.partitions[index].sessions.insert(producer.into(), (session, true));
                }
                Effect::Policy { pattern, policy } => {
                    let policies = self.policies.as_mut().ok_or(Malformed("policy of another partition"))?;
                    Arc::make_mut(policies).set(pattern, policy);
                }
            }
            if self.queue.is_full() {
                self.queue.apply(self.partitions, self.cold)?;
            }
        }
        Ok(())
    }
}

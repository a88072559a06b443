//! Counters in memory that misbehave on request: what the front does with a deployment that waits, is full or fails.
//!
//! A key decides what happens: `cold...` is pending until released, `busy...` is refused, and once a key `doomed...`
//! was executed the next settling fails.

use std::collections::HashMap;

use parking_lot::Mutex;
use quipu_counting::aggregate::{Aggregate, Missing, Selector};
use quipu_counting::service::{Finished, ScanPage};
use quipu_counting::{
    Action, Batch, Cell, Change, Counters, Execution, HotKeys, Limits, ListPage, Listing, Policies, Policy,
    Reply, Unavailable, decide,
};

/// See above.
#[derive(Default)]
pub struct Scripted {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    cells: HashMap<Vec<u8>, Cell>,
    sequence: u64,
    held: Vec<(Batch, u64, Finished)>,
    /// Offsets handed out, and how far they were settled.
    offset: u64,
    settled: Vec<u64>,
    doomed: bool,
    /// Sizes of the batches executed.
    batches: Vec<usize>,
}

impl Scripted {
    /// How many batches are held back.
    pub fn held(&self) -> usize {
        self.state.lock().held.len()
    }

    /// Finishes what is held back, newest first: nobody promised an order between connections.
    pub fn release(&self) {
        let held = std::mem::take(&mut self.state.lock().held);
        for (mut batch, now_ms, finished) in held.into_iter().rev() {
            let offset = self.state.lock().run(&mut batch, now_ms);
            finished(batch, Ok(offset));
        }
    }

    /// Answers what is held back with a failure.
    pub fn fail_held(&self, reason: &Unavailable) {
        let held = std::mem::take(&mut self.state.lock().held);
        for (batch, _, finished) in held {
            finished(batch, Err(reason.clone()));
        }
    }

    /// Every offset that was settled.
    pub fn settled(&self) -> Vec<u64> {
        self.state.lock().settled.clone()
    }

    /// Sizes of the batches executed so far.
    pub fn batches(&self) -> Vec<usize> {
        self.state.lock().batches.clone()
    }
}

impl State {
    fn run(&mut self, batch: &mut Batch, now_ms: u64) -> u64 {
        self.batches.push(batch.requests.len());
        batch.replies.clear();
        for index in 0..batch.requests.len() {
            let (key, action) = (batch.key(index).to_vec(), batch.requests[index].action);
            self.doomed |= key.starts_with(b"doomed");
            let reply = match action {
                Action::Count => Reply {
                    cell: Cell { value: self.cells.len() as i64, ..Cell::ABSENT },
                    ..Reply::state(None)
                },
                Action::Clear => {
                    self.cells.clear();
                    Reply::state(None)
                }
                action => {
                    self.sequence += 1;
                    let verdict =
                        decide(self.cells.get(&key).copied(), &action, &Limits::NONE, now_ms, self.sequence);
                    match verdict.change {
                        Change::Keep => {}
                        Change::Put(cell) => drop(self.cells.insert(key, cell)),
                        Change::Remove => drop(self.cells.remove(&key)),
                    }
                    verdict.reply
                }
            };
            batch.replies.push(reply);
        }
        self.offset += batch.requests.len() as u64;
        self.offset
    }
}

impl Counters for Scripted {
    fn execute(&self, batch: &mut Batch, now_ms: u64) -> Result<Execution, Unavailable> {
        let has = |prefix: &[u8]| (0..batch.requests.len()).any(|index| batch.key(index).starts_with(prefix));
        if has(b"busy") {
            return Err(Unavailable::Busy("as told".into()));
        }
        if has(b"full") {
            return Err(Unavailable::Full("as told".into()));
        }
        if has(b"cold") {
            return Ok(Execution::Pending);
        }
        Ok(Execution::Done { offset: self.state.lock().run(batch, now_ms) })
    }

    fn finish(&self, batch: Batch, now_ms: u64, finished: Finished) {
        self.state.lock().held.push((batch, now_ms, finished));
    }

    fn settle(&self, offset: u64) -> Result<(), Unavailable> {
        let mut state = self.state.lock();
        if state.doomed {
            return Err(Unavailable::Failed("as told".into()));
        }
        state.settled.push(offset);
        Ok(())
    }

    fn when_settled(&self, offset: u64, settled: Box<dyn FnOnce(Result<(), Unavailable>) + Send>) {
        settled(self.settle(offset));
    }

    fn policies(&self) -> Result<Policies, Unavailable> {
        Ok(Policies::default())
    }

    fn set_policy(&self, _: &[u8], _: Option<Policy>, _: u64) -> Result<bool, Unavailable> {
        Err(Unavailable::Unsupported("no policies here".into()))
    }

    fn scan(&self, _: u64, _: usize, _: u64) -> Result<ScanPage, Unavailable> {
        let mut keys: Vec<Vec<u8>> = self.state.lock().cells.keys().cloned().collect();
        keys.sort();
        Ok(ScanPage { keys, cursor: 0 })
    }

    fn list(&self, _: &Listing, _: u64) -> Result<ListPage, Unavailable> {
        Err(Unavailable::Unsupported("no command lists counters with their values".into()))
    }

    fn aggregate(&self, _: &Selector, _: u64) -> Result<Aggregate, Unavailable> {
        let missing = |partition| Missing { partition, why: "nobody leads it at the moment".to_owned() };
        Ok(Aggregate { parts: Vec::new(), missing: vec![missing(3), missing(5)] })
    }

    fn random_key(&self, draw: u64, _: u64) -> Result<Option<Vec<u8>>, Unavailable> {
        let state = self.state.lock();
        let at = draw as usize % state.cells.len().max(1);
        Ok(state.cells.keys().nth(at).cloned())
    }

    fn hot(&self, _: usize, _: u64) -> Result<HotKeys, Unavailable> {
        Err(Unavailable::Unsupported("nobody counts requests here".into()))
    }

    fn facts(&self) -> Vec<(&'static str, u64)> {
        vec![("counters", self.state.lock().cells.len() as u64)]
    }
}

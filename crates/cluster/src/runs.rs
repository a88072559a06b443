//! One node, one process: who runs a copy of a node's data folder beside it is not spoken to.
//!
//! Every process draws a number, its *run*, and says it when it greets. While one run of a node is heard, another is refused, so
//! that nothing of what a copy promises, or has forgotten, counts. A node that was killed and starts again is welcome at once: its
//! connections have ended, or nothing has come over them for a while.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::raft::NodeId;

/// Whoever has said nothing for so long may have ended without a word.
const SILENCE_MAX: Duration = Duration::from_secs(3);

/// What is known of the processes of others.
pub(crate) struct Runs {
    began: Instant,
    heard: Mutex<HashMap<NodeId, Arc<Run>>>,
    /// Those who hear another run of this node, and when they have said so for the first and for the last time.
    refusals: Mutex<HashMap<NodeId, (Instant, Instant)>>,
}

struct Run {
    number: u64,
    connections: AtomicUsize,
    /// When something came last, in milliseconds since we began.
    last_ms: AtomicU64,
    /// Another run has taken its place.
    is_over: AtomicBool,
}

/// A connection to a run.
pub(crate) struct Heard {
    began: Instant,
    run: Arc<Run>,
}

impl Runs {
    pub(crate) fn new() -> Runs {
        Runs { began: Instant::now(), heard: Mutex::default(), refusals: Mutex::default() }
    }

    /// Whether another run of a node is heard.
    pub(crate) fn hears_another(&self, node: NodeId, number: u64) -> bool {
        self.heard.lock().get(&node).is_some_and(|run| run.number != number && self.is_alive(run))
    }

    fn is_alive(&self, run: &Run) -> bool {
        let silent_ms =
            (self.began.elapsed().as_millis() as u64).saturating_sub(run.last_ms.load(Ordering::Relaxed));
        run.connections.load(Ordering::Relaxed) > 0 && silent_ms < SILENCE_MAX.as_millis() as u64
    }

    /// A connection to a run of a node, unless another run of it is heard.
    pub(crate) fn meet(&self, node: NodeId, number: u64) -> Option<Heard> {
        let mut heard = self.heard.lock();
        let known = heard.get(&node);
        let run = match known {
            Some(run) if run.number == number => Arc::clone(run),
            Some(run) if self.is_alive(run) => return None,
            _ => {
                let run = Arc::new(Run {
                    number,
                    connections: AtomicUsize::new(0),
                    last_ms: AtomicU64::new(0),
                    is_over: AtomicBool::new(false),
                });
                if let Some(former) = heard.insert(node, Arc::clone(&run)) {
                    former.is_over.store(true, Ordering::Relaxed);
                }
                run
            }
        };
        run.connections.fetch_add(1, Ordering::Relaxed);
        let met = Heard { began: self.began, run };
        met.note();
        Some(met)
    }

    /// A node has said whether it hears another run of this one.
    pub(crate) fn note_refusal(&self, by: NodeId, is_refused: bool) {
        let mut refusals = self.refusals.lock();
        match is_refused {
            true => {
                let now = Instant::now();
                refusals.entry(by).or_insert((now, now)).1 = now;
            }
            false => {
                refusals.remove(&by);
            }
        }
    }

    /// Who hears another run of this node, and for how long they have said so. Who said it once and was not reached again may
    /// have meant what was there before this process.
    pub(crate) fn refused_by(&self) -> Option<(NodeId, Duration)> {
        let said = |(by, (first, last)): (&NodeId, &(Instant, Instant))| (*by, *last - *first);
        self.refusals.lock().iter().map(said).max_by_key(|(_, length)| *length)
    }
}

impl Heard {
    /// Something came. Says whether it still counts.
    pub(crate) fn note(&self) -> bool {
        self.run.last_ms.store(self.began.elapsed().as_millis() as u64, Ordering::Relaxed);
        !self.run.is_over.load(Ordering::Relaxed)
    }
}

impl Drop for Heard {
    fn drop(&mut self) {
        self.run.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_run_of_a_node_is_heard_at_a_time() {
        let runs = Runs::new();
        let first = runs.meet(2, 10).expect("nobody else is there");
        let again = runs.meet(2, 10).expect("it is the same");
        assert!(runs.meet(3, 11).is_some(), "another node");
        assert!(runs.hears_another(2, 11) && runs.meet(2, 11).is_none(), "a copy");
        drop(first);
        assert!(runs.meet(2, 11).is_none(), "there is another connection to the first");
        drop(again);
        assert!(!runs.hears_another(2, 11) && runs.meet(2, 11).is_some(), "it was started again");
    }

    #[tokio::test(start_paused = true)]
    async fn who_was_silent_for_long_is_not_believed_any_more_once_there_is_another() {
        let runs = Runs::new();
        let silent = runs.meet(2, 10).expect("nobody else is there");
        tokio::time::advance(SILENCE_MAX / 2).await;
        assert!(silent.note());
        tokio::time::advance(SILENCE_MAX / 2).await;
        assert!(runs.meet(2, 11).is_none(), "something came not long ago");
        tokio::time::advance(SILENCE_MAX).await;
        assert!(silent.note(), "still the only one");
        tokio::time::advance(SILENCE_MAX).await;
        let _other = runs.meet(2, 11).expect("the first one may have lost its power");
        assert!(!silent.note(), "it comes back too late");
        assert!(runs.meet(2, 10).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_are_forgotten_when_they_end() {
        let runs = Runs::new();
        runs.note_refusal(1, true);
        runs.note_refusal(3, true);
        tokio::time::advance(SILENCE_MAX).await;
        assert_eq!(runs.refused_by().map(|(_, length)| length), Some(Duration::ZERO), "said once");
        runs.note_refusal(1, true);
        assert_eq!(runs.refused_by(), Some((1, SILENCE_MAX)));
        runs.note_refusal(1, false);
        runs.note_refusal(3, false);
        assert_eq!(runs.refused_by(), None);
    }
}

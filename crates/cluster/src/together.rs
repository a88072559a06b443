//! Batches that go the same way go together: a message, or an entry of the log, costs far more than what is in it.
//!
//! While as many are under way as may be, what comes waits, and goes together when there is room.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use quipu_counting::{Batch, Reply};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::raft::NotDone;

/// What takes longer than this has nothing to do with how much there is to do: others need not wait for it.
const PLACE_MAX: Duration = Duration::from_secs(1);
/// The most requests that go together; one batch alone may have more.
pub(crate) const REQUESTS_TOGETHER_MAX: usize = 8_192;
/// The same of those that look: the answers may bring whole sketches, of 12 KiB each.
pub(crate) const LOOKS_TOGETHER_MAX: usize = 1_024;
/// The most bytes of keys and ids; one batch alone may have more.
const BYTES_MAX: usize = 1 << 20;

/// What becomes of a batch.
pub type Done = Result<Vec<Reply>, NotDone>;

struct Waiting {
    batch: Batch,
    answer: oneshot::Sender<Done>,
}

/// One way: to the log of a group, say, or to another node.
#[derive(Clone)]
pub struct Together {
    queue: mpsc::UnboundedSender<Waiting>,
}

impl Together {
    /// Where it leads, how many may be under way at the same time, and how many requests go together. The way ends when it leads
    /// nowhere any more.
    pub fn new(
        under_way_max: usize,
        requests_max: usize,
        go: impl Fn(Batch) -> Option<BoxFuture<'static, Done>> + Send + 'static,
    ) -> Together {
        // Bounded by who fills it: each waits for its answer, clients as in `gathering.rs`, other nodes by the places that `peers.rs` has
        // for what clients of theirs ask.
        let (queue, waiting) = mpsc::unbounded_channel();
        tokio::spawn(run((under_way_max, requests_max), go, waiting));
        Together { queue }
    }

    /// Goes it with a batch.
    pub async fn go(&self, batch: Batch) -> Done {
        let (answer, answered) = oneshot::channel();
        if self.queue.send(Waiting { batch, answer }).is_err() {
            return Err(NotDone::NotLeader(None));
        }
        // Without an answer the node has ended, perhaps in the middle.
        answered.await.unwrap_or(Err(NotDone::Unknown))
    }
}

async fn run(
    (under_way_max, requests_max): (usize, usize),
    go: impl Fn(Batch) -> Option<BoxFuture<'static, Done>>,
    mut queue: mpsc::UnboundedReceiver<Waiting>,
) {
    let under_way = Arc::new(Semaphore::new(under_way_max));
    let mut left_over = None;
    loop {
        let first = match left_over.take() {
            Some(left_over) => left_over,
            None => match queue.recv().await {
                Some(first) => first,
                None => return,
            },
        };
        let Ok(place) = Arc::clone(&under_way).acquire_owned().await else { return };
        let mut place = Some(place);
        let (mut together, mut waiting) = (Batch::default(), Vec::new());
        let mut next = Some(first);
        while let Some(one) = next {
            if !waiting.is_empty() && !fits(&together, &one.batch, requests_max) {
                left_over = Some(one);
                break;
            }
            // Whoever lost patience was told that nobody knows what becomes of it: better nothing than something late.
            if !one.answer.is_closed() {
                waiting.push((one.batch.requests.len(), one.answer));
                together.append(&one.batch);
            }
            next = queue.try_recv().ok();
        }
        if waiting.is_empty() {
            continue;
        }
        let Some(going) = go(together) else {
            queue.close();
            let answers = waiting.into_iter().map(|(_, answer)| answer);
            let rest = left_over.into_iter().chain(std::iter::from_fn(|| queue.try_recv().ok()));
            for answer in answers.chain(rest.map(|one| one.answer)) {
                let _ = answer.send(Err(NotDone::NotLeader(None)));
            }
            return;
        };
        tokio::spawn(async move {
            let mut going = going;
            let done = match tokio::time::timeout(PLACE_MAX, &mut going).await {
                Ok(done) => done,
                Err(_) => {
                    drop(place.take());
                    going.await
                }
            };
            let mut replies = done.map(Vec::into_iter);
            for (count, answer) in waiting {
                let share = match &mut replies {
                    Ok(replies) => Ok(replies.by_ref().take(count).collect()),
                    Err(why) => Err(why.clone()),
                };
                let _ = answer.send(share);
            }
            drop(place);
        });
    }
}

/// Whether they may go together. Who wants all there is to counters gets large answers, which are not for others.
pub(crate) fn fits(together: &Batch, more: &Batch, requests_max: usize) -> bool {
    (together.requests.is_empty() || together.wants_whole == more.wants_whole)
        && together.requests.len() + more.requests.len() <= requests_max
        && together.bytes_len() + more.bytes_len() <= BYTES_MAX
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use quipu_counting::{Action, Reply};

    use super::*;

    const UNDER_WAY_MAX: usize = 2;

    fn batch(requests: usize) -> Batch {
        let mut batch = Batch::default();
        for _ in 0..requests {
            batch.push(b"likes", Action::Read);
        }
        batch
    }

    /// A way on which each batch answers with as many replies as it has requests, and the sizes of those that went it.
    fn way() -> (Together, Arc<Mutex<Vec<usize>>>) {
        let sizes = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&sizes);
        let way = Together::new(UNDER_WAY_MAX, REQUESTS_TOGETHER_MAX, move |batch| {
            let count = batch.requests.len();
            seen.lock().push(count);
            Some(Box::pin(async move {
                tokio::task::yield_now().await;
                Ok(vec![Reply::state(None); count])
            }))
        });
        (way, sizes)
    }

    #[tokio::test]
    async fn what_waits_goes_together_and_everybody_gets_their_own() {
        let (way, sizes) = way();
        let all = (1..=20).map(|count| way.go(batch(count)));
        let replies = futures_util::future::join_all(all).await;
        let counts: Vec<usize> = replies.into_iter().map(|replies| replies.unwrap().len()).collect();
        assert_eq!(counts, (1..=20).collect::<Vec<_>>());
        let sizes = sizes.lock().clone();
        assert_eq!(sizes.iter().sum::<usize>(), 210);
        assert!(sizes.len() < 20, "{sizes:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_hangs_holds_nobody_up_for_long() {
        let way = Together::new(1, REQUESTS_TOGETHER_MAX, |batch| {
            let count = batch.requests.len();
            Some(Box::pin(async move {
                match count {
                    1 => std::future::pending().await,
                    _ => Ok(vec![Reply::state(None); count]),
                }
            }))
        });
        let hangs = tokio::spawn({
            let way = way.clone();
            async move { way.go(batch(1)).await }
        });
        tokio::task::yield_now().await;
        let other =
            tokio::time::timeout(PLACE_MAX * 2, way.go(batch(2))).await.expect("it waits for nothing");
        assert_eq!(other.map(|replies| replies.len()), Ok(2));
        assert!(!hangs.is_finished());
    }

    #[tokio::test]
    async fn nothing_grows_beyond_its_limit_by_going_together() {
        let (way, sizes) = way();
        let all = [1, REQUESTS_TOGETHER_MAX, 60_000, 7, REQUESTS_TOGETHER_MAX - 7, 1]
            .map(|count| way.go(batch(count)));
        futures_util::future::join_all(all).await.into_iter().for_each(|replies| drop(replies.unwrap()));
        assert_eq!(*sizes.lock(), [1, REQUESTS_TOGETHER_MAX, 60_000, REQUESTS_TOGETHER_MAX, 1]);
    }

    #[tokio::test]
    async fn a_way_that_leads_nowhere_did_nothing() {
        let way = Together::new(UNDER_WAY_MAX, REQUESTS_TOGETHER_MAX, |_| None);
        let all = futures_util::future::join_all([way.go(batch(1)), way.go(batch(2))]).await;
        assert!(all.iter().all(|done| *done == Err(NotDone::NotLeader(None))), "{all:?}");
        assert_eq!(way.go(batch(1)).await, Err(NotDone::NotLeader(None)));
    }
}

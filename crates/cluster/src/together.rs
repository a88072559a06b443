//! Batches that go the same way go together: a message, or an entry of the log, costs far more than what is in it.
//!
//! While as many are under way as may be, what comes waits, and goes together when there is room.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use quipu_counting::{Batch, Reply};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::raft::NotDone;

/// How many may be under way at the same time.
const UNDER_WAY_MAX: usize = 2;
/// About the most requests that go together.
const REQUESTS_MAX: usize = 8_192;
/// About the most bytes of keys and ids.
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
    /// Where it leads. The way ends when it leads nowhere any more.
    pub fn new(go: impl Fn(Batch) -> Option<BoxFuture<'static, Done>> + Send + 'static) -> Together {
        let (queue, waiting) = mpsc::unbounded_channel();
        tokio::spawn(run(go, waiting));
        Together { queue }
    }

    /// Goes it with a batch.
    pub async fn go(&self, batch: Batch) -> Done {
        let (answer, answered) = oneshot::channel();
        if self.queue.send(Waiting { batch, answer }).is_err() {
            return Err(NotDone::NotLeader(None));
        }
        // Without an answer the way has ended, perhaps in the middle.
        answered.await.unwrap_or(Err(NotDone::Unknown))
    }
}

async fn run(
    go: impl Fn(Batch) -> Option<BoxFuture<'static, Done>>,
    mut queue: mpsc::UnboundedReceiver<Waiting>,
) {
    let under_way = Arc::new(Semaphore::new(UNDER_WAY_MAX));
    while let Some(first) = queue.recv().await {
        let Ok(place) = Arc::clone(&under_way).acquire_owned().await else { return };
        let (mut together, mut waiting) = (Batch::default(), Vec::new());
        let mut next = Some(first);
        while let Some(Waiting { batch, answer }) = next {
            // Whoever lost patience was told that nobody knows what becomes of it: better nothing than something late.
            if !answer.is_closed() {
                waiting.push((batch.requests.len(), answer));
                together.append(&batch);
            }
            let has_room = together.requests.len() < REQUESTS_MAX && together.bytes_len() < BYTES_MAX;
            next = if has_room { queue.try_recv().ok() } else { None };
        }
        if waiting.is_empty() {
            continue;
        }
        let Some(going) = go(together) else { return };
        tokio::spawn(async move {
            let mut replies = going.await.map(Vec::into_iter);
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

//! Batches that meet at a leader travel as one entry: an entry costs three nodes far more than what is in it.
//!
//! While as many entries are under way as may be, what comes waits, and goes together when there is room.

use std::sync::{Arc, Weak};

use quipu_counting::{Batch, Reply};
use quipu_engine::Clock;
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::command;
use crate::raft::{Group, NotDone};

/// Entries of one group under way at the same time.
const UNDER_WAY_MAX: usize = 2;
/// About the most requests in one entry.
const REQUESTS_MAX: usize = 8_192;
/// About the most bytes of keys and ids in one.
const BYTES_MAX: usize = 1 << 20;

struct Waiting {
    batch: Batch,
    answer: oneshot::Sender<Result<Vec<Reply>, NotDone>>,
}

/// What is proposed to one group.
#[derive(Clone)]
pub struct Proposals {
    queue: mpsc::UnboundedSender<Waiting>,
}

impl Proposals {
    /// Of a group, for as long as it lives.
    pub fn to(group: &Arc<Group>, clock: Clock) -> Proposals {
        let (queue, waiting) = mpsc::unbounded_channel();
        tokio::spawn(run(Arc::downgrade(group), clock, waiting));
        Proposals { queue }
    }

    /// Has a batch agreed on and carried out.
    pub async fn propose(&self, batch: Batch) -> Result<Vec<Reply>, NotDone> {
        let (answer, answered) = oneshot::channel();
        if self.queue.send(Waiting { batch, answer }).is_err() {
            return Err(NotDone::NotLeader(None));
        }
        // Without an answer the group has ended, perhaps in the middle.
        answered.await.unwrap_or(Err(NotDone::Unknown))
    }
}

async fn run(group: Weak<Group>, clock: Clock, mut queue: mpsc::UnboundedReceiver<Waiting>) {
    let under_way = Arc::new(Semaphore::new(UNDER_WAY_MAX));
    while let Some(first) = queue.recv().await {
        let Ok(place) = Arc::clone(&under_way).acquire_owned().await else { return };
        let Some(group) = group.upgrade() else { return };
        let mut counts = vec![first.batch.requests.len()];
        let (mut together, mut answers) = (first.batch, vec![first.answer]);
        while together.requests.len() < REQUESTS_MAX
            && together.bytes_len() < BYTES_MAX
            && let Ok(next) = queue.try_recv()
        {
            counts.push(next.batch.requests.len());
            together.append(&next.batch);
            answers.push(next.answer);
        }
        let command = command::batch(clock(), &together);
        tokio::spawn(async move {
            let done = group.propose(command).await;
            let mut replies = done.map(|answer| answer.replies.into_iter());
            for (answer, count) in answers.into_iter().zip(counts) {
                let share = match &mut replies {
                    Ok(replies) => Ok(replies.by_ref().take(count).collect()),
                    Err(why) => Err(why.clone()),
                };
                // Whoever asked may have lost patience.
                let _ = answer.send(share);
            }
            drop(place);
        });
    }
}

//! One batch from its execution to the moment its replies may be shown.

use std::time::Duration;

use quipu_counting::{Action, Batch, Counters, Execution, Reply, Unavailable};
use quipu_wire::json::problem::{OUTCOME_UNKNOWN, Problem, UNAVAILABLE};
use tokio::sync::oneshot;

use super::App;
use super::answer::Refused;
use super::audit::ASKED_BY;

/// How long a reply may wait for the disk, for other nodes or for Redis. What takes longer is failing, and a client has given up by then.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs the batch and waits until what its replies reveal is as durable as the mode demands.
pub async fn run(app: &App, mut batch: Batch) -> Result<Batch, Refused> {
    if app.counters.audits() {
        // Unknown where nobody wanted to know when the request came in.
        let _ = ASKED_BY.try_with(|origin| batch.ask_all_from(origin));
    }
    run_on(&*app.counters, app.clock.now_ms(), batch).await
}

/// The same for who has no [`App`].
pub async fn run_on(counters: &dyn Counters, now_ms: u64, mut batch: Batch) -> Result<Batch, Refused> {
    let looks = batch.only_looks(0..batch.requests.len());
    let offset = match counters.execute(&mut batch, now_ms).map_err(refused)? {
        Execution::Done { offset } => offset,
        Execution::Pending => {
            let (finished, offset) = in_time(looks, finish(counters, batch, now_ms)).await?;
            batch = finished;
            offset
        }
    };
    if !counters.is_settled(offset) {
        // Requests that have arrived at the same moment are executed first: one write or sync serves them all.
        tokio::task::yield_now().await;
    }
    if !counters.is_settled(offset) {
        in_time(looks, settle(counters, offset)).await?;
    }
    Ok(batch)
}

/// Adds one request, under an id if it has one, and runs it. `batch` has the bytes that belong to the action, and nothing else.
pub async fn run_one(
    app: &App,
    batch: Batch,
    key: &[u8],
    id: Option<&[u8]>,
    action: Action,
) -> Result<Reply, Refused> {
    Ok(run_one_behind(app, batch, key, id, action).await?.0)
}

/// The same, and how far behind the value may be that the reply shows.
pub async fn run_one_behind(
    app: &App,
    mut batch: Batch,
    key: &[u8],
    id: Option<&[u8]>,
    action: Action,
) -> Result<(Reply, u64), Refused> {
    match id {
        Some(id) => batch.push_with_id(key, action, id, 0),
        None => batch.push(key, action),
    };
    let batch = run(app, batch).await?;
    Ok((batch.replies[0].clone(), batch.staleness_ms(0)))
}

/// Runs what needs counters that are not in memory.
async fn finish(counters: &dyn Counters, batch: Batch, now_ms: u64) -> Result<(Batch, u64), Unavailable> {
    let (sender, receiver) = oneshot::channel();
    // A receiver that is gone belongs to a client that is gone.
    counters.finish(batch, now_ms, Box::new(move |batch, done| drop(sender.send((batch, done)))));
    let (batch, done) = receiver.await.map_err(|_| stopped())?;
    Ok((batch, done?))
}

async fn settle(counters: &dyn Counters, offset: u64) -> Result<(), Unavailable> {
    let (sender, receiver) = oneshot::channel();
    counters.when_settled(offset, Box::new(move |settled| drop(sender.send(settled))));
    receiver.await.map_err(|_| stopped())?
}

/// `looks`: what is waited for changes nothing, so there is no outcome that could be unknown.
async fn in_time<T>(
    looks: bool,
    waiting: impl Future<Output = Result<T, Unavailable>>,
) -> Result<T, Refused> {
    match tokio::time::timeout(SETTLE_TIMEOUT, waiting).await {
        Ok(Err(Unavailable::Failed(why))) if looks => Err(refused(Unavailable::Unreadable(why))),
        Ok(done) => done.map_err(refused),
        Err(_) if looks => {
            let detail = "no answer in time from where the counters lie, nothing was changed; retry";
            Err(Problem::new(503, UNAVAILABLE, detail).into())
        }
        Err(_) => {
            let detail = "no answer in time from where the counters lie, the outcome is unknown; retry with the same Idempotency-Key";
            Err(Problem::new(504, OUTCOME_UNKNOWN, detail).into())
        }
    }
}

fn refused(reason: Unavailable) -> Refused {
    Problem::unavailable(&reason).into()
}

/// Who was to answer dropped the callback: it has stopped.
fn stopped() -> Unavailable {
    Unavailable::Failed("what keeps the counters stopped before it answered".to_owned())
}

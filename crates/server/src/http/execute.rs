//! One batch from its execution to the moment its replies may be shown.

use std::time::Duration;

use quipu_counting::{Batch, Execution, Unavailable};
use quipu_wire::json::problem::{OUTCOME_UNKNOWN, Problem};
use tokio::sync::oneshot;

use super::App;
use super::answer::Refused;

/// How long a reply may wait for the disk. A disk that takes longer is failing, and a client has given up by then.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs the batch and waits until what its replies reveal is as durable as the mode demands.
pub async fn run(app: &App, batch: Batch) -> Result<Batch, Refused> {
    match tokio::time::timeout(SETTLE_TIMEOUT, run_to_end(app, batch)).await {
        Ok(Ok(batch)) => Ok(batch),
        Ok(Err(reason)) => Err(Problem::unavailable(&reason).into()),
        Err(_) => {
            let detail = "the disk did not answer in time, the outcome is unknown; retry with the same Idempotency-Key";
            Err(Problem::new(504, OUTCOME_UNKNOWN, detail).into())
        }
    }
}

async fn run_to_end(app: &App, mut batch: Batch) -> Result<Batch, Unavailable> {
    let now_ms = app.clock.now_ms();
    let offset = match app.counters.execute(&mut batch, now_ms)? {
        Execution::Done { offset } => offset,
        Execution::Pending => {
            let (sender, receiver) = oneshot::channel();
            // A receiver that is gone belongs to a client that is gone.
            app.counters.finish(batch, now_ms, Box::new(move |batch, done| drop(sender.send((batch, done)))));
            let (finished, done) = receiver.await.map_err(|_| stopped())?;
            batch = finished;
            done?
        }
    };
    let (sender, receiver) = oneshot::channel();
    app.counters.when_settled(offset, Box::new(move |settled| drop(sender.send(settled))));
    receiver.await.map_err(|_| stopped())??;
    Ok(batch)
}

/// The engine dropped the callback: it has stopped.
fn stopped() -> Unavailable {
    Unavailable::Failed("the engine stopped before it answered".to_owned())
}

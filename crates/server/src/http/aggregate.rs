//! Totals over the counters of a pattern.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use quipu_counting::{Aggregate, Unavailable};
use quipu_wire::json::problem::Problem;
use quipu_wire::json::reply::AggregateBody;

use super::App;
use super::answer::{self, Answer, Refused};
use super::extract::Name;
use super::parameters::Parameters;

pub async fn aggregate(State(app): State<Arc<App>>, Name(pattern): Name, uri: Uri) -> Answer {
    let parameters = Parameters::parse(uri.query(), &["partial"])?;
    let partial = parameters.read("partial", "true or false", |text| text.parse().ok())?;
    let aggregate = add_up(&app, &pattern).await?;
    let aggregate = match partial {
        Some(false) => aggregate.whole().map_err(|reason| Problem::unavailable(&reason))?,
        Some(true) | None => aggregate,
    };
    Ok(answer::json(StatusCode::OK, &AggregateBody::of(&pattern, aggregate)))
}

/// It reads from disk, so it must not hold a thread that others are served by.
async fn add_up(app: &Arc<App>, pattern: &[u8]) -> Result<Aggregate, Refused> {
    let turn = app.load.walk().await?;
    let (app, pattern) = (Arc::clone(app), pattern.to_vec());
    let added_up = tokio::task::spawn_blocking(move || {
        let aggregate = app.counters.aggregate(&pattern, app.clock.now_ms());
        drop(turn);
        aggregate
    });
    let aggregate = added_up.await.unwrap_or_else(|error| Err(Unavailable::Unreadable(error.to_string())));
    aggregate.map_err(|reason| Problem::unavailable(&reason).into())
}

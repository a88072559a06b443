//! Totals over the counters of a pattern.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use quipu_counting::{Aggregate, Selector, Unavailable};
use quipu_wire::json::problem::Problem;
use quipu_wire::json::reply::AggregateBody;

use super::App;
use super::answer::{self, Answer, Refused};
use super::counters::slice_of;
use super::extract::Name;
use super::parameters::Parameters;

pub async fn aggregate(State(app): State<Arc<App>>, Name(pattern): Name, uri: Uri) -> Answer {
    let parameters = Parameters::parse(uri.query(), &["partial", "dims"])?;
    let slice = slice_of(&parameters)?;
    let partial = parameters.read("partial", "true or false", |text| text.parse().ok())?;
    let aggregate = add_up(&app, Selector::new(&pattern).of_part(slice.clone())).await?;
    let aggregate = match partial {
        Some(false) => aggregate.whole().map_err(|reason| Problem::unavailable(&reason))?,
        Some(true) | None => aggregate,
    };
    Ok(answer::json(StatusCode::OK, &AggregateBody::of(&pattern, slice.as_ref(), aggregate)))
}

/// It reads from disk, so it must not hold a thread that others are served by.
async fn add_up(app: &Arc<App>, selector: Selector) -> Result<Aggregate, Refused> {
    let turn = app.load.walk().await?;
    let app = Arc::clone(app);
    let added_up = tokio::task::spawn_blocking(move || {
        let unavailable = |reason| Refused::from(Problem::unavailable(&reason));
        if let Some(slice) = selector.slice() {
            let policies = app.counters.policies().map_err(unavailable)?;
            policies.check_slice(slice).map_err(Problem::undeclared)?;
        }
        let aggregate = app.counters.aggregate(&selector, app.clock.now_ms());
        drop(turn);
        aggregate.map_err(unavailable)
    });
    let stopped = |error: tokio::task::JoinError| {
        Err(Problem::unavailable(&Unavailable::Unreadable(error.to_string())).into())
    };
    added_up.await.unwrap_or_else(stopped)
}

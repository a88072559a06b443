//! Calls about one counter.

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use quipu_counting::{Action, Batch};
use quipu_wire::json::problem::Problem;
use quipu_wire::json::request::{AddBody, Direction, NoFields, SetBody};
use serde::Deserialize;

use super::App;
use super::answer::{self, Answer};
use super::execute::run;
use super::extract::{Body, Name, NoQuery, Precondition, RequestId};

/// How fresh a read must be. Reads here are always strong, which satisfies every wish, but a misspelled wish is refused.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Freshness {
    #[serde(default, rename = "consistency")]
    _consistency: Option<Consistency>,
    #[serde(default, rename = "maxStalenessMs")]
    _max_staleness_ms: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Consistency {
    Strong,
    Eventual,
}

pub async fn read(
    State(app): State<Arc<App>>,
    Name(key): Name,
    freshness: Result<Query<Freshness>, QueryRejection>,
) -> Answer {
    freshness.map_err(|rejection| Problem::malformed(rejection.body_text()))?;
    let mut batch = Batch::default();
    batch.push(&key, Action::Read);
    let batch = run(&app, batch).await?;
    Ok(answer::counter(&key, &batch.replies[0]))
}

pub async fn increment(
    State(app): State<Arc<App>>,
    Name(key): Name,
    RequestId(id): RequestId,
    Precondition(condition): Precondition,
    NoQuery: NoQuery,
    body: Body,
) -> Answer {
    let add = body.parse_or_default::<AddBody>()?.to_add(Direction::Up, condition)?;
    change(&app, &key, id, Action::Add(add)).await
}

pub async fn decrement(
    State(app): State<Arc<App>>,
    Name(key): Name,
    RequestId(id): RequestId,
    Precondition(condition): Precondition,
    NoQuery: NoQuery,
    body: Body,
) -> Answer {
    let add = body.parse_or_default::<AddBody>()?.to_add(Direction::Down, condition)?;
    change(&app, &key, id, Action::Add(add)).await
}

pub async fn set(
    State(app): State<Arc<App>>,
    Name(key): Name,
    RequestId(id): RequestId,
    Precondition(condition): Precondition,
    NoQuery: NoQuery,
    body: Body,
) -> Answer {
    let set = body.parse::<SetBody>()?.to_set(condition)?;
    change(&app, &key, id, Action::Set(set)).await
}

pub async fn reset(
    State(app): State<Arc<App>>,
    Name(key): Name,
    RequestId(id): RequestId,
    Precondition(condition): Precondition,
    NoQuery: NoQuery,
    body: Body,
) -> Answer {
    body.parse_or_default::<NoFields>()?;
    change(&app, &key, id, Action::Reset(condition)).await
}

pub async fn delete(
    State(app): State<Arc<App>>,
    Name(key): Name,
    RequestId(id): RequestId,
    Precondition(condition): Precondition,
    NoQuery: NoQuery,
    body: Body,
) -> Answer {
    body.parse_or_default::<NoFields>()?;
    change(&app, &key, id, Action::Delete(condition)).await
}

async fn change(app: &App, key: &[u8], id: Option<Vec<u8>>, action: Action) -> Answer {
    let mut batch = Batch::default();
    match id {
        Some(id) => batch.push_with_id(key, action, &id, 0),
        None => batch.push(key, action),
    };
    let batch = run(app, batch).await?;
    Ok(answer::change(key, &batch.replies[0]))
}

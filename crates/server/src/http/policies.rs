//! Policies: limits by key pattern, as data.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use quipu_counting::{Policy, Unavailable};
use quipu_wire::json::policy::{PoliciesBody, PolicyRemoved, PolicyReply};
use quipu_wire::json::problem::Problem;
use quipu_wire::json::reply::PatternName;
use quipu_wire::json::request::{NoFields, PolicyBody};

use super::App;
use super::answer::{self, Answer, Refused};
use super::extract::{Body, Name, NoQuery};

pub async fn list(State(app): State<Arc<App>>, NoQuery: NoQuery) -> Answer {
    let policies = waiting(&app, |app| app.counters.policies()).await?;
    let policies = policies.iter().map(|(pattern, policy)| PolicyReply::of(pattern, policy)).collect();
    Ok(answer::json(StatusCode::OK, &PoliciesBody { policies }))
}

pub async fn read(State(app): State<Arc<App>>, Name(pattern): Name, NoQuery: NoQuery) -> Answer {
    match waiting(&app, |app| app.counters.policies()).await?.get(&pattern) {
        Some(policy) => Ok(answer::json(StatusCode::OK, &PolicyReply::of(&pattern, policy))),
        None => {
            let shown = String::from_utf8_lossy(&pattern);
            Err(Problem::new(404, "no-such-policy", format!("there is no policy for the pattern {shown}"))
                .into())
        }
    }
}

pub async fn set(State(app): State<Arc<App>>, Name(pattern): Name, NoQuery: NoQuery, body: Body) -> Answer {
    let policy = body.parse::<PolicyBody>()?.to_policy()?;
    let existed = store(&app, &pattern, Some(policy.clone())).await?;
    let status = if existed { StatusCode::OK } else { StatusCode::CREATED };
    Ok(answer::json(status, &PolicyReply::of(&pattern, &policy)))
}

pub async fn delete(
    State(app): State<Arc<App>>,
    Name(pattern): Name,
    NoQuery: NoQuery,
    body: Body,
) -> Answer {
    body.parse_or_default::<NoFields>()?;
    let existed = store(&app, &pattern, None).await?;
    Ok(answer::json(StatusCode::OK, &PolicyRemoved { pattern: PatternName::of(&pattern), existed }))
}

async fn store(app: &Arc<App>, pattern: &[u8], policy: Option<Policy>) -> Result<bool, Refused> {
    let pattern = pattern.to_vec();
    waiting(app, move |app| app.counters.set_policy(&pattern, policy, app.clock.now_ms())).await
}

/// What waits for the disk must not hold a thread that others are served by.
pub async fn waiting<T: Send + 'static>(
    app: &Arc<App>,
    work: impl FnOnce(&App) -> Result<T, Unavailable> + Send + 'static,
) -> Result<T, Refused> {
    let app = Arc::clone(app);
    let done = tokio::task::spawn_blocking(move || work(&app)).await;
    let done = done.unwrap_or_else(|error| Err(Unavailable::Failed(error.to_string())));
    done.map_err(|reason| Problem::unavailable(&reason).into())
}

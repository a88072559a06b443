//! Holds: an amount set aside, and then counted or free again.

use std::sync::Arc;

use axum::extract::{FromRequestParts, State};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::IntoResponse;
use quipu_counting::hold::HoldId;
use quipu_counting::{Action, Batch, Ending, Refusal, Reply};
use quipu_wire::json::hold::{CommitBody, HoldBody, HoldEndBody, ReserveBody};
use quipu_wire::json::problem::Problem;
use quipu_wire::json::quota::QuotaBody;
use quipu_wire::json::request::NoFields;
use quipu_wire::refusal::of_refusal;

use super::App;
use super::answer::{self, Answer, Refused};
use super::execute::{run, run_one};
use super::extract::{Ask, Body, NoQuery};
use super::preconditions::Unconditional;
use super::quotas::over_quota;

pub async fn reserve(State(app): State<Arc<App>>, ask: Ask<Unconditional>) -> Answer {
    let Ask { key, id, body, .. } = ask;
    let (add, ttl_ms) = body.parse::<ReserveBody>()?.to_reserve()?;
    let reply = run_one(&app, Batch::default(), &key, id.bytes(), Action::Reserve(add, ttl_ms)).await?;
    app.metrics.outcomes.reserved(&reply);
    let hold = HoldBody::of(&key, add.delta, &reply).filter(|_| reply.refusal.is_none());
    Ok(match (hold, reply.refusal, QuotaBody::of(&reply)) {
        (Some(hold), ..) => answer::changed(&reply, answer::json(StatusCode::OK, &hold)),
        (None, Some(Refusal::OverQuota), Some(quota)) => {
            let problem = Problem::refused(&key, &reply, Refusal::OverQuota);
            answer::changed(&reply, over_quota(problem, "", add.delta, quota).into_response())
        }
        _ => answer::change(&key, &reply),
    })
}

pub async fn commit(
    State(app): State<Arc<App>>,
    Hold(hold): Hold,
    Unconditional: Unconditional,
    NoQuery: NoQuery,
    body: Body,
) -> Answer {
    let amount = body.parse_or_default::<CommitBody>()?.amount.map(|amount| amount.0);
    end(&app, &hold, Ending::Commit(amount)).await
}

pub async fn void(
    State(app): State<Arc<App>>,
    Hold(hold): Hold,
    Unconditional: Unconditional,
    NoQuery: NoQuery,
    body: Body,
) -> Answer {
    body.parse_or_default::<NoFields>()?;
    end(&app, &hold, Ending::Void).await
}

/// A hold ends once. The end is remembered under an id that it has by itself, so a repeat is told the first outcome.
async fn end(app: &App, hold: &HoldId, ending: Ending) -> Answer {
    let key = &hold.key;
    let action = Action::End { birth: hold.birth, number: hold.number, ending };
    let mut batch = Batch::default();
    batch.push_with_id(key, action, &hold.request_id(), HoldId::INDEX);
    let reply = run(app, batch).await?.replies[0].clone();
    app.metrics.outcomes.ended(ending == Ending::Void, &reply);
    let response = match reply.refusal {
        None => answer::json(StatusCode::OK, &HoldEndBody::of(hold, &reply)),
        // It has ended, in another way.
        Some(Refusal::IdReused) => ended(key, &reply),
        Some(refusal) => Refused::from(Problem::refused(key, &reply, refusal)).into_response(),
    };
    Ok(answer::changed(&reply, response))
}

fn ended(key: &[u8], reply: &Reply) -> axum::response::Response {
    let reply = Reply { refusal: Some(Refusal::HoldEnded), ..reply.clone() };
    Refused::from(Problem::refused(key, &reply, Refusal::HoldEnded).without_state(key)).into_response()
}

/// The hold that the path names: `/api/v1/holds/{this}/...`.
pub struct Hold(HoldId);

impl<S: Sync> FromRequestParts<S> for Hold {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Hold, Refused> {
        let segment = parts.uri.path().split('/').nth(4).unwrap_or_default();
        let no_hold = || Problem::new(404, Refusal::NoHold.code(), of_refusal(Refusal::NoHold).text);
        HoldId::parse(segment).map(Hold).ok_or_else(|| no_hold().into())
    }
}

//! Calls about one counter.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use quipu_counting::{Action, Batch, Condition, Refusal, Reply};
use quipu_wire::json::problem::Problem;
use quipu_wire::json::request::{AddBody, BodyError, Direction, NoFields, SetBody};

use super::App;
use super::answer::{self, Answer, Refused};
use super::execute::run;
use super::extract::{Body, Name, NoQuery, RequestId};
use super::parameters::Parameters;
use super::preconditions::Precondition;

/// How often a change under a condition on several tags is tried again when others change the counter meanwhile.
const ATTEMPTS_MAX: usize = 8;

pub async fn read(State(app): State<Arc<App>>, Name(key): Name, condition: Precondition, uri: Uri) -> Answer {
    check_freshness(uri.query())?;
    let reply = look(&app, &key).await?;
    let live = reply.exists.then_some(&reply.cell);
    if !condition.matches(live) {
        let detail = "the counter is not in a state that If-Match names";
        return Err(Problem::new(412, "condition-unmet", detail).into());
    }
    let is_known = !condition.holds(live);
    Ok(if is_known { answer::not_modified(&reply) } else { answer::counter(&key, &reply) })
}

/// How fresh a read must be. Reads here are always strong, which satisfies every wish, but a misspelled wish is refused.
fn check_freshness(query: Option<&str>) -> Result<(), Refused> {
    if query.is_none() {
        return Ok(());
    }
    let parameters = Parameters::parse(query, &["consistency", "maxStalenessMs"])?;
    let is_known = |text: &str| matches!(text, "strong" | "eventual").then_some(());
    parameters.read("consistency", "strong or eventual", is_known)?;
    parameters.read("maxStalenessMs", "a number of milliseconds", |text| text.parse::<u64>().ok())?;
    Ok(())
}

async fn look(app: &App, key: &[u8]) -> Result<Reply, Refused> {
    let mut batch = Batch::default();
    batch.push(key, Action::Read);
    let reply = run(app, batch).await?.replies[0];
    // What cannot be read must not look as if it did not exist.
    match reply.refusal {
        None => Ok(reply),
        Some(refusal) => Err(Problem::unread(refusal).into()),
    }
}

pub async fn increment(
    State(app): State<Arc<App>>,
    Name(key): Name,
    id: RequestId,
    condition: Precondition,
    NoQuery: NoQuery,
    body: Body,
) -> Answer {
    let body = body.parse_or_default::<AddBody>()?;
    let condition = condition.and_version(body.if_version.map(|version| version.0));
    change(&app, &key, &id, &condition, |condition| Ok(Action::Add(body.to_add(Direction::Up, condition)?)))
        .await
}

pub async fn decrement(
    State(app): State<Arc<App>>,
    Name(key): Name,
    id: RequestId,
    condition: Precondition,
    NoQuery: NoQuery,
    body: Body,
) -> Answer {
    let body = body.parse_or_default::<AddBody>()?;
    let condition = condition.and_version(body.if_version.map(|version| version.0));
    change(&app, &key, &id, &condition, |condition| Ok(Action::Add(body.to_add(Direction::Down, condition)?)))
        .await
}

pub async fn set(
    State(app): State<Arc<App>>,
    Name(key): Name,
    id: RequestId,
    condition: Precondition,
    NoQuery: NoQuery,
    body: Body,
) -> Answer {
    let body = body.parse::<SetBody>()?;
    let condition = condition.and_version(body.if_version.map(|version| version.0));
    change(&app, &key, &id, &condition, |condition| Ok(Action::Set(body.to_set(condition)?))).await
}

pub async fn reset(
    State(app): State<Arc<App>>,
    Name(key): Name,
    id: RequestId,
    condition: Precondition,
    NoQuery: NoQuery,
    body: Body,
) -> Answer {
    body.parse_or_default::<NoFields>()?;
    change(&app, &key, &id, &condition, |condition| Ok(Action::Reset(condition))).await
}

pub async fn delete(
    State(app): State<Arc<App>>,
    Name(key): Name,
    id: RequestId,
    condition: Precondition,
    NoQuery: NoQuery,
    body: Body,
) -> Answer {
    body.parse_or_default::<NoFields>()?;
    change(&app, &key, &id, &condition, |condition| Ok(Action::Delete(condition))).await
}

async fn change(
    app: &App,
    key: &[u8],
    id: &RequestId,
    precondition: &Precondition,
    action: impl Fn(Condition) -> Result<Action, BodyError>,
) -> Answer {
    if let Some(condition) = precondition.simple() {
        return Ok(answer::change(key, &attempt(app, key, id, action(condition)?).await?));
    }
    if id.0.is_some() {
        // A retry would find the counter in another state, and be another request.
        let detail = "with an Idempotency-Key or X-Request-Id, there may be one condition: one ETag or * in If-Match, \
                      * in If-None-Match, or ifVersion";
        return Err(Problem::malformed(detail).into());
    }
    for _ in 0..ATTEMPTS_MAX {
        let found = look(app, key).await?;
        let live = found.exists.then_some(&found.cell);
        let reply = attempt(app, key, id, action(precondition.in_state(live))?).await?;
        // Refused although it held a moment ago: somebody was faster.
        if reply.refusal != Some(Refusal::ConditionUnmet) || !precondition.holds(live) {
            return Ok(answer::change(key, &reply));
        }
    }
    Err(app.load.busy("others change this counter all the time; retry later, or name one ETag in If-Match"))
}

async fn attempt(app: &App, key: &[u8], id: &RequestId, action: Action) -> Result<Reply, Refused> {
    let mut batch = Batch::default();
    match id.bytes() {
        Some(id) => batch.push_with_id(key, action, id, 0),
        None => batch.push(key, action),
    };
    let batch = run(app, batch).await?;
    Ok(batch.replies[0])
}

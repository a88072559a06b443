//! Calls about one counter.

use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use quipu_counting::{Action, Add, Batch, Condition, Detail, Freshness, Refusal, Reply, Slice, body};
use quipu_wire::json::hold::{AdjustBody, AdjustedBody};
use quipu_wire::json::problem::Problem;
use quipu_wire::json::reply::CounterBody;
use quipu_wire::json::request::{AddBody, BodyError, Direction, NoFields, SetBody};

use super::App;
use super::answer::{self, Answer, Refused};
use super::execute::{run, run_one_behind};
use super::extract::{Ask, Name, RequestId};
use super::parameters::Parameters;
use super::preconditions::Precondition;

/// How often a change under a condition on several tags is tried again when others change the counter meanwhile.
const ATTEMPTS_MAX: usize = 8;

pub async fn read(State(app): State<Arc<App>>, Name(key): Name, condition: Precondition, uri: Uri) -> Answer {
    let (freshness, slice) = match uri.query() {
        None => (UNSAID, None),
        query => {
            let parameters = Parameters::parse(query, &READ)?;
            (freshness_of(&parameters)?, slice_of(&parameters)?)
        }
    };
    let (reply, staleness_ms) = look_at(&app, &key, freshness, slice.as_ref()).await?;
    let live = reply.exists.then_some(&reply.cell);
    if !condition.matches(live) {
        let detail = "the counter is not in a state that If-Match names";
        return Err(Problem::new(412, "condition-unmet", detail).into());
    }
    let is_known = !condition.holds(live) && !fades(&reply);
    Ok(if is_known {
        answer::not_modified(&reply)
    } else {
        let counter = match (&slice, reply.detail.as_deref().and_then(Detail::sliced)) {
            (Some(slice), Some(sliced)) => CounterBody::of_slice(&key, &reply, slice, &sliced),
            _ => CounterBody::of_read(&key, &reply, app.clock.now_ms()),
        };
        answer::counter(counter.behind(staleness_ms), &reply)
    })
}

/// Whether what is shown of a counter changes with time alone, which its tag does not tell.
fn fades(reply: &Reply) -> bool {
    match reply.detail.as_deref() {
        Some(Detail::Body(body, _)) => {
            matches!(body.state, body::State::Visitors(..)) || !body.holds.is_empty()
        }
        _ => false,
    }
}

/// The query parameters of a read.
const READ: [&str; 3] = [FRESHNESS[0], FRESHNESS[1], "dims"];

/// Which part of a value is asked for, if not all of it.
pub fn slice_of(parameters: &Parameters) -> Result<Option<Slice>, Refused> {
    let Some(text) = parameters.bytes("dims") else { return Ok(None) };
    let slice = std::str::from_utf8(text).map_err(|_| "it is not UTF-8".to_owned()).and_then(Slice::parse);
    slice
        .map(Some)
        .map_err(|problem| Problem::malformed(format!("the query parameter dims: {problem}")).into())
}

/// How fresh a read must be. A strong one satisfies every `maxStalenessMs`.
pub fn freshness(query: Option<&str>) -> Result<Freshness, Refused> {
    if query.is_none() {
        return Ok(UNSAID);
    }
    freshness_of(&Parameters::parse(query, &FRESHNESS)?)
}

/// A reply says how far behind it is, so who does not say how fresh it must be is better served with something older than with
/// nothing.
const UNSAID: Freshness = Freshness::StrongOrStated;

/// The query parameters by which a read says how fresh it must be.
pub const FRESHNESS: [&str; 2] = ["consistency", "maxStalenessMs"];

/// The same of parameters among which there may be others.
pub fn freshness_of(parameters: &Parameters) -> Result<Freshness, Refused> {
    let max_staleness_ms =
        parameters.read("maxStalenessMs", "a number of milliseconds", |text| text.parse::<u64>().ok())?;
    let freshness = parameters.read("consistency", "strong or eventual", |text| match text {
        "strong" => Some(Freshness::Strong),
        "eventual" => Some(Freshness::Eventual { max_staleness_ms }),
        _ => None,
    })?;
    // Who says how old it may be says that it may be.
    let bounded = max_staleness_ms.map(|_| Freshness::Eventual { max_staleness_ms });
    Ok(freshness.or(bounded).unwrap_or(UNSAID))
}

/// A counter, and how far behind that may be.
pub async fn look(app: &App, key: &[u8], freshness: Freshness) -> Result<(Reply, u64), Refused> {
    look_at(app, key, freshness, None).await
}

/// The same, at a part of it.
async fn look_at(
    app: &App,
    key: &[u8],
    freshness: Freshness,
    slice: Option<&Slice>,
) -> Result<(Reply, u64), Refused> {
    let mut batch = Batch::default();
    batch.freshness = freshness;
    let action = slice.map_or(Action::Read, |slice| slice.action(&mut batch));
    batch.push(key, action);
    let batch = run(app, batch).await?;
    let reply = batch.replies[0].clone();
    match reply.refusal {
        None => Ok((reply, batch.staleness_ms(0))),
        Some(refusal) if slice.is_some() => Err(Problem::unsliced(refusal, &reply).into()),
        Some(refusal) => Err(Problem::unread(refusal).into()),
    }
}

pub async fn increment(State(app): State<Arc<App>>, ask: Ask<Precondition>) -> Answer {
    add(&app, ask, Direction::Up).await
}

pub async fn decrement(State(app): State<Arc<App>>, ask: Ask<Precondition>) -> Answer {
    add(&app, ask, Direction::Down).await
}

pub async fn set(State(app): State<Arc<App>>, ask: Ask<Precondition>) -> Answer {
    let Ask { key, id, condition, body } = ask;
    let body = body.parse::<SetBody>()?;
    let condition = condition.and_version(body.if_version.map(|version| version.0));
    change(&app, &key, &id, &condition, |_, condition| Ok(Action::Set(body.to_set(condition)?))).await
}

pub async fn reset(State(app): State<Arc<App>>, ask: Ask<Precondition>) -> Answer {
    let Ask { key, id, condition, body } = ask;
    body.parse_or_default::<NoFields>()?;
    change(&app, &key, &id, &condition, |_, condition| Ok(Action::Reset(condition))).await
}

pub async fn delete(State(app): State<Arc<App>>, ask: Ask<Precondition>) -> Answer {
    let Ask { key, id, condition, body } = ask;
    body.parse_or_default::<NoFields>()?;
    change(&app, &key, &id, &condition, |_, condition| Ok(Action::Delete(condition))).await
}

/// An addition that says why. It is a change like any other.
pub async fn adjust(State(app): State<Arc<App>>, ask: Ask<Precondition>) -> Answer {
    let Ask { key, id, condition, body } = ask;
    let body = body.parse::<AdjustBody>()?;
    let (add, reason) = body.to_adjustment()?;
    let condition = condition.and_version(body.if_version.as_ref().map(|version| version.0));
    let told = body.told()?;
    let with = |batch: &mut Batch, condition| Ok(batch.addition(Add { condition, ..add }, &told));
    let (reply, staleness_ms) = changed(&app, &key, &id, &condition, with).await?;
    if reply.refusal.is_some() {
        return Ok(answer::change(&key, &reply));
    }
    if !reply.duplicate {
        let (key, value) = (String::from_utf8_lossy(&key), reply.cell.value);
        tracing::info!(?key, delta = add.delta, value, reason, "a counter was adjusted");
    }
    let body = AdjustedBody::of(&key, &reply, reason).behind(staleness_ms);
    Ok(answer::changed(&reply, answer::json(StatusCode::OK, &body)))
}

async fn add(app: &App, ask: Ask<Precondition>, direction: Direction) -> Answer {
    let Ask { key, id, condition, body } = ask;
    let body = body.parse_or_default::<AddBody>()?;
    let condition = condition.and_version(body.if_version.map(|version| version.0));
    let told = body.told()?;
    change(app, &key, &id, &condition, |batch, condition| {
        body.stripe_by.iter().for_each(|value| batch.stripe_next_by(value.as_bytes()));
        Ok(batch.addition(body.to_add(direction, condition)?, &told))
    })
    .await
}

async fn change(
    app: &App,
    key: &[u8],
    id: &RequestId,
    precondition: &Precondition,
    action: impl Fn(&mut Batch, Condition) -> Result<Action, BodyError>,
) -> Answer {
    let (reply, staleness_ms) = changed(app, key, id, precondition, action).await?;
    Ok(answer::change_behind(key, &reply, staleness_ms))
}

async fn changed(
    app: &App,
    key: &[u8],
    id: &RequestId,
    precondition: &Precondition,
    action: impl Fn(&mut Batch, Condition) -> Result<Action, BodyError>,
) -> Result<(Reply, u64), Refused> {
    if let Some(condition) = precondition.simple() {
        let mut batch = Batch::default();
        let action = action(&mut batch, condition)?;
        return run_one_behind(app, batch, key, id.bytes(), action).await;
    }
    if id.0.is_some() {
        // A retry would find the counter in another state, and be another request.
        let detail = "with an Idempotency-Key or X-Request-Id, there may be one condition: one ETag or * in If-Match, \
                      * in If-None-Match, or ifVersion";
        return Err(Problem::malformed(detail).into());
    }
    for _ in 0..ATTEMPTS_MAX {
        let (found, _) = look(app, key, Freshness::Strong).await?;
        let live = found.exists.then_some(&found.cell);
        let mut batch = Batch::default();
        let action = action(&mut batch, precondition.in_state(live))?;
        let (reply, staleness_ms) = run_one_behind(app, batch, key, id.bytes(), action).await?;
        // Refused although it held a moment ago: somebody was faster.
        if reply.refusal != Some(Refusal::ConditionUnmet) || !precondition.holds(live) {
            return Ok((reply, staleness_ms));
        }
    }
    Err(app.load.busy("others change this counter all the time; retry later, or name one ETag in If-Match"))
}

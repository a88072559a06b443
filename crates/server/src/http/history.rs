//! What a counter's value was.

use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use quipu_wire::json::history::{HistoryReply, Past, StepName};
use quipu_wire::json::problem::Problem;
use quipu_wire::json::timestamp::{MOMENT, time_ms};

use super::App;
use super::answer::{self, Answer, Refused};
use super::counters::{FRESHNESS, freshness_of, look};
use super::extract::Name;
use super::parameters::Parameters;

/// About what one point takes in a reply.
const POINT_BYTES: usize = 64;

pub async fn read(State(app): State<Arc<App>>, Name(key): Name, uri: Uri) -> Answer {
    let [consistency, max_staleness] = FRESHNESS;
    let known = ["step", "from", "to", "at", consistency, max_staleness];
    let parameters = Parameters::parse(uri.query(), &known)?;
    let now_ms = app.clock.now_ms();
    let past = past(&parameters, now_ms)?;
    let (reply, staleness_ms) = look(&app, &key, freshness_of(&parameters)?).await?;
    let body = HistoryReply::of(&key, &reply, past).behind(staleness_ms);
    let bytes = (body.len() + 4) * POINT_BYTES;
    Ok(answer::json_in(app.load.reserve(bytes)?, bytes, &body))
}

/// What was asked for.
fn past(parameters: &Parameters, now_ms: u64) -> Result<Past, Refused> {
    let step = parameters.read("step", "minute, hour or day", StepName::parse)?;
    let from = parameters.read("from", MOMENT, time_ms)?;
    let to = parameters.read("to", MOMENT, time_ms)?;
    if let Some(at) = parameters.read("at", MOMENT, time_ms)? {
        return match (step, from, to) {
            (None, None, None) => Ok(Past::At(at.min(now_ms))),
            _ => Err(Problem::malformed("the query parameter at excludes step, from and to").into()),
        };
    }
    let past = Past::points(step.unwrap_or(StepName::Minute), from, to, now_ms);
    past.ok_or_else(|| Problem::malformed("the query parameter to must not be earlier than from").into())
}

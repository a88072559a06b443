//! Quotas: count within a limit, or say when to come again.
//!
//! Replies carry what is left in headers too: `RateLimit-Policy` and `RateLimit` as draft-ietf-httpapi-ratelimit-headers-10 has
//! them, and `RateLimit-Limit`, `-Remaining` and `-Reset` (seconds), which earlier drafts had and most clients know. Of several limits the
//! latter three speak of the one that leaves least.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use quipu_counting::{Acquire, Action, Batch, GroupKind, Refusal};
use quipu_wire::json::problem::Problem;
use quipu_wire::json::quota::{AcquireAllBody, AcquireBody, Acquisition, GrantBody, GrantsBody, QuotaBody};
use quipu_wire::refusal::NO_SUCH_WINDOW;

use super::App;
use super::answer::{self, Answer, Refused};
use super::batches::refused_item;
use super::execute::{run, run_one};
use super::extract::{Ask, Body, NoQuery, RequestId};
use super::preconditions::Unconditional;

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const STATE: HeaderName = HeaderName::from_static("ratelimit");
const LIMIT: HeaderName = HeaderName::from_static("ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("ratelimit-reset");
/// The largest number in a structured header (RFC 9651): fifteen digits.
const HEADER_INTEGER_MAX: u64 = 999_999_999_999_999;

/// One limit as headers show it.
struct Shown<'a> {
    name: String,
    quota: &'a QuotaBody,
}

pub async fn acquire(State(app): State<Arc<App>>, ask: Ask<Unconditional>) -> Answer {
    let Ask { key, id, body, .. } = ask;
    let asked = body.parse_or_default::<AcquireBody>()?.to_acquisition()?;
    let mut batch = Batch::default();
    let action = action(&mut batch, &asked);
    let reply = run_one(&app, batch, &key, id.bytes(), action).await?;
    app.metrics.outcomes.acquired(&reply);
    let quota = QuotaBody::of(&reply);
    let response = match (&quota, reply.refusal) {
        (Some(quota), None) => answer::json(StatusCode::OK, &GrantBody::of(&key, quota.clone(), &reply)),
        (_, Some(refusal)) => {
            let problem = Problem::refused(&key, &reply, refusal);
            refused(problem, None, &asked, quota.clone()).into_response()
        }
        // Told again, and the counter that it was about is gone or another.
        (None, None) => answer::change(&key, &reply),
    };
    let mut response = answer::changed(&reply, response);
    let shown = quota.as_ref().map(|quota| Shown { name: "default".to_owned(), quota });
    add_headers(&mut response, shown.as_slice());
    Ok(response)
}

pub async fn acquire_all(
    State(app): State<Arc<App>>,
    id: RequestId,
    Unconditional: Unconditional,
    NoQuery: NoQuery,
    body: Body,
) -> Answer {
    let items = body.parse::<AcquireAllBody>()?.to_items()?;
    let batch = run(&app, together(&items, id.bytes())).await?;
    batch.replies.iter().for_each(|reply| app.metrics.outcomes.acquired(reply));
    let quotas: Vec<Option<QuotaBody>> = batch.replies.iter().map(QuotaBody::of).collect();
    let mut response = match refused_item(&batch) {
        Some((index, refusal)) => {
            let (key, asked) = &items[index];
            let problem = Problem::item_refused(index, key, &batch.replies[index], refusal);
            refused(problem, Some(index), asked, quotas[index].clone()).into_response()
        }
        None => {
            let granted = items.iter().zip(&quotas).zip(&batch.replies);
            let results = granted
                .filter_map(|(((key, _), quota), reply)| Some(GrantBody::of(key, quota.clone()?, reply)));
            answer::json(StatusCode::OK, &GrantsBody { allowed: true, results: results.collect() })
        }
    };
    if batch.replies.iter().any(|reply| reply.duplicate) {
        answer::mark_replayed(&mut response);
    }
    let shown = quotas
        .iter()
        .enumerate()
        .filter_map(|(index, quota)| Some(Shown { name: index.to_string(), quota: quota.as_ref()? }));
    add_headers(&mut response, &shown.collect::<Vec<_>>());
    Ok(response)
}

fn action(batch: &mut Batch, asked: &Acquisition) -> Action {
    let frame = batch.intern(&asked.payload());
    Action::Acquire(Acquire { amount: asked.amount, limit: asked.limit, frame, is_soft: asked.is_soft })
}

/// All or nothing; under an id, items for one counter are told apart by which of them they are.
fn together(items: &[(Vec<u8>, Acquisition)], id: Option<&[u8]>) -> Batch {
    let mut batch = Batch::with_room(items.len());
    let mut seen: HashMap<&[u8], u32> = HashMap::new();
    for (key, asked) in items {
        let action = action(&mut batch, asked);
        match id {
            Some(id) => {
                let earlier = seen.entry(key).or_default();
                *earlier += 1;
                batch.push_with_id(key, action, id, *earlier - 1)
            }
            None => batch.push(key, action),
        };
    }
    batch.group(0, GroupKind::Atomic);
    batch
}

/// Why nothing was counted, in words that say what to do.
fn refused(problem: Problem, item: Option<usize>, asked: &Acquisition, quota: Option<QuotaBody>) -> Refused {
    let at = item.map_or_else(String::new, |index| format!("items[{index}]: "));
    if let (Some(quota), 429) = (quota, problem.status) {
        return over_quota(problem, &at, asked.amount, quota);
    }
    if problem.reason == Refusal::WrongKind.code() && asked.frame.is_some() {
        let detail = format!("{at}{NO_SUCH_WINDOW}; leave `window` out, or use another key");
        return problem.explained(detail).into();
    }
    problem.into()
}

/// What a limit left no room for.
pub(super) fn over_quota(problem: Problem, at: &str, amount: i64, quota: QuotaBody) -> Refused {
    let (limit, remaining) = (quota.limit(), quota.remaining());
    let advice = match () {
        () if amount > limit => "; so much never fits",
        () if quota.reset_ms() == 0 => "; nothing comes back by itself, as there is no window",
        () => "",
    };
    let detail = match amount {
        // Who asks for nothing asks whether the limit is kept.
        0 => format!("{at}the limit {limit} is crossed already: {} are used", quota.used()),
        _ => format!(
            "{at}the limit {limit} leaves room for {remaining}, not for {amount}; nothing was counted{advice}"
        ),
    };
    problem.with_quota(quota, amount).explained(detail).into()
}

fn add_headers(response: &mut Response, shown: &[Shown<'_>]) {
    let Some(tightest) = shown.iter().min_by_key(|shown| shown.quota.remaining()) else { return };
    let integer = |number: i64| number.unsigned_abs().min(HEADER_INTEGER_MAX);
    let seconds = |ms: u64| ms.div_ceil(1000).min(HEADER_INTEGER_MAX);
    let (mut policies, mut states) = (Vec::new(), Vec::new());
    for Shown { name, quota } in shown {
        let window = quota.window_ms().map_or_else(String::new, |ms| format!(";w={}", seconds(ms)));
        policies.push(format!("\"{name}\";q={}{window}", integer(quota.limit())));
        let reset = match quota.reset_ms() {
            0 => String::new(),
            reset_ms => format!(";t={}", seconds(reset_ms)),
        };
        states.push(format!("\"{name}\";r={}{reset}", integer(quota.remaining())));
    }
    let quota = tightest.quota;
    let headers = response.headers_mut();
    for (name, text) in [(POLICY, policies.join(", ")), (STATE, states.join(", "))] {
        if let Ok(value) = HeaderValue::from_str(&text) {
            headers.insert(name, value);
        }
    }
    headers.insert(LIMIT, HeaderValue::from(quota.limit()));
    headers.insert(REMAINING, HeaderValue::from(quota.remaining()));
    headers.insert(RESET, HeaderValue::from(seconds(quota.reset_ms())));
}

//! Many counters in one call.
//!
//! Independent items succeed or fail alone: the answer is 200 and each result says how it went. An atomic batch is
//! done as a whole or answered with a problem that carries the results. A retry is recognized by each item's
//! `requestId`, or by one `Idempotency-Key`, under which items for one counter are told apart by which of them they
//! are: who makes the batch again from a map may send the counters in another order.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use axum::response::IntoResponse;
use quipu_counting::{Action, Batch, GroupKind, Refusal, Reply};
use quipu_wire::json::problem::Problem;
use quipu_wire::json::reply::{CounterBody, ItemBody, ResultsBody};
use quipu_wire::json::request::{BODIES_MAX, BatchAddBody, BatchGetBody, BodyError};

use super::App;
use super::answer::{self, Answer, Refused};
use super::counters::freshness;
use super::execute::run;
use super::extract::{Body, NoQuery, RequestId};

/// About what one item takes in a reply, with a key of usual length.
const REPLY_ITEM_BYTES: usize = 256;

pub async fn increment(State(app): State<Arc<App>>, id: RequestId, NoQuery: NoQuery, body: Body) -> Answer {
    let body: BatchAddBody = body.parse()?;
    check_length(&app, "items", body.items.len())?;
    let reply_bytes = body.items.len() * REPLY_ITEM_BYTES;
    let room = app.load.reserve(reply_bytes)?;
    let batch = run(&app, additions(&body, id.bytes())?).await?;
    let replayed = batch.replies.iter().any(|reply| reply.duplicate);
    let of = |(index, reply): (usize, &Reply)| {
        ItemBody::of_change(batch.key(index), reply).behind(batch.staleness_ms(index))
    };
    let results: Vec<ItemBody> = batch.replies.iter().enumerate().map(of).collect();
    let mut response = match refused_item(&batch).filter(|_| body.atomic) {
        Some((index, refusal)) => {
            Refused::from(Problem::batch_refused(index, &batch.replies[index], refusal, results))
                .into_response()
        }
        None => answer::json_in(room, reply_bytes, &ResultsBody { results }),
    };
    // Independent items may be replays one by one, and say so themselves; the header speaks for the whole.
    if replayed && (body.atomic || batch.replies.iter().all(|reply| reply.duplicate)) {
        answer::mark_replayed(&mut response);
    }
    Ok(response)
}

fn additions(body: &BatchAddBody, id: Option<&[u8]>) -> Result<Batch, BodyError> {
    let mut batch = Batch::with_room(body.items.len());
    let mut seen: HashMap<Vec<u8>, u32> = HashMap::new();
    for (index, item) in body.items.iter().enumerate() {
        let (key, add) = item.0.to_item(index)?;
        let told = item.0.told().map_err(|error| BodyError(format!("items[{index}]: {error}")))?;
        let action = batch.addition(add, &told);
        item.0.stripe_by.iter().for_each(|value| batch.stripe_next_by(value.as_bytes()));
        match (&item.0.request_id, id) {
            (Some(_), _) if body.atomic => {
                let hint = "an atomic batch has one id, the header Idempotency-Key";
                return Err(BodyError(format!("items[{index}]: `requestId`: {hint}")));
            }
            (Some(item_id), _) => batch.push_with_id(&key, action, item_id.as_bytes(), 0),
            (None, Some(id)) => {
                let earlier = seen.entry(key.to_vec()).or_default();
                *earlier += 1;
                batch.push_with_id(&key, action, id, *earlier - 1)
            }
            (None, None) => batch.push(&key, action),
        };
    }
    if body.atomic {
        batch.group(0, GroupKind::Atomic);
    }
    Ok(batch)
}

/// The item because of which an all-or-none batch was refused: the others only say that it was.
pub fn refused_item(batch: &Batch) -> Option<(usize, Refusal)> {
    let refusals =
        || batch.replies.iter().enumerate().filter_map(|(index, reply)| Some((index, reply.refusal?)));
    refusals().find(|(_, refusal)| *refusal != Refusal::GroupAborted).or_else(|| refusals().next())
}

pub async fn get(State(app): State<Arc<App>>, uri: Uri, body: Body) -> Answer {
    let freshness = freshness(uri.query())?;
    let body: BatchGetBody = body.parse()?;
    check_length(&app, "keys", body.keys.len())?;
    if body.bodies && body.keys.len() > BODIES_MAX {
        return Err(BodyError(format!("`keys`: must have 1 to {BODIES_MAX} entries with `bodies`")).into());
    }
    let mut reply_bytes = body.keys.len() * REPLY_ITEM_BYTES;
    let mut room = app.load.reserve(reply_bytes)?;
    let mut batch = Batch::with_room(body.keys.len());
    batch.freshness = freshness;
    batch.wants_whole = body.bodies;
    for (index, key) in body.keys.iter().enumerate() {
        batch.push(&key.to_key(index)?, Action::Read);
    }
    let batch = run(&app, batch).await?;
    if let Some(refusal) = batch.replies.iter().find_map(|reply| reply.refusal) {
        return Err(Problem::unread(refusal).into());
    }
    let now_ms = app.clock.now_ms();
    let of = |(index, reply): (usize, &Reply)| {
        CounterBody::of_read(batch.key(index), reply, now_ms).behind(batch.staleness_ms(index))
    };
    let mut results: Vec<CounterBody> = batch.replies.iter().enumerate().map(of).collect();
    if body.bodies {
        let read = results.into_iter().zip(&batch.replies);
        results = read.map(|(counter, reply)| counter.with_body(reply)).collect();
        reply_bytes += results.iter().map(CounterBody::body_bytes).sum::<usize>();
        room = app.load.reserve(reply_bytes)?;
    }
    Ok(answer::json_in(room, reply_bytes, &ResultsBody { results }))
}

fn check_length(app: &App, field: &str, length: usize) -> Result<(), BodyError> {
    let most = app.load.limits.batch_items_max;
    if (1..=most).contains(&length) {
        return Ok(());
    }
    Err(BodyError(format!("`{field}`: must have 1 to {most} entries, not {length}")))
}

//! Counters of uniques: what was seen, and several of them made one.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use quipu_counting::identity::keys_fingerprint;
use quipu_counting::kinds::{put_join, visitors};
use quipu_counting::{Action, Batch, Detail, Kind, Refusal, Reply, Unique};
use quipu_wire::json::problem::Problem;
use quipu_wire::json::unique::{MergeBody, ObserveBody, SeenBody};

use super::App;
use super::answer::{self, Answer, Refused};
use super::execute::{run, run_one};
use super::extract::Ask;
use super::preconditions::Unconditional;

pub async fn observe(State(app): State<Arc<App>>, ask: Ask<Unconditional>) -> Answer {
    let Ask { key, id, body, .. } = ask;
    let observed = body.parse::<ObserveBody>()?;
    let (payload, at_ms) = (observed.to_payload()?, observed.at.map(|at| at.0));
    let mut batch = Batch::default();
    let items = batch.intern(&payload);
    let reply = run_one(&app, batch, &key, id.bytes(), Action::Observe { items, at_ms }).await?;
    Ok(seen(&key, &reply))
}

/// Under its id a merge is known by the names of its sources: what they have seen may be more when it comes again, or they may be gone.
pub async fn merge(State(app): State<Arc<App>>, ask: Ask<Unconditional>) -> Answer {
    let Ask { key, id, body, .. } = ask;
    let sources = body.parse::<MergeBody>()?.to_keys()?;
    let (all, refused) = match union(&app, &sources).await {
        Ok(all) => (Some(all), None),
        // It may have been done before.
        Err(refused) if id.0.is_some() => (None, Some(refused)),
        Err(refused) => return Err(refused),
    };
    let mut payload = Vec::new();
    put_join(&mut payload, keys_fingerprint(&sources), all.as_ref());
    let mut batch = Batch::default();
    let sketch = batch.intern(&payload);
    let reply = run_one(&app, batch, &key, id.bytes(), Action::Join { sketch }).await?;
    match refused {
        Some(refused) if !reply.duplicate && reply.refusal != Some(Refusal::IdReused) => Err(refused),
        _ => Ok(seen(&key, &reply)),
    }
}

async fn union(app: &App, sources: &[Vec<u8>]) -> Result<Unique, Refused> {
    let mut batch = Batch::with_room(sources.len());
    for source in sources {
        batch.push(source, Action::Read);
    }
    let batch = run(app, batch).await?;
    let now_ms = app.clock.now_ms();
    let mut all = Unique::new();
    for (index, reply) in batch.replies.iter().enumerate() {
        merge_one(&mut all, batch.key(index), reply, now_ms)?;
    }
    Ok(all)
}

/// What a source shows to whoever reads it: all it has seen, or what it has seen in its window.
fn merge_one(all: &mut Unique, key: &[u8], reply: &Reply, now_ms: u64) -> Result<(), Refused> {
    if let Some(refusal) = reply.refusal {
        return Err(Problem::unread(refusal).into());
    }
    match reply.detail.as_deref() {
        Some(Detail::Body(body, frame)) if body.kind() == Kind::Unique => {
            let range = frame.as_ref().map_or(0..u64::MAX, |frame| frame.window(reply.as_of_ms(now_ms)));
            all.merge(&visitors(body, &range));
            Ok(())
        }
        _ if !reply.exists => Ok(()),
        _ => {
            let refused = Problem::refused(key, &refusal_of(reply), Refusal::WrongKind);
            let name = String::from_utf8_lossy(key);
            let detail = format!("the source {name} is not a counter of uniques, nothing was merged");
            Err(refused.explained(detail).into())
        }
    }
}

/// A read that turned out to be of another kind than what was asked for.
pub fn refusal_of(reply: &Reply) -> Reply {
    Reply { refusal: Some(Refusal::WrongKind), ..reply.clone() }
}

fn seen(key: &[u8], reply: &Reply) -> axum::response::Response {
    match reply.refusal {
        None => answer::changed(reply, answer::json(StatusCode::OK, &SeenBody::of(key, reply))),
        Some(_) => answer::change(key, reply),
    }
}

//! Replies and problems as HTTP responses: status, body, and the headers a client acts on.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, ETAG, RETRY_AFTER};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use quipu_counting::Reply;
use quipu_wire::json::problem::{PROBLEM_JSON, Problem};
use quipu_wire::json::reply::{ChangeBody, CounterBody};
use quipu_wire::json::request::BodyError;
use serde::Serialize;

use super::load::Room;

/// Marks the first outcome told again.
const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");
/// Headers of a reply, with those that are added last.
const USUAL_HEADERS: usize = 6;
/// Room for the reply about one counter with a key of usual length.
const USUAL_BODY_BYTES: usize = 384;

/// What a handler returns.
pub type Answer = Result<Response, Refused>;

/// A problem on its way to the client.
#[derive(Debug)]
pub struct Refused(Box<Problem>);

impl Refused {
    /// What it is about.
    pub fn problem(&self) -> &Problem {
        &self.0
    }
}

impl From<Problem> for Refused {
    fn from(problem: Problem) -> Refused {
        Refused(Box::new(problem))
    }
}

impl From<BodyError> for Refused {
    fn from(error: BodyError) -> Refused {
        Problem::malformed(error.0).into()
    }
}

impl IntoResponse for Refused {
    /// Status and headers; [`finish`] adds the body, when the request's name is known.
    fn into_response(self) -> Response {
        let problem = *self.0;
        let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = status.into_response();
        if let Some(ms) = problem.retry_after_ms {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(ms.div_ceil(1000)));
        }
        response.extensions_mut().insert(Arc::new(problem));
        response
    }
}

/// Gives a problem its body. A status that says "no" without a problem, which only the framework could send, becomes
/// one too.
pub fn finish(mut response: Response, request_id: &HeaderValue) -> Response {
    if response.status().as_u16() < 400 {
        return response;
    }
    let problem = response.extensions_mut().remove::<Arc<Problem>>().and_then(Arc::into_inner);
    let mut problem = problem.unwrap_or_else(|| {
        let detail = response.status().canonical_reason().unwrap_or("the request was refused");
        Problem::new(response.status().as_u16(), "refused", detail)
    });
    problem.request_id = request_id.to_str().ok().map(str::to_owned);
    let headers = response.headers_mut();
    headers.remove(CONTENT_LENGTH);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
    *response.body_mut() = Body::from(to_json(USUAL_BODY_BYTES, &problem));
    response
}

/// A body as JSON.
pub fn json(status: StatusCode, body: &impl Serialize) -> Response {
    let mut response = json_in(Room::default(), USUAL_BODY_BYTES, body);
    *response.status_mut() = status;
    response
}

/// A body that may be large, of about so many bytes, as JSON; its room is taken until it was sent.
pub fn json_in(room: Room, about_bytes: usize, body: &impl Serialize) -> Response {
    let mut response = Response::new(held(to_json(about_bytes, body), room));
    response.headers_mut().reserve(USUAL_HEADERS);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn held(bytes: Vec<u8>, room: Room) -> Body {
    struct Held(Vec<u8>, #[expect(dead_code, reason = "dropped with the bytes")] Room);
    impl AsRef<[u8]> for Held {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    if room.is_empty() { Body::from(bytes) } else { Body::from(Bytes::from_owner(Held(bytes, room))) }
}

/// Our bodies are structs of text and numbers: there is nothing in them that JSON cannot say.
fn to_json(about_bytes: usize, body: &impl Serialize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(about_bytes);
    if let Err(error) = serde_json::to_writer(&mut bytes, body) {
        tracing::error!(%error, "a reply cannot be written as JSON");
    }
    bytes
}

/// The answer to a read.
pub fn counter(counter: CounterBody, reply: &Reply) -> Response {
    let mut response = json(StatusCode::OK, &counter);
    add_tag(&mut response, reply);
    // A cache may keep it for its tag, and must ask each time.
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// The answer to a read of a counter in a state that the client knows.
pub fn not_modified(reply: &Reply) -> Response {
    let mut response = StatusCode::NOT_MODIFIED.into_response();
    add_tag(&mut response, reply);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// The answer to a change, accepted or refused.
pub fn change(key: &[u8], reply: &Reply) -> Response {
    change_behind(key, reply, 0)
}

/// The same, with a value that may be so far behind.
pub fn change_behind(key: &[u8], reply: &Reply, staleness_ms: u64) -> Response {
    let response = match reply.refusal {
        None => json(StatusCode::OK, &ChangeBody::of(key, reply).behind(staleness_ms)),
        Some(refusal) => Refused::from(Problem::refused(key, reply, refusal)).into_response(),
    };
    changed(reply, response)
}

/// The same with another body.
pub fn changed(reply: &Reply, mut response: Response) -> Response {
    add_tag(&mut response, reply);
    if reply.duplicate {
        mark_replayed(&mut response);
    }
    response
}

/// Says that this is the first outcome again.
pub fn mark_replayed(response: &mut Response) {
    response.headers_mut().insert(IDEMPOTENT_REPLAYED, HeaderValue::from_static("true"));
}

/// The tag is birth and version, so that a counter deleted and made anew never matches an old tag.
fn add_tag(response: &mut Response, reply: &Reply) {
    // Who does not know how the counter stands knows at most how it was.
    if !reply.exists || reply.refusal.is_some_and(|refusal| !refusal.knows_counter()) {
        return;
    }
    let mut tag = Vec::with_capacity(24);
    tag.push(b'"');
    tag.extend_from_slice(itoa::Buffer::new().format(reply.cell.birth).as_bytes());
    tag.push(b'-');
    tag.extend_from_slice(itoa::Buffer::new().format(reply.cell.version).as_bytes());
    tag.push(b'"');
    if let Ok(tag) = HeaderValue::from_maybe_shared(Bytes::from(tag)) {
        response.headers_mut().insert(ETAG, tag);
    }
}

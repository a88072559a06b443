//! Replies and problems as HTTP responses: status, body, and the headers a client acts on.

use axum::http::header::{CONTENT_TYPE, ETAG, RETRY_AFTER};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use quipu_counting::Reply;
use quipu_wire::json::problem::{PROBLEM_JSON, Problem};
use quipu_wire::json::reply::{ChangeBody, CounterBody};
use quipu_wire::json::request::BodyError;
use serde::Serialize;

/// Marks the first outcome told again.
const IDEMPOTENT_REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// What a handler returns.
pub type Answer = Result<Response, Refused>;

/// A problem on its way to the client.
#[derive(Debug)]
pub struct Refused(Box<Problem>);

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
    fn into_response(self) -> Response {
        let problem = *self.0;
        let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = json(status, &problem);
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        if let Some(ms) = problem.retry_after_ms {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(ms.div_ceil(1000)));
        }
        response
    }
}

/// A body as JSON.
pub fn json(status: StatusCode, body: &impl Serialize) -> Response {
    match serde_json::to_vec(body) {
        Ok(bytes) => {
            (status, [(CONTENT_TYPE, HeaderValue::from_static("application/json"))], bytes).into_response()
        }
        // Our bodies are plain structs with string keys; should one ever not serialize, the client learns that much.
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// The answer to a read.
pub fn counter(key: &[u8], reply: &Reply) -> Response {
    let mut response = json(StatusCode::OK, &CounterBody::of(key, reply));
    add_tag(&mut response, reply);
    response
}

/// The answer to a change, accepted or refused.
pub fn change(key: &[u8], reply: &Reply) -> Response {
    let mut response = match reply.refusal {
        None => json(StatusCode::OK, &ChangeBody::of(key, reply)),
        Some(refusal) => Refused::from(Problem::refused(key, reply, refusal)).into_response(),
    };
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
    if reply.exists
        && let Ok(tag) = HeaderValue::from_str(&format!("\"{}-{}\"", reply.cell.birth, reply.cell.version))
    {
        response.headers_mut().insert(ETAG, tag);
    }
}

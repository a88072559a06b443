//! What operators and orchestrators ask: is it alive, is it ready, how is it doing.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use quipu_wire::json::problem::Problem;

use super::App;
use super::answer::Refused;

/// The process runs. Says nothing about whether it can count.
pub async fn healthz() -> &'static str {
    "ok\n"
}

/// Requests will be served.
pub async fn readyz(State(app): State<Arc<App>>) -> Response {
    let member = app.cluster.as_ref().and_then(|node| node.problem());
    let backend = app.external.as_ref().and_then(|external| external.problem());
    match app.health.problem().or(member).or(backend) {
        None => match app.external.as_ref().and_then(|external| external.warning()) {
            None => "ready\n".into_response(),
            Some(warning) => format!("ready; but {warning}\n").into_response(),
        },
        Some(detail) => Refused::from(Problem::new(503, "not-ready", detail)).into_response(),
    }
}

/// Everything, in the OpenMetrics text format.
pub async fn metrics(State(app): State<Arc<App>>) -> Response {
    match app.metrics.encode() {
        Ok(text) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(CONTENT_TYPE, HeaderValue::from_static(kind))], text).into_response()
        }
        Err(error) => Refused::from(Problem::new(500, "failed", error.to_string())).into_response(),
    }
}

/// What a call of the API is counted as; `None` for what is no such call.
pub fn operation(method: &Method, path: &str) -> Option<&'static str> {
    let mut parts = path.strip_prefix("/api/v1/")?.split('/');
    let route = (parts.next()?, parts.next(), parts.next(), parts.next());
    if route.1 == Some("") {
        return Some("other");
    }
    let operation = match (method.as_str(), route) {
        ("POST", ("counters", Some(_), Some("increment"), None)) => "increment",
        ("POST", ("counters", Some(_), Some("decrement"), None)) => "decrement",
        ("POST", ("counters", Some(_), Some("reset"), None)) => "reset",
        ("POST", ("counters", Some(_), Some("adjust"), None)) => "adjust",
        ("POST", ("counters", Some(_), Some("observe"), None)) => "observe",
        ("POST", ("counters", Some(_), Some("merge"), None)) => "merge",
        ("GET" | "HEAD", ("counters", Some(_), Some("window"), None)) => "window",
        ("GET" | "HEAD", ("counters", Some(_), Some("history"), None)) => "history",
        ("GET" | "HEAD", ("counters", Some(_), Some("audit"), None)) => "audit",
        ("POST", ("counters", Some(_), Some("acquire"), None) | ("acquire", None, None, None)) => "acquire",
        ("POST", ("counters", Some(_), Some("reserve"), None)) => "reserve",
        ("POST", ("holds", Some(_), Some("commit"), None)) => "commit",
        ("POST", ("holds", Some(_), Some("void"), None)) => "void",
        ("POST", ("counters", Some("batch-increment"), None, None)) => "batch-increment",
        ("POST", ("counters", Some("batch-get"), None, None)) => "batch-get",
        ("GET" | "HEAD", ("counters", None, None, None)) => "list",
        ("GET" | "HEAD", ("counters", Some(_), None, None)) => "get",
        ("PUT", ("counters", Some(_), None, None)) => "set",
        ("DELETE", ("counters", Some(_), None, None)) => "delete",
        ("GET" | "HEAD", ("watch", None, None, None)) => "watch",
        ("GET" | "HEAD", ("hot", None, None, None)) => "hot",
        ("GET" | "HEAD", ("mirror", None, None, None)) => "mirror",
        (_, ("policies", _, None, None)) => "policy",
        (_, ("cluster", _, _, None)) => "cluster",
        (_, ("backend", None, None, None)) => "backend",
        _ => "other",
    };
    Some(operation)
}

/// How a call went, for counting.
pub fn result(status: StatusCode) -> &'static str {
    match status.as_u16() {
        409 | 412 | 422 | 429 => "refused",
        504 => "unknown",
        503 => "unavailable",
        500.. => "failed",
        400.. => "malformed",
        _ => "ok",
    }
}

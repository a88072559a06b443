//! What operators and orchestrators ask: is it alive, is it ready, how is it doing.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Method, StatusCode};
use axum::middleware::Next;
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
    match app.health.problem() {
        None => "ready\n".into_response(),
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
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

/// Counts and times one call of the API.
pub async fn measure(
    State(app): State<Arc<App>>,
    path: MatchedPath,
    request: Request,
    next: Next,
) -> Response {
    let operation = operation(request.method(), path.as_str());
    let begin = Instant::now();
    let response = next.run(request).await;
    app.metrics.observe(operation, result(response.status()), begin.elapsed());
    response
}

fn operation(method: &Method, path: &str) -> &'static str {
    let route = path.trim_start_matches("/api/v1/");
    match (method.as_str(), route) {
        ("POST", "counters/batch-increment") => "batch-increment",
        ("POST", "counters/batch-get") => "batch-get",
        ("POST", "counters/{key}/increment") => "increment",
        ("POST", "counters/{key}/decrement") => "decrement",
        ("POST", "counters/{key}/reset") => "reset",
        (_, "policies" | "policies/{pattern}") => "policy",
        ("GET" | "HEAD", "counters") => "list",
        ("GET" | "HEAD", _) => "get",
        ("PUT", _) => "set",
        ("DELETE", _) => "delete",
        _ => "other",
    }
}

fn result(status: StatusCode) -> &'static str {
    match status.as_u16() {
        409 | 422 => "refused",
        504 => "unknown",
        500.. => "failed",
        400.. => "malformed",
        _ => "ok",
    }
}

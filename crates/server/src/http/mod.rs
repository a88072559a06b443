//! The JSON API: routes under `/api/v1`, and `/healthz`, `/readyz`, `/metrics` beside it.
//!
//! | file | what it says |
//! |---|---|
//! | `connections` | accepts, limits, times out and drains connections |
//! | `extract` | what a handler takes from a request: key, request id, precondition, body |
//! | `execute` | runs a batch and waits until its replies may be shown |
//! | `answer` | replies and problems as responses |
//! | `counters`, `batches`, `list`, `policies`, `status` | the handlers |
//!
//! A handler runs its batch inline, on the thread that read the request; only what must wait (a counter on disk,
//! the sync of the log) gives the thread back.

mod answer;
mod batches;
mod connections;
mod counters;
mod execute;
mod extract;
mod list;
mod policies;
mod status;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::Uri;
use axum::middleware;
use axum::routing::{get, post};
use quipu_counting::Counters;
use quipu_wire::json::problem::Problem;

use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::serve::Health;
pub use connections::Server;
pub use list::Walks;

/// The largest body. Ten thousand items of a batch with keys of usual length fit.
const BODY_BYTES_MAX: usize = 1 << 20;

/// What every handler reaches.
pub struct App {
    /// The deployment that counts.
    pub counters: Arc<dyn Counters>,
    /// The time of entries; shared by all fronts.
    pub clock: Arc<Clock>,
    /// What `/metrics` shows.
    pub metrics: Arc<Metrics>,
    /// What `/readyz` says.
    pub health: Arc<Health>,
    /// Whether `X-Request-Id` names a request where `Idempotency-Key` is absent.
    pub x_request_id: bool,
    /// Who may walk over many counters at the same time.
    pub walks: Walks,
}

/// All routes.
pub fn router(app: Arc<App>) -> Router {
    // A counter may be called `batch-get`: every method that is not the batch's own still means the counter.
    let counter = || get(counters::read).put(counters::set).delete(counters::delete);
    Router::new()
        .route("/api/v1/counters", get(list::list))
        .route("/api/v1/counters/batch-increment", counter().post(batches::increment))
        .route("/api/v1/counters/batch-get", counter().post(batches::get))
        .route("/api/v1/counters/{key}", counter())
        .route("/api/v1/counters/{key}/increment", post(counters::increment))
        .route("/api/v1/counters/{key}/decrement", post(counters::decrement))
        .route("/api/v1/counters/{key}/reset", post(counters::reset))
        .route("/api/v1/policies", get(policies::list))
        .route("/api/v1/policies/{pattern}", get(policies::read).put(policies::set).delete(policies::delete))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&app), status::measure))
        .route("/healthz", get(status::healthz))
        .route("/readyz", get(status::readyz))
        .route("/metrics", get(status::metrics))
        .method_not_allowed_fallback(no_such_method)
        .fallback(no_such_route)
        .layer(middleware::from_fn(extract::refuse_foreign_pages))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(app)
}

async fn no_such_route(uri: Uri) -> answer::Refused {
    let mut detail = format!("there is nothing at {}", uri.path());
    if uri.path().starts_with("/api/v1/counters/") {
        detail.push_str("; a key in the path has 1 to 512 bytes, with / written as %2F");
    }
    Problem::new(404, "no-such-route", detail).into()
}

async fn no_such_method(method: axum::http::Method, uri: Uri) -> answer::Refused {
    Problem::new(
        405,
        "method-not-allowed",
        format!("{method} is not possible on {}; see the header Allow", uri.path()),
    )
    .into()
}

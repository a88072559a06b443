//! The JSON API: routes under `/api/v1`, and `/openapi.json`, `/docs`, `/healthz`, `/readyz`, `/metrics` beside it.
//!
//! | file | what it says |
//! |---|---|
//! | `connections`, `conversation` | accepts, limits, times out and drains connections |
//! | `front` | what is done with every request before and after its handler |
//! | `load` | limits, and how much there is at the moment |
//! | `extract`, `parameters`, `preconditions`, `content`, `origin` | what is taken from a request, and what is refused |
//! | `execute` | runs a batch and waits until its replies may be shown |
//! | `answer`, `packing` | replies and problems as responses; large ones packed |
//! | `counters`, `batches`, `list`, `aggregate`, `hot`, `uniques`, `windows`, `history`, `audit`, `quotas`, `holds`, `policies`, `cluster`, `mirror`, `backend`, `status` | the handlers |
//! | `watch` | counters while they change |
//! | `openapi`, `docs` | the API described, for programs and for people |
//!
//! A handler runs its batch inline, on the thread that read the request; only what must wait (a counter on disk,
//! the sync of the log) gives the thread back.

mod aggregate;
mod answer;
mod audit;
mod backend;
mod batches;
mod cluster;
mod connections;
mod content;
mod conversation;
mod counters;
mod docs;
mod execute;
mod extract;
mod front;
mod history;
mod holds;
mod hot;
mod list;
mod load;
mod mirror;
mod openapi;
mod origin;
mod packing;
mod parameters;
mod policies;
mod preconditions;
mod quotas;
mod status;
#[cfg(test)]
mod tests;
mod uniques;
mod watch;
mod windows;

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::Bytes;
use axum::http::{Method, Uri};
use axum::routing::{get, post};
use quipu_cluster::node::Node;
use quipu_counting::Counters;
use quipu_external::External;
use quipu_wire::json::problem::Problem;

use crate::clock::Clock;
use crate::metrics::Metrics;
use crate::serve::Health;
pub use connections::{FAREWELLS_MAX, Server};
pub(crate) use execute::run_on;
pub use front::Front;
pub use load::{Limits, Load};
pub use watch::Hub;

/// What every handler reaches.
pub struct App {
    /// The deployment that counts.
    pub counters: Arc<dyn Counters>,
    /// The node, where it is one of a cluster.
    pub cluster: Option<Arc<Node>>,
    /// The counters in Redis, where they are there.
    pub external: Option<Arc<External>>,
    /// The time of entries; shared by all fronts.
    pub clock: Arc<Clock>,
    /// What `/metrics` shows.
    pub metrics: Arc<Metrics>,
    /// What `/readyz` says.
    pub health: Arc<Health>,
    /// Whether `X-Request-Id` names a request where `Idempotency-Key` is absent.
    pub x_request_id: bool,
    /// What is bounded, and how much there is of it.
    pub load: Arc<Load>,
    /// Where changes come together that somebody watches.
    pub hub: Arc<Hub>,
    /// The table that mirrors the counters, if there is one.
    pub mirror: Option<Arc<crate::mirror::Status>>,
    /// `/openapi.json`, once somebody has asked for it.
    pub openapi: OnceLock<Bytes>,
}

/// All routes. [`Front`] stands before them.
fn router(app: Arc<App>) -> Router {
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
        .route("/api/v1/counters/{key}/aggregate", get(aggregate::aggregate))
        .route("/api/v1/hot", get(hot::hot))
        .route("/api/v1/counters/{key}/adjust", post(counters::adjust))
        .route("/api/v1/counters/{key}/observe", post(uniques::observe))
        .route("/api/v1/counters/{key}/merge", post(uniques::merge))
        .route("/api/v1/counters/{key}/window", get(windows::read))
        .route("/api/v1/counters/{key}/history", get(history::read))
        .route("/api/v1/counters/{key}/audit", get(audit::read))
        .route("/api/v1/counters/{key}/acquire", post(quotas::acquire))
        .route("/api/v1/acquire", post(quotas::acquire_all))
        .route("/api/v1/counters/{key}/reserve", post(holds::reserve))
        .route("/api/v1/holds/{id}/commit", post(holds::commit))
        .route("/api/v1/holds/{id}/void", post(holds::void))
        .route("/api/v1/policies", get(policies::list))
        .route("/api/v1/policies/{pattern}", get(policies::read).put(policies::set).delete(policies::delete))
        .route("/api/v1/mirror", get(mirror::read))
        .route(watch::PATH, get(watch::watch))
        .route("/api/v1/backend", get(backend::read))
        .route("/api/v1/cluster", get(cluster::read))
        .route("/api/v1/cluster/nodes/{node}", axum::routing::delete(cluster::remove))
        .route("/openapi.json", get(openapi::serve))
        .route("/docs", get(docs::page))
        .route("/docs/style.css", get(docs::style))
        .route("/docs/page.js", get(docs::script))
        .route("/healthz", get(status::healthz))
        .route("/readyz", get(status::readyz))
        .route("/metrics", get(status::metrics))
        .method_not_allowed_fallback(no_such_method)
        .fallback(no_such_route)
        .with_state(app)
}

async fn no_such_route(uri: Uri) -> answer::Refused {
    let mut detail = format!("there is nothing at {}", uri.path());
    if uri.path().starts_with("/api/v1/counters/") {
        detail.push_str("; a key in the path has 1 to 512 bytes, with / written as %2F");
    }
    Problem::new(404, "no-such-route", detail).into()
}

async fn no_such_method(method: Method, uri: Uri) -> answer::Refused {
    let detail = format!("{method} is not possible on {}; see the header Allow", uri.path());
    Problem::new(405, "method-not-allowed", detail).into()
}

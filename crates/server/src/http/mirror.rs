//! The table in PostgreSQL that mirrors the counters.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use quipu_wire::json::problem::Problem;

use super::App;
use super::answer::{self, Answer};
use super::extract::NoQuery;

pub async fn read(State(app): State<Arc<App>>, NoQuery: NoQuery) -> Answer {
    let what = "this server mirrors its counters nowhere; `quipu serve --mirror postgres://...` does";
    let mirror = app.mirror.as_ref().ok_or_else(|| Problem::new(404, "no-mirror", what))?;
    Ok(answer::json(StatusCode::OK, &mirror.body(app.clock.now_ms())))
}

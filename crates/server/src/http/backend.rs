//! Where the counters lie, on a node whose counters lie in Redis.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use quipu_external::External;
use quipu_external::archive::{ArchiveState, Recovery};
use quipu_wire::json::backend::{BackendArchive, BackendBody, BackendGap, BackendMaster, BackendRecovery};
use quipu_wire::json::problem::Problem;
use quipu_wire::json::timestamp::rfc3339;

use super::App;
use super::answer::{self, Answer, Refused};
use super::extract::NoQuery;

pub async fn read(State(app): State<Arc<App>>, NoQuery: NoQuery) -> Answer {
    let what =
        "the counters of this server lie in its own data folder; `quipu serve --backend` keeps them in Redis";
    let none = || Refused::from(Problem::new(404, "no-backend", what));
    let external = app.external.as_ref().ok_or_else(none)?;
    Ok(answer::json(StatusCode::OK, &describe(external)))
}

fn describe(external: &External) -> BackendBody {
    let problem = external.problem();
    let masters = external.masters().into_iter();
    BackendBody {
        epoch: external.epoch().to_string(),
        ready: problem.is_none(),
        problem,
        warning: external.warning(),
        masters: masters.map(|(address, groups)| BackendMaster { address, groups }).collect(),
        archive: external.archive().map(|archive| archived(archive.state())),
    }
}

fn archived(state: ArchiveState) -> BackendArchive {
    BackendArchive {
        up: state.is_up,
        lag_ms: state.lag_ms,
        stream_entries: state.stream_entries,
        flushed_events: state.flushed,
        unseeded_groups: state.unseeded_groups,
        problem: state.problem,
        recoveries: state.recoveries.into_iter().map(recovered).collect(),
    }
}

fn recovered(told: Recovery) -> BackendRecovery {
    let time = |ms: i64| rfc3339(u64::try_from(ms).unwrap_or(0));
    let gap = |(from, to): (i64, i64)| BackendGap {
        from: time(from.min(to)),
        to: time(to),
        // Clocks of several machines take part.
        length_ms: to.saturating_sub(from).max(0),
    };
    BackendRecovery {
        detected_at: time(told.detected_at_ms),
        finished_at: time(told.finished_at_ms),
        gap: told.gap_ms.map(gap),
        epoch_before: told.epoch_before,
        epoch_after: told.epoch_after,
        groups_lost: told.groups_lost,
        counters: told.counters,
        request_ids: told.request_ids,
        replayed: told.replayed,
        watermark: told.watermark,
    }
}

//! The trail of a counter: who changed it, when and why; and who asks, for those that are to come.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderName, Uri};
use quipu_counting::audit::{ACTOR_BYTES_MAX, AUDIT_PAGE_MAX};
use quipu_counting::{AuditPage, AuditQuery, Origin, Unavailable};
use quipu_wire::json::audit::{AuditReply, decode_cursor};
use quipu_wire::json::problem::Problem;

use super::App;
use super::answer::{self, Answer, Refused};
use super::extract::{Name, only};
use super::parameters::Parameters;
use quipu_wire::json::timestamp::{MOMENT, time_ms};

/// The header by which a client says who it is.
pub static ACTOR: HeaderName = HeaderName::from_static("x-quipu-actor");

/// Rows of a page where the call does not say.
pub const LIMIT_DEFAULT: usize = 100;
/// About what one row takes in a reply.
const ROW_BYTES: usize = 384;

/// The other end of a connection, where somebody wants to know.
#[derive(Clone, Copy, Debug)]
pub struct Peer(pub SocketAddr);

tokio::task_local! {
    /// Who asks, while a request is handled that may leave a trail.
    pub static ASKED_BY: Arc<Origin>;
}

/// Who asks.
pub fn origin(request: &Request) -> Result<Arc<Origin>, Refused> {
    let name = only(request.headers(), &ACTOR).map_err(Problem::malformed)?;
    let name = name.map_or(&[][..], |name| name.as_bytes());
    if name.len() > ACTOR_BYTES_MAX {
        let detail = format!("the header {ACTOR} has {} bytes; the most are {ACTOR_BYTES_MAX}", name.len());
        return Err(Problem::malformed(detail).into());
    }
    let address = request.extensions().get::<Peer>().map_or_else(String::new, |peer| peer.0.to_string());
    Ok(Arc::new(Origin::new(name, address)))
}

pub async fn read(State(app): State<Arc<App>>, Name(key): Name, uri: Uri) -> Answer {
    let query = query(key, uri.query())?;
    let room = app.load.reserve(query.limit * ROW_BYTES)?;
    let page = walk(&app, query.clone()).await?;
    if page.is_of_nothing() {
        let shown = String::from_utf8_lossy(&query.key);
        let detail = format!(
            "no policy has a trail kept of {shown}, and there is none from before; store one with \"audit\": \"30d\""
        );
        return Err(Problem::new(400, "not-audited", detail).into());
    }
    let bytes = (page.changes.len() + 1) * ROW_BYTES;
    Ok(answer::json_in(room, bytes, &AuditReply::of(&query.key, &page)))
}

fn query(key: Vec<u8>, query: Option<&str>) -> Result<AuditQuery, Refused> {
    let parameters = Parameters::parse(query, &["from", "to", "limit", "cursor"])?;
    let from_ms = parameters.read("from", MOMENT, time_ms)?.unwrap_or(0);
    let to_ms = parameters.read("to", MOMENT, time_ms)?.unwrap_or(u64::MAX);
    if from_ms > to_ms {
        return Err(Problem::malformed("the query parameter to must not be earlier than from").into());
    }
    let expected = format!("a number from 1 to {AUDIT_PAGE_MAX}");
    let within = |text: &str| text.parse().ok().filter(|limit| (1..=AUDIT_PAGE_MAX).contains(limit));
    let limit = parameters.read("limit", &expected, within)?.unwrap_or(LIMIT_DEFAULT);
    let before = match parameters.bytes("cursor") {
        None | Some(b"") => None,
        Some(_) => parameters.read("cursor", "the cursor of the page before", decode_cursor)?,
    };
    Ok(AuditQuery { key, from_ms, to_ms, before, limit })
}

/// It reads from disk, so it must not hold a thread that others are served by.
async fn walk(app: &Arc<App>, query: AuditQuery) -> Result<AuditPage, Refused> {
    let turn = app.load.walk().await?;
    let app = Arc::clone(app);
    let walked = tokio::task::spawn_blocking(move || {
        let page = app.counters.audit(&query, app.clock.now_ms());
        drop(turn);
        page
    });
    let page = walked.await.unwrap_or_else(|error| Err(Unavailable::Unreadable(error.to_string())));
    page.map_err(|reason| Problem::unavailable(&reason).into())
}

//! `GET /api/v1/watch`: counters while they change, as server-sent events.
//!
//! | file | what it says |
//! |---|---|
//! | `hub` | takes what changed, reads it, once for all clients |
//! | `topics` | keeps it for clients to take, each as fast as it can |
//! | `stream` | the events of one client |

mod hub;
mod stream;
mod topics;

use std::collections::HashSet;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use quipu_counting::KEY_BYTES_MAX;
use quipu_wire::json::problem::Problem;

use super::App;
use super::answer::{Answer, Refused};
use super::conversation::Conversation;
use super::parameters::Parameters;
pub use hub::Hub;
use stream::Stream;
use topics::{Full, Selection};

/// Where it is.
pub const PATH: &str = "/api/v1/watch";
/// Of replies.
pub const EVENT_STREAM: &str = "text/event-stream";
/// Keys of one client: about what the head of a request has room for.
pub const KEYS_PER_CLIENT_MAX: usize = 256;
/// Prefixes of one client.
pub const PREFIXES_PER_CLIENT_MAX: usize = 16;
/// Between two events of a counter where the call does not say: soon enough for a person.
pub const INTERVAL_DEFAULT_MS: u64 = 100;
/// Faster than the rounds of the hub would be no faster.
pub const INTERVAL_MIN_MS: u64 = 10;
/// Who wants to know less often asks.
pub const INTERVAL_MAX_MS: u64 = 60_000;

static LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");
/// Tells nginx, which many have before their servers, not to hold events back until there are many.
static ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// What a client asks for.
#[derive(Debug, PartialEq, Eq)]
struct Query {
    selection: Selection,
    interval_ms: u64,
    /// Whether to begin with the counters of the prefixes as they are.
    initial: bool,
}

pub async fn watch(State(app): State<Arc<App>>, request: Request) -> Answer {
    let query = query(request.uri().query())?;
    // What is no text was never an id of ours, and is treated as one of another server.
    let last_event_id = request.headers().get(&LAST_EVENT_ID).filter(|id| !id.is_empty());
    let last_event_id = last_event_id.map(|id| String::from_utf8_lossy(id.as_bytes()).into_owned());
    let conversation = request.extensions().get::<Arc<Conversation>>().cloned();
    let place = app.load.watch()?;
    let subscription = app.hub.subscribe(query.selection).map_err(|Full| {
        app.load.busy("too many different keys or prefixes are being watched; retry later")
    })?;
    let stream = Stream::new(stream::Parts {
        app: Arc::clone(&app),
        _place: place,
        subscription,
        conversation,
        interval_ms: query.interval_ms,
        initial: query.initial,
        last_event_id,
    });
    Ok(response(Body::from_stream(stream.into_frames())))
}

fn response(body: Body) -> Response {
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static(EVENT_STREAM)),
        (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
        (ACCEL_BUFFERING.clone(), HeaderValue::from_static("no")),
    ];
    (headers, body).into_response()
}

fn query(query: Option<&str>) -> Result<Query, Refused> {
    let known = ["key", "prefix", "intervalMs", "initial"];
    let parameters = Parameters::parse_repeated(query, &known, &["key", "prefix"])?;
    let names = |name: &'static str, most: usize, bytes_min: usize| -> Result<Vec<Arc<[u8]>>, Refused> {
        let mut seen = HashSet::new();
        let names: Vec<&[u8]> = parameters.all(name).filter(|bytes| seen.insert(*bytes)).collect();
        if names.len() > most {
            let detail =
                format!("{} different values of {name}; the limit is {most}, watch twice", names.len());
            return Err(Problem::malformed(detail).into());
        }
        if let Some(bad) = names.iter().find(|bytes| !(bytes_min..=KEY_BYTES_MAX).contains(&bytes.len())) {
            let detail = format!("a {name} has {bytes_min} to {KEY_BYTES_MAX} bytes, not {}", bad.len());
            return Err(Problem::malformed(detail).into());
        }
        Ok(names.into_iter().map(Arc::from).collect())
    };
    let selection = Selection {
        keys: names("key", KEYS_PER_CLIENT_MAX, 1)?,
        prefixes: names("prefix", PREFIXES_PER_CLIENT_MAX, 0)?,
    };
    if selection == Selection::default() {
        let detail = "say what to watch: ?key= (once for each counter), or ?prefix= (empty for all counters)";
        return Err(Problem::malformed(detail).into());
    }
    let range = INTERVAL_MIN_MS..=INTERVAL_MAX_MS;
    let expected = format!("milliseconds from {INTERVAL_MIN_MS} to {INTERVAL_MAX_MS}");
    let interval_ms =
        parameters.read("intervalMs", &expected, |text| text.parse().ok().filter(|ms| range.contains(ms)))?;
    let initial = parameters.read("initial", "true or false", |text| text.parse().ok())?;
    Ok(Query {
        selection,
        interval_ms: interval_ms.unwrap_or(INTERVAL_DEFAULT_MS),
        initial: initial.unwrap_or(false),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries() {
        let names = |names: &[&[u8]]| names.iter().map(|name| Arc::from(*name)).collect::<Vec<Arc<[u8]>>>();
        let of = |keys: &[&[u8]], prefixes: &[&[u8]]| Query {
            selection: Selection { keys: names(keys), prefixes: names(prefixes) },
            interval_ms: INTERVAL_DEFAULT_MS,
            initial: false,
        };
        for (text, expected) in [
            ("key=a", of(&[b"a"], &[])),
            ("key=b&key=a%2F%ff&key=b", of(&[b"b", b"a/\xff"], &[])),
            ("prefix=", of(&[], &[b""])),
            ("prefix=likes:&key=a&prefix=b+c", of(&[b"a"], &[b"likes:", b"b c"])),
            ("key=a&intervalMs=10", Query { interval_ms: 10, ..of(&[b"a"], &[]) }),
            (
                "prefix&initial=true&intervalMs=60000",
                Query { interval_ms: 60_000, initial: true, ..of(&[], &[b""]) },
            ),
        ] {
            assert_eq!(query(Some(text)).unwrap(), expected, "{text}");
        }
        let many = |name: &str, count: usize| {
            (0..count).map(|number| format!("{name}={number}")).collect::<Vec<_>>().join("&")
        };
        assert!(query(Some(&many("key", KEYS_PER_CLIENT_MAX))).is_ok());
        let long = format!("prefix={}", "x".repeat(KEY_BYTES_MAX + 1));
        for text in [
            "",
            "key=",
            "initial=true",
            "key=a&intervalMs=9",
            "key=a&intervalMs=60001",
            "key=a&intervalMs=1&intervalMs=1",
            "key=a&initial=yes",
            "keys=a",
            "prefix=%",
            &long,
            &many("key", KEYS_PER_CLIENT_MAX + 1),
            &many("prefix", PREFIXES_PER_CLIENT_MAX + 1),
        ] {
            assert_eq!(query(Some(text)).unwrap_err().problem().reason, "malformed", "{text}");
        }
        assert!(query(None).is_err());
    }
}

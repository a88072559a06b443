//! What is done with every request before and after its handler: admission, a name for it, the rules of the protocol
//! that hold for all routes, and one form for every problem.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use axum::Router;
use axum::extract::Request;
use axum::handler::Handler;
use axum::http::header::{ALLOW, CONNECTION, HOST, TRANSFER_ENCODING};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Version};
use axum::response::{IntoResponse, Response};
use quipu_counting::ID_BYTES_MAX;
use quipu_wire::json::problem::Problem;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tower::Service;

use super::answer::{self, Refused};
use super::content::JSON;
use super::{App, audit, content, counters, origin, packing, status, watch};

/// The header that names a request: the client's own name for it, or ours.
pub static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// See the head of this file.
pub struct Front {
    router: Router,
    app: Arc<App>,
    /// Names the process in names of requests.
    nonce: u32,
    requests: AtomicU64,
    /// Whether connections end after the reply in flight.
    is_stopping: AtomicBool,
}

impl Front {
    /// The routes and what stands before them.
    pub fn new(app: Arc<App>) -> Front {
        Front {
            router: super::router(Arc::clone(&app)),
            app,
            nonce: SmallRng::from_os_rng().random(),
            requests: AtomicU64::new(0),
            is_stopping: AtomicBool::new(false),
        }
    }

    /// What is bounded, and how much there is of it.
    pub fn load(&self) -> &super::Load {
        &self.app.load
    }

    /// Whether somebody wants to know who asks.
    pub fn audits(&self) -> bool {
        self.app.counters.audits()
    }

    /// From now on every reply ends its connection.
    pub fn stop(&self) {
        self.is_stopping.store(true, Ordering::Relaxed);
        self.app.hub.close();
    }

    /// The reply to one request.
    pub async fn answer(&self, request: Request) -> Response {
        let begin = Instant::now();
        let operation = status::operation(request.method(), request.uri().path());
        let id = self.request_id(request.headers());
        let is_options = request.method() == Method::OPTIONS;
        let accepts_gzip = packing::accepts_gzip(request.headers());
        let response = match self.app.load.enter() {
            Some(_in_flight) => match check(&request) {
                Ok(()) if self.audits() => match audit::origin(&request) {
                    Ok(origin) => audit::ASKED_BY.scope(origin, self.handle(operation, request)).await,
                    Err(refused) => refused.into_response(),
                },
                Ok(()) => self.handle(operation, request).await,
                Err(refused) => refused.into_response(),
            },
            // Its body is not read; hyper skips what has arrived of it, or ends the connection.
            None => self.app.load.busy("too many requests are in flight; retry later").into_response(),
        };
        let response = if is_options { options(response) } else { response };
        let mut response = packing::pack(answer::finish(response, &id), accepts_gzip).await;
        response.headers_mut().insert(&REQUEST_ID, id);
        // Where a body of unknown form ends is for nobody to guess.
        if self.is_stopping.load(Ordering::Relaxed) || response.status() == StatusCode::NOT_IMPLEMENTED {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if let Some(operation) = operation {
            self.app.metrics.observe(operation, status::result(response.status()), begin.elapsed());
        }
        response
    }

    /// The two calls that are nearly all of the load are handled without the routes, which would cost as much as
    /// counting itself. They mean the same: `operation` is a matter of method and path alone.
    async fn handle(&self, operation: Option<&'static str>, request: Request) -> Response {
        match (request.method(), operation) {
            (&Method::POST, Some("increment")) => {
                counters::increment.call(request, Arc::clone(&self.app)).await
            }
            (&Method::GET, Some("get")) => counters::read.call(request, Arc::clone(&self.app)).await,
            _ => {
                let Ok(response) = self.router.clone().call(request).await;
                response
            }
        }
    }

    /// The client's name for the request, if it is one that can be said again; else one of our own.
    fn request_id(&self, headers: &HeaderMap) -> HeaderValue {
        let given = headers.get(&REQUEST_ID).filter(|id| {
            (1..=ID_BYTES_MAX).contains(&id.len()) && id.as_bytes().iter().all(u8::is_ascii_graphic)
        });
        if let Some(given) = given {
            return given.clone();
        }
        HeaderValue::from_bytes(&self.next_name()).unwrap_or(HeaderValue::from_static("unnamed"))
    }

    /// A name for a request whose head could not be read.
    pub fn new_request_id(&self) -> String {
        String::from_utf8_lossy(&self.next_name()).into_owned()
    }

    /// Unique in this process, and most likely everywhere.
    fn next_name(&self) -> [u8; 21] {
        let mut name = *b"00000000-000000000000";
        write_hex(&mut name[..8], u64::from(self.nonce));
        write_hex(&mut name[9..], self.requests.fetch_add(1, Ordering::Relaxed));
        name
    }
}

fn write_hex(digits: &mut [u8], mut number: u64) {
    for digit in digits.iter_mut().rev() {
        *digit = b"0123456789abcdef"[(number & 15) as usize];
        number >>= 4;
    }
}

/// What must hold of a request to any route.
fn check(request: &Request) -> Result<(), Refused> {
    let headers = request.headers();
    if request.version() >= Version::HTTP_11 && headers.get_all(HOST).iter().count() != 1 {
        return Err(Problem::malformed("HTTP/1.1 demands exactly one header Host").into());
    }
    // hyper takes off the chunks and passes over what else was done to the body.
    let is_chunked = |coding: &HeaderValue| coding.as_bytes().eq_ignore_ascii_case(b"chunked");
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    if codings.next().is_some_and(|first| !is_chunked(first) || codings.next().is_some()) {
        let detail = "no transfer coding but chunked, and that once, is known here; pack a body with Content-Encoding: gzip";
        return Err(Problem::new(501, "unsupported-coding", detail).into());
    }
    if request.uri().path().starts_with("/api/") {
        let kind = if request.uri().path() == watch::PATH { watch::EVENT_STREAM } else { JSON };
        content::check_accept(headers, kind)?;
    }
    // Whoever reads is stopped by the browser itself, because no reply allows other pages to see it.
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    if !reads && origin::is_foreign(headers) {
        let detail = "a web page of another origin may not change counters";
        return Err(Problem::new(403, "cross-origin", detail).into());
    }
    Ok(())
}

/// No route handles OPTIONS, so a route that exists refuses it and says what it allows: that is the answer.
fn options(refused: Response) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    match refused.headers().get(ALLOW) {
        Some(allow) if refused.status() == StatusCode::METHOD_NOT_ALLOWED => {
            response.headers_mut().insert(ALLOW, allow.clone());
            response
        }
        _ => refused,
    }
}

//! What handlers take from a request. Everything comes from outside: it is checked here, and refused with a sentence
//! that names the part and what was expected.

use std::sync::Arc;

use axum::body::{Bytes, HttpBody};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use http_body_util::BodyExt;
use percent_encoding::percent_decode_str;
use quipu_counting::{ID_BYTES_MAX, KEY_BYTES_MAX};
use quipu_wire::json::problem::Problem;
use quipu_wire::json::request::{self, BodyError};
use serde::de::DeserializeOwned;

use super::App;
use super::answer::Refused;
use super::front::REQUEST_ID;
use super::load::Room;
use super::{content, packing};

/// The counter or pattern that the path names: `/api/v1/counters/{this}/...`, any bytes, percent-decoded.
pub struct Name(pub Vec<u8>);

impl<S: Sync> FromRequestParts<S> for Name {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Name, Refused> {
        // The framework's own decoding insists on UTF-8, which a key need not be.
        let segment = parts.uri.path().split('/').nth(4).unwrap_or_default();
        let mut words = parts.uri.path().split('/').skip(3);
        let is_pattern = words.next() == Some("policies") || words.nth(1) == Some("aggregate");
        let what = if is_pattern { "pattern" } else { "key" };
        Ok(Name(decode_name(segment, what).map_err(Problem::malformed)?))
    }
}

/// The bytes of percent-encoded text.
pub fn decode(text: &str) -> Result<Vec<u8>, String> {
    let broken = text.match_indices('%').find(|(at, _)| {
        let digits = text.as_bytes().get(at + 1..at + 3);
        !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    });
    match broken {
        Some((at, _)) => Err(format!("the % at byte {at} is not followed by two hex digits")),
        None => Ok(percent_decode_str(text).collect()),
    }
}

fn decode_name(segment: &str, what: &str) -> Result<Vec<u8>, String> {
    let name = decode(segment).map_err(|problem| format!("the {what} in the path: {problem}"))?;
    if name.is_empty() || name.len() > KEY_BYTES_MAX {
        return Err(format!("a {what} has 1 to {KEY_BYTES_MAX} bytes, not {}", name.len()));
    }
    Ok(name)
}

static IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The id under which a retry is recognized, if the client gave one.
pub struct RequestId(pub Option<HeaderValue>);

impl RequestId {
    /// The id's bytes.
    pub fn bytes(&self) -> Option<&[u8]> {
        self.0.as_ref().map(HeaderValue::as_bytes)
    }
}

impl FromRequestParts<Arc<App>> for RequestId {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<RequestId, Refused> {
        Ok(RequestId(request_id(&parts.headers, app.x_request_id).map_err(Problem::malformed)?))
    }
}

fn request_id(headers: &HeaderMap, x_request_id: bool) -> Result<Option<HeaderValue>, String> {
    let fallback = x_request_id.then_some(&REQUEST_ID);
    let mut chosen = None;
    // Both are checked, also where the first decides: what is wrong today is wrong when the first is left out.
    for name in [&IDEMPOTENCY_KEY].into_iter().chain(fallback) {
        match only(headers, name)? {
            None => {}
            Some(value) if (1..=ID_BYTES_MAX).contains(&value.len()) => chosen = chosen.or(Some(value)),
            Some(value) => {
                let length = value.len();
                return Err(format!("the header {name} must have 1 to {ID_BYTES_MAX} bytes, not {length}"));
            }
        }
    }
    Ok(chosen.cloned())
}

/// The value of a header that may be given once.
pub fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a HeaderValue>, String> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        _ => Err(format!("the header {name} is given more than once")),
    }
}

/// For calls without query parameters: `increment?delta=5` that adds 1 would be worse than an error.
pub struct NoQuery;

impl<S: Sync> FromRequestParts<S> for NoQuery {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<NoQuery, Refused> {
        match parts.uri.query() {
            None | Some("") => Ok(NoQuery),
            Some(query) => {
                let detail = format!("this call takes no query parameters (?{query}); send JSON in the body");
                Err(Problem::malformed(detail).into())
            }
        }
    }
}

/// The body, whole.
pub struct Body {
    bytes: Bytes,
    /// Given back with the body.
    _room: Room,
}

impl Body {
    /// As JSON that must be there.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, BodyError> {
        request::parse(&self.bytes)
    }

    /// As JSON; nothing at all counts as `{}`.
    pub fn parse_or_default<T: DeserializeOwned + Default>(&self) -> Result<T, BodyError> {
        request::parse_or_default(&self.bytes)
    }
}

impl FromRequest<Arc<App>> for Body {
    type Rejection = Refused;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Body, Refused> {
        if request.body().is_end_stream() {
            return Ok(Body { bytes: Bytes::new(), _room: Room::default() });
        }
        content::check_type(request.headers())?;
        let is_packed = packing::is_packed(request.headers())?;
        let limits = &app.load.limits;
        let size = request.body().size_hint();
        // Who announces too much is told before sending it.
        if size.lower() > limits.body_bytes_max as u64 {
            return Err(too_large(limits.body_bytes_max));
        }
        let bytes_max = size.upper().filter(|_| !is_packed).and_then(|upper| usize::try_from(upper).ok());
        let room = app.load.reserve(bytes_max.unwrap_or(limits.body_bytes_max))?;
        let reading = collect(request.into_body(), limits.body_bytes_max);
        match tokio::time::timeout(limits.body_timeout, reading).await {
            Ok(bytes) if is_packed => {
                Ok(Body { bytes: packing::unpack(&bytes?, limits.body_bytes_max)?, _room: room })
            }
            Ok(bytes) => Ok(Body { bytes: bytes?, _room: room }),
            Err(_) => {
                let detail = "the body did not arrive in time; nothing was changed";
                Err(Problem::new(408, "too-slow", detail).into())
            }
        }
    }
}

/// What is asked of the counter that the path names, by a call that may change it. `C` is what the call makes of conditions in headers.
pub struct Ask<C> {
    /// The counter.
    pub key: Vec<u8>,
    /// The id of the request.
    pub id: RequestId,
    /// The condition.
    pub condition: C,
    /// The rest.
    pub body: Body,
}

impl<C> FromRequest<Arc<App>> for Ask<C>
where
    C: FromRequestParts<Arc<App>, Rejection = Refused> + Send,
{
    type Rejection = Refused;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Ask<C>, Refused> {
        let (mut parts, body) = request.into_parts();
        let Name(key) = Name::from_request_parts(&mut parts, app).await?;
        let id = RequestId::from_request_parts(&mut parts, app).await?;
        let condition = C::from_request_parts(&mut parts, app).await?;
        NoQuery::from_request_parts(&mut parts, app).await?;
        let body = Body::from_request(Request::from_parts(parts, body), app).await?;
        Ok(Ask { key, id, condition, body })
    }
}

/// All data of a body. One piece, which is the usual case, is not copied.
async fn collect(mut body: axum::body::Body, bytes_max: usize) -> Result<Bytes, Refused> {
    let mut whole = Bytes::new();
    let mut pieces: Vec<u8> = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Problem::malformed(format!("the body cannot be read: {error}")))?;
        let Ok(piece) = frame.into_data() else { continue };
        if whole.len() + pieces.len() + piece.len() > bytes_max {
            return Err(too_large(bytes_max));
        }
        if whole.is_empty() && pieces.is_empty() {
            whole = piece;
        } else {
            pieces.extend_from_slice(&std::mem::take(&mut whole));
            pieces.extend_from_slice(&piece);
        }
    }
    Ok(if pieces.is_empty() { whole } else { pieces.into() })
}

fn too_large(bytes_max: usize) -> Refused {
    let detail = format!("the body has more than {bytes_max} bytes; send smaller batches");
    Problem::new(413, "too-large", detail).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in pairs {
            map.append(*name, HeaderValue::from_static(value));
        }
        map
    }

    #[test]
    fn names_in_paths() {
        let long = "k".repeat(512);
        let too_long = "k".repeat(513);
        for (segment, expected) in [
            ("likes", Some(&b"likes"[..])),
            ("a%2Fb", Some(b"a/b")),
            ("a%20b+c", Some(b"a b+c")),
            ("%ff%00", Some(&[0xff, 0])),
            ("caf%C3%A9", Some("café".as_bytes())),
            (&long, Some(long.as_bytes())),
            (&too_long, None),
            ("", None),
            ("50%", None),
            ("%4", None),
            ("%zz", None),
        ] {
            assert_eq!(decode_name(segment, "key").ok().as_deref(), expected, "{segment}");
        }
    }

    #[test]
    fn request_ids() {
        let both: &[_] = &[("idempotency-key", "a"), ("x-request-id", "b")];
        for (given, x_request_id, expected) in [
            (&[][..], true, Ok(None)),
            (both, true, Ok(Some("a"))),
            (&both[1..], true, Ok(Some("b"))),
            (&both[1..], false, Ok(None)),
            (&[("idempotency-key", "")], true, Err(())),
            (&[("idempotency-key", "a"), ("idempotency-key", "b")], true, Err(())),
        ] {
            let found = request_id(&headers(given), x_request_id).map_err(drop);
            assert_eq!(
                found,
                expected.map(|id: Option<&str>| id.map(|id| HeaderValue::from_str(id).unwrap())),
                "{given:?}"
            );
        }
        let mut long = HeaderMap::new();
        long.insert("idempotency-key", HeaderValue::from_str(&"i".repeat(256)).unwrap());
        assert!(request_id(&long, true).is_err());
    }
}

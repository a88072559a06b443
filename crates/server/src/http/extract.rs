//! What handlers take from a request. Everything comes from outside: it is checked here, and refused with a sentence
//! that names the part and what was expected.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Bytes, HttpBody};
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::header::{HOST, IF_MATCH, IF_NONE_MATCH, ORIGIN};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use percent_encoding::percent_decode_str;
use quipu_counting::{Condition, ID_BYTES_MAX, KEY_BYTES_MAX};
use quipu_wire::json::problem::Problem;
use quipu_wire::json::request::{self, BodyError};
use serde::de::DeserializeOwned;

use super::answer::Refused;
use super::{App, BODY_BYTES_MAX};

/// How long a client may take to send a body. A megabyte takes seconds on the slowest line one would count over;
/// someone who sends a byte a minute only holds a place.
const BODY_TIMEOUT: Duration = Duration::from_secs(20);

/// The counter or pattern that the path names: `/api/v1/counters/{this}/...`, any bytes, percent-decoded.
pub struct Name(pub Vec<u8>);

impl<S: Sync> FromRequestParts<S> for Name {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Name, Refused> {
        // The framework's own decoding insists on UTF-8, which a key need not be.
        let segment = parts.uri.path().split('/').nth(4).unwrap_or_default();
        Ok(Name(decode_name(segment).map_err(Problem::malformed)?))
    }
}

fn decode(text: &str) -> Result<Vec<u8>, String> {
    let broken = text.match_indices('%').find(|(at, _)| {
        let digits = text.as_bytes().get(at + 1..at + 3);
        !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit))
    });
    match broken {
        Some((at, _)) => Err(format!("the % at byte {at} is not followed by two hex digits")),
        None => Ok(percent_decode_str(text).collect()),
    }
}

fn decode_name(segment: &str) -> Result<Vec<u8>, String> {
    let name = decode(segment).map_err(|problem| format!("the key in the path: {problem}"))?;
    if name.is_empty() || name.len() > KEY_BYTES_MAX {
        return Err(format!("a key has 1 to {KEY_BYTES_MAX} bytes, not {}", name.len()));
    }
    Ok(name)
}

/// The id under which a retry is recognized, if the client gave one.
pub struct RequestId(pub Option<Vec<u8>>);

impl FromRequestParts<Arc<App>> for RequestId {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<RequestId, Refused> {
        Ok(RequestId(request_id(&parts.headers, app.x_request_id).map_err(Problem::malformed)?))
    }
}

fn request_id(headers: &HeaderMap, x_request_id: bool) -> Result<Option<Vec<u8>>, String> {
    let fallback = if x_request_id { Some("x-request-id") } else { None };
    for name in ["idempotency-key"].into_iter().chain(fallback) {
        if let Some(value) = only(headers, &HeaderName::from_static(name))? {
            return match value.len() {
                1..=ID_BYTES_MAX => Ok(Some(value.as_bytes().to_vec())),
                length => Err(format!("the header {name} must have 1 to {ID_BYTES_MAX} bytes, not {length}")),
            };
        }
    }
    Ok(None)
}

fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a HeaderValue>, String> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        _ => Err(format!("the header {name} is given more than once")),
    }
}

/// What `If-Match` and `If-None-Match` demand of the counter before it is changed.
pub struct Precondition(pub Condition);

impl<S: Sync> FromRequestParts<S> for Precondition {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Precondition, Refused> {
        Ok(Precondition(precondition(&parts.headers).map_err(Problem::malformed)?))
    }
}

fn precondition(headers: &HeaderMap) -> Result<Condition, String> {
    let text = |name| Ok::<_, String>(only(headers, &name)?.map(HeaderValue::as_bytes));
    match (text(IF_MATCH)?, text(IF_NONE_MATCH)?) {
        (None, None) => Ok(Condition::Always),
        (Some(b"*"), None) => Ok(Condition::Exists),
        (Some(tag), None) => parse_tag(tag).ok_or_else(|| {
            "the header If-Match must be * or one ETag as a reply gave it, like \"12-7\"".to_owned()
        }),
        (None, Some(b"*")) => Ok(Condition::Absent),
        (None, Some(_)) => Err("the header If-None-Match must be *".to_owned()),
        (Some(_), Some(_)) => Err("If-Match and If-None-Match cannot both hold; send one of them".to_owned()),
    }
}

fn parse_tag(tag: &[u8]) -> Option<Condition> {
    let tag = std::str::from_utf8(tag).ok()?.strip_prefix('"')?.strip_suffix('"')?;
    let (birth, version) = tag.split_once('-')?;
    Some(Condition::Tag { birth: birth.parse().ok()?, version: version.parse().ok()? })
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

/// The query parameters of a call that takes some: names it knows, each at most once, values percent-decoded to any
/// bytes.
#[derive(Debug, PartialEq, Eq)]
pub struct Parameters(Vec<(&'static str, Vec<u8>)>);

impl Parameters {
    /// Reads `query`; a name that is not among `known` is refused rather than ignored.
    pub fn parse(query: Option<&str>, known: &[&'static str]) -> Result<Parameters, Problem> {
        let mut found: Vec<(&'static str, Vec<u8>)> = Vec::new();
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let Some(name) = known.iter().find(|known| **known == name) else {
                let detail =
                    format!("the query parameter {name} is not known here; there are {}", known.join(", "));
                return Err(Problem::malformed(detail));
            };
            if found.iter().any(|(other, _)| other == name) {
                return Err(Problem::malformed(format!(
                    "the query parameter {name} is given more than once"
                )));
            }
            // Forms and most libraries write a blank as a plus.
            let value = decode(&value.replace('+', " "))
                .map_err(|problem| Problem::malformed(format!("the query parameter {name}: {problem}")))?;
            found.push((name, value));
        }
        Ok(Parameters(found))
    }

    /// The bytes of a parameter. One without a value counts as not given.
    pub fn bytes(&self, name: &str) -> Option<&[u8]> {
        let value = self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| &value[..]);
        value.filter(|value| !value.is_empty())
    }

    /// A parameter read by `read`, which returns `None` for what is not `expected`.
    pub fn read<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, Problem> {
        let Some(value) = self.bytes(name) else { return Ok(None) };
        let parsed = std::str::from_utf8(value).ok().and_then(read);
        parsed.map(Some).ok_or_else(|| {
            let shown = String::from_utf8_lossy(value);
            Problem::malformed(format!("the query parameter {name} must be {expected}, not {shown:?}"))
        })
    }
}

/// The body, whole.
pub struct Body(Bytes);

impl Body {
    /// As JSON that must be there.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, BodyError> {
        request::parse(&self.0)
    }

    /// As JSON; nothing at all counts as `{}`.
    pub fn parse_or_default<T: DeserializeOwned + Default>(&self) -> Result<T, BodyError> {
        request::parse_or_default(&self.0)
    }
}

impl<S: Send + Sync> FromRequest<S> for Body {
    type Rejection = Refused;

    async fn from_request(request: Request, state: &S) -> Result<Body, Refused> {
        // Who announces too much is told before sending it.
        if request.body().size_hint().lower() > BODY_BYTES_MAX as u64 {
            return Err(too_large().into());
        }
        let reading = Bytes::from_request(request, state);
        match tokio::time::timeout(BODY_TIMEOUT, reading).await {
            Ok(Ok(bytes)) => Ok(Body(bytes)),
            Ok(Err(rejection)) => Err(unreadable_body(&rejection).into()),
            Err(_) => {
                Err(Problem::new(408, "too-slow", "the body did not arrive in time; nothing was changed")
                    .into())
            }
        }
    }
}

fn unreadable_body(rejection: &BytesRejection) -> Problem {
    match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => too_large(),
        _ => Problem::malformed(rejection.body_text()),
    }
}

fn too_large() -> Problem {
    Problem::new(
        413,
        "too-large",
        format!("the body has more than {BODY_BYTES_MAX} bytes; send smaller batches"),
    )
}

/// A browser on the same machine reaches a loopback port, so any page it shows could count here. Browsers name the
/// page's origin; a write from a page of another host is refused.
pub async fn refuse_foreign_pages(request: Request, next: Next) -> Response {
    let reads = matches!(*request.method(), Method::GET | Method::HEAD);
    if !reads && is_foreign(request.headers()) {
        let detail = "a web page of another origin may not change counters";
        return Refused::from(Problem::new(403, "cross-origin", detail)).into_response();
    }
    next.run(request).await
}

fn is_foreign(headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(ORIGIN) else { return false };
    let host = headers.get(HOST).map(HeaderValue::as_bytes);
    let origin_host =
        origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, host)| host.as_bytes());
    // A name can be made to point at this machine by whoever owns it; an address and `localhost` cannot.
    origin_host.is_none() || origin_host != host || !host.is_some_and(names_this_machine)
}

fn names_this_machine(host: &[u8]) -> bool {
    let Ok(host) = std::str::from_utf8(host) else { return false };
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || address.parse::<std::net::IpAddr>().is_ok()
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
            assert_eq!(decode_name(segment).ok().as_deref(), expected, "{segment}");
        }
    }

    #[test]
    fn query_parameters() {
        let known = ["prefix", "limit"];
        let given = Parameters::parse(Some("prefix=a%2F%ff+b&limit=5"), &known).unwrap();
        assert_eq!(given.bytes("prefix"), Some(&b"a/\xff b"[..]));
        assert_eq!(given.read("limit", "a number", |text| text.parse::<u8>().ok()).unwrap(), Some(5));
        assert!(given.read("prefix", "a number", |text| text.parse::<u8>().ok()).is_err());
        for nothing in [None, Some(""), Some("&"), Some("prefix"), Some("prefix=")] {
            assert_eq!(Parameters::parse(nothing, &known).unwrap().bytes("prefix"), None);
        }
        for refused in ["limt=5", "limit=1&limit=1", "prefix=%", "=", "prefix=%4"] {
            assert!(Parameters::parse(Some(refused), &known).is_err(), "{refused}");
        }
    }

    #[test]
    fn request_ids() {
        let both: &[_] = &[("idempotency-key", "a"), ("x-request-id", "b")];
        for (given, x_request_id, expected) in [
            (&[][..], true, Ok(None)),
            (both, true, Ok(Some(b"a".to_vec()))),
            (&both[1..], true, Ok(Some(b"b".to_vec()))),
            (&both[1..], false, Ok(None)),
            (&[("idempotency-key", "")], true, Err(())),
            (&[("idempotency-key", "a"), ("idempotency-key", "b")], true, Err(())),
        ] {
            assert_eq!(request_id(&headers(given), x_request_id).map_err(drop), expected, "{given:?}");
        }
        let mut long = HeaderMap::new();
        long.insert("idempotency-key", HeaderValue::from_str(&"i".repeat(256)).unwrap());
        assert!(request_id(&long, true).is_err());
    }

    #[test]
    fn preconditions() {
        for (given, expected) in [
            (&[][..], Ok(Condition::Always)),
            (&[("if-match", "\"12-7\"")], Ok(Condition::Tag { birth: 12, version: 7 })),
            (&[("if-match", "*")], Ok(Condition::Exists)),
            (&[("if-none-match", "*")], Ok(Condition::Absent)),
            (&[("if-none-match", "\"12-7\"")], Err(())),
            (&[("if-match", "12-7")], Err(())),
            (&[("if-match", "W/\"12-7\"")], Err(())),
            (&[("if-match", "\"1-1\", \"2-2\"")], Err(())),
            (&[("if-match", "*"), ("if-none-match", "*")], Err(())),
        ] {
            assert_eq!(precondition(&headers(given)).map_err(drop), expected, "{given:?}");
        }
    }

    #[test]
    fn foreign_pages() {
        for (given, foreign) in [
            (&[("host", "localhost:7070")][..], false),
            (&[("host", "localhost:7070"), ("origin", "http://localhost:7070")], false),
            (&[("host", "localhost:7070"), ("origin", "https://example.com")], true),
            (&[("host", "localhost:7070"), ("origin", "null")], true),
            (&[("origin", "https://example.com")], true),
            (&[("host", "127.0.0.1:7070"), ("origin", "http://127.0.0.1:7070")], false),
            (&[("host", "[::1]:7070"), ("origin", "http://[::1]:7070")], false),
            (&[("host", "evil.example:7070"), ("origin", "http://evil.example:7070")], true),
        ] {
            assert_eq!(is_foreign(&headers(given)), foreign, "{given:?}");
        }
    }
}

//! Which forms of content are understood and can be given: `Content-Type` and `Accept`.

use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue};
use quipu_wire::json::problem::Problem;

use super::answer::Refused;

/// What nearly all bodies are, of requests and of replies.
pub const JSON: &str = "application/json";

/// Whether a body of this type can be JSON. Without a type it is taken for JSON, and so is what `curl -d` sends as a
/// form: the body itself is read strictly.
pub fn check_type(headers: &HeaderMap) -> Result<(), Refused> {
    let Some(value) = headers.get(CONTENT_TYPE) else { return Ok(()) };
    if value == "application/json" || is_json(value) {
        return Ok(());
    }
    let shown = String::from_utf8_lossy(value.as_bytes());
    let detail = format!("the body is {shown}; send JSON in UTF-8 (Content-Type: application/json)");
    Err(Problem::new(415, "unsupported-media-type", detail).into())
}

fn is_json(value: &HeaderValue) -> bool {
    let Ok(text) = value.to_str() else { return false };
    let mut parts = text.split(';').map(str::trim);
    let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
    let charset = parts
        .find_map(|parameter| parameter.to_ascii_lowercase().strip_prefix("charset=").map(str::to_owned));
    let is_utf8 =
        charset.is_none_or(|charset| matches!(charset.trim_matches('"'), "utf-8" | "utf8" | "us-ascii"));
    let is_json = matches!(&kind[..], "application/json" | "text/json" | "application/x-www-form-urlencoded")
        || kind.starts_with("application/") && kind.ends_with("+json");
    is_json && is_utf8
}

/// Whether the caller takes a reply of this type.
pub fn check_accept(headers: &HeaderMap, wanted: &str) -> Result<(), Refused> {
    let mut ranges = headers.get_all(ACCEPT).iter().peekable();
    if ranges.peek().is_none() || ranges.any(|value| takes(value, wanted)) {
        return Ok(());
    }
    let detail = format!("replies are {wanted}, which the header Accept excludes");
    Err(Problem::new(406, "not-acceptable", detail).into())
}

fn takes(value: &HeaderValue, wanted: &str) -> bool {
    // A header nobody understands is no reason to refuse.
    let Ok(text) = value.to_str() else { return true };
    text.trim().is_empty() || text.split(',').any(|range| range_takes(range, wanted))
}

fn range_takes(range: &str, wanted: &str) -> bool {
    let mut parts = range.split(';').map(str::trim);
    let kind = parts.next().unwrap_or_default();
    let excluded = parts.any(|parameter| {
        let weight = parameter.strip_prefix("q=").or(parameter.strip_prefix("Q="));
        weight.is_some_and(|weight| weight.parse::<f32>().is_ok_and(|weight| weight == 0.0))
    });
    let family = wanted.split('/').next().unwrap_or_default();
    let fits = kind == "*/*"
        || kind.eq_ignore_ascii_case(wanted)
        || kind.strip_suffix("/*").is_some_and(|of| of.eq_ignore_ascii_case(family))
        || wanted == JSON && kind.to_ascii_lowercase().ends_with("+json");
    fits && !excluded
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        let mut map = HeaderMap::new();
        map.insert(name, HeaderValue::from_str(value).unwrap());
        map
    }

    #[test]
    fn types_of_bodies() {
        assert!(check_type(&HeaderMap::new()).is_ok());
        for (kind, understood) in [
            ("application/json", true),
            ("Application/JSON; charset=UTF-8", true),
            ("application/json;charset=\"utf-8\"", true),
            ("application/merge-patch+json", true),
            ("application/x-www-form-urlencoded", true),
            ("application/json; charset=utf-16", false),
            ("text/plain", false),
            ("multipart/form-data; boundary=x", false),
            ("application/xml", false),
            ("", false),
        ] {
            assert_eq!(check_type(&headers("content-type", kind)).is_ok(), understood, "{kind}");
        }
    }

    #[test]
    fn types_of_replies() {
        assert!(check_accept(&HeaderMap::new(), JSON).is_ok());
        for (accept, takes) in [
            ("*/*", true),
            ("", true),
            ("application/json", true),
            ("application/problem+json", true),
            ("text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", true),
            ("application/*;q=0.5, text/html", true),
            ("text/html", false),
            ("application/json;q=0", false),
            ("application/xml, text/*", false),
        ] {
            assert_eq!(check_accept(&headers("accept", accept), JSON).is_ok(), takes, "{accept}");
        }
        for (accept, takes) in
            [("text/event-stream", true), ("text/*", true), ("*/*", true), ("application/json", false)]
        {
            let taken = check_accept(&headers("accept", accept), "text/event-stream");
            assert_eq!(taken.is_ok(), takes, "{accept}");
        }
    }
}

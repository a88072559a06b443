//! `/docs`: the API described for people. One page, one style and one script, all in the binary, so that it works on a
//! machine that reaches nothing else.

use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderValue, StatusCode};
use axum::response::IntoResponse;

use super::answer::Answer;
use super::extract::NoQuery;

/// Nothing but what this server gives, and nothing inline.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub async fn page(NoQuery: NoQuery) -> Answer {
    file("text/html; charset=utf-8", include_str!("docs/page.html"))
}

pub async fn style(NoQuery: NoQuery) -> Answer {
    file("text/css; charset=utf-8", include_str!("docs/style.css"))
}

pub async fn script(NoQuery: NoQuery) -> Answer {
    file("text/javascript; charset=utf-8", include_str!("docs/page.js"))
}

fn file(kind: &'static str, text: &'static str) -> Answer {
    let headers = [
        (CONTENT_TYPE, HeaderValue::from_static(kind)),
        (CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        // Another version of the server may have another page.
        (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    Ok((StatusCode::OK, headers, text).into_response())
}

//! Web pages of other origins. A browser on the same machine reaches a loopback port, so any page it shows could count
//! here. Browsers name the page's origin; a write from a page of another host is refused.

use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, HeaderValue};

/// Whether a web page that is not ours asks.
pub fn is_foreign(headers: &HeaderMap) -> bool {
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

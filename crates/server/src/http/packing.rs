//! gzip: large replies for those who take it, and bodies of requests that come packed.
//!
//! A reply about one counter is smaller than the head that would say how it is packed; it passes by here untouched. A
//! body that unpacks to more than a body may have is refused as soon as that shows: a small bomb takes no more than
//! its limit.

use std::io::{Read, Write};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_LENGTH, VARY};
use axum::http::{HeaderMap, HeaderValue};
use axum::response::Response;
use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;
use http_body_util::BodyExt;
use quipu_wire::json::problem::Problem;

use super::answer::Refused;

/// Smaller replies fit into a few packets anyway.
const PACK_BYTES_MIN: u64 = 4 << 10;
/// Above this, packing takes milliseconds, for which nobody else on the thread shall wait.
const PACK_INLINE_BYTES_MAX: usize = 64 << 10;

/// Packs the reply if that is worth it and `accepts` it.
pub async fn pack(mut response: Response, accepts: bool) -> Response {
    let is_large = response.body().size_hint().exact().is_some_and(|size| size >= PACK_BYTES_MIN);
    if !is_large || response.headers().contains_key(CONTENT_ENCODING) {
        return response;
    }
    response.headers_mut().append(VARY, HeaderValue::from_static("accept-encoding"));
    if !accepts {
        return response;
    }
    let body = std::mem::take(response.body_mut());
    // A body of known size is there as a whole, and cannot fail.
    let Ok(collected) = body.collect().await else { return response };
    let plain = collected.to_bytes();
    let packed = if plain.len() <= PACK_INLINE_BYTES_MAX {
        gzip(&plain)
    } else {
        let plain = plain.clone();
        tokio::task::spawn_blocking(move || gzip(&plain)).await.unwrap_or_default()
    };
    if packed.is_empty() {
        *response.body_mut() = Body::from(plain);
        return response;
    }
    response.headers_mut().remove(CONTENT_LENGTH);
    response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    *response.body_mut() = Body::from(packed);
    response
}

/// Empty if it cannot be done, for which writing into memory has no reason.
fn gzip(plain: &[u8]) -> Vec<u8> {
    // Replies repeat the names of their fields; the fastest level finds that as well as the others.
    let mut encoder = GzEncoder::new(Vec::with_capacity(plain.len() / 4), Compression::fast());
    encoder.write_all(plain).and_then(|()| encoder.finish()).unwrap_or_default()
}

/// Whether a client takes replies packed with gzip.
pub fn accepts_gzip(headers: &HeaderMap) -> bool {
    let mut any = None;
    for element in headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok()) {
        for coding in element.split(',') {
            let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
            let weight = weight.trim().strip_prefix("q=").unwrap_or("1");
            let is_wanted = weight.trim().parse::<f32>().is_ok_and(|weight| weight > 0.0);
            match name.trim() {
                name if name.eq_ignore_ascii_case("gzip") || name.eq_ignore_ascii_case("x-gzip") => {
                    return is_wanted;
                }
                "*" => any = Some(is_wanted),
                _ => {}
            }
        }
    }
    any.unwrap_or(false)
}

/// Whether the body of a request is packed.
pub fn is_packed(headers: &HeaderMap) -> Result<bool, Refused> {
    let Some(coding) = headers.get(CONTENT_ENCODING) else { return Ok(false) };
    let coding = coding.as_bytes();
    if coding.eq_ignore_ascii_case(b"identity") {
        return Ok(false);
    }
    if coding.eq_ignore_ascii_case(b"gzip") || coding.eq_ignore_ascii_case(b"x-gzip") {
        return Ok(true);
    }
    let shown = String::from_utf8_lossy(coding);
    let detail = format!("the body is packed as {shown}; send it as it is, or packed with gzip");
    Err(Problem::new(415, "unsupported-encoding", detail).into())
}

/// The body as it was before it was packed, if it has at most `bytes_max` bytes.
pub fn unpack(packed: &[u8], bytes_max: usize) -> Result<Bytes, Refused> {
    let mut plain = Vec::new();
    let limit = bytes_max as u64 + 1;
    if let Err(error) = MultiGzDecoder::new(packed).take(limit).read_to_end(&mut plain) {
        return Err(Problem::malformed(format!("the body is not whole and right gzip: {error}")).into());
    }
    if plain.len() > bytes_max {
        let detail = format!("unpacked, the body has more than {bytes_max} bytes; send smaller batches");
        return Err(Problem::new(413, "too-large", detail).into());
    }
    Ok(plain.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_gzip() {
        for (accept, takes) in [
            ("gzip", true),
            ("gzip, deflate, br", true),
            ("deflate, GZIP;q=0.5", true),
            ("br;q=1.0, *;q=0.1", true),
            ("x-gzip", true),
            ("", false),
            ("br", false),
            ("gzip;q=0", false),
            ("*, gzip; q=0", false),
            ("*;q=0", false),
            ("identity", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static(accept));
            assert_eq!(accepts_gzip(&headers), takes, "{accept}");
        }
        assert!(!accepts_gzip(&HeaderMap::new()));
    }

    #[test]
    fn a_bomb_takes_no_more_than_its_limit() {
        let bomb = gzip(&vec![b' '; 64 << 20]);
        assert!(bomb.len() < 1 << 20);
        assert_eq!(unpack(&bomb, 1 << 20).unwrap_err().problem().status, 413);
        assert_eq!(unpack(&gzip(b"{}"), 2).unwrap(), "{}");
        assert_eq!(unpack(&[gzip(b"{"), gzip(b"}")].concat(), 2).unwrap(), "{}");
        assert_eq!(unpack(&gzip(b"{}"), 1).unwrap_err().problem().status, 413);
        for broken in [&b"{}"[..], b"", &gzip(b"{}")[..15]] {
            assert_eq!(unpack(broken, 1 << 20).unwrap_err().problem().status, 400);
        }
    }
}

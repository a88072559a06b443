//! One JSON object a line.

use std::io::{self, BufRead, Read};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use quipu_wire::json::request::Integer;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::rows::{BODY_ROW_BYTES_MAX, Fields, Row, RowBody, expires_at};
use crate::cli::counter::time_ms;

/// The rows of an NDJSON file.
pub struct NdjsonRows {
    input: Box<dyn BufRead>,
    text: Vec<u8>,
    line: u64,
}

/// A row. What is not known is refused by name: a misspelled `ttlMs` would make counters that last for ever.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Object {
    #[serde(alias = "counterKey")]
    key: Option<String>,
    key_base64: Option<String>,
    value: Integer,
    ttl_ms: Option<u64>,
    expires_at: Option<Time>,
    /// As replies say it beside an `expiresAt` that cannot.
    expires_at_ms: Option<u64>,
    /// What it has beyond its numbers, in base64; then it counts what `kind` says, and `updatedAt` counts too.
    body: Option<String>,
    kind: Option<String>,
    updated_at: Option<String>,
    // What follows is passed over; see `rows::PASSED_OVER`.
    #[serde(rename = "version")]
    _version: Option<IgnoredAny>,
    #[serde(rename = "valueText")]
    _value_text: Option<IgnoredAny>,
    #[serde(rename = "exists")]
    _exists: Option<IgnoredAny>,
    #[serde(rename = "mode")]
    _mode: Option<IgnoredAny>,
    #[serde(rename = "exact")]
    _exact: Option<IgnoredAny>,
    #[serde(rename = "standardError")]
    _standard_error: Option<IgnoredAny>,
    #[serde(rename = "hasBody")]
    has_body: Option<bool>,
    #[serde(rename = "stalenessMs")]
    _staleness_ms: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "expected expiresAt as RFC 3339 text, or milliseconds since 1970")]
enum Time {
    Ms(u64),
    Text(String),
}

impl NdjsonRows {
    /// Reads lines.
    pub fn new(input: Box<dyn BufRead>) -> NdjsonRows {
        NdjsonRows { input, text: Vec::new(), line: 0 }
    }

    /// Where the row that was read last stands.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Puts the next one into `row`.
    pub fn next(&mut self, row: &mut Row) -> io::Result<Option<Result<(), String>>> {
        loop {
            self.text.clear();
            self.line += 1;
            let limit = BODY_ROW_BYTES_MAX as u64 + 1;
            let count = (&mut self.input).take(limit).read_until(b'\n', &mut self.text)?;
            if count == 0 {
                return Ok(None);
            }
            if count as u64 == limit && self.text.last() != Some(&b'\n') {
                self.input.skip_until(b'\n')?;
                let reason = format!("longer than {BODY_ROW_BYTES_MAX} bytes; is a line end missing?");
                return Ok(Some(Err(reason)));
            }
            let text = self.text.trim_ascii();
            if !text.is_empty() {
                return Ok(Some(convert(text, row)));
            }
        }
    }
}

fn convert(text: &[u8], row: &mut Row) -> Result<(), String> {
    if text.first() != Some(&b'{') {
        return Err("a JSON object like {\"key\":\"a\",\"value\":1} is expected".to_owned());
    }
    let object: Object = serde_json::from_slice(text).map_err(|error| {
        let text = error.to_string();
        match text.split_once(", expected one of") {
            Some((what, _)) => format!("{what}; there are key, keyBase64, value, ttlMs, expiresAt and body"),
            // It names the line of this one text; only the column helps.
            None => text.replace(" at line 1 column", " at column"),
        }
    })?;
    let fields = Fields {
        key: object.key.as_deref().map(str::as_bytes),
        key_base64: object.key_base64.as_deref().map(str::as_bytes),
        ttl_ms: object.ttl_ms,
        expires_at_ms: match (&object.expires_at_ms, &object.expires_at) {
            (None, None) => None,
            (Some(at_ms), _) | (None, Some(Time::Ms(at_ms))) => Some(expires_at(&at_ms.to_string())?),
            (None, Some(Time::Text(text))) => Some(expires_at(text)?),
        },
    };
    fields.fill(row, object.value.0)?;
    let is_more = object.has_body == Some(true) || object.kind.as_deref().is_some_and(|kind| kind != "sum");
    row.body = match &object.body {
        Some(body) => Some(RowBody {
            bytes: STANDARD.decode(body).map_err(|error| format!("body: {error}"))?,
            updated_at_ms: object.updated_at.as_deref().and_then(time_ms).unwrap_or(u64::MAX),
        }),
        None if is_more => {
            return Err(
                "the counter is more than its number, and `body` is missing; `quipu export` writes it"
                    .to_owned(),
            );
        }
        None => None,
    };
    Ok(())
}

//! One JSON object a line.

use std::io::{self, BufRead, Read};

use quipu_wire::json::request::Integer;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::rows::{Fields, ROW_BYTES_MAX, Row, expires_at};

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
    // What follows is passed over; see `rows::PASSED_OVER`.
    #[serde(rename = "version")]
    _version: Option<IgnoredAny>,
    #[serde(rename = "updatedAt")]
    _updated_at: Option<IgnoredAny>,
    #[serde(rename = "valueText")]
    _value_text: Option<IgnoredAny>,
    #[serde(rename = "exists")]
    _exists: Option<IgnoredAny>,
    #[serde(rename = "kind")]
    _kind: Option<IgnoredAny>,
    #[serde(rename = "mode")]
    _mode: Option<IgnoredAny>,
    #[serde(rename = "exact")]
    _exact: Option<IgnoredAny>,
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
            let limit = ROW_BYTES_MAX as u64 + 1;
            let count = (&mut self.input).take(limit).read_until(b'\n', &mut self.text)?;
            if count == 0 {
                return Ok(None);
            }
            if count as u64 == limit && self.text.last() != Some(&b'\n') {
                self.input.skip_until(b'\n')?;
                return Ok(Some(Err(format!("longer than {ROW_BYTES_MAX} bytes; is a line end missing?"))));
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
            Some((what, _)) => format!("{what}; there are key, keyBase64, value, ttlMs and expiresAt"),
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
    fields.fill(row, object.value.0)
}

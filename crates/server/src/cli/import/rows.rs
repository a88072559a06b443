//! Rows as files give them: a key, a value, perhaps an expiry. What is no row says why, with its line.

use std::io::{self, BufRead};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use quipu_counting::KEY_BYTES_MAX;

use super::csv::CsvRows;
use super::ndjson::NdjsonRows;
use crate::cli::counter::time_ms;
use crate::cli::export::Format;

/// The longest row. The longest key takes 512 bytes, six times that where each is written as an escape in JSON; the
/// rest is room for columns we pass over. It bounds what a missing quote or line end makes us hold.
pub const ROW_BYTES_MAX: usize = 64 * 1024;
/// The longest row with a `body`: 8 MiB in base64, and the rest.
pub const BODY_ROW_BYTES_MAX: usize = 11 << 20;

/// Fields that an export, or a reply of the API, holds beside those that are imported.
pub const PASSED_OVER: &[&str] =
    &["version", "updatedAt", "valueText", "exists", "kind", "mode", "exact", "stalenessMs"];

/// What a counter has beyond its numbers, and when it last changed.
#[derive(Debug, PartialEq, Eq)]
pub struct RowBody {
    /// As it is stored.
    pub bytes: Vec<u8>,
    /// In UTC milliseconds.
    pub updated_at_ms: u64,
}

/// One counter.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Where it begins in the file, counted from 1.
    pub line: u64,
    /// Whose value it is.
    pub key: Vec<u8>,
    /// What to set, or to add.
    pub value: i64,
    /// When the counter ceases to exist.
    pub expiry: Expiry,
    /// What else it has, if it is more than a number.
    pub body: Option<RowBody>,
}

/// When a counter ceases to exist.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Expiry {
    /// Nothing is said.
    #[default]
    Never,
    /// So many milliseconds after the import.
    In(u64),
    /// At this UTC millisecond.
    At(u64),
}

/// Why a line is no row.
#[derive(Debug, PartialEq, Eq)]
pub struct BadRow {
    /// Where it begins in the file, counted from 1.
    pub line: u64,
    /// What is wrong, and what was expected.
    pub reason: String,
}

/// The rows of a file.
pub enum Rows {
    /// Under a header.
    Csv(Box<CsvRows>),
    /// An object a line.
    Ndjson(NdjsonRows),
}

impl Rows {
    /// Reads `input`, whose format is known.
    pub fn new(format: Format, input: Box<dyn BufRead>) -> io::Result<Result<Rows, BadRow>> {
        Ok(match format {
            Format::Csv => CsvRows::new(input)?.map(|rows| Rows::Csv(Box::new(rows))),
            Format::Ndjson => Ok(Rows::Ndjson(NdjsonRows::new(input))),
        })
    }

    /// Puts the next one into `row`; `None` at the end.
    pub fn next(&mut self, row: &mut Row) -> io::Result<Option<Result<(), BadRow>>> {
        let (read, line) = match self {
            Rows::Csv(rows) => (rows.next(row)?, rows.line()),
            Rows::Ndjson(rows) => (rows.next(row)?, rows.line()),
        };
        row.line = line;
        Ok(read.map(|read| read.map_err(|reason| BadRow { line, reason })))
    }
}

/// The fields of a row, before they make sense together.
#[derive(Debug, Default)]
pub struct Fields<'a> {
    /// A key that is text, or at least bytes.
    pub key: Option<&'a [u8]>,
    /// Any key.
    pub key_base64: Option<&'a [u8]>,
    /// In milliseconds.
    pub ttl_ms: Option<u64>,
    /// At a UTC millisecond.
    pub expires_at_ms: Option<u64>,
}

impl Fields<'_> {
    /// Puts them into `row`, if they make one.
    pub fn fill(&self, row: &mut Row, value: i64) -> Result<(), String> {
        row.key.clear();
        match (self.key, self.key_base64) {
            (Some(key), None) => row.key.extend_from_slice(key),
            (None, Some(text)) => {
                STANDARD.decode_vec(text, &mut row.key).map_err(|error| format!("keyBase64: {error}"))?
            }
            (Some(_), Some(_)) => return Err("both key and keyBase64 are given".to_owned()),
            (None, None) => return Err("the key is missing".to_owned()),
        }
        if row.key.is_empty() || row.key.len() > KEY_BYTES_MAX {
            return Err(format!("key: a key has 1 to {KEY_BYTES_MAX} bytes, not {}", row.key.len()));
        }
        row.value = value;
        row.body = None;
        row.expiry = match (self.ttl_ms, self.expires_at_ms) {
            (None, None) => Expiry::Never,
            (Some(0), None) => return Err("ttlMs: must be at least 1".to_owned()),
            (Some(ttl_ms), None) => Expiry::In(ttl_ms),
            (None, Some(at_ms)) => Expiry::At(at_ms),
            (Some(_), Some(_)) => return Err("both ttlMs and expiresAt are given".to_owned()),
        };
        Ok(())
    }
}

/// A time as text: RFC 3339, or milliseconds since 1970.
pub fn expires_at(text: &str) -> Result<u64, String> {
    let text = text.trim();
    text.parse().ok().or_else(|| time_ms(text)).filter(|at_ms| *at_ms > 0).ok_or_else(|| {
        format!("expiresAt: {text:?} is no time like 2026-02-23T08:15:30Z, or milliseconds since 1970")
    })
}

#[cfg(test)]
mod tests {
    use super::{BODY_ROW_BYTES_MAX, BadRow, Expiry, Format, ROW_BYTES_MAX, Row, Rows};
    use std::io::Cursor;

    /// Every row, as `line key value expiry` or `line: reason`.
    fn read(format: Format, text: &[u8]) -> Vec<String> {
        let shown = |BadRow { line, reason }| format!("{line}: {reason}");
        let mut rows = match Rows::new(format, Box::new(Cursor::new(text.to_vec()))).unwrap() {
            Ok(rows) => rows,
            Err(bad) => return vec![shown(bad)],
        };
        let (mut row, mut found) = (Row::default(), Vec::new());
        while let Some(read) = rows.next(&mut row).unwrap() {
            let key = row.key.escape_ascii();
            let expiry = match row.expiry {
                Expiry::Never => String::new(),
                Expiry::In(ms) => format!(" in {ms}"),
                Expiry::At(ms) => format!(" at {ms}"),
            };
            let more =
                row.body.as_ref().map_or_else(String::new, |body| format!(" with {} more", body.bytes.len()));
            found.push(
                read.map_or_else(shown, |()| format!("{} {key} {}{expiry}{more}", row.line, row.value)),
            );
        }
        found
    }

    #[test]
    fn csv() {
        for (text, expected) in [
            ("key,value\na,1\nb,-2\n", &["2 a 1", "3 b -2"][..]),
            ("key,value\r\na,1\r\n\r\nb, 2 ", &["2 a 1", "4 b 2"]),
            ("\n\nkey,value\n\na,1\n", &["5 a 1"]),
            ("value,key\n+1,a\n", &["2 a 1"]),
            ("Key,VALUE,ttl_ms\na,1,500\nb,1,\n", &["2 a 1 in 500", "3 b 1"]),
            (
                "key,value,expiresAt\na,1,1970-01-01T00:00:01Z\nb,1,2000\n",
                &["2 a 1 at 1000", "3 b 1 at 2000"],
            ),
            ("key,keyBase64,value,version,updatedAt\n,/wA=,1,9,x\n", &["2 \\xff\\x00 1"]),
            ("key,value\n\"a,\"\"b\"\"\nc\",1\nd,2\n", &["2 a,\\\"b\\\"\\nc 1", "4 d 2"]),
            ("key,value\n", &[]),
            ("", &["1: the file is empty"]),
            (
                "key,value\na\nb,1,2\nc,1\n",
                &["2: 1 fields, where the header names 2", "3: 3 fields, where the header names 2", "4 c 1"],
            ),
            (
                "key,value\n,1\na,\na,x\na,1.5\na,9223372036854775808\n",
                &[
                    "2: the key is missing",
                    "3: the value is missing",
                    "4: value: \"x\" is not a whole number in range",
                    "5: value: \"1.5\" is not a whole number in range",
                    "6: value: \"9223372036854775808\" is not a whole number in range",
                ],
            ),
            (
                "key,keyBase64,value\na,YQ==,1\n,!,1\n",
                &["2: both key and keyBase64 are given", "3: keyBase64: Invalid symbol 33, offset 0."],
            ),
            (
                "key,value,ttlMs,expiresAt\na,1,5,5\na,1,0,\na,1,-5,\na,1,,soon\n",
                &[
                    "2: both ttlMs and expiresAt are given",
                    "3: ttlMs: must be at least 1",
                    "4: ttlMs: \"-5\" is not a whole number in range",
                    "5: expiresAt: \"soon\" is no time like 2026-02-23T08:15:30Z, or milliseconds since 1970",
                ],
            ),
        ] {
            assert_eq!(read(Format::Csv, text.as_bytes()), expected, "{text:?}");
        }
        for (text, reason) in [
            ("likes,5\n", "there is no column \"likes\""),
            ("key,value,ttl\n", "there is no column \"ttl\""),
            ("key,delta\n", "there is no column \"delta\""),
            ("key,ttlMs\n", "found \"key,ttlMs\""),
            ("key,value,value\n", "mean the same"),
        ] {
            let refused = &read(Format::Csv, text.as_bytes())[0];
            assert!(
                refused.starts_with("1: the first line names the columns") && refused.contains(reason),
                "{refused}"
            );
        }
    }

    #[test]
    fn ndjson() {
        for (text, expected) in [
            (r#"{"key":"a","value":1}"#, &["1 a 1"][..]),
            (
                "\n{\"key\":\"a\",\"value\":\"-7\"}\r\n\n{\"value\":2,\"counterKey\":\"b\"}\n",
                &["2 a -7", "4 b 2"],
            ),
            (r#"{"key":"\u0000\"","value":1,"ttlMs":9}"#, &["1 \\x00\\\" 1 in 9"]),
            (
                r#"{"keyBase64":"/w==","value":1,"expiresAt":5,"version":1,"exists":true}"#,
                &["1 \\xff 1 at 5"],
            ),
            (r#"{"key":"a","value":1,"expiresAt":"1970-01-01T00:00:01+00:00"}"#, &["1 a 1 at 1000"]),
            (
                r#"{"key":"a","value":1,"expiresAt":"9999-12-31T23:59:59.999Z","expiresAtMs":253402300800000}"#,
                &["1 a 1 at 253402300800000"],
            ),
            (r#"{"key":"a","value":1,"expiresAt":null,"ttlMs":null}"#, &["1 a 1"]),
            (r#"["a",1]"#, &["1: a JSON object like {\"key\":\"a\",\"value\":1} is expected"]),
            (r#"{"key":"a"}"#, &["1: missing field `value` at column 11"]),
            (
                "{\"key\":\"a\",\"value\":1.5}\n{\"key\":\"a\",\"value\":1}",
                &[
                    "1: invalid value: floating point `1.5`, expected a whole number from -2^63 to 2^63-1, plain or as a string at column 22",
                    "2 a 1",
                ],
            ),
            (r#"{"key":"","value":1}"#, &["1: key: a key has 1 to 512 bytes, not 0"]),
            (r#"{"key":"a","value":1,"kind":"window","body":"AA=="}"#, &["1 a 1 with 1 more"]),
            (
                r#"{"key":"a","value":1,"kind":"unique"}"#,
                &["1: the counter is more than its number, and `body` is missing; `quipu export` writes it"],
            ),
            (r#"{"key":"a","value":1,"body":"!"}"#, &["1: body: Invalid symbol 33, offset 0."]),
            ("", &[]),
        ] {
            assert_eq!(read(Format::Ndjson, text.as_bytes()), expected, "{text:?}");
        }
        let unknown = &read(Format::Ndjson, br#"{"key":"a","value":1,"ttl":5}"#)[0];
        assert_eq!(
            unknown,
            "1: unknown field `ttl`; there are key, keyBase64, value, ttlMs, expiresAt and body"
        );
    }

    /// What is too long is passed over in pieces, and the line behind it is read as if nothing had been.
    #[test]
    fn rows_without_end_are_bad_rows() {
        let long = "x".repeat(3 * ROW_BYTES_MAX);
        let csv = format!("key,value\n{long},1\na,1\n");
        assert_eq!(
            read(Format::Csv, csv.as_bytes()),
            ["2: longer than 65536 bytes or 256 fields; is a quote or a line end missing?", "3 a 1",]
        );
        let unbalanced = format!("key,value\n\"a,1\n{}", "b,1\n".repeat(ROW_BYTES_MAX));
        assert_eq!(read(Format::Csv, unbalanced.as_bytes()).len(), 1);
        let wide = format!("key,value\n{}\na,1\n", ",".repeat(1000));
        assert_eq!(read(Format::Csv, wide.as_bytes())[1], "3 a 1");
        let long = "x".repeat(BODY_ROW_BYTES_MAX);
        let ndjson = format!("{{\"key\":\"{long}\"}}\n{{\"key\":\"a\",\"value\":1}}\n");
        assert_eq!(
            read(Format::Ndjson, ndjson.as_bytes()),
            ["1: longer than 11534336 bytes; is a line end missing?", "2 a 1"]
        );
    }
}

//! Schemas of values that Rust's types do not describe: what a number, a key or an id looks like in JSON.
//!
//! They say what the readers in `request` accept, neither more nor less, so that clients and tests made from
//! `/openapi.json` agree with the server. (A length counts characters there and bytes here: of a key of 512 characters
//! that are not ASCII the server still says no.)

use std::borrow::Cow;

use quipu_counting::hold::TTL_MS_MAX;
use quipu_counting::told::REASON_BYTES_MAX;
use quipu_counting::{ID_BYTES_MAX, KEY_BYTES_MAX};
use serde_json::{Value, json};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;
use utoipa::{PartialSchema, ToSchema};

/// Whole numbers from -2^63 to 2^63-1 as text: no sign `+`, no zeros in front.
const INTEGER_PATTERN: &str = concat!(
    "^(0|-?[1-9][0-9]{0,17}|-?[1-8][0-9]{18}|-?9[01][0-9]{17}|-?92[01][0-9]{16}|-?922[0-2][0-9]{15}|",
    "-?9223[0-2][0-9]{14}|-?92233[0-6][0-9]{13}|-?922337[01][0-9]{12}|-?92233720[0-2][0-9]{10}|",
    "-?922337203[0-5][0-9]{9}|-?9223372036[0-7][0-9]{8}|-?92233720368[0-4][0-9]{7}|-?922337203685[0-3][0-9]{6}|",
    "-?9223372036854[0-6][0-9]{5}|-?92233720368547[0-6][0-9]{4}|-?922337203685477[0-4][0-9]{3}|",
    "-?9223372036854775[0-7][0-9]{2}|-?922337203685477580[0-7]|-9223372036854775808)$"
);

/// Standard base64 with its padding, and no bits set that mean nothing.
const BASE64_PATTERN: &str = concat!(
    "^(([A-Za-z0-9+/]{4}){0,169}([A-Za-z0-9+/]{4}|[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)|",
    // 170 groups of three bytes leave two for the longest key.
    "([A-Za-z0-9+/]{4}){170}([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=))$"
);
const _: () = assert!(KEY_BYTES_MAX == 170 * 3 + 2);

/// The same of any length.
const ANY_BASE64_PATTERN: &str =
    "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$";

/// A duration that is not nothing. (More digits than these are understood too, as far as they fit 64 bits.)
pub const DURATION_PATTERN: &str = "^[0-9]{0,2}[1-9][0-9]{0,6} *(ms|s|m|min|h|d)$";

/// Characters of base64 for the longest key.
const BASE64_LENGTH_MAX: usize = KEY_BYTES_MAX.div_ceil(3) * 4;

/// Defines a type whose schema is written out.
macro_rules! described {
    ($($(#[$doc:meta])* $type:ident = $name:literal: $schema:expr;)*) => {$(
        $(#[$doc])*
        pub struct $type;

        impl ToSchema for $type {
            fn name() -> Cow<'static, str> {
                Cow::Borrowed($name)
            }
        }

        impl PartialSchema for $type {
            fn schema() -> RefOr<Schema> {
                of($schema)
            }
        }
    )*};
}

described! {
    /// An `i64`, plain or as text.
    IntegerSchema = "Integer": json!({
        "description": "A whole number from -2^63 to 2^63-1, plain, or as text for senders whose numbers are doubles.",
        "oneOf": [
            {"type": "integer", "format": "int64", "minimum": i64::MIN, "maximum": i64::MAX},
            {"type": "string", "pattern": INTEGER_PATTERN},
        ],
        "examples": [1, "9007199254740993"],
    });
    /// A difference of two values. Its ends are beyond what a schema's reader can be trusted to compare.
    DifferenceSchema = "Difference": json!({
        "description": "A whole number from -(2^64 - 1) to 2^64 - 1.",
        "type": "integer", "examples": [1],
    });
    /// A sum of many values. The same holds of its ends.
    SumSchema = "Sum": json!({
        "description": "A whole number from -2^127 to 2^127 - 1.",
        "type": "integer", "examples": [42],
    });
    /// An `i64` that is not negative, plain or as text.
    CountSchema = "Count": json!({
        "description": "A whole number from 0 to 2^63-1, plain, or as text for senders whose numbers are doubles.",
        "oneOf": [
            {"type": "integer", "format": "int64", "minimum": 0, "maximum": i64::MAX},
            {"type": "string", "pattern": INTEGER_PATTERN.replace("-?", "").replace("|-9223372036854775808", "")},
        ],
        "examples": [100, "9007199254740993"],
    });
    /// An item of a counter of uniques.
    ItemSchema = "Item": json!({
        "description": "An item as text, or, where it is not UTF-8, as base64. It is known by its bytes.",
        "oneOf": [
            {"type": "string", "examples": ["user-7"]},
            {
                "type": "object", "required": ["base64"], "additionalProperties": false,
                "properties": {"base64": {"type": "string", "contentEncoding": "base64", "pattern": ANY_BASE64_PATTERN}},
            },
        ],
        "examples": ["user-7"],
    });
    /// A time, as text or in milliseconds.
    MomentSchema = "Moment": json!({
        "description": "A time as RFC 3339, or in milliseconds since 1970.",
        "oneOf": [
            {"type": "string", "format": "date-time"},
            {"type": "integer", "format": "uint64", "minimum": 0, "maximum": u64::MAX},
        ],
        "examples": ["2026-02-23T10:00:00Z", 1_771_840_800_000_u64],
    });
    /// A duration, as text or in milliseconds.
    DurationSchema = "Duration": json!({
        "description": "A duration like 500ms, 90s, 15m, 24h or 7d, or in milliseconds.",
        "oneOf": [
            {"type": "string", "pattern": DURATION_PATTERN},
            {"type": "integer", "format": "uint64", "minimum": 0, "maximum": u64::MAX},
        ],
        "examples": ["15m", 900_000],
    });
    /// How long something is set aside.
    HoldTtlSchema = "HoldTtlMs": json!({
        "description": "Milliseconds from now, at most 30 days.",
        "type": "integer", "minimum": 1, "maximum": TTL_MS_MAX, "examples": [30000],
    });
    /// Why something was adjusted.
    ReasonSchema = "Reason": json!({
        "description": format!("Why, in 1 to {REASON_BYTES_MAX} bytes."),
        "type": "string", "minLength": 1, "maxLength": REASON_BYTES_MAX, "examples": ["reconcile-fix"],
    });
    /// How long a trail is kept.
    AuditKeptSchema = "AuditKept": json!({
        "description": "A duration, 1h to 11000d.",
        "type": "string", "pattern": "^([1-9][0-9]{0,4}h|[1-9][0-9]{0,3}d)$", "examples": ["30d"],
    });
    /// A window as a call names it.
    WindowSchema = "WindowArgument": json!({
        "description": "A sliding window as a duration or as milliseconds, in sixty buckets; or any window, said in full \
            as in a policy, without `keepMs`.",
        "oneOf": [
            {"type": "string", "pattern": DURATION_PATTERN},
            {"type": "integer", "minimum": 1, "maximum": u64::MAX},
            {"$ref": "#/components/schemas/WindowOfCall"},
        ],
        "examples": ["1h", 60000, {"type": "fixed", "spanMs": 60000}],
    });
    /// A key that is UTF-8.
    KeySchema = "Key": json!({
        "description": format!("A key: 1 to {KEY_BYTES_MAX} bytes of UTF-8."),
        "type": "string", "minLength": 1, "maxLength": KEY_BYTES_MAX, "examples": ["likes:post:7"],
    });
    /// Any key, in base64.
    KeyBase64Schema = "KeyBase64": json!({
        "description": format!("A key of any 1 to {KEY_BYTES_MAX} bytes, in standard base64."),
        "type": "string", "contentEncoding": "base64", "pattern": BASE64_PATTERN,
        "minLength": 4, "maxLength": BASE64_LENGTH_MAX, "examples": ["/wA="],
    });
    /// A request id.
    RequestIdSchema = "RequestId": json!({
        "description": format!("A name for a request, 1 to {ID_BYTES_MAX} bytes. The same request under the same name is done once."),
        "type": "string", "minLength": 1, "maxLength": ID_BYTES_MAX, "examples": ["order-4711"],
    });
    /// A time to live.
    TtlSchema = "TtlMs": json!({
        "description": "Milliseconds from now.",
        "type": "integer", "minimum": 1, "maximum": u64::MAX, "examples": [60000],
    });
    /// A version.
    VersionSchema = "Version": json!({
        "description": "How many changes made the counter what it is.",
        "type": "integer", "minimum": 0, "maximum": u64::MAX, "examples": [7],
    });
    /// A key within a list of keys.
    KeyOrBase64Schema = "KeyOrBase64": json!({
        "description": "A key as text, or, where it is not UTF-8, as base64.",
        "oneOf": [
            {"$ref": "#/components/schemas/Key"},
            {
                "type": "object", "required": ["keyBase64"], "additionalProperties": false,
                "properties": {"keyBase64": {"$ref": "#/components/schemas/KeyBase64"}},
            },
        ],
    });
}

fn of(schema: Value) -> RefOr<Schema> {
    // These are constants of this file, and the tests compare what became of them.
    serde_json::from_value(schema).unwrap_or_else(|_| RefOr::T(Schema::default()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::request::Integer;

    #[test]
    fn schemas_are_what_was_written() {
        for (schema, keyword) in [
            (IntegerSchema::schema(), "oneOf"),
            (DifferenceSchema::schema(), "type"),
            (KeySchema::schema(), "maxLength"),
            (KeyBase64Schema::schema(), "pattern"),
            (RequestIdSchema::schema(), "maxLength"),
            (TtlSchema::schema(), "maximum"),
            (VersionSchema::schema(), "maximum"),
            (KeyOrBase64Schema::schema(), "oneOf"),
            (CountSchema::schema(), "oneOf"),
            (SumSchema::schema(), "type"),
            (ItemSchema::schema(), "oneOf"),
            (HoldTtlSchema::schema(), "maximum"),
            (ReasonSchema::schema(), "maxLength"),
            (WindowSchema::schema(), "oneOf"),
        ] {
            let schema = serde_json::to_value(schema).unwrap();
            assert!(schema.get(keyword).is_some() && schema.get("description").is_some(), "{schema}");
        }
        assert_eq!(serde_json::to_value(TtlSchema::schema()).unwrap()["maximum"], json!(u64::MAX));
    }

    /// The pattern is long; here it is held against the reader, around every power of ten and the ends of the range.
    #[test]
    fn the_pattern_of_integers_is_that_of_the_reader() {
        let ends = [i128::from(i64::MIN), i128::from(i64::MAX), 0];
        let powers = (0..20).flat_map(|power| [10i128.pow(power), -(10i128.pow(power))]);
        let prefixes = (0..19).map(|digits| i128::from(i64::MAX) / 10i128.pow(digits) * 10i128.pow(digits));
        for center in ends.into_iter().chain(powers).chain(prefixes.flat_map(|near| [near, -near])) {
            for number in center - 11..=center + 11 {
                check(&number.to_string());
            }
        }
        ["", "+1", "-0", "01", "-01", "1 ", " 1", "1.0", "1e3", "--1", "x", "-"].into_iter().for_each(check);
    }

    fn check(text: &str) {
        let read = serde_json::from_value::<Integer>(json!(text)).is_ok();
        assert_eq!(matches_pattern(text), read, "{text:?}");
    }

    /// Enough of regular expressions for this one: alternatives of an optional sign, digits, sets and counts.
    fn matches_pattern(text: &str) -> bool {
        let alternatives = INTEGER_PATTERN.trim_start_matches("^(").trim_end_matches(")$");
        alternatives.split('|').any(|alternative| matches_one(alternative.as_bytes(), text.as_bytes()))
    }

    fn matches_one(pattern: &[u8], text: &[u8]) -> bool {
        let Some((&first, _)) = pattern.split_first() else { return text.is_empty() };
        let (set, mut rest) = match first {
            b'[' => {
                let end = pattern.iter().position(|byte| *byte == b']').unwrap();
                (members(&pattern[1..end]), &pattern[end + 1..])
            }
            byte => (vec![byte], &pattern[1..]),
        };
        let (mut least, mut most) = (1, 1);
        if let Some(after) = rest.strip_prefix(b"?") {
            (least, rest) = (0, after);
        } else if let Some(after) = rest.strip_prefix(b"{") {
            let end = after.iter().position(|byte| *byte == b'}').unwrap();
            let counts = std::str::from_utf8(&after[..end]).unwrap();
            let (low, high) = counts.split_once(',').unwrap_or((counts, counts));
            (least, most, rest) = (low.parse().unwrap(), high.parse().unwrap(), &after[end + 1..]);
        }
        let run = text.iter().take_while(|byte| set.contains(byte)).count().min(most);
        (least..=run).any(|count| matches_one(rest, &text[count..]))
    }

    fn members(set: &[u8]) -> Vec<u8> {
        match set {
            [from, b'-', to] => (*from..=*to).collect(),
            set => set.to_vec(),
        }
    }
}

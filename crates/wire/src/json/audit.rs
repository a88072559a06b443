//! Trails in bodies: how long they are kept, and what they say.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use quipu_counting::audit::{AUDIT_MS_MAX, AUDIT_MS_MIN};
use quipu_counting::{AuditChange, AuditPage, Deed};
use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::reply::KeyName;
use super::request::BodyError;
use super::text_if_large;
use super::timestamp::rfc3339;
use crate::duration::{duration_ms, duration_text};

/// How long a trail is kept: a duration like `30d`.
#[derive(Clone, Copy, Debug)]
pub struct Kept(pub u64);

impl Kept {
    /// The milliseconds, if a trail can be kept for so long.
    pub fn to_ms(self) -> Result<u64, BodyError> {
        if (AUDIT_MS_MIN..=AUDIT_MS_MAX).contains(&self.0) {
            return Ok(self.0);
        }
        let [least, most] = [AUDIT_MS_MIN, AUDIT_MS_MAX].map(duration_text);
        Err(BodyError::field("audit", format_args!("a trail is kept for {least} to {most}")))
    }
}

impl<'de> Deserialize<'de> for Kept {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Kept, D::Error> {
        struct KeptVisitor;
        impl Visitor<'_> for KeptVisitor {
            type Value = Kept;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a duration like \"30d\", 1h to 11000d, or a number of milliseconds")
            }

            fn visit_u64<E: de::Error>(self, ms: u64) -> Result<Kept, E> {
                Ok(Kept(ms))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Kept, E> {
                duration_ms(text).map(Kept).map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(KeptVisitor)
    }
}

/// The trail of a counter.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Audit)]
pub struct AuditReply {
    #[serde(flatten)]
    key: KeyName,
    /// What was done, the newest first.
    changes: Vec<ChangeRow>,
    /// Where the next page goes on; null behind the last one.
    #[schema(required = true)]
    cursor: Option<String>,
    /// What was done before this is not kept, by the policy that holds now; null where none has a trail kept any more.
    #[schema(required = true, format = DateTime, example = "2026-01-24T10:00:00.000Z")]
    since: Option<String>,
}

/// One change.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = AuditChange)]
pub struct ChangeRow {
    /// When.
    #[schema(format = DateTime, example = "2026-02-23T10:00:00.000Z")]
    at: String,
    /// What was done: `add`, `adjust`, `set`, `reset`, `delete`, `expire` (it expires at another time), `expired`, `observe`, `merge`,
    /// `replace`, `acquire`, `reserve`, `commit`, `void`, or `clear` (all counters were deleted).
    #[schema(example = "adjust")]
    action: &'static str,
    /// By how much the value changed; null where all counters were deleted.
    #[schema(required = true, example = -120)]
    applied: Option<i64>,
    /// The same as text, where it is beyond 2^53.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    applied_text: Option<String>,
    /// By how much what is set aside changed, where it did: by a hold that was made, committed or voided, or went with the counter.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = 3)]
    held: Option<i64>,
    /// The same as text, where it is beyond 2^53.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    held_text: Option<String>,
    /// The value after.
    #[schema(example = 7)]
    value: i64,
    /// The same as text, where it is beyond 2^53.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    value_text: Option<String>,
    /// The version after; of a counter that is gone, its last one.
    #[schema(example = 8)]
    version: u64,
    /// The id of the request, if it had one; in standard base64 behind `base64:` where it is not UTF-8.
    #[schema(required = true, example = "order-4711")]
    request_id: Option<String>,
    /// Why, if it was said.
    #[schema(required = true, example = "reconcile-fix")]
    reason: Option<String>,
    /// Who, if it is known.
    #[schema(required = true)]
    by: Option<OriginBody>,
}

/// Who asked.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = AuditOrigin)]
pub struct OriginBody {
    /// The name it gave itself: by the header `X-Quipu-Actor`, or by CLIENT SETNAME.
    #[schema(required = true, example = "billing")]
    name: Option<String>,
    /// Where it was.
    #[schema(example = "10.0.0.7:52044")]
    address: String,
}

impl AuditReply {
    /// A page of the trail of the counter `key`.
    pub fn of(key: &[u8], page: &AuditPage) -> AuditReply {
        AuditReply {
            key: KeyName::of(key),
            changes: page.changes.iter().map(ChangeRow::of).collect(),
            cursor: page.next().map(encode_cursor),
            since: page.since_ms.map(rfc3339),
        }
    }
}

impl ChangeRow {
    fn of(change: &AuditChange) -> ChangeRow {
        let applied = Some(change.applied).filter(|_| change.deed != Deed::Clear);
        ChangeRow {
            at: rfc3339(change.at_ms),
            action: change.deed.name(),
            applied,
            applied_text: applied.and_then(text_if_large),
            held: Some(change.held).filter(|held| *held != 0),
            held_text: text_if_large(change.held),
            value: change.value,
            value_text: text_if_large(change.value),
            version: change.version,
            request_id: change.shown_request_id().map(id_text),
            reason: change.reason.clone(),
            by: change.by.as_ref().map(|by| OriginBody {
                name: Some(by.name.clone()).filter(|name| !name.is_empty()),
                address: by.address.clone(),
            }),
        }
    }
}

/// A request id as text.
pub fn id_text(id: &[u8]) -> String {
    match std::str::from_utf8(id) {
        Ok(text) => text.to_owned(),
        Err(_) => format!("base64:{}", STANDARD.encode(id)),
    }
}

fn encode_cursor(number: u64) -> String {
    URL_SAFE_NO_PAD.encode(number.to_be_bytes())
}

/// The place in a cursor; `None` if it is not one.
pub fn decode_cursor(text: &str) -> Option<u64> {
    let bytes = URL_SAFE_NO_PAD.decode(text).ok()?;
    bytes.try_into().ok().map(u64::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_lead_back() {
        for number in [0, 7, u64::MAX] {
            assert_eq!(decode_cursor(&encode_cursor(number)), Some(number));
        }
        for text in ["", "x", "AAAA", "AAAAAAAAAAAA", "===="] {
            assert_eq!(decode_cursor(text), None, "{text}");
        }
    }
}

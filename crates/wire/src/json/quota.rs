//! Bodies of quotas: what is to be acquired within which limit, and how that came out.

use std::fmt;

use quipu_counting::body::put_frame;
use quipu_counting::window::Frame;
use quipu_counting::{Detail, Reply};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::reply::KeyName;
use super::request::{BodyError, Integer, Object, Unsigned, key_bytes};
use super::schema::{CountSchema, KeyBase64Schema, KeySchema, WindowSchema};
use super::text_if_large;
use super::window::{WindowBody, sliding};
use crate::duration::duration_ms;

/// The most limits of one decision: of a user, a tenant, a call, a region, each by the second, the hour and the month.
pub const LIMITS_MAX: usize = 100;

/// What is to be acquired: the body of a call about one counter, and one item of a decision about several.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = Acquisition)]
pub struct AcquireBody {
    /// The counter.
    #[schema(value_type = Option<KeySchema>)]
    pub key: Option<String>,
    /// The counter in base64, where its name is not UTF-8.
    #[schema(value_type = Option<KeyBase64Schema>)]
    pub key_base64: Option<String>,
    /// How much; 1 where nothing is said, 0 only looks whether the limit is kept.
    #[schema(value_type = Option<CountSchema>)]
    pub amount: Option<Integer>,
    /// The most there may be in the window; the policy's where nothing is said.
    #[schema(value_type = Option<CountSchema>)]
    pub limit: Option<Integer>,
    /// The window that the limit is for; the counter's own where nothing is said, and all time where it has none.
    #[schema(value_type = Option<WindowSchema>)]
    pub window: Option<WindowArgument>,
    /// Count it also beyond the limit, and say so.
    #[serde(default)]
    pub soft: bool,
}

/// What is to be acquired, in terms of counting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acquisition {
    /// How much.
    pub amount: i64,
    /// Within what.
    pub limit: Option<i64>,
    /// Of which time.
    pub frame: Option<Frame>,
    /// Whether it is counted in any case.
    pub is_soft: bool,
}

impl Acquisition {
    /// The frame as it travels; nothing where there is none.
    pub fn payload(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        if let Some(frame) = &self.frame {
            put_frame(&mut bytes, frame);
        }
        bytes
    }
}

impl AcquireBody {
    /// Of a call whose path names the counter.
    pub fn to_acquisition(&self) -> Result<Acquisition, BodyError> {
        let in_items = [("key", self.key.is_some()), ("keyBase64", self.key_base64.is_some())];
        if let Some((field, _)) = in_items.iter().find(|(_, given)| *given) {
            return Err(BodyError::field(field, "the path names the counter; leave the field out"));
        }
        self.acquisition()
    }

    /// Of item `index` of a decision about several.
    pub fn to_item(&self, index: usize) -> Result<(Vec<u8>, Acquisition), BodyError> {
        let at = |error: BodyError| BodyError(format!("items[{index}]: {error}"));
        let key = key_bytes(self.key.as_deref(), self.key_base64.as_deref()).map_err(at)?;
        Ok((key, self.acquisition().map_err(at)?))
    }

    fn acquisition(&self) -> Result<Acquisition, BodyError> {
        let natural = |field: &str, number: Option<Integer>| match number {
            Some(Integer(number)) if number < 0 => {
                Err(BodyError::field(field, format_args!("must not be negative, as {number} is")))
            }
            number => Ok(number.map(|number| number.0)),
        };
        Ok(Acquisition {
            amount: natural("amount", self.amount)?.unwrap_or(1),
            limit: natural("limit", self.limit)?,
            frame: self.window.as_ref().map(WindowArgument::to_frame).transpose()?,
            is_soft: self.soft,
        })
    }
}

/// Several limits that all must leave room.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = AcquireAll)]
pub struct AcquireAllBody {
    /// The limits.
    #[schema(value_type = Vec<AcquireBody>, min_items = 1, max_items = 100)]
    pub items: Vec<Object<AcquireBody>>,
}

impl AcquireAllBody {
    /// Keys and what is asked of them, in order.
    pub fn to_items(&self) -> Result<Vec<(Vec<u8>, Acquisition)>, BodyError> {
        if !(1..=LIMITS_MAX).contains(&self.items.len()) {
            let length = self.items.len();
            let problem = format_args!("must have 1 to {LIMITS_MAX} entries, not {length}").to_string();
            return Err(BodyError::field("items", problem));
        }
        self.items.iter().enumerate().map(|(index, item)| item.0.to_item(index)).collect()
    }
}

/// A window as a call names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WindowArgument {
    /// The last so many milliseconds.
    Last(u64),
    /// Said in full.
    Full(WindowBody),
}

impl WindowArgument {
    /// Said in full.
    pub fn to_body(&self) -> WindowBody {
        match self {
            WindowArgument::Last(span_ms) => WindowBody { span_ms: Some(*span_ms), ..WindowBody::default() },
            WindowArgument::Full(body) => body.clone(),
        }
    }

    fn to_frame(&self) -> Result<Frame, BodyError> {
        match self {
            WindowArgument::Last(span_ms) => Ok(sliding(*span_ms)),
            WindowArgument::Full(body) if body.keep_ms.is_some() => {
                Err(BodyError::field("window.keepMs", "is for policies; leave the field out"))
            }
            WindowArgument::Full(body) if body.zone.as_deref().is_some_and(|zone| zone != "UTC") => {
                Err(BodyError::field(
                    "window.zone",
                    "is for policies, where all who count find it; store one, and leave the window out",
                ))
            }
            WindowArgument::Full(body) => Ok(body.to_keeping()?.frame),
        }
    }
}

impl<'de> Deserialize<'de> for WindowArgument {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<WindowArgument, D::Error> {
        struct WindowVisitor;
        impl<'de> Visitor<'de> for WindowVisitor {
            type Value = WindowArgument;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter
                    .write_str("a duration like \"1h\", a number of milliseconds, or an object with a `type`")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<WindowArgument, E> {
                let span_ms = duration_ms(text);
                span_ms
                    .map(WindowArgument::Last)
                    .map_err(|_| E::invalid_value(de::Unexpected::Str(text), &self))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<WindowArgument, E> {
                match number {
                    0 => Err(E::invalid_value(de::Unexpected::Unsigned(0), &self)),
                    span_ms => Ok(WindowArgument::Last(span_ms)),
                }
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<WindowArgument, E> {
                let Unsigned(span_ms) = Unsigned::<1>::deserialize(de::value::F64Deserializer::new(number))?;
                Ok(WindowArgument::Last(span_ms))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<WindowArgument, A::Error> {
                WindowBody::deserialize(MapAccessDeserializer::new(map)).map(WindowArgument::Full)
            }
        }
        deserializer.deserialize_any(WindowVisitor)
    }
}

/// How much of a limit is used.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Quota)]
pub struct QuotaBody {
    /// Whether it was counted.
    allowed: bool,
    /// The limit.
    #[schema(example = 100)]
    limit: i64,
    /// The same as text, where it is beyond 2^53.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    limit_text: Option<String>,
    /// What is used of it, with what was acquired just now and with what is set aside.
    #[schema(example = 58)]
    used: i64,
    /// The same as text, where it is beyond 2^53.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    used_text: Option<String>,
    /// What is left.
    #[schema(example = 42, minimum = 0)]
    remaining: i64,
    /// The same as text, where it is beyond 2^53.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    remaining_text: Option<String>,
    /// Milliseconds until some of it is free again; 0 where nothing comes back by itself.
    #[schema(example = 60000)]
    reset_ms: u64,
    /// Whether more is used than the limit says: a soft one was passed.
    over_limit: bool,
    /// For headers.
    #[serde(skip)]
    window_ms: u64,
}

impl QuotaBody {
    /// What `reply` says of a quota, if it does.
    pub fn of(reply: &Reply) -> Option<QuotaBody> {
        let Some(Detail::Quota { used, limit, reset_ms, window_ms }) = reply.detail.as_deref() else {
            return None;
        };
        let remaining = limit.saturating_sub(*used).max(0);
        Some(QuotaBody {
            allowed: reply.refusal.is_none(),
            limit: *limit,
            limit_text: text_if_large(*limit),
            used: *used,
            used_text: text_if_large(*used),
            remaining,
            remaining_text: text_if_large(remaining),
            reset_ms: *reset_ms,
            over_limit: used > limit,
            window_ms: *window_ms,
        })
    }

    /// How long the window of the limit is, the counter's own too; nothing where it has none.
    pub fn window_ms(&self) -> Option<u64> {
        Some(self.window_ms).filter(|window_ms| *window_ms > 0)
    }

    /// The limit.
    pub fn limit(&self) -> i64 {
        self.limit
    }

    /// What is used of it.
    pub fn used(&self) -> i64 {
        self.used
    }

    /// What is left of it.
    pub fn remaining(&self) -> i64 {
        self.remaining
    }

    /// How long until some of it is free again.
    pub fn reset_ms(&self) -> u64 {
        self.reset_ms
    }
}

/// What was acquired.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Grant)]
pub struct GrantBody {
    #[serde(flatten)]
    key: KeyName,
    #[serde(flatten)]
    quota: QuotaBody,
    /// The value of the counter: all that was ever counted.
    #[schema(example = 1058)]
    value: i64,
    /// The value as text, where it is beyond 2^53.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    value_text: Option<String>,
    /// How many changes made the counter what it is.
    #[schema(example = 1058)]
    version: u64,
    /// Whether this is the first outcome of the same request again; how much is used is said as of now.
    duplicate: bool,
}

impl GrantBody {
    /// What was acquired of the counter `key`.
    pub fn of(key: &[u8], quota: QuotaBody, reply: &Reply) -> GrantBody {
        GrantBody {
            key: KeyName::of(key),
            quota,
            value: reply.cell.value,
            value_text: text_if_large(reply.cell.value),
            version: reply.cell.version,
            duplicate: reply.duplicate,
        }
    }
}

/// What was acquired of several counters.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Grants)]
pub struct GrantsBody {
    /// All limits left room.
    pub allowed: bool,
    /// One for each item, in their order.
    pub results: Vec<GrantBody>,
}

#[cfg(test)]
mod tests {
    use super::{AcquireAllBody, AcquireBody, Acquisition};
    use crate::json::request::{parse, parse_or_default};
    use quipu_counting::window::Frame;

    fn acquisition(body: &str) -> Result<Acquisition, String> {
        let parsed: AcquireBody = parse_or_default(body.as_bytes()).map_err(|error| error.0)?;
        parsed.to_acquisition().map_err(|error| error.0)
    }

    #[test]
    fn acquisitions() {
        let plain = Acquisition { amount: 1, limit: None, frame: None, is_soft: false };
        let hour = Some(Frame::Sliding { span_ms: 3_600_000, bucket_ms: 60_000 });
        for (body, expected) in [
            ("", plain.clone()),
            (
                r#"{"amount":2,"limit":"100","window":"1h","soft":true}"#,
                Acquisition { amount: 2, limit: Some(100), frame: hour.clone(), is_soft: true },
            ),
            (r#"{"window":3600000}"#, Acquisition { frame: hour.clone(), ..plain.clone() }),
            (r#"{"window":3.6e6}"#, Acquisition { frame: hour, ..plain.clone() }),
            (
                r#"{"amount":0,"window":{"type":"fixed","spanMs":5}}"#,
                Acquisition { amount: 0, frame: Some(Frame::Fixed { span_ms: 5 }), ..plain },
            ),
        ] {
            assert_eq!(acquisition(body), Ok(expected), "{body}");
        }
        for (body, named) in [
            (r#"{"amount":-1}"#, "`amount`: must not be negative"),
            (r#"{"limit":-1}"#, "`limit`: must not be negative"),
            (r#"{"window":"1 hour"}"#, "`window`: invalid value: string \"1 hour\", expected a duration"),
            (r#"{"window":0}"#, "`window`: "),
            (r#"{"window":-5}"#, "`window`: "),
            (r#"{"window":0.5}"#, "`window`: "),
            (r#"{"window":["fixed",5]}"#, "`window`: invalid type: sequence"),
            (r#"{"window":{"type":"calendar"}}"#, "`window.unit`: is missing"),
            (r#"{"window":{"type":"fixed","spanMs":5,"keepMs":9}}"#, "`window.keepMs`: is for policies"),
            (r#"{"window":{"type":"sliding","spanMs":5,"bucketMs":9}}"#, "`window`: a bucket must not last"),
            (r#"{"key":"a"}"#, "`key`: the path names the counter"),
            (r#"{"count":1}"#, "unknown field `count`"),
        ] {
            let refused = acquisition(body).expect_err(body);
            assert!(refused.contains(named), "{body}: {refused:?}");
        }
    }

    #[test]
    fn several() {
        let items = |body: &str| {
            parse::<AcquireAllBody>(body.as_bytes()).and_then(|body| body.to_items()).map_err(|error| error.0)
        };
        assert_eq!(items(r#"{"items":[{"key":"a"},{"keyBase64":"/w=="}]}"#).map(|items| items.len()), Ok(2));
        for (body, named) in [
            (r#"{"items":[]}"#, "`items`: must have 1 to 100 entries, not 0"),
            (r#"{"items":[{"key":"a"},{}]}"#, "items[1]: `key`: is missing"),
            (r#"{"items":[{"key":"a","limit":-1}]}"#, "items[0]: `limit`: "),
            (r#"{"items":[["a"]]}"#, "expected an object"),
        ] {
            let refused = items(body).expect_err(body);
            assert!(refused.contains(named), "{body}: {refused:?}");
        }
    }
}

//! Bodies of holds and of adjustments.

use std::collections::BTreeMap;

use quipu_counting::hold::{HoldId, TTL_MS_MAX};
use quipu_counting::told::REASON_BYTES_MAX;
use quipu_counting::{Add, Detail, Reply, Told};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::reply::{ChangeBody, KeyName};
use super::request::{BodyError, Integer, Unsigned, dimensions};
use super::schema::{HoldTtlSchema, IntegerSchema, ReasonSchema, VersionSchema};
use super::text_if_large;
use super::timestamp::rfc3339;

/// What is to be set aside.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = Reservation)]
pub struct ReserveBody {
    /// How much; negative to set aside for a decrement. 1 where nothing is said.
    #[schema(value_type = Option<IntegerSchema>)]
    pub amount: Option<Integer>,
    /// For how many milliseconds: then it comes back by itself.
    #[schema(value_type = HoldTtlSchema)]
    pub ttl_ms: Unsigned<1>,
    /// The value with all that is set aside must not come below this.
    #[schema(value_type = Option<IntegerSchema>)]
    pub min: Option<Integer>,
    /// The value with all that is set aside must not come above this.
    #[schema(value_type = Option<IntegerSchema>)]
    pub max: Option<Integer>,
}

impl ReserveBody {
    /// As an addition that would be made, and for how long it is held open.
    pub fn to_reserve(&self) -> Result<(Add, u64), BodyError> {
        let delta = self.amount.map_or(1, |amount| amount.0);
        if delta == 0 {
            return Err(BodyError::field("amount", "must not be 0: there would be nothing to set aside"));
        }
        if self.ttl_ms.0 > TTL_MS_MAX {
            let problem = format_args!("must be 1 to {TTL_MS_MAX}, which is 30 days").to_string();
            return Err(BodyError::field("ttlMs", problem));
        }
        let min = self.min.map_or(i64::MIN, |min| min.0);
        let max = self.max.map_or(i64::MAX, |max| max.0);
        if min > max {
            return Err(BodyError::field("min", format_args!("{min} is above `max` {max}")));
        }
        Ok((Add { min, max, ..Add::plain(delta) }, self.ttl_ms.0))
    }
}

/// How much of a hold is counted.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Commit)]
pub struct CommitBody {
    /// At most what was set aside; all of it where nothing is said. The rest is free again.
    #[schema(value_type = Option<IntegerSchema>)]
    pub amount: Option<Integer>,
}

/// What was set aside.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Hold)]
pub struct HoldBody {
    #[serde(flatten)]
    key: KeyName,
    /// By which it is committed or voided.
    #[schema(example = "AQcDc3RvY2s6c2hpcnQ")]
    hold_id: String,
    /// How much.
    #[schema(example = 3)]
    amount: i64,
    /// The same as text, where it is beyond 2^53.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    amount_text: Option<String>,
    /// When it comes back by itself.
    #[schema(format = DateTime, example = "2026-02-23T10:00:30.000Z")]
    expires_at: String,
    /// The value of the counter, without what is set aside.
    #[schema(example = 7)]
    value: i64,
    /// The value as text, where it is beyond 2^53.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    value_text: Option<String>,
    /// How many changes made the counter what it is.
    #[schema(example = 8)]
    version: u64,
    /// Whether this is the first outcome of the same request again.
    duplicate: bool,
}

impl HoldBody {
    /// What `reply` says was set aside of the counter `key`, if it does.
    pub fn of(key: &[u8], amount: i64, reply: &Reply) -> Option<HoldBody> {
        let Some(Detail::Hold { number, expires_at_ms }) = reply.detail.as_deref() else { return None };
        let id = HoldId { key: key.to_vec(), birth: reply.cell.birth, number: *number };
        Some(HoldBody {
            key: KeyName::of(key),
            hold_id: id.text(),
            amount,
            amount_text: text_if_large(amount),
            expires_at: rfc3339(*expires_at_ms),
            value: reply.cell.value,
            value_text: text_if_large(reply.cell.value),
            version: reply.cell.version,
            duplicate: reply.duplicate,
        })
    }
}

/// A counter after a hold of it has ended.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = HoldEnd)]
pub struct HoldEndBody {
    #[serde(flatten)]
    change: ChangeBody,
    /// The hold.
    #[schema(example = "AQcDc3RvY2s6c2hpcnQ")]
    hold_id: String,
}

impl HoldEndBody {
    /// What the end of a hold did.
    pub fn of(id: &HoldId, reply: &Reply) -> HoldEndBody {
        HoldEndBody { change: ChangeBody::of(&id.key, reply), hold_id: id.text() }
    }
}

/// A correction.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Adjustment)]
pub struct AdjustBody {
    /// What to add.
    #[schema(value_type = IntegerSchema)]
    pub delta: Integer,
    /// Why.
    #[schema(value_type = ReasonSchema)]
    pub reason: String,
    /// The counter must have this version; 0 means that it must not exist.
    #[schema(value_type = Option<VersionSchema>)]
    #[serde(rename = "ifVersion")]
    pub if_version: Option<Unsigned<0>>,
    /// What it belongs to: names of dimensions that a policy declares, and values.
    #[schema(example = json!({"tenant": "a"}))]
    pub dims: Option<BTreeMap<String, String>>,
}

impl AdjustBody {
    /// What is told of it.
    pub fn told(&self) -> Result<Told<'_>, BodyError> {
        Ok(Told { reason: Some(&self.reason), dimensions: dimensions(self.dims.as_ref())?, at_ms: None })
    }

    /// What to add, and why.
    pub fn to_adjustment(&self) -> Result<(Add, &str), BodyError> {
        if !(1..=REASON_BYTES_MAX).contains(&self.reason.len()) {
            let length = self.reason.len();
            let problem = format_args!("must have 1 to {REASON_BYTES_MAX} bytes, not {length}").to_string();
            return Err(BodyError::field("reason", problem));
        }
        Ok((Add::plain(self.delta.0), &self.reason))
    }
}

/// A counter after a correction.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Adjusted)]
pub struct AdjustedBody {
    #[serde(flatten)]
    change: ChangeBody,
    /// Why.
    #[schema(example = "reconcile-fix")]
    reason: String,
}

impl AdjustedBody {
    /// What the correction of the counter `key` did.
    pub fn of(key: &[u8], reply: &Reply, reason: &str) -> AdjustedBody {
        AdjustedBody { change: ChangeBody::of(key, reply), reason: reason.to_owned() }
    }

    /// The same with a value that may be behind.
    pub fn behind(self, staleness_ms: u64) -> AdjustedBody {
        AdjustedBody { change: self.change.behind(staleness_ms), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::{AdjustBody, ReserveBody};
    use crate::json::request::parse;
    use quipu_counting::Add;

    #[test]
    fn reservations() {
        let reserve = |body: &str| {
            parse::<ReserveBody>(body.as_bytes()).and_then(|body| body.to_reserve()).map_err(|error| error.0)
        };
        assert_eq!(
            reserve(r#"{"amount":3,"ttlMs":30000,"max":100,"min":"0"}"#),
            Ok((Add { min: 0, max: 100, ..Add::plain(3) }, 30_000))
        );
        assert_eq!(reserve(r#"{"amount":-2,"ttlMs":2592000000}"#), Ok((Add::plain(-2), 2_592_000_000)));
        for (body, named) in [
            ("{}", "missing field `ttlMs`"),
            (r#"{"ttlMs":0}"#, "`ttlMs`: "),
            (r#"{"ttlMs":2592000001}"#, "`ttlMs`: must be 1 to 2592000000, which is 30 days"),
            (r#"{"ttlMs":5,"amount":0}"#, "`amount`: must not be 0"),
            (r#"{"ttlMs":5,"min":2,"max":1}"#, "`min`: 2 is above `max` 1"),
        ] {
            let refused = reserve(body).expect_err(body);
            assert!(refused.contains(named), "{body}: {refused:?}");
        }
    }

    #[test]
    fn adjustments_need_a_reason() {
        let adjust = |body: &str| {
            let body = parse::<AdjustBody>(body.as_bytes()).map_err(|error| error.0)?;
            body.to_adjustment().map(|(add, reason)| (add, reason.to_owned())).map_err(|error| error.0)
        };
        assert_eq!(adjust(r#"{"delta":-120,"reason":"x"}"#), Ok((Add::plain(-120), "x".to_owned())));
        let long = format!(r#"{{"delta":1,"reason":"{}"}}"#, "x".repeat(513));
        for (body, named) in [
            (r#"{"delta":1}"#, "missing field `reason`"),
            (r#"{"reason":"x"}"#, "missing field `delta`"),
            (r#"{"delta":1,"reason":""}"#, "`reason`: must have 1 to 512 bytes, not 0"),
            (&long, "`reason`: must have 1 to 512 bytes, not 513"),
        ] {
            let refused = adjust(body).expect_err(body);
            assert!(refused.contains(named), "{body}: {refused:?}");
        }
    }
}

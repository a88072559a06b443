//! Bodies about policies that the server sends: one, all of them, and that one was removed.
//!
//! ```text
//! {"pattern","min","max","saturate","ttlMs","disabled"}, and {"kind","window","limit","history",...} where it says so
//! ```

use std::collections::BTreeMap;

use quipu_counting::Policy;
use serde::Serialize;
use utoipa::ToSchema;

use super::reply::{PatternName, is_not};
use super::request::ConsistencyName;
use super::schema::{AuditKeptSchema, DurationSchema};
use super::text_if_large;
use super::window::{HistoryBody, KindName, WindowBody};
use crate::duration::duration_text;

/// One policy.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Policy)]
pub struct PolicyReply {
    #[serde(flatten)]
    pattern: PatternName,
    /// No change may bring the value below this.
    #[schema(required = true, example = 0)]
    min: Option<i64>,
    /// The same as text, where it is beyond 2^53.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    min_text: Option<String>,
    /// No change may bring the value above this.
    #[schema(required = true, example = 100)]
    max: Option<i64>,
    /// The same as text, where it is beyond 2^53.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    max_text: Option<String>,
    /// Whether additions take what the bounds leave.
    saturate: bool,
    /// How long counters live that are born under it.
    #[schema(required = true)]
    ttl_ms: Option<u64>,
    /// Whether writes are refused.
    disabled: bool,
    /// What counters are born as, where it is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    kind: Option<KindName>,
    /// How time is cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    window: Option<WindowBody>,
    /// The limit of `acquire`, where a call gives none.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    limit: Option<i64>,
    /// Whether `acquire` counts also beyond the limit.
    #[serde(skip_serializing_if = "is_not")]
    soft: bool,
    /// How long what the value was stays known.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    history: Option<HistoryBody>,
    /// How long ago something may have happened that is counted for its time, in milliseconds, where it is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    lateness: Option<u64>,
    /// How long it stays known who changed a counter, when and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<AuditKeptSchema>)]
    audit: Option<String>,
    /// By which dimensions values are rolled up.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = json!([["tenant"], ["day", "tenant"]]))]
    rollups: Option<Vec<Vec<String>>>,
    /// How long what is rolled up by time is told apart by it, where that is not for ever.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schema(value_type = Option<BTreeMap<String, DurationSchema>>, nullable = false, example = json!({"day": "365d"}))]
    rollup_keep: BTreeMap<&'static str, String>,
    /// How counters are kept, where it is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    consistency: Option<ConsistencyName>,
    /// Over how many places a counter is spread.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    stripes: Option<u16>,
}

impl PolicyReply {
    /// The policy stored for `pattern`.
    pub fn of(pattern: &[u8], policy: &Policy) -> PolicyReply {
        PolicyReply {
            pattern: PatternName::of(pattern),
            min: policy.min,
            min_text: policy.min.and_then(text_if_large),
            max: policy.max,
            max_text: policy.max.and_then(text_if_large),
            saturate: policy.saturate,
            ttl_ms: policy.ttl_ms,
            disabled: policy.disabled,
            kind: policy.kind.map(KindName::of),
            window: policy.window.as_ref().map(WindowBody::of),
            limit: policy.limit,
            soft: policy.soft,
            history: policy.history.map(HistoryBody::of),
            lateness: policy.lateness_ms,
            audit: policy.audit_ms.map(duration_text),
            rollups: policy.rollups.as_ref().map(|declared| {
                declared.rollups().map(|names| names.into_iter().map(str::to_owned).collect()).collect()
            }),
            rollup_keep: policy.rollups_kept.iter().map(|(name, ms)| (name, duration_text(ms))).collect(),
            consistency: policy.strong.then_some(ConsistencyName::Strong),
            stripes: policy.stripes,
        }
    }
}

/// All policies.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = PolicyList)]
pub struct PoliciesBody {
    /// In the order of their patterns.
    pub policies: Vec<PolicyReply>,
}

/// The answer to the removal of a policy.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct PolicyRemoved {
    /// Which pattern.
    #[serde(flatten)]
    pub pattern: PatternName,
    /// Whether there was a policy for it.
    pub existed: bool,
}
#[cfg(test)]
mod tests {
    use super::PolicyReply;
    use quipu_counting::Policy;
    use serde_json::json;

    #[test]
    fn a_policy() {
        let policy = Policy { max: Some(i64::MAX), ..Policy::default() };
        assert_eq!(
            serde_json::to_value(PolicyReply::of(b"stock:*", &policy)).unwrap(),
            json!({"pattern": "stock:*", "min": null, "max": i64::MAX, "maxText": "9223372036854775807",
                   "saturate": false, "ttlMs": null, "disabled": false})
        );
    }
}

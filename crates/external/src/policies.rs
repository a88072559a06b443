//! Policies are shared by all nodes: a hash in Redis with a version, which every node looks at each second. A change holds at
//! once where it was made, and elsewhere with the next look.
//!
//! The hash also has the epoch, which all markers must name. A hash that is gone is no reason to count without limits: what
//! was known holds on.

use quipu_counting::policy::STRIPES_MAX;
use quipu_counting::{Limits, Policies, Policy};
use quipu_wire::entry::{Reader, put_policy_value};
use redis::{RedisResult, Value};

use crate::groups::POLICIES;
use crate::stripes::Stripes;

/// Before a pattern, so that it is never one of the other fields.
const PATTERN: u8 = b'=';
/// Before a number of stripes, a colon and the pattern that had it. The value is when that was last set or replaced.
const STRIPES: u8 = b'~';

/// Why policies cannot be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PoliciesError {
    #[error("{0}")]
    Redis(#[from] redis::RedisError),
    #[error("{0}")]
    Lost(String),
    #[error("a policy in Redis is malformed: {0}")]
    Malformed(String),
}

/// What the hash says.
pub(crate) struct Stored {
    pub(crate) version: u64,
    pub(crate) policies: Policies,
    /// How many stripes patterns have had.
    pub(crate) stripes: Stripes,
}

/// Asks for the version alone.
pub(crate) fn version_command() -> redis::Cmd {
    redis::cmd("HMGET").arg(POLICIES).arg("epoch").arg("version").to_owned()
}

/// The version, if the hash is of this epoch.
pub(crate) fn version(answer: &Value, epoch: &str) -> Result<u64, PoliciesError> {
    let (found, version): (Option<String>, Option<u64>) = redis::from_redis_value(answer.clone())
        .map_err(|error| PoliciesError::Malformed(error.to_string()))?;
    if found.as_deref() != Some(epoch) {
        return Err(PoliciesError::Lost(format!(
            "Redis has lost the policies of epoch {epoch}; those that were known hold on"
        )));
    }
    Ok(version.unwrap_or(0))
}

/// Asks for everything.
pub(crate) fn all_command() -> redis::Cmd {
    redis::cmd("HGETALL").arg(POLICIES).to_owned()
}

/// All policies from the answer.
pub(crate) fn all(answer: &Value) -> Result<Stored, PoliciesError> {
    let fields: Vec<(Vec<u8>, Vec<u8>)> = redis::from_redis_value(answer.clone())
        .map_err(|error| PoliciesError::Malformed(error.to_string()))?;
    let mut stored = Stored { version: 0, policies: Policies::default(), stripes: Stripes::default() };
    for (field, value) in fields {
        match field.split_first() {
            Some((&PATTERN, pattern)) => {
                let policy = Reader::new(&value).policy();
                let policy = policy.map_err(|error| PoliciesError::Malformed(error.to_string()))?;
                stored.policies.set(pattern, Some(policy));
            }
            Some((&STRIPES, had)) => {
                let noted = noted_stripes(had, &value);
                let (number, pattern, set_at_ms) = noted
                    .ok_or_else(|| PoliciesError::Malformed(String::from_utf8_lossy(&field).into_owned()))?;
                stored.stripes.note(pattern, number, set_at_ms);
            }
            _ if field == b"version" => {
                let text = String::from_utf8_lossy(&value);
                stored.version = text.parse().map_err(|_| PoliciesError::Malformed(text.into_owned()))?;
            }
            _ => {}
        }
    }
    stored.stripes.edition = stored.version;
    Ok(stored)
}

/// The same from the fields as the archive keeps them: name, value, name, value.
pub(crate) fn of_fields(fields: Vec<Vec<u8>>) -> Result<Stored, PoliciesError> {
    all(&Value::Array(fields.into_iter().map(Value::BulkString).collect()))
}

fn noted_stripes<'a>(had: &'a [u8], value: &[u8]) -> Option<(u16, &'a [u8], u64)> {
    let colon = had.iter().position(|byte| *byte == b':')?;
    let number: u16 = std::str::from_utf8(&had[..colon]).ok()?.parse().ok()?;
    let is_number = number.is_power_of_two() && number <= STRIPES_MAX;
    let set_at_ms = std::str::from_utf8(value).ok()?.parse().ok()?;
    is_number.then_some((number, &had[colon + 1..], set_at_ms))
}

/// Notes that a pattern had and will have so many stripes, as far as anybody reads.
pub(crate) fn stripes_pipeline(pattern: &[u8], numbers: [u16; 2], now_ms: u64) -> redis::Pipeline {
    let mut pipeline = redis::pipe();
    pipeline.atomic();
    for stripes in numbers {
        let field = [&[STRIPES], format!("{stripes}:").as_bytes(), pattern].concat();
        pipeline.cmd("HSET").arg(POLICIES).arg(field).arg(now_ms).ignore();
    }
    pipeline.cmd("HINCRBY").arg(POLICIES).arg("version").arg(1);
    pipeline
}

/// Stores or removes one, with a new version, as one.
pub(crate) fn set_pipeline(pattern: &[u8], policy: Option<&Policy>) -> redis::Pipeline {
    let mut pipeline = redis::pipe();
    let field = [&[PATTERN], pattern].concat();
    pipeline.atomic();
    match policy {
        Some(policy) => {
            let mut value = Vec::new();
            put_policy_value(&mut value, policy);
            pipeline.cmd("HSET").arg(POLICIES).arg(field).arg(value);
        }
        None => {
            pipeline.cmd("HDEL").arg(POLICIES).arg(field);
        }
    }
    pipeline.cmd("HINCRBY").arg(POLICIES).arg("version").arg(1);
    pipeline
}

/// Whether there was one before, from the answer.
pub(crate) fn was_there(answer: RedisResult<(u64, u64)>, is_set: bool) -> RedisResult<bool> {
    answer.map(|(changed, _)| (changed == 1) != is_set)
}

/// What this deployment cannot do for a policy.
pub(crate) fn unsupported(policy: &Policy) -> Option<&'static str> {
    match () {
        () if policy.audit_ms.is_some() => Some("a trail of changes is"),
        () if policy.strong && (Limits::from(policy).is_for_whole || policy.limit.is_some()) => Some(
            "counters in rows of PostgreSQL (`consistency` strong) that are more than plain sums (`kind`, `window`, `limit`, `history`, roll-ups) are",
        ),
        () => None,
    }
}

//! Policies are shared by all nodes: a hash in Redis with a version, which every node looks at each second. A change holds at
//! once where it was made, and elsewhere with the next look.
//!
//! The hash also has the epoch, which all markers must name. A hash that is gone is no reason to count without limits: what
//! was known holds on.

use quipu_counting::{Policies, Policy};
use quipu_wire::entry::{Reader, put_policy_value};
use redis::{RedisResult, Value};

use crate::groups::POLICIES;

/// Before a pattern, so that it is never one of the other fields.
const PATTERN: u8 = b'=';

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
    let mut stored = Stored { version: 0, policies: Policies::default() };
    for (field, value) in fields {
        match field.split_first() {
            Some((&PATTERN, pattern)) => {
                let policy = Reader::new(&value).policy();
                let policy = policy.map_err(|error| PoliciesError::Malformed(error.to_string()))?;
                stored.policies.set(pattern, Some(policy));
            }
            _ if field == b"version" => {
                let text = String::from_utf8_lossy(&value);
                stored.version = text.parse().map_err(|_| PoliciesError::Malformed(text.into_owned()))?;
            }
            _ => {}
        }
    }
    Ok(stored)
}

/// The same from the fields as the archive keeps them: name, value, name, value.
pub(crate) fn of_fields(fields: Vec<Vec<u8>>) -> Result<Stored, PoliciesError> {
    all(&Value::Array(fields.into_iter().map(Value::BulkString).collect()))
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
    policy.audit_ms.map(|_| "a trail of changes is")
}

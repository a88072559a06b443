//! Policies are shared by all nodes: a hash in Redis with a version, which every node looks at each second. A change holds at
//! once where it was made, and elsewhere with the next look.
//!
//! The hash also has the epoch, which all markers must name. A hash that is gone is no reason to count without limits: what
//! was known holds on.

use std::collections::HashSet;

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

/// How long request ids are remembered: the longest time that any node was started with.
const ID_WINDOW: &[u8] = b"id_window";

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
    /// How long request ids are remembered, as far as nodes have said so.
    pub(crate) id_window_ms: u64,
    /// As they are kept, to be put back: name, value, name, value.
    pub(crate) fields: Vec<Vec<u8>>,
}

/// Whether a counter is to be strong: of all policies that match it the most specific one decides.
pub(crate) fn is_strong(policies: &Policies, key: &[u8]) -> bool {
    policies.policy_for(key).is_some_and(|policy| policy.strong)
}

/// Whether a policy of this pattern has, or would have, the say over keys that are strong, or would be without it.
pub(crate) fn rules_strong(policies: &Policies, pattern: &[u8]) -> bool {
    let yields = |strong: &[u8]| {
        let Some(key) = shared_key(pattern, strong) else { return false };
        // Which of two is more specific is the same for all keys that they share.
        let mut two = Policies::default();
        two.set(strong, Some(Policy { strong: true, ..Policy::default() }));
        two.set(pattern, Some(Policy::default()));
        !is_strong(&two, &key)
    };
    policies.iter().any(|(other, policy)| policy.strong && (other == pattern || yields(other)))
}

/// A key that both patterns match, if there is one.
fn shared_key(one: &[u8], other: &[u8]) -> Option<Vec<u8>> {
    let (mut keys, mut seen) = (vec![(0, 0, Vec::new())], HashSet::new());
    while let Some((i, j, key)) = keys.pop() {
        if !seen.insert((i, j)) {
            continue;
        }
        let with = |byte: u8| [&key[..], &[byte]].concat();
        match (one.get(i), other.get(j)) {
            (None, None) => return Some(key),
            (Some(b'*'), Some(b'*')) => keys.extend([(i + 1, j, key.clone()), (i, j + 1, key)]),
            (Some(b'*'), next) => {
                keys.extend(next.map(|byte| (i, j + 1, with(*byte))));
                keys.push((i + 1, j, key));
            }
            (next, Some(b'*')) => {
                keys.extend(next.map(|byte| (i + 1, j, with(*byte))));
                keys.push((i, j + 1, key));
            }
            (Some(b'?'), Some(byte)) | (Some(byte), Some(b'?')) => keys.push((i + 1, j + 1, with(*byte))),
            (Some(byte), Some(same)) if byte == same => keys.push((i + 1, j + 1, with(*byte))),
            _ => {}
        }
    }
    None
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
    let mut stored = Stored {
        version: 0,
        policies: Policies::default(),
        stripes: Stripes::default(),
        id_window_ms: 0,
        fields: Vec::with_capacity(2 * fields.len()),
    };
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
            _ if field == b"version" => stored.version = whole_number(&value)?,
            _ if field == ID_WINDOW => stored.id_window_ms = whole_number(&value)?,
            // These say where the hash is, and come with its place.
            _ if field == b"epoch" || field == b"complete" => continue,
            _ => {}
        }
        stored.fields.extend([field, value]);
    }
    stored.stripes.edition = stored.version;
    Ok(stored)
}

fn whole_number(value: &[u8]) -> Result<u64, PoliciesError> {
    let text = String::from_utf8_lossy(value);
    text.parse().map_err(|_| PoliciesError::Malformed(text.into_owned()))
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

/// Says how long ids are remembered. With a new version, so that it comes to the archive too.
pub(crate) fn window_pipeline(id_window_ms: u64) -> redis::Pipeline {
    let mut pipeline = redis::pipe();
    pipeline.atomic();
    pipeline.cmd("HSET").arg(POLICIES).arg(ID_WINDOW).arg(id_window_ms).ignore();
    pipeline.cmd("HINCRBY").arg(POLICIES).arg("version").arg(1).ignore();
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

#[cfg(test)]
mod tests {
    use quipu_counting::policy::matches;

    use super::*;

    #[test]
    fn keys_that_two_patterns_share() {
        for (one, other, is_shared) in [
            ("credit:*", "credit:vip:*", true),
            ("credit:*", "likes:*", false),
            ("*:vip", "credit:*", true),
            ("*", "a", true),
            ("a?c", "abc", true),
            ("a?c", "ab?", true),
            ("a*b*c", "a*d", false),
            ("a*b*c", "*bc*c", true),
            ("ab", "abc", false),
            ("abc*", "ab", false),
        ] {
            for (one, other) in [(one.as_bytes(), other.as_bytes()), (other.as_bytes(), one.as_bytes())] {
                let key = shared_key(one, other);
                assert_eq!(key.is_some(), is_shared, "{one:?} {other:?}");
                assert!(key.is_none_or(|key| matches(one, &key) && matches(other, &key)));
            }
        }
    }

    #[test]
    fn what_has_the_say_over_strong_keys() {
        let mut policies = Policies::default();
        policies.set(b"credit:*", Some(Policy { strong: true, ..Policy::default() }));
        for (pattern, expected) in [
            ("credit:*", true),
            ("credit:vip:*", true),
            ("*:vip:now", true),
            ("likes:*", false),
            ("*", false),
        ] {
            assert_eq!(rules_strong(&policies, pattern.as_bytes()), expected, "{pattern}");
        }
    }
}

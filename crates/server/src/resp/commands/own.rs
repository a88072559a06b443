//! Commands that Redis does not have.
//!
//! ```text
//!   Q.ADD key delta [ID id] [MIN n] [MAX n] [SATURATE] [PX ms] [IFVERSION v]   -> [value, applied, version, duplicate]
//!   Q.BATCH producer epoch seq key delta [key delta ...]                       -> [last_seq, duplicate]
//!   Q.STAT key                                                                 -> map
//!   Q.POLICY SET pattern json | GET pattern | LIST | DEL pattern
//! ```

use quipu_counting::{Action, Add, Condition, Counters, GroupKind, ID_BYTES_MAX, KEY_BYTES_MAX, Policy};
use quipu_wire::commands::Command;
use quipu_wire::json::reply::PolicyReply;
use quipu_wire::json::request::{PolicyBody, parse};
use quipu_wire::refusal::unavailable_line;
use quipu_wire::resp::{Arguments, Encoder, errors};

use super::{Complaint, Deadline, Drafted, KEYS_PER_COMMAND_MAX, check_key, integer, is_option};
use crate::resp::background::Job;
use crate::resp::plan::{Draft, Plan};

/// Q.ADD.
pub fn add(draft: &mut Draft, arguments: Arguments<'_, '_>, now_ms: u64) -> Drafted {
    let Some([_, key, delta]) = arguments.first() else { return Err(errors::wrong_arity("q.add").into()) };
    let mut add = Add::plain(integer(delta)?);
    let mut id: Option<&[u8]> = None;
    let mut given: Vec<&[u8]> = Vec::new();
    let mut words = arguments.tail(3).iter();
    while let Some(word) = words.next() {
        // Which of two would count is for nobody to guess.
        if given.iter().any(|before| before.eq_ignore_ascii_case(word)) {
            return Err(errors::SYNTAX.into());
        }
        given.push(word);
        if is_option(word, "saturate") {
            add.saturate = true;
            continue;
        }
        let value = words.next().ok_or(errors::SYNTAX)?;
        if is_option(word, "id") {
            check_id(value)?;
            id = Some(value);
        } else if is_option(word, "min") {
            add.min = integer(value)?;
        } else if is_option(word, "max") {
            add.max = integer(value)?;
        } else if is_option(word, "px") {
            add.expiry = Deadline::InMilliseconds.positive(value, now_ms, "q.add")?;
        } else if is_option(word, "ifversion") {
            add.condition = Condition::Version(unsigned(value, "version")?);
        } else {
            return Err(errors::SYNTAX.into());
        }
    }
    if add.min > add.max {
        return Err("ERR MIN can't be greater than MAX".into());
    }
    check_key(key)?;
    match id {
        Some(id) => draft.batch.push_with_id(key, Action::Add(add), id, 0),
        None => draft.batch.push(key, Action::Add(add)),
    };
    draft.plans.push(Plan::Addition);
    Ok(())
}

/// Q.BATCH.
pub fn batch(draft: &mut Draft, arguments: Arguments<'_, '_>) -> Drafted {
    let Some([_, producer, epoch, sequence]) = arguments.first() else {
        return Err(errors::wrong_arity("q.batch").into());
    };
    let pairs = arguments.tail(4);
    if pairs.is_empty() || !pairs.len().is_multiple_of(2) {
        return Err(errors::wrong_arity("q.batch").into());
    }
    if pairs.len() / 2 > KEYS_PER_COMMAND_MAX {
        return Err(format!("ERR too many keys in one command, at most {KEYS_PER_COMMAND_MAX}").into());
    }
    check_id(producer)?;
    let epoch = unsigned(epoch, "epoch")?;
    let sequence = unsigned(sequence, "sequence")?;
    if sequence == 0 {
        return Err("ERR sequence numbers begin with 1".into());
    }
    let mut words = pairs.iter();
    while let (Some(key), Some(delta)) = (words.next(), words.next()) {
        check_key(key)?;
        integer(delta)?;
    }
    let start = draft.batch.requests.len();
    let mut words = pairs.iter();
    while let (Some(key), Some(delta)) = (words.next(), words.next()) {
        draft.batch.push(key, Action::Add(Add::plain(integer(delta)?)));
    }
    let producer = draft.batch.intern(producer);
    draft.batch.group(start, GroupKind::Session { producer, epoch, sequence });
    draft.plans.push(Plan::Session((pairs.len() / 2) as u32));
    Ok(())
}

/// Q.POLICY SET and Q.POLICY DEL: jobs, because they must not keep other connections waiting.
pub fn change_policy(command: Command, operands: Arguments<'_, '_>) -> Result<Job, Complaint> {
    let pattern = operands.name();
    let policy = match command {
        Command::QPolicySet => {
            let body: Result<PolicyBody, _> = parse(operands.get(1).unwrap_or_default());
            let policy = body.and_then(|body| body.to_policy());
            let invalid = |error| Complaint::from(format!("ERR the policy is not valid: {error}"));
            Some(policy.map_err(invalid)?)
        }
        _ => None,
    };
    check_pattern(pattern)?;
    Ok(Job::SetPolicy { pattern: pattern.to_vec(), policy })
}

/// Q.POLICY GET: the policy of a pattern as JSON, or null. Q.POLICY LIST: every policy as JSON, in the order of their
/// patterns.
pub fn answer_policies(counters: &dyn Counters, pattern: Option<&[u8]>, encoder: &mut Encoder<'_>) {
    let policies = match counters.policies() {
        Ok(policies) => policies,
        Err(reason) => return encoder.error(unavailable_line(&reason)),
    };
    match pattern {
        Some(pattern) => match policies.get(pattern) {
            Some(policy) => encoder.bulk(&policy_json(pattern, policy)),
            None => encoder.null(),
        },
        None => {
            encoder.array(policies.len());
            for (pattern, policy) in policies.iter() {
                encoder.bulk(&policy_json(pattern, policy));
            }
        }
    }
}

fn policy_json(pattern: &[u8], policy: &Policy) -> Vec<u8> {
    // Strings and numbers only: nothing in a policy can fail to be written.
    serde_json::to_vec(&PolicyReply::of(pattern, policy)).unwrap_or_default()
}

/// A pattern is as long as a key at most: one without a wildcard is one.
fn check_pattern(pattern: &[u8]) -> Drafted {
    if pattern.is_empty() || pattern.len() > KEY_BYTES_MAX {
        let length = pattern.len();
        return Err(format!("ERR a pattern has 1 to {KEY_BYTES_MAX} bytes, this one has {length}").into());
    }
    Ok(())
}

fn check_id(id: &[u8]) -> Drafted {
    if id.is_empty() || id.len() > ID_BYTES_MAX {
        return Err(format!("ERR an id has 1 to {ID_BYTES_MAX} bytes, this one has {}", id.len()).into());
    }
    Ok(())
}

fn unsigned(text: &[u8], what: &str) -> Result<u64, Complaint> {
    let number = integer(text)?;
    u64::try_from(number).map_err(|_| format!("ERR the {what} is negative").into())
}

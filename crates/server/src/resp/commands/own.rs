//! Commands that Redis does not have.
//!
//! ```text
//!   Q.ADD key delta [ID id] [MIN n] [MAX n] [SATURATE] [PX ms] [IFVERSION v] [AT ms] [DIM name value]...
//!                                                                              -> [value, applied, version, duplicate]
//!   Q.BATCH producer epoch seq key delta [key delta ...]                       -> [last_seq, duplicate]
//!   Q.STAT key                                                                 -> map
//!   Q.HOT [n]                                                                  -> map, its keys as [key, rate, share]
//!   Q.POLICY SET pattern json | GET pattern | LIST | DEL pattern
//! ```

use quipu_counting::hot::{HOT_KEYS_DEFAULT, HOT_KEYS_MAX};
use quipu_counting::{
    Action, Add, Condition, Counters, GroupKind, HotKey, HotKeys, ID_BYTES_MAX, KEY_BYTES_MAX, Policy, Told,
};
use quipu_wire::commands::Command;
use quipu_wire::json::hot::rounded;
use quipu_wire::json::policy::PolicyReply;
use quipu_wire::json::request::{PolicyBody, parse};
use quipu_wire::refusal::unavailable_line;
use quipu_wire::resp::{Arguments, Encoder, errors};

use super::{Complaint, Deadline, Drafted, KEYS_PER_COMMAND_MAX, check_key, dimensions, integer, is_option};
use crate::resp::background::Job;
use crate::resp::plan::{Draft, Plan};

/// Q.ADD.
pub fn add(draft: &mut Draft, arguments: Arguments<'_, '_>, now_ms: u64) -> Drafted {
    let Some([_, key, delta]) = arguments.first() else { return Err(errors::wrong_arity("q.add").into()) };
    let mut add = Add::plain(integer(delta)?);
    let (mut id, mut told): (Option<&[u8]>, Told<'_>) = (None, Told::default());
    let mut given: Vec<&[u8]> = Vec::new();
    let mut dimensions: Vec<(&[u8], &[u8])> = Vec::new();
    let mut words = arguments.tail(3).iter();
    while let Some(word) = words.next() {
        if is_option(word, "dim") {
            let name = words.next().ok_or(errors::SYNTAX)?;
            dimensions.push((name, words.next().ok_or(errors::SYNTAX)?));
            continue;
        }
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
        } else if is_option(word, "at") {
            told.at_ms = Some(unsigned(value, "time")?);
        } else {
            return Err(errors::SYNTAX.into());
        }
    }
    if add.min > add.max {
        return Err("ERR MIN can't be greater than MAX".into());
    }
    check_key(key)?;
    told.dimensions = dimensions::told(&dimensions)?;
    let action = draft.batch.addition(add, &told);
    match id {
        Some(id) => draft.batch.push_with_id(key, action, id, 0),
        None => draft.batch.push(key, action),
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

/// Q.HOT: a job, because other nodes may have to be asked.
pub fn hot(operands: Arguments<'_, '_>) -> Result<Job, Complaint> {
    let n = match operands.get(0) {
        None => HOT_KEYS_DEFAULT,
        Some(_) if operands.len() > 1 => return Err(errors::SYNTAX.into()),
        Some(text) => {
            let n = usize::try_from(integer(text)?).ok().filter(|n| (1..=HOT_KEYS_MAX).contains(n));
            n.ok_or_else(|| format!("ERR the number of keys must be from 1 to {HOT_KEYS_MAX}"))?
        }
    };
    Ok(Job::Hot { n })
}

/// What Q.HOT answers, rounded as over HTTP.
pub fn encode_hot(told: &HotKeys, encoder: &mut Encoder<'_>) {
    let rate = |requests| rounded(told.per_second(requests), 1e3);
    encoder.map(5);
    encoder.bulk(b"keys");
    encoder.array(told.keys.len());
    for HotKey { key, requests } in &told.keys {
        encoder.array(3);
        encoder.bulk(key);
        encoder.double(rate(*requests));
        encoder.double(rounded(told.share(*requests), 1e6));
    }
    encoder.bulk(b"skew");
    encoder.double(rounded(told.skew(), 1e3));
    encoder.bulk(b"ratePerSec");
    encoder.double(rate(told.requests()));
    encoder.bulk(b"windowMs");
    encoder.integer(i64::try_from(told.window_ms).unwrap_or(i64::MAX));
    encoder.bulk(b"partial");
    encoder.boolean(told.is_partial);
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
    Ok(Job::SetPolicy { pattern: pattern.to_vec(), policy: policy.map(Box::new) })
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
pub fn check_pattern(pattern: &[u8]) -> Drafted {
    if pattern.is_empty() || pattern.len() > KEY_BYTES_MAX {
        let length = pattern.len();
        return Err(format!("ERR a pattern has 1 to {KEY_BYTES_MAX} bytes, this one has {length}").into());
    }
    Ok(())
}

/// Whether the bytes may be a request id.
pub fn check_id(id: &[u8]) -> Drafted {
    if id.is_empty() || id.len() > ID_BYTES_MAX {
        return Err(format!("ERR an id has 1 to {ID_BYTES_MAX} bytes, this one has {}", id.len()).into());
    }
    Ok(())
}

/// A number that is not negative.
pub fn unsigned(text: &[u8], what: &str) -> Result<u64, Complaint> {
    let number = integer(text)?;
    u64::try_from(number).map_err(|_| format!("ERR the {what} is negative").into())
}

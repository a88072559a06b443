//! Commands that Redis does not have.
//!
//! ```text
//!   Q.ADD key delta [ID id] [MIN n] [MAX n] [SATURATE] [PX ms] [IFVERSION v]   -> [value, applied, version, duplicate]
//!   Q.BATCH producer epoch seq key delta [key delta ...]                       -> [last_seq, duplicate]
//!   Q.STAT key                                                                 -> map
//!   Q.POLICY SET pattern json | GET pattern | LIST | DEL pattern
//! ```

use quipu_counting::{Action, Add, Condition, Counters, Expiry, GroupKind, ID_BYTES_MAX, Policy};
use quipu_wire::json::reply::PolicyReply;
use quipu_wire::json::request::{PolicyBody, parse};
use quipu_wire::resp::{Arguments, Encoder, errors};

use super::{Complaint, Drafted, KEYS_PER_COMMAND_MAX, check_key, integer, is_option};
use crate::resp::background::Job;
use crate::resp::plan::{Draft, Plan};

/// Q.ADD.
pub fn add(draft: &mut Draft, arguments: Arguments<'_, '_>) -> Drafted {
    let Some([_, key, delta]) = arguments.first() else { return Err(errors::wrong_arity("q.add").into()) };
    let mut add = Add::plain(integer(delta)?);
    let mut id: Option<&[u8]> = None;
    let mut words = arguments.tail(3).iter();
    while let Some(word) = words.next() {
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
            let ms = u64::try_from(integer(value)?).ok().filter(|ms| *ms > 0);
            add.expiry = Expiry::In(ms.ok_or_else(|| errors::invalid_expire_time("q.add"))?);
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

/// What Q.POLICY asks for.
pub enum PolicyCommand<'b> {
    /// Changes a policy; that must not keep other connections waiting.
    Change(Job),
    /// Answers the policy of a pattern.
    Get(&'b [u8]),
    /// Answers all policies.
    List,
}

/// Reads Q.POLICY.
pub fn policy<'b>(arguments: Arguments<'_, 'b>) -> Result<PolicyCommand<'b>, Complaint> {
    let (subcommand, operands) = (arguments.get(1).unwrap_or_default(), arguments.tail(2));
    let arity = |name: &str| Complaint::from(errors::wrong_arity(&format!("q.policy|{name}")));
    let change = |pattern: &[u8], policy: Option<Policy>| {
        check_key(pattern)?;
        Ok(PolicyCommand::Change(Job::SetPolicy { pattern: pattern.to_vec(), policy }))
    };
    match (subcommand.to_ascii_lowercase().as_slice(), operands.len()) {
        (b"set", 2) => {
            let [pattern, json] = operands.first().unwrap_or_default();
            let body: Result<PolicyBody, _> = parse(json);
            let policy = body.and_then(|body| body.to_policy());
            change(
                pattern,
                Some(
                    policy
                        .map_err(|error| Complaint::from(format!("ERR the policy is not valid: {error}")))?,
                ),
            )
        }
        (b"set", _) => Err(arity("set")),
        (b"del", 1) => change(operands.name(), None),
        (b"del", _) => Err(arity("del")),
        (b"get", 1) => Ok(PolicyCommand::Get(operands.name())),
        (b"get", _) => Err(arity("get")),
        (b"list", 0) => Ok(PolicyCommand::List),
        (b"list", _) => Err(arity("list")),
        _ => Err(errors::unknown_subcommand("q.policy", subcommand).into()),
    }
}

/// Answers Q.POLICY GET: the policy as JSON, or null.
pub fn answer_policy(counters: &dyn Counters, pattern: &[u8], encoder: &mut Encoder<'_>) {
    match counters.policies().get(pattern) {
        Some(policy) => encoder.bulk(&policy_json(pattern, policy)),
        None => encoder.null(),
    }
}

/// Answers Q.POLICY LIST: every policy as JSON, in the order of their patterns.
pub fn answer_policies(counters: &dyn Counters, encoder: &mut Encoder<'_>) {
    let policies = counters.policies();
    encoder.array(policies.len());
    for (pattern, policy) in policies.iter() {
        encoder.bulk(&policy_json(pattern, policy));
    }
}

fn policy_json(pattern: &[u8], policy: &Policy) -> Vec<u8> {
    // Strings and numbers only: nothing in a policy can fail to be written.
    serde_json::to_vec(&PolicyReply::of(pattern, policy)).unwrap_or_default()
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

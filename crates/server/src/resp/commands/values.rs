//! GET, MGET, SET and the commands Redis had before SET had options.

use quipu_counting::batch::Span;
use quipu_counting::{Action, Condition, Expire, ExpireWhen, Expiry, GroupKind, Set, Unique};
use quipu_wire::resp::{Arguments, errors};

use super::{Complaint, Deadline, Drafted, KEYS_PER_COMMAND_MAX, check_key, check_keys, integer, is_option};
use crate::resp::plan::{Draft, Plan};

/// GET.
#[inline]
pub fn get(draft: &mut Draft, key: &[u8]) -> Drafted {
    check_key(key)?;
    draft.request(key, Action::Read, Plan::Bulk);
    Ok(())
}

/// MGET.
pub fn get_many(draft: &mut Draft, keys: Arguments<'_, '_>) -> Drafted {
    check_keys(keys.iter())?;
    for key in keys.iter() {
        draft.batch.push(key, Action::Read);
    }
    draft.plans.push(Plan::Bulks(keys.len() as u32));
    Ok(())
}

/// SET with all its options.
pub fn set(draft: &mut Draft, arguments: Arguments<'_, '_>, now_ms: u64) -> Drafted {
    let Some([_, key, value]) = arguments.first() else { return Err(errors::wrong_arity("set").into()) };
    let options = SetOptions::read(arguments.tail(3))?;
    let expiry = match options.deadline {
        Some((deadline, text)) => deadline.positive(text, now_ms, "set")?,
        None if options.keep_expiry => Expiry::Keep,
        None => Expiry::Clear,
    };
    let plan = if options.answer_previous { Plan::Previous } else { Plan::OkOrNull };
    replace(draft, key, value, expiry, options.condition, plan)
}

/// SETNX.
pub fn set_if_absent(draft: &mut Draft, key: &[u8], value: &[u8]) -> Drafted {
    replace(draft, key, value, Expiry::Clear, Condition::Absent, Plan::Held)
}

/// SETEX and PSETEX.
pub fn set_with_expiry(
    draft: &mut Draft,
    arguments: Arguments<'_, '_>,
    deadline: Deadline,
    now_ms: u64,
    command: &str,
) -> Drafted {
    let Some([_, key, time, value]) = arguments.first() else {
        return Err(errors::wrong_arity(command).into());
    };
    let expiry = deadline.positive(time, now_ms, command)?;
    replace(draft, key, value, expiry, Condition::Always, Plan::OkOrNull)
}

/// GETSET.
pub fn get_and_set(draft: &mut Draft, key: &[u8], value: &[u8]) -> Drafted {
    replace(draft, key, value, Expiry::Clear, Condition::Always, Plan::Previous)
}

/// GETDEL.
pub fn get_and_delete(draft: &mut Draft, key: &[u8]) -> Drafted {
    check_key(key)?;
    draft.request(key, Action::Delete(Condition::Always), Plan::Previous);
    Ok(())
}

/// GETEX.
pub fn get_and_expire(draft: &mut Draft, arguments: Arguments<'_, '_>, now_ms: u64) -> Drafted {
    let key = arguments.get(1).unwrap_or_default();
    check_key(key)?;
    let mut persist = false;
    let mut deadline: Option<(Deadline, &[u8])> = None;
    let mut words = arguments.tail(2).iter();
    while let Some(word) = words.next() {
        if is_option(word, "persist") && deadline.is_none() {
            persist = true;
        } else {
            read_deadline(word, &mut words, &mut deadline, persist)?;
        }
    }
    let expiry = match deadline {
        Some((deadline, text)) => match deadline.positive(text, now_ms, "getex") {
            Ok(expiry) => expiry,
            Err(complaint) => {
                // Redis looks for the key first, and of one that is not there no time is wrong.
                draft.request_or_complain(key, &complaint.0);
                return Ok(());
            }
        },
        None if persist => Expiry::Clear,
        None => return get(draft, key),
    };
    draft.request(key, Action::Expire(Expire { expiry, when: ExpireWhen::Always }), Plan::Previous);
    Ok(())
}

/// MSET: all or none, as in Redis, where one bad value must not leave half of the keys changed.
pub fn set_many(draft: &mut Draft, pairs: Arguments<'_, '_>) -> Drafted {
    if !pairs.len().is_multiple_of(2) {
        return Err(errors::wrong_arity("mset").into());
    }
    if pairs.len() / 2 > KEYS_PER_COMMAND_MAX {
        return Err(format!("ERR too many keys in one command, at most {KEYS_PER_COMMAND_MAX}").into());
    }
    let mut words = pairs.iter();
    while let (Some(key), Some(value)) = (words.next(), words.next()) {
        check_key(key)?;
        integer(value)?;
    }
    let start = draft.batch.requests.len();
    let mut words = pairs.iter();
    while let (Some(key), Some(value)) = (words.next(), words.next()) {
        let set = Set { value: integer(value)?, expiry: Expiry::Clear, condition: Condition::Always };
        draft.batch.push(key, Action::Overwrite(set));
    }
    draft.batch.group(start, GroupKind::Atomic);
    draft.plans.push(Plan::OkForAll((pairs.len() / 2) as u32));
    Ok(())
}

fn replace(
    draft: &mut Draft,
    key: &[u8],
    value: &[u8],
    expiry: Expiry,
    condition: Condition,
    plan: Plan,
) -> Drafted {
    check_key(key)?;
    if let Some(sketch) = sketch(draft, value) {
        draft.request(key, Action::Replace { sketch, expiry, condition }, plan);
        return Ok(());
    }
    let value = integer(value)?;
    draft.request(key, Action::Overwrite(Set { value, expiry, condition }), plan);
    Ok(())
}

/// The value of a counter of uniques, as Redis has it.
pub fn sketch(draft: &mut Draft, value: &[u8]) -> Option<Span> {
    let sketch = value.starts_with(b"HYLL").then(|| Unique::from_redis(value).ok()).flatten()?;
    let mut stored = Vec::new();
    sketch.put(&mut stored);
    Some(draft.batch.intern(&stored))
}

/// The options of SET as they stand in the command.
struct SetOptions<'b> {
    condition: Condition,
    deadline: Option<(Deadline, &'b [u8])>,
    keep_expiry: bool,
    answer_previous: bool,
}

impl<'b> SetOptions<'b> {
    /// Which options exclude each other, and which may be repeated, is as in Redis.
    fn read(words: Arguments<'_, 'b>) -> Result<SetOptions<'b>, Complaint> {
        let mut options = SetOptions {
            condition: Condition::Always,
            deadline: None,
            keep_expiry: false,
            answer_previous: false,
        };
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if is_option(word, "nx") && options.condition != Condition::Exists {
                options.condition = Condition::Absent;
            } else if is_option(word, "xx") && options.condition != Condition::Absent {
                options.condition = Condition::Exists;
            } else if is_option(word, "get") {
                options.answer_previous = true;
            } else if is_option(word, "keepttl") && options.deadline.is_none() {
                options.keep_expiry = true;
            } else {
                read_deadline(word, &mut words, &mut options.deadline, options.keep_expiry)?;
            }
        }
        Ok(options)
    }
}

/// Reads `EX seconds` or its kin. The same option again replaces the first; another one is an error.
fn read_deadline<'b>(
    word: &[u8],
    words: &mut impl Iterator<Item = &'b [u8]>,
    place: &mut Option<(Deadline, &'b [u8])>,
    excluded: bool,
) -> Drafted {
    let deadline = Deadline::from_option(word).ok_or(errors::SYNTAX)?;
    let text = words.next().ok_or(errors::SYNTAX)?;
    if excluded || place.is_some_and(|(before, _)| before != deadline) {
        return Err(errors::SYNTAX.into());
    }
    *place = Some((deadline, text));
    Ok(())
}

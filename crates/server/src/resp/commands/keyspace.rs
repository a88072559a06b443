//! Commands about keys as such: whether they exist, when they expire, how many there are, and their end.

use quipu_counting::{Action, Condition, Expire, ExpireWhen, Expiry, GroupKind};
use quipu_wire::resp::{Arguments, errors};

use super::{Complaint, Deadline, Drafted, check_key, check_keys, is_option};
use crate::resp::plan::{Draft, Plan};

/// DEL and UNLINK. Several keys go all or none: an error then means that nothing was deleted.
pub fn delete(draft: &mut Draft, keys: Arguments<'_, '_>) -> Drafted {
    check_keys(keys.iter())?;
    let start = draft.batch.requests.len();
    for key in keys.iter() {
        draft.batch.push(key, Action::Delete(Condition::Always));
    }
    if keys.len() > 1 {
        draft.batch.group(start, GroupKind::Atomic);
    }
    draft.plans.push(Plan::CountExisted(keys.len() as u32));
    Ok(())
}

/// EXISTS; a key named twice counts twice.
pub fn exists(draft: &mut Draft, keys: Arguments<'_, '_>) -> Drafted {
    check_keys(keys.iter())?;
    for key in keys.iter() {
        draft.batch.push(key, Action::Read);
    }
    draft.plans.push(Plan::CountExisting(keys.len() as u32));
    Ok(())
}

/// TYPE, TTL, PTTL, EXPIRETIME, PEXPIRETIME: a look at one counter, told as `plan` says.
pub fn look(draft: &mut Draft, key: &[u8], plan: Plan) -> Drafted {
    check_key(key)?;
    draft.request(key, Action::Read, plan);
    Ok(())
}

/// EXPIRE and its kin.
pub fn expire(
    draft: &mut Draft,
    arguments: Arguments<'_, '_>,
    deadline: Deadline,
    now_ms: u64,
    command: &str,
) -> Drafted {
    let Some([_, key, time]) = arguments.first() else { return Err(errors::wrong_arity(command).into()) };
    let when = expire_when(arguments.tail(3))?;
    let expiry = deadline.any(time, now_ms, command)?;
    check_key(key)?;
    draft.request(key, Action::Expire(Expire { expiry, when }), Plan::Held);
    Ok(())
}

/// PERSIST.
pub fn persist(draft: &mut Draft, key: &[u8]) -> Drafted {
    check_key(key)?;
    draft.request(key, Action::Expire(Expire { expiry: Expiry::Clear, when: ExpireWhen::Some }), Plan::Held);
    Ok(())
}

/// DBSIZE.
pub fn count(draft: &mut Draft) -> Drafted {
    draft.request(b"", Action::Count, Plan::Count);
    Ok(())
}

/// FLUSHALL and FLUSHDB. The log makes both forms equally fast, so ASYNC and SYNC mean the same.
pub fn clear(draft: &mut Draft, options: Arguments<'_, '_>) -> Drafted {
    match options.first() {
        None if options.is_empty() => {}
        Some([option]) if options.len() == 1 && (is_option(option, "async") || is_option(option, "sync")) => {
        }
        _ => return Err(errors::SYNTAX.into()),
    }
    draft.request(b"", Action::Clear, Plan::Ok);
    Ok(())
}

fn expire_when(options: Arguments<'_, '_>) -> Result<ExpireWhen, Complaint> {
    let (mut none, mut some, mut later, mut earlier) = (false, false, false, false);
    for option in options.iter() {
        let flag = match () {
            () if is_option(option, "nx") => &mut none,
            () if is_option(option, "xx") => &mut some,
            () if is_option(option, "gt") => &mut later,
            () if is_option(option, "lt") => &mut earlier,
            () => return Err(errors::quoting("ERR Unsupported option ", option, "").into()),
        };
        *flag = true;
    }
    match (none, some, later, earlier) {
        (true, false, false, false) => Ok(ExpireWhen::None),
        (true, ..) => Err(errors::EXPIRE_NX_CONFLICT.into()),
        (_, _, true, true) => Err(errors::EXPIRE_GT_LT_CONFLICT.into()),
        (_, false, false, false) => Ok(ExpireWhen::Always),
        (_, true, false, false) => Ok(ExpireWhen::Some),
        (_, false, true, _) => Ok(ExpireWhen::Later),
        (_, false, _, true) => Ok(ExpireWhen::Earlier),
        (_, true, true, _) => Ok(ExpireWhen::SomeAndLater),
        (_, true, _, true) => Ok(ExpireWhen::SomeAndEarlier),
    }
}

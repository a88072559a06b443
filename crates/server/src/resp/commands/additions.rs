//! INCR, DECR, INCRBY, DECRBY and INCREX.

use quipu_counting::{Action, Add, Expiry};
use quipu_wire::resp::{Arguments, errors};

use super::{Complaint, Deadline, Drafted, check_key, integer, is_option};
use crate::resp::plan::{Draft, Plan};

/// INCR and DECR.
#[inline]
pub fn add(draft: &mut Draft, key: &[u8], delta: i64) -> Drafted {
    check_key(key)?;
    draft.request(key, Action::Add(Add::plain(delta)), Plan::Integer);
    Ok(())
}

/// INCRBY.
#[inline]
pub fn increase_by(draft: &mut Draft, key: &[u8], amount: &[u8]) -> Drafted {
    add(draft, key, integer(amount)?)
}

/// DECRBY.
pub fn decrease_by(draft: &mut Draft, key: &[u8], amount: &[u8]) -> Drafted {
    let amount = integer(amount)?;
    let delta = amount.checked_neg().ok_or(errors::DECREMENT_WOULD_OVERFLOW)?;
    add(draft, key, delta)
}

/// INCREX, as in Redis 8.8: options in any order, each at most once.
pub fn increase_extended(draft: &mut Draft, arguments: Arguments<'_, '_>, now_ms: u64) -> Drafted {
    let key = arguments.get(1).unwrap_or_default();
    let options = Options::read(arguments.tail(2))?;
    let bound = |text: Option<&[u8]>, name: &str, unless: i64| match text {
        None => Ok(unless),
        Some(text) => integer(text)
            .map_err(|_| Complaint::from(format!("ERR {name} is not an integer or out of range"))),
    };
    let delta = bound(options.delta, "Increment", 1)?;
    let min = bound(options.lower, "LBOUND", i64::MIN)?;
    let max = bound(options.upper, "UBOUND", i64::MAX)?;
    if min > max {
        return Err("ERR LBOUND can't be greater than UBOUND".into());
    }
    let expiry = match options.deadline {
        None if options.persist => Expiry::Clear,
        None => Expiry::Keep,
        Some((deadline, text)) => {
            match (deadline.positive(text, now_ms, "increx")?, options.only_without_expiry) {
                (Expiry::In(ms), true) => Expiry::InIfNone(ms),
                (Expiry::At(ms), true) => Expiry::AtIfNone(ms),
                (expiry, _) => expiry,
            }
        }
    };
    check_key(key)?;
    let action = Action::Add(Add { min, max, saturate: options.saturate, expiry, ..Add::plain(delta) });
    let plan = if options.saturate { Plan::SaturatedAndApplied } else { Plan::ValueAndApplied };
    draft.request(key, action, plan);
    Ok(())
}

/// The options of INCREX as they stand in the command.
#[derive(Default)]
struct Options<'b> {
    delta: Option<&'b [u8]>,
    float: Option<&'b [u8]>,
    lower: Option<&'b [u8]>,
    upper: Option<&'b [u8]>,
    deadline: Option<(Deadline, &'b [u8])>,
    saturate: bool,
    persist: bool,
    only_without_expiry: bool,
}

impl<'b> Options<'b> {
    fn read(words: Arguments<'_, 'b>) -> Result<Options<'b>, Complaint> {
        let mut options = Options::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let value_of = |place: &mut Option<&'b [u8]>, value: Option<&'b [u8]>| match (value, &place) {
                (Some(value), None) => {
                    *place = Some(value);
                    Ok(())
                }
                _ => Err(Complaint::from(errors::SYNTAX)),
            };
            let set = |flag: &mut bool| {
                let before = std::mem::replace(flag, true);
                if before { Err(Complaint::from(errors::SYNTAX)) } else { Ok(()) }
            };
            if is_option(word, "byint") && options.float.is_none() {
                value_of(&mut options.delta, words.next())?;
            } else if is_option(word, "byfloat") && options.delta.is_none() {
                value_of(&mut options.float, words.next())?;
            } else if is_option(word, "lbound") {
                value_of(&mut options.lower, words.next())?;
            } else if is_option(word, "ubound") {
                value_of(&mut options.upper, words.next())?;
            } else if is_option(word, "saturate") {
                set(&mut options.saturate)?;
            } else if is_option(word, "persist") {
                set(&mut options.persist)?;
            } else if is_option(word, "enx") {
                set(&mut options.only_without_expiry)?;
            } else {
                let deadline = Deadline::from_option(word).ok_or(errors::SYNTAX)?;
                let text = words.next().ok_or(errors::SYNTAX)?;
                if options.deadline.replace((deadline, text)).is_some() {
                    return Err(errors::SYNTAX.into());
                }
            }
        }
        match (options.persist, options.deadline.is_some(), options.only_without_expiry) {
            (true, true, _) | (true, _, true) => Err(errors::SYNTAX.into()),
            (false, false, true) => Err("ERR ENX flag requires an expiration".into()),
            _ if options.float.is_some() => Err("ERR BYFLOAT is not supported: counters are integers".into()),
            _ => Ok(options),
        }
    }
}

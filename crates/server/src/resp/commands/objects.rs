//! OBJECT, MEMORY USAGE, DUMP and RESTORE: a counter as Redis would keep it.

use quipu_counting::kinds::read_restored as read_restored_whole;
use quipu_counting::{Action, Condition, Expiry, Set, Unique};
use quipu_wire::commands::Command;
use quipu_wire::dump::{DumpError, Value, read_value};
use quipu_wire::number::parse_i64;
use quipu_wire::resp::{Arguments, errors};

use super::keyspace::look;
use super::{Complaint, Drafted, check_key, integer, is_option};
use crate::resp::plan::{Draft, Plan};

/// OBJECT ENCODING, FREQ, IDLETIME and REFCOUNT.
pub fn object(draft: &mut Draft, command: Command, key: &[u8]) -> Drafted {
    match command {
        Command::ObjectEncoding => look(draft, key, Plan::Encoding),
        Command::ObjectIdleTime => look(draft, key, Plan::IdleTime),
        Command::ObjectRefCount => look(draft, key, Plan::ReferenceCount),
        _ => {
            check_key(key)?;
            draft.request_or_complain(key, errors::NO_FREQUENCY.as_bytes());
            Ok(())
        }
    }
}

/// MEMORY USAGE. There is nothing to sample, but the option is read as Redis reads it.
pub fn usage(draft: &mut Draft, arguments: Arguments<'_, '_>) -> Drafted {
    let key = arguments.get(2).unwrap_or_default();
    let mut words = arguments.tail(3).iter();
    while let Some(word) = words.next() {
        let count = words.next().filter(|_| is_option(word, "samples")).ok_or(errors::SYNTAX)?;
        if integer(count)? < 0 {
            return Err(errors::SYNTAX.into());
        }
    }
    look(draft, key, Plan::Usage(key.len() as u32))
}

/// RESTORE.
pub fn restore(draft: &mut Draft, arguments: Arguments<'_, '_>) -> Drafted {
    let Some([_, key, time, payload]) = arguments.first() else {
        return Err(errors::wrong_arity("restore").into());
    };
    let options = RestoreOptions::read(arguments.tail(4))?;
    check_key(key)?;
    let (value, expiry) = match read_restored(time, payload, options.is_absolute) {
        Ok(restored) => restored,
        Err(complaint) if options.replaces => return Err(complaint),
        // That the key exists is said before anything that is wrong with the rest.
        Err(complaint) => {
            let length = draft.hold_error(&complaint.0);
            draft.request(key, Action::Read, Plan::BusyOrError(length));
            return Ok(());
        }
    };
    let condition = if options.replaces { Condition::Always } else { Condition::Absent };
    let action = match value {
        Restored::Integer(value) => Action::Overwrite(Set { value, expiry, condition }),
        Restored::Sketch(unique) => {
            let mut stored = Vec::new();
            unique.put(&mut stored);
            Action::Replace { sketch: draft.batch.intern(&stored), expiry, condition }
        }
        Restored::Whole(whole) => Action::Restore { whole: draft.batch.intern(&whole), expiry, condition },
    };
    draft.request(key, action, Plan::Restored);
    Ok(())
}

/// What a payload holds.
enum Restored {
    Integer(i64),
    Sketch(Unique),
    /// As `quipu export` has it.
    Whole(Vec<u8>),
}

fn read_restored(time: &[u8], payload: &[u8], is_absolute: bool) -> Result<(Restored, Expiry), Complaint> {
    let ms = u64::try_from(integer(time)?).map_err(|_| "ERR Invalid TTL value, must be >= 0")?;
    let value = read_value(payload).map_err(|error| match error {
        DumpError::Footer => "ERR DUMP payload version or checksum are wrong",
        DumpError::NotAString => errors::NOT_AN_INTEGER,
        DumpError::Malformed => "ERR Bad data format",
    })?;
    let value = match value {
        Value::Integer(value) => Restored::Integer(value),
        Value::Whole(whole) if read_restored_whole(&whole).is_some() => Restored::Whole(whole),
        Value::Whole(_) => return Err("ERR Bad data format".into()),
        Value::Text(text) => match (parse_i64(&text), Unique::from_redis(&text)) {
            (Some(value), _) => Restored::Integer(value),
            (None, Ok(unique)) => Restored::Sketch(unique),
            (None, Err(_)) => return Err(errors::NOT_AN_INTEGER.into()),
        },
    };
    let expiry = match ms {
        0 => Expiry::Clear,
        ms if is_absolute => Expiry::At(ms),
        // So far away that Redis's sum with the present is a past time.
        ms if ms > i64::MAX as u64 - (1 << 42) => Expiry::At(1),
        ms => Expiry::In(ms),
    };
    Ok((value, expiry))
}

/// The options of RESTORE. How idle and how frequent a key was is checked and not kept.
#[derive(Default)]
struct RestoreOptions {
    replaces: bool,
    is_absolute: bool,
}

impl RestoreOptions {
    fn read(words: Arguments<'_, '_>) -> Result<RestoreOptions, Complaint> {
        let mut options = RestoreOptions::default();
        let (mut idle, mut frequency) = (false, false);
        let mut words = words.iter();
        while let Some(word) = words.next() {
            if is_option(word, "replace") {
                options.replaces = true;
            } else if is_option(word, "absttl") {
                options.is_absolute = true;
            } else if is_option(word, "idletime") && !frequency {
                if integer(words.next().ok_or(errors::SYNTAX)?)? < 0 {
                    return Err("ERR Invalid IDLETIME value, must be >= 0".into());
                }
                idle = true;
            } else if is_option(word, "freq") && !idle {
                if !(0..=255).contains(&integer(words.next().ok_or(errors::SYNTAX)?)?) {
                    return Err("ERR Invalid FREQ value, must be >= 0 and <= 255".into());
                }
                frequency = true;
            } else {
                return Err(errors::SYNTAX.into());
            }
        }
        Ok(options)
    }
}

//! Whether what the engine says is what the model expects.

use quipu_counting::{Cell, Kind, NEVER, Refusal, Reply};

use super::births::Births;
use super::model::Expected;
use super::rules::{Counter, Told};

/// Compares a reply with what was expected and learns the births it shows. `Err` names the difference.
pub fn compare(expected: &Expected, reply: &Reply, births: &mut Births) -> Result<(), String> {
    let told = match expected {
        Expected::One(told) => told,
        Expected::Count { low, high } => {
            let count = reply.cell.value as u64;
            return match (*low..=*high).contains(&count) {
                true => Ok(()),
                false => Err(format!("counted {count}, expected {low} to {high}")),
            };
        }
    };
    let number = told.born.and_then(|ticket| births.number(ticket));
    let mut wanted = as_reply(told, number.unwrap_or(reply.cell.birth));
    if told.duplicate || told.refusal == Some(Refusal::IdReused) {
        // The time of the last change is not among what is remembered of a request: it may be told or not.
        wanted.cell.updated_at_ms = reply.cell.updated_at_ms;
    }
    if wanted != *reply {
        return Err(format!("answered {reply:?}, expected {wanted:?}"));
    }
    match told.born {
        None if reply.cell.birth != 0 => Err(format!("a birth where there is no counter: {reply:?}")),
        Some(ticket) if !births.learn(ticket, reply.cell.birth) => {
            Err(format!("the birth of {reply:?} was given to an earlier life of the counter"))
        }
        _ => Ok(()),
    }
}

fn as_reply(told: &Told, birth: u64) -> Reply {
    let clamp = |number: i128| number.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
    Reply {
        refusal: told.refusal,
        duplicate: told.duplicate,
        existed: told.existed,
        exists: told.exists,
        previous: clamp(told.previous),
        applied: clamp(told.applied),
        cell: Cell {
            value: clamp(told.value),
            version: told.version,
            updated_at_ms: told.changed_at,
            birth,
            expires_at_ms: told.expires.unwrap_or(NEVER),
        },
        kind: Kind::Sum,
        detail: None,
    }
}

/// Whether a cell that was read is this counter; births that were never shown may be any new number.
pub fn is_counter(counter: Option<&Counter>, cell: Option<&Cell>, births: &Births) -> bool {
    match (counter, cell) {
        (None, None) => true,
        (Some(counter), Some(cell)) => {
            i128::from(cell.value) == counter.value
                && cell.version == counter.changes
                && cell.updated_at_ms == counter.changed_at
                && cell.expires_at_ms == counter.expires.unwrap_or(NEVER)
                && births.fits(counter.born, cell.birth)
        }
        _ => false,
    }
}

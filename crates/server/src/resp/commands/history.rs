//! Q.HISTORY: what a counter's value was.
//!
//! ```text
//!   Q.HISTORY key AT ms                                        -> [time_ms, value], or null where it is not known
//!   Q.HISTORY key MINUTE|HOUR|DAY [FROM ms] [TO ms]            -> [[time_ms, value], ...]
//! ```

use quipu_counting::{Action, Reply};
use quipu_wire::json::history::{Past, StepName, known};
use quipu_wire::resp::{Arguments, Encoder, errors};

use super::own::unsigned;
use super::{Drafted, check_key, is_option};
use crate::resp::plan::{Draft, Plan};

/// Reads what is asked for, and has the counter read. Nobody knows the future: what lies there is asked of the present.
pub fn points(draft: &mut Draft, arguments: Arguments<'_, '_>, now_ms: u64) -> Drafted {
    let mut words = arguments.tail(2).iter();
    let word = words.next().ok_or(errors::SYNTAX)?;
    let past = if is_option(word, "at") {
        Past::At(unsigned(words.next().ok_or(errors::SYNTAX)?, "time")?.min(now_ms))
    } else {
        let step = std::str::from_utf8(word).ok().map(str::to_ascii_lowercase);
        let step = step.as_deref().and_then(StepName::parse).ok_or(errors::SYNTAX)?;
        let (mut from, mut to) = (None, None);
        while let Some(word) = words.next() {
            let value = words.next().ok_or(errors::SYNTAX)?;
            let place = match () {
                () if is_option(word, "from") => &mut from,
                () if is_option(word, "to") => &mut to,
                () => return Err(errors::SYNTAX.into()),
            };
            if place.replace(unsigned(value, "time")?).is_some() {
                return Err(errors::SYNTAX.into());
            }
        }
        Past::points(step, from, to, now_ms).ok_or("ERR TO is earlier than FROM")?
    };
    if words.next().is_some() {
        return Err(errors::SYNTAX.into());
    }
    let key = arguments.get(1).unwrap_or_default();
    check_key(key)?;
    let (kind, from_ms, to_ms) = match past {
        Past::At(at_ms) => (0, at_ms, at_ms),
        Past::Points { step, from_ms, to_ms } => (step as u8 + 1, from_ms, to_ms),
    };
    draft.literals.push(kind);
    draft.literals.extend_from_slice(&from_ms.to_le_bytes());
    draft.literals.extend_from_slice(&to_ms.to_le_bytes());
    draft.request(key, Action::Read, Plan::History);
    Ok(())
}

/// The most points of one answer: a day of minutes, and some.
const POINTS_MAX: usize = 1_500;
/// How many literal bytes say what is asked for.
pub const PAST_BYTES: u32 = 17;

/// What these bytes say.
fn past_of(bytes: &[u8]) -> Option<Past> {
    let (kind, times) = bytes.split_first()?;
    let (from_ms, to_ms) = times.split_first_chunk()?;
    let (from_ms, to_ms) = (u64::from_le_bytes(*from_ms), u64::from_le_bytes(to_ms.try_into().ok()?));
    Some(match kind {
        0 => Past::At(from_ms),
        1 => Past::Points { step: StepName::Minute, from_ms, to_ms },
        2 => Past::Points { step: StepName::Hour, from_ms, to_ms },
        _ => Past::Points { step: StepName::Day, from_ms, to_ms },
    })
}

/// Answers what these literal bytes ask of a counter.
pub fn encode(asked: &[u8], reply: &Reply, encoder: &mut Encoder<'_>) {
    let Some(past) = past_of(asked) else { return encoder.null() };
    let points = known(reply, past);
    let is_one = matches!(past, Past::At(_));
    if is_one && points.is_empty() {
        return encoder.null();
    }
    if points.len() > POINTS_MAX {
        return encoder
            .error(format!("ERR more than {POINTS_MAX} points: ask for fewer at once, with FROM and TO"));
    }
    if !is_one {
        encoder.array(points.len());
    }
    for (at_ms, value) in points {
        encoder.array(2);
        encoder.integer(i64::try_from(at_ms).unwrap_or(i64::MAX));
        encoder.integer(value);
    }
}

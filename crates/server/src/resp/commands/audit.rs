//! Q.ADJUST and Q.AUDIT: a correction that says why, and who changed a counter, when and why.
//!
//! ```text
//!   Q.ADJUST key delta reason [ID id]   -> [value, applied, version, duplicate]
//!   Q.AUDIT key [COUNT n]               -> a map for every change, the newest first
//! ```

use quipu_counting::audit::AUDIT_PAGE_MAX;
use quipu_counting::told::REASON_BYTES_MAX;
use quipu_counting::{Action, Add, AuditQuery, Counters, Deed, Told, Unavailable};
use quipu_wire::resp::{Arguments, Encoder, errors};

use super::own::check_id;
use super::{Complaint, Drafted, check_key, integer, is_option};
use crate::resp::background::Job;
use crate::resp::plan::{Draft, Plan};

/// Changes of one reply where the command does not say.
const COUNT_DEFAULT: usize = 100;

/// Q.ADJUST.
pub fn adjust(draft: &mut Draft, arguments: Arguments<'_, '_>) -> Drafted {
    let Some([_, key, delta, reason]) = arguments.first() else {
        return Err(errors::wrong_arity("q.adjust").into());
    };
    check_key(key)?;
    let add = Add::plain(integer(delta)?);
    let text = std::str::from_utf8(reason).ok().filter(|text| (1..=REASON_BYTES_MAX).contains(&text.len()));
    let reason = text.ok_or_else(|| format!("ERR a reason has 1 to {REASON_BYTES_MAX} bytes of UTF-8"))?;
    let options = arguments.tail(4);
    let id = match (options.get(0), options.get(1), options.len()) {
        (None, ..) => None,
        (Some(word), Some(id), 2) if is_option(word, "id") => Some(id),
        _ => return Err(errors::SYNTAX.into()),
    };
    id.map_or(Ok(()), check_id)?;
    let mut told = Vec::new();
    Told { reason: Some(reason), ..Told::default() }.put(&mut told);
    let told = draft.batch.intern(&told);
    match id {
        Some(id) => draft.batch.push_with_id(key, Action::Told { add, told }, id, 0),
        None => draft.batch.push(key, Action::Told { add, told }),
    };
    draft.plans.push(Plan::Addition);
    Ok(())
}

/// Reads Q.AUDIT.
pub fn audit(arguments: Arguments<'_, '_>) -> Result<Job, Complaint> {
    let key = arguments.get(1).unwrap_or_default();
    check_key(key)?;
    let options = arguments.tail(2);
    let count = match (options.get(0), options.get(1), options.len()) {
        (None, ..) => COUNT_DEFAULT,
        (Some(word), Some(count), 2) if is_option(word, "count") => {
            let within = usize::try_from(integer(count)?).ok().filter(|n| (1..=AUDIT_PAGE_MAX).contains(n));
            within.ok_or_else(|| format!("ERR COUNT is from 1 to {AUDIT_PAGE_MAX}"))?
        }
        _ => return Err(errors::SYNTAX.into()),
    };
    Ok(Job::Audit { key: key.to_vec(), count })
}

/// Carries out Q.AUDIT.
pub fn answer_audit(
    counters: &dyn Counters,
    (key, count): (&[u8], usize),
    now_ms: u64,
    encoder: &mut Encoder<'_>,
) -> Result<(), Unavailable> {
    let query = AuditQuery { key: key.to_vec(), from_ms: 0, to_ms: u64::MAX, before: None, limit: count };
    let page = counters.audit(&query, now_ms)?;
    if page.is_of_nothing() {
        encoder.error("ERR no policy has a trail kept of this key, and there is none from before");
        return Ok(());
    }
    encoder.array(page.changes.len());
    for change in &page.changes {
        encoder.map(10);
        encoder.bulk(b"at");
        encoder.integer(clamped(change.at_ms));
        encoder.bulk(b"action");
        encoder.bulk(change.deed.name().as_bytes());
        encoder.bulk(b"applied");
        match change.deed {
            Deed::Clear => encoder.null(),
            _ => encoder.integer(change.applied),
        }
        encoder.bulk(b"held");
        encoder.integer(change.held);
        encoder.bulk(b"value");
        encoder.integer(change.value);
        encoder.bulk(b"version");
        encoder.integer(clamped(change.version));
        let by = change.by.as_ref();
        let texts = [
            ("requestId", change.shown_request_id()),
            ("reason", change.reason.as_deref().map(str::as_bytes)),
            ("name", by.map(|by| by.name.as_bytes()).filter(|name| !name.is_empty())),
            ("address", by.map(|by| by.address.as_bytes())),
        ];
        for (name, text) in texts {
            encoder.bulk(name.as_bytes());
            match text {
                Some(text) => encoder.bulk(text),
                None => encoder.null(),
            }
        }
    }
    Ok(())
}

fn clamped(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

//! Commands for counters that are more than a number: uniques, windows, quotas and amounts set aside.
//!
//! ```text
//!   PFADD key [item ...]                                       -> 1 if the sketch changed
//!   PFCOUNT key [key ...]                                      -> how many different items
//!   PFMERGE destination [source ...]                           -> OK
//!   Q.OBSERVE key [AT ms] [ID id] ITEMS item [item ...]        -> [estimate, changed, exact, duplicate]
//!   Q.WGET key last_ms                                         -> what was counted in the last so many milliseconds
//!   Q.ACQUIRE key amount limit window_ms [SOFT] [ID id]        -> [allowed, remaining, reset_ms]
//!   Q.ACQUIREALL id key amount limit window_ms [...]           -> [allowed, which, remaining, reset_ms]
//!   Q.HOLD key amount ttl_ms [MIN n] [MAX n] [ID id]           -> [hold, expires_at_ms]
//!   Q.COMMIT hold [amount] | Q.VOID hold                       -> [value, applied, version, duplicate]
//! ```

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::channel;

use quipu_counting::body::{State, put_frame};
use quipu_counting::hold::{HoldId, TTL_MS_MAX};
use quipu_counting::kinds::visitors;
use quipu_counting::unique::{Unique, hash};
use quipu_counting::{
    Acquire, Action, Add, Batch, Counters, Detail, Ending, Execution, GroupKind, Origin, Refusal, Reply,
    Unavailable,
};
use quipu_wire::json::quota::LIMITS_MAX;
use quipu_wire::json::unique::ITEMS_MAX;
use quipu_wire::json::window::sliding;
use quipu_wire::refusal::error_line;
use quipu_wire::resp::{Arguments, Encoder, errors};

use super::own::{check_id, unsigned};
use super::{Complaint, Drafted, check_key, check_keys, integer, is_option};
use crate::resp::background::Job;
use crate::resp::plan::{Draft, Plan};

/// Items of one request; what has more is asked in several.
const ITEMS_PER_REQUEST: usize = 8_192;

/// PFADD.
pub fn observe(draft: &mut Draft, key: &[u8], items: Arguments<'_, '_>) -> Drafted {
    check_key(key)?;
    let mut items = items.iter();
    let requests = items.len().div_ceil(ITEMS_PER_REQUEST).max(1);
    for _ in 0..requests {
        let hashes: Vec<u8> =
            items.by_ref().take(ITEMS_PER_REQUEST).flat_map(|item| hash(item).to_le_bytes()).collect();
        let items = draft.batch.intern(&hashes);
        draft.batch.push(key, Action::Observe { items, at_ms: None });
    }
    draft.plans.push(Plan::Observed(requests as u32));
    Ok(())
}

/// Q.OBSERVE.
pub fn observe_at(draft: &mut Draft, arguments: Arguments<'_, '_>) -> Drafted {
    let (mut id, mut at_ms) = (None, None);
    let mut words = arguments.tail(2).iter();
    loop {
        let word = words.next().ok_or(errors::SYNTAX)?;
        if is_option(word, "items") {
            break;
        }
        let value = words.next().ok_or(errors::SYNTAX)?;
        if is_option(word, "at") && at_ms.is_none() {
            at_ms = Some(unsigned(value, "time")?);
        } else if is_option(word, "id") && id.is_none() {
            check_id(value)?;
            id = Some(value);
        } else {
            return Err(errors::SYNTAX.into());
        }
    }
    if !(1..=ITEMS_MAX).contains(&words.len()) {
        return Err(format!("ERR one call takes 1 to {ITEMS_MAX} items, send several").into());
    }
    let key = arguments.get(1).unwrap_or_default();
    check_key(key)?;
    let hashes: Vec<u8> = words.flat_map(|item| hash(item).to_le_bytes()).collect();
    let items = draft.batch.intern(&hashes);
    push(draft, key, Action::Observe { items, at_ms }, id);
    draft.plans.push(Plan::Seen);
    Ok(())
}

/// PFCOUNT.
pub fn estimate(draft: &mut Draft, keys: Arguments<'_, '_>) -> Drafted {
    check_keys(keys.iter())?;
    for key in keys.iter() {
        draft.batch.push(key, Action::Read);
    }
    draft.plans.push(Plan::Estimate(keys.len() as u32));
    Ok(())
}

/// What the counters of several replies have seen in all. A counter that does not exist has seen nothing.
pub fn union(replies: &[Reply], now_ms: u64) -> Result<Unique, Refusal> {
    let mut all = Unique::new();
    for reply in replies {
        match (reply.refusal, reply.detail.as_deref()) {
            (Some(refusal), _) => return Err(refusal),
            (None, Some(Detail::Body(body, frame))) => match (&body.state, frame) {
                (State::Unique(unique), _) if replies.len() == 1 => return Ok(unique.clone()),
                (State::Unique(unique), _) => {
                    all.merge(unique);
                }
                (State::Visitors(..), Some(frame)) => {
                    all.merge(&visitors(body, &frame.window(reply.as_of_ms(now_ms))));
                }
                _ => return Err(Refusal::WrongKind),
            },
            (None, _) if reply.exists => return Err(Refusal::WrongKind),
            (None, _) => {}
        }
    }
    Ok(all)
}

/// PFMERGE: a job, because it reads before it writes.
pub fn merge(keys: Arguments<'_, '_>) -> Result<Job, Complaint> {
    check_keys(keys.iter())?;
    let sources = keys.tail(1).iter().map(<[u8]>::to_vec).collect();
    Ok(Job::Merge { destination: keys.name().to_vec(), sources, by: None })
}

/// PFMERGE, in the background: what the sources have seen is read first, and then shown to the destination. Seeing is never undone,
/// so what comes in between does no harm.
pub fn answer_merge(
    counters: &dyn Counters,
    (destination, sources, by): (&[u8], &[Vec<u8>], Option<&Arc<Origin>>),
    now_ms: u64,
    encoder: &mut Encoder<'_>,
) -> Result<(), Unavailable> {
    let mut batch = Batch::default();
    for source in sources {
        batch.push(source, Action::Read);
    }
    let read = run(counters, batch, now_ms)?;
    let all = match union(&read.replies, now_ms) {
        Ok(all) => all,
        Err(refusal) => {
            refuse(refusal, encoder);
            return Ok(());
        }
    };
    let mut sketch = Vec::new();
    all.put(&mut sketch);
    let mut batch = Batch::default();
    batch.ask_from(by);
    let sketch = batch.intern(&sketch);
    batch.push(destination, Action::Join { sketch });
    let joined = run(counters, batch, now_ms)?;
    match joined.replies.first().and_then(|reply| reply.refusal) {
        Some(refusal) => refuse(refusal, encoder),
        None => encoder.ok(),
    }
    Ok(())
}

/// Why a command for sketches was refused, in Redis's words where it has them.
pub fn refuse(refusal: Refusal, encoder: &mut Encoder<'_>) {
    match refusal {
        Refusal::WrongKind => encoder.error(errors::NOT_A_SKETCH),
        refusal => encoder.error(error_line(refusal, 0)),
    }
}

/// Runs a batch and waits until its replies may be shown. For threads that may wait.
fn run(counters: &dyn Counters, mut batch: Batch, now_ms: u64) -> Result<Batch, Unavailable> {
    if batch.requests.is_empty() {
        return Ok(batch);
    }
    let (batch, offset) = match counters.execute(&mut batch, now_ms)? {
        Execution::Done { offset } => (batch, offset),
        Execution::Pending => {
            let (tell, told) = channel();
            counters.finish(
                batch,
                now_ms,
                // Nobody may be left to hear it.
                Box::new(move |batch, result| drop(tell.send(result.map(|offset| (batch, offset))))),
            );
            told.recv().map_err(|_| Unavailable::Unreadable("the server is stopping".into()))??
        }
    };
    counters.settle(offset)?;
    Ok(batch)
}

/// Q.WGET.
pub fn window(draft: &mut Draft, key: &[u8], last_ms: &[u8]) -> Drafted {
    let last_ms = positive(last_ms, "number of milliseconds")?;
    check_key(key)?;
    draft.literals.extend_from_slice(&last_ms.to_le_bytes());
    draft.request(key, Action::Read, Plan::WindowSum);
    Ok(())
}

/// What a counter has counted in the last so many milliseconds.
pub fn window_sum(reply: &Reply, last_ms: u64, now_ms: u64) -> Result<i128, Refusal> {
    let now_ms = reply.as_of_ms(now_ms);
    match (reply.refusal, reply.detail.as_deref()) {
        (Some(refusal), _) => Err(refusal),
        (None, Some(Detail::Body(body, Some(frame)))) => match &body.state {
            State::Window(_, buckets) => Ok(buckets.sum(frame.last(last_ms, now_ms))),
            _ => Ok(visitors(body, &frame.last(last_ms, now_ms)).count().into()),
        },
        (None, _) if reply.exists => Err(Refusal::WrongKind),
        (None, _) => Ok(0),
    }
}

/// Q.ACQUIRE.
pub fn acquire(draft: &mut Draft, arguments: Arguments<'_, '_>) -> Drafted {
    let Some([_, key, amount, limit, window_ms]) = arguments.first() else {
        return Err(errors::wrong_arity("q.acquire").into());
    };
    let asked = Limit::parse(amount, limit, window_ms)?;
    let (mut is_soft, mut id) = (false, None);
    let mut words = arguments.tail(5).iter();
    while let Some(word) = words.next() {
        if is_option(word, "soft") && !is_soft {
            is_soft = true;
        } else if is_option(word, "id") && id.is_none() {
            id = Some(words.next().ok_or(errors::SYNTAX)?);
        } else {
            return Err(errors::SYNTAX.into());
        }
    }
    check_key(key)?;
    id.map_or(Ok(()), check_id)?;
    let action = asked.action(&mut draft.batch, is_soft);
    push(draft, key, action, id);
    draft.plans.push(Plan::Acquired);
    Ok(())
}

/// A limit as a command names it.
struct Limit {
    amount: i64,
    limit: i64,
    /// How its window is cut; nothing for the counter's own.
    frame: Vec<u8>,
}

impl Limit {
    fn parse(amount: &[u8], limit: &[u8], window_ms: &[u8]) -> Result<Limit, Complaint> {
        let amount = not_negative(amount, "amount")?;
        let limit = not_negative(limit, "limit")?;
        let mut frame = Vec::new();
        match unsigned(window_ms, "window")? {
            0 => {}
            window_ms => {
                let sliding = sliding(window_ms);
                if let Some(problem) = sliding.problem() {
                    return Err(format!("ERR the window is not valid: {problem}").into());
                }
                put_frame(&mut frame, &sliding);
            }
        }
        Ok(Limit { amount, limit, frame })
    }

    fn action(&self, batch: &mut Batch, is_soft: bool) -> Action {
        let frame = batch.intern(&self.frame);
        Action::Acquire(Acquire { amount: self.amount, limit: Some(self.limit), frame, is_soft })
    }
}

/// Q.ACQUIREALL.
pub fn acquire_all(draft: &mut Draft, arguments: Arguments<'_, '_>) -> Drafted {
    let Some([_, id]) = arguments.first() else {
        return Err(errors::wrong_arity("q.acquireall").into());
    };
    let words: Vec<&[u8]> = arguments.tail(2).iter().collect();
    let (items, rest) = words.as_chunks::<4>();
    if items.is_empty() || !rest.is_empty() {
        return Err(errors::wrong_arity("q.acquireall").into());
    }
    if items.len() > LIMITS_MAX {
        return Err(format!("ERR one call takes at most {LIMITS_MAX} limits").into());
    }
    if !id.is_empty() {
        check_id(id)?;
    }
    let mut limits = Vec::with_capacity(items.len());
    for [key, amount, limit, window_ms] in items {
        check_key(key)?;
        limits.push((*key, Limit::parse(amount, limit, window_ms)?));
    }
    let start = draft.batch.requests.len();
    let mut seen: HashMap<&[u8], u32> = HashMap::new();
    for (key, limit) in &limits {
        let action = limit.action(&mut draft.batch, false);
        if id.is_empty() {
            draft.batch.push(key, action);
        } else {
            // Items for one counter are told apart by which of them they are.
            let earlier = seen.entry(key).or_default();
            draft.batch.push_with_id(key, action, id, *earlier);
            *earlier += 1;
        }
    }
    draft.batch.group(start, GroupKind::Atomic);
    draft.plans.push(Plan::AcquiredAll(limits.len() as u32));
    Ok(())
}

/// Q.HOLD.
pub fn hold(draft: &mut Draft, arguments: Arguments<'_, '_>) -> Drafted {
    let Some([_, key, amount, ttl_ms]) = arguments.first() else {
        return Err(errors::wrong_arity("q.hold").into());
    };
    let mut add = Add::plain(integer(amount)?);
    if add.delta == 0 {
        return Err("ERR the amount is zero: there is nothing to set aside".into());
    }
    let ttl_ms = positive(ttl_ms, "number of milliseconds")?;
    if ttl_ms > TTL_MS_MAX {
        return Err(format!("ERR the time must be 1 to {TTL_MS_MAX} milliseconds, which is 30 days").into());
    }
    let mut id = None;
    let mut words = arguments.tail(4).iter();
    while let Some(word) = words.next() {
        let value = words.next().ok_or(errors::SYNTAX)?;
        if is_option(word, "max") {
            add.max = integer(value)?;
        } else if is_option(word, "min") {
            add.min = integer(value)?;
        } else if is_option(word, "id") && id.is_none() {
            id = Some(value);
        } else {
            return Err(errors::SYNTAX.into());
        }
    }
    check_key(key)?;
    id.map_or(Ok(()), check_id)?;
    push(draft, key, Action::Reserve(add, ttl_ms), id);
    draft.literals.extend_from_slice(key);
    draft.plans.push(Plan::Reserved(key.len() as u32));
    Ok(())
}

/// The name of what was set aside, and when it comes back by itself.
pub fn held(reply: &Reply, key: &[u8]) -> Option<(String, u64)> {
    let Some(Detail::Hold { number, expires_at_ms }) = reply.detail.as_deref() else { return None };
    let id = HoldId { key: key.to_vec(), birth: reply.cell.birth, number: *number };
    Some((id.text(), *expires_at_ms))
}

/// What a name of a hold names.
pub fn hold_of(name: &[u8]) -> Option<HoldId> {
    std::str::from_utf8(name).ok().and_then(HoldId::parse)
}

/// Q.COMMIT and Q.VOID.
pub fn end(draft: &mut Draft, hold: &[u8], ending: Ending) -> Drafted {
    let hold = hold_of(hold).ok_or("ERR that is not the name of a hold; it is what Q.HOLD answers")?;
    let action = Action::End { birth: hold.birth, number: hold.number, ending };
    // However often it is said, and whoever says it: a hold ends once.
    draft.batch.push_with_id(&hold.key, action, &hold.request_id(), HoldId::INDEX);
    draft.plans.push(Plan::Ended { is_void: ending == Ending::Void });
    Ok(())
}

/// The amount of Q.COMMIT.
pub fn amount(text: Option<&[u8]>) -> Result<Ending, Complaint> {
    text.map(integer).transpose().map(Ending::Commit)
}

fn push(draft: &mut Draft, key: &[u8], action: Action, id: Option<&[u8]>) {
    match id {
        Some(id) => draft.batch.push_with_id(key, action, id, 0),
        None => draft.batch.push(key, action),
    };
}

fn not_negative(text: &[u8], what: &str) -> Result<i64, Complaint> {
    let number = integer(text)?;
    if number < 0 { Err(format!("ERR the {what} is negative").into()) } else { Ok(number) }
}

fn positive(text: &[u8], what: &str) -> Result<u64, Complaint> {
    match unsigned(text, what)? {
        0 => Err(format!("ERR the {what} is zero").into()),
        number => Ok(number),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use quipu_counting::Cell;
    use quipu_counting::body::{Body, Event, Keeping, Shape};

    use super::*;

    #[test]
    fn a_clock_that_is_behind_hides_nothing_that_was_acknowledged() {
        let frame = sliding(60_000);
        let changed_at_ms = 1_790_000_000_000;
        let keeping = Keeping { frame: frame.clone(), keep_ms: 120_000 };
        let mut body = Body::new(Shape::Window(keeping));
        let start_ms = frame.bucket(changed_at_ms).start;
        body.apply(Event::Count { start_ms, from_ms: 0, delta: 7 }, changed_at_ms).unwrap();
        let cell = Cell { value: 7, version: 1, updated_at_ms: changed_at_ms, ..Cell::ABSENT };
        let detail = Some(Arc::new(Detail::Body(Arc::new(body), Some(frame))));
        let reply = Reply { detail, ..Reply::state(Some(cell)) };
        for behind_ms in [0, 150, 20_000, 3_600_000] {
            assert_eq!(window_sum(&reply, 10_000, changed_at_ms - behind_ms), Ok(7), "{behind_ms} ms behind");
        }
        assert_eq!(window_sum(&reply, 10_000, changed_at_ms + 30_000), Ok(0));
    }
}

//! Replies of counting, written as the plans say.

mod transactions;

use quipu_counting::hold::Outstanding;
use quipu_counting::kinds::seen_by;
use quipu_counting::{Detail, Kind, NEVER, Refusal, Reply, Unavailable};
use quipu_wire::dump::{write_integer, write_string};
use quipu_wire::refusal::{NO_SUCH_WINDOW, error_line, refusal_line, unavailable_line};
use quipu_wire::resp::{Encoder, errors};

use super::commands::{dimensions, history, kinds};
use super::plan::{Plan, Unit, View};
use super::session::Session;
use crate::metrics::Outcomes;

/// The most bytes that MGET shows, which may be asked for many sketches.
const VALUES_BYTES_MAX: usize = 32 << 20;
/// Redis keeps one object for each of these and counts no references to it.
const SHARED_INTEGERS: std::ops::Range<i64> = 0..10_000;
/// What a counter takes in the engine's table beside its key, in its two forms, with its slot in the index.
const COMPACT_BYTES: i64 = 20 + 8;
const WIDE_BYTES: i64 = 44 + 8;

/// Appends the replies to what was executed at `now_ms` with this result.
pub fn render(
    executed: View<'_>,
    result: Result<(), &Unavailable>,
    now_ms: u64,
    (session, outcomes): (&mut Session, &Outcomes),
    out: &mut Vec<u8>,
) {
    let View { plans, literals, replies } = executed;
    let encoder = Encoder::new(out, session.protocol);
    let mut renderer =
        Renderer { plans, literals, replies, unavailable: result.err(), now_ms, encoder, session, outcomes };
    while let Some(plan) = renderer.next_plan() {
        renderer.answer(plan);
    }
}

/// What is left to be answered.
struct Renderer<'d, 'o> {
    plans: &'d [Plan],
    literals: &'d [u8],
    replies: &'d [Reply],
    /// Why there are no replies.
    unavailable: Option<&'d Unavailable>,
    now_ms: u64,
    encoder: Encoder<'o>,
    /// Whose replies these are.
    session: &'o mut Session,
    /// What is told of limits and holds is counted here.
    outcomes: &'o Outcomes,
}

impl<'d> Renderer<'d, '_> {
    #[inline]
    fn next_plan(&mut self) -> Option<Plan> {
        let (plan, rest) = self.plans.split_first()?;
        self.plans = rest;
        Some(*plan)
    }

    #[inline]
    fn take(&mut self, count: u32) -> &'d [Reply] {
        let (taken, rest) = self.replies.split_at(count as usize);
        self.replies = rest;
        taken
    }

    #[inline]
    fn take_literal(&mut self, length: u32) -> &'d [u8] {
        let (taken, rest) = self.literals.split_at(length as usize);
        self.literals = rest;
        taken
    }

    #[inline]
    fn answer(&mut self, plan: Plan) {
        match (plan, self.unavailable) {
            (Plan::Literal(length), _) => {
                let bytes = self.take_literal(length);
                self.encoder.out.extend_from_slice(bytes);
            }
            (Plan::Integer, None) => {
                let reply = &self.take(1)[0];
                match reply.refusal {
                    None => self.encoder.integer(reply.cell.value),
                    Some(Refusal::WrongKind) => self.encoder.error(errors::NOT_AN_INTEGER),
                    Some(refusal) => self.refuse(refusal, reply),
                }
            }
            (Plan::Bulk, None) => {
                let reply = &self.take(1)[0];
                match reply.refusal {
                    None if reply.detail.is_none() => self.value_or_null(reply.exists, reply.cell.value),
                    None => self.value_of_whole(reply),
                    Some(refusal) => self.refuse(refusal, reply),
                }
            }
            (plan, _) => self.answer_rest(plan),
        }
    }

    fn answer_rest(&mut self, plan: Plan) {
        match plan {
            Plan::Mute => self.mute(),
            Plan::Transaction(count) => self.transaction(count),
            Plan::Guarded(count) => self.guarded(count),
            Plan::Staged(checks) => self.stage(checks),
            Plan::Watch(count) => self.watch(count),
            Plan::Speak(protocol) => self.encoder.protocol = protocol,
            Plan::BusyOrError(length) => self.busy_or_error(length),
            Plan::NullOrLiteral(length) => self.null_or_literal(length),
            Plan::WindowSum => self.window_sum(),
            Plan::History => self.history(),
            Plan::Reserved(length) => self.reserved(length),
            plan => match self.unavailable {
                Some(reason) => self.encoder.error(unavailable_line(reason)),
                None => self.answer_some(plan),
            },
        }
    }

    /// The one reply of a plan that has literal bytes too, which were taken before; says why there is none, where that is so.
    fn take_one(&mut self) -> Option<&'d Reply> {
        match self.unavailable {
            Some(reason) => {
                self.encoder.error(unavailable_line(reason));
                None
            }
            None => Some(&self.take(1)[0]),
        }
    }

    fn busy_or_error(&mut self, length: u32) {
        let error = self.take_literal(length);
        let Some(reply) = self.take_one() else { return };
        match (reply.refusal, reply.exists) {
            (Some(refusal), _) => self.refuse(refusal, reply),
            (None, true) => self.encoder.error(errors::BUSY_KEY),
            (None, false) => self.encoder.out.extend_from_slice(error),
        }
    }

    fn null_or_literal(&mut self, length: u32) {
        let bytes = self.take_literal(length);
        let Some(reply) = self.take_one() else { return };
        match reply.refusal {
            Some(refusal) => self.refuse(refusal, reply),
            None if reply.exists => self.encoder.out.extend_from_slice(bytes),
            None => self.encoder.null(),
        }
    }

    fn window_sum(&mut self) {
        let last_ms = self.take_literal(8).try_into().map_or(0, u64::from_le_bytes);
        let Some(reply) = self.take_one() else { return };
        match kinds::window_sum(reply, last_ms, self.now_ms) {
            Ok(sum) => self.encoder.integer(sum.clamp(i64::MIN.into(), i64::MAX.into()) as i64),
            Err(refusal) => self.encoder.error(error_line(refusal, 0)),
        }
    }

    fn history(&mut self) {
        let asked = self.take_literal(history::PAST_BYTES);
        let Some(reply) = self.take_one() else { return };
        match reply.refusal {
            Some(refusal) => self.refuse(refusal, reply),
            None => history::encode(asked, reply, &mut self.encoder),
        }
    }

    fn reserved(&mut self, length: u32) {
        let key = self.take_literal(length);
        let Some(reply) = self.take_one() else { return };
        self.outcomes.reserved(reply);
        match (reply.refusal, kinds::held(reply, key)) {
            (Some(refusal), _) => self.refuse(refusal, reply),
            (None, Some((hold, expires_at_ms))) => {
                self.encoder.array(2);
                self.encoder.bulk(hold.as_bytes());
                self.encoder.integer(clamp(expires_at_ms));
            }
            (None, None) => self.encoder.null(),
        }
    }

    /// Plans of commands with several requests, and then those with one.
    fn answer_some(&mut self, plan: Plan) {
        match plan {
            Plan::Observed(count) => {
                let replies = self.take(count);
                match replies.iter().find_map(|reply| reply.refusal) {
                    Some(refusal) => kinds::refuse(refusal, &mut self.encoder),
                    None => self.encoder.integer(replies.iter().any(|reply| reply.applied & 1 != 0).into()),
                }
            }
            Plan::Estimate(count) => match kinds::union(self.take(count), self.now_ms) {
                Ok(all) => self.encoder.integer(clamp(all.estimate())),
                Err(refusal) => kinds::refuse(refusal, &mut self.encoder),
            },
            Plan::Bulks(count) => self.bulks(count),
            Plan::OkForAll(count) => self.unless_refused(count, |encoder, _| encoder.ok()),
            Plan::CountExisted(count) => self.unless_refused(count, |encoder, replies| {
                encoder.integer(replies.iter().filter(|reply| reply.existed).count() as i64);
            }),
            Plan::CountExisting(count) => self.unless_refused(count, |encoder, replies| {
                encoder.integer(replies.iter().filter(|reply| reply.exists).count() as i64);
            }),
            Plan::Session(count) => self.unless_refused(count, |encoder, replies| {
                encoder.array(2);
                encoder.integer(clamp(replies[0].cell.version));
                encoder.integer(replies[0].duplicate.into());
            }),
            Plan::AcquiredAll(count) => self.acquired_all(count),
            plan => {
                let reply = &self.take(1)[0];
                self.answer_one(plan, reply);
            }
        }
    }

    /// Tells of so many replies, unless one of them says no.
    fn unless_refused(&mut self, count: u32, tell: impl FnOnce(&mut Encoder<'_>, &[Reply])) {
        let replies = self.take(count);
        match first_refused(replies) {
            Some((refusal, reply)) => self.refuse(refusal, reply),
            None => tell(&mut self.encoder, replies),
        }
    }

    fn bulks(&mut self, count: u32) {
        let replies = self.take(count);
        if let Some((refusal, reply)) = first_refused(replies) {
            return self.refuse(refusal, reply);
        }
        let before = self.encoder.out.len();
        self.encoder.array(replies.len());
        for reply in replies {
            self.value_of_whole(reply);
            if self.encoder.out.len() - before > VALUES_BYTES_MAX {
                self.encoder.out.truncate(before);
                return self.refuse(Refusal::TooLarge, reply);
            }
        }
    }

    /// Plans of commands with one request.
    fn answer_one(&mut self, plan: Plan, reply: &Reply) {
        let unmet = reply.refusal == Some(Refusal::ConditionUnmet);
        let out_of_bounds =
            matches!(reply.refusal, Some(Refusal::BelowFloor | Refusal::AboveCeiling | Refusal::Overflow));
        match (plan, reply.refusal) {
            (Plan::OkOrNull, None) => self.encoder.ok(),
            (Plan::OkOrNull, Some(_)) if unmet => self.encoder.null(),
            (Plan::Previous, refusal) if refusal.is_none() || unmet => match sketch(reply, self.now_ms) {
                Some(sketch) => self.encoder.bulk(&sketch),
                None => self.value_or_null(reply.existed, reply.previous),
            },
            (Plan::Held, refusal) if refusal.is_none() || unmet => self.encoder.integer((!unmet).into()),
            (Plan::SaturatedAndApplied, Some(Refusal::Overflow)) => {
                self.encoder.error(errors::APPLIED_WOULD_OVERFLOW);
            }
            (Plan::ValueAndApplied | Plan::SaturatedAndApplied, refusal)
                if refusal.is_none() || out_of_bounds =>
            {
                self.encoder.array(2);
                self.encoder.integer(reply.cell.value);
                self.encoder.integer(reply.applied);
            }
            (Plan::Addition, None | Some(Refusal::BelowFloor | Refusal::AboveCeiling)) => {
                self.addition(reply)
            }
            (Plan::Seen, None) => self.seen(reply),
            (Plan::Acquired, None | Some(Refusal::OverQuota)) => {
                self.outcomes.acquired(reply);
                self.quota(reply);
            }
            (Plan::Acquired, Some(Refusal::WrongKind)) => self.no_such_window(),
            (Plan::Ended { .. }, Some(Refusal::IdReused)) => self.refuse(Refusal::HoldEnded, reply),
            (Plan::Ended { is_void }, None) => {
                self.outcomes.ended(is_void, reply);
                self.addition(reply);
            }
            (Plan::ValueAndApplied | Plan::SaturatedAndApplied, Some(Refusal::WrongKind)) => {
                self.encoder.error(errors::NOT_AN_INTEGER);
            }
            (Plan::Restored, Some(_)) if unmet => self.encoder.error(errors::BUSY_KEY),
            (_, Some(refusal)) => self.refuse(refusal, reply),
            (Plan::TypeName, None) => self.encoder.simple(if reply.exists { "string" } else { "none" }),
            (Plan::TextLength, None) => {
                let length = match sketch(reply, self.now_ms) {
                    Some(sketch) => sketch.len(),
                    None if reply.exists => reply.cell.value.to_string().len(),
                    None => 0,
                };
                self.encoder.integer(length as i64);
            }
            (Plan::TimeLeft(unit), None) => {
                let left_ms = reply.cell.expires_at_ms.saturating_sub(self.now_ms);
                self.time(reply, in_unit(left_ms, unit));
            }
            (Plan::ExpiresAt(unit), None) => self.time(reply, in_unit(reply.cell.expires_at_ms, unit)),
            (Plan::Statistics, None) => self.statistics(reply),
            (Plan::Part { is_grouped }, None) => {
                let sliced = reply.detail.as_deref().and_then(Detail::sliced).unwrap_or_default();
                dimensions::answer(&sliced, is_grouped, &mut self.encoder);
            }
            (Plan::Ok | Plan::Restored, None) => self.encoder.ok(),
            (Plan::Encoding | Plan::IdleTime | Plan::ReferenceCount | Plan::Usage(_) | Plan::Dump, None) => {
                self.object(plan, reply)
            }
            (_, None) => self.encoder.integer(reply.cell.value),
        }
    }

    /// A counter as Redis would keep it.
    fn object(&mut self, plan: Plan, reply: &Reply) {
        let cell = &reply.cell;
        if !reply.exists {
            return self.encoder.null();
        }
        let sketch = sketch(reply, self.now_ms);
        match plan {
            Plan::Encoding => self.encoder.bulk(if sketch.is_some() { b"raw" } else { b"int" }),
            Plan::IdleTime => {
                self.encoder.integer(clamp(self.now_ms.saturating_sub(cell.updated_at_ms) / 1000));
            }
            Plan::ReferenceCount => {
                let is_shared = SHARED_INTEGERS.contains(&cell.value) && sketch.is_none();
                self.encoder.integer(if is_shared { i32::MAX.into() } else { 1 });
            }
            Plan::Usage(key_bytes) => {
                let is_compact = cell.expires_at_ms == NEVER && i32::try_from(cell.value).is_ok();
                let cell_bytes = if is_compact { COMPACT_BYTES } else { WIDE_BYTES };
                let body_bytes = match reply.detail.as_deref() {
                    Some(Detail::Body(body, _)) => body.memory_bytes() as i64,
                    _ => 0,
                };
                self.encoder.integer(cell_bytes + body_bytes + i64::from(key_bytes));
            }
            _ => {
                let mut payload = Vec::new();
                match sketch {
                    Some(sketch) => write_string(&mut payload, &sketch),
                    None => write_integer(&mut payload, cell.value),
                }
                self.encoder.bulk(&payload);
            }
        }
    }

    /// What GET shows of a counter: its value, or its sketch.
    fn value_of_whole(&mut self, reply: &Reply) {
        match sketch(reply, self.now_ms) {
            Some(sketch) => self.encoder.bulk(&sketch),
            None => self.value_or_null(reply.exists, reply.cell.value),
        }
    }

    fn addition(&mut self, reply: &Reply) {
        self.encoder.array(4);
        self.encoder.integer(reply.cell.value);
        self.encoder.integer(reply.applied);
        self.encoder.integer(clamp(reply.cell.version));
        self.encoder.integer(reply.duplicate.into());
    }

    fn seen(&mut self, reply: &Reply) {
        let is_exact = !matches!(reply.detail.as_deref(), Some(Detail::Seen { is_exact: false }));
        self.encoder.array(4);
        self.encoder.integer(reply.cell.value);
        self.encoder.integer((reply.applied != 0).into());
        self.encoder.integer(is_exact.into());
        self.encoder.integer(reply.duplicate.into());
    }

    fn no_such_window(&mut self) {
        let advice = "give 0 as the window for the counter's own, or use another key";
        self.encoder.error(format!("WRONGTYPE {NO_SUCH_WINDOW}; {advice}"));
    }

    /// Of several limits: the one that refused, or that leaves least.
    fn acquired_all(&mut self, count: u32) {
        let replies = self.take(count);
        replies.iter().for_each(|reply| self.outcomes.acquired(reply));
        let refused = first_refused(replies);
        let shown = match refused {
            None => replies.iter().enumerate().min_by_key(|(_, reply)| left(reply).0),
            Some((Refusal::OverQuota, refused)) => {
                replies.iter().enumerate().find(|(_, reply)| std::ptr::eq(*reply, refused))
            }
            Some((Refusal::WrongKind, _)) => return self.no_such_window(),
            Some((refusal, reply)) => return self.refuse(refusal, reply),
        };
        let Some((index, reply)) = shown else { return self.encoder.null() };
        let (remaining, reset_ms) = left(reply);
        self.encoder.array(4);
        self.encoder.integer(refused.is_none().into());
        self.encoder.integer(index as i64);
        self.encoder.integer(remaining);
        self.encoder.integer(clamp(reset_ms));
    }

    fn quota(&mut self, reply: &Reply) {
        let (remaining, reset_ms) = left(reply);
        self.encoder.array(3);
        self.encoder.integer(reply.refusal.is_none().into());
        self.encoder.integer(remaining);
        self.encoder.integer(clamp(reset_ms));
    }

    fn value_or_null(&mut self, exists: bool, value: i64) {
        if exists { self.encoder.bulk_integer(value) } else { self.encoder.null() }
    }

    /// Redis's numbers for "no such key" and "never".
    fn time(&mut self, reply: &Reply, time: i64) {
        self.encoder.integer(match (reply.exists, reply.cell.expires_at_ms) {
            (false, _) => -2,
            (true, NEVER) => -1,
            (true, _) => time,
        });
    }

    fn statistics(&mut self, reply: &Reply) {
        let cell = &reply.cell;
        let left_ms = match (reply.exists, cell.expires_at_ms) {
            (false, _) => -2,
            (true, NEVER) => -1,
            (true, at_ms) => clamp(at_ms.saturating_sub(self.now_ms)),
        };
        let value = match reply.detail.as_deref() {
            Some(Detail::Body(body, frame)) if body.kind() == Kind::Unique => {
                clamp(seen_by(body, frame.as_ref(), reply.as_of_ms(self.now_ms)).count())
            }
            _ => cell.value,
        };
        let fields = [
            ("exists", i64::from(reply.exists)),
            ("value", value),
            ("version", clamp(cell.version)),
            ("updated_at_ms", clamp(cell.updated_at_ms)),
            ("birth", clamp(cell.birth)),
            ("pttl", left_ms),
        ];
        // As over HTTP: only where something is set aside.
        let held = match reply.detail.as_deref() {
            Some(Detail::Body(body, _)) => body.holds.outstanding(self.now_ms),
            _ => Outstanding::default(),
        };
        let of_holds = [
            ("held", held.sum().clamp(i64::MIN.into(), i64::MAX.into()) as i64),
            ("holds", held.count as i64),
        ];
        let of_holds = if held.count > 0 { &of_holds[..] } else { &[] };
        self.encoder.map(fields.len() + of_holds.len() + 2);
        for (name, number) in fields.iter().chain(of_holds) {
            self.encoder.bulk(name.as_bytes());
            self.encoder.integer(*number);
        }
        let kind = match reply.detail.as_deref() {
            Some(Detail::Body(body, _)) => body.kind().name(),
            _ => "sum",
        };
        for text in ["kind", kind, "mode", "strong"] {
            self.encoder.bulk(text.as_bytes());
        }
    }

    #[cold]
    fn refuse(&mut self, refusal: Refusal, reply: &Reply) {
        self.encoder.error(refusal_line(refusal, reply));
    }
}

/// The value of a counter of uniques, as Redis has it.
fn sketch(reply: &Reply, now_ms: u64) -> Option<Vec<u8>> {
    match reply.detail.as_deref() {
        Some(Detail::Body(body, frame)) if body.kind() == Kind::Unique => {
            Some(seen_by(body, frame.as_ref(), reply.as_of_ms(now_ms)).to_redis())
        }
        _ => None,
    }
}

/// The refusal that stopped an all-or-none group, and not one of those that were aborted with it.
fn first_refused(replies: &[Reply]) -> Option<(Refusal, &Reply)> {
    let refused = || replies.iter().filter_map(|reply| reply.refusal.map(|refusal| (refusal, reply)));
    refused().find(|(refusal, _)| *refusal != Refusal::GroupAborted).or_else(|| refused().next())
}

/// What a limit leaves, and when some of it is free again.
fn left(reply: &Reply) -> (i64, u64) {
    match reply.detail.as_deref() {
        Some(Detail::Quota { used, limit, reset_ms, .. }) => (limit.saturating_sub(*used).max(0), *reset_ms),
        _ => (0, 0),
    }
}

fn clamp(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn in_unit(ms: u64, unit: Unit) -> i64 {
    clamp(match unit {
        Unit::Seconds => ms.saturating_add(500) / 1000,
        Unit::Milliseconds => ms,
    })
}

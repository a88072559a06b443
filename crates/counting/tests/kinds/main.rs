//! Counters that are more than five numbers: what `decide_whole` answers, as scripts.
//!
//! A script is a list of requests to one counter, each with the time it comes and what it is told, in short. Every request of every
//! file here goes through [`Counter::ask`], which also checks what must hold of all: what is refused leaves no trace, the
//! events that are reported make the new body of the old one, and the bytes of a body come back.

#![allow(clippy::unwrap_used)] // a panic here is a failed test

mod bytes;
mod groups;
mod history;
mod holds;
mod late;
mod ledger;
mod policies;
mod recut;
mod restored;
mod rollups;
mod uniques;
mod widened;
mod windows;

use std::sync::Arc;

use quipu_counting::body::{Keeping, put_frame};
use quipu_counting::kinds::{Asked, Decided, RULES, Ruled, decide_whole, seen_by};
use quipu_counting::unique::hash;
use quipu_counting::window::Frame;
use quipu_counting::{
    Acquire, Action, Add, Body, Change, Condition, Detail, Ending, Expire, ExpireWhen, Expiry, Kind, Limits,
    Policy, Reply, Set, Told, Unique, Whole,
};

const SECOND_MS: u64 = 1_000;
const MINUTE_MS: u64 = 60 * SECOND_MS;
const HOUR_MS: u64 = 60 * MINUTE_MS;
const DAY_MS: u64 = 24 * HOUR_MS;
/// 2026-03-28T12:00:00Z, the beginning of every window that is used here; scripts count from it.
const START_MS: u64 = 1_774_699_200_000;

/// What is asked, with the bytes that belong to it.
#[derive(Clone, Debug)]
struct Ask(Action, Vec<u8>);

/// A counter, what holds for it, and its order of changes.
#[derive(Clone, Default)]
struct Counter {
    whole: Whole,
    policy: Option<Policy>,
    sequence: u64,
}

impl Counter {
    fn under(policy: Policy) -> Counter {
        Counter { policy: Some(policy), ..Counter::default() }
    }

    fn ask(&mut self, now_ms: u64, ask: &Ask) -> Reply {
        self.ask_by(RULES, now_ms, ask)
    }

    /// By the rules of a version.
    fn ask_by(&mut self, rules: u64, now_ms: u64, ask: &Ask) -> Reply {
        let before = self.whole.clone();
        self.sequence += 1;
        let asked = Asked { action: &ask.0, payload: &ask.1 };
        let limits = self.policy.as_ref().map_or(Limits::NONE, Limits::from);
        let ruled = Ruled { limits, policy: self.policy.as_ref(), rules };
        let decided = decide_whole(&mut self.whole, asked, ruled, now_ms, self.sequence);
        check(&before, &self.whole, &decided, now_ms);
        decided.reply
    }

    fn body(&self) -> &Body {
        self.whole.body.as_ref().unwrap()
    }
}

/// What holds of every change.
fn check(before: &Whole, after: &Whole, decided: &Decided, now_ms: u64) {
    if decided.reply.refusal.is_some() {
        assert_eq!(decided.change, Change::Keep, "a refusal changes nothing");
    }
    match decided.change {
        Change::Keep => {
            assert_eq!(after, before, "nothing changed");
            assert!(decided.events.is_empty(), "and nothing happened");
        }
        Change::Remove => {
            assert_eq!(*after, Whole::default());
            assert!(decided.events.is_empty());
        }
        Change::Put(cell) => {
            assert_eq!(after.cell, Some(cell));
            // What a restart does with the log.
            let is_same = before.cell.is_some_and(|before| before.birth == cell.birth);
            let mut body = before.body.as_deref().filter(|_| is_same).cloned();
            Body::apply_all(&mut body, &decided.events, now_ms).unwrap();
            assert_eq!(body.as_ref(), after.body.as_deref(), "the events tell all of it");
        }
    }
    if let Some(body) = &after.body {
        let mut bytes = Vec::new();
        body.put(&mut bytes);
        assert_eq!(Body::read(&bytes).as_ref(), Some(&**body), "the bytes tell all of it");
    }
}

/// A reply in short: `no` and why, or the value; then what else it says.
fn told(reply: &Reply) -> String {
    let mut told = match (reply.refusal, reply.exists) {
        (Some(refusal), _) => format!("no {}", refusal.code()),
        (None, true) => reply.cell.value.to_string(),
        (None, false) => "none".into(),
    };
    match reply.detail.as_deref() {
        None | Some(Detail::Body(..)) => {}
        Some(Detail::Quota { used, limit, reset_ms, .. }) => {
            told += &format!(" used {used}/{limit} reset {reset_ms}");
        }
        Some(Detail::Hold { number, expires_at_ms }) => {
            told += &format!(" hold {number} until {}", expires_at_ms - START_MS);
        }
        Some(Detail::Bound { earliest_ms, latest_ms }) => {
            let after = |at_ms: u64| i128::from(at_ms) - i128::from(START_MS);
            told += &format!(" {}..={}", after(*earliest_ms), after(*latest_ms));
        }
        Some(Detail::Seen { is_exact }) => {
            told += if *is_exact { " exactly" } else { " about" };
            told += &format!(" applied {}", reply.applied);
        }
        Some(Detail::Declared(declared)) => told += &format!(" declared {declared}"),
        Some(detail @ (Detail::Sliceable(_) | Detail::Sliced(_))) => {
            let sliced = detail.sliced().unwrap();
            told = format!("part {}", sliced.value);
            sliced.groups.iter().for_each(|(values, sum)| told += &format!(" {}={sum}", values.join("/")));
        }
    }
    told
}

/// Asks in order, at times after [`START_MS`], and compares.
/// As who looks is shown it: uniques by time are added up when they are shown.
fn shown(mut reply: Reply, ask: &Ask, now_ms: u64) -> Reply {
    if let (Action::Read, Some(Detail::Body(body, frame))) = (&ask.0, reply.detail.as_deref())
        && body.kind() == Kind::Unique
    {
        let seen = seen_by(body, frame.as_ref(), reply.as_of_ms(now_ms));
        reply.cell.value = seen.count() as i64;
    }
    reply
}

fn script(counter: Counter, steps: &[(u64, Ask, &str)]) -> Counter {
    let mut counter = counter;
    for (step, (at_ms, ask, expected)) in steps.iter().enumerate() {
        let reply = counter.ask(START_MS + at_ms, ask);
        assert_eq!(
            told(&shown(reply, ask, START_MS + at_ms)),
            *expected,
            "step {step}: {:?} at {at_ms}",
            ask.0
        );
    }
    counter
}

fn plain(action: Action) -> Ask {
    Ask(action, Vec::new())
}

fn read() -> Ask {
    plain(Action::Read)
}

fn add(delta: i64) -> Ask {
    plain(Action::Add(Add::plain(delta)))
}

/// At so long after [`START_MS`].
fn add_at(delta: i64, at_ms: u64) -> Ask {
    let told = Told { at_ms: Some(START_MS + at_ms), ..Told::default() };
    let mut payload = Vec::new();
    told.put(&mut payload);
    Ask(Action::Told { add: Add::plain(delta), told: Default::default() }, payload)
}

fn add_within(delta: i64, min: i64, max: i64) -> Ask {
    plain(Action::Add(Add { min, max, ..Add::plain(delta) }))
}

fn set(value: i64) -> Ask {
    plain(Action::Set(Set { value, expiry: Expiry::Keep, condition: Condition::Always }))
}

fn overwrite(value: i64) -> Ask {
    plain(Action::Overwrite(Set { value, expiry: Expiry::Keep, condition: Condition::Always }))
}

fn reset() -> Ask {
    plain(Action::Reset(Condition::Always))
}

fn delete() -> Ask {
    plain(Action::Delete(Condition::Always))
}

fn expire(in_ms: u64) -> Ask {
    plain(Action::Expire(Expire { expiry: Expiry::In(in_ms), when: ExpireWhen::Always }))
}

fn hashes(items: &[&str]) -> Vec<u64> {
    items.iter().map(|item| hash(item.as_bytes())).collect()
}

fn observe_hashes(hashes: &[u64]) -> Ask {
    Ask(
        Action::Observe { items: Default::default(), at_ms: None },
        hashes.iter().flat_map(|hash| hash.to_le_bytes()).collect(),
    )
}

fn observe(items: &[&str]) -> Ask {
    observe_hashes(&hashes(items))
}

/// The same at so long after [`START_MS`].
fn observe_at(items: &[&str], at_ms: u64) -> Ask {
    let Ask(_, payload) = observe(items);
    Ask(Action::Observe { items: Default::default(), at_ms: Some(START_MS + at_ms) }, payload)
}

fn sketch_of(hashes: &[u64]) -> Vec<u8> {
    let mut unique = Unique::new();
    for hash in hashes {
        unique.observe(*hash);
    }
    let mut bytes = Vec::new();
    unique.put(&mut bytes);
    bytes
}

fn join(items: &[&str]) -> Ask {
    Ask(Action::Join { sketch: Default::default() }, sketch_of(&hashes(items)))
}

fn replace(items: &[&str], expiry: Expiry, condition: Condition) -> Ask {
    Ask(Action::Replace { sketch: Default::default(), expiry, condition }, sketch_of(&hashes(items)))
}

fn acquire(amount: i64, limit: impl Into<Option<i64>>) -> Ask {
    let limit = limit.into();
    plain(Action::Acquire(Acquire { amount, limit, frame: Default::default(), is_soft: false }))
}

impl Ask {
    /// In windows that are cut so.
    fn over(mut self, frame: &Frame) -> Ask {
        put_frame(&mut self.1, frame);
        self
    }

    /// Also beyond the limit.
    fn softly(mut self) -> Ask {
        if let Action::Acquire(acquire) = &mut self.0 {
            acquire.is_soft = true;
        }
        self
    }
}

fn reserve(delta: i64, ttl_ms: u64) -> Ask {
    plain(Action::Reserve(Add::plain(delta), ttl_ms))
}

fn reserve_within(delta: i64, ttl_ms: u64, min: i64, max: i64) -> Ask {
    plain(Action::Reserve(Add { min, max, ..Add::plain(delta) }, ttl_ms))
}

/// Holds of a counter that was born by its first request.
fn end(number: u64, ending: Ending) -> Ask {
    plain(Action::End { birth: 1, number, ending })
}

fn commit(number: u64) -> Ask {
    end(number, Ending::Commit(None))
}

fn commit_some(number: u64, amount: i64) -> Ask {
    end(number, Ending::Commit(Some(amount)))
}

fn void(number: u64) -> Ask {
    end(number, Ending::Void)
}

fn sliding(span_ms: u64, bucket_ms: u64) -> Frame {
    Frame::Sliding { span_ms, bucket_ms }
}

fn kind(kind: Kind, window: Option<Frame>, keep_ms: u64) -> Policy {
    let window = window.map(|frame| Keeping { frame, keep_ms });
    Policy { kind: Some(kind), window, ..Policy::default() }
}

#[test]
fn what_looks_at_a_body_shares_it() {
    let counter = script(Counter::default(), &[(0, observe(&["a"]), "1 exactly applied 3")]);
    let mut looked = counter.clone();
    let reply = looked.ask(START_MS, &read());
    let Some(Detail::Body(body, None)) = reply.detail.as_deref() else { panic!("{reply:?}") };
    assert!(Arc::ptr_eq(body, counter.whole.body.as_ref().unwrap()));
    looked.ask(START_MS, &observe(&["b"]));
    assert_eq!(**body, *counter.body(), "and keeps it when it changes");
}

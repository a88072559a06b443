//! Random stories: what may happen to a few counters.

use proptest::prelude::*;
use quipu_counting::{Action, Add, Condition, Expire, ExpireWhen, Expiry, Limits, Set};

/// Few, so that they are met again and again.
pub const KEYS: usize = 3;
/// The entry time a story begins at.
pub const START_MS: u64 = 1_000;

/// What can happen next.
#[derive(Clone, Debug)]
pub enum Step {
    /// So many milliseconds pass.
    Wait(u64),
    /// The policy of a counter changes.
    Limits(usize, Limits),
    /// An action on a counter. The condition is resolved when the step is taken, so that tags of real lives occur.
    Ask(usize, Guard, Action),
}

/// What is demanded of the counter first.
#[derive(Clone, Copy, Debug)]
pub enum Guard {
    /// This.
    Plain(Condition),
    /// The tag the counter had when its last change was told; stale once it was deleted or expired.
    LastTold,
}

/// Mostly small numbers, so that bounds are met often; sometimes the ends of the type.
fn number(edges: bool) -> BoxedStrategy<i64> {
    let small = -12..=12i64;
    if !edges {
        return small.boxed();
    }
    let edge = prop::sample::select(vec![
        i64::MIN,
        i64::MIN + 1,
        -i64::MAX / 2,
        i64::MAX / 2,
        i64::MAX - 1,
        i64::MAX,
    ]);
    prop_oneof![8 => small, 1 => edge].boxed()
}

fn expiry() -> impl Strategy<Value = Expiry> {
    let (ms, at) = (0..60u64, START_MS..START_MS + 400);
    prop_oneof![
        6 => Just(Expiry::Keep),
        1 => Just(Expiry::Clear),
        2 => ms.clone().prop_map(Expiry::In),
        1 => at.clone().prop_map(Expiry::At),
        2 => ms.prop_map(Expiry::InIfNone),
        1 => at.prop_map(Expiry::AtIfNone),
    ]
}

fn guard() -> impl Strategy<Value = Guard> {
    prop_oneof![
        8 => Just(Guard::Plain(Condition::Always)),
        1 => Just(Guard::Plain(Condition::Exists)),
        1 => Just(Guard::Plain(Condition::Absent)),
        1 => (0..5u64).prop_map(|version| Guard::Plain(Condition::Version(version))),
        2 => Just(Guard::LastTold),
    ]
}

fn action(edges: bool) -> impl Strategy<Value = Action> {
    let bound = |none| prop_oneof![3 => Just(none), 1 => number(edges)];
    let condition = Condition::Always;
    let when = prop::sample::select(&ExpireWhen::ALL);
    let add = (number(edges), bound(i64::MIN), bound(i64::MAX), any::<bool>(), expiry()).prop_map(
        move |(delta, min, max, saturate, expiry)| {
            Action::Add(Add { delta, min, max, saturate, expiry, condition })
        },
    );
    let set = (number(edges), expiry())
        .prop_map(move |(value, expiry)| Action::Set(Set { value, expiry, condition }));
    prop_oneof![
        1 => Just(Action::Read),
        10 => add,
        3 => set,
        1 => Just(Action::Reset(condition)),
        1 => Just(Action::Delete(condition)),
        1 => Just(Action::Check(condition)),
        3 => (expiry(), when).prop_map(|(expiry, when)| Action::Expire(Expire { expiry, when })),
    ]
}

fn limits(edges: bool) -> impl Strategy<Value = Limits> {
    let lifetime_ms = prop_oneof![2 => Just(0), 1 => 1..60u64];
    (prop::option::of(number(edges)), prop::option::of(number(edges)), any::<bool>(), lifetime_ms, 0..8u8)
        .prop_map(|(floor, ceiling, saturate, ttl_ms, disabled)| Limits {
            floor: floor.unwrap_or(i64::MIN),
            ceiling: ceiling.unwrap_or(i64::MAX),
            saturate,
            ttl_ms,
            disabled: disabled == 0,
            is_for_whole: false,
            audit_ms: 0,
        })
}

/// A random story; `edges` lets numbers at the ends of the type appear.
pub fn steps(edges: bool) -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => (0..40u64).prop_map(Step::Wait),
        1 => (0..KEYS, limits(edges)).prop_map(|(key, limits)| Step::Limits(key, limits)),
        12 => (0..KEYS, guard(), action(edges)).prop_map(|(key, guard, action)| Step::Ask(key, guard, action)),
    ];
    prop::collection::vec(step, 1..80)
}

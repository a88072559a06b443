//! Exactly once: identities, fingerprints, replays, the window, and producer sessions.

use std::collections::{BTreeMap, BTreeSet};

use quipu_counting::batch::{Batch, GroupKind};
use quipu_counting::identity::{fingerprint, group_fingerprint};
use quipu_counting::session::admit;
use quipu_counting::{
    Action, Add, Cell, Change, Condition, Expire, ExpireWhen, Expiry, ID_BYTES_MAX, IdentityKey,
    KEY_BYTES_MAX, Limits, NEVER, Outcome, Refusal, Remembered, Reply, Session, SessionVerdict, Set, decide,
};

const NOW: u64 = 1_000_000;
const WINDOW_MS: u64 = 1_000;
const KEY: IdentityKey = IdentityKey(*b"0123456789abcdef");

fn cell(value: i64) -> Option<Cell> {
    Some(Cell { value, version: 4, updated_at_ms: NOW - 500, birth: 9, expires_at_ms: NEVER })
}

fn add(delta: i64) -> Action {
    Action::Add(Add::plain(delta))
}

/// Every kind of action, and for each every single change of an argument. No two are the same request.
fn different_actions() -> Vec<Action> {
    let plain = Add::plain(1);
    let expiries = [
        Expiry::Clear,
        Expiry::In(5),
        Expiry::At(5),
        Expiry::InIfNone(5),
        Expiry::AtIfNone(5),
        Expiry::In(6),
    ];
    let conditions = [
        Condition::Exists,
        Condition::Absent,
        Condition::Version(0),
        Condition::Version(5),
        Condition::Tag { birth: 5, version: 0 },
        Condition::Tag { birth: 0, version: 5 },
    ];
    let set = Set { value: 1, expiry: Expiry::Keep, condition: Condition::Always };
    let mut actions = vec![
        Action::Read,
        Action::Count,
        Action::Clear,
        Action::Add(plain),
        Action::Add(Add { delta: -1, ..plain }),
        Action::Add(Add { min: 0, ..plain }),
        Action::Add(Add { max: 0, ..plain }),
        Action::Add(Add { min: 0, max: 0, ..plain }),
        Action::Add(Add { saturate: true, ..plain }),
        Action::Set(set),
        Action::Set(Set { value: 2, ..set }),
        Action::Reset(Condition::Always),
        Action::Delete(Condition::Always),
        Action::Check(Condition::Always),
    ];
    for expiry in expiries {
        actions.push(Action::Add(Add { expiry, ..plain }));
        actions.push(Action::Set(Set { expiry, ..set }));
        actions.extend(ExpireWhen::ALL.map(|when| Action::Expire(Expire { expiry, when })));
    }
    for condition in conditions {
        actions.push(Action::Add(Add { condition, ..plain }));
        actions.push(Action::Set(Set { condition, ..set }));
        actions.push(Action::Reset(condition));
        actions.push(Action::Delete(condition));
        actions.push(Action::Check(condition));
    }
    actions
}

/// What a retry may rely on is what the page says.
#[test]
fn the_page_says_which_refusals_are_remembered() {
    let page = include_str!("../../../docs/guarantees.md");
    let row = |begin: &str| page.lines().find(|line| line.starts_with(begin)).unwrap();
    let (kept, others) = (row("| remembered |"), row("| not remembered |"));
    for refusal in Refusal::ALL {
        let code = format!("`{}`", refusal.code());
        let is_in = (kept.contains(&code), others.contains(&code));
        assert_eq!(is_in, (refusal.is_remembered(), !refusal.is_remembered()), "{code}");
    }
}

#[test]
fn every_argument_is_in_the_fingerprint() {
    let actions = different_actions();
    let fingerprints: BTreeSet<u64> = actions.iter().map(fingerprint).collect();
    assert_eq!(fingerprints.len(), actions.len());
}

/// Numbers that are on disk in every data folder, beside those of the fingerprints.
#[test]
fn identities_are_stable() {
    for (namespace, key, id, index, expected) in [
        (0, "", "", 0, 0xb60f85140055051fd21e1ef565b48765),
        (0, "counter:post:7:like", "req-1", 0, 0x1837c6824c252a495614cc2be4dac4fd),
        (0, "counter:post:7:like", "req-1", 1, 0xba6227b28a0cd1053d496816169c970c),
        (7, "counter:post:7:like", "req-1", 0, 0x554eb778912493916fb4f6d9234d8cb5),
    ] {
        let identity = KEY.identity(namespace, key.as_bytes(), id.as_bytes(), index);
        assert_eq!(identity, expected, "{namespace} {key} {id} {index}: {identity:#034x}");
    }
}

#[test]
fn the_scope_of_an_id_is_namespace_key_and_item() {
    let longest_key = vec![b'k'; KEY_BYTES_MAX];
    let longest_id = vec![b'k'; ID_BYTES_MAX];
    let scopes: [(u32, &[u8], &[u8], u32); 14] = [
        (0, b"key", b"id", 0),
        (0, b"key", b"id", 1),
        (0, b"key", b"id", u32::MAX),
        (1, b"key", b"id", 0),
        (0, b"key2", b"id", 0),
        (0, b"key", b"id2", 0),
        // The same bytes, cut elsewhere.
        (0, b"keyi", b"d", 0),
        (0, b"ke", b"yid", 0),
        (0, b"", b"keyid", 0),
        (0, b"keyid", b"", 0),
        (0, b"key", b"id\0", 0),
        (0, b"key\0", b"id", 0),
        (0, &longest_key, &longest_id, 0),
        (0, &longest_key[1..], &longest_id, 0),
    ];
    let identities: BTreeSet<u128> =
        scopes.iter().map(|(namespace, key, id, index)| KEY.identity(*namespace, key, id, *index)).collect();
    assert_eq!(identities.len(), scopes.len());
}

fn group_of(items: &[(&str, Action)]) -> u64 {
    let mut batch = Batch::default();
    batch.push(b"before", add(99));
    for (index, (key, action)) in (0..).zip(items) {
        batch.push_with_id(key.as_bytes(), *action, b"order-7", index);
    }
    batch.group(1, GroupKind::Atomic);
    batch.push(b"after", add(99));
    let group = batch.groups[0];
    group_fingerprint(&batch, &group)
}

#[test]
fn a_group_fingerprint_covers_every_item() {
    let first = [("ab", add(1)), ("c", add(2))];
    assert_eq!(group_of(&first), group_of(&first));
    let others: [&[(&str, Action)]; 7] = [
        &[("ab", add(1))],
        &[("ab", add(1)), ("c", add(3))],
        &[("ab", add(1)), ("d", add(2))],
        &[("c", add(2)), ("ab", add(1))],
        &[("a", add(1)), ("bc", add(2))],
        &[("ab", add(1)), ("c", add(2)), ("c", add(2))],
        &[("ab", add(1)), ("c", Action::Read)],
    ];
    for other in others {
        assert_ne!(group_of(&first), group_of(other), "{other:?}");
    }
}

fn remember(action: &Action, reply: &Reply) -> Remembered {
    Remembered { identity: 1, fingerprint: fingerprint(action), at_ms: NOW, outcome: Outcome::of(reply) }
}

/// A replay is the first reply, the value of that time included; only the times of the counter are not kept.
#[test]
fn a_replay_is_the_first_reply() {
    let bounded = Limits { floor: 0, ceiling: 10, ..Limits::NONE };
    for action in different_actions() {
        for stored in [None, cell(5), cell(-5), cell(10)] {
            for limits in [Limits::NONE, bounded, Limits { saturate: true, ..bounded }] {
                let first = decide(stored, &action, &limits, NOW, 77).reply;
                let replay = remember(&action, &first).answer(fingerprint(&action));
                // The entry time of what was done is known; of what was only seen or refused, no time is.
                let updated_at_ms = if first.exists && first.refusal.is_none() { NOW } else { 0 };
                let as_remembered = Cell { updated_at_ms, expires_at_ms: NEVER, ..first.cell };
                assert_eq!(
                    replay,
                    Reply { duplicate: true, cell: as_remembered, ..first },
                    "{action:?} {stored:?}"
                );
            }
        }
    }
}

#[test]
fn an_id_used_for_another_request_is_refused_and_does_nothing() {
    let actions = different_actions();
    for (index, first) in actions.iter().enumerate() {
        let reply = decide(cell(5), first, &Limits::NONE, NOW, 77).reply;
        let remembered = remember(first, &reply);
        let other = actions[(index + 1) % actions.len()];
        let answer = remembered.answer(fingerprint(&other));
        assert_eq!(answer.refusal, Some(Refusal::IdReused), "{first:?}, then {other:?}");
        assert!(!answer.duplicate && answer.existed == answer.exists);
        assert_eq!((answer.applied, answer.previous), (0, answer.cell.value));
        assert_eq!(remembered.answer(fingerprint(first)).refusal, reply.refusal, "the first is still known");
    }
}

#[test]
fn the_window_is_half_open_and_never_reaches_back() {
    for (at_ms, now_ms, window_ms, current) in [
        (NOW, NOW, WINDOW_MS, true),
        (NOW, NOW + WINDOW_MS - 1, WINDOW_MS, true),
        (NOW, NOW + WINDOW_MS, WINDOW_MS, false),
        (NOW, NOW + WINDOW_MS + 1, WINDOW_MS, false),
        // Entry times do not go back, but a record read from another partition may be ahead.
        (NOW, NOW - 1, WINDOW_MS, true),
        (NOW, 0, 1, true),
        (NOW, NOW, 1, true),
        (NOW, NOW + 1, 1, false),
        (NOW, NOW, 0, false),
        (0, u64::MAX, u64::MAX, false),
        (1, u64::MAX, u64::MAX, true),
    ] {
        let remembered = Remembered { at_ms, ..remember(&add(1), &Reply::state(None)) };
        assert_eq!(
            remembered.is_current(now_ms, window_ms),
            current,
            "{at_ms} at {now_ms}, window {window_ms}"
        );
    }
}

/// A decision about the counter is final; a state of the service or of the id itself is not.
#[test]
fn what_is_remembered() {
    let remembered: Vec<&str> =
        Refusal::ALL.into_iter().filter(|refusal| refusal.is_remembered()).map(Refusal::code).collect();
    let expected =
        ["overflow", "below-floor", "above-ceiling", "condition-unmet", "group-aborted", "hold-ended"];
    assert_eq!(remembered, expected);
}

/// One counter with its ids, as small as it can be: the order of the checks is what matters.
#[derive(Default)]
struct Deduped {
    cell: Option<Cell>,
    ids: BTreeMap<u128, Remembered>,
    sequence: u64,
}

impl Deduped {
    fn ask(&mut self, id: &str, action: Action, limits: Limits, now_ms: u64) -> Reply {
        let identity = KEY.identity(0, b"key", id.as_bytes(), 0);
        let fingerprint = fingerprint(&action);
        if let Some(known) = self.ids.get(&identity).filter(|known| known.is_current(now_ms, WINDOW_MS)) {
            return known.answer(fingerprint);
        }
        self.sequence += 1;
        let verdict = decide(self.cell, &action, &limits, now_ms, self.sequence);
        match verdict.change {
            Change::Keep => {}
            Change::Put(cell) => self.cell = Some(cell),
            Change::Remove => self.cell = None,
        }
        if verdict.reply.refusal.is_none_or(Refusal::is_remembered) {
            let outcome = Outcome::of(&verdict.reply);
            self.ids.insert(identity, Remembered { identity, fingerprint, at_ms: now_ms, outcome });
        }
        verdict.reply
    }
}

#[test]
fn a_story_of_retries() {
    let mut counter = Deduped::default();
    let full = Limits { ceiling: 5, ..Limits::NONE };
    let disabled = Limits { disabled: true, ..Limits::NONE };
    let delete = Action::Delete(Condition::Always);
    let last = NOW + WINDOW_MS - 1;
    for (story, id, action, limits, now_ms, (refusal, duplicate, value, applied)) in [
        ("first", "a", add(5), full, NOW, (None, false, 5, 5)),
        ("a retry counts nothing", "a", add(5), full, NOW, (None, true, 5, 5)),
        ("refused", "b", add(1), full, NOW, (Some(Refusal::AboveCeiling), false, 5, 0)),
        ("another", "c", add(-3), full, NOW + 1, (None, false, 2, -3)),
        ("the value of that time", "a", add(5), full, last, (None, true, 5, 5)),
        ("refused stays refused", "b", add(1), full, last, (Some(Refusal::AboveCeiling), true, 5, 0)),
        ("other arguments", "a", add(6), full, last, (Some(Refusal::IdReused), false, 5, 0)),
        ("other verb", "a", delete, full, last, (Some(Refusal::IdReused), false, 5, 0)),
        ("disabled is no decision", "d", add(1), disabled, last, (Some(Refusal::Disabled), false, 2, 0)),
        ("so the retry counts", "d", add(1), full, last, (None, false, 3, 1)),
        ("deleted", "e", delete, full, last, (None, false, 0, -3)),
        ("a late retry does not resurrect", "c", add(-3), full, last, (None, true, 2, -3)),
        ("deleted once", "e", delete, full, last, (None, true, 0, -3)),
        ("the window of a is over", "a", add(5), full, last + 1, (None, false, 5, 5)),
        ("and begins anew", "a", add(5), full, last + 2, (None, true, 5, 5)),
        ("that of c ends later", "c", add(-3), full, last + 1, (None, true, 2, -3)),
    ] {
        let reply = counter.ask(id, action, limits, now_ms);
        let told = (reply.refusal, reply.duplicate, reply.cell.value, reply.applied);
        assert_eq!(told, (refusal, duplicate, value, applied), "{story}");
    }
}

#[test]
fn admission_of_producers() {
    use SessionVerdict::{Duplicate, Fenced, Fresh};
    let session = |epoch, sequence| Some(Session { epoch, sequence, refusal: None });
    let refused = Some(Session { epoch: 3, sequence: 10, refusal: Some(Refusal::BelowFloor) });
    let duplicate = |last, refusal| Duplicate { last, refusal };
    for (known, epoch, sequence, expected) in [
        (None, 0, 1, Fresh),
        (None, u64::MAX, u64::MAX, Fresh),
        (session(0, 1), 0, 1, duplicate(1, None)),
        (session(0, 1), 0, 2, Fresh),
        // Gaps are not errors: "last plus one" would leave a client whose reply got lost stuck for ever.
        (session(0, 1), 0, 1_000, Fresh),
        (session(0, 1_000), 0, 2, duplicate(1_000, None)),
        // A new incarnation begins its numbering anew, and the old one is out for good.
        (session(0, 1_000), 1, 1, Fresh),
        (session(1, 1), 0, 1_001, Fenced { epoch: 1 }),
        (session(1, 1), 0, u64::MAX, Fenced { epoch: 1 }),
        (session(u64::MAX, u64::MAX), u64::MAX, u64::MAX, duplicate(u64::MAX, None)),
        (session(u64::MAX, 1), u64::MAX - 1, 2, Fenced { epoch: u64::MAX }),
        // What is known of the last one is not said of those before it.
        (refused, 3, 10, duplicate(10, Some(Refusal::BelowFloor))),
        (refused, 3, 9, duplicate(10, None)),
        (refused, 3, 11, Fresh),
        (refused, 2, 10, Fenced { epoch: 3 }),
        (refused, 4, 10, Fresh),
    ] {
        assert_eq!(admit(known.as_ref(), epoch, sequence), expected, "{known:?} then ({epoch}, {sequence})");
    }
}

/// Retries, reordering and a zombie: whatever arrives, no (epoch, sequence) counts twice, and once a newer
/// incarnation was seen the older one counts nothing.
#[test]
fn every_delivery_order_counts_at_most_once() {
    let deliveries = [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)];
    // All sequences of five deliveries, repetitions included: 3,125 of them.
    for order in 0..deliveries.len().pow(5) {
        let mut known: Option<Session> = None;
        let mut counted = Vec::new();
        let mut rest = order;
        for _ in 0..5 {
            let (epoch, sequence) = deliveries[rest % deliveries.len()];
            rest /= deliveries.len();
            match admit(known.as_ref(), epoch, sequence) {
                SessionVerdict::Fresh => {
                    counted.push((epoch, sequence));
                    known = Some(Session { epoch, sequence, refusal: None });
                }
                SessionVerdict::Duplicate { last, .. } => assert!(sequence <= last),
                SessionVerdict::Fenced { epoch: newer } => assert!(epoch < newer),
            }
        }
        assert!(counted.is_sorted_by(|one, next| one < next), "{counted:?} in order {order}");
    }
}

//! Holds against a plain ledger of all that were ever made, and what names them.

#![allow(clippy::unwrap_used)] // a panic here is a failed test

use std::collections::BTreeSet;

use proptest::prelude::*;
use quipu_counting::KEY_BYTES_MAX;
use quipu_counting::hold::{HOLDS_MAX, Hold, HoldId, Holds, Outstanding};

#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    Reserve { number: u64, amount: i64, ttl_ms: u64 },
    End(u64),
    Forget,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let amount = prop_oneof![4 => -10..10i64, 1 => any::<i64>()];
    let ttl_ms = prop_oneof![8 => 0..40u64, 1 => Just(u64::MAX)];
    let step = prop_oneof![
        2 => (0..15u64).prop_map(Step::Wait),
        4 => (0..25u64, amount, ttl_ms)
            .prop_map(|(number, amount, ttl_ms)| Step::Reserve { number, amount, ttl_ms }),
        4 => (0..25u64).prop_map(Step::End),
        1 => Just(Step::Forget),
    ];
    prop::collection::vec(step, 0..120)
}

/// One line of the ledger: a hold and what ended it.
struct Line {
    number: u64,
    hold: Hold,
    /// Committed or voided by a call.
    ended: bool,
    /// Its bytes were removed after its time.
    forgotten: bool,
}

fn live<'a>(ledger: &'a [Line], now_ms: u64) -> impl Iterator<Item = &'a Line> + 'a {
    ledger.iter().filter(move |line| !line.ended && line.hold.expires_at_ms > now_ms)
}

fn sums(ledger: &[Line], now_ms: u64) -> Outstanding {
    let sum = |wanted: fn(&i64) -> bool| {
        live(ledger, now_ms).map(|line| line.hold.amount).filter(wanted).map(i128::from).sum()
    };
    Outstanding { up: sum(|n| *n > 0), down: sum(|n| *n < 0), count: live(ledger, now_ms).count() }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn exactly_one_thing_ends_a_hold(steps in steps()) {
        let (mut holds, mut ledger, mut now_ms) = (Holds::default(), Vec::<Line>::new(), 1_000);
        let mut forgotten = 0;
        for step in steps {
            match step {
                Step::Wait(ms) => now_ms += ms,
                Step::Reserve { number, amount, ttl_ms } => {
                    let hold = Hold { amount, expires_at_ms: ttl_ms.saturating_add(now_ms) };
                    let is_known =
                        ledger.iter().any(|line| line.number == number && !line.ended && !line.forgotten);
                    prop_assert_eq!(holds.reserve(number, hold), !is_known);
                    if !is_known {
                        ledger.push(Line { number, hold, ended: false, forgotten: false });
                    }
                }
                Step::End(number) => {
                    let expected = live(&ledger, now_ms).find(|line| line.number == number).map(|line| line.hold);
                    prop_assert_eq!(holds.get(number, now_ms), expected);
                    prop_assert_eq!(holds.end(number, now_ms), expected);
                    prop_assert_eq!(holds.end(number, now_ms), None, "ended twice");
                    for line in ledger.iter_mut().filter(|line| line.number == number) {
                        line.ended |= line.hold.expires_at_ms > now_ms;
                    }
                }
                Step::Forget => {
                    let before = holds.outstanding(now_ms);
                    forgotten += holds.forget_expired(now_ms);
                    prop_assert_eq!(holds.outstanding(now_ms), before);
                    for line in ledger.iter_mut().filter(|line| !line.ended) {
                        line.forgotten |= line.hold.expires_at_ms <= now_ms;
                    }
                }
            }
            prop_assert_eq!(holds.outstanding(now_ms), sums(&ledger, now_ms));
            let kept: Vec<&Line> = ledger.iter().filter(|line| !line.ended && !line.forgotten).collect();
            prop_assert_eq!(holds.len(), kept.len());
            prop_assert_eq!(holds.is_empty(), kept.is_empty());
            let numbers: BTreeSet<u64> = kept.iter().map(|line| line.number).collect();
            prop_assert!(holds.iter().map(|(number, _)| number).eq(numbers));

            let mut bytes = Vec::new();
            holds.put(&mut bytes);
            prop_assert_eq!(Holds::read(&bytes), Some(holds.clone()));
        }
        // At the end of all time nothing is set aside, and every hold was either ended or forgotten, once.
        now_ms = u64::MAX;
        prop_assert_eq!(holds.outstanding(now_ms), Outstanding::default());
        forgotten += holds.forget_expired(now_ms);
        prop_assert!(holds.is_empty());
        prop_assert_eq!(&holds, &Holds::default());
        prop_assert_eq!(forgotten + ledger.iter().filter(|line| line.ended).count(), ledger.len());
    }

    #[test]
    fn bytes_are_holds_in_one_way_or_not_at_all(
        bytes in prop_oneof![
            prop::collection::vec(any::<u8>(), 0..40),
            prop::collection::vec(0..5u8, 0..16),
            prop::collection::vec(prop_oneof![Just(0xffu8), Just(0x80), Just(1), Just(0)], 0..40),
        ],
    ) {
        if let Some(holds) = Holds::read(&bytes) {
            let mut again = Vec::new();
            holds.put(&mut again);
            prop_assert_eq!(again, bytes);
        }
    }

    #[test]
    fn hold_ids_come_back(
        key in prop::collection::vec(any::<u8>(), 1..=KEY_BYTES_MAX),
        birth in any::<u64>(),
        number in any::<u64>(),
    ) {
        let id = HoldId { key, birth, number };
        let text = id.text();
        prop_assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'));
        prop_assert_eq!(HoldId::parse(&text), Some(id));
    }

    #[test]
    fn a_hold_has_one_text(
        key in prop::collection::vec(any::<u8>(), 1..6),
        birth in 0..1_000u64,
        number in 0..1_000u64,
        place in 0..20usize,
        other in "[A-Za-z0-9_=+-]{0,2}",
    ) {
        // A text with some characters changed means another hold, or none.
        let id = HoldId { key, birth, number };
        let mut text = id.text();
        let place = place.min(text.len() - 1);
        text.replace_range(place..=place, &other);
        if let Some(parsed) = HoldId::parse(&text) {
            prop_assert_eq!(parsed.text(), text);
        }
    }
}

#[test]
fn a_known_hold_id() {
    let id = HoldId { key: b"seats:12".to_vec(), birth: 300, number: 7 };
    assert_eq!(id.text(), "AawCB3NlYXRzOjEy");
    for text in [
        "",
        "A",
        "AawCB3NlYXRzOjEy=",
        " AawCB3NlYXRzOjEy",
        "AqwCB3NlYXRzOjEy", // another version
        "AawCBw",           // no key
        "Aaw",              // no number
        "AYAAB3M",          // a number in two bytes that fits one
        "AQEBc+",           // not of the alphabet for URLs
        "AQEBc",            // bits that mean nothing
        "AQEBcy",
        &"A".repeat(10_000),
    ] {
        assert_eq!(HoldId::parse(text), None, "{text}");
    }
    let longest = HoldId { key: vec![0xff; KEY_BYTES_MAX], birth: u64::MAX, number: u64::MAX };
    assert_eq!(HoldId::parse(&longest.text()), Some(longest));
    let too_long = HoldId { key: vec![0xff; KEY_BYTES_MAX + 1], birth: 0, number: 0 };
    assert_eq!(HoldId::parse(&too_long.text()), None);
}

#[test]
fn a_counter_has_so_many_holds_and_not_more() {
    let mut holds = Holds::default();
    let hold = |amount| Hold { amount, expires_at_ms: 10 };
    for number in 0..HOLDS_MAX as u64 {
        assert!(holds.reserve(number, hold(if number % 2 == 0 { i64::MAX } else { i64::MIN })));
    }
    assert!(!holds.reserve(u64::MAX, hold(1)));
    let half = HOLDS_MAX as i128 / 2;
    let all =
        Outstanding { up: half * i128::from(i64::MAX), down: half * i128::from(i64::MIN), count: HOLDS_MAX };
    assert_eq!(holds.outstanding(9), all);
    assert_eq!(holds.outstanding(10), Outstanding::default());

    let mut bytes = Vec::new();
    holds.put(&mut bytes);
    assert_eq!(Holds::read(&bytes).as_ref(), Some(&holds));
    // One more than there may be: 10,001 in LEB128, and holds without end.
    let mut too_many = vec![0x91, 0x4e];
    too_many.extend([0, 1, 1].repeat(HOLDS_MAX + 1));
    assert_eq!(Holds::read(&too_many), None);

    assert!(holds.end(3, 9).is_some());
    assert!(holds.reserve(u64::MAX, hold(1)));
    assert_eq!(holds.forget_expired(10), HOLDS_MAX);
    assert!(holds.reserve(3, hold(1)));
}

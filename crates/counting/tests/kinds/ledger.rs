//! Random lives of counters with holds, against a ledger that knows every hold; and of counters of all kinds, for what every
//! change must keep.

use std::collections::BTreeMap;

use proptest::prelude::*;
use quipu_counting::rollup::Declared;
use quipu_counting::series::Retention;

use super::*;

/// A hold as the ledger has it.
#[derive(Clone, Copy, Debug)]
struct Held {
    amount: i64,
    expires_at_ms: u64,
    is_ended: bool,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// The value and what is set aside never leave the bounds, and one thing ends each hold.
    #[test]
    fn holds_against_a_ledger(steps in prop::collection::vec((0..40u64, 0..8u8, -12..12i64, any::<prop::sample::Index>()), 1..150)) {
        const BOUND: i64 = 20;
        let mut counter = Counter::default();
        let mut ledger: BTreeMap<u64, Held> = BTreeMap::new();
        let (mut value, mut now_ms) = (0, START_MS);
        for (later_ms, what, amount, which) in steps {
            now_ms += later_ms;
            let live = |held: &&Held| !held.is_ended && held.expires_at_ms > now_ms;
            let up: i64 = ledger.values().filter(live).map(|held| held.amount.max(0)).sum();
            let down: i64 = ledger.values().filter(live).map(|held| held.amount.min(0)).sum();
            let fits = value + up + amount.max(0) <= BOUND && value + down + amount.min(0) >= -BOUND;
            match what {
                0..=2 => {
                    let ttl_ms = 1 + later_ms * 3;
                    let reply = counter.ask(now_ms, &reserve_within(amount, ttl_ms, -BOUND, BOUND));
                    prop_assert_eq!(reply.refusal.is_none(), fits, "{} with {} and {}, {}", value, up, down, amount);
                    if let Some(Detail::Hold { number, expires_at_ms }) = reply.detail.as_deref() {
                        let held = Held { amount, expires_at_ms: now_ms + ttl_ms, is_ended: false };
                        prop_assert_eq!(*expires_at_ms, held.expires_at_ms);
                        prop_assert!(ledger.insert(*number, held).is_none(), "a number is given once");
                    }
                }
                3..=4 => {
                    let reply = counter.ask(now_ms, &add_within(amount, -BOUND, BOUND));
                    prop_assert_eq!(reply.refusal.is_none(), fits, "{} with {} and {}, {}", value, up, down, amount);
                    value += if fits { amount } else { 0 };
                }
                _ if ledger.is_empty() => {}
                _ => {
                    let place = which.index(ledger.len());
                    let (number, held) = ledger.iter_mut().nth(place).unwrap();
                    let birth = counter.whole.cell.unwrap().birth;
                    let taken = match what { 5 => held.amount, 6 => held.amount / 2, _ => 0 };
                    let ending = match what {
                        5 => Ending::Commit(None),
                        6 => Ending::Commit(Some(taken)),
                        _ => Ending::Void,
                    };
                    let reply = counter.ask(now_ms, &plain(Action::End { birth, number: *number, ending }));
                    prop_assert_eq!(reply.refusal.is_none(), live(&&*held));
                    if live(&&*held) {
                        held.is_ended = true;
                        value += taken;
                    }
                }
            }
            if let Some(cell) = counter.whole.cell {
                prop_assert_eq!(cell.value, value);
            }
            let live = |held: &&Held| !held.is_ended && held.expires_at_ms > now_ms;
            let up: i64 = ledger.values().filter(live).map(|held| held.amount.max(0)).sum();
            prop_assert!(value + up <= BOUND);
            if let Some(body) = &counter.whole.body {
                prop_assert_eq!(body.holds.outstanding(now_ms).up, i128::from(up));
            }
        }
    }

    /// Whatever is asked of whatever there is, under policies that come and go: [`Counter::ask`] checks each step.
    #[test]
    fn every_change_is_told_by_its_events(
        steps in prop::collection::vec((0..30_000u64, 0..20u8, 0..60i64, 0..9u8), 1..120),
    ) {
        let mut counter = Counter::default();
        let mut now_ms = START_MS;
        let mut numbers = vec![(1, 1)];
        for (later_ms, what, amount, policy) in steps {
            now_ms += later_ms;
            counter.policy = policy_of(policy);
            let (birth, number) = numbers[amount as usize % numbers.len()];
            let some: Vec<u64> = (0..amount as u64 * 4).map(|item| hash(&(item * item % 997).to_le_bytes())).collect();
            let ask = match what {
                0..=2 => observe_hashes(&some),
                3 => Ask(Action::Join { sketch: Default::default() }, sketch_of(&some)),
                4 => replace(&["a", "b"], Expiry::In(amount as u64 * 1_000), Condition::Always),
                5..=6 => add(amount - 20),
                7 => acquire(amount, 100),
                8 => acquire(amount, 100).over(&sliding(MINUTE_MS, SECOND_MS)),
                9 => acquire(amount, 100).over(&sliding(MINUTE_MS * (1 + amount as u64), SECOND_MS)),
                10 => acquire(amount, None).over(&Frame::Fixed { span_ms: HOUR_MS }).softly(),
                11..=13 => reserve_within(amount - 30, 1_000 * amount as u64, -200, 200),
                14 => plain(Action::End { birth, number, ending: Ending::Commit(None) }),
                15 => plain(Action::End { birth, number, ending: Ending::Commit(Some(amount / 2)) }),
                16 => plain(Action::End { birth, number, ending: Ending::Void }),
                17 if amount < 10 => delete(),
                17 if amount < 20 => overwrite(amount),
                17 => reset(),
                18 => expire(amount as u64 * 1_000),
                _ => set(amount),
            };
            let reply = counter.ask(now_ms, &ask);
            if let Some(Detail::Hold { number, .. }) = reply.detail.as_deref() {
                numbers.push((reply.cell.birth, *number));
            }
            counter.ask(now_ms, &read());
        }
    }
}

fn policy_of(number: u8) -> Option<Policy> {
    Some(match number {
        0..=2 => return None,
        3 => kind(Kind::Window, Some(sliding(MINUTE_MS, SECOND_MS)), HOUR_MS),
        4 => kind(Kind::Window, Some(Frame::Fixed { span_ms: HOUR_MS }), DAY_MS),
        5 => kind(Kind::Unique, Some(sliding(MINUTE_MS, SECOND_MS)), HOUR_MS),
        6 => kind(Kind::Unique, Some(Frame::Fixed { span_ms: HOUR_MS }), HOUR_MS),
        8 => {
            let rollups = Declared::new(&[vec!["day".to_owned()], vec!["hour".to_owned()]]).unwrap();
            Policy { rollups, ..Policy::default() }
        }
        _ => {
            let history = Some(Retention { minutes_ms: HOUR_MS, hours_ms: DAY_MS, days_ms: 0 });
            Policy { max: Some(60), saturate: true, ttl_ms: Some(900_000), history, ..Policy::default() }
        }
    })
}

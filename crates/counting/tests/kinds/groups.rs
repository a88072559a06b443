//! All-or-none groups of counters with all they have.

use quipu_counting::Refusal;
use quipu_counting::kinds::{DecidedGroup, WholeItem, decide_whole_group};

use super::*;

fn settle(counters: &[Whole], asks: &[(usize, Ask)]) -> DecidedGroup {
    let items: Vec<WholeItem<'_>> = asks
        .iter()
        .enumerate()
        .map(|(index, (counter, ask))| WholeItem {
            counter: *counter,
            asked: Asked { action: &ask.0, payload: &ask.1 },
            ruled: Ruled { limits: Limits::NONE, policy: None, rules: RULES },
            sequence: 100 + index as u64,
            now_ms: START_MS,
        })
        .collect();
    decide_whole_group(&items, counters)
}

fn counters() -> Vec<Whole> {
    let mut held = Counter::default();
    held.ask(START_MS, &reserve_within(4, 100, 0, 10));
    let mut seen = Counter::default();
    seen.ask(START_MS, &observe(&["a"]));
    let mut window = Counter::default();
    window.ask(START_MS, &acquire(3, 5).over(&sliding(HOUR_MS, MINUTE_MS)));
    vec![held.whole, seen.whole, window.whole, Whole::default()]
}

#[test]
fn each_sees_what_those_before_it_did() {
    let before = counters();
    let asks = [
        (0, add_within(6, 0, 10)),
        (1, observe(&["b"])),
        (2, acquire(2, 5)),
        (3, add(1)),
        (0, commit(1)),
        (1, delete()),
        (1, add(7)),
        (3, read()),
    ];
    let (decided, after) = settle(&before, &asks).unwrap();
    let told: Vec<String> = decided.iter().map(|decided| told(&decided.reply)).collect();
    assert_eq!(told, ["6", "2 exactly applied 3", "5 used 5/5 reset 3659999", "1", "10", "none", "7", "1"]);
    // What each came to is what it would have come to alone.
    let mut counters = before;
    for (index, ((counter, ask), decided)) in asks.iter().zip(&decided).enumerate() {
        let asked = Asked { action: &ask.0, payload: &ask.1 };
        let ruled = Ruled { limits: Limits::NONE, policy: None, rules: RULES };
        let alone = decide_whole(&mut counters[*counter], asked, ruled, START_MS, 100 + index as u64);
        assert_eq!(alone, *decided);
    }
    assert_eq!(counters, after);
    assert_eq!(counters[1].body, None, "a sum now");
}

#[test]
fn one_refusal_leaves_no_trace_of_all() {
    let before = counters();
    let good = [(0, commit(1)), (1, observe(&["b"])), (2, acquire(2, 5)), (3, observe(&["c"]))];
    for (bad, refusal) in [
        ((2, acquire(3, 5)), Refusal::OverQuota),
        ((0, void(1)), Refusal::HoldEnded),
        ((1, add(1)), Refusal::WrongKind),
        ((3, acquire(1, None)), Refusal::NoLimit),
        ((0, commit_some(1, 5)), Refusal::HoldEnded),
    ] {
        let mut asks = good.to_vec();
        asks.push(bad.clone());
        let copies = before.clone();
        let (refused, replies) = settle(&copies, &asks).unwrap_err();
        assert_eq!((refused, copies == before), (4, true));
        for (index, reply) in replies.iter().enumerate() {
            let expected = if index == 4 { refusal } else { Refusal::GroupAborted };
            assert_eq!(reply.refusal, Some(expected), "{:?}", bad.1.0);
            let (counter, _) = asks[index];
            assert_eq!(reply.cell.value, before[counter].cell.map_or(0, |cell| cell.value));
        }
        assert_eq!(replies[4].detail.is_some(), refusal == Refusal::OverQuota);
    }
}

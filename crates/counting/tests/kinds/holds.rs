//! Amounts set aside.

use quipu_counting::Refusal;
use quipu_counting::hold::HOLDS_MAX;
use quipu_counting::kinds::RULES_OF_HOLDS;

use super::*;

#[test]
fn reserving_and_ending() {
    script(
        Counter::default(),
        &[
            (0, reserve(3, 100), "0 hold 1 until 100"),
            (1, reserve(4, 50), "0 hold 2 until 51"),
            (2, commit_some(1, 4), "no beyond-hold"),
            (2, commit_some(1, -1), "no beyond-hold"),
            (2, commit_some(1, 2), "2"),
            (3, commit(1), "no hold-ended"),
            (3, void(1), "no hold-ended"),
            (4, commit(9), "no no-such-hold"),
            (50, void(2), "2"),
            (50, commit(2), "no hold-ended"),
            // From its last millisecond on it is nobody's.
            (60, reserve(5, 10), "2 hold 5 until 70"),
            (70, commit(5), "no hold-ended"),
            (71, reserve(5, 10), "2 hold 6 until 81"),
            (80, commit(6), "7"),
            (80, reserve(0, 10), "7 hold 8 until 90"),
            (80, commit_some(8, 1), "no beyond-hold"),
            (80, commit(8), "7"),
        ],
    );
}

/// What was decided by the rules before these is decided so again.
#[test]
fn a_hold_that_never_was_has_ended_by_older_rules() {
    let mut counter = Counter::default();
    counter.ask(START_MS, &reserve(3, 100));
    for (rules, refusal) in [(RULES_OF_HOLDS - 1, Refusal::HoldEnded), (RULES_OF_HOLDS, Refusal::NoHold)] {
        assert_eq!(counter.ask_by(rules, START_MS, &commit(9)).refusal, Some(refusal));
    }
}

#[test]
fn a_counter_is_not_born_outside_its_bounds() {
    let floor = Policy { min: Some(5), ..Policy::default() };
    script(
        Counter::under(floor),
        &[
            (0, reserve(7, 100), "no below-floor"),
            (1, read(), "none"),
            (2, add(6), "6"),
            (3, reserve(7, 100), "6 hold 2 until 103"),
        ],
    );
    let ceiling = Policy { max: Some(-5), ..Policy::default() };
    script(Counter::under(ceiling), &[(0, reserve(-7, 100), "no above-ceiling"), (1, read(), "none")]);
}

#[test]
fn what_is_set_aside_takes_nothing_away() {
    let saturated = |delta, max| plain(Action::Add(Add { max, saturate: true, ..Add::plain(delta) }));
    script(
        Counter::default(),
        &[
            (0, add(10), "10"),
            (1, reserve(5, 100), "10 hold 2 until 101"),
            (2, saturated(3, 12), "10"),
            (3, saturated(3, 17), "12"),
            (4, saturated(-3, 17), "9"),
        ],
    );
}

#[test]
fn holds_belong_to_one_life() {
    script(
        Counter::default(),
        &[
            (0, reserve(3, 100), "0 hold 1 until 100"),
            (1, delete(), "none"),
            (2, commit(1), "no no-such-hold"),
            (3, reserve(3, 100), "0 hold 1 until 103"),
            // The same number, of another counter.
            (4, commit(1), "no no-such-hold"),
            (5, plain(Action::End { birth: 4, number: 1, ending: Ending::Void }), "0"),
        ],
    );
    script(
        Counter::default(),
        &[
            (0, reserve(3, 100), "0 hold 1 until 100"),
            (1, expire(10), "0"),
            (11, commit(1), "no no-such-hold"),
            (11, add(1), "1"),
            (12, read(), "1"),
        ],
    );
    // A counter that would be over at once sets nothing aside.
    let at_once = |expiry| plain(Action::Reserve(Add { expiry, ..Add::plain(3) }, 100));
    script(
        Counter::default(),
        &[
            (0, at_once(Expiry::At(5)), "none hold 1 until 100"),
            (1, commit(1), "no no-such-hold"),
            (1, add(1), "1"),
            (2, at_once(Expiry::At(5)), "none hold 2 until 102"),
            (3, read(), "none"),
        ],
    );
}

#[test]
fn bounds_count_what_is_set_aside() {
    script(
        Counter::default(),
        &[
            (0, reserve_within(6, 100, 0, 10), "0 hold 1 until 100"),
            (1, reserve_within(5, 100, 0, 10), "no above-ceiling"),
            (2, add_within(5, 0, 10), "no above-ceiling"),
            (3, add_within(4, 0, 10), "4"),
            (3, add_within(1, 0, 10), "no above-ceiling"),
            (4, reserve_within(0, 100, 0, 10), "4 hold 3 until 104"),
            (5, reserve_within(-4, 100, 0, 10), "4 hold 4 until 105"),
            // What is set aside for a decrement is not there for another.
            (6, add_within(-1, 0, 10), "no below-floor"),
            (6, reserve_within(-1, 100, 0, 10), "no below-floor"),
            (7, void(4), "4"),
            (8, add_within(-1, 0, 10), "3"),
            (9, commit(1), "9"),
            (10, add_within(1, 0, 10), "10"),
            // Without bounds of its own a request may do as it likes.
            (11, add(1), "11"),
        ],
    );
    // Once their time is over there is room again.
    script(
        Counter::default(),
        &[
            (0, reserve_within(6, 100, 0, 10), "0 hold 1 until 100"),
            (99, add_within(5, 0, 10), "no above-ceiling"),
            (100, add_within(5, 0, 10), "5"),
        ],
    );
}

#[test]
fn bounds_of_policies_count_it_too() {
    let policy = Policy { min: Some(0), max: Some(10), ..Policy::default() };
    script(
        Counter::under(policy.clone()),
        &[
            (0, reserve(7, 100), "0 hold 1 until 100"),
            (1, reserve(4, 100), "no above-ceiling"),
            (2, set(4), "no above-ceiling"),
            (3, set(3), "3"),
            (4, add(1), "no above-ceiling"),
            (5, reserve(-3, 100), "3 hold 3 until 105"),
            (6, reset(), "no below-floor"),
            (6, add(-1), "no below-floor"),
            (7, commit(1), "10"),
            (8, commit(3), "7"),
            (9, reset(), "0"),
        ],
    );
    // Additions take what is left, and nothing is set aside in part.
    let policy = Policy { saturate: true, ..policy };
    script(
        Counter::under(policy),
        &[
            (0, reserve(7, 100), "0 hold 1 until 100"),
            (0, reserve(4, 100), "no above-ceiling"),
            (1, add(9), "3"),
            (2, add(1), "3"),
            (3, commit(1), "10"),
            (4, acquire(1, 100), "no above-ceiling"),
        ],
    );
}

#[test]
fn there_is_always_room_to_commit() {
    let most = i64::MAX.to_string();
    script(
        Counter::default(),
        &[
            (0, reserve(10, 100), "0 hold 1 until 100"),
            (1, add(i64::MAX - 9), "no above-ceiling"),
            (1, set(i64::MAX - 9), "no above-ceiling"),
            (2, set(i64::MAX - 10), &(i64::MAX - 10).to_string()),
            (3, reserve(1, 100), "no above-ceiling"),
            (4, commit(1), &most),
        ],
    );
    let least = i64::MIN.to_string();
    script(
        Counter::default(),
        &[
            (0, reserve(-10, 100), "0 hold 1 until 100"),
            (1, add(i64::MIN + 9), "no below-floor"),
            (2, add(i64::MIN + 10), &(i64::MIN + 10).to_string()),
            (3, commit(1), &least),
        ],
    );
}

#[test]
fn not_too_many() {
    let mut counter = Counter::default();
    for _ in 0..HOLDS_MAX {
        counter.whole.cell = counter.ask_quickly(&reserve(1, 100));
    }
    script(
        counter,
        &[
            (99, reserve(1, 100), "no too-many-holds"),
            (99, void(17), "0"),
            (99, reserve(1, 2), &format!("0 hold {} until 101", HOLDS_MAX + 2)),
            (99, reserve(1, 100), "no too-many-holds"),
            // All but one are over.
            (100, reserve(1, 100), &format!("0 hold {} until 200", HOLDS_MAX + 3)),
        ],
    );
}

impl Counter {
    /// Without the checks, each of which looks at all there is.
    fn ask_quickly(&mut self, ask: &Ask) -> Option<quipu_counting::Cell> {
        self.sequence += 1;
        let asked = Asked { action: &ask.0, payload: &ask.1 };
        let ruled = Ruled { limits: Limits::NONE, policy: None, rules: RULES };
        let decided = decide_whole(&mut self.whole, asked, ruled, START_MS, self.sequence);
        assert_eq!(decided.reply.refusal, None);
        self.whole.cell
    }
}

#[test]
fn in_windows() {
    let window = sliding(10 * SECOND_MS, SECOND_MS);
    script(
        Counter::default(),
        &[
            (0, acquire(2, 10).over(&window), "2 used 2/10 reset 10999"),
            // What is set aside may come any moment, so it is used.
            (0, reserve(5, 60_000), "2 hold 2 until 60000"),
            (0, acquire(4, 10), "no over-quota used 7/10 reset 10999"),
            (0, acquire(3, 10), "5 used 10/10 reset 10999"),
            // It counts when it is committed.
            (20_000, commit(2), "10"),
            (20_000, acquire(5, 10), "15 used 10/10 reset 10999"),
            (20_000, reserve(1, 60_000), "15 hold 6 until 80000"),
            // And stays set aside when everything is set back.
            (21_000, reset(), "0"),
            (21_000, acquire(10, 10), "no over-quota used 1/10 reset 59000"),
            (21_000, commit(6), "1"),
        ],
    );
}

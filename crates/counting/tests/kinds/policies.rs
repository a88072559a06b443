//! What policies make of counters that do not exist yet, and of those that do.

use super::*;

fn hour() -> Option<Frame> {
    Some(sliding(HOUR_MS, MINUTE_MS))
}

#[test]
fn counters_are_born_as_their_policy_says() {
    let sum = || Counter::under(kind(Kind::Sum, None, 0));
    let unique = || Counter::under(kind(Kind::Unique, None, 0));
    let window = || Counter::under(kind(Kind::Window, hour(), 2 * HOUR_MS));
    for (counter, ask, expected, then) in [
        (sum(), add(1), "1", Some(Kind::Sum)),
        (sum(), observe(&["a"]), "no wrong-kind", None),
        (sum(), acquire(1, 5).over(&hour().unwrap()), "no wrong-kind", None),
        (sum(), acquire(1, 5), "1 used 1/5 reset 0", Some(Kind::Sum)),
        (sum(), reserve(1, 5), "0 hold 1 until 5", Some(Kind::Sum)),
        (unique(), add(1), "no wrong-kind", None),
        (unique(), set(1), "no wrong-kind", None),
        (unique(), reserve(1, 5), "no wrong-kind", None),
        (unique(), acquire(1, 5), "no wrong-kind", None),
        (unique(), observe(&["a"]), "1 exactly applied 3", Some(Kind::Unique)),
        (unique(), join(&["a"]), "1 exactly applied 3", Some(Kind::Unique)),
        (unique(), reset(), "none", None),
        (window(), observe(&["a"]), "no wrong-kind", None),
        (window(), set(1), "no wrong-kind", None),
        (window(), add(1), "1", Some(Kind::Window)),
        (window(), add(0), "0", Some(Kind::Window)),
        (window(), reserve(1, 5), "0 hold 1 until 5", Some(Kind::Window)),
        (window(), acquire(1, 5), "1 used 1/5 reset 3659999", Some(Kind::Window)),
        (window(), acquire(1, None), "no no-limit", None),
    ] {
        let counter = script(counter, &[(0, ask.clone(), expected)]);
        let found = counter.whole.cell.map(|_| counter.whole.body.map_or(Kind::Sum, |body| body.kind()));
        assert_eq!(found, then, "{:?}", ask.0);
    }
}

#[test]
fn a_counter_stays_what_it_is() {
    let counter = script(Counter::default(), &[(0, add(5), "5")]);
    for policy in [kind(Kind::Unique, None, 0), kind(Kind::Window, hour(), HOUR_MS)] {
        let counter = Counter { policy: Some(policy), ..counter.clone() };
        let counter = script(
            counter,
            &[
                (0, add(1), "6"),
                (0, observe(&["a"]), "no wrong-kind"),
                (0, acquire(1, 10), "7 used 7/10 reset 0"),
                (0, acquire(1, 10).over(&hour().unwrap()), "no wrong-kind"),
                (0, set(2), "2"),
                (0, reset(), "0"),
            ],
        );
        assert_eq!(counter.whole.body, None);
    }
    let counter = script(Counter::default(), &[(0, observe(&["a"]), "1 exactly applied 3")]);
    let counter = Counter { policy: Some(kind(Kind::Sum, None, 0)), ..counter };
    script(counter, &[(0, add(1), "no wrong-kind"), (0, observe(&["b"]), "2 exactly applied 3")]);
}

#[test]
fn limits_of_policies() {
    let mut policy = kind(Kind::Window, hour(), 2 * HOUR_MS);
    policy.limit = Some(3);
    let counter = script(
        Counter::under(policy.clone()),
        &[
            (0, acquire(3, None), "3 used 3/3 reset 3659999"),
            (1, acquire(1, None), "no over-quota used 3/3 reset 3659998"),
            (1, acquire(1, 4), "4 used 4/4 reset 3659998"),
        ],
    );
    policy.soft = true;
    let counter = Counter { policy: Some(policy), ..counter };
    script(counter, &[(2, acquire(1, None), "5 used 5/3 reset 3659997")]);
    // Without a window nothing comes back by itself.
    let policy = Policy { limit: Some(1), ..Policy::default() };
    script(
        Counter::under(policy),
        &[
            (0, acquire(1, None), "1 used 1/1 reset 0"),
            (DAY_MS, acquire(1, None), "no over-quota used 1/1 reset 0"),
        ],
    );
}

#[test]
fn nothing_changes_where_it_is_disabled() {
    let first = [observe(&["a"]), reserve(1, 100), acquire(1, 5).over(&hour().unwrap())];
    let all = [
        observe(&["b"]),
        join(&["b"]),
        replace(&["b"], Expiry::Keep, Condition::Always),
        acquire(1, 5),
        reserve(1, 5),
        commit(1),
        add(1),
        set(1),
        reset(),
        delete(),
        expire(1),
    ];
    for first in first {
        let mut counter = Counter::default();
        let value = counter.ask(START_MS, &first).cell.value;
        counter.policy = Some(Policy { disabled: true, ..Policy::default() });
        for ask in &all {
            script(counter.clone(), &[(0, ask.clone(), "no disabled"), (0, read(), &value.to_string())]);
        }
    }
}

#[test]
fn lifetimes_of_policies() {
    let policy = Policy { ttl_ms: Some(10), ..Policy::default() };
    for (first, again) in [
        (observe(&["a"]), "1 exactly applied 3"),
        (reserve(1, 100), "0 hold 1 until 110"),
        (acquire(1, 1).over(&hour().unwrap()), "1 used 1/1 reset 3659989"),
    ] {
        let mut counter = Counter::under(policy.clone());
        counter.ask(START_MS, &first);
        assert_eq!(counter.whole.cell.unwrap().expires_at_ms, START_MS + 10);
        script(
            counter,
            &[(9, plain(Action::Check(Condition::Exists)), &told_value(&first)), (10, first, again)],
        );
    }
}

fn told_value(ask: &Ask) -> String {
    Counter::default().ask(START_MS, ask).cell.value.to_string()
}

//! What the value was, where a policy wants it kept.

use proptest::prelude::*;
use quipu_counting::series::{Retention, Series, Step};

use super::*;

fn kept(mut policy: Policy) -> Counter {
    policy.history = Some(Retention { minutes_ms: 99 * DAY_MS, hours_ms: 99 * DAY_MS, days_ms: 99 * DAY_MS });
    Counter::under(policy)
}

#[test]
fn kept_and_let_go_of() {
    let mut counter = script(
        kept(Policy::default()),
        &[(0, add(1), "1"), (MINUTE_MS + 1, add(1), "2"), (3 * MINUTE_MS, expire(HOUR_MS), "2")],
    );
    assert_ne!(counter.body().series, Series::default());
    counter.policy = None;
    // Whoever looks sees what was kept until the next change.
    let counter = script(counter, &[(4 * MINUTE_MS, read(), "2"), (4 * MINUTE_MS, add(1), "3")]);
    assert_eq!(counter.body().series, Series::default());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Against a list of all values, with many changes in the very millisecond of a boundary and around it.
    #[test]
    fn every_boundary_has_the_value_of_its_time(
        steps in prop::collection::vec((0..8u8, 0..400_000u64, 0..9u8, -9..9i64), 1..80),
        is_window: bool,
    ) {
        let policy = if is_window { kind(Kind::Window, Some(sliding(HOUR_MS, MINUTE_MS)), DAY_MS) } else { Policy::default() };
        let mut counter = kept(policy);
        let mut now_ms = START_MS - 1;
        let mut values: Vec<(u64, i64)> = Vec::new();
        for (passes, later_ms, what, amount) in steps {
            now_ms = match passes {
                0..3 => now_ms + u64::from(passes),
                3..6 => now_ms.next_multiple_of(MINUTE_MS) + u64::from(passes) - 3,
                _ => now_ms + later_ms,
            };
            let ask = match what {
                0 => reset(),
                1 => reserve(amount, MINUTE_MS),
                2 => acquire(amount.abs(), 1_000),
                3 => expire(DAY_MS),
                _ => add(amount),
            };
            counter.ask(now_ms, &ask);
            if let Some(cell) = counter.whole.cell {
                values.push((now_ms, cell.value));
            }
        }
        let (Some(cell), Some((born_at_ms, _))) = (counter.whole.cell, values.first()) else { return Ok(()) };
        let nothing = Series::default();
        let series = counter.whole.body.as_ref().map_or(&nothing, |body| &body.series);
        for step in Step::ALL {
            let mut at_ms = born_at_ms.next_multiple_of(step.ms());
            while at_ms <= now_ms {
                let expected = values[values.partition_point(|(value_at_ms, _)| *value_at_ms <= at_ms) - 1].1;
                let found = series.at(at_ms, cell.value, cell.updated_at_ms).map(|point| point.value);
                prop_assert_eq!(found, Some(expected), "at {}", at_ms - START_MS);
                at_ms += step.ms();
            }
        }
    }
}

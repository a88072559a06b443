//! What was asked and answered, and whether one counter after the other could have said that.
//!
//! Every change of a counter returns its value and its version, so what would be a search in general is one look in order of
//! versions: values must follow from each other, and nothing that was over before something else began may come after it.

use std::collections::BTreeMap;

use crate::violation::{Invariant, Violation};

/// One answered request of one counter. Times are those of the world, which all its clients share.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Event {
    pub key: usize,
    pub what: What,
    /// The counter afterwards.
    pub value: i64,
    pub version: u64,
    pub invoked: u64,
    pub returned: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    Added {
        delta: i64,
    },
    /// It would have gone below this.
    Refused {
        delta: i64,
        min: i64,
    },
    Read,
}

fn broken(invariant: Invariant, what: String) -> Violation {
    Violation::new(invariant, what)
}

/// Whether all this could have happened, if these are all changes there were.
pub fn check(events: &[Event]) -> Result<(), Violation> {
    let mut keys: BTreeMap<usize, Vec<&Event>> = BTreeMap::new();
    for event in events {
        keys.entry(event.key).or_default().push(event);
    }
    keys.into_values().try_for_each(check_counter)
}

fn check_counter(mut events: Vec<&Event>) -> Result<(), Violation> {
    let is_change = |event: &Event| matches!(event.what, What::Added { .. });
    events.sort_by_key(|event| (event.version, !is_change(event)));
    let mut state = (0, 0);
    for event in &events {
        let seen = (event.value, event.version);
        let follows = match event.what {
            What::Added { delta } => {
                if event.version == state.1 {
                    let what = format!("two changes have version {}: {event:?}", event.version);
                    return Err(broken(Invariant::ExactlyOnce, what));
                }
                state = (state.0 + delta, state.1 + 1);
                seen == state
            }
            What::Refused { delta, min } => seen == state && event.value + delta < min,
            What::Read => seen == state,
        };
        if !follows {
            let what = format!("value {} at version {} was expected, not {event:?}", state.0, state.1);
            return Err(broken(Invariant::Survival, what));
        }
    }
    check_time(&events)
}

/// Looks from the last version back: whatever comes later must not have been over before this began.
fn check_time(events: &[&Event]) -> Result<(), Violation> {
    let mut earliest: Option<&Event> = None;
    let mut rest = events;
    while let Some(last) = rest.last() {
        let is_change = |event: &Event| matches!(event.what, What::Added { .. });
        // Those that only looked at a version have no order among themselves.
        let start = match is_change(last) {
            true => rest.len() - 1,
            false => rest.partition_point(|event| {
                event.version < last.version || is_change(event) && event.version == last.version
            }),
        };
        let (before, together) = rest.split_at(start);
        for event in together {
            if let Some(later) = earliest
                && later.returned < event.invoked
            {
                let what = format!("{later:?} was over before {event:?} began, and saw more");
                return Err(broken(Invariant::NothingShownIsTakenBack, what));
            }
        }
        earliest = together.iter().copied().chain(earliest).min_by_key(|event| event.returned);
        rest = before;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(what: What, value: i64, version: u64, invoked: u64, returned: u64) -> Event {
        Event { key: 1, what, value, version, invoked, returned }
    }

    fn added(delta: i64, value: i64, version: u64, invoked: u64, returned: u64) -> Event {
        event(What::Added { delta }, value, version, invoked, returned)
    }

    fn read(value: i64, version: u64, invoked: u64, returned: u64) -> Event {
        event(What::Read, value, version, invoked, returned)
    }

    #[test]
    fn what_can_have_happened_is_accepted() {
        let events = [
            read(0, 0, 0, 5),
            added(2, 2, 1, 1, 9),
            added(-1, 1, 2, 0, 20),
            event(What::Refused { delta: -2, min: 0 }, 1, 2, 10, 30),
            read(2, 1, 2, 8),
            read(1, 2, 19, 21),
            read(1, 2, 25, 26),
            added(5, 6, 3, 26, 40),
        ];
        check(&events).unwrap();
    }

    #[test]
    fn what_cannot_have_happened_is_refused() {
        let twice = [added(1, 1, 1, 0, 1), added(1, 1, 1, 2, 3)];
        let lost = [added(1, 1, 1, 0, 1), added(1, 1, 2, 2, 3)];
        let gap = [added(1, 1, 1, 0, 1), added(1, 3, 3, 2, 3)];
        let stale_read = [added(1, 1, 1, 0, 1), read(0, 0, 2, 3)];
        let read_of_the_future = [added(1, 1, 1, 5, 6), read(1, 1, 2, 3)];
        let order = [added(1, 1, 1, 5, 6), added(1, 2, 2, 1, 2)];
        let back = [added(1, 1, 1, 0, 9), read(1, 1, 2, 3), read(0, 0, 4, 5)];
        let refused = [added(3, 3, 1, 0, 1), event(What::Refused { delta: -2, min: 0 }, 3, 1, 2, 3)];
        let late_refusal = [added(3, 3, 1, 0, 1), event(What::Refused { delta: -2, min: 0 }, 0, 0, 2, 3)];
        for events in [
            &twice[..],
            &lost,
            &gap,
            &stale_read,
            &read_of_the_future,
            &order,
            &back,
            &refused,
            &late_refusal,
        ] {
            assert!(check(events).is_err(), "{events:?}");
        }
    }
}

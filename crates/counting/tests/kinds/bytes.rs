//! Bytes that are bodies and events, and bytes that are not.

use std::sync::LazyLock;

use proptest::prelude::*;
use quipu_counting::body::{Event, Shape, read_frame};
use quipu_counting::bytes::Bytes;
use quipu_counting::hold::Hold;
use quipu_counting::series::Retention;
use quipu_counting::visitors::VISITOR_BUCKETS_MAX;
use quipu_counting::window::{Unit, Zone};

use super::*;

fn keepings() -> Vec<Keeping> {
    let zone = Zone::new("Europe/Berlin", [(0, 3600), (1_000, 7200)]).unwrap();
    vec![
        Keeping { frame: sliding(HOUR_MS, MINUTE_MS), keep_ms: 2 * HOUR_MS },
        Keeping { frame: Frame::Fixed { span_ms: 1 }, keep_ms: 0 },
        Keeping { frame: Frame::Calendar { unit: Unit::Month, anchor: 31, zone }, keep_ms: u64::MAX },
    ]
}

/// Bodies of every shape, empty and not.
static BODIES: LazyLock<Vec<Body>> = LazyLock::new(|| {
    let mut shapes = vec![Shape::Sum, Shape::Unique];
    shapes.extend(
        keepings().into_iter().flat_map(|keeping| [Shape::Window(keeping.clone()), Shape::Visitors(keeping)]),
    );
    let many: Vec<u64> = (0..2_000u64).map(|item| hash(&item.to_le_bytes())).collect();
    let mut bodies = Vec::new();
    for shape in shapes {
        let mut body = Body::new(shape);
        bodies.push(body.clone());
        for (start_ms, delta) in [(5, -3), (900, i64::MIN), (u64::MAX - 1, 1)] {
            // Each shape takes those that are for it.
            let hashes = many[..(start_ms as usize).min(many.len())].to_vec();
            body.apply(Event::Count { start_ms, from_ms: 0, delta }, 0);
            body.apply(Event::Observe { start_ms, from_ms: 0, hashes }, 0);
            let hold = Hold { amount: delta, expires_at_ms: u64::MAX - start_ms };
            body.apply(Event::Reserve { number: start_ms, hold }, 0).unwrap();
            let retention = Retention { minutes_ms: u64::MAX, hours_ms: DAY_MS, days_ms: 1 };
            body.apply(Event::Note { retention, before: delta, changed_at_ms: start_ms }, start_ms + 1)
                .unwrap();
            body.apply(Event::Note { retention, before: 7, changed_at_ms: 0 }, DAY_MS + start_ms / 2)
                .unwrap();
            bodies.push(body.clone());
        }
    }
    bodies
});

fn bytes_of(body: &Body) -> Vec<u8> {
    let mut bytes = Vec::new();
    body.put(&mut bytes);
    bytes
}

#[test]
fn bodies_come_back() {
    for body in BODIES.iter() {
        let bytes = bytes_of(body);
        assert_eq!(Body::read(&bytes).as_ref(), Some(body));
        for length in 0..bytes.len().min(600) {
            assert_eq!(Body::read(&bytes[..length]), None, "cut at {length}");
        }
        assert_eq!(Body::read(&[&bytes[..], &[0]].concat()), None, "and nothing behind");
    }
}

/// What is read has one form: two replicas with the same counters have the same bytes.
#[test]
fn changed_bytes_are_nothing_or_another_body() {
    for body in BODIES.iter() {
        let bytes = bytes_of(body);
        for position in (0..bytes.len()).step_by(1 + bytes.len() / 400) {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[position] ^= 1 << bit;
                if let Some(read) = Body::read(&changed) {
                    assert_eq!(bytes_of(&read), changed, "byte {position} bit {bit}");
                }
            }
        }
    }
}

#[test]
fn visitors_are_in_order_and_not_too_many() {
    let keeping = keepings().remove(0);
    let visitors = |starts: &[u64]| {
        let mut bytes = bytes_of(&Body::new(Shape::Visitors(keeping.clone())));
        // Nothing seen, set aside and noted.
        let rest = [0, 1, 0, 3, 0, 0, 0];
        assert_eq!(bytes.split_off(bytes.len() - rest.len()), rest);
        put_varint(&mut bytes, starts.len() as u64);
        for start_ms in starts {
            put_varint(&mut bytes, *start_ms);
            bytes.extend([1, 0]); // an empty sketch
        }
        bytes.extend(&rest[1..]);
        Body::read(&bytes).is_some()
    };
    let most: Vec<u64> = (0..VISITOR_BUCKETS_MAX as u64).collect();
    let more: Vec<u64> = (0..=VISITOR_BUCKETS_MAX as u64).collect();
    for (starts, is_body) in
        [(&[][..], true), (&[1, 2], true), (&[2, 1], false), (&[1, 1], false), (&most, true), (&more, false)]
    {
        assert_eq!(visitors(starts), is_body, "{} buckets from {:?}", starts.len(), starts.first());
    }
}

fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

#[test]
fn events_that_cannot_have_happened() {
    let unique = || Event::Observe { start_ms: 0, from_ms: 0, hashes: vec![1] };
    let count = |delta| Event::Count { start_ms: 0, from_ms: 0, delta };
    let hold = Event::Reserve { number: 1, hold: Hold { amount: 1, expires_at_ms: 10 } };
    let window = || Event::Become(Shape::Window(keepings().remove(0)));
    for (events, is_possible) in [
        (vec![unique()], false),
        (vec![count(1)], false),
        (vec![Event::Keep(1)], false),
        (vec![Event::End(1)], false),
        (vec![Event::Join(Unique::new())], false),
        (vec![Event::Become(Shape::Unique), unique()], true),
        (vec![Event::Become(Shape::Unique), count(1)], false),
        (vec![window(), unique()], false),
        (vec![window(), count(i64::MAX), count(1)], false),
        (vec![window(), count(i64::MAX), Event::Empty, count(1)], true),
        (vec![window(), Event::Keep(1)], true),
        (vec![hold.clone(), hold.clone()], false),
        (vec![hold.clone(), Event::End(1), Event::End(1)], false),
        (vec![hold, Event::Become(Shape::Unique), Event::End(1)], true),
    ] {
        let mut bytes = Vec::new();
        events.iter().for_each(|event| event.put(&mut bytes));
        assert_eq!(Body::apply_all(&mut None, &bytes, 0).is_some(), is_possible, "{events:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), first in 0..12u8, time_ms: u64) {
        let bytes = [&[first], &bytes[..]].concat();
        if let Some(body) = Body::read(&bytes) {
            prop_assert_eq!(bytes_of(&body), bytes.clone());
        }
        read_frame(&mut Bytes::new(&bytes));
        for mut body in BODIES.iter().cloned().map(Some).chain([None]).step_by(5) {
            let _ = Body::apply_all(&mut body, &bytes, time_ms);
        }
        let mut counter = Counter::default();
        for action in [
            Action::Observe { items: Default::default(), at_ms: None },
            Action::Join { sketch: Default::default() },
            acquire(1, 5).0,
        ] {
            counter.ask(time_ms, &Ask(action, bytes.clone()));
        }
    }
}

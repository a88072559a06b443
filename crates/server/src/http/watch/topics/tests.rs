//! What clients find in topics.

use super::*;

fn selection(keys: &[&str], prefixes: &[&str]) -> Selection {
    let names = |names: &[&str]| names.iter().map(|name| Arc::from(name.as_bytes())).collect();
    Selection { keys: names(keys), prefixes: names(prefixes) }
}

fn cell(value: i64) -> Option<Cell> {
    Some(Cell { value, version: 1, ..Cell::ABSENT })
}

/// From which number on the first prefix is covered.
const FIRST: u64 = 1;

/// Topics whose changes are noted.
fn noted(selection: &Selection) -> Topics {
    let mut topics = Topics::default();
    topics.subscribe(selection, &Arc::default(), Instant::now()).unwrap();
    let interest = topics.take_interest().unwrap();
    topics.are_noted(&interest);
    topics
}

fn publish(topics: &mut Topics, key: &str, value: Option<Cell>) {
    topics.publish(key.as_bytes(), value, || Bytes::from(format!("{:?}", value.map(|cell| cell.value))));
}

/// `key=value` of each event; `-` where everything is gone.
fn heard(topics: &Topics, selection: &Selection, since: u64) -> Option<Vec<String>> {
    let events = topics.events(selection, since, topics.number(), usize::MAX)?;
    let shown = |(_, event): &(u64, Event)| match event {
        Event::Clear => "-".to_owned(),
        Event::Change(change) => {
            let value = change.cell.map_or("gone".to_owned(), |cell| cell.value.to_string());
            format!("{}={value}", String::from_utf8_lossy(&change.key))
        }
    };
    Some(events.iter().map(shown).collect())
}

#[test]
fn each_counter_has_its_newest_event_only_in_the_order_of_changes() {
    let watched = selection(&["x"], &["a", "ab"]);
    let mut topics = noted(&watched);
    for (key, value) in [("a1", 1), ("ab", 1), ("x", 1), ("other", 1), ("a1", 2), ("x", 1), ("a1", 2)] {
        publish(&mut topics, key, cell(value));
    }
    publish(&mut topics, "x", None);
    assert_eq!(heard(&topics, &watched, FIRST).unwrap(), ["ab=1", "a1=2", "x=gone"]);
    assert_eq!(topics.number(), FIRST + 5, "what nobody watches or everybody knows is no event");
    assert_eq!(heard(&topics, &watched, FIRST + 4).unwrap(), ["x=gone"]);
    assert_eq!(heard(&topics, &watched, FIRST + 5).unwrap(), [""; 0]);
    assert_eq!(topics.events(&watched, FIRST, FIRST + 3, 9).unwrap().len(), 1, "up to a number");
    assert_eq!(topics.events(&watched, FIRST, FIRST + 5, 2).unwrap().len(), 2, "as many as are wanted");
    topics.learn(b"a1", cell(3), Bytes::new);
    assert_eq!(topics.number(), FIRST + 5, "what did not change is no event for who watches a prefix");
    assert_eq!(heard(&topics, &watched, FIRST + 6), None, "no event has that number");
    assert_eq!(heard(&topics, &selection(&["y"], &[]), 0), None, "nobody noted its changes");
}

#[test]
fn a_deletion_of_all_comes_before_what_was_counted_after_it() {
    let watched = selection(&["x", "y"], &["a"]);
    let mut topics = noted(&watched);
    for key in ["a1", "a2", "x"] {
        publish(&mut topics, key, cell(1));
    }
    publish(&mut topics, "y", None);
    topics.clear(|_| Bytes::new());
    publish(&mut topics, "a2", cell(1));
    assert_eq!(heard(&topics, &watched, FIRST).unwrap(), ["y=gone", "-", "x=gone", "a2=1"]);
}

#[test]
fn who_is_behind_what_was_forgotten_begins_anew() {
    let (busy, calm, key) = (selection(&[], &["b"]), selection(&[], &["c"]), selection(&["k"], &[]));
    let mut topics = noted(&selection(&["k"], &["b", "c"]));
    publish(&mut topics, "c", cell(1));
    publish(&mut topics, "k", cell(1));
    let json = Bytes::from(vec![b'x'; 1 << 20]);
    for number in 0..64 {
        topics.publish(format!("b{number}").as_bytes(), cell(1), || json.clone());
    }
    assert_eq!(heard(&topics, &busy, FIRST + 2), None);
    assert!(heard(&topics, &busy, topics.number() - 10).is_some());
    assert_eq!(heard(&topics, &calm, FIRST).unwrap(), ["c=1"]);
    topics.lose();
    assert_eq!(heard(&topics, &calm, topics.number() - 1), None);
    assert!(topics.covers(&calm, topics.number()));
    assert_eq!(heard(&topics, &key, 0).unwrap(), ["k=1"], "of a key all there is to know is kept");
}

#[tokio::test(start_paused = true)]
async fn who_comes_back_soon_finds_everything() {
    let watched = selection(&["k"], &["p"]);
    let mut topics = noted(&watched);
    assert!(!topics.is_known(&watched), "nothing is known of the key");
    publish(&mut topics, "k", None);
    assert!(topics.is_known(&watched) && topics.take_interest().is_none());
    topics.unsubscribe(1, &watched, Instant::now());
    tokio::time::advance(LINGER / 2).await;
    topics.forget_lingering(Instant::now());
    publish(&mut topics, "p1", cell(1));
    let again = topics.subscribe(&watched, &Arc::default(), Instant::now()).unwrap();
    assert_eq!(heard(&topics, &watched, FIRST + 1).unwrap(), ["p1=1"]);
    topics.unsubscribe(again, &watched, Instant::now());
    tokio::time::advance(LINGER).await;
    topics.forget_lingering(Instant::now());
    assert!(topics.is_empty() && topics.take_interest().unwrap().is_empty());
    // Who comes late has missed what happened meanwhile, though no event since has another number.
    let newest = topics.number();
    topics.subscribe(&watched, &Arc::default(), Instant::now()).unwrap();
    let interest = topics.take_interest().unwrap();
    topics.are_noted(&interest);
    assert_eq!(heard(&topics, &watched, newest), None);
}

#[test]
fn there_is_room_for_so_many() {
    let mut topics = Topics::default();
    let now = Instant::now();
    let prefix = |number: usize| selection(&[], &[&format!("p{number}")]);
    for number in 0..PREFIXES_MAX {
        topics.subscribe(&prefix(number), &Arc::default(), now).unwrap();
    }
    assert_eq!(topics.subscribe(&prefix(PREFIXES_MAX), &Arc::default(), now), Err(Full));
    assert!(topics.subscribe(&prefix(0), &Arc::default(), now).is_ok(), "which is there already");
    topics.unsubscribe(2, &prefix(1), now);
    assert!(topics.subscribe(&prefix(PREFIXES_MAX), &Arc::default(), now).is_ok());
    assert_eq!(topics.subscribe(&prefix(1), &Arc::default(), now), Err(Full), "which had to go");
}

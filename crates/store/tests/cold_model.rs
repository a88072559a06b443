//! What only the model does: it crashes and fails when told to.

#![allow(clippy::unwrap_used, reason = "what a test cannot go on without")]

use quipu_store::cold::{ColdError, ColdStore, ModelStore, Rows};

fn one_row(value: u8) -> Rows {
    let mut rows = Rows::new();
    rows.push(b"a", Some(&[value])).unwrap();
    rows.push(b"b", Some(&[value])).unwrap();
    rows
}

/// Values of both rows, which must be of the same write.
fn value(store: &ModelStore) -> Option<u8> {
    let (a, b) = (store.get("s", b"a").unwrap(), store.get("s", b"b").unwrap());
    assert_eq!(a, b);
    a.map(|value| value[0])
}

#[test]
fn a_crash_takes_back_nothing_that_was_written() {
    let store = ModelStore::new(1);
    store.write("s", &one_row(1)).unwrap();
    store.crash();
    assert!(store.has_crashed());
    assert!(
        store.get("s", b"a").is_err() && store.write("s", &one_row(2)).is_err() && store.spaces().is_err()
    );
    let next = store.reopen();
    assert_eq!(value(&next), Some(1));
    assert!(store.get("s", b"a").is_err(), "a handle of an earlier life stays dead");
    next.write("s", &one_row(3)).unwrap();
    assert_eq!(value(&next), Some(3));
}

#[test]
fn a_crash_in_a_write_leaves_all_or_nothing_as_the_seed_decides() {
    let mut outcomes = [0, 0];
    for seed in 0..32 {
        let run = || {
            let store = ModelStore::new(seed);
            store.write("s", &one_row(1)).unwrap();
            store.crash_after(1);
            store.write("s", &one_row(2)).unwrap();
            assert!(store.write("s", &one_row(3)).is_err());
            assert!(store.write("s", &one_row(4)).is_err());
            value(&store.reopen())
        };
        let found = run();
        assert_eq!(found, run(), "the same seed gives the same outcome");
        assert!(found == Some(2) || found == Some(3), "{found:?}");
        outcomes[usize::from(found == Some(3))] += 1;
    }
    assert!(outcomes[0] > 0 && outcomes[1] > 0, "{outcomes:?}");
}

#[test]
fn a_full_disk_refuses_one_write_and_no_drop() {
    let store = ModelStore::new(1);
    store.full_after(1);
    store.write("s", &one_row(1)).unwrap();
    store.drop_space("other").unwrap();
    assert!(matches!(store.write("s", &one_row(2)), Err(ColdError::Full { .. })));
    assert_eq!(value(&store), Some(1));
    store.write("s", &one_row(3)).unwrap();
    assert_eq!(value(&store), Some(3));
}

#[test]
fn a_fork_is_a_disk_of_its_own() {
    let store = ModelStore::new(1);
    store.write("s", &one_row(1)).unwrap();
    store.crash();
    let fork = store.fork(2);
    fork.write("s", &one_row(2)).unwrap();
    assert_eq!((value(&fork), value(&store.reopen())), (Some(2), Some(1)));
}

//! What every cold store does, run against the real one and the model: a table of behaviours, and random
//! operations compared with a map.

#![allow(clippy::unwrap_used, reason = "what a test cannot go on without")]

use quipu_store::cold::{ColdError, ColdOptions, ColdStore, LsmStore, ModelStore, Rows};
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::ops::{Bound, ControlFlow};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;
type Row<'a> = (&'a str, Option<&'a str>);

/// A store that can be closed and opened again.
enum Machine {
    Real(tempfile::TempDir, Option<LsmStore>),
    Model(ModelStore),
}

impl Machine {
    fn both() -> [Self; 2] {
        let folder = tempfile::tempdir().unwrap();
        let store = open(&folder);
        [Self::Real(folder, Some(store)), Self::Model(ModelStore::new(1))]
    }

    fn store(&self) -> &dyn ColdStore {
        match self {
            Self::Real(_, store) => store.as_ref().unwrap(),
            Self::Model(store) => store,
        }
    }

    fn reopen(&mut self) {
        match self {
            Self::Real(folder, store) => {
                drop(store.take());
                *store = Some(open(folder));
            }
            Self::Model(store) => *store = store.reopen(),
        }
    }

    /// Does the merges that the real store would do some time.
    fn merge(&self) {
        if let Self::Real(_, Some(store)) = self {
            store.merge_all().unwrap();
        }
    }

    fn name(&self) -> &'static str {
        if matches!(self, Self::Real(..)) { "real" } else { "model" }
    }
}

fn open(folder: &tempfile::TempDir) -> LsmStore {
    LsmStore::open(folder.path().join("cold"), ColdOptions { cache_bytes: 1 << 20, ..ColdOptions::default() })
        .unwrap()
}

fn rows(list: &[Row<'_>]) -> Rows {
    let mut rows = Rows::new();
    for (key, value) in list {
        rows.push(key.as_bytes(), value.map(str::as_bytes)).unwrap();
    }
    rows
}

fn scan(store: &dyn ColdStore, space: &str, from: Bound<&[u8]>, to: Bound<&[u8]>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    let mut visit = |key: &[u8], value: &[u8]| {
        found.push((key.to_vec(), value.to_vec()));
        ControlFlow::Continue(())
    };
    store.scan(space, from, to, &mut visit).unwrap();
    found
}

/// All rows of a space as text, `key=value`.
fn show(store: &dyn ColdStore, space: &str) -> String {
    let all = scan(store, space, Bound::Unbounded, Bound::Unbounded);
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    all.iter().map(|(key, value)| format!("{}={}", text(key), text(value))).collect::<Vec<_>>().join(" ")
}

enum Step {
    Write(&'static str, &'static [Row<'static>]),
    Drop(&'static str),
    Reopen,
    Merge,
}
use Step::{Drop, Merge, Reopen, Write};

#[test]
fn steps_leave_these_rows() {
    const A: &str = "p000.0";
    const B: &str = "ids-00000012";
    /// What is shown of A and of B after the steps.
    type Case = (&'static str, &'static [Step], &'static str, &'static str);
    let cases: &[Case] = &[
        ("nothing", &[], "", ""),
        ("rows", &[Write(A, &[("a", Some("1")), ("b", Some("2"))])], "a=1 b=2", ""),
        ("two spaces", &[Write(A, &[("a", Some("1"))]), Write(B, &[("a", Some("2"))])], "a=1", "a=2"),
        (
            "replaced",
            &[Write(A, &[("a", Some("1")), ("b", Some("1"))]), Write(A, &[("a", Some("2"))])],
            "a=2 b=1",
            "",
        ),
        ("deleted", &[Write(A, &[("a", Some("1")), ("b", Some("1"))]), Write(A, &[("a", None)])], "b=1", ""),
        ("delete of nothing", &[Write(A, &[("a", None)]), Write(A, &[("b", Some("1"))])], "b=1", ""),
        ("written after delete", &[Write(A, &[("a", None)]), Write(A, &[("a", Some("1"))])], "a=1", ""),
        ("empty value", &[Write(A, &[("a", Some(""))])], "a=", ""),
        ("nothing written", &[Write(A, &[])], "", ""),
        ("dropped", &[Write(A, &[("a", Some("1"))]), Write(B, &[("b", Some("1"))]), Drop(A)], "", "b=1"),
        ("dropped twice", &[Write(A, &[("a", Some("1"))]), Drop(A), Drop(A), Drop(B)], "", ""),
        (
            "created again",
            &[Write(A, &[("a", Some("1")), ("b", Some("1"))]), Drop(A), Write(A, &[("b", Some("2"))])],
            "b=2",
            "",
        ),
        (
            "reopened",
            &[Write(A, &[("a", Some("1"))]), Write(A, &[("a", Some("2")), ("b", None)]), Reopen],
            "a=2",
            "",
        ),
        (
            "writes after a reopen shadow those before it",
            &[
                Write(A, &[("a", Some("1"))]),
                Write(A, &[("a", Some("2"))]),
                Reopen,
                Write(A, &[("a", Some("3"))]),
                Merge,
            ],
            "a=3",
            "",
        ),
        (
            "reopened without rows",
            &[Write(A, &[("a", Some("1"))]), Write(A, &[("a", None)]), Merge, Reopen],
            "",
            "",
        ),
        // A database of keyspaces loses the last one here when the counter behind its list starts anew: see
        // lsm.rs.
        (
            "dropped, reopened, created",
            &[
                Write(A, &[("a", Some("1"))]),
                Write("ids-1", &[("a", Some("1"))]),
                Drop("ids-1"),
                Reopen,
                Write(B, &[("a", Some("2"))]),
                Reopen,
                Write("ids-3", &[("a", Some("3"))]),
                Reopen,
            ],
            "a=1",
            "a=2",
        ),
        ("dropped stays dropped", &[Write(A, &[("a", Some("1"))]), Drop(A), Reopen], "", ""),
    ];
    for (name, steps, in_a, in_b) in cases {
        for mut machine in Machine::both() {
            for step in *steps {
                match step {
                    Write(space, list) => machine.store().write(space, &rows(list)).unwrap(),
                    Drop(space) => machine.store().drop_space(space).unwrap(),
                    Reopen => machine.reopen(),
                    Merge => machine.merge(),
                }
            }
            let shown = (show(machine.store(), A), show(machine.store(), B));
            assert_eq!(shown, (in_a.to_string(), in_b.to_string()), "{name}, {}", machine.name());
            let spaces = machine.store().spaces().unwrap();
            for (space, shown) in [(A, &shown.0), (B, &shown.1)] {
                assert!(
                    shown.is_empty() || spaces.iter().any(|listed| listed == space),
                    "{name}: {spaces:?}"
                );
            }
        }
    }
}

#[test]
fn a_scan_gives_the_rows_between_its_bounds() {
    use Bound::{Excluded, Included, Unbounded};
    let long = [b'b'; 70_000];
    type Case<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>, &'a str);
    let cases: &[Case<'_>] = &[
        (Unbounded, Unbounded, "a b bb c"),
        (Included(b"b"), Unbounded, "b bb c"),
        (Excluded(b"b"), Unbounded, "bb c"),
        (Unbounded, Included(b"b"), "a b"),
        (Unbounded, Excluded(b"b"), "a"),
        (Included(b"b"), Included(b"b"), "b"),
        (Included(b"b"), Excluded(b"c"), "b bb"),
        (Excluded(b"a"), Excluded(b"c"), "b bb"),
        (Included(b"aa"), Included(b"ba"), "b"),
        (Excluded(b"b"), Excluded(b"b"), ""),
        (Included(b"b"), Excluded(b"b"), ""),
        (Excluded(b"b"), Included(b"b"), ""),
        (Included(b"c"), Included(b"a"), ""),
        (Included(b"d"), Unbounded, ""),
        (Included(b""), Unbounded, "a b bb c"),
        (Excluded(b""), Excluded(b"b"), "a"),
        (Unbounded, Included(b""), ""),
        (Included(&long), Unbounded, "c"),
        (Unbounded, Excluded(&long), "a b bb"),
    ];
    for machine in Machine::both() {
        let store = machine.store();
        // In three layers, one of them a deletion, so that a scan has to merge.
        store.write("s", &rows(&[("a", Some("0")), ("ab", Some("0")), ("c", Some("1"))])).unwrap();
        store.write("s", &rows(&[("a", Some("1")), ("b", Some("1")), ("bb", Some("1"))])).unwrap();
        store.write("s", &rows(&[("ab", None)])).unwrap();
        for (from, to, expected) in cases {
            let keys: Vec<_> = scan(store, "s", *from, *to).into_iter().map(|(key, _)| key).collect();
            let keys: Vec<_> = keys.iter().map(|key| String::from_utf8_lossy(key)).collect();
            assert_eq!(keys.join(" "), *expected, "{}", machine.name());
        }
        let mut first = Vec::new();
        let mut visit = |key: &[u8], _: &[u8]| {
            first.push(key.to_vec());
            if first.len() == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        store.scan("s", Unbounded, Unbounded, &mut visit).unwrap();
        assert_eq!(first, [b"a", b"b"], "{}", machine.name());
    }
}

#[test]
fn misuse_is_refused_and_changes_nothing() {
    let unsorted = rows(&[("b", Some("1")), ("a", Some("1"))]);
    let twice = rows(&[("a", Some("1")), ("a", Some("2"))]);
    let good = rows(&[("a", Some("1"))]);
    let long_name = "n".repeat(65);
    for machine in Machine::both() {
        let store = machine.store();
        for (space, rows) in [
            ("s", &unsorted),
            ("s", &twice),
            ("", &good),
            ("..", &good),
            (".hidden", &good),
            ("a/b", &good),
            ("UPPER", &good),
            ("at@1", &good),
            (long_name.as_str(), &good),
        ] {
            let refused = store.write(space, rows);
            assert!(
                matches!(refused, Err(ColdError::Refused(_))),
                "{space:?} {}: {refused:?}",
                machine.name()
            );
        }
        assert_eq!(store.spaces().unwrap(), Vec::<String>::new());
        // Reading what cannot exist is no error: it is not there.
        assert_eq!(store.get("a/b", b"a").unwrap(), None);
        assert_eq!(store.get("s", b"").unwrap(), None);
        assert_eq!(store.get("s", &[b'k'; 70_000]).unwrap(), None);
        store.drop_space("..").unwrap();
    }
}

/// A reader sees the rows of a write all or none, while writes and merges go on.
#[test]
fn a_scan_sees_one_moment() {
    const ROWS: u32 = 300;
    for machine in Machine::both() {
        let store = machine.store();
        let checkpoint = |round: u32| {
            let mut rows = Rows::new();
            for row in 0..ROWS {
                rows.push(&row.to_be_bytes(), Some(&round.to_be_bytes())).unwrap();
            }
            rows
        };
        store.write("s", &checkpoint(0)).unwrap();
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for round in 1..40 {
                    store.write("s", &checkpoint(round)).unwrap();
                }
            });
            while !writer.is_finished() {
                let found = scan(store, "s", Bound::Unbounded, Bound::Unbounded);
                assert_eq!(found.len(), ROWS as usize);
                assert!(found.iter().all(|(_, value)| *value == found[0].1), "{}", machine.name());
            }
        });
    }
}

/// A scan that has begun goes on when its space is dropped, and a new space of the name begins empty.
#[test]
fn a_scan_outlives_its_space() {
    for machine in Machine::both() {
        let store = machine.store();
        store.write("s", &rows(&[("a", Some("1")), ("b", Some("1")), ("c", Some("1"))])).unwrap();
        let mut seen = 0;
        let mut visit = |_: &[u8], _: &[u8]| {
            if seen == 0 {
                store.drop_space("s").unwrap();
                store.write("s", &rows(&[("d", Some("2"))])).unwrap();
            }
            seen += 1;
            ControlFlow::Continue(())
        };
        store.scan("s", Bound::Unbounded, Bound::Unbounded, &mut visit).unwrap();
        assert_eq!(seen, 3, "{}", machine.name());
        assert_eq!(show(store, "s"), "d=2", "{}", machine.name());
    }
}

#[test]
fn random_operations_agree_with_a_map() {
    const SPACES: [&str; 3] = ["p000.0", "p001.0", "ids-00000001"];
    for seed in 0..4 {
        for mut machine in Machine::both() {
            let mut random = SmallRng::seed_from_u64(seed);
            let mut oracle: BTreeMap<&str, Map> = BTreeMap::new();
            for step in 0..250 {
                let space = *SPACES.choose(&mut random).unwrap();
                match random.random_range(0..100) {
                    0..60 => {
                        let written = random_rows(&mut random);
                        machine.store().write(space, &written).unwrap();
                        apply(oracle.entry(space).or_default(), &written);
                    }
                    60..75 => {
                        let key = random_key(&mut random);
                        let expected = oracle.get(space).and_then(|map| map.get(&key)).cloned();
                        assert_eq!(
                            machine.store().get(space, &key).unwrap(),
                            expected,
                            "seed {seed} step {step}"
                        );
                    }
                    75..90 => {
                        let (from, to) = (random_key(&mut random), random_key(&mut random));
                        let (from, to) = if from <= to { (from, to) } else { (to, from) };
                        let range = (Bound::Included(from.as_slice()), Bound::Excluded(to.as_slice()));
                        let found = scan(machine.store(), space, range.0, range.1);
                        let map = oracle.entry(space).or_default();
                        let expected: Vec<_> = map
                            .range(from.clone()..to.clone())
                            .map(|(k, v)| (k.clone(), v.clone()))
                            .collect();
                        assert_eq!(found, expected, "seed {seed} step {step}");
                    }
                    90..94 => machine.reopen(),
                    94..97 => machine.merge(),
                    _ => {
                        machine.store().drop_space(space).unwrap();
                        oracle.remove(space);
                    }
                }
            }
            for space in SPACES {
                let found: Map =
                    scan(machine.store(), space, Bound::Unbounded, Bound::Unbounded).into_iter().collect();
                assert_eq!(found, oracle.remove(space).unwrap_or_default(), "seed {seed} {}", machine.name());
            }
        }
    }
}

fn random_key(random: &mut SmallRng) -> Vec<u8> {
    // Few distinct keys, so that they collide, of very different lengths.
    let mut key = vec![1, 0, 0, 0, 0, random.random_range(0..2)];
    key.extend_from_slice(format!("user:{}", random.random_range(0..400)).as_bytes());
    if key.len() % 3 == 0 {
        key.resize(key.len() + 500, b'x');
    }
    key
}

fn random_rows(random: &mut SmallRng) -> Rows {
    let mut rows = Rows::new();
    for _ in 0..random.random_range(1..120) {
        let value = vec![random.random(); random.random_range(0..40)];
        let deleted = random.random_bool(0.3);
        rows.push(&random_key(random), (!deleted).then_some(value.as_slice())).unwrap();
    }
    rows.sort();
    rows
}

fn apply(map: &mut Map, rows: &Rows) {
    for (key, value) in rows.iter() {
        match value {
            Some(value) => map.insert(key.to_vec(), value.to_vec()),
            None => map.remove(key),
        };
    }
}

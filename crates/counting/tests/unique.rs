//! Counters of distinct items against a naive model: 16384 registers in an array, and a set.

#![allow(clippy::unwrap_used)] // a panic here is a failed test

use std::collections::BTreeSet;

use proptest::prelude::*;
use quipu_counting::Unique;
use quipu_counting::unique::{EXACT_MAX, NotASketch, STANDARD_ERROR, Seen, hash};

const REGISTERS: usize = 16384;

/// Of a sparse value whose count is not up to date.
const SPARSE_HEADER: &[u8] = b"HYLL\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80";

/// The registers of a sketch, one by one.
#[derive(Clone, PartialEq, Eq)]
struct Naive {
    registers: Vec<u8>,
}

impl Naive {
    fn new() -> Naive {
        Naive { registers: vec![0; REGISTERS] }
    }

    fn observe(&mut self, hash: u64) -> bool {
        let register = &mut self.registers[(hash % REGISTERS as u64) as usize];
        let mut rank = 1;
        while rank <= 50 && hash >> (13 + rank) & 1 == 0 {
            rank += 1;
        }
        let is_raised = rank as u8 > *register;
        *register = (*register).max(rank as u8);
        is_raised
    }

    /// From the value of Redis, bit by bit.
    fn decode(value: &[u8]) -> Naive {
        assert_eq!(&value[..4], b"HYLL");
        let mut registers = Vec::new();
        let body = &value[16..];
        if value[4] == 0 {
            assert_eq!(body.len(), 12288);
            let bit = |at: usize| body[at / 8] >> (at % 8) & 1;
            for register in 0..REGISTERS {
                registers.push((0..6).map(|place| bit(register * 6 + place) << place).sum());
            }
        } else {
            let mut bytes = body.iter().map(|byte| usize::from(*byte));
            while let Some(byte) = bytes.next() {
                let (length, rank) = match byte >> 6 {
                    0 => (byte + 1, 0),
                    1 => ((byte - 64) * 256 + bytes.next().unwrap() + 1, 0),
                    _ => (byte % 4 + 1, byte / 4 % 32 + 1),
                };
                registers.resize(registers.len() + length, rank as u8);
            }
        }
        assert_eq!(registers.len(), REGISTERS);
        Naive { registers }
    }

    fn merge(&self, other: &Naive) -> Naive {
        let pairs = self.registers.iter().zip(&other.registers);
        Naive { registers: pairs.map(|(one, other)| *one.max(other)).collect() }
    }

    /// The estimator as the paper writes it.
    fn estimate(&self) -> u64 {
        let m = REGISTERS as f64;
        let count = |rank: u8| self.registers.iter().filter(|register| **register == rank).count() as f64;
        let mut z = m * tau(1.0 - count(51) / m);
        for rank in (1..=50).rev() {
            z = 0.5 * (z + count(rank));
        }
        z += m * sigma(count(0) / m);
        (0.5 / std::f64::consts::LN_2 * m * m / z).round() as u64
    }
}

impl std::fmt::Debug for Naive {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let raised = self.registers.iter().enumerate().filter(|(_, rank)| **rank > 0);
        formatter.debug_map().entries(raised).finish()
    }
}

fn sigma(x: f64) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    x + (1..60).map(|k| x.powf(2f64.powi(k)) * 2f64.powi(k - 1)).sum::<f64>()
}

fn tau(x: f64) -> f64 {
    if x == 0.0 || x == 1.0 {
        return 0.0;
    }
    let sum: f64 = (1..60).map(|k| (1.0 - x.powf(2f64.powi(-k))).powi(2) * 2f64.powi(-k)).sum();
    (1.0 - x - sum) / 3.0
}

fn unique_of(hashes: &[u64]) -> Unique {
    let mut unique = Unique::new();
    for hash in hashes {
        unique.observe(*hash);
    }
    unique
}

/// A sketch even of few items: what Redis has.
fn sketch_of(hashes: &[u64]) -> Unique {
    let mut sketch = Unique::from_redis(&Unique::new().to_redis()).unwrap();
    for hash in hashes {
        sketch.observe(*hash);
    }
    sketch
}

fn registers(unique: &Unique) -> Naive {
    Naive::decode(&unique.to_redis())
}

/// Hashes that meet in registers, lie beside each other, and reach ranks that only the dense form has.
fn some_hash() -> impl Strategy<Value = u64> {
    let register = prop_oneof![0..40u64, 0..2000u64, 0..REGISTERS as u64];
    let rank = prop_oneof![200 => 1..5u32, 20 => 1..33u32, 1 => 33..52u32];
    (register, rank, 0..4u64).prop_map(|(register, rank, more)| {
        let bit = 1u64.checked_shl(13 + rank).unwrap_or(0);
        // Bits above the lowest one tell items apart that leave the same trace.
        let above = more.checked_shl(14 + rank).unwrap_or(0);
        above | bit | register
    })
}

fn some_hashes() -> impl Strategy<Value = Vec<u64>> {
    prop_oneof![
        prop::collection::vec(some_hash(), 0..12),
        prop::collection::vec(some_hash(), 200..400),
        prop::collection::vec(any::<u64>(), 0..4000),
        prop::collection::vec(some_hash(), 0..4000),
    ]
}

/// Exact, sparse and dense, with and without the exact beginning.
fn some_unique() -> impl Strategy<Value = Unique> {
    prop_oneof![some_hashes().prop_map(|h| unique_of(&h)), some_hashes().prop_map(|h| sketch_of(&h))]
}

/// Runs as far as they go, and then zeros up to the last register: a sketch, though none that Redis makes.
fn filled_up(bytes: &[u8]) -> Vec<u8> {
    let (mut at, mut covered) = (0, 0);
    while let Some(byte) = bytes.get(at).map(|byte| usize::from(*byte)) {
        let (length, width) = match byte >> 6 {
            0 => (byte + 1, 1),
            1 => ((byte - 64) * 256 + usize::from(*bytes.get(at + 1).unwrap_or(&0)) + 1, 2),
            _ => (byte % 4 + 1, 1),
        };
        if covered + length > REGISTERS || at + width > bytes.len() {
            break;
        }
        (at, covered) = (at + width, covered + length);
    }
    let zeros = (covered..REGISTERS).step_by(64).map(|first| (REGISTERS - first).min(64) as u8 - 1);
    bytes[..at].iter().copied().chain(zeros).collect()
}

/// Items and what a running Redis has after PFADD of them.
#[test]
fn values_are_those_of_redis() {
    for (items, body) in
        [("", &b"\x7f\xff"[..]), ("a b c d e f g", b"Fm\x80V\x0c\x80D<\x848\x80P\xb1\x84I\x8c\x80Bm\x80BZ")]
    {
        let mut value = [SPARSE_HEADER, body].concat();
        let hashes: Vec<u64> = items.split_whitespace().map(|item| hash(item.as_bytes())).collect();
        let unique = unique_of(&hashes);
        assert_eq!(unique.to_redis(), value, "{items}");
        assert_eq!(unique.estimate(), hashes.len() as u64);

        let mut copied = Unique::from_redis(&value).unwrap();
        assert_eq!((copied.count(), copied.is_exact()), (hashes.len() as u64, false));
        assert_eq!(copied.to_redis(), value);
        // The count that Redis keeps in it is believed, kept, and marked when a register is raised.
        value[8] = 77;
        value[15] = 0;
        copied = Unique::from_redis(&value).unwrap();
        assert_eq!((copied.estimate(), copied.to_redis()), (77, value.clone()));
        assert_eq!(copied.observe(hash(b"z")), Seen { is_new: true, is_altered: true });
        assert_eq!(copied.estimate(), hashes.len() as u64 + 1);
        assert_eq!(copied.to_redis()[8..16], [77, 0, 0, 0, 0, 0, 0, 0x80]);
    }
}

#[test]
fn damaged_values_are_refused() {
    let sparse = sketch_of(&[hash(b"a")]).to_redis();
    let dense = unique_of(&(0..5000u64).map(|n| hash(&n.to_le_bytes())).collect::<Vec<_>>()).to_redis();
    let change = |value: &[u8], at: usize, byte: u8| {
        let mut value = value.to_vec();
        value[at] = byte;
        value
    };
    let mut longer = dense.clone();
    longer.push(0);
    for (value, expected) in [
        (Vec::new(), NotASketch::Header),
        (sparse[..15].to_vec(), NotASketch::Header),
        (change(&sparse, 0, b'h'), NotASketch::Header),
        (change(&sparse, 4, 2), NotASketch::Header),
        (change(&sparse, 7, 1), NotASketch::Header),
        (change(&sparse, 4, 0), NotASketch::Length(sparse.len())),
        (dense[..12303].to_vec(), NotASketch::Length(12303)),
        (longer, NotASketch::Length(12305)),
        (sparse[..sparse.len() - 1].to_vec(), NotASketch::Runs),
        (sparse[..16].to_vec(), NotASketch::Runs),
        (change(&dense, 16, 0xff), NotASketch::Register),
    ] {
        assert_eq!(Unique::from_redis(&value), Err(expected));
    }
}

/// The first item too many makes an estimate of it, even where no register tells of it.
#[test]
fn exact_while_small() {
    let mut unique = Unique::new();
    for n in 0..EXACT_MAX as u64 {
        assert_eq!((unique.count(), unique.is_exact()), (n, true));
        assert_eq!(unique.observe(n << 40 | 1 << 14), Seen { is_new: true, is_altered: n == 0 });
        assert_eq!(unique.observe(n << 40 | 1 << 14), Seen::default());
    }
    assert_eq!((unique.count(), unique.is_exact()), (EXACT_MAX as u64, true));
    let last = (EXACT_MAX as u64) << 40 | 1 << 14;
    assert_eq!(unique.would_see(last), Seen { is_new: true, is_altered: false });
    assert_eq!(unique.observe(last), Seen { is_new: true, is_altered: false });
    assert!(!unique.is_exact());
    assert_eq!(unique.count(), 1);
    assert_eq!(unique.observe(last), Seen::default());
}

/// Five standard errors are a chance of one in two million, and the items are always the same.
#[test]
fn estimates_are_near() {
    let mut unique = Unique::new();
    for n in 1..=300_000u64 {
        unique.observe(hash(format!("visitor {n}").as_bytes()));
        if n.is_power_of_two() || n % 50_000 == 0 {
            let error = unique.count() as f64 / n as f64 - 1.0;
            assert!(error.abs() < 5.0 * STANDARD_ERROR, "{n}: {error}");
        }
    }
    assert!(unique.memory_bytes() < 16 * 1024);
}

/// Registers that no items lead to, at either end.
#[test]
fn the_least_and_the_most_that_is_estimated() {
    for (quartet, estimate) in [([0; 3], 0), ([0xf3, 0x3c, 0xcf], i64::MAX as u64)] {
        let mut value = SPARSE_HEADER.to_vec();
        value[4] = 0;
        value.extend(quartet.repeat(REGISTERS / 4));
        assert_eq!(Unique::from_redis(&value).unwrap().estimate(), estimate);
    }
}

#[test]
fn merges_stay_exact_while_all_items_are_few() {
    let hashes: Vec<u64> = (0..400u64).map(|n| hash(&n.to_le_bytes())).collect();
    for (mine, theirs, count, is_new) in [
        (0..0, 0..0, Some(0), false),
        (0..10, 0..0, Some(10), false),
        (0..0, 0..10, Some(10), true),
        (0..10, 5..10, Some(10), false),
        (0..10, 5..15, Some(15), true),
        (0..200, 100..256, Some(256), true),
        (0..200, 100..257, None, true),
        (0..200, 0..300, None, true),
        (0..300, 0..200, None, false),
    ] {
        let name = format!("{mine:?} {theirs:?}");
        let mut unique = unique_of(&hashes[mine]);
        let seen = unique.merge(&unique_of(&hashes[theirs]));
        assert_eq!(seen, Seen { is_new, is_altered: is_new }, "{name}");
        assert_eq!(unique.is_exact().then(|| unique.count()), count, "{name}");
    }
    // A sketch that has seen nothing takes nothing from a counter that is exact, one with items does.
    let mut unique = unique_of(&hashes[..10]);
    assert_eq!(unique.merge(&sketch_of(&[])), Seen::default());
    assert!(unique.is_exact());
    assert_eq!(unique.merge(&sketch_of(&hashes[..5])), Seen { is_new: true, is_altered: false });
    assert!(!unique.is_exact());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_form_has_the_registers_of_the_model(hashes in some_hashes(), is_sketch: bool) {
        let mut unique = if is_sketch { sketch_of(&[]) } else { Unique::new() };
        let (mut naive, mut known) = (Naive::new(), BTreeSet::new());
        for hash in &hashes {
            let (is_exact, is_new, is_altered) = (unique.is_exact(), known.insert(*hash), naive.observe(*hash));
            let seen = unique.would_see(*hash);
            prop_assert_eq!(seen, Seen { is_new: if is_exact { is_new } else { is_altered }, is_altered });
            let before = unique.clone();
            prop_assert_eq!(unique.observe(*hash), seen);
            if !seen.is_new {
                prop_assert_eq!(&unique, &before);
            }
        }
        prop_assert_eq!(registers(&unique), naive.clone());
        prop_assert_eq!(unique.estimate(), naive.estimate());
        if unique.is_exact() {
            prop_assert_eq!(unique.count(), known.len() as u64);
        } else {
            prop_assert_eq!(unique.count(), unique.estimate());
        }
        prop_assert_eq!(unique.is_exact(), !is_sketch && known.len() <= EXACT_MAX);
        // The exact beginning leaves no trace in the bytes.
        prop_assert_eq!(unique.to_redis(), sketch_of(&hashes).to_redis());
    }

    #[test]
    fn merges_commute_associate_and_come_to_an_end(
        one in some_unique(), two in some_unique(), three in some_unique()
    ) {
        let merged = |one: &Unique, two: &Unique| {
            let mut merged = one.clone();
            let seen = merged.merge(two);
            assert_eq!(seen.is_altered, registers(&merged) != registers(one));
            assert_eq!(seen.is_new, merged != *one);
            merged
        };
        let both = merged(&one, &two);
        prop_assert_eq!(registers(&both), registers(&one).merge(&registers(&two)));
        prop_assert_eq!(registers(&both), registers(&merged(&two, &one)));
        let (left, right) = (merged(&both, &three), merged(&one, &merged(&two, &three)));
        prop_assert_eq!(registers(&left), registers(&right));
        prop_assert_eq!(left.estimate(), right.estimate());
        for part in [&both, &one, &two] {
            prop_assert_eq!(registers(&merged(&both, part)), registers(&both));
        }
        prop_assert_eq!(merged(&both, &both.clone()), both.clone());
        prop_assert_eq!(both.estimate(), registers(&both).estimate());
    }

    #[test]
    fn stored_forms_come_back(unique in some_unique(), hashes in some_hashes()) {
        let mut stored = Vec::new();
        unique.put(&mut stored);
        let mut copy = Unique::read(&stored).unwrap();
        prop_assert_eq!(&copy, &unique);
        let mut again = Vec::new();
        copy.put(&mut again);
        prop_assert_eq!(&again, &stored);
        // It goes on as it would have.
        let mut original = unique;
        for hash in hashes {
            prop_assert_eq!(copy.observe(hash), original.observe(hash));
        }
        prop_assert_eq!(&copy, &original);
        prop_assert_eq!(copy.estimate(), original.estimate());

        stored.push(0);
        prop_assert_eq!(Unique::read(&stored), None);
        stored.truncate(stored.len() - 2);
        prop_assert_eq!(Unique::read(&stored), None);
    }

    #[test]
    fn values_of_redis_come_back(unique in some_unique(), count in 0..u64::MAX) {
        let mut value = unique.to_redis();
        value[8..16].copy_from_slice(&count.to_le_bytes());
        prop_assert_eq!(Unique::from_redis(&value).unwrap().to_redis(), value);
    }

    #[test]
    fn hashes_twice_are_damage(hashes in prop::collection::vec(any::<u64>(), 1..10)) {
        let twice = hashes.iter().chain(&hashes[..1]).flat_map(|hash| hash.to_le_bytes());
        prop_assert_eq!(Unique::read(&std::iter::once(0).chain(twice).collect::<Vec<_>>()), None);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever the bytes are: refused, or a counter that can be used.
    #[test]
    fn no_bytes_do_harm(
        bytes in prop::collection::vec(prop_oneof![any::<u8>(), 0x40..0x50u8, Just(0x7f)], 0..60),
        hashes in prop::collection::vec(some_hash(), 0..20),
    ) {
        let sketch = [SPARSE_HEADER, &bytes].concat();
        let filled = [SPARSE_HEADER, &filled_up(&bytes)].concat();
        prop_assert!(Unique::from_redis(&filled).is_ok());

        let tagged = |tag: u8, bytes: &[u8]| [&[tag], bytes].concat();
        let read = [
            Unique::from_redis(&bytes).ok(),
            Unique::from_redis(&sketch).ok(),
            Unique::from_redis(&filled).ok(),
            Unique::read(&bytes),
            Unique::read(&tagged(0, &bytes)),
            Unique::read(&tagged(1, &filled)),
        ];
        for mut unique in read.into_iter().flatten() {
            let mut naive = registers(&unique);
            for hash in &hashes {
                prop_assert_eq!(unique.observe(*hash).is_altered, naive.observe(*hash));
            }
            prop_assert_eq!(unique.estimate(), naive.estimate());
            prop_assert_eq!(registers(&unique), naive);
        }
    }
}

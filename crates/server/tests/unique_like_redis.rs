//! Counters of distinct items beside a real Redis: told the same items in the same order, both come to the same
//! bytes and the same numbers, and each goes on with what the other has made.

#![allow(clippy::unwrap_used)] // a panic here is a failed test

mod resp_support;

use std::ops::RangeInclusive;

use quipu_counting::Unique;
use quipu_counting::unique::{NotASketch, hash};
use quipu_wire::resp::encode_command;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use resp_support::{Client, Redis, show};

/// How many items a set has, and how many sets there are of the kind. Most are where the forms change: exact up to
/// 256 different items, sparse up to some 1,500.
const SETS: &[(RangeInclusive<usize>, usize)] = &[
    (0..=20, 350),
    (200..=320, 300),
    (321..=1_200, 200),
    (1_201..=2_500, 120),
    (2_501..=30_000, 28),
    (200_000..=200_000, 1),
    (1_000_000..=1_000_000, 1),
];
/// Up to so many items the bytes are compared after every command.
const SMALL: usize = 2_500;

#[test]
fn the_same_items_come_to_the_same_bytes_and_numbers() {
    let redis = Redis::start();
    let mut client = redis.client();
    let mut number = 0;
    for (sizes, sets) in SETS {
        for _ in 0..*sets {
            compare(&mut client, &mut Items::new(number), sizes.clone());
            number += 1;
        }
    }
}

/// One set, told to both.
fn compare(client: &mut Client, items: &mut Items, sizes: RangeInclusive<usize>) {
    let (name, length) = (items.name(), items.random.random_range(sizes));
    let mut unique = Unique::new();
    ask(client, &[b"FLUSHALL"]);
    for (at, command) in items.commands(length).iter().enumerate() {
        let name = format!("{name}, command {at}");
        assert_eq!(pfadd(client, b"set", command), observe(&mut unique, command) || at == 0, "{name}");
        if length <= SMALL {
            assert_same(&get(client, b"set"), &unique.to_redis(), &name);
        }
    }
    assert_same(&get(client, b"set"), &unique.to_redis(), &name);
    assert_eq!(pfcount(client, &[b"set"]), unique.estimate(), "{name}");

    // From Redis to here, with the count that it has written into the value, and on.
    let value = get(client, b"set");
    let mut moved = Unique::from_redis(&value).unwrap();
    assert_same(&value, &moved.to_redis(), &name);
    assert_eq!(moved.estimate(), unique.estimate(), "{name}");
    // From here to Redis, and on.
    assert_eq!(ask(client, &[b"SET", b"copy", &unique.to_redis()]), b"+OK\r\n");
    assert_eq!(pfcount(client, &[b"copy"]), unique.estimate(), "{name}");
    for command in items.commands(length.min(50)) {
        let is_altered = observe(&mut unique, &command);
        assert_eq!(observe(&mut moved, &command), is_altered, "{name}");
        assert_eq!(pfadd(client, b"set", &command), is_altered, "{name}");
        assert_eq!(pfadd(client, b"copy", &command), is_altered, "{name}");
    }
    assert_same(&get(client, b"set"), &moved.to_redis(), &name);
    for (key, ours) in [(b"set".as_slice(), &moved), (b"copy", &unique)] {
        assert_eq!(pfcount(client, &[key]), ours.estimate(), "{name}");
    }
}

#[test]
fn the_same_merges_come_to_the_same_registers() {
    let redis = Redis::start();
    let mut client = redis.client();
    for number in 0..400 {
        let mut items = Items::new(number);
        let name = items.name();
        ask(&mut client, &[b"FLUSHALL"]);
        let [mut first, second, third] = [b"1", b"2", b"3"].map(|key| {
            let (sizes, _) = &SETS[items.random.random_range(0..5)];
            let length = items.random.random_range(sizes.clone()).min(SMALL);
            let mut unique = Unique::new();
            for command in items.commands(length) {
                pfadd(&mut client, key, &command);
                observe(&mut unique, &command);
            }
            unique
        });

        // Into nothing, of several, and counted without being kept.
        let mut all = Unique::new();
        for part in [&first, &second, &third] {
            all.merge(part);
        }
        assert_eq!(pfcount(&mut client, &[b"1", b"2", b"3"]), all.estimate(), "{name}");
        assert_eq!(ask(&mut client, &[b"PFMERGE", b"all", b"1", b"2", b"3"]), b"+OK\r\n");
        assert_same_registers(&get(&mut client, b"all"), &all, &name);

        // Into one that is there. Once it is a sketch and changes, the bytes are the same, too.
        let seen = first.merge(&second);
        assert_eq!(ask(&mut client, &[b"PFMERGE", b"1", b"2"]), b"+OK\r\n");
        assert_same_registers(&get(&mut client, b"1"), &first, &name);
        if seen.is_altered && !first.is_exact() {
            assert_same(&get(&mut client, b"1"), &first.to_redis(), &name);
        }
        assert_eq!(pfcount(&mut client, &[b"1"]), first.estimate(), "{name}");
    }
}

/// Runs as Redis never writes them: zeros in long runs that fit into short ones, ranks that could be joined, and more
/// bytes than a value may grow to.
#[test]
fn foreign_sparse_values_change_in_the_same_way() {
    let redis = Redis::start();
    let mut client = redis.client();
    for number in 0..400 {
        let mut random = SmallRng::seed_from_u64(number);
        let (value, covered) = foreign_sparse(&mut random);
        let mut unique = Unique::from_redis(&value).unwrap();
        assert_same(&unique.to_redis(), &value, "as it came");
        assert_eq!(ask(&mut client, &[b"SET", b"set", &value]), b"+OK\r\n");
        for at in 0..60 {
            let register = random.random_range(0..covered);
            let rank = random.random_range(if at < 50 { 1..=4 } else { 1..=33 });
            let items = [item_of(1 << (rank + 13) | register)];
            assert_eq!(pfadd(&mut client, b"set", &items), observe(&mut unique, &items));
            assert_same(&get(&mut client, b"set"), &unique.to_redis(), &format!("value {number}, item {at}"));
        }
        assert_eq!(pfcount(&mut client, &[b"set"]), unique.estimate(), "value {number}");
    }
}

/// A sparse value of random runs at its beginning, and how many registers those are.
fn foreign_sparse(random: &mut SmallRng) -> (Vec<u8>, u64) {
    let covered = random.random_range(20..12_000);
    let mut value = b"HYLL\x01\x00\x00\x00".to_vec();
    value.extend(random.random::<u64>().to_le_bytes());
    let mut left = covered;
    while left > 0 {
        let length = random.random_range(1..=4).min(left);
        let rank = random.random_range(0..3);
        match (rank, random.random_ratio(1, 4)) {
            (0, true) => value.extend([0x40, length as u8 - 1]),
            (0, false) => value.push(length as u8 - 1),
            (rank, _) => value.push(0x80 | (rank - 1) << 2 | (length as u8 - 1)),
        }
        left -= length;
    }
    value.extend((0x4000 | (16384 - covered as u16 - 1)).to_be_bytes());
    (value, covered)
}

/// Registers up to the highest rank: more items than there can be, and every part of the estimate.
#[test]
fn foreign_dense_values_are_estimated_alike() {
    let redis = Redis::start();
    let mut client = redis.client();
    for lowest in 0..=50u32 {
        let mut random = SmallRng::seed_from_u64(lowest.into());
        let mut value = b"HYLL\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80".to_vec();
        for _ in 0..4096 {
            let four = (0..4).fold(0, |four, _| four << 6 | random.random_range(lowest..=51));
            value.extend(&four.to_le_bytes()[..3]);
        }
        let unique = Unique::from_redis(&value).unwrap();
        assert_eq!(ask(&mut client, &[b"SET", b"set", &value]), b"+OK\r\n");
        let reply = show(&ask(&mut client, &[b"PFCOUNT", b"set"]));
        // What does not fit into its integers is negative there, and the highest integer here.
        let expected =
            if reply.starts_with(":-") { i64::MAX.to_string() } else { reply[1..reply.len() - 1].into() };
        assert_eq!(unique.estimate().to_string(), expected, "{lowest}");
        // A count that a value brings along is believed, whatever the registers say.
        value[8..16].copy_from_slice(&77u64.to_le_bytes());
        assert_eq!(ask(&mut client, &[b"SET", b"set", &value]), b"+OK\r\n");
        assert_eq!(pfcount(&mut client, &[b"set"]), Unique::from_redis(&value).unwrap().estimate());
    }
}

/// What is refused here Redis refuses, with the errors that [`NotASketch`] speaks of.
#[test]
fn values_that_are_damaged_are_damaged_to_redis() {
    let redis = Redis::start();
    let mut client = redis.client();
    let header = b"HYLL\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80";
    let mut dense = header.to_vec();
    dense[4] = 0;
    dense.resize(12304, 0);
    for (value, expected, error) in [
        (b"HYLL".to_vec(), NotASketch::Header, "-WRONGTYPE"),
        (b"HELLO, this is none of them".to_vec(), NotASketch::Header, "-WRONGTYPE"),
        ([b"HYLL\x02", &header[5..], b"\x7f\xff"].concat(), NotASketch::Header, "-WRONGTYPE"),
        (dense[..12303].to_vec(), NotASketch::Length(12303), "-WRONGTYPE"),
        ([&dense[..], b"\x00"].concat(), NotASketch::Length(12305), "-WRONGTYPE"),
        ([&header[..], b"\x7f\xfe"].concat(), NotASketch::Runs, "-INVALIDOBJ"),
        ([&header[..], b"\x7f\xff\x00"].concat(), NotASketch::Runs, "-INVALIDOBJ"),
    ] {
        assert_eq!(Unique::from_redis(&value), Err(expected));
        ask(&mut client, &[b"SET", b"key", &value]);
        let reply = show(&ask(&mut client, &[b"PFCOUNT", b"key"]));
        assert!(reply.starts_with(error), "{expected}: {reply}");
    }
    assert_eq!(Unique::from_redis(&dense).map(|unique| unique.count()), Ok(0));
    ask(&mut client, &[b"SET", b"key", &dense]);
    assert_eq!(pfcount(&mut client, &[b"key"]), 0);
}

/// Where the items of a set come from.
struct Items {
    number: u64,
    random: SmallRng,
}

impl Items {
    fn new(number: u64) -> Items {
        Items { number, random: SmallRng::seed_from_u64(number) }
    }

    fn name(&self) -> String {
        format!("set {}", self.number)
    }

    /// So many items, in commands of some each.
    fn commands(&mut self, mut length: usize) -> Vec<Vec<Vec<u8>>> {
        let most = if length > SMALL { 5_000 } else { 40 };
        let mut commands = Vec::new();
        // All of them in one narrow place of the sketch, so that runs meet.
        let base = self.random.random_range(0..16384);
        let width = self.random.random_range(1..=1 + length as u64);
        loop {
            let items = self.random.random_range(0..=most).min(length);
            commands.push((0..items).map(|_| self.item(base, width)).collect());
            length -= items;
            if length == 0 {
                return commands;
            }
        }
    }

    fn item(&mut self, base: u64, width: u64) -> Vec<u8> {
        match self.number % 4 {
            // Some come again.
            0 => format!("visitor {}", self.random.random_range(0..2 * width)).into_bytes(),
            1 => {
                let length = self.random.random_range(0..40);
                (0..length).map(|_| self.random.random()).collect()
            }
            kind => {
                let register = (base + self.random.random_range(0..width)) % 16384;
                // A rank above 32 makes a sketch dense at once.
                let is_high = kind == 3 && self.random.random_ratio(1, 1000);
                let rank = self.random.random_range(if is_high { 31..=51 } else { 1..=4 });
                let ones = (self.random.random::<u64>() << 1 | 1) << (rank - 1);
                item_of(ones << 14 | register)
            }
        }
    }
}

/// The item of eight bytes that has this hash: every step of the hash can be gone back.
fn item_of(wanted: u64) -> Vec<u8> {
    const MULTIPLIER: u64 = 0xc6a4_a793_5bd1_e995;
    const INVERSE: u64 = 0x5f7a_0ea7_e59b_19bd;
    let start = 0xadc8_3b19 ^ 8u64.wrapping_mul(MULTIPLIER);
    // Twice gives back what was before, because the shift is more than half of the bits.
    let shift = |word: u64| word ^ word >> 47;
    let mixed = shift(shift(wanted).wrapping_mul(INVERSE)).wrapping_mul(INVERSE) ^ start;
    let item = shift(mixed.wrapping_mul(INVERSE)).wrapping_mul(INVERSE).to_le_bytes().to_vec();
    assert_eq!(hash(&item), wanted);
    item
}

/// Takes items in; whether PFADD would say 1.
fn observe(unique: &mut Unique, items: &[Vec<u8>]) -> bool {
    items.iter().fold(false, |altered, item| unique.observe(hash(item)).is_altered | altered)
}

fn ask(client: &mut Client, words: &[&[u8]]) -> Vec<u8> {
    let mut frame = Vec::new();
    encode_command(&mut frame, words);
    client.send(&frame);
    client.reply_bytes().expect("a reply")
}

fn pfadd(client: &mut Client, key: &[u8], items: &[Vec<u8>]) -> bool {
    let words: Vec<&[u8]> = [b"PFADD", key].into_iter().chain(items.iter().map(Vec::as_slice)).collect();
    match ask(client, &words).as_slice() {
        b":1\r\n" => true,
        b":0\r\n" => false,
        other => panic!("{}", show(other)),
    }
}

fn pfcount(client: &mut Client, keys: &[&[u8]]) -> u64 {
    let reply = show(&ask(client, &[&[b"PFCOUNT".as_slice()], keys].concat()));
    reply.trim_matches([':', '|']).parse().expect(&reply)
}

fn get(client: &mut Client, key: &[u8]) -> Vec<u8> {
    let reply = ask(client, &[b"GET", key]);
    let start = reply.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    reply[start..reply.len() - 2].to_vec()
}

/// Twelve thousand bytes are too many to show.
fn assert_same(theirs: &[u8], ours: &[u8], name: &str) {
    let differs = theirs.iter().zip(ours).position(|(one, other)| one != other);
    assert_eq!(theirs.len(), ours.len(), "{name}: lengths, and the first difference is at {differs:?}");
    assert_eq!(differs, None, "{name}: the first difference");
}

fn assert_same_registers(theirs: &[u8], ours: &Unique, name: &str) {
    let mut theirs = Unique::from_redis(theirs).unwrap();
    assert!(!ours.clone().merge(&theirs).is_altered, "{name}: Redis has more");
    assert!(!theirs.merge(ours).is_altered, "{name}: Redis has less");
}

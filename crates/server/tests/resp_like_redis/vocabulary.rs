//! The words of generated commands: mostly what people send, and often enough what they should not.

use std::collections::BTreeSet;

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::script::Word;

/// Spellings that are no integer, or too large for one.
const MALFORMED_NUMBERS: &[&str] = &[
    "",
    " ",
    "-",
    "+",
    "+1",
    "01",
    "-0",
    "00",
    "1 ",
    " 1",
    "1\0",
    "1.0",
    "1.5",
    "1e3",
    "0x10",
    "abc",
    "--1",
    "9223372036854775808",
    "-9223372036854775809",
    "18446744073709551615",
    "18446744073709551616",
    "99999999999999999999999999999999",
    "\u{661}",
    "inf",
    "nan",
    "NX",
];

/// Integers at the edges of their range and of the ranges inside.
const EDGES: &[i64] = &[
    i64::MAX,
    i64::MIN,
    i64::MAX - 1,
    i64::MIN + 1,
    i64::MAX / 2 + 1,
    i64::MIN / 2,
    i32::MAX as i64,
    i32::MAX as i64 + 1,
    i32::MIN as i64 - 1,
    u32::MAX as i64 + 1,
    1_000_000_007,
];

/// Keys that look like something else.
const UNUSUAL_KEYS: &[&[u8]] = &[
    b"NX",
    b"ex",
    b"0",
    b"-1",
    b"a b",
    b"user:{7}:likes",
    b"{}x",
    b"a*b",
    b"[ab]",
    b"\\",
    b"\"",
    b"'",
    b"\r\n",
    b"\0",
    b"\xff\xfe",
    b"*1\r\n$4\r\nPING\r\n",
    "caf\u{e9}".as_bytes(),
    &[b'k'; 44],
    &[b'k'; 45],
    &[0xfe; 512],
];

/// Keys that only Redis takes.
const REFUSED_KEYS: &[&[u8]] = &[b"", &[b'k'; 513], &[b'\r'; 20_000]];

const PATTERNS: &[&str] = &[
    "*", "a", "?", "a*", "*a", "[a-c]", "[^a]", "[ab]*", "\\a", "[", "[]", "[a", "a]", "**", "*:*", "k??",
    "", "[c-a]", "[\\a]", "?*", "*\\", "A", "n*[1-3]", "\0*", "*:likes",
];

/// The band of Unix seconds that only absolute times lie in; relative ones end long before or long after.
pub const FAR_SECONDS: std::ops::Range<i64> = 50_000_000_000..200_000_000_000;

/// What all choices of one script come from.
pub struct Draw {
    random: SmallRng,
    /// Lifetimes given so far, in milliseconds.
    lifetimes_ms: BTreeSet<i64>,
    /// Whether nothing is drawn that is refused here and taken by Redis.
    is_tame: bool,
    /// Whether no point in time is drawn twice, and how many were.
    moments: Option<i64>,
}

impl Draw {
    /// The same seed gives the same script.
    pub fn new(seed: u64) -> Draw {
        Draw {
            random: SmallRng::seed_from_u64(seed),
            lifetimes_ms: BTreeSet::new(),
            is_tame: false,
            moments: None,
        }
    }

    /// From now on no keys and values that only Redis takes: for what cannot be compared command by command.
    pub fn become_tame(&mut self) {
        self.is_tame = true;
    }

    /// From now on no far point in time is drawn twice: setting what is set already touches a key in Redis, and leaves it
    /// as it was here.
    pub fn never_repeat_moments(&mut self) {
        self.moments = Some(0);
    }

    /// Whether what only Redis takes is left out.
    pub fn is_tame(&self) -> bool {
        self.is_tame
    }

    /// Yes, about once in so many times.
    pub fn one_in(&mut self, times: u32) -> bool {
        self.random.random_ratio(1, times)
    }

    /// A number of the range.
    pub fn within(&mut self, range: std::ops::Range<usize>) -> usize {
        self.random.random_range(range)
    }

    /// One of the list, which is not empty.
    pub fn pick<'l, T>(&mut self, list: &'l [T]) -> &'l T {
        list.choose(&mut self.random).expect("there is something to choose from")
    }

    /// One of the words, in a case of its own now and then.
    pub fn word(&mut self, words: &[&str]) -> Word {
        let word = *self.pick(words);
        self.cased(word)
    }

    /// The word in some case.
    pub fn cased(&mut self, word: &str) -> Word {
        match self.within(0..6) {
            0 => word.to_ascii_lowercase().into_bytes(),
            1 => word
                .bytes()
                .map(
                    |byte| if self.one_in(2) { byte.to_ascii_lowercase() } else { byte.to_ascii_uppercase() },
                )
                .collect(),
            _ => word.as_bytes().to_vec(),
        }
    }

    /// A key: few of them, so that commands meet.
    pub fn key(&mut self) -> Word {
        match self.within(0..300) {
            0 if !self.is_tame => self.pick(REFUSED_KEYS).to_vec(),
            1..30 => self.pick(UNUSUAL_KEYS).to_vec(),
            _ => self.pick(&["a", "b", "c", "n:1"]).as_bytes().to_vec(),
        }
    }

    /// Some keys, with repetitions.
    pub fn keys(&mut self) -> Vec<Word> {
        let count = if self.one_in(20) { self.within(10..60) } else { self.within(1..5) };
        (0..count).map(|_| self.key()).collect()
    }

    /// An integer in its one spelling.
    pub fn integer(&mut self) -> Word {
        let number = match self.within(0..10) {
            0..5 => self.random.random_range(-10..100),
            5..8 => *self.pick(EDGES),
            8 => self.random.random_range(i64::from(i32::MIN)..i64::from(i32::MAX)),
            _ => self.random.random(),
        };
        number.to_string().into_bytes()
    }

    /// What stands where an integer is expected.
    pub fn number(&mut self) -> Word {
        if !self.is_tame && self.one_in(5) { self.malformed() } else { self.integer() }
    }

    /// What stands where an integer is expected and is none.
    pub fn malformed(&mut self) -> Word {
        self.pick(MALFORMED_NUMBERS).as_bytes().to_vec()
    }

    /// A value to store: other than integers are refused here and stored by Redis, which ends what can be compared.
    pub fn value(&mut self) -> Word {
        if !self.is_tame && self.one_in(200) { self.malformed() } else { self.integer() }
    }

    /// A time from now, in units of so many milliseconds: far enough ahead, or past, or none at all.
    pub fn lifetime(&mut self, unit_ms: i64) -> Word {
        if self.one_in(4) {
            return match self.within(0..3) {
                0 => self.malformed(),
                1 => self
                    .pick(&["0", "-1", "-1000", "-9223372036854775808", "-9223372036854775"])
                    .as_bytes()
                    .to_vec(),
                // The largest that fits is never drawn: it depends on the millisecond.
                _ => self
                    .pick(&["9223372036854775807", "9223372036854775", "9223372036854776"])
                    .as_bytes()
                    .to_vec(),
            };
        }
        (1_000_000 * self.random.random_range(1..2000) / unit_ms).to_string().into_bytes()
    }

    /// A point in time, in units of so many milliseconds: past, far ahead, or none.
    pub fn moment(&mut self, unit_ms: i64) -> Word {
        let far_ms = [
            99_999_999_999_000,
            99_999_999_999_499,
            99_999_999_999_500,
            88_888_888_888_001,
            77_777_777_777_999,
        ];
        match self.within(0..8) {
            0 => self.malformed(),
            1 => self.pick(&["0", "1", "-1", "1000000000", "-9223372036854775808"]).as_bytes().to_vec(),
            2 if self.moments.is_none() => self
                .pick(&["9223372036854775807", "9223372036854775", "9223372036854776"])
                .as_bytes()
                .to_vec(),
            _ => {
                self.moments = self.moments.map(|count| count + 1);
                let far_ms = self.pick(&far_ms) + 1_000_000 * self.moments.unwrap_or(0);
                (far_ms / unit_ms).to_string().into_bytes()
            }
        }
    }

    /// A pattern of keys.
    pub fn pattern(&mut self) -> Word {
        if self.one_in(10) { self.key() } else { self.pick(PATTERNS).as_bytes().to_vec() }
    }

    /// Any text.
    pub fn text(&mut self) -> Word {
        match self.within(0..5) {
            0 => self.malformed(),
            1 => self.pick(UNUSUAL_KEYS).to_vec(),
            2 => vec![b'x'; self.within(0..300)],
            _ => self.pick(&["hi", "me", "hello world", "a\r\nb", "\"q\"", "NX", "*"]).as_bytes().to_vec(),
        }
    }

    /// Whether two servers must agree about this lifetime, in milliseconds: it does not end while the script runs, and
    /// none is given twice, since which of two equal ones ends later is a matter of luck.
    pub fn is_fresh_lifetime(&mut self, lifetime_ms: i64) -> bool {
        lifetime_ms <= 0 || (lifetime_ms >= 600_000 && self.lifetimes_ms.insert(lifetime_ms))
    }
}

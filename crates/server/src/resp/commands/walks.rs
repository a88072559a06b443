//! SCAN and KEYS. They read from disk, so they run in the background while the connection waits.

use std::collections::BTreeSet;
use std::sync::Arc;

use quipu_cluster::walks::Scope;
use quipu_counting::service::ScanPage;
use quipu_counting::{Action, Batch, Counters, Execution, Unavailable};
use quipu_wire::glob;
use quipu_wire::number::parse_i64;
use quipu_wire::resp::{Arguments, Encoder, errors};

use super::{Complaint, is_option};
use crate::cluster::map::Map;
use crate::resp::background::Job;

/// Keys looked at by SCAN without COUNT, as in Redis.
const COUNT_DEFAULT: usize = 10;
/// The most keys one SCAN looks at: more is a longer walk, not a larger reply.
const COUNT_MAX: usize = 100_000;
/// Keys a step of KEYS asks for: large enough to be fast, small enough to let other jobs in between.
const KEYS_STEP: usize = 10_000;
/// The most bytes of keys KEYS collects before it asks to use SCAN instead.
const KEYS_BYTES_MAX: usize = 32 * 1024 * 1024;

/// What is walked.
pub struct Keys<'a> {
    /// All counters.
    pub counters: &'a dyn Counters,
    /// Where only those count that this node leads.
    pub map: Option<&'a Map>,
    /// The time of the command.
    pub now_ms: u64,
}

impl Keys<'_> {
    fn scan(&self, cursor: u64, count: usize) -> Result<ScanPage, Unavailable> {
        match self.map {
            Some(map) => map.led().scan_in(Scope::Led, cursor, count),
            None => self.counters.scan(cursor, count, self.now_ms),
        }
    }
}

/// Reads SCAN.
pub fn scan(map: Option<&Arc<Map>>, arguments: Arguments<'_, '_>) -> Result<Job, Complaint> {
    let cursor = cursor(arguments.get(1).unwrap_or_default()).ok_or(errors::INVALID_CURSOR)?;
    let (mut pattern, mut count, mut only_strings) = (None, COUNT_DEFAULT, true);
    let mut words = arguments.tail(2).iter();
    while let Some(word) = words.next() {
        let value = words.next().ok_or(errors::SYNTAX)?;
        if is_option(word, "match") {
            pattern = Some(value.to_vec());
        } else if is_option(word, "count") {
            let wished = parse_i64(value).ok_or(errors::NOT_AN_INTEGER)?;
            count =
                usize::try_from(wished).ok().filter(|count| *count > 0).ok_or(errors::SYNTAX)?.min(COUNT_MAX);
        } else if is_option(word, "type") {
            only_strings = is_option(value, "string");
        } else {
            return Err(errors::SYNTAX.into());
        }
    }
    Ok(Job::Scan { map: map.cloned(), cursor, pattern, count, matches_type: only_strings })
}

/// A cursor as C's `strtoul` reads it, which Redis leaves it to: a sign is taken, a zero byte ends it, nothing is 0.
fn cursor(text: &[u8]) -> Option<u64> {
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    let (is_negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        [] => return Some(0),
        digits => (false, digits),
    };
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = str::from_utf8(digits).ok()?.parse().ok()?;
    Some(if is_negative { number.wrapping_neg() } else { number })
}

/// Carries out SCAN.
pub fn answer_scan(
    walked: &Keys<'_>,
    cursor: u64,
    pattern: Option<&[u8]>,
    count: usize,
    encoder: &mut Encoder<'_>,
) -> Result<(), Unavailable> {
    let page = walked.scan(cursor, count)?;
    let keys: Vec<&[u8]> = page
        .keys
        .iter()
        .map(Vec::as_slice)
        .filter(|key| pattern.is_none_or(|pattern| glob::matches(pattern, key)))
        .collect();
    settle_all(walked)?;
    encoder.array(2);
    encoder.bulk(page.cursor.to_string().as_bytes());
    encoder.array(keys.len());
    keys.iter().for_each(|key| encoder.bulk(key));
    Ok(())
}

/// Carries out KEYS.
pub fn answer_keys(walked: &Keys<'_>, pattern: &[u8], encoder: &mut Encoder<'_>) -> Result<(), Unavailable> {
    let (mut found, mut bytes, mut cursor) = (BTreeSet::new(), 0, 0);
    loop {
        let page = walked.scan(cursor, KEYS_STEP)?;
        for key in page.keys {
            if glob::matches(pattern, &key) {
                bytes += key.len();
                found.insert(key);
            }
        }
        if bytes > KEYS_BYTES_MAX {
            return Err(Unavailable::Unsupported("too many keys for one reply, use SCAN".into()));
        }
        cursor = page.cursor;
        if cursor == 0 {
            break;
        }
    }
    settle_all(walked)?;
    encoder.array(found.len());
    found.iter().for_each(|key| encoder.bulk(key));
    Ok(())
}

/// A walk reveals keys that may not be durable yet. Counting all counters depends on every partition, so what it
/// reveals covers what the walk has seen.
fn settle_all(walked: &Keys<'_>) -> Result<(), Unavailable> {
    let mut batch = Batch::default();
    batch.push(b"", Action::Count);
    match walked.counters.execute(&mut batch, walked.now_ms)? {
        Execution::Done { offset } => walked.counters.settle(offset),
        // Counting looks at no counter, so only a node of a cluster would have to wait: for others, while what they have
        // shown is agreed on.
        Execution::Pending => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::cursor;

    #[test]
    fn cursors() {
        let cases: &[(&[u8], Option<u64>)] = &[
            (b"0", Some(0)),
            (b"007", Some(7)),
            (b"18446744073709551615", Some(u64::MAX)),
            (b"18446744073709551616", None),
            (b"", Some(0)),
            (b"+5", Some(5)),
            (b"-1", Some(u64::MAX)),
            (b"5\0x", Some(5)),
            (b"\0", Some(0)),
            (b"-", None),
            (b"+", None),
            (b"--1", None),
            (b" 1", None),
            (b"1 ", None),
            (b"0x10", None),
        ];
        for (text, expected) in cases {
            assert_eq!(cursor(text), *expected, "{}", text.escape_ascii());
        }
    }
}

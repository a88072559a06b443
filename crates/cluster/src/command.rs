//! What a group of a partition is asked to do.
//!
//! ```text
//! command := 1 time_ms:v batch                            count
//!          | 2 time_ms:v pattern (0 | 1 policy)           store or remove a policy
//!          | 3 time_ms:v keys:v key*                      remove those of these counters whose time has come
//!          | 4 time_ms:v rules:v batch                    count, by these rules; 1 is by those before 4
//! pattern, key := length:v bytes
//! ```
//! Batches are coded as in `quipu_wire::batch`, the rest as in `quipu_wire::entry`. The time is the leader's when it proposed;
//! a partition's own time never goes back, whatever leaders say.

use quipu_counting::kinds::{RULES, RULES_OF_PAST};
use quipu_counting::{Batch, KEY_BYTES_MAX, Policy};
use quipu_wire::batch::{put_batch, read_batch};
use quipu_wire::entry::{Malformed, Reader, put_bytes, put_policy_value, put_varint};

use crate::meta::LEVEL_OF_KINDS;

/// See the head of this file.
#[derive(Debug)]
pub enum Decoded {
    /// Count, by these rules.
    Batch(Batch, u64),
    /// Store a policy, or remove it.
    Policy(Vec<u8>, Option<Policy>),
    /// Remove what has expired.
    Expire(Vec<Vec<u8>>),
}

/// Encodes a batch, to be decided by the newest rules that a cluster of this level knows.
pub fn batch(time_ms: u64, level: u64, batch: &Batch) -> Vec<u8> {
    let rules = level.min(RULES);
    let mut out = head(if rules < RULES_OF_PAST { 1 } else { 4 }, time_ms);
    if rules >= RULES_OF_PAST {
        put_varint(&mut out, rules);
    }
    put_batch(&mut out, batch);
    out
}

/// Encodes a change of policy.
pub fn policy(time_ms: u64, pattern: &[u8], policy: Option<&Policy>) -> Vec<u8> {
    let mut out = head(2, time_ms);
    put_bytes(&mut out, pattern);
    out.push(u8::from(policy.is_some()));
    if let Some(policy) = policy {
        put_policy_value(&mut out, policy);
    }
    out
}

/// Encodes keys whose time has come.
pub fn expire(time_ms: u64, keys: &[Vec<u8>]) -> Vec<u8> {
    let mut out = head(3, time_ms);
    put_varint(&mut out, keys.len() as u64);
    keys.iter().for_each(|key| put_bytes(&mut out, key));
    out
}

fn head(kind: u8, time_ms: u64) -> Vec<u8> {
    let mut out = vec![kind];
    put_varint(&mut out, time_ms);
    out
}

/// The time of a command, and what it asks for.
pub fn decode(bytes: &[u8]) -> Result<(u64, Decoded), Malformed> {
    let mut reader = Reader::new(bytes);
    let kind = reader.byte()?;
    let time_ms = reader.varint()?;
    let decoded = match kind {
        1 | 4 => {
            let rules = if kind == 4 { reader.varint()? } else { LEVEL_OF_KINDS };
            if rules > RULES {
                return Err(Malformed("to be decided by rules of a newer version"));
            }
            let mut batch = Batch::default();
            read_batch(&mut reader, &mut batch)?;
            Decoded::Batch(batch, rules)
        }
        2 => {
            let pattern = reader.bytes_up_to(KEY_BYTES_MAX)?.to_vec();
            Decoded::Policy(pattern, if reader.flag()? { Some(reader.policy()?) } else { None })
        }
        3 => {
            let count = reader.count()?;
            let key = |_| reader.bytes_up_to(KEY_BYTES_MAX).map(<[u8]>::to_vec);
            Decoded::Expire((0..count).map(key).collect::<Result<_, _>>()?)
        }
        _ => return Err(Malformed("unknown command; sent by a newer version?")),
    };
    if reader.is_empty() { Ok((time_ms, decoded)) } else { Err(Malformed("more than a command")) }
}

#[cfg(test)]
mod tests {
    use quipu_counting::{Action, Add};

    use super::*;

    #[test]
    fn commands_are_read_as_written() {
        let mut asked = Batch::default();
        asked.push_with_id(b"likes", Action::Add(Add::plain(3)), b"id", 0);
        for (level, by) in [(LEVEL_OF_KINDS, LEVEL_OF_KINDS), (RULES, RULES), (RULES + 1, RULES)] {
            let (time_ms, decoded) = decode(&batch(7, level, &asked)).unwrap();
            assert!(
                matches!(&decoded, Decoded::Batch(read, rules) if read.key(0) == b"likes" && *rules == by),
                "{decoded:?}"
            );
            assert_eq!(time_ms, 7);
        }
        // What nodes of a former version are asked while some are left.
        assert_eq!(batch(7, LEVEL_OF_KINDS, &asked)[0], 1);
        let limit = Policy { max: Some(5), ..Policy::default() };
        let decoded = decode(&policy(8, b"a*", Some(&limit))).unwrap();
        assert!(
            matches!(decoded, (8, Decoded::Policy(pattern, Some(read))) if pattern == b"a*" && read == limit)
        );
        assert!(matches!(decode(&policy(8, b"a*", None)), Ok((8, Decoded::Policy(_, None)))));
        let keys = [b"one".to_vec(), b"two".to_vec()];
        assert!(matches!(decode(&expire(9, &keys)).unwrap(), (9, Decoded::Expire(read)) if read == keys));
    }

    #[test]
    fn what_is_cut_is_refused() {
        let keys = [b"one".to_vec(), b"two".to_vec()];
        for command in [
            batch(7, 3, &Batch::default()),
            batch(7, 4, &Batch::default()),
            policy(8, b"a*", None),
            expire(9, &keys),
        ] {
            for length in 0..command.len() {
                assert!(decode(&command[..length]).is_err(), "{command:?} cut at {length}");
            }
            assert!(decode(&[&command[..], b"x"].concat()).is_err());
        }
    }
}

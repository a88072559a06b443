//! The commands: each reads its arguments and drafts what is asked and how it will be answered.
//!
//! | file | commands |
//! |---|---|
//! | `additions` | INCR and its family, INCREX |
//! | `values` | GET, SET and their families |
//! | `keyspace` | DEL, EXISTS, TYPE, the family of EXPIRE and TTL, DBSIZE, FLUSHALL |
//! | `walks` | SCAN, KEYS: jobs for the background |
//! | `objects` | OBJECT, MEMORY USAGE, DUMP, RESTORE |
//! | `kinds` | PFADD and its kin, Q.WGET, Q.ACQUIRE, Q.HOLD |
//! | `dimensions` | Q.DGET, and DIM in other commands |
//! | `own` | Q.ADD, Q.BATCH, Q.STAT, Q.HOT, Q.POLICY |
//! | `audit`, `history` | Q.ADJUST, Q.AUDIT; Q.HISTORY |
//! | `totals` | Q.SUM, Q.TOP: jobs for the background |
//! | `connection` | PING, HELLO, AUTH and what else concerns one connection |
//! | `client` | CLIENT |
//! | `introspect`, `config`, `info` | COMMAND, CONFIG, INFO |
//! | `diagnose` | LATENCY, SLOWLOG, MEMORY |
//! | `cluster` | CLUSTER, READONLY, ROLE, WAIT |
//!
//! A command either drafts everything or complains and drafts nothing.

use std::borrow::Cow;

use quipu_counting::{Expiry, KEY_BYTES_MAX};
use quipu_wire::commands::{CommandSpec, lookup};
use quipu_wire::number::parse_i64;
use quipu_wire::resp::{Arguments, errors};

pub mod additions;
pub mod audit;
pub mod client;
pub mod cluster;
pub mod config;
pub mod connection;
pub mod diagnose;
pub mod dimensions;
pub mod history;
pub mod info;
pub mod introspect;
pub mod keyspace;
pub mod kinds;
pub mod objects;
pub mod own;
pub mod totals;
pub mod values;
pub mod walks;

/// The most keys of one command. A request takes about 200 bytes until it is answered, so this bounds what one command
/// holds to some 13 MB.
pub const KEYS_PER_COMMAND_MAX: usize = 65_536;

/// Why a command was not understood: the text of the error, its code included.
#[derive(Debug, PartialEq, Eq)]
pub struct Complaint(pub Cow<'static, [u8]>);

impl From<&'static str> for Complaint {
    fn from(text: &'static str) -> Complaint {
        Complaint(Cow::Borrowed(text.as_bytes()))
    }
}

impl From<String> for Complaint {
    fn from(text: String) -> Complaint {
        Complaint(Cow::Owned(text.into_bytes()))
    }
}

impl From<Vec<u8>> for Complaint {
    fn from(text: Vec<u8>) -> Complaint {
        Complaint(Cow::Owned(text))
    }
}

/// What understanding a command gives.
pub type Drafted = Result<(), Complaint>;

/// The row of a command or subcommand that has as many arguments as it should.
pub fn resolve(arguments: Arguments<'_, '_>) -> Result<&'static CommandSpec, Complaint> {
    let name = arguments.name();
    let Some(mut spec) = lookup(name) else {
        return Err(errors::unknown_command(name, arguments.tail(1).iter()).into());
    };
    if let ([_, ..], Some(subcommand)) = (spec.subcommands(), arguments.get(1)) {
        let found = spec.subcommand(subcommand);
        spec = found.ok_or_else(|| errors::unknown_subcommand(spec.name, subcommand))?;
    }
    if spec.accepts(arguments.len()) { Ok(spec) } else { Err(errors::wrong_arity(spec.name).into()) }
}

/// Whether the bytes may name a counter.
#[inline]
pub fn check_key(key: &[u8]) -> Drafted {
    if key.is_empty() || key.len() > KEY_BYTES_MAX { Err(bad_key(key)) } else { Ok(()) }
}

#[cold]
fn bad_key(key: &[u8]) -> Complaint {
    format!("ERR a key has 1 to {KEY_BYTES_MAX} bytes, this one has {}", key.len()).into()
}

/// Whether all of the keys of one command may name counters, and are not too many.
pub fn check_keys<'b>(mut keys: impl ExactSizeIterator<Item = &'b [u8]>) -> Drafted {
    if keys.len() > KEYS_PER_COMMAND_MAX {
        return Err(format!("ERR too many keys in one command, at most {KEYS_PER_COMMAND_MAX}").into());
    }
    keys.try_for_each(check_key)
}

/// An integer in its one spelling.
#[inline]
pub fn integer(text: &[u8]) -> Result<i64, Complaint> {
    parse_i64(text).ok_or_else(|| errors::NOT_AN_INTEGER.into())
}

/// Whether a word is this option, in any case.
pub fn is_option(word: &[u8], option: &str) -> bool {
    word.eq_ignore_ascii_case(option.as_bytes())
}

/// The four spellings of an expiry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deadline {
    /// EX: seconds from now.
    InSeconds,
    /// PX: milliseconds from now.
    InMilliseconds,
    /// EXAT: Unix seconds.
    AtSeconds,
    /// PXAT: Unix milliseconds.
    AtMilliseconds,
}

impl Deadline {
    /// The option a word stands for, if it is one.
    pub fn from_option(word: &[u8]) -> Option<Deadline> {
        let options = [
            ("ex", Deadline::InSeconds),
            ("px", Deadline::InMilliseconds),
            ("exat", Deadline::AtSeconds),
            ("pxat", Deadline::AtMilliseconds),
        ];
        options.into_iter().find(|(option, _)| is_option(word, option)).map(|(_, deadline)| deadline)
    }

    fn factor(self) -> i64 {
        match self {
            Deadline::InSeconds | Deadline::AtSeconds => 1000,
            Deadline::InMilliseconds | Deadline::AtMilliseconds => 1,
        }
    }

    fn is_relative(self) -> bool {
        matches!(self, Deadline::InSeconds | Deadline::InMilliseconds)
    }

    /// The expiry as SET and its kin read it: positive, and nowhere beyond 64 bits. `command` is named in the error.
    pub fn positive(self, text: &[u8], now_ms: u64, command: &str) -> Result<Expiry, Complaint> {
        let number = integer(text)?;
        let expiry = if number > 0 { self.expiry(number, now_ms) } else { None };
        expiry.ok_or_else(|| errors::invalid_expire_time(command).into())
    }

    /// The expiry as EXPIRE and its kin read it: the past is allowed and means "now".
    pub fn any(self, text: &[u8], now_ms: u64, command: &str) -> Result<Expiry, Complaint> {
        self.expiry(integer(text)?, now_ms).ok_or_else(|| errors::invalid_expire_time(command).into())
    }

    /// Nothing where Redis would leave 64 bits. What lies ahead stays relative, so that a retry looks the same.
    fn expiry(self, number: i64, now_ms: u64) -> Option<Expiry> {
        let ms = number.checked_mul(self.factor())?;
        if self.is_relative() {
            ms.checked_add(i64::try_from(now_ms).ok()?)?;
        }
        Some(match u64::try_from(ms) {
            Err(_) | Ok(0) => Expiry::At(0),
            Ok(ms) if self.is_relative() => Expiry::In(ms),
            Ok(ms) => Expiry::At(ms),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Deadline, check_key};
    use quipu_counting::Expiry;

    #[test]
    fn deadlines() {
        use Deadline::{AtMilliseconds, AtSeconds, InMilliseconds, InSeconds};
        let invalid = Err("ERR invalid expire time in 'set' command".to_owned());
        let not_integer = Err("ERR value is not an integer or out of range".to_owned());
        let cases = [
            (InSeconds, "10", Ok(Expiry::In(10_000)), Ok(Expiry::In(10_000))),
            (InMilliseconds, "10", Ok(Expiry::In(10)), Ok(Expiry::In(10))),
            (AtSeconds, "10", Ok(Expiry::At(10_000)), Ok(Expiry::At(10_000))),
            (AtMilliseconds, "10", Ok(Expiry::At(10)), Ok(Expiry::At(10))),
            (InSeconds, "0", invalid.clone(), Ok(Expiry::At(0))),
            (InSeconds, "-5", invalid.clone(), Ok(Expiry::At(0))),
            (AtSeconds, "-5", invalid.clone(), Ok(Expiry::At(0))),
            (InSeconds, "9223372036854775807", invalid.clone(), invalid.clone()),
            (InSeconds, "9223372036854775", invalid.clone(), invalid.clone()),
            (
                AtSeconds,
                "9223372036854775",
                Ok(Expiry::At(9_223_372_036_854_775_000)),
                Ok(Expiry::At(9_223_372_036_854_775_000)),
            ),
            (InMilliseconds, "9223372036854775807", invalid.clone(), invalid.clone()),
            (InSeconds, "x", not_integer.clone(), not_integer.clone()),
        ];
        for (deadline, text, positive, any) in cases {
            let show = |found: Result<Expiry, super::Complaint>| {
                found.map_err(|complaint| String::from_utf8_lossy(&complaint.0).into_owned())
            };
            assert_eq!(
                show(deadline.positive(text.as_bytes(), 1_000, "set")),
                positive,
                "{deadline:?} {text}"
            );
            assert_eq!(show(deadline.any(text.as_bytes(), 1_000, "set")), any, "{deadline:?} {text}");
        }
    }

    #[test]
    fn keys() {
        for (length, fits) in [(0, false), (1, true), (512, true), (513, false)] {
            assert_eq!(check_key(&vec![b'k'; length]).is_ok(), fits, "{length}");
        }
    }
}

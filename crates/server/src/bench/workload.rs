//! The commands of a load, as bytes ready to send.
//!
//! Every command of every load has the same shape, of which only the keys and the request id change:
//!
//! ```text
//! head                      | keys                  | middle               | id             | tail
//! *2 $4 INCR                | $9 counter:7          |                      |                |
//! *5 $5 Q.ADD               | $9 counter:7          | $1 1 $2 ID           | $18 <run>-<n>  |
//! *7 $7 EVALSHA $40 .. $1 2 | $9 counter:7          |                      | $21 id:<run>-. | $1 1 $5 86400
//! *101 $4 MGET              | $9 counter:7 (x 100)  |                      |                |
//! ```
//!
//! The fixed parts are built once; a command then costs a few copies and two integers, because the generator
//! shares the machine with the server it measures.

use anyhow::{Result, ensure};
use clap::ValueEnum;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// How many keys one `mget100` command reads.
const KEYS_OF_MGET: usize = 100;

/// How long the Redis script remembers an id: a day, the usual life of an idempotency key.
const SCRIPT_ID_TTL_SECONDS: &str = "86400";

/// What people write on Redis to count a request once: claim the id, count if it was free, else answer the value.
pub const COUNT_ONCE_SCRIPT: &str = "if redis.call('SET', KEYS[2], '1', 'NX', 'EX', ARGV[2]) then \
     return redis.call('INCRBY', KEYS[1], ARGV[1]) else return redis.call('GET', KEYS[1]) end";

/// The loads that `quipu bench` can offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Command {
    /// INCR of a random key
    Incr,
    /// GET of a random key
    Get,
    /// MGET of 100 random keys; one command is one operation
    Mget100,
    /// `Q.ADD key 1 ID <unique>`: an increment that can be retried (quipu)
    AddId,
    /// the same increment on Redis: EVALSHA of SET NX and INCRBY
    ScriptId,
    /// INCR of one key
    Hot,
    /// INCRBY of every key once, in order: creates the keys
    Load,
}

impl Command {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Command::Incr => "incr",
            Command::Get => "get",
            Command::Mget100 => "mget100",
            Command::AddId => "add-id",
            Command::ScriptId => "script-id",
            Command::Hot => "hot",
            Command::Load => "load",
        }
    }

    /// By how much one operation raises the sum of all keys (`value` is what `load` adds to each key).
    pub fn raises_sum_by(self, value: i64) -> i64 {
        match self {
            Command::Get | Command::Mget100 => 0,
            Command::Incr | Command::AddId | Command::ScriptId | Command::Hot => 1,
            Command::Load => value,
        }
    }
}

/// How key names are made from numbers: `{n}` in the format is replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyFormat {
    before: Vec<u8>,
    after: Vec<u8>,
}

impl KeyFormat {
    /// Splits a format at its one `{n}`.
    pub fn parse(format: &str) -> Result<KeyFormat> {
        ensure!(
            format.matches("{n}").count() == 1,
            "--key-format needs {{n}} exactly once, as in counter:{{n}}; got {format:?}"
        );
        let (before, after) = format.split_once("{n}").unwrap_or((format, ""));
        Ok(KeyFormat { before: before.into(), after: after.into() })
    }

    /// Appends key number `n` as a RESP bulk string.
    pub fn append_bulk(&self, output: &mut Vec<u8>, n: u64) {
        append_numbered_bulk(output, &self.before, n, &self.after);
    }
}

/// What all generators of a run have in common.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Which load.
    pub command: Command,
    /// How keys are named.
    pub key_format: KeyFormat,
    /// Keys are numbered below this.
    pub keys: u64,
    /// What `load` adds to each key.
    pub value: i64,
    /// Keys are drawn and request ids are named from it: the same seed gives the same run.
    pub seed: u64,
    /// Hash of [`COUNT_ONCE_SCRIPT`] as the server named it; empty unless the load needs it.
    pub script_hash: String,
}

/// Writes the commands of one thread, one after another.
pub struct Generator {
    head: Vec<u8>,
    middle: Vec<u8>,
    tail: Vec<u8>,
    /// Start of every request id; `None` for loads without ids.
    id_prefix: Option<Vec<u8>>,
    key_format: KeyFormat,
    key_choice: KeyChoice,
    keys: u64,
    keys_per_command: usize,
    /// Number of the next operation in the whole run: names request ids and the keys of `load`.
    next_operation: u64,
    random: SmallRng,
}

enum KeyChoice {
    Random,
    Hot,
    InOrder,
}

impl Generator {
    /// A generator whose operations are numbered from `first_operation`; threads get disjoint ranges, so that no
    /// two of them ever use one request id or load one key.
    pub fn new(workload: &Workload, first_operation: u64) -> Generator {
        let seed = workload.seed;
        let (head, middle, tail, id_prefix) = match workload.command {
            Command::Incr | Command::Hot => (command_head(2, &["INCR"]), vec![], vec![], None),
            Command::Get => (command_head(2, &["GET"]), vec![], vec![], None),
            Command::Mget100 => (command_head(1 + KEYS_OF_MGET, &["MGET"]), vec![], vec![], None),
            Command::Load => {
                (command_head(3, &["INCRBY"]), vec![], bulks(&[&workload.value.to_string()]), None)
            }
            Command::AddId => {
                (command_head(5, &["Q.ADD"]), bulks(&["1", "ID"]), vec![], Some(format!("{seed:016x}-")))
            }
            Command::ScriptId => (
                command_head(7, &["EVALSHA", &workload.script_hash, "2"]),
                vec![],
                bulks(&["1", SCRIPT_ID_TTL_SECONDS]),
                Some(format!("id:{seed:016x}-")),
            ),
        };
        Generator {
            head,
            middle,
            tail,
            id_prefix: id_prefix.map(String::into_bytes),
            key_format: workload.key_format.clone(),
            key_choice: match workload.command {
                Command::Hot => KeyChoice::Hot,
                Command::Load => KeyChoice::InOrder,
                _ => KeyChoice::Random,
            },
            keys: workload.keys,
            keys_per_command: if workload.command == Command::Mget100 { KEYS_OF_MGET } else { 1 },
            next_operation: first_operation,
            // Threads differ in their first operation, so each draws its own keys.
            random: SmallRng::seed_from_u64(seed ^ first_operation.rotate_left(32)),
        }
    }

    /// Appends the next command.
    pub fn append(&mut self, output: &mut Vec<u8>) {
        output.extend_from_slice(&self.head);
        for _ in 0..self.keys_per_command {
            let n = match self.key_choice {
                KeyChoice::Random => self.random.random_range(0..self.keys),
                KeyChoice::Hot => 0,
                KeyChoice::InOrder => self.next_operation % self.keys,
            };
            self.key_format.append_bulk(output, n);
        }
        output.extend_from_slice(&self.middle);
        if let Some(prefix) = &self.id_prefix {
            append_numbered_bulk(output, prefix, self.next_operation, b"");
        }
        output.extend_from_slice(&self.tail);
        self.next_operation += 1;
    }
}

/// `MGET` of the keys `from..to`, for adding them up.
pub fn mget_of_range(key_format: &KeyFormat, from: u64, to: u64) -> Vec<u8> {
    let mut command = command_head(1 + (to - from) as usize, &["MGET"]);
    for n in from..to {
        key_format.append_bulk(&mut command, n);
    }
    command
}

/// The array header of a command of `arguments` words, and its first words.
pub fn command_head(arguments: usize, words: &[&str]) -> Vec<u8> {
    let mut head = format!("*{arguments}\r\n").into_bytes();
    head.extend(bulks(words));
    head
}

fn bulks(words: &[&str]) -> Vec<u8> {
    words.iter().flat_map(|word| format!("${}\r\n{word}\r\n", word.len()).into_bytes()).collect()
}

fn append_numbered_bulk(output: &mut Vec<u8>, before: &[u8], n: u64, after: &[u8]) {
    let mut digits = itoa::Buffer::new();
    let digits = digits.format(n).as_bytes();
    let mut length = itoa::Buffer::new();
    let length = length.format(before.len() + digits.len() + after.len()).as_bytes();
    for part in [b"$", length, b"\r\n", before, digits, after, b"\r\n"] {
        output.extend_from_slice(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(command: Command, keys: u64) -> Workload {
        Workload {
            command,
            key_format: KeyFormat::parse("counter:{n}").unwrap(),
            keys,
            value: 70_000,
            seed: 0xabc,
            script_hash: "f".repeat(40),
        }
    }

    fn first_commands(workload: &Workload, first_operation: u64, count: usize) -> String {
        let mut generator = Generator::new(workload, first_operation);
        let mut output = Vec::new();
        for _ in 0..count {
            generator.append(&mut output);
        }
        String::from_utf8(output).unwrap()
    }

    #[test]
    fn commands_are_the_bytes_of_the_protocol() {
        // With one key, random keys are that key.
        let sha = "f".repeat(40);
        let cases = [
            (Command::Incr, "*2\r\n$4\r\nINCR\r\n$9\r\ncounter:0\r\n".to_string()),
            (Command::Hot, "*2\r\n$4\r\nINCR\r\n$9\r\ncounter:0\r\n".to_string()),
            (Command::Get, "*2\r\n$3\r\nGET\r\n$9\r\ncounter:0\r\n".to_string()),
            (Command::Mget100, format!("*101\r\n$4\r\nMGET\r\n{}", "$9\r\ncounter:0\r\n".repeat(100))),
            (Command::Load, "*3\r\n$6\r\nINCRBY\r\n$9\r\ncounter:0\r\n$5\r\n70000\r\n".to_string()),
            (
                Command::AddId,
                "*5\r\n$5\r\nQ.ADD\r\n$9\r\ncounter:0\r\n$1\r\n1\r\n$2\r\nID\r\n$19\r\n0000000000000abc-12\r\n".to_string(),
            ),
            (
                Command::ScriptId,
                format!(
                    "*7\r\n$7\r\nEVALSHA\r\n$40\r\n{sha}\r\n$1\r\n2\r\n$9\r\ncounter:0\r\n\
                     $22\r\nid:0000000000000abc-12\r\n$1\r\n1\r\n$5\r\n86400\r\n"
                ),
            ),
        ];
        for (command, expected) in cases {
            assert_eq!(first_commands(&workload(command, 1), 12, 1), expected, "{}", command.name());
        }
    }

    #[test]
    fn keys_stay_below_their_number_and_lengths_follow_the_digits() {
        let commands = first_commands(&workload(Command::Incr, 1_000), 0, 5_000);
        let mut seen = std::collections::HashSet::new();
        for command in commands.split("*2\r\n").skip(1) {
            let words: Vec<&str> = command.split("\r\n").collect();
            let key = words[3];
            assert_eq!(words[2], format!("${}", key.len()));
            let n: u64 = key.strip_prefix("counter:").unwrap().parse().unwrap();
            assert!(n < 1_000);
            seen.insert(n);
        }
        assert!(seen.len() > 900, "5,000 draws of 1,000 keys touch nearly all, not {}", seen.len());
    }

    #[test]
    fn load_names_every_key_once_across_threads() {
        let load = workload(Command::Load, 10);
        let both = first_commands(&load, 0, 4) + &first_commands(&load, 4, 6);
        for n in 0..10 {
            assert_eq!(both.matches(&format!("\r\ncounter:{n}\r\n")).count(), 1, "key {n}");
        }
    }

    #[test]
    fn a_seed_repeats_a_run_and_threads_differ() {
        let incr = workload(Command::Incr, 1_000_000);
        assert_eq!(first_commands(&incr, 0, 100), first_commands(&incr, 0, 100));
        assert_ne!(first_commands(&incr, 0, 100), first_commands(&incr, 500, 100));
        let other = Workload { seed: 7, ..incr.clone() };
        assert_ne!(first_commands(&incr, 0, 100), first_commands(&other, 0, 100));
    }

    #[test]
    fn key_formats_need_one_place_for_the_number() {
        for bad in ["counter", "", "{n}{n}", "{m}"] {
            assert!(KeyFormat::parse(bad).is_err(), "{bad:?}");
        }
        let format = KeyFormat::parse("counter:post:{n}:like:2026-02-23").unwrap();
        let mut output = Vec::new();
        format.append_bulk(&mut output, 42);
        assert_eq!(output, b"$31\r\ncounter:post:42:like:2026-02-23\r\n");
    }

    #[test]
    fn ranges_are_read_with_one_mget() {
        let format = KeyFormat::parse("k{n}").unwrap();
        assert_eq!(mget_of_range(&format, 9, 11), b"*3\r\n$4\r\nMGET\r\n$2\r\nk9\r\n$3\r\nk10\r\n");
    }
}

//! What a load is: which command on which keys. The bytes are made in `resp` and `http`.

use anyhow::{Result, ensure};
use clap::ValueEnum;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::target::Protocol;
use super::{http, resp};

/// The loads that `quipu bench` can offer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Command {
    /// Increment of a random key: INCR, or POST .../increment
    Incr,
    /// Read of a random key: GET in both protocols
    Get,
    /// MGET of 100 random keys; one command is one operation (RESP)
    Mget100,
    /// An increment that can be retried: `Q.ADD key 1 ID <unique>`, or POST with an Idempotency-Key (quipu)
    AddId,
    /// The same increment on Redis: EVALSHA of SET NX and INCRBY (RESP)
    ScriptId,
    /// Increment of one key
    Hot,
    /// Add --value to every key once, in order: creates the keys
    Load,
    /// A new item into the set of a random key: PFADD; keys must not be counters (RESP)
    Pfadd,
    /// POST batch-increment of --batch random keys; one request is one operation (HTTP)
    Batch,
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
            Command::Pfadd => "pfadd",
            Command::Batch => "batch",
        }
    }

    /// Whether the load exists in a protocol.
    pub fn is_spoken_over(self, protocol: Protocol) -> bool {
        match self {
            Command::Incr | Command::Get | Command::AddId | Command::Hot | Command::Load => true,
            Command::Mget100 | Command::ScriptId | Command::Pfadd => protocol == Protocol::Resp,
            Command::Batch => protocol == Protocol::Http,
        }
    }
}

/// How key names are made from numbers: `{n}` in the format is replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyFormat {
    /// What stands before the number.
    pub before: String,
    /// What stands behind it.
    pub after: String,
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

    /// The name of key number `n`.
    pub fn name(&self, n: u64) -> String {
        format!("{}{n}{}", self.before, self.after)
    }
}

/// What all generators of a run have in common.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Which load.
    pub command: Command,
    /// In which protocol.
    pub protocol: Protocol,
    /// How keys are named.
    pub key_format: KeyFormat,
    /// Keys are numbered below this.
    pub keys: u64,
    /// What `load` adds to each key.
    pub value: i64,
    /// Increments in one request of `batch`.
    pub batch: u32,
    /// Keys are drawn and request ids are named from it: the same seed gives the same run.
    pub seed: u64,
    /// Hash of the script that counts once, as the server named it; empty unless the load needs it.
    pub script_hash: String,
}

impl Workload {
    /// Counters that one operation touches.
    pub fn counters_per_operation(&self) -> u32 {
        match self.command {
            Command::Batch => self.batch,
            Command::Mget100 => resp::KEYS_OF_MGET,
            _ => 1,
        }
    }

    /// By how much one operation raises the sum of all keys.
    pub fn raises_sum_by(&self) -> i64 {
        match self.command {
            Command::Get | Command::Mget100 | Command::Pfadd => 0,
            Command::Incr | Command::AddId | Command::ScriptId | Command::Hot => 1,
            Command::Load => self.value,
            Command::Batch => i64::from(self.batch),
        }
    }
}

/// Which keys a generator names, one after another.
pub struct Keys {
    choice: Choice,
    count: u64,
    /// Number of the next operation in the whole run: names request ids and the keys of `load`.
    pub next_operation: u64,
    random: SmallRng,
}

enum Choice {
    Random,
    Hot,
    InOrder,
}

impl Keys {
    fn new(workload: &Workload, first_operation: u64) -> Keys {
        Keys {
            choice: match workload.command {
                Command::Hot => Choice::Hot,
                Command::Load => Choice::InOrder,
                _ => Choice::Random,
            },
            count: workload.keys,
            next_operation: first_operation,
            // Threads differ in their first operation, so each draws its own keys.
            random: SmallRng::seed_from_u64(workload.seed ^ first_operation.rotate_left(32)),
        }
    }

    /// The number of the next key.
    pub fn draw(&mut self) -> u64 {
        match self.choice {
            Choice::Random => self.random.random_range(0..self.count),
            Choice::Hot => 0,
            Choice::InOrder => self.next_operation % self.count,
        }
    }
}

/// Writes the commands of one thread, one after another.
pub struct Generator {
    keys: Keys,
    writer: Writer,
}

enum Writer {
    Resp(resp::Writer),
    Http(http::Writer),
}

impl Generator {
    /// A generator whose operations are numbered from `first_operation`; threads get disjoint ranges, so that no
    /// two of them ever use one request id or load one key.
    pub fn new(workload: &Workload, first_operation: u64) -> Generator {
        Generator {
            keys: Keys::new(workload, first_operation),
            writer: match workload.protocol {
                Protocol::Resp => Writer::Resp(resp::Writer::new(workload)),
                Protocol::Http => Writer::Http(http::Writer::new(workload)),
            },
        }
    }

    /// Appends the next command.
    pub fn append(&mut self, output: &mut Vec<u8>) {
        match &mut self.writer {
            Writer::Resp(writer) => writer.append(output, &mut self.keys),
            Writer::Http(writer) => writer.append(output, &mut self.keys),
        }
        self.keys.next_operation += 1;
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A load for tests of the bytes.
    pub fn workload(command: Command, protocol: Protocol, keys: u64) -> Workload {
        Workload {
            command,
            protocol,
            key_format: KeyFormat::parse("counter:{n}").unwrap(),
            keys,
            value: 70_000,
            batch: 2,
            seed: 0xabc,
            script_hash: "f".repeat(40),
        }
    }

    /// The bytes of the first `count` commands.
    pub fn first_commands(workload: &Workload, first_operation: u64, count: usize) -> String {
        let mut generator = Generator::new(workload, first_operation);
        let mut output = Vec::new();
        for _ in 0..count {
            generator.append(&mut output);
        }
        String::from_utf8(output).unwrap()
    }

    #[test]
    fn load_names_every_key_once_across_threads() {
        for protocol in [Protocol::Resp, Protocol::Http] {
            let load = workload(Command::Load, protocol, 10);
            let both = first_commands(&load, 0, 4) + &first_commands(&load, 4, 6);
            for n in 0..10 {
                assert_eq!(both.matches(&format!("counter:{n}")).count(), 1, "key {n}");
            }
        }
    }

    #[test]
    fn a_seed_repeats_a_run_and_threads_differ() {
        let incr = workload(Command::Incr, Protocol::Resp, 1_000_000);
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
        assert_eq!(format.name(42), "counter:post:42:like:2026-02-23");
    }
}

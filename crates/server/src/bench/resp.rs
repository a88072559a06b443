//! The Redis protocol: commands as bytes ready to send, and a blocking session for the few commands around a run.
//!
//! Every command of every load has the same shape, of which only the keys and the request id change:
//!
//! ```text
//! head                      | keys                  | middle               | id             | tail
//! *2 $4 INCR                | $9 counter:7          |                      |                |
//! *5 $5 Q.ADD               | $9 counter:7          | $1 1 $2 ID           | $18 <run>-<n>  |
//! *7 $7 EVALSHA $40 .. $1 2 | $9 counter:7          |                      | $21 id:<run>-. | $1 1 $5 86400
//! *3 $5 PFADD               | $9 counter:7          |                      | $18 <run>-<n>  |
//! *101 $4 MGET              | $9 counter:7 (x 100)  |                      |                |
//! ```
//!
//! The fixed parts are built once; a command then costs a few copies and two integers, because the generator
//! shares the machine with the server it measures.

use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::{Context, Result, bail};
use quipu_wire::resp::{ReplyDecoder, Value, encode_command};

use super::workload::{Command, KeyFormat, Keys, Workload};

/// How many keys one `mget100` command reads.
pub const KEYS_OF_MGET: u32 = 100;

/// How long the Redis script remembers an id: a day, the usual life of an idempotency key.
const SCRIPT_ID_TTL_SECONDS: &str = "86400";

/// What people write on Redis to count a request once: claim the id, count if it was free, else answer the value.
pub const COUNT_ONCE_SCRIPT: &str = "if redis.call('SET', KEYS[2], '1', 'NX', 'EX', ARGV[2]) then \
     return redis.call('INCRBY', KEYS[1], ARGV[1]) else return redis.call('GET', KEYS[1]) end";

/// Makes commands out of prebuilt parts.
pub struct Writer {
    head: Vec<u8>,
    middle: Vec<u8>,
    tail: Vec<u8>,
    /// Start of every request id, or item; `None` for loads without.
    id_prefix: Option<String>,
    key_format: KeyFormat,
    keys_per_command: u32,
}

impl Writer {
    /// The parts of the load's commands.
    pub fn new(workload: &Workload) -> Writer {
        let seed = workload.seed;
        let (head, middle, tail, id_prefix) = match workload.command {
            Command::Get => (command_head(2, &["GET"]), vec![], vec![], None),
            Command::Mget100 => (command_head(1 + KEYS_OF_MGET as usize, &["MGET"]), vec![], vec![], None),
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
            Command::Pfadd => (command_head(3, &["PFADD"]), vec![], vec![], Some(format!("{seed:016x}-"))),
            // `batch` has no form here; it was refused with the arguments.
            Command::Incr | Command::Hot | Command::Batch => {
                (command_head(2, &["INCR"]), vec![], vec![], None)
            }
        };
        Writer {
            head,
            middle,
            tail,
            id_prefix,
            key_format: workload.key_format.clone(),
            keys_per_command: workload.counters_per_operation(),
        }
    }

    /// Appends the next command.
    pub fn append(&mut self, output: &mut Vec<u8>, keys: &mut Keys) {
        output.extend_from_slice(&self.head);
        for _ in 0..self.keys_per_command {
            append_key(output, &self.key_format, keys.draw());
        }
        output.extend_from_slice(&self.middle);
        if let Some(prefix) = &self.id_prefix {
            append_numbered_bulk(output, prefix.as_bytes(), keys.next_operation, b"");
        }
        output.extend_from_slice(&self.tail);
    }
}

/// A connection on which one command is sent and its reply awaited.
pub struct Session {
    stream: TcpStream,
    input: Vec<u8>,
    decoder: ReplyDecoder,
}

impl Session {
    /// Takes over a connected stream.
    pub fn new(stream: TcpStream) -> Session {
        Session { stream, input: Vec::new(), decoder: ReplyDecoder::new() }
    }

    /// Gives the stream back.
    pub fn into_stream(self) -> TcpStream {
        self.stream
    }

    /// Sends a command of words; an error reply is an error.
    pub fn command(&mut self, words: &[&str]) -> Result<Value> {
        let mut bytes = Vec::new();
        let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        encode_command(&mut bytes, &words);
        self.exchange(&bytes)
    }

    /// Sends one command that is already encoded; an error reply is an error.
    fn exchange(&mut self, command: &[u8]) -> Result<Value> {
        self.stream.write_all(command).context("cannot write to the server")?;
        let value = self.read_reply()?;
        if let Some(text) = value.as_error() {
            bail!("the server answered: {}", String::from_utf8_lossy(text));
        }
        Ok(value)
    }

    fn read_reply(&mut self) -> Result<Value> {
        loop {
            if let Some((value, length)) = self.decoder.decode(&self.input)? {
                self.input.drain(..length);
                return Ok(value);
            }
            let mut chunk = [0; 16 * 1024];
            match self.stream.read(&mut chunk).context("cannot read from the server")? {
                0 => bail!("the server closed the connection"),
                count => self.input.extend_from_slice(&chunk[..count]),
            }
        }
    }

    /// A number from `INFO`, such as `process_id`; `None` if the server does not tell it.
    pub fn info_number(&mut self, field: &str) -> Result<Option<u64>> {
        let value = self.command(&["INFO"])?;
        let text = String::from_utf8_lossy(value.as_bytes().unwrap_or_default()).into_owned();
        Ok(info_field(&text, field).and_then(|number| number.parse().ok()))
    }

    /// The sum of the keys `from..to`; a missing key counts nothing.
    pub fn sum_of_range(&mut self, key_format: &KeyFormat, from: u64, to: u64) -> Result<i128> {
        let values = self.exchange(&mget_of_range(key_format, from, to))?;
        let values = values.as_elements().context("MGET answered no list")?;
        Ok(values.iter().filter_map(Value::as_integer).map(i128::from).sum())
    }
}

fn info_field<'a>(info: &'a str, field: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).map(str::trim)
}

fn mget_of_range(key_format: &KeyFormat, from: u64, to: u64) -> Vec<u8> {
    let mut command = command_head(1 + (to - from) as usize, &["MGET"]);
    for n in from..to {
        append_key(&mut command, key_format, n);
    }
    command
}

/// The array header of a command of `arguments` words, and its first words.
fn command_head(arguments: usize, words: &[&str]) -> Vec<u8> {
    let mut head = format!("*{arguments}\r\n").into_bytes();
    head.extend(bulks(words));
    head
}

fn bulks(words: &[&str]) -> Vec<u8> {
    words.iter().flat_map(|word| format!("${}\r\n{word}\r\n", word.len()).into_bytes()).collect()
}

fn append_key(output: &mut Vec<u8>, format: &KeyFormat, n: u64) {
    append_numbered_bulk(output, format.before.as_bytes(), n, format.after.as_bytes());
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
    use super::super::target::Protocol;
    use super::super::workload::tests::{first_commands, workload};
    use super::*;

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
                Command::Pfadd,
                "*3\r\n$5\r\nPFADD\r\n$9\r\ncounter:0\r\n$19\r\n0000000000000abc-12\r\n".to_string(),
            ),
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
            let found = first_commands(&workload(command, Protocol::Resp, 1), 12, 1);
            assert_eq!(found, expected, "{}", command.name());
        }
    }

    #[test]
    fn keys_stay_below_their_number_and_lengths_follow_the_digits() {
        let commands = first_commands(&workload(Command::Incr, Protocol::Resp, 1_000), 0, 5_000);
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
    fn ranges_are_read_with_one_mget() {
        let format = KeyFormat::parse("k{n}").unwrap();
        assert_eq!(mget_of_range(&format, 9, 11), b"*3\r\n$4\r\nMGET\r\n$2\r\nk9\r\n$3\r\nk10\r\n");
    }

    #[test]
    fn info_is_read_by_whole_field_names() {
        let info = "# Server\r\nprocess_id:77\r\nprocess_id_other:1\r\ncheckpoints:3\r\n";
        assert_eq!(info_field(info, "process_id"), Some("77"));
        assert_eq!(info_field(info, "checkpoints"), Some("3"));
        assert_eq!(info_field(info, "process"), None);
    }
}

//! The same bytes to us and to a real Redis 7.0: what one accepts, refuses and says, the other must too.
//!
//! Needs `redis-server` 7.0 on the path. Without it the comparisons are skipped with a note, except in continuous
//! integration (`CI` is set), where its absence is a failure.

#![allow(clippy::unwrap_used, reason = "what a test cannot go on without")]

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command as Process, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use quipu_wire::commands::{self, ROWS, lookup};
use quipu_wire::resp::{
    Arguments, Decoder, Encoder, Pipeline, Protocol, ReplyDecoder, Value, encode_command, errors,
};
use quipu_wire::{glob, number};

/// How often to look for a starting server, and how long apart: ten seconds in all.
const START_ATTEMPTS: u32 = 1000;
const START_INTERVAL: Duration = Duration::from_millis(10);

/// A Redis of our own, on a socket in a folder of its own. It ends with the test.
struct Redis {
    process: Child,
    folder: PathBuf,
}

impl Redis {
    fn start() -> Option<Redis> {
        let version = Process::new("redis-server").arg("--version").output();
        let version =
            version.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
        if !version.contains("v=7.0.") {
            assert!(std::env::var_os("CI").is_none(), "redis-server 7.0 is required here, found {version:?}");
            eprintln!("skipped: no redis-server 7.0 on the path");
            return None;
        }
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let started = STARTED.fetch_add(1, Ordering::Relaxed);
        // Not below the target folder: the path of a socket is limited to 108 bytes.
        let folder = std::env::temp_dir().join(format!("quipu-redis-{}-{started}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let process = Process::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no"])
            .args(["--unixsocket", "redis.sock"])
            .current_dir(&folder)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let redis = Redis { process, folder };
        for _ in 0..START_ATTEMPTS {
            if UnixStream::connect(redis.folder.join("redis.sock")).is_ok() {
                return Some(redis);
            }
            std::thread::sleep(START_INTERVAL);
        }
        panic!("redis-server did not start");
    }

    /// Everything Redis answers to these bytes until one side ends the connection.
    fn answer(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = UnixStream::connect(self.folder.join("redis.sock")).unwrap();
        // A server that refuses early closes before it has read everything.
        let _ = stream.write_all(bytes);
        let _ = stream.shutdown(Shutdown::Write);
        let mut reply = Vec::new();
        match stream.read_to_end(&mut reply) {
            Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("{error}"),
            _ => reply,
        }
    }

    fn ask(&self, arguments: &[&[u8]]) -> Value {
        let mut bytes = Vec::new();
        encode_command(&mut bytes, arguments);
        let reply = self.answer(&bytes);
        ReplyDecoder::new().decode(&reply).unwrap().expect("a whole reply").0
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// What our parts say to the same bytes, behind the smallest possible server.
fn our_answer(bytes: &[u8]) -> Vec<u8> {
    let (mut buffer, mut out, mut pipeline) = (bytes.to_vec(), Vec::new(), Pipeline::new());
    let outcome = Decoder::default().decode(&mut buffer, &mut pipeline, usize::MAX);
    let mut encoder = Encoder::new(&mut out, Protocol::Resp2);
    for arguments in pipeline.commands(&buffer) {
        if commands::is_http_request(arguments.name()) {
            return out;
        }
        run(arguments, &mut encoder);
    }
    if let Err(error) = outcome {
        encoder.protocol_error(error);
    }
    out
}

fn run(arguments: Arguments<'_, '_>, encoder: &mut Encoder<'_>) {
    let Some(spec) = lookup(arguments.name()) else {
        return encoder.error(errors::unknown_command(arguments.name(), arguments.tail(1).iter()));
    };
    match (spec.name, arguments.get(1)) {
        _ if !spec.accepts(arguments.len()) => encoder.error(errors::wrong_arity(spec.name)),
        ("ping", None) => encoder.simple("PONG"),
        ("echo", Some(text)) => encoder.bulk(text),
        ("client" | "config" | "command", Some(unknown)) => {
            encoder.error(errors::unknown_subcommand(spec.name, unknown));
        }
        _ => panic!("the cases use no other command"),
    }
}

#[test]
fn the_same_bytes_get_the_same_answer() {
    let Some(redis) = Redis::start() else { return };
    let long = |start: &str, filler: &str, count: usize, end: &str| {
        format!("{start}{}{end}", filler.repeat(count)).into_bytes()
    };
    let mut cases: Vec<Vec<u8>> = [
        // Frames.
        "*1\r\n$4\r\nPING\r\n",
        "*0\r\n*-1\r\n*-5\r\n\r\n\n  \r\nPING\n",
        "*x\r\n",
        "*\r\n",
        "*01\r\n",
        "*+1\r\n",
        "*2147483648\r\n",
        "*1\r\nx4\r\n",
        "*1\r\n\r\n",
        "*1\r\n:4\r\n",
        "*1\r\n$-1\r\n",
        "*1\r\n$\r\n",
        "*1\r\n$04\r\n",
        "*1\r\n$536870913\r\n",
        "*1\r\n$4\r\nPINGxx*1\r\n$4\r\nPING\r\n",
        "*1\rX$4\rXPING\r\n",
        "*1\n$4\nPING\n",
        "*1\r\n$4\r\nPIN",
        "PING\r\n*1\r\n$4\r\nPING\r\n*1\r\nPING\r\n",
        "*2\r\n$0\r\n\r\n$0\r\n\r\n",
        // Lines.
        "PING\r\nping\nPiNg\r\n",
        "ECHO \"a\r\n",
        "ECHO \"a\"b\r\n",
        "ECHO 'a'b\r\n",
        "ECHO 'a\r\n",
        "ECHO a\"b c\"\r\n",
        "ECHO a'b \"c'\r\n",
        "ECHO \"\\x41\\x4g\\n\\r\\t\\a\\b\\q\\\\\\\"\"\r\n",
        "ECHO 'a\\'b\\n'\r\n",
        "ECHO \"\"\r\n",
        "ECHO \"a\"\x0b\r\n",
        "  ECHO\ta\t \r\n",
        "ECHO a\x0bb\r\n",
        "\x0bECHO \x0c a\r\n",
        "ECHO a\rb\r\n",
        "ECHO \u{fc}\r\n",
        "*1\r\n\u{fc}4\r\n",
        // Commands that are none.
        "foo\r\n",
        "foo a b\r\n",
        "*3\r\n$3\r\nfoo\r\n$3\r\na\r\n\r\n$3\r\na\0b\r\n",
        "\"f\\x00d\" x\r\n",
        "client|id\r\n",
        "ECHO\r\n",
        "EcHo a b\r\n",
        "client\r\n",
        "ClIent FOO\r\n",
        "config foo bar\r\n",
        "command foo\r\n",
        "*2\r\n$6\r\nclient\r\n$3\r\na\nb\r\n",
        "client \"a\\x00b\"\r\n",
        "POST / HTTP/1.1\r\nPING\r\n",
        "host: example\r\nPING\r\n",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into();
    cases.extend([
        long("", "a", 65536, ""),
        long("", "a", 65537, ""),
        long("*", "1", 65535, ""),
        long("*", "1", 65536, ""),
        long("*1\r\n$", "1", 65535, ""),
        long("*1\r\n$", "1", 65536, ""),
        long("*1\r\n", "x", 65537, ""),
        long("", "f", 200, "\r\n"),
        long("client ", "x", 200, "\r\n"),
        long("foo", " abc", 100, "\r\n"),
    ]);
    // Where the quoted arguments are cut.
    cases.extend((120..132).map(|length| long("foo ", "a", length, " bb cc\r\n")));
    for bytes in cases {
        let shown = bytes[..bytes.len().min(60)].escape_ascii().to_string();
        let (ours, theirs) = (our_answer(&bytes), redis.answer(&bytes));
        assert_eq!(ours.escape_ascii().to_string(), theirs.escape_ascii().to_string(), "to {shown}");
    }
}

#[test]
fn the_table_of_commands_is_theirs() {
    let Some(redis) = Redis::start() else { return };
    // Subcommands that Redis 7.0 does not have yet.
    let is_newer =
        |name: &str| ["increx", "client|setinfo", "client|no-touch", "cluster|myshardid"].contains(&name);
    for spec in ROWS.iter().filter(|spec| spec.group != "quipu" && !is_newer(spec.name)) {
        for (protocol, hello) in [(Protocol::Resp2, "2"), (Protocol::Resp3, "3")] {
            let mut bytes = Vec::new();
            spec.encode_info(&mut Encoder::new(&mut bytes, protocol));
            let (ours, _) = ReplyDecoder::new().decode(&bytes).unwrap().unwrap();
            let answer = redis.answer(format!("hello {hello}\ncommand info {}\n", spec.name).as_bytes());
            let greeting = ReplyDecoder::new().decode(&answer).unwrap().unwrap().1;
            let (theirs, _) = ReplyDecoder::new().decode(&answer[greeting..]).unwrap().unwrap();
            let theirs = &theirs.as_elements().unwrap()[0];
            // All but the subcommands, which have rows of their own. Of PFCOUNT's keys Redis notes that it may write; PFMERGE's are of two sorts
            // there, and here, where a row speaks of one, of the first.
            let compared = if ["pfcount", "pfmerge"].contains(&spec.name) { 8 } else { 9 };
            let (ours, theirs) = (ours.as_elements().unwrap(), theirs.as_elements().unwrap());
            assert_eq!(ours[..compared], theirs[..compared], "{}", spec.name);
        }
        if spec.name.contains('|') {
            continue;
        }
        let docs = redis.ask(&[b"COMMAND", b"DOCS", spec.name.as_bytes()]);
        let docs = docs.as_elements().unwrap()[1].as_elements().unwrap();
        let documented = |field: &str| {
            let place = docs.iter().position(|value| value.as_bytes() == Some(field.as_bytes())).unwrap();
            String::from_utf8(docs[place + 1].as_bytes().unwrap().to_vec()).unwrap()
        };
        assert_eq!((spec.since, spec.group), (&*documented("since"), &*documented("group")), "{}", spec.name);
    }
}

#[test]
fn the_error_texts_are_theirs() {
    let Some(redis) = Redis::start() else { return };
    let cases: &[(&str, &str)] = &[
        ("set text abc\nincr text", errors::NOT_AN_INTEGER),
        ("incrby a 01", errors::NOT_AN_INTEGER),
        ("set big 9223372036854775807\nincr big", errors::WOULD_OVERFLOW),
        ("decrby a -9223372036854775808", errors::DECREMENT_WOULD_OVERFLOW),
        ("set a 1 nx xx", errors::SYNTAX),
        ("lpush list a\nincr list", errors::WRONG_TYPE),
        ("auth secret", errors::NO_PASSWORD_CONFIGURED),
        ("auth nobody secret", errors::WRONG_PASSWORD),
        ("hello 4", errors::NO_PROTOCOL),
        ("hello x", errors::PROTOCOL_NOT_AN_INTEGER),
        ("select 99", errors::DB_OUT_OF_RANGE),
        ("select 2147483648", errors::OUT_OF_INT_RANGE),
        ("scan x", errors::INVALID_CURSOR),
        ("multi\nmulti", errors::NESTED_MULTI),
        ("exec", errors::EXEC_WITHOUT_MULTI),
        ("discard", errors::DISCARD_WITHOUT_MULTI),
        ("multi\nwatch a", errors::WATCH_INSIDE_MULTI),
        ("multi\nget\nexec", errors::EXEC_ABORT),
        ("expire a 1 nx gt", errors::EXPIRE_NX_CONFLICT),
        ("expire a 1 gt lt", errors::EXPIRE_GT_LT_CONFLICT),
        ("set a 1 ex 0", &errors::invalid_expire_time("set")),
        ("set a 1\ngetex a px -1", &errors::invalid_expire_time("getex")),
        ("client setname", &errors::wrong_arity("client|setname")),
        ("acl setuser default on >secret\nreset\nget a", errors::NO_AUTH),
    ];
    for (lines, expected) in cases {
        let answer = redis.answer(format!("{lines}\n").as_bytes());
        let answer = String::from_utf8(answer).unwrap();
        let last = answer.trim_end().rsplit("\r\n").next().unwrap();
        assert_eq!(last, format!("-{expected}"), "{lines:?}");
    }
}

/// A small deterministic generator: the cases are many, and the same on every run.
fn words(alphabet: &[u8], max_length: usize, count: usize) -> Vec<Vec<u8>> {
    let mut state: u64 = 0x2545_f491_4f6c_dd1d;
    let mut draw = |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) as usize % below
    };
    (0..count)
        .map(|_| {
            let length = 1 + draw(max_length);
            (0..length).map(|_| alphabet[draw(alphabet.len())]).collect()
        })
        .collect()
}

#[test]
fn patterns_match_the_same_keys() {
    let Some(redis) = Redis::start() else { return };
    let mut keys = words(b"ab-]^\\*", 4, 300);
    keys.sort();
    keys.dedup();
    let mut bytes = Vec::new();
    keys.iter().for_each(|key| encode_command(&mut bytes, &[b"SET", key, b"1"]));
    redis.answer(&bytes);

    let patterns = words(b"aab*?[]^-\\", 8, 4000);
    bytes.clear();
    patterns.iter().for_each(|pattern| encode_command(&mut bytes, &[b"KEYS", pattern]));
    let replies = redis.answer(&bytes);
    let (mut decoder, mut rest) = (ReplyDecoder::new(), replies.as_slice());
    for pattern in &patterns {
        let (reply, length) = decoder.decode(rest).unwrap().expect("a reply for every pattern");
        rest = &rest[length..];
        let mut theirs: Vec<&[u8]> =
            reply.as_elements().unwrap().iter().filter_map(Value::as_bytes).collect();
        theirs.sort();
        let ours: Vec<&[u8]> =
            keys.iter().map(Vec::as_slice).filter(|key| glob::matches(pattern, key)).collect();
        assert_eq!(ours, theirs, "{}", pattern.escape_ascii());
    }
}

#[test]
fn numbers_are_read_the_same() {
    let Some(redis) = Redis::start() else { return };
    let mut texts = words(b"-+0019 ", 4, 300);
    for edge in [
        "",
        "-",
        "9223372036854775807",
        "9223372036854775808",
        "-9223372036854775808",
        "-9223372036854775809",
    ] {
        texts.push(edge.into());
    }
    for text in texts {
        let reply = redis.ask(&[b"GETRANGE", b"nothing", &text, b"0"]);
        assert_eq!(number::parse_i64(&text).is_some(), reply.as_error().is_none(), "{}", text.escape_ascii());
    }
}

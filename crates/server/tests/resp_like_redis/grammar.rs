//! From a command's name to a whole command: what its grammar allows, and what it does not.

use quipu_wire::commands::{Keys, lookup};
use quipu_wire::dump::write_integer;
use quipu_wire::number::parse_i64;

use super::lines::{CLIENT, CLUSTER, COMMAND, CONFIG, LATENCY, SLOWLOG};
use super::script::Word;
use super::vocabulary::Draw;

/// Names that occur more often than others, so that most of a script happens to counters.
const FREQUENT: &[&str] = &[
    "incr", "decr", "incrby", "decrby", "get", "set", "set", "del", "expire", "ttl", "getex", "mget", "mset",
    "exists",
];

/// Commands that would end the server or the conversation, or make it wait; and those that scripts place by themselves.
const UNPLAYED: &[&str] = &[
    "quit",
    "shutdown",
    "monitor",
    "subscribe",
    "psubscribe",
    "ssubscribe",
    "debug",
    "sync",
    "psync",
    "replicaof",
    "slaveof",
    "save",
    "bgsave",
    "bgrewriteaof",
    "failover",
    "acl",
    "multi",
    "exec",
    "discard",
    "watch",
    "scan",
];

/// Whether commands of this name are drawn.
pub fn is_played(name: &str) -> bool {
    !UNPLAYED.contains(&name)
}

/// Some command of those that both servers have.
pub fn any(draw: &mut Draw, shared: &[&'static str]) -> Vec<Word> {
    match draw.within(0..100) {
        0 => {
            let mut words = draw.keys();
            words.truncate(4);
            words.insert(0, draw.word(&["NOSUCH", "GETT", "", "client|id", "in cr", "\r\n"]));
            words
        }
        1..60 => {
            let name = *draw.pick(FREQUENT);
            command(draw, name)
        }
        _ => {
            let name = *draw.pick(shared);
            command(draw, name)
        }
    }
}

/// A command of this name. About one in ten is spoiled.
pub fn command(draw: &mut Draw, name: &str) -> Vec<Word> {
    loop {
        let mut words = vec![draw.cased(&name.to_ascii_uppercase())];
        words.extend(arguments(draw, name));
        // What is free of keys and numbers has its errors in its lists.
        if draw.one_in(10) {
            spoil(draw, name, &mut words);
        }
        if lifetimes_ms(&words).into_iter().all(|lifetime_ms| draw.is_fresh_lifetime(lifetime_ms)) {
            return words;
        }
    }
}

/// Whether a command may create a counter that has expired.
pub fn may_be_born_expired(words: &[Word]) -> bool {
    words[0].eq_ignore_ascii_case(b"SET")
        && words.iter().any(|word| word.to_ascii_lowercase().ends_with(b"xat"))
}

/// One word too many, too few, or another.
fn spoil(draw: &mut Draw, name: &str, words: &mut Vec<Word>) {
    // Redis would keep what it was told, or wait for replicas that never come.
    let is_delicate = ["config", "wait"].contains(&name);
    let at = if is_delicate { 0 } else { draw.within(0..words.len()) };
    match draw.within(0..5) {
        _ if draw.is_tame() => words.truncate(at.max(1)),
        0 if at > 0 => drop(words.remove(at)),
        1 => words.truncate(at.max(1)),
        2 if at > 0 => words.insert(at, words[at].clone()),
        3 if at > 0 => words[at] = draw.number(),
        _ if !is_delicate => {
            let word =
                if draw.one_in(2) { draw.number() } else { draw.word(&["FOO", "NX", "EX", "GET", ""]) };
            words.push(word);
        }
        _ => {}
    }
}

fn arguments(draw: &mut Draw, name: &str) -> Vec<Word> {
    match name {
        "get" | "incr" | "decr" | "getdel" | "type" | "ttl" | "pttl" | "expiretime" | "pexpiretime"
        | "persist" | "dump" | "strlen" => vec![draw.key()],
        "incrby" | "decrby" => vec![draw.key(), draw.number()],
        "mget" | "del" | "unlink" | "exists" | "touch" | "watch" => draw.keys(),
        "set" => set(draw),
        "setnx" | "getset" => vec![draw.key(), draw.value()],
        "setex" => vec![draw.key(), draw.lifetime(1000), draw.value()],
        "psetex" => vec![draw.key(), draw.lifetime(1), draw.value()],
        "mset" | "msetnx" => draw.keys().into_iter().flat_map(|key| [key, draw.value()]).collect(),
        "getex" => getex(draw),
        "expire" => expire(draw, |draw| draw.lifetime(1000)),
        "pexpire" => expire(draw, |draw| draw.lifetime(1)),
        "expireat" => expire(draw, |draw| draw.moment(1000)),
        "pexpireat" => expire(draw, |draw| draw.moment(1)),
        "keys" => vec![draw.pattern()],
        "rename" | "renamenx" => vec![draw.key(), draw.key()],
        "copy" => with_options(draw, &["REPLACE", "REPLACE REPLACE", "DB 0", "DB 1", "DB", "FOO"], 2),
        "flushall" | "flushdb" => lines(draw, &["", "", "ASYNC", "SYNC", "FOO", "ASYNC SYNC"]),
        "ping" => {
            if draw.one_in(2) {
                vec![]
            } else {
                vec![draw.text()]
            }
        }
        "echo" => vec![draw.text()],
        "select" => lines(draw, &["0", "0", "1", "-1", "99999999999", "abc"]),
        "auth" => lines(draw, &["x", "default x", "foo x", "a b c"]),
        "hello" => hello(draw),
        "client" => client(draw),
        "config" => lines(draw, CONFIG),
        "command" => lines(draw, COMMAND),
        "info" => lines(draw, &["", "server", "nosuch", "keyspace clients", "all", "everything", "default"]),
        "object" => object(draw),
        "memory" => memory(draw),
        "wait" => lines(draw, &["0 0", "0 10", "1 1", "-1 0", "0 -1", "abc 0", "0 abc", "0"]),
        "cluster" => lines(draw, CLUSTER),
        "latency" => lines(draw, LATENCY),
        "slowlog" => lines(draw, SLOWLOG),
        "pfadd" => draw.keys(),
        "pfcount" | "pfmerge" => draw.keys(),
        "restore" => restore(draw),
        "incrbyfloat" => vec![draw.key(), draw.number()],
        "getrange" | "substr" => vec![draw.key(), draw.number(), draw.number()],
        _ => generic(draw, name),
    }
}

/// What can be said of a command without knowing it: its keys, and numbers for the rest.
fn generic(draw: &mut Draw, name: &str) -> Vec<Word> {
    let Some(spec) = lookup(name.as_bytes()) else { return vec![] };
    let least = usize::from(spec.arity.unsigned_abs());
    let count = if spec.arity < 0 { least + draw.within(0..2) } else { least };
    let keys: Vec<usize> = match spec.keys {
        Keys { first: 0, .. } => vec![],
        _ => spec.key_positions(count).collect(),
    };
    (1..count).map(|at| if keys.contains(&at) { draw.key() } else { draw.number() }).collect()
}

fn set(draw: &mut Draw) -> Vec<Word> {
    let mut words = vec![draw.key(), draw.value()];
    while draw.one_in(2) {
        words.extend(set_option(draw));
    }
    words
}

fn set_option(draw: &mut Draw) -> Vec<Word> {
    let option = *draw.pick(&["NX", "XX", "GET", "KEEPTTL", "EX", "PX", "EXAT", "PXAT", "PERSIST", "FOO"]);
    let mut words = vec![draw.cased(option)];
    words.extend(time_of(draw, option));
    words
}

fn getex(draw: &mut Draw) -> Vec<Word> {
    let mut words = vec![draw.key()];
    let mut more = draw.within(0..4) > 0;
    while more {
        let option = *draw.pick(&["EX", "PX", "EXAT", "PXAT", "PERSIST", "PERSIST", "KEEPTTL"]);
        words.push(draw.cased(option));
        words.extend(time_of(draw, option));
        more = draw.one_in(5);
    }
    words
}

/// The argument of an option, if it takes one. Now and then it is forgotten.
fn time_of(draw: &mut Draw, option: &str) -> Option<Word> {
    if draw.one_in(20) {
        return None;
    }
    match option {
        "EX" => Some(draw.lifetime(1000)),
        "PX" => Some(draw.lifetime(1)),
        "EXAT" => Some(draw.moment(1000)),
        "PXAT" => Some(draw.moment(1)),
        _ => None,
    }
}

fn expire(draw: &mut Draw, time: impl Fn(&mut Draw) -> Word) -> Vec<Word> {
    let mut words = vec![draw.key(), time(draw)];
    while draw.one_in(3) {
        words.push(draw.word(&["NX", "XX", "GT", "LT", "GT", "LT", "FOO"]));
    }
    words
}

fn hello(draw: &mut Draw) -> Vec<Word> {
    let mut words = lines(draw, &["", "2", "3", "2", "3", "3", "1", "4", "abc", "03", "", "-1"]);
    while draw.one_in(4) {
        let option =
            ["SETNAME me", "SETNAME", "AUTH default x", "AUTH foo bar", "AUTH a", "FOO", "SETNAME a\0b"];
        words.extend(lines(draw, &option));
    }
    words
}

fn client(draw: &mut Draw) -> Vec<Word> {
    match draw.within(0..4) {
        0 => vec![draw.cased("SETNAME"), draw.text()],
        _ => lines(draw, CLIENT),
    }
}

fn object(draw: &mut Draw) -> Vec<Word> {
    let mut words =
        vec![draw.word(&["ENCODING", "ENCODING", "FREQ", "IDLETIME", "REFCOUNT", "FOO"]), draw.key()];
    if draw.one_in(8) {
        words.pop();
    }
    words
}

fn memory(draw: &mut Draw) -> Vec<Word> {
    if draw.one_in(3) {
        return lines(draw, &["STATS", "STATS x", "DOCTOR", "PURGE", "PURGE x", "USAGE", "HELP", "FOO"]);
    }
    let mut words = vec![draw.cased("USAGE"), draw.key()];
    if draw.one_in(3) {
        words.push(draw.word(&["SAMPLES", "SAMPLES", "FOO"]));
        words.push(draw.number());
    }
    words
}

/// What DUMP gives, and what it does not.
fn restore(draw: &mut Draw) -> Vec<Word> {
    let mut payload = Vec::new();
    if draw.one_in(8) {
        payload = draw.text();
    } else {
        let value = draw.integer();
        write_integer(&mut payload, parse_i64(&value).expect("an integer"));
        if !draw.is_tame() && draw.one_in(6) {
            let at = draw.within(0..payload.len());
            payload[at] ^= 1 << draw.within(0..8);
        }
    }
    let is_absolute = draw.one_in(3);
    let time = match draw.within(0..3) {
        0 => b"0".to_vec(),
        _ if is_absolute => draw.moment(1),
        _ => draw.lifetime(1),
    };
    let mut words = vec![draw.key(), time, payload];
    if is_absolute {
        words.push(draw.cased("ABSTTL"));
    }
    while draw.one_in(2) {
        let options =
            ["REPLACE", "REPLACE", "IDLETIME 5", "IDLETIME -1", "IDLETIME", "FREQ 256", "FREQ 7", "FOO"];
        words.extend(lines(draw, &options));
    }
    words
}

/// Some keys and then perhaps one of the options.
fn with_options(draw: &mut Draw, options: &[&str], keys: usize) -> Vec<Word> {
    let mut words: Vec<Word> = (0..keys).map(|_| draw.key()).collect();
    if draw.one_in(2) {
        words.extend(lines(draw, options));
    }
    words
}

/// One of the lines, word by word.
fn lines(draw: &mut Draw, lines: &[&str]) -> Vec<Word> {
    let line = *draw.pick(lines);
    line.split_whitespace().map(|word| if word == "''" { vec![] } else { draw.cased(word) }).collect()
}

/// The lifetimes from now that a command would give, in milliseconds.
fn lifetimes_ms(words: &[Word]) -> Vec<i64> {
    let name = words[0].to_ascii_lowercase();
    let number = |at: usize, unit_ms: i64| {
        words.get(at).and_then(|word| parse_i64(word)).map(|number| number.saturating_mul(unit_ms))
    };
    match name.as_slice() {
        b"expire" | b"setex" => number(2, 1000).into_iter().collect(),
        b"pexpire" | b"psetex" | b"restore" => number(2, 1).into_iter().collect(),
        b"set" | b"getex" => {
            let after = |option: &str, unit_ms| {
                let places = (0..words.len()).filter(|at| words[*at].eq_ignore_ascii_case(option.as_bytes()));
                places.filter_map(|at| number(at + 1, unit_ms)).collect::<Vec<i64>>()
            };
            [after("EX", 1000), after("PX", 1)].concat()
        }
        _ => vec![],
    }
}

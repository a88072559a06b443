//! The same commands to quipu and to a real Redis: the replies must be the same bytes, in both protocols.

mod resp_support;

use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use resp_support::{Client, Quipu, Redis, same_reply};

/// Stories of commands, each on new connections and an empty keyspace. Values are integers, since others are refused
/// here.
const STORIES: &[&[&str]] = &[
    // Reading and writing.
    &[
        "GET a",
        "SET a 1",
        "GET a",
        "set A 2",
        "get A",
        "GET a",
        "TYPE a",
        "TYPE nosuch",
        "DBSIZE",
        "EXISTS a a nosuch A",
    ],
    &["SET a 1", "SET a 2 NX", "GET a", "SET a 3 XX", "GET a", "SET b 4 XX", "GET b", "SET b 5 NX", "GET b"],
    &[
        "SET a 1 GET",
        "SET a 2 GET",
        "SET a 3 NX GET",
        "GET a",
        "SET b 1 XX GET",
        "GET b",
        "SET b 2 NX GET",
        "GET b",
    ],
    &[
        "SET a 1 EX 100",
        "TTL a",
        "SET a 2 KEEPTTL",
        "TTL a",
        "SET a 3",
        "TTL a",
        "PTTL a",
        "TTL nosuch",
        "PTTL nosuch",
    ],
    &[
        "SET a 1 EXAT 99999999999",
        "EXPIRETIME a",
        "PEXPIRETIME a",
        "SET a 1 PXAT 99999999999999",
        "PEXPIRETIME a",
        "EXPIRETIME a",
    ],
    &["SET a 1 PXAT 99999999999500", "EXPIRETIME a", "SET a 1 PXAT 99999999999499", "EXPIRETIME a"],
    &["SET a 1 EXAT 1", "GET a", "EXISTS a", "DBSIZE", "SET a 1 PXAT 1", "EXISTS a"],
    &[
        "SET a",
        "SET",
        "SET a 1 FOO",
        "SET a 1 EX",
        "SET a 1 EX 0",
        "SET a 1 EX -1",
        "SET a 1 EX abc",
        "SET a 1 PX 0",
        "GET a",
    ],
    &[
        "SET a 1 EX 10 PX 10",
        "SET a 1 EX 10 KEEPTTL",
        "SET a 1 KEEPTTL EX 10",
        "SET a 1 NX XX",
        "SET a 1 XX NX",
        "GET a",
    ],
    &[
        "SET a 1 EX 10 EX 100",
        "TTL a",
        "SET a 2 XX XX",
        "SET a 3 GET GET",
        "SET a 3 KEEPTTL KEEPTTL",
        "SET a 1 ex 50 nx",
    ],
    &[
        "SET a 1 EX 9223372036854775807",
        "SET a 1 EX 9223372036854775",
        "SET a 1 PX 9223372036854775807",
        "SET a 1 EX 99999999999999999999",
        "EXISTS a",
    ],
    &[
        "SET a -1",
        "GET a",
        "SET a 9223372036854775807",
        "GET a",
        "SET a -9223372036854775808",
        "GET a",
        "SET a 0",
        "GET a",
    ],
    &[
        "SETNX a 1",
        "SETNX a 2",
        "GET a",
        "SETNX a",
        "SETEX a 100 5",
        "TTL a",
        "GET a",
        "SETEX a 0 5",
        "SETEX a x 5",
        "SETEX a 5",
    ],
    &["PSETEX a 100000 7", "GET a", "TTL a", "PSETEX a -1 7", "PSETEX a abc 7", "GET a"],
    &["GETSET a 1", "GETSET a 2", "GET a", "SET a 1 EX 100", "GETSET a 5", "TTL a", "GETSET a"],
    &["GETDEL a", "SET a 5", "GETDEL a", "GET a", "GETDEL", "GETDEL a b"],
    &[
        "SET a 5",
        "GETEX a",
        "TTL a",
        "GETEX a EX 100",
        "TTL a",
        "GETEX a PERSIST",
        "TTL a",
        "GETEX a PXAT 99999999999999",
        "PEXPIRETIME a",
    ],
    &[
        "SET a 5",
        "GETEX a EX",
        "GETEX a FOO",
        "GETEX a PERSIST EX 1",
        "GETEX a EX 1 PERSIST",
        "GETEX a EX 0",
        "GETEX a EX abc",
        "GETEX a EX 10 PX 10",
        "TTL a",
    ],
    &["SET a 5", "GETEX a EXAT 1", "EXISTS a", "GETEX nosuch EX 10", "GETEX"],
    &[
        "MSET a 1 b 2 c 3",
        "MGET a b c nosuch a",
        "MGET",
        "MSET a",
        "MSET a 1 b",
        "MSET",
        "MSET a 1 a 2",
        "GET a",
        "DBSIZE",
    ],
    &["SET a 1 EX 100", "MSET a 2", "TTL a"],
    // Counting.
    &[
        "INCR a",
        "INCR a",
        "DECR a",
        "DECR a",
        "DECR a",
        "GET a",
        "INCRBY a 10",
        "DECRBY a 3",
        "INCRBY a -5",
        "DECRBY a -5",
        "GET a",
    ],
    &["SET a 9223372036854775807", "INCR a", "GET a", "INCRBY a 1", "DECRBY a -1", "DECR a", "INCR a"],
    &[
        "SET a -9223372036854775808",
        "DECR a",
        "DECRBY a 1",
        "INCRBY a -1",
        "GET a",
        "DECRBY a -9223372036854775808",
    ],
    &[
        "INCRBY a 9223372036854775807",
        "INCRBY a -9223372036854775808",
        "GET a",
        "DECRBY b -9223372036854775808",
        "EXISTS b",
    ],
    &[
        "INCRBY a abc",
        "INCRBY a 1.5",
        "INCRBY a ''",
        "INCRBY a 9223372036854775808",
        "INCRBY a 01",
        "INCRBY a +1",
        "INCRBY a '_1'",
        "EXISTS a",
    ],
    &[
        "DECRBY a abc",
        "DECRBY a 9223372036854775808",
        "INCR",
        "INCR a b",
        "INCRBY a",
        "DECR",
        "DECRBY a 1 2",
        "incr A",
        "InCrBy A 5",
    ],
    &["SET a 5 EX 100", "INCR a", "TTL a", "INCRBY a 5", "TTL a", "GET a"],
    // Keys.
    &[
        "MSET a 1 b 2 c 3",
        "DEL a nosuch b b",
        "EXISTS a b c",
        "UNLINK c",
        "DBSIZE",
        "DEL",
        "UNLINK",
        "EXISTS",
        "DEL nosuch",
    ],
    &[
        "SET a 1",
        "EXPIRE a 100",
        "TTL a",
        "EXPIRE nosuch 100",
        "PERSIST a",
        "TTL a",
        "PERSIST a",
        "PERSIST nosuch",
    ],
    &[
        "SET a 1",
        "EXPIRE a 100 XX",
        "TTL a",
        "EXPIRE a 100 NX",
        "TTL a",
        "EXPIRE a 200 NX",
        "TTL a",
        "EXPIRE a 200 XX",
        "TTL a",
    ],
    &[
        "SET a 1",
        "EXPIRE a 100 GT",
        "TTL a",
        "EXPIRE a 100 LT",
        "TTL a",
        "EXPIRE a 50 GT",
        "TTL a",
        "EXPIRE a 200 GT",
        "TTL a",
        "EXPIRE a 300 LT",
        "TTL a",
        "EXPIRE a 20 LT",
        "TTL a",
    ],
    &[
        "SET a 1",
        "EXPIRE a 100 XX GT",
        "EXPIRE a 100 XX LT",
        "TTL a",
        "EXPIRE a 100",
        "EXPIRE a 200 XX GT",
        "TTL a",
        "EXPIRE a 100 XX LT",
        "TTL a",
    ],
    &[
        "SET a 1",
        "EXPIRE a 1 NX XX",
        "EXPIRE a 1 NX GT",
        "EXPIRE a 1 GT LT",
        "EXPIRE a 1 FOO",
        "EXPIRE a abc",
        "EXPIRE a",
        "EXPIRE a 1 NX NX",
        "TTL nosuch",
    ],
    &[
        "SET a 1",
        "EXPIRE a 0",
        "EXISTS a",
        "SET a 1",
        "EXPIRE a -1",
        "EXISTS a",
        "SET a 1",
        "EXPIREAT a 1",
        "EXISTS a",
        "SET a 1",
        "PEXPIREAT a -5",
        "EXISTS a",
    ],
    &[
        "SET a 1",
        "EXPIREAT a 99999999999",
        "EXPIRETIME a",
        "PEXPIREAT a 99999999999123",
        "PEXPIRETIME a",
        "PEXPIRE a 100000",
        "TTL a",
        "EXPIRETIME nosuch",
        "PEXPIRETIME nosuch",
        "SET b 1",
        "EXPIRETIME b",
        "PEXPIRETIME b",
    ],
    &[
        "SET a 1",
        "EXPIRE a 9223372036854775807",
        "PEXPIRE a 9223372036854775807",
        "EXPIREAT a 9223372036854775807",
        "EXPIRE a -9223372036854775808",
        "EXISTS a",
    ],
    &["SET a 1 EX 100", "PERSIST a", "EXPIRE a 10 GT", "TTL a"],
    &[
        "MSET a 1 b 2",
        "FLUSHALL",
        "DBSIZE",
        "FLUSHALL ASYNC",
        "FLUSHALL SYNC",
        "FLUSHDB",
        "FLUSHDB ASYNC",
        "FLUSHALL FOO",
        "FLUSHALL ASYNC SYNC",
        "FLUSHDB FOO",
    ],
    // Walking: the order of keys is nobody's promise, so one key.
    &[
        "SCAN 0",
        "SET user:1 1",
        "SCAN 0 COUNT 1000",
        "SCAN 0 MATCH user:* COUNT 1000",
        "SCAN 0 MATCH x* COUNT 1000",
        "SCAN 0 TYPE string COUNT 1000",
        "SCAN 0 COUNT 1000 TYPE list",
        "KEYS *",
        "KEYS u*",
        "KEYS x",
        "KEYS user:1",
        "KEYS [tu]ser:?",
    ],
    &[
        "SCAN",
        "SCAN abc",
        "SCAN 0 COUNT",
        "SCAN 0 COUNT 0",
        "SCAN 0 COUNT -1",
        "SCAN 0 COUNT abc",
        "SCAN 0 FOO bar",
        "SCAN 0 MATCH",
        "KEYS",
        "KEYS a b",
    ],
    // Transactions.
    &["MULTI", "SET a 1", "INCR a", "GET a", "EXEC", "GET a", "EXEC", "DISCARD", "MULTI", "EXEC"],
    &["MULTI", "INCR a", "DISCARD", "GET a", "MULTI", "MULTI", "INCR a", "EXEC", "GET a"],
    &["MULTI", "INCR a", "NOSUCH", "INCR a", "EXEC", "GET a", "MULTI", "INCR", "INCR a", "EXEC", "GET a"],
    &[
        "SET a 9223372036854775807",
        "MULTI",
        "INCR a",
        "INCR b",
        "INCRBY b x",
        "GET b",
        "PING",
        "EXEC",
        "GET b",
    ],
    &[
        "MULTI",
        "PING",
        "ECHO hi",
        "DBSIZE",
        "MGET a b",
        "DEL a b",
        "SET a 1 EX abc",
        "SELECT 0",
        "EXISTS a a",
        "EXEC",
    ],
    &["MULTI", "SET a 1 GET", "SET a 2 NX", "EXPIRE a 100", "TTL a", "FLUSHALL", "GET a", "EXEC", "UNWATCH"],
    &["MULTI", "WATCH a", "INCR a", "EXEC", "MULTI FOO", "EXEC FOO", "DISCARD FOO"],
    &["MULTI", "INCR a", "RESET", "EXEC", "GET a", "RESET FOO"],
    // The connection.
    &[
        "PING",
        "PING hi",
        "PING a b",
        "ECHO hi",
        "ECHO",
        "ECHO a b",
        "ping",
        "SELECT 0",
        "SELECT abc",
        "SELECT 99999",
        "SELECT -1",
        "SELECT",
    ],
    &[
        "AUTH",
        "AUTH x",
        "AUTH default x",
        "AUTH foo x",
        "AUTH a b c",
        "HELLO 4",
        "HELLO abc",
        "HELLO 2 FOO",
        "HELLO 3 AUTH foo bar",
        "HELLO 3 SETNAME",
        "HELLO 3 AUTH a",
        "HELLO 3 SETNAME 'a_b'",
        "PING",
    ],
    &[
        "CLIENT",
        "CLIENT FOO",
        "CLIENT GETNAME",
        "CLIENT SETNAME me",
        "CLIENT GETNAME",
        "CLIENT SETNAME 'a_b'",
        "CLIENT SETNAME ''",
        "CLIENT GETNAME",
        "CLIENT ID x",
        "CLIENT SETNAME",
    ],
    &[
        "CLIENT NO-EVICT ON",
        "CLIENT NO-EVICT off",
        "CLIENT NO-EVICT x",
        "CLIENT NO-EVICT",
        "CLIENT REPLY FOO",
        "CLIENT REPLY ON",
        "CLIENT REPLY",
        "CLIENT INFO x",
    ],
    &[
        "CLIENT KILL",
        "CLIENT KILL ID 99999",
        "CLIENT KILL ID 0",
        "CLIENT KILL ID abc",
        "CLIENT KILL 1.2.3.4:5",
        "CLIENT KILL ADDR 1.2.3.4:5",
        "CLIENT KILL ID 99999 FOO",
        "CLIENT KILL TYPE foo",
        "CLIENT KILL TYPE pubsub",
        "CLIENT KILL USER foo",
        "CLIENT KILL ID 99999 SKIPME x",
        "CLIENT LIST FOO",
        "CLIENT LIST TYPE foo",
        "CLIENT LIST TYPE pubsub",
        "CLIENT LIST ID 99999",
        "CLIENT LIST ID abc",
    ],
    &[
        "CONFIG",
        "CONFIG GET",
        "CONFIG FOO",
        "CONFIG GET maxmemory",
        "CONFIG GET nosuch",
        "CONFIG GET save",
        "CONFIG GET save*",
        "CONFIG GET timeout",
        "CONFIG GET maxmemory-pol*",
    ],
    &[
        "CONFIG SET",
        "CONFIG SET maxmemory",
        "CONFIG SET nosuch 1",
        "CONFIG SET maxmemory 0",
        "CONFIG SET timeout 0",
        "CONFIG SET databases 5",
        "CONFIG SET maxclients abc",
        "CONFIG SET maxclients 100 maxclients 200",
        "CONFIG RESETSTAT",
        "CONFIG REWRITE",
        "CONFIG SET save ''",
    ],
    &[
        "COMMAND COUNT x",
        "COMMAND FOO",
        "COMMAND INFO nosuch",
        "COMMAND INFO nosuch1 nosuch2",
        "COMMAND DOCS nosuch",
        "COMMAND GETKEYS",
        "COMMAND GETKEYS GET a",
        "COMMAND GETKEYS MSET a 1 b 2",
        "COMMAND GETKEYS DEL a b c",
        "COMMAND GETKEYS nosuch a",
        "COMMAND GETKEYS GET a b",
        "COMMAND GETKEYS PING a",
        "COMMAND LIST FOO",
        "COMMAND LIST FILTERBY FOO a",
        "COMMAND LIST FILTERBY PATTERN nosuch*",
        "COMMAND LIST FILTERBY MODULE foo",
    ],
    &[
        "NOSUCH",
        "NOSUCH a b",
        "nosuch 'a_b' c",
        "GETT a",
        "TIME x",
        "DBSIZE x",
        "TYPE",
        "TTL a b",
        "INFO nosuchsection",
    ],
    &["CLIENT SETNAME me", "RESET", "CLIENT GETNAME", "PING"],
];

fn both(quipu: &Quipu, redis: &Redis, protocol: &str) -> (Client, Client) {
    let (mut ours, mut theirs) = (quipu.client(), redis.client());
    for client in [&mut ours, &mut theirs] {
        client.ask(&format!("HELLO {protocol}"));
        assert_eq!(client.ask("FLUSHALL"), "+OK|");
    }
    (ours, theirs)
}

#[test]
fn stories_are_answered_as_by_redis() {
    let (quipu, redis) = (Quipu::start(), Redis::start());
    let mut differences = Vec::new();
    for protocol in ["2", "3"] {
        for story in STORIES {
            let (mut ours, mut theirs) = both(&quipu, &redis, protocol);
            for line in *story {
                let (our, their) = (ours.ask(line), theirs.ask(line));
                if !same_reply(line, &our, &their) {
                    differences.push(format!(
                        "RESP{protocol} {line}\n    quipu {our}\n    redis {their}   in {story:?}"
                    ));
                }
            }
        }
    }
    assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
}

/// A story as one write: the same bytes come back, in the same order.
#[test]
fn pipelines_are_answered_as_by_redis() {
    let (quipu, redis) = (Quipu::start(), Redis::start());
    for protocol in ["2", "3"] {
        for story in STORIES {
            let (mut ours, mut theirs) = both(&quipu, &redis, protocol);
            let frames: Vec<u8> = story.iter().flat_map(|line| resp_support::command(line)).collect();
            ours.send(&frames);
            theirs.send(&frames);
            for line in *story {
                let (our, their) = (ours.reply(), theirs.reply());
                assert!(
                    same_reply(line, &our, &their),
                    "RESP{protocol} {line}: {our} and {their} in {story:?}"
                );
            }
        }
    }
}

fn random_line(random: &mut SmallRng) -> String {
    let keys = ["a", "b", "c", "{t}d"];
    let numbers = [
        "0",
        "1",
        "-1",
        "5",
        "100",
        "9223372036854775807",
        "-9223372036854775808",
        "4611686018427387904",
        "x",
    ];
    // Far enough apart that the time between the two servers does not matter.
    let times = ["99999999999", "88888888888", "77777777777", "1"];
    let conditions = ["", "NX", "XX", "GT", "LT", "XX GT", "XX LT", "NX GT"];
    let mut pick = |words: &[&'static str]| *words.choose(random).unwrap_or(&"");
    let (key, other, number, time) = (pick(&keys), pick(&keys), pick(&numbers), pick(&times));
    match pick(&["incr", "incrby", "set", "read", "expire", "del", "multi", "many"]) {
        "incr" => format!("{} {key}", pick(&["INCR", "DECR", "incr"])),
        "incrby" => format!("{} {key} {number}", pick(&["INCRBY", "DECRBY"])),
        "set" if number != "x" => format!(
            "{} {}",
            pick(&["SET"]),
            [
                key,
                number,
                pick(&["", "NX", "XX"]),
                pick(&["", "GET"]),
                pick(&["", "KEEPTTL", "EXAT 99999999999", "EX x"])
            ]
            .join(" ")
        ),
        "set" => format!("GETSET {key} 7"),
        "read" => format!("{} {key}", pick(&["GET", "TYPE", "EXPIRETIME", "PEXPIRETIME", "EXISTS", "GETEX"])),
        "expire" => format!("EXPIREAT {key} {time} {}", pick(&conditions)),
        "del" => format!("{} {key}", pick(&["DEL", "GETDEL", "UNLINK", "PERSIST", "GETEX", "SETNX"])),
        "multi" => pick(&["MULTI", "EXEC", "DISCARD", "DBSIZE", "EXEC", "PING", "FLUSHDB"]).to_owned(),
        _ => match pick(&["mget", "mset", "exists", "del"]) {
            "mget" => format!("MGET {key} {other} nosuch"),
            "mset" => format!("MSET {key} 1 {other} 2"),
            "exists" => format!("EXISTS {key} {other} {key}"),
            _ => format!("DEL {key} {other}"),
        },
    }
}

#[test]
fn random_walks_are_answered_as_by_redis() {
    let (quipu, redis) = (Quipu::start(), Redis::start());
    for seed in 0..40 {
        let mut random = SmallRng::seed_from_u64(seed);
        let (mut ours, mut theirs) = both(&quipu, &redis, if seed % 2 == 0 { "2" } else { "3" });
        let mut walked = Vec::new();
        for _ in 0..20 {
            let lines: Vec<String> =
                (0..random.random_range(1..20)).map(|_| random_line(&mut random)).collect();
            let frames: Vec<u8> = lines.iter().flat_map(|line| resp_support::command(line)).collect();
            ours.send(&frames);
            theirs.send(&frames);
            for line in lines {
                let (our, their) = (ours.reply(), theirs.reply());
                walked.push(line);
                assert_eq!(our, their, "seed {seed}, last of {walked:#?}");
            }
        }
    }
}

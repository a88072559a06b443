//! Commands about the server, about keys as Redis keeps them, and transactions with any command in them: the same replies
//! as from a real Redis.
#![allow(clippy::unwrap_used)] // a panic here is a failed test

mod resp_support;

use std::collections::BTreeSet;

use quipu_wire::resp::encode_command;
use resp_support::stories::tell_all;
use resp_support::{Client, Quipu, Redis, command, show};

const SERVER: &[&[&str]] = &[
    &["ROLE", "ROLE x", "WAIT 0 0", "WAIT 1 1", "WAIT x 10", "WAIT 1 x", "WAIT 1 -1", "WAIT -1 1", "WAIT 1"],
    &["READONLY", "READWRITE", "ASKING", "READONLY x", "READWRITE x", "ASKING x"],
    &[
        "CLUSTER",
        "CLUSTER INFO",
        "CLUSTER NODES",
        "CLUSTER SLOTS",
        "CLUSTER SHARDS",
        "CLUSTER MYID",
        "CLUSTER COUNTKEYSINSLOT 5",
        "CLUSTER HELP",
        "CLUSTER KEYSLOT",
        "CLUSTER NODES x",
        "CLUSTER FOO",
    ],
    &[
        "LATENCY",
        "LATENCY FOO",
        "LATENCY LATEST",
        "LATENCY LATEST x",
        "LATENCY HISTORY foo",
        "LATENCY HISTORY",
        "LATENCY RESET",
        "LATENCY RESET command foo",
        "LATENCY GRAPH foo",
        "LATENCY HISTOGRAM nosuch",
        "LATENCY HELP x",
    ],
    &[
        "SLOWLOG",
        "SLOWLOG FOO",
        "SLOWLOG RESET",
        "SLOWLOG GET",
        "SLOWLOG GET 5",
        "SLOWLOG GET -1",
        "SLOWLOG GET -2",
        "SLOWLOG GET x",
        "slowlog get 1 2",
        "SLOWLOG LEN",
        "SLOWLOG LEN x",
        "SLOWLOG RESET x",
        "SLOWLOG HELP x",
    ],
    &["MEMORY", "MEMORY FOO", "MEMORY PURGE", "MEMORY DOCTOR x", "MEMORY STATS x", "MEMORY HELP x"],
    &[
        "CLIENT TRACKING OFF",
        "CLIENT TRACKING FOO",
        "CLIENT TRACKING",
        "CLIENT TRACKINGINFO",
        "CLIENT GETREDIR",
        "CLIENT CACHING YES",
        "CLIENT UNBLOCK 5",
        "CLIENT UNBLOCK x",
        "CLIENT UNBLOCK 5 ERROR",
        "CLIENT UNBLOCK 5 FOO",
        "client unblock 5 error x",
        "CLIENT LIST ID",
        "CLIENT LIST TYPE normal x",
        "CLIENT KILL SKIPME yes ID 99999",
        "CLIENT KILL ID 5 ADDR",
        "CLIENT ID x",
    ],
    &[
        "COMMAND GETKEYS OBJECT ENCODING a",
        "COMMAND GETKEYS MEMORY USAGE a",
        "COMMAND GETKEYS OBJECT HELP",
        "COMMAND GETKEYS CLIENT ID",
        "COMMAND GETKEYS CLIENT FOO",
        "COMMAND GETKEYS OBJECT",
        "COMMAND GETKEYS SET a",
        "COMMAND GETKEYSANDFLAGS SET a 1",
        "COMMAND GETKEYSANDFLAGS SET a 1 EX 5 get",
        "COMMAND GETKEYSANDFLAGS MSET a 1 b 2",
        "COMMAND GETKEYSANDFLAGS DEL a b",
        "COMMAND GETKEYSANDFLAGS GETDEL a",
        "COMMAND GETKEYSANDFLAGS PING a",
        "COMMAND GETKEYSANDFLAGS nosuch a",
        "COMMAND GETKEYSANDFLAGS",
        "COMMAND INFO client|id",
        "COMMAND INFO CLIENT|ID GET nosuch",
        "COMMAND INFO client|foo get|foo |",
        "COMMAND LIST FILTERBY ACLCAT foo",
        "COMMAND LIST FILTERBY ACLCAT @read",
        "COMMAND LIST FILTERBY PATTERN",
        "COMMAND LIST FILTERBY PATTERN CLIENT|ID",
        "COMMAND HELP x",
    ],
    &[
        "CONFIG SET a b c",
        "CONFIG SET maxclients 0",
        "CONFIG SET maxclients -1",
        "CONFIG SET maxclients 4294967296",
        "CONFIG SET maxclients 99999999999999999999",
        "CONFIG SET maxclients ''",
        "CONFIG SET maxclients 10 nosuch 5",
        "CONFIG SET maxclients 9999",
        "CONFIG GET maxclients",
        "CONFIG SET MAXCLIENTS 10000",
        "CONFIG GET MAXCLIENTS",
        "CONFIG GET MaxC*",
        "CONFIG GET maxclients MAXCLIENTS maxclients",
        "CONFIG GET cluster-enabled",
        "CONFIG GET latency-monitor-threshold",
        "CONFIG RESETSTAT x",
        "CONFIG REWRITE x",
        "CONFIG HELP x",
    ],
    &["INFO nosuch", "INFO cluster", "INFO modules", "INFO CLUSTER modules cluster", "INFO keyspace"],
    &[
        "SELECT 0",
        "SELECT -1",
        "SELECT 16",
        "SELECT 2147483648",
        "SELECT -2147483649",
        "SELECT 99999999999999999999",
        "SELECT 00",
        "SELECT +1",
        "SELECT 1.5",
        "SELECT ''",
        "SELECT 0 0",
    ],
];

const KEYS: &[&[&str]] = &[
    &[
        "STRLEN a",
        "SET a -120",
        "STRLEN a",
        "SET a 0",
        "STRLEN a",
        "STRLEN",
        "STRLEN a b",
        "SET a 1 PXAT 1",
        "STRLEN a",
    ],
    &["TOUCH a", "SET a 1", "TOUCH a a b", "TOUCH", "SET b 1 PXAT 1", "TOUCH a b"],
    &[
        "RANDOMKEY",
        "SET a 5",
        "RANDOMKEY",
        "RANDOMKEY x",
        "DEL a",
        "RANDOMKEY",
        "SET a 1 PXAT 1",
        "RANDOMKEY",
    ],
    &[
        "SET a 5",
        "OBJECT",
        "OBJECT FOO a",
        "OBJECT ENCODING a",
        "OBJECT ENCODING nosuch",
        "OBJECT ENCODING",
        "OBJECT ENCODING a b",
        "OBJECT FREQ a",
        "OBJECT FREQ nosuch",
        "OBJECT IDLETIME nosuch",
        "OBJECT REFCOUNT nosuch",
        "OBJECT REFCOUNT a",
        "OBJECT HELP x",
    ],
    &[
        "SET a 9999",
        "OBJECT REFCOUNT a",
        "INCR a",
        "OBJECT REFCOUNT a",
        "DECR a",
        "OBJECT REFCOUNT a",
        "SET a -1",
        "OBJECT REFCOUNT a",
        "SET a 9223372036854775807",
        "OBJECT ENCODING a",
        "OBJECT REFCOUNT a",
    ],
    &[
        "MEMORY USAGE nosuch",
        "MEMORY USAGE nosuch FOO",
        "MEMORY USAGE nosuch SAMPLES",
        "MEMORY USAGE nosuch SAMPLES x",
        "MEMORY USAGE nosuch SAMPLES -1",
        "MEMORY USAGE nosuch samples 0",
        "MEMORY USAGE nosuch SAMPLES 5 SAMPLES 0",
        "MEMORY USAGE",
    ],
    &["DUMP", "DUMP nosuch", "DUMP a b", "SET a 5", "DUMP a", "SET a 5 PXAT 1", "DUMP a"],
    &[
        "SET a 5",
        "RESTORE x 0 ''",
        "RESTORE x -1 ''",
        "RESTORE x abc ''",
        "RESTORE x 0 0123456789",
        "RESTORE a 0 ''",
        "RESTORE a abc ''",
        "RESTORE a 0 '' REPLACE",
        "RESTORE a abc '' REPLACE",
        "RESTORE a abc '' FOO",
        "RESTORE a 0 '' IDLETIME",
        "RESTORE a 0 '' IDLETIME -1",
        "RESTORE a 0 '' IDLETIME x",
        "RESTORE a 0 '' FREQ 256",
        "RESTORE a 0 '' FREQ -1",
        "RESTORE a 0 '' FREQ 5 IDLETIME 5",
        "RESTORE a 0 '' IDLETIME 5 FREQ 5",
        "RESTORE a 0 '' ABSTTL",
        "RESTORE a 0",
        "GET a",
        "EXISTS x",
    ],
    &[
        "SET a 5",
        "GETEX nosuch EX 0",
        "GETEX nosuch EX abc",
        "GETEX nosuch PXAT -1",
        "GETEX nosuch EX 10 PX 5",
        "GETEX nosuch FOO",
        "GETEX a EX 0",
        "GETEX a EX abc",
        "GETEX a EXAT -1",
        "GETEX a EX 9223372036854775807",
        "TTL a",
    ],
    &[
        "SCAN -1",
        "SCAN +0",
        "SCAN ''",
        "SCAN 00",
        "SCAN 18446744073709551615",
        "SCAN 18446744073709551616",
        "SCAN -18446744073709551616",
        "SCAN '_1'",
        "SCAN 0x1",
        "SCAN 0 COUNT 0",
        "SCAN 0 COUNT -1",
        "SCAN 0 COUNT x",
        "SCAN 0 MATCH",
        "SCAN 0 FOO bar",
        "SET a 1",
        "SCAN +0",
        "SCAN ''",
        "SCAN 0 TYPE foo",
        "SCAN 0 TYPE STRING",
    ],
];

const TRANSACTIONS: &[&[&str]] = &[
    &["SET a 1", "MULTI", "SCAN 0", "KEYS *", "RANDOMKEY", "DBSIZE", "EXEC", "PING"],
    &["MULTI", "SET a 1", "KEYS *", "SCAN 0 MATCH a", "INCR a", "EXEC", "GET a"],
    &["MULTI", "KEYS *", "EXEC", "MULTI", "SCAN abc", "SCAN 0 COUNT 0", "SCAN 0 FOO x", "EXEC"],
    &["MULTI", "RANDOMKEY x", "EXEC", "MULTI", "SCAN", "EXEC", "MULTI", "KEYS", "EXEC"],
    &["MULTI", "CLIENT SETNAME me", "CLIENT GETNAME", "INCR a", "EXEC", "CLIENT GETNAME"],
    &["MULTI", "CLIENT SETNAME 'a_b'", "CLIENT GETNAME", "EXEC", "CLIENT GETNAME"],
    &["MULTI", "CLIENT FOO", "EXEC", "MULTI", "CLIENT SETNAME", "EXEC", "MULTI", "OBJECT FOO a", "EXEC"],
    &["MULTI", "HELLO 9", "GET a", "HELLO x", "HELLO 3 FOO", "EXEC", "GET a"],
    &["MULTI", "CONFIG GET maxclients", "CONFIG SET maxclients 9000", "CONFIG GET maxclients", "EXEC"],
    &["CONFIG SET maxclients 10000", "MULTI", "CONFIG SET nosuch 1", "CONFIG RESETSTAT", "INCR a", "EXEC"],
    &[
        "MULTI",
        "CLIENT KILL ID 99999",
        "CLIENT KILL 1.2.3.4:5",
        "CLIENT REPLY FOO",
        "CLIENT REPLY ON",
        "EXEC",
    ],
    &["MULTI", "OBJECT ENCODING a", "SET a 1", "OBJECT ENCODING a", "OBJECT FREQ a", "DUMP a", "EXEC"],
    &["MULTI", "WAIT 5 1000", "ROLE", "READONLY", "CLUSTER INFO", "SLOWLOG LEN", "LATENCY LATEST", "EXEC"],
    &["MULTI", "RESTORE a 0 x", "SET a 1", "RESTORE a 0 x", "RESTORE a 0 x REPLACE", "EXEC"],
    &["MULTI", "GETEX a EX 0", "SET a 1", "GETEX a EX 0", "GETEX a EX 100", "TTL a", "EXEC"],
    &[
        "MULTI",
        "SELECT 0",
        "SELECT -1",
        "AUTH x",
        "AUTH default x",
        "COMMAND GETKEYS GET a",
        "ECHO x",
        "EXEC",
    ],
    &["MULTI", "INFO cluster", "KEYS *", "INFO modules", "EXEC"],
    &[
        "SET a 5",
        "MULTI",
        "INCR a",
        "KEYS a",
        "INCR a",
        "MSET b 1 c 2",
        "SCAN 0 MATCH nosuch",
        "MGET a b c",
        "EXEC",
    ],
    &[
        "SET a 9223372036854775807",
        "MULTI",
        "INCR a",
        "KEYS a",
        "INCR b",
        "FOO",
        "EXEC",
        "MULTI",
        "INCR a",
        "KEYS a",
        "EXEC",
    ],
    &[
        "WATCH a",
        "SET a 1",
        "MULTI",
        "CLIENT SETNAME me",
        "KEYS *",
        "SET a 2",
        "EXEC",
        "CLIENT GETNAME",
        "GET a",
    ],
    &["WATCH a", "MULTI", "CLIENT SETNAME me", "SET a 2", "KEYS *", "EXEC", "CLIENT GETNAME", "GET a"],
    &["MULTI", "UNWATCH", "KEYS *", "WATCH a", "EXEC", "MULTI", "KEYS *", "DISCARD", "EXEC"],
];

#[test]
fn about_the_server() {
    tell_all(SERVER);
}

#[test]
fn about_keys() {
    tell_all(KEYS);
}

#[test]
fn transactions_with_any_command() {
    tell_all(TRANSACTIONS);
}

/// Everything that is said until the connection has nothing more to say.
fn said(mut client: Client, lines: &[&str]) -> String {
    let frames: Vec<u8> = lines.iter().flat_map(|line| command(line)).collect();
    client.send(&frames);
    client.end();
    client.rest()
}

/// Where replies are turned off, protocols change and connections end in the middle, bytes are compared and not replies.
#[test]
fn transactions_that_change_their_own_answers() {
    let (quipu, redis) = (Quipu::start(), Redis::start());
    for story in [
        &["MULTI", "INCR q", "CLIENT REPLY OFF", "INCR q", "EXEC", "PING", "CLIENT REPLY ON", "GET q"][..],
        &["MULTI", "INCR q", "CLIENT REPLY SKIP", "INCR q", "EXEC", "PING", "GET q"],
        &["CLIENT REPLY OFF", "MULTI", "INCR q", "CLIENT REPLY ON", "INCR q", "EXEC", "PING"],
        &["CLIENT REPLY OFF", "MULTI", "KEYS q", "CLIENT REPLY ON", "KEYS q", "EXEC", "PING"],
        &["CLIENT REPLY OFF", "MULTI", "SCAN 0", "EXEC", "CLIENT REPLY ON"],
        &["CLIENT REPLY SKIP", "MULTI", "INCR q", "EXEC", "PING"],
        &["MULTI", "KEYS q", "INCR q", "CLIENT REPLY SKIP", "EXEC", "PING", "PING"],
        &["MULTI", "INCR q", "CLIENT REPLY SKIP", "EXEC", "MULTI", "KEYS q", "EXEC", "PING"],
        &["MULTI", "CLIENT REPLY SKIP", "EXEC", "EXEC", "PING"],
        &["WATCH q", "INCR q", "MULTI", "KEYS q", "CLIENT REPLY OFF", "EXEC", "PING"],
        &["WATCH q", "INCR q", "MULTI", "KEYS q", "CLIENT REPLY SKIP", "EXEC", "PING"],
        &["MULTI", "GET nosuch", "CLIENT KILL TYPE normal SKIPME no", "GET nosuch", "EXEC", "PING"],
        &["MULTI", "KEYS q", "QUIT", "PING"],
    ] {
        assert_eq!(said(quipu.client(), story), said(redis.client(), story), "{story:?}");
    }
}

#[test]
fn hello_in_a_transaction_changes_the_replies_behind_it() {
    let quipu = Quipu::start();
    let mut client = quipu.client();
    for line in ["MULTI", "GET a", "HELLO 3", "GET a", "KEYS *", "HELLO", "HELLO 2", "GET a"] {
        client.ask(line);
    }
    let reply = client.ask("EXEC");
    let nulls: Vec<&str> = reply.split('|').filter(|line| ["$-1", "_", "%7", "*14"].contains(line)).collect();
    assert_eq!(nulls, ["$-1", "%7", "_", "%7", "*14", "$-1"], "{reply}");
    assert_eq!(client.ask("GET a"), "$-1|");
}

/// What the transaction did to counters is seen by its other commands, also by those before it: they come afterwards.
#[test]
fn walks_of_a_transaction_see_all_of_it() {
    let quipu = Quipu::start();
    let mut client = quipu.client();
    for line in ["MULTI", "KEYS *", "SET a 1", "INFO keyspace"] {
        client.ask(line);
    }
    assert_eq!(client.ask("EXEC"), "*3|*1|$1|a|+OK|$44|# Keyspace|db0:keys=1,expires=0,avg_ttl=0||");
}

fn frame(words: &[&[u8]]) -> Vec<u8> {
    let mut frame = Vec::new();
    encode_command(&mut frame, words);
    frame
}

fn dump_of(client: &mut Client) -> Vec<u8> {
    client.send_line("DUMP k");
    client.reply_bytes().unwrap()
}

/// The payload of a bulk string.
fn content(reply: &[u8]) -> &[u8] {
    let start = reply.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    &reply[start..reply.len() - 2]
}

#[test]
fn dumps_go_both_ways() {
    let (quipu, redis) = (Quipu::start(), Redis::start());
    let (mut ours, mut theirs) = (quipu.client(), redis.client());
    let edges = [7u32, 8, 15, 16, 31, 32, 62].map(|bits| 1i64 << bits);
    let near = |edge: i64| [edge - 1, edge, edge + 1, -edge - 1, -edge, -edge + 1];
    let values: BTreeSet<i64> = edges.into_iter().flat_map(near).chain([0, 1, i64::MIN, i64::MAX]).collect();
    for value in values {
        for client in [&mut ours, &mut theirs] {
            assert_eq!(client.ask(&format!("SET k {value}")), "+OK|");
        }
        let (our, their) = (dump_of(&mut ours), dump_of(&mut theirs));
        assert_eq!(show(&our), show(&their), "{value}");
        for (client, payload) in [(&mut ours, &their), (&mut theirs, &our)] {
            client.send(&frame(&[b"RESTORE", b"restored", b"0", content(payload), b"REPLACE"]));
            assert_eq!(client.reply(), "+OK|");
            assert_eq!(client.ask("GET restored"), format!("${}|{value}|", value.to_string().len()));
        }
    }
}

/// RESTORE with a good payload, and payloads of what is no counter.
#[test]
fn restoring() {
    let (quipu, redis) = (Quipu::start(), Redis::start());
    let (mut ours, mut theirs) = (quipu.client(), redis.client());
    theirs.ask("SET k 77");
    let payload = content(&dump_of(&mut theirs)).to_vec();
    theirs.ask("FLUSHALL");
    for (time, options, then) in [
        ("0", "", "TTL k"),
        ("0", "", "GET k"),
        ("100000", "REPLACE", "TTL k"),
        ("99999999999999", "absttl replace", "PEXPIRETIME k"),
        ("1", "ABSTTL", "EXISTS k"),
        ("1", "ABSTTL REPLACE", "EXISTS k"),
        ("1", "ABSTTL", "EXISTS k"),
        ("9223372036854775807", "ABSTTL", "PEXPIRETIME k"),
        ("0", "REPLACE IDLETIME 1000", "GET k"),
        ("0", "REPLACE FREQ 255 FREQ 0", "GET k"),
        ("0", "REPLACE REPLACE ABSTTL", "TTL k"),
        ("-1", "REPLACE", "TTL k"),
    ] {
        let mut words: Vec<&[u8]> = vec![b"RESTORE", b"k", time.as_bytes(), &payload];
        words.extend(options.split_whitespace().map(str::as_bytes));
        let replies = [&mut ours, &mut theirs].map(|client| {
            client.send(&frame(&words));
            (client.reply(), client.ask(then))
        });
        assert_eq!(replies[0].0, replies[1].0, "{time} {options}");
        assert!(
            resp_support::same_reply(then, &replies[0].1, &replies[1].1),
            "{time} {options}: {replies:?}"
        );
    }
    for make in ["SET k hello", "SET k 007", "RPUSH k 1", &format!("SET k {}", "a".repeat(500))] {
        theirs.ask("DEL k");
        theirs.ask(make);
        let payload = dump_of(&mut theirs);
        ours.send(&frame(&[b"RESTORE", b"other", b"0", content(&payload)]));
        assert_eq!(ours.reply(), "-ERR value is not an integer or out of range|", "{make}");
    }
}

#[test]
fn idle_time_usage_slots_and_help() {
    let quipu = Quipu::start();
    let mut client = quipu.client();
    client.ask("SET likes 5");
    assert_eq!(client.ask("OBJECT IDLETIME likes"), ":0|");
    // 20 bytes of record, 8 of index, and the key; wide once it expires.
    assert_eq!(client.ask("MEMORY USAGE likes"), ":33|");
    client.ask("EXPIRE likes 100");
    assert_eq!(client.ask("MEMORY USAGE likes SAMPLES 0"), ":57|");
    assert_eq!(client.ask("CLUSTER KEYSLOT foo"), ":12182|");
    assert_eq!(client.ask("CLUSTER KEYSLOT {user}.likes"), client.ask("CLUSTER KEYSLOT user"));
    for container in ["OBJECT", "MEMORY", "CLIENT", "COMMAND", "CONFIG", "LATENCY", "SLOWLOG", "Q.POLICY"] {
        let help = client.ask(&format!("{container} help"));
        let lines: Vec<&str> = help.split('|').collect();
        assert_eq!(
            lines[1],
            format!("+{container} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:")
        );
        assert_eq!(&lines[lines.len() - 3..], ["+HELP", "+    Prints this help.", ""], "{help}");
    }
    for doctor in ["MEMORY DOCTOR", "LATENCY DOCTOR"] {
        assert!(client.ask(doctor).contains("/metrics"));
    }
    assert!(client.ask("MEMORY STATS").contains("$10|keys.count|:1|"));
}

/// One key of many; with enough draws every one of few comes.
#[test]
fn random_keys() {
    let mut quipu = Quipu::start();
    let mut client = quipu.client();
    let keys: BTreeSet<String> = (0..20).map(|n| format!("key:{n}")).collect();
    for key in &keys {
        client.ask(&format!("SET {key} 1"));
    }
    let all_come = |client: &mut Client| {
        let mut drawn = BTreeSet::new();
        for _ in 0..10_000 {
            let reply = client.ask("RANDOMKEY");
            drawn.insert(reply.split('|').nth(1).unwrap_or_default().to_owned());
            if drawn == keys {
                return;
            }
        }
        panic!("only {drawn:?}");
    };
    all_come(&mut client);
    quipu.restart();
    all_come(&mut quipu.client());
}

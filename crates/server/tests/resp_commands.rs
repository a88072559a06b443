//! Commands about the server, about keys as Redis keeps them, and transactions with any command in them, where comparing
//! replies one by one (`resp_like_redis`) does not tell enough.
#![allow(clippy::unwrap_used)] // a panic here is a failed test

mod resp_support;

use std::collections::BTreeSet;

use quipu_wire::resp::encode_command;
use resp_support::{Client, Quipu, Redis, command, show};

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

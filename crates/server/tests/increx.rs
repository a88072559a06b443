//! INCREX, as in Redis 8.8, told to the real binary: every option, both bounds, the ends of 64 bits, times to live, and what
//! a rejection leaves alone.
#![allow(clippy::unwrap_used)] // a panic here is a failed test

#[path = "resp_support/mod.rs"]
mod resp_support;
#[path = "support/mod.rs"]
mod support;

use resp_support::Client;
use support::Server;

/// What was there, what is asked, what is answered (new value and what was applied), and what is there afterwards.
struct Case(&'static str, &'static str, [i64; 2], After);

/// The counter afterwards.
#[derive(Clone, Copy)]
enum After {
    /// There is none.
    Gone,
    /// This value, and so many seconds to live, or -1.
    Is(i64, i64),
}

use After::{Gone, Is};

const MAX: i64 = i64::MAX;
const MIN: i64 = i64::MIN;

const CASES: &[Case] = &[
    // Without options it is INCR.
    Case("", "", [1, 1], Is(1, -1)),
    Case("SET a 10", "", [11, 1], Is(11, -1)),
    Case("SET a 10 EX 500", "", [11, 1], Is(11, 500)),
    // BYINT.
    Case("", "BYINT 5", [5, 5], Is(5, -1)),
    Case("SET a 100", "byint -10", [90, -10], Is(90, -1)),
    Case("SET a 100", "BYINT 0", [100, 0], Is(100, -1)),
    Case("", "BYINT 0", [0, 0], Is(0, -1)),
    // One bound: within, on it, beyond.
    Case("SET a 10", "BYINT 4 UBOUND 15", [14, 4], Is(14, -1)),
    Case("SET a 10", "BYINT 5 UBOUND 15", [15, 5], Is(15, -1)),
    Case("SET a 10", "BYINT 6 UBOUND 15", [10, 0], Is(10, -1)),
    Case("SET a 10", "BYINT 6 UBOUND 15 SATURATE", [15, 5], Is(15, -1)),
    Case("SET a 10", "BYINT -4 LBOUND 5", [6, -4], Is(6, -1)),
    Case("SET a 10", "BYINT -5 LBOUND 5", [5, -5], Is(5, -1)),
    Case("SET a 10", "BYINT -6 LBOUND 5", [10, 0], Is(10, -1)),
    Case("SET a 10", "BYINT -6 LBOUND 5 SATURATE", [5, -5], Is(5, -1)),
    // SATURATE within bounds changes nothing; at the bound nothing is left to apply.
    Case("SET a 10", "BYINT 3 UBOUND 20 SATURATE", [13, 3], Is(13, -1)),
    Case("SET a 15", "UBOUND 15 SATURATE", [15, 0], Is(15, -1)),
    Case("SET a 15", "UBOUND 15", [15, 0], Is(15, -1)),
    // Both bounds, options in any order.
    Case("SET a 5", "BYINT 2 LBOUND 0 UBOUND 10", [7, 2], Is(7, -1)),
    Case("SET a 5", "UBOUND 10 BYINT 10 LBOUND 0", [5, 0], Is(5, -1)),
    Case("SET a 5", "BYINT -20 LBOUND 0 UBOUND 10", [5, 0], Is(5, -1)),
    Case("SET a 5", "LBOUND 0 BYINT 100 SATURATE UBOUND 10", [10, 5], Is(10, -1)),
    Case("SET a 5", "SATURATE BYINT -100 UBOUND 10 LBOUND 0", [0, -5], Is(0, -1)),
    Case("SET a 5", "LBOUND 7 UBOUND 7 SATURATE", [7, 2], Is(7, -1)),
    // The value lies outside already: coming back in is allowed, anything else is as from within.
    Case("SET a 50", "BYINT 5 UBOUND 30", [50, 0], Is(50, -1)),
    Case("SET a 50", "BYINT -5 UBOUND 30", [50, 0], Is(50, -1)),
    Case("SET a 50", "BYINT -25 UBOUND 30", [25, -25], Is(25, -1)),
    Case("SET a 50", "BYINT 5 UBOUND 30 SATURATE", [30, -20], Is(30, -1)),
    Case("SET a -50", "BYINT -5 LBOUND -30 SATURATE", [-30, 20], Is(-30, -1)),
    Case("SET a -50", "BYINT 25 LBOUND -30", [-25, 25], Is(-25, -1)),
    // A key that does not exist counts as 0, and is not made by a rejection.
    Case("", "BYINT 5 UBOUND 10", [5, 5], Is(5, -1)),
    Case("", "BYINT 15 UBOUND 10", [0, 0], Gone),
    Case("", "BYINT 5 LBOUND 10", [0, 0], Gone),
    Case("", "LBOUND 5 SATURATE", [5, 5], Is(5, -1)),
    Case("", "UBOUND 0 SATURATE", [0, 0], Is(0, -1)),
    Case("", "BYINT 15 UBOUND 10 EX 100", [0, 0], Gone),
    // The ends of 64 bits are bounds too.
    Case("SET a 9223372036854775800", "BYINT 9223372036854775800", [MAX - 7, 0], Is(MAX - 7, -1)),
    Case("SET a 9223372036854775800", "BYINT 9223372036854775800 SATURATE", [MAX, 7], Is(MAX, -1)),
    Case("SET a -9223372036854775800", "BYINT -9223372036854775800", [MIN + 8, 0], Is(MIN + 8, -1)),
    Case("SET a -9223372036854775800", "BYINT -9223372036854775800 SATURATE", [MIN, -8], Is(MIN, -1)),
    Case("SET a 9223372036854775800", "BYINT 8 UBOUND 9223372036854775807", [MAX - 7, 0], Is(MAX - 7, -1)),
    Case("SET a 9223372036854775800", "BYINT 7 UBOUND 9223372036854775807", [MAX, 7], Is(MAX, -1)),
    Case("SET a 9223372036854775800", "BYINT 8 UBOUND 9223372036854775807 SATURATE", [MAX, 7], Is(MAX, -1)),
    Case("", "BYINT -9223372036854775808", [MIN, MIN], Is(MIN, -1)),
    // Times to live.
    Case("", "EX 100", [1, 1], Is(1, 100)),
    Case("", "PX 100000", [1, 1], Is(1, 100)),
    Case("SET a 1 EX 500", "EX 100", [2, 1], Is(2, 100)),
    Case("SET a 1 EX 500", "ex 100 BYINT 5", [6, 5], Is(6, 100)),
    Case("SET a 1 EX 500", "EXAT 1", [2, 1], Gone),
    Case("SET a 1", "PXAT 1", [2, 1], Gone),
    Case("", "EXAT 1", [1, 1], Gone),
    Case("SET a 1 EX 500", "PERSIST", [2, 1], Is(2, -1)),
    Case("SET a 1", "PERSIST", [2, 1], Is(2, -1)),
    Case("", "PERSIST", [1, 1], Is(1, -1)),
    // ENX: only where there is none yet.
    Case("SET a 1", "EX 100 ENX", [2, 1], Is(2, 100)),
    Case("SET a 1 EX 500", "ENX EX 100", [2, 1], Is(2, 500)),
    Case("SET a 1 EX 500", "PX 100000 ENX", [2, 1], Is(2, 500)),
    Case("", "BYINT 5 EX 100 ENX", [5, 5], Is(5, 100)),
    Case("SET a 1 EX 500", "EXAT 1 ENX", [2, 1], Is(2, 500)),
    Case("SET a 1", "EXAT 1 ENX", [2, 1], Gone),
    // A rejection touches neither the key nor its time to live; saturation is none.
    Case("SET a 10 EX 500", "BYINT 15 UBOUND 10 EX 100", [10, 0], Is(10, 500)),
    Case("SET a 10 EX 500", "BYINT 15 UBOUND 10 PERSIST", [10, 0], Is(10, 500)),
    Case("SET a 10 EX 500", "BYINT 15 UBOUND 10 EXAT 1", [10, 0], Is(10, 500)),
    Case("SET a 10", "BYINT 15 UBOUND 10 EX 100", [10, 0], Is(10, -1)),
    Case("SET a 10", "BYINT 15 UBOUND 10 EX 100 ENX", [10, 0], Is(10, -1)),
    Case("SET a 10", "BYINT 15 UBOUND 20 SATURATE EX 100", [20, 10], Is(20, 100)),
    Case("SET a 10 EX 500", "BYINT 15 UBOUND 10 SATURATE PERSIST", [10, 0], Is(10, -1)),
];

const SYNTAX: &str = "-ERR syntax error|";

/// What is not understood changes nothing.
const ERRORS: &[(&str, &str)] = &[
    ("INCREX", "-ERR wrong number of arguments for 'increx' command|"),
    ("INCREX a FOO", SYNTAX),
    ("INCREX a SAT", SYNTAX),
    ("INCREX a BYINT 1 FOO", SYNTAX),
    ("INCREX a 5", SYNTAX),
    ("INCREX a BYINT", SYNTAX),
    ("INCREX a LBOUND", SYNTAX),
    ("INCREX a UBOUND", SYNTAX),
    ("INCREX a EX", SYNTAX),
    ("INCREX a BYINT 1 BYINT 2", SYNTAX),
    ("INCREX a BYINT 1 BYFLOAT 1.5", SYNTAX),
    ("INCREX a BYFLOAT 1.5 BYINT 1", SYNTAX),
    ("INCREX a BYFLOAT 1.5 BYFLOAT 1.5", SYNTAX),
    ("INCREX a LBOUND 0 LBOUND 1", SYNTAX),
    ("INCREX a UBOUND 9 UBOUND 8", SYNTAX),
    ("INCREX a SATURATE SATURATE LBOUND 0", SYNTAX),
    ("INCREX a EX 10 EX 20", SYNTAX),
    ("INCREX a PX 10 PX 20", SYNTAX),
    ("INCREX a EXAT 9999999999 EXAT 9999999998", SYNTAX),
    ("INCREX a PXAT 9999999999000 PXAT 9999999998000", SYNTAX),
    ("INCREX a EX 10 PX 5000", SYNTAX),
    ("INCREX a EX 10 EXAT 9999999999", SYNTAX),
    ("INCREX a PX 5000 PXAT 9999999999000", SYNTAX),
    ("INCREX a PERSIST PERSIST", SYNTAX),
    ("INCREX a PERSIST EX 10", SYNTAX),
    ("INCREX a EX 10 PERSIST", SYNTAX),
    ("INCREX a PERSIST ENX", SYNTAX),
    ("INCREX a ENX PERSIST", SYNTAX),
    ("INCREX a ENX ENX EX 10", SYNTAX),
    ("INCREX a KEEPTTL", SYNTAX),
    ("INCREX a ENX", "-ERR ENX flag requires an expiration|"),
    ("INCREX a BYINT 1 ENX", "-ERR ENX flag requires an expiration|"),
    ("INCREX a BYINT abc", "-ERR Increment is not an integer or out of range|"),
    ("INCREX a BYINT 1.5", "-ERR Increment is not an integer or out of range|"),
    ("INCREX a BYINT 9223372036854775808", "-ERR Increment is not an integer or out of range|"),
    ("INCREX a BYINT ''", "-ERR Increment is not an integer or out of range|"),
    ("INCREX a LBOUND 1.5", "-ERR LBOUND is not an integer or out of range|"),
    ("INCREX a UBOUND abc", "-ERR UBOUND is not an integer or out of range|"),
    ("INCREX a LBOUND 10 UBOUND 5", "-ERR LBOUND can't be greater than UBOUND|"),
    ("INCREX a LBOUND 10 UBOUND 5 SATURATE", "-ERR LBOUND can't be greater than UBOUND|"),
    ("INCREX a EX 0", "-ERR invalid expire time in 'increx' command|"),
    ("INCREX a PX 0", "-ERR invalid expire time in 'increx' command|"),
    ("INCREX a EX -1", "-ERR invalid expire time in 'increx' command|"),
    ("INCREX a EXAT 0", "-ERR invalid expire time in 'increx' command|"),
    ("INCREX a EX 9223372036854775807", "-ERR invalid expire time in 'increx' command|"),
    ("INCREX a EX abc", "-ERR value is not an integer or out of range|"),
    ("INCREX a BYINT 1 SATURATE UBOUND -9223372036854775808", "-ERR applied increment would overflow|"),
    ("INCREX a BYFLOAT 1.5", "-ERR BYFLOAT is not supported: counters are integers|"),
];

/// A server of the real binary and a connection that speaks this protocol.
fn server(data: &std::path::Path, protocol: &str) -> (Server, Client) {
    let server = Server::start(data);
    let mut client = Client::connect(server.resp);
    client.ask(&format!("HELLO {protocol}"));
    (server, client)
}

fn check_after(client: &mut Client, story: &str, after: After) {
    let Is(value, seconds) = after else {
        assert_eq!(client.ask("EXISTS a"), ":0|", "{story}");
        return;
    };
    assert_eq!(client.ask("GET a"), format!("${}|{value}|", value.to_string().len()), "{story}");
    let left = client.ask("TTL a");
    assert!(resp_support::same_reply("TTL a", &left, &format!(":{seconds}|")), "{story}: {left}");
}

#[test]
fn every_option() {
    for protocol in ["2", "3"] {
        let folder = tempfile::tempdir().unwrap();
        let (_server, mut client) = server(folder.path(), protocol);
        for Case(before, options, [value, applied], after) in CASES {
            let story = format!("RESP{protocol}: {before}; INCREX a {options}");
            client.ask("DEL a");
            if !before.is_empty() {
                client.ask(before);
            }
            let reply = client.ask(&format!("INCREX a {options}"));
            assert_eq!(reply, format!("*2|:{value}|:{applied}|"), "{story}");
            check_after(&mut client, &story, *after);
        }
    }
}

#[test]
fn errors_change_nothing() {
    for protocol in ["2", "3"] {
        let folder = tempfile::tempdir().unwrap();
        let (_server, mut client) = server(folder.path(), protocol);
        client.ask("SET a 9223372036854775800 EX 500");
        let before = client.ask("Q.STAT a");
        for (line, expected) in ERRORS {
            assert_eq!(client.ask(line), *expected, "RESP{protocol}: {line}");
        }
        let version = |reply: &str| reply.split("version|").nth(1).map(|rest| rest[..3].to_owned());
        assert_eq!(version(&client.ask("Q.STAT a")), version(&before));
        check_after(&mut client, "after all errors", Is(MAX - 7, 500));
    }
}

/// Neither its version nor the time of its last change: a rejection is no change, nor is what was saturated to nothing,
/// unless it sets the expiry.
#[test]
fn a_rejection_is_no_change() {
    let folder = tempfile::tempdir().unwrap();
    let (_server, mut client) = server(folder.path(), "2");
    client.ask("SET a 10 EXAT 99999999999");
    let stat = |client: &mut Client| client.ask("Q.STAT a");
    let before = stat(&mut client);
    let fields = |reply: &str, names: &[&str]| -> Vec<String> {
        let value = |name: &&str| reply.split(*name).nth(1).unwrap().split('|').nth(1).unwrap().to_owned();
        names.iter().map(value).collect()
    };
    let names = ["version", "updated_at_ms", "birth"];
    let rejected = ["BYINT 1 UBOUND 10 EX 5", "BYINT -11 LBOUND 0 PERSIST", "UBOUND 3", "LBOUND 30 EXAT 1"];
    for options in rejected.into_iter().chain(["UBOUND 10 SATURATE"]) {
        assert_eq!(client.ask(&format!("INCREX a {options}")), "*2|:10|:0|", "{options}");
        assert_eq!(fields(&stat(&mut client), &names), fields(&before, &names), "{options}");
        assert_eq!(client.ask("EXPIRETIME a"), ":99999999999|", "{options}");
    }
    assert_eq!(client.ask("INCREX a UBOUND 10 SATURATE PERSIST"), "*2|:10|:0|");
    assert_ne!(fields(&stat(&mut client), &["version"]), fields(&before, &["version"]));
}

/// In a transaction and beside others in a pipeline, and still there after a kill.
#[test]
fn among_other_commands() {
    let folder = tempfile::tempdir().unwrap();
    let (first, mut client) = server(folder.path(), "2");
    for (line, expected) in [
        ("MULTI", "+OK|"),
        ("INCREX a BYINT 7 EXAT 99999999999", "+QUEUED|"),
        ("INCREX a BYINT 7 UBOUND 10", "+QUEUED|"),
        ("INCREX a FOO", "+QUEUED|"),
        ("INCREX a BYINT 7 UBOUND 10 SATURATE", "+QUEUED|"),
        ("EXEC", "*4|*2|:7|:7|*2|:7|:0|-ERR syntax error|*2|:10|:3|"),
        ("WATCH a", "+OK|"),
        ("INCREX a UBOUND 10", "*2|:10|:0|"),
        ("MULTI", "+OK|"),
        ("INCREX {a}b", "+QUEUED|"),
        ("EXEC", "*1|*2|:1|:1|"),
    ] {
        assert_eq!(client.ask(line), expected, "{line}");
    }
    first.kill();
    let (_second, mut client) = server(folder.path(), "3");
    assert_eq!(client.ask("MGET a {a}b"), "*2|$2|10|$1|1|");
    assert_eq!(client.ask("EXPIRETIME a"), ":99999999999|");
}

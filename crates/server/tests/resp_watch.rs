//! WATCH: stories of two connections, told to quipu and to a real Redis.

mod resp_support;

use resp_support::on_redis::{is_on_redis, line_in_one_group};
use resp_support::{Client, PATIENCE, Quipu, Redis, command};

/// Lines with `|` in front are sent by the second connection. Where the two servers differ on purpose, see
/// [`a_key_that_came_and_went_is_as_it_was`].
const STORIES: &[&[&str]] = &[
    // Nothing happens in between.
    &["WATCH a", "MULTI", "INCR a", "EXEC", "GET a"],
    &["SET a 1", "WATCH a b", "GET a", "MULTI", "INCR a", "INCR b", "EXEC", "MGET a b"],
    &["WATCH a", "MULTI", "EXEC", "SET a 1", "WATCH a", "MULTI", "EXEC"],
    // Every way to change a key.
    &["WATCH a", "|SET a 1", "MULTI", "INCR a", "EXEC", "GET a", "MULTI", "INCR a", "EXEC"],
    &["SET a 1", "WATCH a", "|INCR a", "MULTI", "INCR a", "EXEC", "GET a"],
    &["SET a 1", "WATCH a", "|SET a 1", "MULTI", "INCR a", "EXEC", "GET a"],
    &["SET a 1", "WATCH a", "|INCRBY a 0", "MULTI", "INCR a", "EXEC", "GET a"],
    &["SET a 1", "WATCH a", "|DEL a", "MULTI", "INCR a", "EXEC", "GET a"],
    &["SET a 1", "WATCH a", "|DEL a", "|SET a 1", "MULTI", "INCR a", "EXEC", "GET a"],
    &["SET a 1", "WATCH a", "|GETDEL a", "MULTI", "INCR a", "EXEC", "GET a"],
    &["SET a 1", "WATCH a", "|EXPIRE a 100", "MULTI", "INCR a", "EXEC", "GET a"],
    &["SET a 1 EX 100", "WATCH a", "|PERSIST a", "MULTI", "INCR a", "EXEC", "GET a"],
    &["SET a 1", "WATCH a", "|FLUSHALL", "MULTI", "INCR a", "EXEC", "GET a"],
    &["SET a 1", "WATCH a", "|FLUSHDB", "MULTI", "INCR a", "EXEC", "GET a"],
    &["SET a 1", "WATCH b c a", "|MSET x 1 a 2", "MULTI", "INCR a", "EXEC", "GET a"],
    &["SET a 1", "WATCH a", "|MULTI", "|INCR a", "|EXEC", "MULTI", "INCR a", "EXEC", "GET a"],
    // The connection itself counts as another one does.
    &["SET a 1", "WATCH a", "INCR a", "MULTI", "INCR a", "EXEC", "GET a"],
    // What changes nothing does not count.
    &["WATCH a", "|DEL a", "|EXPIRE a 10", "|FLUSHALL", "|GET a", "MULTI", "INCR a", "EXEC", "GET a"],
    &["SET a 1", "WATCH a", "|GET a", "|PERSIST a", "|SET a 5 NX", "|INCR b", "MULTI", "INCR a", "EXEC"],
    &["SET a 1", "WATCH a", "|GETEX a", "|SETNX a 7", "|TTL a", "|EXISTS a", "MULTI", "INCR a", "EXEC"],
    // The first look counts, also when the key is watched again.
    &["SET a 1", "WATCH a", "|INCR a", "WATCH a", "MULTI", "INCR a", "EXEC", "GET a"],
    &["WATCH a", "WATCH b", "|INCR a", "MULTI", "INCR b", "EXEC", "GET b"],
    &["WATCH a a a", "MULTI", "INCR a", "EXEC", "WATCH a a", "|INCR a", "MULTI", "INCR a", "EXEC"],
    // Ends of watching.
    &["WATCH a", "|INCR a", "UNWATCH", "MULTI", "INCR a", "EXEC", "GET a"],
    &["WATCH a", "|INCR a", "MULTI", "DISCARD", "MULTI", "INCR a", "EXEC", "GET a"],
    &["WATCH a", "|INCR a", "RESET", "MULTI", "INCR a", "EXEC", "GET a"],
    &["WATCH a", "MULTI", "NOSUCH", "EXEC", "|INCR a", "MULTI", "INCR a", "EXEC", "GET a"],
    &["WATCH a", "MULTI", "EXEC FOO", "|INCR a", "MULTI", "INCR a", "EXEC", "GET a"],
    &["WATCH a", "|INCR a", "EXEC", "DISCARD", "MULTI", "INCR a", "EXEC", "GET a"],
    &["WATCH a", "|INCR a", "MULTI", "UNWATCH", "INCR a", "EXEC", "MULTI", "UNWATCH", "INCR a", "EXEC"],
    &["WATCH a", "MULTI", "WATCH b", "|INCR b", "INCR a", "EXEC", "GET a"],
    &["MULTI", "WATCH a", "|INCR a", "INCR a", "EXEC", "WATCH", "UNWATCH a", "UNWATCH"],
    // A transaction that is not run leaves nothing behind, whatever it is made of.
    &[
        "SET a 1",
        "WATCH a",
        "|INCR a",
        "MULTI",
        "MSET a 5 b 5",
        "DEL a b",
        "FLUSHALL",
        "PING",
        "GET",
        "EXEC",
        "MULTI",
        "MSET a 5 b 5",
        "PING",
        "DBSIZE",
        "EXEC",
        "MGET a b",
    ],
    &["WATCH a", "|SET a 7", "MULTI", "MSET a 5 b 5", "DEL a b", "FLUSHALL", "PING", "EXEC", "MGET a b"],
    // One that is run is as any other.
    &["WATCH a b", "MULTI", "MSET a 5 b 5", "DEL b x", "MGET a b", "PING", "INCR a", "EXEC", "EXISTS a b"],
    &["SET a 9223372036854775807", "WATCH a", "MULTI", "INCR a", "SET b 1", "EXEC", "GET b"],
    // Expiry: a key that was there and is no longer has changed; one that was gone before has not.
    &["SET a 1 PXAT 1", "WATCH a", "MULTI", "INCR a", "EXEC"],
    &["SET a 1 EX 100", "WATCH a", "|PEXPIRE a 0", "MULTI", "INCR a", "EXEC", "GET a"],
];

/// All of them; on Redis without those in which something about all counters depends on a watched key, which is refused there.
fn stories() -> impl Iterator<Item = &'static [&'static str]> {
    let is_about_all = |line: &&str| ["FLUSHALL", "FLUSHDB", "DBSIZE"].contains(line);
    let is_told = move |story: &&&[&str]| !is_on_redis() || !story.iter().any(is_about_all);
    STORIES.iter().filter(is_told).copied()
}

fn tell(server: &str, clients: &mut [Client; 2], story: &[&str], protocol: &str) -> Vec<String> {
    for client in clients.iter_mut() {
        client.ask(&format!("HELLO {protocol}"));
        assert_eq!(client.ask("FLUSHALL"), "+OK|", "{server}");
    }
    let said = |line: &&str| match line.strip_prefix('|') {
        Some(line) => clients[1].ask(&line_in_one_group(line)),
        None => clients[0].ask(&line_in_one_group(line)),
    };
    story.iter().map(said).collect()
}

#[test]
fn stories_are_answered_as_by_redis() {
    let (quipu, redis) = (Quipu::start(), Redis::start());
    for protocol in ["2", "3"] {
        for story in stories() {
            let ours = tell("quipu", &mut [quipu.client(), quipu.client()], story, protocol);
            let theirs = tell("redis", &mut [redis.client(), redis.client()], story, protocol);
            assert_eq!(ours, theirs, "RESP{protocol} {story:?}");
        }
    }
}

/// All that one connection says, in one write: watching is in step with the commands around it.
#[test]
fn pipelines_are_answered_as_by_redis() {
    let (quipu, redis) = (Quipu::start(), Redis::start());
    for story in stories() {
        let story: Vec<&str> = story.iter().map(|line| line.trim_start_matches('|')).collect();
        let frames: Vec<u8> = story.iter().flat_map(|line| command(&line_in_one_group(line))).collect();
        let [ours, theirs] = [quipu.client(), redis.client()].map(|mut client| {
            client.ask("FLUSHALL");
            client.send(&frames);
            story.iter().map(|_| client.reply()).collect::<Vec<_>>()
        });
        assert_eq!(ours, theirs, "{story:?}");
    }
}

#[test]
fn a_key_that_expires_while_it_is_watched_has_changed() {
    let (quipu, redis) = (Quipu::start(), Redis::start());
    for (mut client, mut other) in [(quipu.client(), quipu.client()), (redis.client(), redis.client())] {
        client.ask(&line_in_one_group("SET a 1 PX 30"));
        client.ask(&line_in_one_group("WATCH a"));
        let begun = std::time::Instant::now();
        while other.ask(&line_in_one_group("EXISTS a")) != ":0|" {
            assert!(begun.elapsed() < PATIENCE, "it never expired");
        }
        assert_eq!(client.ask("MULTI"), "+OK|");
        assert_eq!(client.ask(&line_in_one_group("INCR b")), "+QUEUED|");
        assert_eq!(client.ask("EXEC"), "*-1|");
        assert_eq!(client.ask(&line_in_one_group("GET b")), "$-1|");
    }
}

/// What counts is the state and not the touch: the documented difference.
#[test]
fn a_key_that_came_and_went_is_as_it_was() {
    let quipu = Quipu::start();
    let (mut client, mut other) = (quipu.client(), quipu.client());
    for (line, expected) in [
        ("WATCH a", "+OK|"),
        ("|INCR a", ":1|"),
        ("|DEL a", ":1|"),
        ("MULTI", "+OK|"),
        ("INCR b", "+QUEUED|"),
        ("EXEC", "*1|:1|"),
    ] {
        let said = match line.strip_prefix('|') {
            Some(line) => other.ask(&line_in_one_group(line)),
            None => client.ask(&line_in_one_group(line)),
        };
        assert_eq!(said, expected, "{line}");
    }
}

/// Two connections that each read, watch and write back what they read plus one: no addition is lost.
#[test]
fn an_optimistic_loop_loses_nothing() {
    const ROUNDS: i64 = 200;
    let quipu = Quipu::start();
    let worker = |mut client: Client| {
        for _ in 0..ROUNDS {
            loop {
                client.ask("WATCH a");
                let value = client.ask("GET a");
                let value: i64 = value.split('|').nth(1).and_then(|text| text.parse().ok()).unwrap_or(0);
                client.ask("MULTI");
                client.ask(&format!("SET a {}", value + 1));
                match client.ask("EXEC").as_str() {
                    "*-1|" => {}
                    done => {
                        assert_eq!(done, "*1|+OK|");
                        break;
                    }
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let client = quipu.client();
            scope.spawn(move || worker(client));
        }
    });
    assert_eq!(quipu.client().ask("GET a"), format!("$3|{}|", 2 * ROUNDS));
}

#[test]
fn watching_has_a_limit() {
    let quipu = Quipu::start();
    let mut client = quipu.client();
    let keys = |range: std::ops::Range<u32>| range.map(|n| format!(" k{n}")).collect::<String>();
    assert_eq!(client.ask(&format!("WATCH{}", keys(0..32_768))), "+OK|");
    assert_eq!(client.ask("WATCH one-more"), "-ERR a connection can watch at most 32768 keys|");
    assert_eq!(client.ask("MULTI"), "+OK|");
    assert_eq!(client.ask("INCR a"), "+QUEUED|");
    assert_eq!(client.ask("EXEC"), "*1|:1|");
    assert_eq!(client.ask("WATCH one-more"), "+OK|");
}

//! Commands Redis 7.0 does not have, and the limits of this server: literal bytes, line ends shown as `|`.

mod resp_support;

use resp_support::{Client, Quipu, command, same_reply};

/// Runs lines on a new connection each story; every reply must be the given one.
fn tell(quipu: &Quipu, stories: &[&[(&str, &str)]]) {
    for story in stories {
        let mut client = quipu.client();
        assert_eq!(client.ask("FLUSHALL"), "+OK|");
        for (line, expected) in *story {
            let reply = client.ask(line);
            assert!(same_reply(line, &reply, expected), "{line} gave {reply}, not {expected}, in {story:?}");
        }
    }
}

const SYNTAX: &str = "-ERR syntax error|";

#[test]
fn additions_with_ids_bounds_and_versions() {
    tell(
        &Quipu::start(),
        &[
            &[
                ("Q.ADD add:a 5", "*4|:5|:5|:1|:0|"),
                ("Q.ADD add:a 5 ID one", "*4|:10|:5|:2|:0|"),
                ("Q.ADD add:a 5", "*4|:15|:5|:3|:0|"),
                ("Q.ADD add:a 5 ID one", "*4|:10|:5|:2|:1|"),
                (
                    "Q.ADD add:a 6 ID one",
                    "-IDREUSED this request id was used for another request, nothing was changed|",
                ),
                ("GET add:a", "$2|15|"),
                ("Q.ADD add:b 5 ID one", "*4|:5|:5|:1|:0|"),
            ],
            &[
                ("Q.ADD lim:a 5 MAX 4", "*4|:0|:0|:0|:0|"),
                ("EXISTS lim:a", ":0|"),
                ("Q.ADD lim:a 5 MAX 4 SATURATE", "*4|:4|:4|:1|:0|"),
                ("Q.ADD lim:a -5 MIN 0 ID x", "*4|:4|:0|:1|:0|"),
                ("SET lim:a 100", "+OK|"),
                ("Q.ADD lim:a -5 MIN 0 ID x", "*4|:4|:0|:1|:1|"),
                ("Q.ADD lim:a -5 MIN 0 ID y", "*4|:95|:-5|:3|:0|"),
            ],
            &[
                ("Q.ADD v:a 1 IFVERSION 0", "*4|:1|:1|:1|:0|"),
                (
                    "Q.ADD v:a 1 IFVERSION 0",
                    "-VERSION the condition on existence or version does not hold, nothing was changed; the value is 1|",
                ),
                ("Q.ADD v:a 1 IFVERSION 1", "*4|:2|:1|:2|:0|"),
                ("Q.ADD v:a 1 PX 100000", "*4|:3|:1|:3|:0|"),
                ("TTL v:a", ":100|"),
                ("Q.ADD v:a 9223372036854775807", "-ERR increment or decrement would overflow|"),
            ],
            &[
                ("Q.ADD a", "-ERR wrong number of arguments for 'q.add' command|"),
                ("Q.ADD a x", "-ERR value is not an integer or out of range|"),
                ("Q.ADD a 1 ID", SYNTAX),
                ("Q.ADD a 1 ID ''", "-ERR an id has 1 to 255 bytes, this one has 0|"),
                ("Q.ADD a 1 FOO 1", SYNTAX),
                ("Q.ADD a 1 MIN 0 min 0", SYNTAX),
                ("Q.ADD a 1 ID x ID x", SYNTAX),
                ("Q.ADD a 1 SATURATE SATURATE", SYNTAX),
                ("Q.ADD a 1 PX 1 PX 2", SYNTAX),
                ("Q.ADD a 1 PX 9223372036854775807", "-ERR invalid expire time in 'q.add' command|"),
                ("Q.ADD a 1 PX 0", "-ERR invalid expire time in 'q.add' command|"),
                ("Q.ADD a 1 IFVERSION -1", "-ERR the version is negative|"),
                ("Q.ADD a 1 MIN 5 MAX 1", "-ERR MIN can't be greater than MAX|"),
                ("EXISTS a", ":0|"),
            ],
        ],
    );
}

#[test]
fn producer_sessions() {
    tell(
        &Quipu::start(),
        &[&[
            ("Q.BATCH p 1 1 {s}a 5 {s}b 6 {s}a 1", "*2|:1|:0|"),
            ("MGET {s}a {s}b", "*2|$1|6|$1|6|"),
            ("Q.BATCH p 1 1 {s}a 5 {s}b 6 {s}a 1", "*2|:1|:1|"),
            ("Q.BATCH p 1 5 {s}a 1", "*2|:5|:0|"),
            ("Q.BATCH p 1 3 {s}a 1", "*2|:5|:1|"),
            ("Q.BATCH p 2 1 {s}a 1", "*2|:1|:0|"),
            (
                "Q.BATCH p 1 9 {s}a 1",
                "-FENCED a newer epoch of this producer has taken over, nothing was changed|",
            ),
            ("Q.BATCH q 1 1 {s}b 1 {s}a 9223372036854775807", "-ERR increment or decrement would overflow|"),
            ("MGET {s}a {s}b", "*2|$1|8|$1|6|"),
            ("Q.BATCH p 2 2 {s}a", "-ERR wrong number of arguments for 'q.batch' command|"),
            ("Q.BATCH p 2 2 {s}a 1 {s}b", "-ERR wrong number of arguments for 'q.batch' command|"),
            ("Q.BATCH p 2 0 {s}a 1", "-ERR sequence numbers begin with 1|"),
            ("Q.BATCH p x 1 {s}a 1", "-ERR value is not an integer or out of range|"),
            ("Q.BATCH p -1 1 {s}a 1", "-ERR the epoch is negative|"),
            ("Q.BATCH '' 1 1 {s}a 1", "-ERR an id has 1 to 255 bytes, this one has 0|"),
        ]],
    );
}

#[test]
fn sums_and_tops() {
    let largest = "9223372036854775807";
    tell(
        &Quipu::start(),
        &[
            &[
                ("Q.SUM s:*", ":0|"),
                ("Q.TOP s: 3", "*0|"),
                ("SET s:a 5", "+OK|"),
                ("SET s:b -7", "+OK|"),
                ("SET s:c 20", "+OK|"),
                ("SET t:a 1000", "+OK|"),
                ("Q.SUM s:*", ":18|"),
                ("Q.SUM s:?", ":18|"),
                ("Q.SUM *:a", ":1005|"),
                ("Q.SUM s:b", ":-7|"),
                ("Q.SUM none", ":0|"),
                ("Q.TOP s: 2", "*4|$3|s:c|:20|$3|s:a|:5|"),
                ("Q.TOP '' 1", "*2|$3|t:a|:1000|"),
                ("Q.TOP s:b 10000", "*2|$3|s:b|:-7|"),
                ("DEL s:c", ":1|"),
                ("PEXPIREAT s:a 1", ":1|"),
                ("Q.SUM s:*", ":-7|"),
                ("MULTI", "+OK|"),
                ("INCRBY s:b 10", "+QUEUED|"),
                ("Q.SUM s:*", "+QUEUED|"),
                ("Q.TOP s: 1", "+QUEUED|"),
                ("EXEC", "*3|:3|:3|*2|$3|s:b|:3|"),
            ],
            &[
                (&format!("SET l:a {largest}"), "+OK|"),
                ("SET l:b 1", "+OK|"),
                ("Q.SUM l:*", "$19|9223372036854775808|"),
                ("Q.SUM l:a", &format!(":{largest}|")),
            ],
            &[
                ("Q.SUM", "-ERR wrong number of arguments for 'q.sum' command|"),
                ("Q.SUM ''", "-ERR a pattern has 1 to 512 bytes, this one has 0|"),
                ("Q.TOP a", "-ERR wrong number of arguments for 'q.top' command|"),
                ("Q.TOP a x", "-ERR value is not an integer or out of range|"),
                ("Q.TOP a 0", "-ERR count is from 1 to 10000, this one is 0|"),
                ("Q.TOP a 10001", "-ERR count is from 1 to 10000, this one is 10001|"),
            ],
        ],
    );
}

#[test]
fn in_resp3_sums_are_numbers_and_tops_are_pairs() {
    let quipu = Quipu::start();
    let mut client = quipu.client();
    assert!(client.ask("HELLO 3").starts_with('%'));
    assert_eq!(client.ask("SET l:a 9223372036854775807"), "+OK|");
    assert_eq!(client.ask("SET l:b 1"), "+OK|");
    assert_eq!(client.ask("Q.SUM l:*"), "(9223372036854775808|");
    assert_eq!(client.ask("Q.TOP l: 2"), "*2|*2|$3|l:a|:9223372036854775807|*2|$3|l:b|:1|");
}

#[test]
fn policies() {
    let limit = "-LIMIT the result would be above the ceiling, nothing was changed; the value is 10|";
    let disabled = "-DISABLED a policy disables writes to this counter|";
    let policy = r#"{"pattern":"stock:*","min":0,"max":10,"saturate":false,"ttlMs":null,"disabled":false}"#;
    let floor = r#"{"pattern":"stock:*","min":5,"max":null,"saturate":false,"ttlMs":null,"disabled":false}"#;
    tell(
        &Quipu::start(),
        &[&[
            ("Q.POLICY LIST", "*0|"),
            ("Q.POLICY GET stock:*", "$-1|"),
            (r#"Q.POLICY SET stock:* {"min":0,"max":10}"#, "+OK|"),
            ("Q.POLICY GET stock:*", &format!("${}|{policy}|", policy.len())),
            ("Q.POLICY LIST", &format!("*1|${}|{policy}|", policy.len())),
            ("INCRBY stock:1 10", ":10|"),
            ("INCR stock:1", limit),
            ("SET stock:1 11", limit),
            ("INCREX stock:1 BYINT 5 SATURATE", "*2|:10|:0|"),
            ("Q.ADD stock:1 1", "*4|:10|:0|:1|:0|"),
            ("MSET {stock:1}other 1 stock:1 11", limit),
            ("EXISTS {stock:1}other", ":0|"),
            (r#"Q.POLICY SET stock:* {"disabled":true}"#, "+OK|"),
            ("INCR stock:1", disabled),
            ("DEL stock:1 {stock:1}other", disabled),
            ("EXPIRE stock:1 10", disabled),
            ("Q.ADD stock:1 1", disabled),
            ("INCREX stock:1", disabled),
            ("GET stock:1", "$2|10|"),
            ("Q.POLICY SET '' {}", "-ERR a pattern has 1 to 512 bytes, this one has 0|"),
            ("Q.POLICY DEL ''", "-ERR a pattern has 1 to 512 bytes, this one has 0|"),
            ("Q.POLICY DEL stock:*", ":1|"),
            ("Q.POLICY DEL stock:*", ":0|"),
            ("DEL stock:1", ":1|"),
            (
                r#"Q.POLICY SET x {"min":5,"max":1}"#,
                "-ERR the policy is not valid: `min`: 5 is above `max` 1|",
            ),
            ("Q.POLICY SET x", "-ERR wrong number of arguments for 'q.policy|set' command|"),
            ("Q.POLICY FOO", "-ERR unknown subcommand 'FOO'. Try Q.POLICY HELP.|"),
            ("MULTI", "+OK|"),
            ("Q.POLICY SET stock:* {\"min\":5}", "+QUEUED|"),
            ("Q.POLICY GET stock:*", "+QUEUED|"),
            ("Q.POLICY DEL stock:*", "+QUEUED|"),
            ("Q.POLICY LIST", "+QUEUED|"),
            ("EXEC", &format!("*4|+OK|${}|{floor}|:1|*0|", floor.len())),
        ]],
    );
}

#[test]
fn statistics_of_a_counter() {
    let quipu = Quipu::start();
    let mut client = quipu.client();
    client.ask("HELLO 3");
    client.ask("Q.ADD a 5");
    let reply = client.ask("Q.STAT a");
    for part in ["%8|", "$6|exists|:1|", "$5|value|:5|", "$7|version|:1|", "$4|pttl|:-1|", "$4|kind|$3|sum|"]
    {
        assert!(reply.contains(part), "{part} in {reply}");
    }
    assert!(client.ask("Q.STAT nosuch").contains("$6|exists|:0|"));
}

#[test]
fn values_and_keys_that_are_refused() {
    let long = format!("INCR {}", "k".repeat(513));
    let longest = format!("INCR {}", "k".repeat(512));
    let id = format!("Q.ADD a 1 ID {}", "i".repeat(256));
    let not_integer = "-ERR value is not an integer or out of range|";
    let empty = "-ERR a key has 1 to 512 bytes, this one has 0|";
    tell(
        &Quipu::start(),
        &[&[
            ("SET a hello", not_integer),
            ("SET a 1.5", not_integer),
            ("SET a 007", not_integer),
            ("SETNX a x", not_integer),
            ("GETSET a x", not_integer),
            ("MSET a 1 b x", not_integer),
            ("DBSIZE", ":0|"),
            ("GET ''", empty),
            ("INCR ''", empty),
            ("MGET a ''", empty),
            ("DEL ''", empty),
            (&long, "-ERR a key has 1 to 512 bytes, this one has 513|"),
            (&longest, ":1|"),
            (&id, "-ERR an id has 1 to 255 bytes, this one has 256|"),
        ]],
    );
}

#[test]
fn commands_that_are_not_there() {
    let quipu = Quipu::start();
    let mut client = quipu.client();
    for line in ["LPUSH a 1", "Q.NOSUCH a 1"] {
        let (name, arguments) = line.split_once(' ').unwrap_or((line, ""));
        let quoted: String = arguments.split(' ').map(|word| format!("'{word}' ")).collect();
        let expected = format!("-ERR unknown command '{name}', with args beginning with: {quoted}|");
        assert_eq!(client.ask(line), expected);
    }
    // What looks like a frequent one, but for what is behind it.
    for name in ["GET ", "GET\0", "INCR  "] {
        client.send(format!("*2\r\n${}\r\n{name}\r\n$1\r\na\r\n", name.len()).as_bytes());
        let reply = client.reply();
        assert!(reply.starts_with("-ERR unknown command"), "{name:?} gave {reply}");
    }
}

#[test]
fn bytes_that_are_no_commands_end_the_connection() {
    let quipu = Quipu::start();
    for (sent, expected) in [
        (
            &b"*1\r\n$4\r\nPING\r\n*1\r\nPING\r\n*1\r\n$4\r\nPING\r\n"[..],
            "+PONG|-ERR Protocol error: expected '$', got 'P'|",
        ),
        (b"*99999999\r\n", "-ERR Protocol error: invalid multibulk length|"),
        (b"*1\r\n$99999999\r\n", "-ERR Protocol error: invalid bulk length|"),
        (b"PING\r\nPING \"x\r\n", "+PONG|-ERR Protocol error: unbalanced quotes in request|"),
        (b"INCR a\r\nPING hi\r\nQUIT\r\nPING\r\n", ":1|$2|hi|+OK|"),
        // A browser that was tricked into speaking to this port.
        (b"POST / HTTP/1.1\r\nHost: localhost\r\n\r\nSET a 5\r\n", ""),
        (b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n", ""),
        (b"", ""),
    ] {
        let mut client = quipu.client();
        client.send(sent);
        client.end();
        assert_eq!(client.rest(), expected, "{}", sent.escape_ascii());
    }
    assert_eq!(quipu.client().ask("GET a"), "$1|1|");
}

#[test]
fn commands_arrive_in_any_pieces() {
    let quipu = Quipu::start();
    let mut client = quipu.client();
    let frames =
        [command("SET a 41"), b"INCR a\r\n".to_vec(), command("MGET a nosuch"), command("ECHO bytes")]
            .concat();
    for size in [1, 2, 3, 7, 16] {
        for piece in frames.chunks(size) {
            client.send(piece);
        }
        let replies: Vec<String> = (0..4).map(|_| client.reply()).collect();
        assert_eq!(replies, ["+OK|", ":42|", "*2|$2|42|$-1|", "$5|bytes|"], "pieces of {size}");
    }
}

#[test]
fn replies_can_be_turned_off() {
    let quipu = Quipu::start();
    let mut client = quipu.client();
    let lines = [
        "INCR a",
        "CLIENT REPLY SKIP",
        "INCR a",
        "INCR a",
        "CLIENT REPLY OFF",
        "INCR a",
        "NOSUCH",
        "PING",
        "SCAN 0",
        "MULTI",
        "INCR a",
        "EXEC",
        "CLIENT REPLY SKIP",
        "CLIENT REPLY ON",
        "GET a",
    ];
    client.send(&lines.iter().flat_map(|line| command(line)).collect::<Vec<u8>>());
    let replies: Vec<String> = (0..4).map(|_| client.reply()).collect();
    assert_eq!(replies, [":1|", ":3|", "+OK|", "$1|5|"]);
    assert_eq!(client.ask("PING"), "+PONG|");
}

#[test]
fn too_many_connections_are_told_so() {
    let quipu = Quipu::start();
    let mut first = quipu.client();
    assert_eq!(first.ask("CONFIG SET maxclients 2"), "+OK|");
    let mut second = quipu.client();
    assert_eq!(second.ask("PING"), "+PONG|");
    assert_eq!(quipu.client().rest(), "-ERR max number of clients reached|");
    assert_eq!(first.ask("CONFIG SET maxclients 3"), "+OK|");
    assert_eq!(quipu.client().ask("PING"), "+PONG|");
}

/// Replies that nobody takes stop the work for that connection and no other; once they are taken it goes on.
#[test]
fn a_connection_that_does_not_read_is_not_served() {
    let quipu =
        Quipu::start_with(quipu_store::Durability::None, |options| options.output_bytes_max = 64 * 1024);
    let mut greedy = quipu.client();
    let mut sender = greedy.duplicate();
    let word = "x".repeat(10_000);
    let frames = command(&format!("ECHO {word}")).repeat(2_000);
    let sending = std::thread::spawn(move || sender.send(&frames));
    let mut modest = quipu.client();
    for expected in 1..=100 {
        assert_eq!(modest.ask("INCR a"), format!(":{expected}|"));
    }
    for _ in 0..2_000 {
        assert_eq!(greedy.reply(), format!("$10000|{word}|"));
    }
    sending.join().expect("all was sent");
}

#[test]
fn a_connection_that_never_reads_is_closed() {
    let quipu = Quipu::start_with(quipu_store::Durability::None, |options| {
        options.output_bytes_max = 64 * 1024;
        options.stalled_ms = 0;
    });
    let mut watcher = quipu.client();
    let mut stalled = quipu.client();
    stalled.ask("CLIENT SETNAME stalled");
    let mut sender = stalled.duplicate();
    let frames = command(&format!("ECHO {}", "x".repeat(10_000))).repeat(2_000);
    let sending = std::thread::spawn(move || sender.try_send(&frames));
    while watcher.ask("CLIENT LIST").contains("name=stalled") {}
    sending.join().expect("the sender ended");
}

#[test]
fn commands_with_many_keys() {
    let quipu = Quipu::start();
    let mut client = quipu.client();
    let keys: Vec<String> = (0..65_536).map(|number| format!("key:{number}")).collect();
    let pairs: Vec<String> = keys.iter().map(|key| format!("{key} 1")).collect();
    assert_eq!(client.ask(&format!("MSET {}", pairs.join(" "))), "+OK|");
    assert_eq!(client.ask("DBSIZE"), ":65536|");
    assert_eq!(client.ask(&format!("EXISTS {}", keys.join(" "))), ":65536|");
    let many = format!("MGET {}", vec!["a"; 65_537].join(" "));
    assert_eq!(client.ask(&many), "-ERR too many keys in one command, at most 65536|");
    let seen: std::collections::BTreeSet<String> = scan_all(&mut client).into_iter().collect();
    assert_eq!(seen.len(), 65_536);
    assert!(client.ask("KEYS key:1999*").starts_with("*11|"));
    assert_eq!(client.ask(&format!("DEL {}", keys.join(" "))), ":65536|");
    assert_eq!(client.ask("DBSIZE"), ":0|");
}

fn scan_all(client: &mut Client) -> Vec<String> {
    let (mut keys, mut cursor) = (Vec::new(), "0".to_owned());
    loop {
        let reply = client.ask(&format!("SCAN {cursor} COUNT 1000"));
        let parts: Vec<&str> = reply.split('|').collect();
        cursor = parts[2].to_owned();
        keys.extend(parts[4..].iter().skip(1).step_by(2).map(|key| (*key).to_owned()));
        if cursor == "0" {
            return keys;
        }
    }
}

#[test]
fn connections_know_of_each_other() {
    let quipu = Quipu::start();
    let (mut one, mut two) = (quipu.client(), quipu.client());
    assert_eq!(one.ask("CLIENT SETNAME one"), "+OK|");
    assert_eq!(two.ask("CLIENT SETNAME two"), "+OK|");
    assert_eq!(two.ask("CLIENT SETINFO LIB-NAME lib"), "+OK|");
    let list = one.ask("CLIENT LIST");
    for part in ["name=one", "name=two", "lib-name=lib", "cmd=client", "resp=2", "user=default"] {
        assert!(list.contains(part), "{part} in {list}");
    }
    assert!(!two.ask("CLIENT INFO").contains("name=one"));
    let id = two.ask("CLIENT ID");
    assert_eq!(one.ask(&format!("CLIENT KILL ID {}", id.trim_matches([':', '|']))), ":1|");
    assert_eq!(two.rest(), "");
    let id = one.ask("CLIENT ID");
    assert_eq!(one.ask(&format!("CLIENT KILL ID {}", id.trim_matches([':', '|']))), ":0|");
    assert_eq!(one.ask(&format!("CLIENT KILL ID {} SKIPME no", id.trim_matches([':', '|']))), ":1|");
    assert_eq!(one.rest(), "");
}

#[test]
fn info_describes_the_server() {
    let quipu = Quipu::start();
    let mut client = quipu.client();
    client.send(&[command("INCR a"), command("INFO")].concat());
    assert_eq!(client.reply(), ":1|");
    let info = client.reply();
    for part in
        ["# Server|", "redis_version:7.", "connected_clients:1|", "durability:", "# Keyspace|db0:keys=1,"]
    {
        assert!(info.contains(part), "{part} in {info}");
    }
    let section = client.ask("INFO keyspace");
    assert!(section.contains("|# Keyspace|") && !section.contains("# Server"), "{section}");
    let titles = |reply: &str| -> Vec<String> {
        reply.split('|').filter_map(|line| line.strip_prefix("# ").map(str::to_owned)).collect()
    };
    let default = [
        "Server",
        "Clients",
        "Memory",
        "Persistence",
        "Stats",
        "Replication",
        "CPU",
        "Modules",
        "Cluster",
        "Keyspace",
    ];
    for (line, expected) in [
        ("INFO", &default[..]),
        ("INFO default", &default),
        ("INFO CPU stats cpu", &["Stats", "CPU"]),
        ("INFO default commandstats nosuch", &[&default[..8], &["Commandstats"], &default[8..]].concat()),
    ] {
        assert_eq!(titles(&client.ask(line)), expected, "{line}");
    }
    assert_eq!(titles(&client.ask("INFO all")), titles(&client.ask("INFO everything")));
    let calls = client.ask("INFO commandstats");
    for part in ["|cmdstat_incr:calls=1,usec=0,", "|cmdstat_info:calls=9,"] {
        assert!(calls.contains(part), "{part} in {calls}");
    }
    assert!(!calls.contains("flushall"), "{calls}");
    assert_eq!(client.ask("CONFIG RESETSTAT"), "+OK|");
    assert_eq!(titles(&client.ask("INFO commandstats")), ["Commandstats"]);
    // Every line is a title, a pair or blank: monitors cut at the first colon.
    let everything = client.ask("INFO everything");
    let (_, lines) = everything.split_once('|').unwrap_or_default();
    for line in lines.split('|').filter(|line| !line.is_empty() && !line.starts_with("# ")) {
        assert!(line.split_once(':').is_some_and(|(name, _)| !name.contains(' ')), "{line}");
    }
}

#[test]
fn everything_is_there_after_a_restart() {
    let mut quipu = Quipu::start();
    let mut client = quipu.client();
    for line in [
        "INCRBY a 41",
        "SET b 5 EXAT 99999999999",
        "SET c 1",
        "DEL c",
        r#"Q.POLICY SET p:* {"max":1}"#,
        "Q.ADD a 1 ID once",
    ] {
        client.ask(line);
    }
    quipu.restart();
    tell_without_flush(
        &quipu,
        &[
            ("MGET a b c", "*3|$2|42|$1|5|$-1|"),
            ("EXPIRETIME b", ":99999999999|"),
            ("Q.ADD a 1 ID once", "*4|:42|:1|:2|:1|"),
            (
                "INCRBY p:1 2",
                "-LIMIT the result would be above the ceiling, nothing was changed; the value is 0|",
            ),
            ("DBSIZE", ":2|"),
        ],
    );
}

fn tell_without_flush(quipu: &Quipu, story: &[(&str, &str)]) {
    let mut client = quipu.client();
    for (line, expected) in story {
        assert_eq!(client.ask(line), *expected, "{line}");
    }
}

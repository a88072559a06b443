//! Uniques, windows, quotas and holds over RESP. Sketches are compared with those of a real Redis byte for byte; what Redis does not
//! have is told in stories.
#![allow(clippy::unwrap_used)] // a panic here is a failed test

mod resp_support;

use quipu_wire::resp::encode_command;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use resp_support::{Client, Quipu, Redis, same_reply};

fn ask(client: &mut Client, words: &[&[u8]]) -> Vec<u8> {
    let mut frame = Vec::new();
    encode_command(&mut frame, words);
    client.send(&frame);
    client.reply_bytes().unwrap()
}

/// The payload of a bulk string.
fn content(reply: &[u8]) -> &[u8] {
    let start = reply.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    &reply[start..reply.len() - 2]
}

/// A sketch without the field in which Redis remembers what it counted last.
fn registers(sketch: &[u8]) -> Vec<u8> {
    let mut sketch = sketch.to_vec();
    sketch[8..16].fill(0);
    sketch
}

/// Adds the same items to both, and compares what each says.
fn add_to_both(both: &mut [Client; 2], key: &[u8], items: &[Vec<u8>]) {
    // Without items a sketch is made all the same.
    let chunks = if items.is_empty() { vec![items] } else { items.chunks(1000).collect() };
    for some in chunks {
        let words: Vec<&[u8]> =
            [&b"PFADD"[..], key].into_iter().chain(some.iter().map(Vec::as_slice)).collect();
        let replies = both.each_mut().map(|client| ask(client, &words));
        assert_eq!(replies[0], replies[1], "PFADD of {} items to {}", some.len(), key.escape_ascii());
    }
}

fn same(both: &mut [Client; 2], words: &[&[u8]]) -> Vec<u8> {
    let replies = both.each_mut().map(|client| ask(client, words));
    let shown: Vec<String> =
        words.iter().map(|word| word[..word.len().min(30)].escape_ascii().to_string()).collect();
    assert_eq!(replies[0], replies[1], "{shown:?}");
    replies[0].clone()
}

#[test]
fn sketches_are_those_of_redis() {
    let (quipu, redis) = (Quipu::start(), Redis::start());
    let mut both = [quipu.client(), redis.client()];
    let mut random = SmallRng::seed_from_u64(14);
    for (number, count) in
        [0, 1, 2, 50, 255, 256, 257, 300, 1_000, 2_000, 3_000, 10_000, 60_000].into_iter().enumerate()
    {
        let items: Vec<Vec<u8>> =
            (0..count).map(|_| (0..random.random_range(1..12)).map(|_| random.random()).collect()).collect();
        let key = format!("set:{number}");
        add_to_both(&mut both, key.as_bytes(), &items);
        same(&mut both, &[b"PFCOUNT", key.as_bytes()]);
        let values = both.each_mut().map(|client| ask(client, &[b"GET", key.as_bytes()]));
        assert_eq!(registers(content(&values[0])), registers(content(&values[1])), "{key}");
        same(&mut both, &[b"STRLEN", key.as_bytes()]);
        same(&mut both, &[b"TYPE", key.as_bytes()]);
        same(&mut both, &[b"OBJECT", b"ENCODING", key.as_bytes()]);
        // What Redis has dumped, packed or not, becomes the same here; and the other way round.
        let dumps = both.each_mut().map(|client| ask(client, &[b"DUMP", key.as_bytes()]));
        let copy = format!("copy:{number}");
        for (from, to) in [(1, 0), (0, 1)] {
            let restored =
                ask(&mut both[to], &[b"RESTORE", copy.as_bytes(), b"0", content(&dumps[from]), b"REPLACE"]);
            assert_eq!(restored, b"+OK\r\n", "{key} from {from}");
            let back = ask(&mut both[to], &[b"GET", copy.as_bytes()]);
            assert_eq!(content(&back), content(&values[from]), "{key} from {from}");
            let set = ask(&mut both[to], &[b"SET", copy.as_bytes(), content(&values[from])]);
            assert_eq!(set, b"+OK\r\n");
            let back = ask(&mut both[to], &[b"GET", copy.as_bytes()]);
            assert_eq!(content(&back), content(&values[from]), "{key} from {from}");
        }
        same(&mut both, &[b"PFCOUNT", copy.as_bytes()]);
    }
    for merged in [
        &["set:1", "set:2"][..],
        &["set:3", "set:4", "nosuch"],
        &["set:5", "set:9"],
        &["set:11", "set:12"],
        &[],
    ] {
        let keys = merged.iter().map(|key| key.as_bytes());
        same(&mut both, &[&b"PFMERGE"[..], b"all"].into_iter().chain(keys.clone()).collect::<Vec<_>>());
        same(&mut both, &[b"PFCOUNT", b"all"]);
        let values = both.each_mut().map(|client| ask(client, &[b"GET", b"all"]));
        if content(&values[1]).get(4) == Some(&0) {
            // Dense: one form for what was seen.
            assert_eq!(registers(content(&values[0])), registers(content(&values[1])), "{merged:?}");
        }
        if !merged.is_empty() {
            same(&mut both, &[&b"PFCOUNT"[..]].into_iter().chain(keys).collect::<Vec<_>>());
        }
    }
}

#[test]
fn sketches_and_numbers_are_told_apart_as_in_redis() {
    let (quipu, redis) = (Quipu::start(), Redis::start());
    let mut both = [quipu.client(), redis.client()];
    for line in [
        "PFADD",
        "PFCOUNT",
        "PFMERGE",
        "SET number 5",
        "PFADD number a",
        "PFCOUNT number",
        "PFMERGE number number",
        "PFADD sketch a b",
        "PFMERGE sketch number",
        "PFCOUNT sketch number",
        "INCR sketch",
        "INCRBY sketch 2",
        "DECR sketch",
        "EXISTS sketch nosuch",
        "PFADD sketch",
        "PFADD fresh",
        "PFADD fresh",
        "PFCOUNT fresh nosuch",
        "EXPIRE sketch 100",
        "TTL sketch",
        "PFADD sketch c",
        "TTL sketch",
        "PERSIST sketch",
        "DEL sketch",
        "PFCOUNT sketch",
        "MULTI",
        "PFADD m a b",
        "PFCOUNT m",
        "PFADD m b",
        "INCR n",
        "EXEC",
    ] {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        same(&mut both, &words);
    }
}

fn tell(client: &mut Client, story: &[(&str, &str)]) {
    for (line, expected) in story {
        let reply = client.ask(line);
        assert!(same_reply(line, &reply, expected), "{line} gave {reply}, not {expected}");
    }
}

/// The name in the reply of Q.HOLD.
fn hold(client: &mut Client, line: &str) -> String {
    let reply = client.ask(line);
    let parts: Vec<&str> = reply.split('|').collect();
    assert_eq!(parts[0], "*2", "{line} gave {reply}");
    parts[2].to_owned()
}

const HOLD_ENDED: &str = "-HOLD the hold was committed, voided or has expired, nothing was changed|";

#[test]
fn holds_count_until_they_end_once() {
    let mut quipu = Quipu::start();
    let mut client = quipu.client();
    let first = hold(&mut client, "Q.HOLD seats 3 600000 MAX 10 ID r1");
    assert_eq!(hold(&mut client, "Q.HOLD seats 3 600000 MAX 10 ID r1"), first, "a retry gets the same hold");
    let second = hold(&mut client, "Q.HOLD seats 5 600000 MAX 10");
    let above = "-LIMIT the result would be above the ceiling, nothing was changed; the value is 0|";
    tell(
        &mut client,
        &[
            ("Q.HOLD seats 3 600000 MAX 10", above),
            ("GET seats", "$1|0|"),
            ("Q.ADD seats 3 MAX 10", "*4|:0|:0|:2|:0|"),
            ("Q.ADD seats 2 MAX 10", "*4|:2|:2|:3|:0|"),
            (
                &format!("Q.COMMIT {first} 4"),
                "-HOLD that is more than the hold has set aside, nothing was changed|",
            ),
            (&format!("Q.COMMIT {first} 2"), "*4|:4|:2|:4|:0|"),
            (&format!("Q.COMMIT {first} 2"), "*4|:4|:2|:4|:1|"),
            (&format!("Q.COMMIT {first}"), HOLD_ENDED),
            (&format!("Q.VOID {first}"), HOLD_ENDED),
        ],
    );
    quipu.restart();
    let mut client = quipu.client();
    tell(
        &mut client,
        &[
            (&format!("Q.COMMIT {first} 2"), "*4|:4|:2|:4|:1|"),
            ("Q.ADD seats 2 MAX 10", "*4|:4|:0|:4|:0|"),
            (&format!("Q.VOID {second}"), "*4|:4|:0|:5|:0|"),
            ("Q.ADD seats 6 MAX 10", "*4|:10|:6|:6|:0|"),
            (
                "Q.HOLD seats 1 2592000001",
                "-ERR the time must be 1 to 2592000000 milliseconds, which is 30 days|",
            ),
            ("Q.VOID nonsense", "-ERR that is not the name of a hold; it is what Q.HOLD answers|"),
            ("Q.HOLD seats 0 1000", "-ERR the amount is zero: there is nothing to set aside|"),
            ("Q.HOLD seats 1 0", "-ERR the number of milliseconds is zero|"),
        ],
    );
    // What counts down is set aside from below.
    client.ask("SET stock 5");
    let down = hold(&mut client, "Q.HOLD stock -4 600000 MIN 0");
    tell(
        &mut client,
        &[
            ("Q.ADD stock -2 MIN 0", "*4|:5|:0|:2|:0|"),
            (&format!("Q.COMMIT {down} -3"), "*4|:2|:-3|:3|:0|"),
            ("Q.ADD stock -2 MIN 0", "*4|:0|:-2|:4|:0|"),
        ],
    );
    // Of another life of its counter nobody knows a hold.
    let gone = hold(&mut client, "Q.HOLD stock 1 600000");
    let unknown = "-NOHOLD there is no such hold, nothing was changed; it is named by what was answered when it was made|";
    tell(
        &mut client,
        &[
            ("DEL stock", ":1|"),
            (&format!("Q.VOID {gone}"), unknown),
            ("INCR stock", ":1|"),
            (&format!("Q.COMMIT {gone}"), unknown),
            ("GET stock", "$1|1|"),
        ],
    );
}

#[test]
fn quotas_leave_room_or_say_no() {
    let mut quipu = Quipu::start();
    let mut client = quipu.client();
    let shape = |reply: &str| reply.split('|').take(3).collect::<Vec<_>>().join(" ");
    for (line, expected) in [
        ("Q.ACQUIRE api 3 10 3600000", "*3 :1 :7"),
        ("Q.ACQUIRE api 8 10 3600000", "*3 :0 :7"),
        ("Q.ACQUIRE api 7 10 3600000 ID a", "*3 :1 :0"),
        ("Q.ACQUIRE api 7 10 3600000 ID a", "*3 :1 :0"),
        ("Q.ACQUIRE api 1 10 3600000", "*3 :0 :0"),
        ("Q.ACQUIRE api 1 10 3600000 SOFT", "*3 :1 :0"),
        ("Q.ACQUIRE api 1 20 3600000", "*3 :1 :8"),
        ("Q.ACQUIRE plain 2 3 0", "*3 :1 :1"),
        ("Q.ACQUIRE plain 2 3 0", "*3 :0 :1"),
    ] {
        let reply = client.ask(line);
        assert_eq!(shape(&reply), expected, "{line} gave {reply}");
    }
    quipu.restart();
    let mut client = quipu.client();
    tell(
        &mut client,
        &[
            ("Q.WGET api 3600000", ":12|"),
            ("GET api", "$2|12|"),
            ("Q.WGET nosuch 1000", ":0|"),
            (
                "Q.WGET plain 1000",
                "-WRONGTYPE the counter counts something else (sums, uniques, or either of them by time), nothing was changed|",
            ),
            (
                "Q.ACQUIRE plain 1 10 1000",
                "-WRONGTYPE the counter keeps no such window: it counts without time, counts uniques, cuts time in another way, or in buckets too small for so long a window, which a policy with that window changes; nothing was counted; give 0 as the window for the counter's own, or use another key|",
            ),
            ("Q.ACQUIRE api -1 10 1000", "-ERR the amount is negative|"),
            ("Q.ACQUIRE api 1 10 1000 HARD", "-ERR syntax error|"),
            ("Q.ACQUIRE api 1 10", "-ERR wrong number of arguments for 'q.acquire' command|"),
        ],
    );
}

#[test]
fn several_limits_all_leave_room_or_nothing_is_counted() {
    let mut quipu = Quipu::start();
    let mut client = quipu.client();
    let shape = |reply: &str| reply.split('|').take(4).collect::<Vec<_>>().join(" ");
    let both = |id: &str, amount: u32| {
        format!("Q.ACQUIREALL {id} {{a}}:day {amount} 10 86400000 {{a}}:minute {amount} 4 60000")
    };
    for (line, expected) in [
        // `-` is for the empty id, which a line has no word for.
        (both("-", 3), "*4 :1 :1 :1"),
        (both("-", 2), "*4 :0 :1 :1"),
        (both("x", 1), "*4 :1 :1 :0"),
        (both("x", 1), "*4 :1 :1 :0"),
        ("Q.ACQUIREALL - {a}:day 7 10 86400000".into(), "*4 :0 :0 :6"),
        // Twice the same counter, under one id.
        ("Q.ACQUIREALL y {a}:day 1 10 86400000 {a}:day 2 10 86400000".into(), "*4 :1 :1 :3"),
        ("Q.ACQUIREALL y {a}:day 1 10 86400000 {a}:day 2 10 86400000".into(), "*4 :1 :0 :3"),
    ] {
        let words: Vec<&str> = line.split(' ').map(|word| if word == "-" { "" } else { word }).collect();
        let words: String = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
        client.send(format!("*{}\r\n{words}", line.split(' ').count()).as_bytes());
        let reply = client.reply();
        assert_eq!(shape(&reply), expected, "{line} gave {reply}");
    }
    quipu.restart();
    let mut client = quipu.client();
    tell(
        &mut client,
        &[
            ("Q.WGET {a}:day 86400000", ":7|"),
            ("GET {a}:minute", "$1|4|"),
            ("Q.ACQUIREALL x a 1 2", "-ERR wrong number of arguments for 'q.acquireall' command|"),
            ("Q.ACQUIREALL x a 1 2 0 b 1", "-ERR wrong number of arguments for 'q.acquireall' command|"),
            ("Q.ACQUIREALL x a 1 2 0 b 1 -2 0", "-ERR the limit is negative|"),
            ("EXISTS a b", ":0|"),
        ],
    );
}

/// A limit that a policy sets binds what is set aside as it binds what is acquired.
#[test]
fn a_limit_binds_what_is_set_aside() {
    let mut quipu = Quipu::start();
    let mut client = quipu.client();
    let refused = "-QUOTA the limit leaves no room for it, nothing was counted|";
    tell(&mut client, &[(r#"Q.POLICY SET quota:* {"kind":"window","window":"1h","limit":10}"#, "+OK|")]);
    assert!(client.ask("Q.ACQUIRE quota:a 6 10 0").starts_with("*3|:1|:4|"));
    tell(&mut client, &[("Q.HOLD quota:a 5 60000", refused)]);
    let reply = client.ask("Q.HOLD quota:a 4 6000");
    assert!(reply.starts_with("*2|"), "{reply}");
    tell(&mut client, &[("Q.HOLD quota:a 1 60000", refused)]);
    // Room comes back when the hold is over, long before the window has passed.
    let reply = client.ask("Q.ACQUIRE quota:a 1 10 0");
    let reset_ms: u64 = reply.trim_end_matches('|').rsplit(':').next().unwrap().parse().unwrap();
    assert!(reply.starts_with("*3|:0|:0|") && reset_ms <= 6_000, "{reply}");
    quipu.restart();
    let mut client = quipu.client();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while client.ask("Q.HOLD quota:a 4 60000") == refused {
        assert!(std::time::Instant::now() < deadline, "the hold is over");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    tell(&mut client, &[("Q.HOLD quota:a 1 60000", refused), ("GET quota:a", "$1|6|")]);
}

#[test]
fn what_a_value_was_is_known_as_long_as_a_policy_says() {
    let quipu = Quipu::start();
    let mut client = quipu.client();
    tell(
        &mut client,
        &[
            (r#"Q.POLICY SET past:* {"history":{"minutesMs":3600000}}"#, "+OK|"),
            ("INCRBY past:a 7", ":7|"),
            ("Q.HISTORY past:a AT 1000", "$-1|"),
            ("Q.HISTORY nobody AT 99999999999999", "$-1|"),
            ("Q.HISTORY nobody HOUR", "*0|"),
            ("Q.HISTORY past:a DAY FROM 0 TO 1000", "*0|"),
            ("Q.HISTORY past:a MINUTE FROM 2000 TO 1000", "-ERR TO is earlier than FROM|"),
            ("Q.HISTORY past:a SECOND", "-ERR syntax error|"),
            ("Q.HISTORY past:a AT 1000 TO 5", "-ERR syntax error|"),
            ("Q.HISTORY past:a HOUR TO", "-ERR syntax error|"),
        ],
    );
    let now = client.ask("Q.HISTORY past:a AT 99999999999999");
    assert!(now.starts_with("*2|:1") && now.ends_with("|:7|"), "{now}");
}

/// As over HTTP.
#[test]
fn what_is_set_aside_is_among_all_there_is_to_know() {
    let quipu = Quipu::start();
    let mut client = quipu.client();
    client.ask("INCR seats");
    assert!(!client.ask("Q.STAT seats").contains("held"));
    client.ask("Q.HOLD seats 2 60000");
    client.ask("Q.HOLD seats 3 60000");
    let known = client.ask("Q.STAT seats");
    assert!(known.contains("$4|held|:5|$5|holds|:2|"), "{known}");
}

#[test]
fn policies_say_what_counters_are_born_as() {
    let mut quipu = Quipu::start();
    let mut client = quipu.client();
    tell(
        &mut client,
        &[
            (
                r#"Q.POLICY SET day:* {"kind":"window","window":{"type":"calendar","unit":"day","zone":"Asia/Tokyo"}}"#,
                "+OK|",
            ),
            (
                r#"Q.POLICY SET who:* {"kind":"unique","window":{"spanMs":86400000,"bucketMs":3600000}}"#,
                "+OK|",
            ),
            (
                r#"Q.POLICY SET x {"kind":"window","window":{"type":"calendar","unit":"day","zone":"Mars/Olympus"}}"#,
                "-ERR the policy is not valid: `window.zone`: \"Mars/Olympus\" is not a time zone; use a name like Europe/Berlin|",
            ),
            (
                r#"Q.POLICY SET x {"window":{"spanMs":1000}}"#,
                "-ERR the policy is not valid: `window`: is for `kind` window or unique|",
            ),
            ("INCRBY day:a 4", ":4|"),
            ("PFADD day:a x", "-WRONGTYPE Key is not a valid HyperLogLog string value.|"),
            ("PFADD who:a u1 u2 u3", ":1|"),
            ("INCR who:a", "-ERR value is not an integer or out of range|"),
        ],
    );
    quipu.restart();
    let mut client = quipu.client();
    tell(
        &mut client,
        &[
            ("Q.WGET day:a 60000", ":4|"),
            ("INCR day:a", ":5|"),
            ("Q.WGET day:a 60000", ":5|"),
            ("PFADD who:a u3 u4", ":1|"),
            ("PFCOUNT who:a", ":4|"),
            ("Q.WGET who:a 3600000", ":4|"),
        ],
    );
}

#[test]
fn who_replaces_a_sketch_is_told_what_it_was() {
    let quipu = Quipu::start();
    let mut client = quipu.client();
    for word in ["a", "b", "c"] {
        ask(&mut client, &[b"PFADD", b"old", word.as_bytes()]);
    }
    ask(&mut client, &[b"PFADD", b"new", b"d"]);
    let (old, new) = (ask(&mut client, &[b"GET", b"old"]), ask(&mut client, &[b"GET", b"new"]));
    let (old, new) = (content(&old).to_vec(), content(&new).to_vec());
    let told = ask(&mut client, &[b"SET", b"old", b"5", b"NX", b"GET"]);
    assert_eq!(content(&told), old, "also if nothing is done");
    let told = ask(&mut client, &[b"GETSET", b"old", &new]);
    assert_eq!(content(&told), old);
    assert_eq!(client.ask("PFCOUNT old"), ":1|");
}

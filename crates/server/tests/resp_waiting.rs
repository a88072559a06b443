//! What the front does when counting waits, is full, or fails: replies keep their order, other connections go on, and
//! nothing is said that is not settled.

mod resp_support;

use std::sync::Arc;

use quipu_counting::Unavailable;
use quipu_server::resp::RespServer;
use resp_support::scripted::Scripted;
use resp_support::{Client, start_front};

fn start() -> (Arc<Scripted>, RespServer) {
    let counters = Arc::new(Scripted::default());
    let front = start_front(counters.clone(), |options| options.event_loops = 2);
    (counters, front)
}

fn wait_until_held(counters: &Scripted, count: usize) {
    let begun = std::time::Instant::now();
    while counters.held() < count {
        assert!(begun.elapsed() < resp_support::PATIENCE, "{} of {count} batches are held", counters.held());
        std::thread::yield_now();
    }
}

fn send_all(client: &mut Client, lines: &[&str]) {
    let frames: Vec<u8> = lines.iter().flat_map(|line| resp_support::command(line)).collect();
    client.send(&frames);
}

#[test]
fn a_pending_batch_keeps_the_order_of_its_connection_and_nobody_elses() {
    let (counters, front) = start();
    let mut waiting = Client::connect(front.address());
    let mut others: Vec<Client> = (0..4).map(|_| Client::connect(front.address())).collect();
    send_all(&mut waiting, &["INCR a", "PING", "INCR cold:1", "HELLO 3", "GET nosuch"]);
    wait_until_held(&counters, 1);
    send_all(&mut waiting, &["INCR a", "ECHO late"]);
    for (index, other) in others.iter_mut().enumerate() {
        assert_eq!(other.ask("INCR b"), format!(":{}|", index + 1), "others do not wait");
    }
    assert_eq!(others[0].ask("GET a"), "$-1|", "what stands with a pending request waits with it");
    counters.release();
    let replies: Vec<String> = (0..7).map(|_| waiting.reply()).collect();
    assert_eq!(replies[..3], [":1|", "+PONG|", ":1|"]);
    assert!(replies[3].starts_with('%'), "{}", replies[3]);
    assert_eq!(replies[4..], ["_|", ":2|", "$4|late|"]);
    front.stop();
}

#[test]
fn many_connections_wait_at_the_same_time() {
    let (counters, front) = start();
    let mut clients: Vec<Client> = (0..20).map(|_| Client::connect(front.address())).collect();
    for round in 1..=3 {
        for client in &mut clients {
            send_all(client, &["INCR cold:all", "PING"]);
        }
        wait_until_held(&counters, clients.len());
        counters.release();
        let mut values: Vec<String> = clients.iter_mut().map(Client::reply).collect();
        values.sort_by_key(String::len);
        values.dedup();
        assert_eq!(values.len(), clients.len(), "every increment has its own value in round {round}");
        assert!(clients.iter_mut().all(|client| client.reply() == "+PONG|"));
    }
    front.stop();
}

#[test]
fn the_answer_for_a_connection_that_is_gone_reaches_nobody_else() {
    let (counters, front) = start();
    let mut gone = Client::connect(front.address());
    let id = gone.ask("CLIENT ID");
    gone.send_line("INCR cold:1");
    wait_until_held(&counters, 1);
    let mut killer = Client::connect(front.address());
    assert_eq!(killer.ask(&format!("CLIENT KILL ID {}", id.trim_matches([':', '|']))), ":1|");
    assert_eq!(gone.rest(), "");
    let mut heirs: Vec<Client> = (0..4).map(|_| Client::connect(front.address())).collect();
    for heir in &mut heirs {
        assert_eq!(heir.ask("PING"), "+PONG|");
    }
    counters.release();
    for heir in &mut heirs {
        assert_eq!(heir.ask("ECHO mine"), "$4|mine|");
    }
    front.stop();
}

#[test]
fn refusals_of_the_service_are_errors_and_the_connection_goes_on() {
    let (counters, front) = start();
    let mut client = Client::connect(front.address());
    let busy = "-BUSY overloaded, nothing was changed: as told; retry later|";
    let full = "-FULL the disk is full: as told; nothing was changed, free some space and retry|";
    for (line, expected) in [
        ("INCR busy:1", busy),
        ("MGET a busy:1", busy),
        ("SET full:1 5", full),
        ("PING", "+PONG|"),
        ("MULTI", "+OK|"),
        ("INCR busy:1", "+QUEUED|"),
        ("PING", "+QUEUED|"),
        ("EXEC", &format!("-EXECABORT Transaction discarded because of: {}", &busy[1..])),
        ("INCR a", ":1|"),
    ] {
        assert_eq!(client.ask(line), expected, "{line}");
    }
    send_all(&mut client, &["PING", "INCR busy:1", "ECHO x"]);
    assert_eq!([client.reply(), client.reply(), client.reply()], ["+PONG|", busy, "$1|x|"]);
    client.send_line("GET cold:1");
    wait_until_held(&counters, 1);
    counters.fail_held(&Unavailable::Busy("as told".into()));
    assert_eq!(client.reply(), busy);
    assert_eq!(client.ask("PING"), "+PONG|");
    front.stop();
}

#[test]
fn watched_keys_may_have_to_be_waited_for() {
    let (counters, front) = start();
    let mut client = Client::connect(front.address());
    assert_eq!(client.ask("WATCH a busy:1"), "-BUSY overloaded, nothing was changed: as told; retry later|");
    send_all(
        &mut client,
        &["WATCH cold:1 b", "UNWATCH", "WATCH cold:1 b", "MULTI", "INCR a", "EXEC", "PING"],
    );
    // Twice to watch and once to check: the transaction looks at the keys again.
    for _ in 0..3 {
        wait_until_held(&counters, 1);
        counters.release();
    }
    for expected in ["+OK|", "+OK|", "+OK|", "+OK|", "+QUEUED|", "*1|:1|", "+PONG|"] {
        assert_eq!(client.reply(), expected);
    }
    assert_eq!(counters.batches(), [2, 2, 3]);
    // A transaction that could not be executed is over, and so is what it watched.
    for (line, expected) in [("WATCH a", "+OK|"), ("MULTI", "+OK|"), ("INCR busy:1", "+QUEUED|")] {
        assert_eq!(client.ask(line), expected, "{line}");
    }
    assert!(client.ask("EXEC").starts_with("-EXECABORT Transaction discarded because of: BUSY"));
    assert_eq!(client.ask("INCR a"), ":2|");
    assert_eq!(client.ask("MULTI"), "+OK|");
    assert_eq!(client.ask("EXEC"), "*0|");
    front.stop();
}

#[test]
fn what_is_not_settled_is_never_said() {
    let (_counters, front) = start();
    let mut client = Client::connect(front.address());
    assert_eq!(client.ask("INCR a"), ":1|");
    send_all(&mut client, &["INCR a", "PING", "INCR doomed", "INCR a"]);
    let said = client.rest();
    assert_eq!(
        said,
        "-UNAVAILABLE the data folder failed: as told; outcome unknown, retry with the same \
         request id|"
    );
    front.stop();
}

/// One settling for all commands of one pipeline, however many kinds of them.
#[test]
fn a_pipeline_is_one_batch_and_one_settling() {
    let (counters, front) = start();
    let mut client = Client::connect(front.address());
    send_all(&mut client, &["INCR a", "PING", "GET a", "MGET a b", "NOSUCH", "SET b 5", "DEL a b"]);
    let replies: Vec<String> = (0..7).map(|_| client.reply()).collect();
    assert_eq!(replies[..4], [":1|", "+PONG|", "$1|1|", "*2|$1|1|$-1|"]);
    assert_eq!(counters.batches(), [1 + 1 + 2 + 1 + 2]);
    assert_eq!(counters.settled(), [7]);
    front.stop();
}

#[test]
fn large_pipelines_are_executed_in_steps() {
    let (counters, front) = start();
    let mut client = Client::connect(front.address());
    let frames = resp_support::command("INCR a").repeat(20_000);
    // Sent from another thread: neither side can hold all of it.
    let mut sender = client.duplicate();
    let sending = std::thread::spawn(move || sender.send(&frames));
    for expected in 1..=20_000 {
        assert_eq!(client.reply(), format!(":{expected}|"));
    }
    sending.join().expect("all was sent");
    assert!(counters.batches().iter().all(|size| *size <= 4096));
    front.stop();
}

#[test]
fn a_stopping_front_answers_what_it_has() {
    let (counters, front) = start();
    let mut idle = Client::connect(front.address());
    let mut waiting = Client::connect(front.address());
    assert_eq!(idle.ask("PING"), "+PONG|");
    waiting.send_line("INCR cold:1");
    wait_until_held(&counters, 1);
    let stopping = std::thread::spawn(move || front.stop());
    assert_eq!(idle.rest(), "");
    counters.release();
    assert_eq!(waiting.rest(), ":1|");
    stopping.join().expect("it stopped");
}

#[test]
fn a_sum_that_lacks_partitions_is_an_error() {
    let (_, front) = start();
    let mut client = Client::connect(front.address());
    let reply = client.ask("Q.SUM a:*");
    let why =
        "partition 3: nobody leads it at the moment, and 1 more are missing; nothing was changed, retry|";
    assert!(reply.starts_with('-') && reply.ends_with(why), "{reply}");
    front.stop();
}

//! `quipu serve --mirror` with the real binary and a real PostgreSQL: whatever is killed, the table becomes what the counters are.

#![allow(clippy::unwrap_used)] // a panic here is a failed test

mod support;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use support::cluster::{found, wait_until_settled};
use support::postgres::Postgres;
use support::{Server, serve_command, wait_until};
use tokio_postgres::NoTls;

fn sql(postgres: &Postgres, text: &str) -> Option<Vec<tokio_postgres::Row>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(&postgres.url(), NoTls).await.ok()?;
        tokio::spawn(connection);
        client.query(text, &[]).await.ok()
    })
}

type Counters = BTreeMap<Vec<u8>, (i64, i64)>;

/// Value and version of every row.
fn table(postgres: &Postgres) -> Counters {
    let rows = sql(postgres, "SELECT key_bytes, value, version FROM quipu_counters").unwrap_or_default();
    rows.iter().map(|row| (row.get(0), (row.get(1), row.get(2)))).collect()
}

/// Value and version of every counter, as the server lists them.
fn counters(server: &Server) -> Counters {
    let reply = server.request("GET", "/api/v1/counters?order=key&limit=10000", &[], "").json();
    let counters = reply["counters"].as_array().unwrap();
    let pair = |counter: &Value| {
        let key = counter["counterKey"].as_str().unwrap().as_bytes().to_vec();
        (key, (counter["value"].as_i64().unwrap(), counter["version"].as_i64().unwrap()))
    };
    counters.iter().map(pair).collect()
}

fn wait_until_equal(server: &Server, postgres: &Postgres) {
    wait_until("the table has what the server has", || table(postgres) == counters(server));
}

fn ask(stream: &mut BufReader<TcpStream>, command: &str) -> std::io::Result<String> {
    stream.get_mut().write_all(format!("{command}\r\n").as_bytes())?;
    let mut reply = String::new();
    stream.read_line(&mut reply)?;
    Ok(reply)
}

/// Changes counters in every way until it is told to stop, or the server is gone.
fn change_all(resp: std::net::SocketAddr, seed: u64, is_over: &AtomicBool) {
    let mut random = StdRng::seed_from_u64(seed);
    let Ok(stream) = TcpStream::connect(resp) else { return };
    let mut stream = BufReader::new(stream);
    while !is_over.load(Ordering::SeqCst) {
        let key = format!("counter:{}", random.random_range(0..300));
        let command = match random.random_range(0..20) {
            0 => format!("DEL {key}"),
            1 => format!("SET {key} {} PX {}", random.random_range(0..100), random.random_range(1..300)),
            2 => format!("PFADD unique:{} {}", random.random_range(0..5), random.random_range(0..1000)),
            _ => format!("INCRBY {key} {}", random.random_range(-5..10)),
        };
        match ask(&mut stream, &command) {
            Ok(reply) if !reply.is_empty() => {}
            _ => return,
        }
    }
}

fn mirrored(data: &std::path::Path, postgres: &Postgres) -> Server {
    Server::start_with(data, &["--mirror", &postgres.url(), "--mirror-interval", "50ms"])
}

#[test]
fn every_counter_has_its_row() {
    let folder = tempfile::tempdir().unwrap();
    let postgres = Postgres::start();
    // What was counted before there was a mirror belongs into it, too.
    let server = Server::start(folder.path());
    for number in 0..20 {
        server.client(&["set", &format!("old:{number}"), &number.to_string(), "--quiet"]);
    }
    let none = server.client(&["mirror", "status"]);
    assert_eq!(none.status.code(), Some(4), "{none:?}");
    server.terminate();
    let server = mirrored(folder.path(), &postgres);
    let mut stream = BufReader::new(TcpStream::connect(server.resp).unwrap());
    for command in [
        "SET likes:post:7 41",
        "INCR likes:post:7",
        "SET brief 1 PX 200",
        "SET gone 1",
        "DEL gone",
        "PFADD seen a",
    ] {
        ask(&mut stream, command).unwrap();
    }
    wait_until("what is over has no row", || {
        let table = table(&postgres);
        table.len() == 22 && !table.contains_key(&b"brief"[..]) && table == counters(&server)
    });
    // Applications join on it.
    sql(&postgres, "CREATE TABLE posts AS SELECT 7 AS id, 'hello' AS title").unwrap();
    let joined = "SELECT title, value, kind, expires_at IS NULL FROM posts
        JOIN quipu_counters ON key = 'likes:post:' || id";
    let joined = sql(&postgres, joined).unwrap();
    let row: (String, i64, String, bool) =
        (joined[0].get(0), joined[0].get(1), joined[0].get(2), joined[0].get(3));
    assert_eq!(row, ("hello".to_owned(), 42, "sum".to_owned(), true));

    let status: Value =
        serde_json::from_slice(&server.client(&["mirror", "status", "--json"]).stdout).unwrap();
    assert!(status["ok"] == true && status["rowsWritten"].as_u64() >= Some(22), "{status}");
    assert!(status["sweptAt"].is_string() && status["lagMs"].as_u64() < Some(10_000), "{status}");
    let metrics = server.request("GET", "/metrics", &[], "").body;
    assert!(
        metrics.contains("\nquipu_mirror_ok 1\n") && metrics.contains("quipu_mirror_rows_written_total"),
        "{metrics}"
    );
    let noted = sql(&postgres, "SELECT writer, now() - as_of < interval '10 s' FROM quipu_mirror").unwrap();
    assert_eq!((noted[0].get::<_, &str>(0), noted[0].get::<_, bool>(1)), ("embedded", true));

    ask(&mut stream, "FLUSHALL").unwrap();
    ask(&mut stream, "INCR after").unwrap();
    wait_until("all others are gone", || {
        table(&postgres).into_iter().collect::<Vec<_>>() == [(b"after".to_vec(), (1, 1))]
    });
}

#[test]
fn the_table_catches_up_whatever_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let mut postgres = Postgres::start();
    for round in 0..6 {
        let server = mirrored(folder.path(), &postgres);
        let is_over = Arc::new(AtomicBool::new(false));
        let threads: Vec<_> = (0..2)
            .map(|seed| {
                let (resp, is_over) = (server.resp, Arc::clone(&is_over));
                std::thread::spawn(move || change_all(resp, round * 10 + seed, &is_over))
            })
            .collect();
        wait_until("rows are written", || table(&postgres).len() > 100);
        if round % 2 == 0 {
            postgres.restart();
            wait_until("it goes on", || {
                let status = server.request("GET", "/api/v1/mirror", &[], "").json();
                status["ok"] == true && status["errors"].as_u64() > Some(0)
            });
        }
        if round % 3 == 2 {
            // Somebody meddles with the table; what is wrong there does not stay for ever.
            let insert =
                "INSERT INTO quipu_counters VALUES ('x', 'x', 1, 1, 'sum', now()) ON CONFLICT DO NOTHING";
            for meddle in ["UPDATE quipu_counters SET value = value + 1", insert] {
                wait_until("it is done", || sql(&postgres, meddle).is_some());
            }
        }
        if round < 5 {
            server.kill();
            is_over.store(true, Ordering::SeqCst);
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            continue;
        }
        is_over.store(true, Ordering::SeqCst);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        server.kill();
    }
    let server = mirrored(folder.path(), &postgres);
    assert!(counters(&server).len() > 100);
    wait_until_equal(&server, &postgres);
}

#[test]
fn a_cluster_has_one_table() {
    let folder = tempfile::tempdir().unwrap();
    let postgres = Postgres::start();
    let data = found(folder.path(), 3);
    let start = |data: &std::path::PathBuf| {
        let mut command = serve_command(data);
        command.args(["--mirror", &postgres.url(), "--mirror-interval", "50ms"]);
        Server::spawn(command)
    };
    let mut servers: Vec<Server> = data.iter().map(start).collect();
    wait_until_settled(&servers.iter().collect::<Vec<_>>());
    let is_over = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = servers
        .iter()
        .map(|server| {
            let (resp, is_over) = (server.resp, Arc::clone(&is_over));
            std::thread::spawn(move || change_all(resp, 7, &is_over))
        })
        .collect();
    wait_until("rows are written", || table(&postgres).len() > 100);
    // Whoever leads its partitions now has to find out what it did not come to.
    servers.remove(0).kill();
    std::thread::sleep(std::time::Duration::from_secs(1));
    is_over.store(true, Ordering::SeqCst);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    wait_until_equal(&servers[0], &postgres);
    servers.insert(0, start(&data[0]));
    wait_until_settled(&servers.iter().collect::<Vec<_>>());
    let mut stream = BufReader::new(TcpStream::connect(servers[0].resp).unwrap());
    for number in 0..50 {
        ask(&mut stream, &format!("INCR counter:{number}")).unwrap();
    }
    wait_until_equal(&servers[1], &postgres);
}

//! Counters beside PostgreSQL while both go on counting, with the real binary: what was made wrong is found and corrected, all else
//! is left alone. `cargo xtask torture reconcile` runs it with a million counters.

#![allow(clippy::unwrap_used)] // a panic here is a failed test

mod support;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;
use support::postgres::Postgres;
use support::{Server, wait_until};
use tokio_postgres::NoTls;

/// How many counters; every thousandth, and at least 40, are made wrong.
fn rows() -> u64 {
    std::env::var("QUIPU_RECONCILE_ROWS").ok().and_then(|rows| rows.parse().ok()).unwrap_or(8_000)
}

const QUERY: &str = "SELECT key, value FROM counts";
/// Who counts at once: each changes one side, and the other up to 30 ms later.
const WRITERS: u64 = 4;

fn key(number: u64) -> String {
    format!("counter:shop:item{number}:sold")
}

fn sql(postgres: &Postgres, text: &str) -> Vec<tokio_postgres::Row> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(&postgres.url(), NoTls).await.unwrap();
        tokio::spawn(connection);
        client.query(text, &[]).await.unwrap()
    })
}

/// How much each counter is off at the start.
fn planted(rows: u64) -> BTreeMap<String, i64> {
    let count = (rows / 1000).max(40);
    let step = rows / count;
    (0..count)
        .map(|number| {
            (key(number * step), if number % 2 == 0 { 1 + number as i64 % 5 } else { -(number as i64) })
        })
        .collect()
}

/// The same counts on both sides, but for what is planted: a drift of 3 means that quipu lacks 3.
fn fill(server: &Server, postgres: &Postgres, folder: &Path, rows: u64) {
    sql(postgres, "CREATE TABLE counts (key TEXT PRIMARY KEY, value BIGINT NOT NULL)");
    let insert = format!(
        "INSERT INTO counts SELECT 'counter:shop:item' || n || ':sold', n % 1000 FROM generate_series(0, {}) AS n",
        rows - 1
    );
    sql(postgres, &insert);
    let planted = planted(rows);
    let mut text = "key,value\n".to_owned();
    for number in 0..rows {
        let key = key(number);
        let value = (number % 1000) as i64 - planted.get(&key).copied().unwrap_or(0);
        writeln!(text, "{key},{value}").unwrap();
    }
    let file = folder.join("counts.csv");
    std::fs::write(&file, text).unwrap();
    let imported = server.client(&["import", "--quiet", file.to_str().unwrap()]);
    assert!(imported.status.success(), "{imported:?}");
}

/// Counts on both sides until it is told to stop.
struct Writers {
    is_over: Arc<AtomicBool>,
    changes: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Writers {
    fn start(server: &Server, postgres: &Postgres, rows: u64) -> Writers {
        let (is_over, changes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let threads = (0..WRITERS).map(|seed| {
            let (is_over, changes, resp, url) =
                (is_over.clone(), changes.clone(), server.resp, postgres.url());
            std::thread::spawn(move || count(seed, resp, &url, rows, &is_over, &changes))
        });
        let threads = threads.collect();
        Writers { is_over, changes, threads }
    }

    fn stop(self) -> u64 {
        self.is_over.store(true, Ordering::SeqCst);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        self.changes.load(Ordering::SeqCst)
    }
}

fn count(seed: u64, resp: SocketAddr, url: &str, rows: u64, is_over: &AtomicBool, changes: &AtomicU64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut random = StdRng::seed_from_u64(seed);
    let mut quipu = BufReader::new(TcpStream::connect(resp).unwrap());
    runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
        tokio::spawn(connection);
        let update = client.prepare("UPDATE counts SET value = value + $2 WHERE key = $1").await.unwrap();
        while !is_over.load(Ordering::SeqCst) {
            // One counter never rests, and is right.
            let key = if random.random_bool(0.1) { key(1) } else { key(random.random_range(0..rows)) };
            let delta = random.random_range(-2..=5i64);
            let quipu_is_first = random.random_bool(0.5);
            if quipu_is_first {
                add(&mut quipu, &key, delta);
                tokio::time::sleep(Duration::from_millis(random.random_range(0..30))).await;
            }
            client.execute(&update, &[&key, &delta]).await.unwrap();
            if !quipu_is_first {
                tokio::time::sleep(Duration::from_millis(random.random_range(0..30))).await;
                add(&mut quipu, &key, delta);
            }
            changes.fetch_add(1, Ordering::SeqCst);
        }
    });
}

fn add(quipu: &mut BufReader<TcpStream>, key: &str, delta: i64) {
    let delta = delta.to_string();
    let command = format!("*3\r\n$6\r\nINCRBY\r\n${}\r\n{key}\r\n${}\r\n{delta}\r\n", key.len(), delta.len());
    quipu.get_mut().write_all(command.as_bytes()).unwrap();
    let mut reply = String::new();
    quipu.read_line(&mut reply).unwrap();
    assert!(reply.starts_with(':'), "{reply}");
}

/// Exit code, findings by kind, and the summary.
fn reconcile(
    server: &Server,
    postgres: &Postgres,
    more: &[&str],
) -> (i32, HashMap<String, BTreeMap<String, i64>>, Value) {
    let url = postgres.url();
    let fixed =
        ["reconcile", "--source", &url, "--query", QUERY, "--settle", "300ms", "--rounds", "8", "--json"];
    let output = server.client(&[&fixed[..], more].concat());
    let (mut found, mut summary) = (HashMap::<String, BTreeMap<String, i64>>::new(), Value::Null);
    for line in String::from_utf8(output.stdout.clone()).unwrap().lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        match row["finding"].as_str() {
            Some(kind) => {
                let key = row["counterKey"].as_str().unwrap().to_owned();
                found.entry(kind.to_owned()).or_default().insert(key, row["drift"].as_i64().unwrap());
            }
            None => summary = row["summary"].clone(),
        }
    }
    assert!(summary.is_object(), "{output:?}");
    (output.status.code().unwrap(), found, summary)
}

/// Both sides, key by key.
fn compare(server: &Server, postgres: &Postgres, folder: &Path) {
    let file = folder.join("after.csv");
    let exported = server.client(&["export", "--output", file.to_str().unwrap(), "--quiet"]);
    assert!(exported.status.success(), "{exported:?}");
    let text = std::fs::read_to_string(file).unwrap();
    let quipu: HashMap<&str, i64> = text
        .lines()
        .skip(1)
        .map(|line| {
            let fields: Vec<&str> = line.split(',').collect();
            (fields[0], fields[2].parse().unwrap())
        })
        .collect();
    let truth = sql(postgres, QUERY);
    assert_eq!(truth.len(), quipu.len());
    let differing: Vec<(&str, i64, i64)> = truth
        .iter()
        .map(|row| (row.get::<_, &str>(0), row.get::<_, i64>(1), quipu[row.get::<_, &str>(0)]))
        .filter(|(_, truth, value)| truth != value)
        .collect();
    assert!(differing.is_empty(), "{differing:?}");
}

#[test]
fn what_was_made_wrong_is_found_and_corrected_under_load() {
    let rows = rows();
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"));
    let postgres = Postgres::start();
    fill(&server, &postgres, folder.path(), rows);
    let writers = Writers::start(&server, &postgres, rows);
    wait_until("both sides are counting", || writers.changes.load(Ordering::SeqCst) > 100);

    let (code, found, summary) = reconcile(&server, &postgres, &[]);
    println!("dry run over {rows} rows: {summary}");
    assert_eq!((code, summary["rows"].as_u64()), (16, Some(rows)));
    assert_eq!(found["drift"], planted(rows));
    assert!(!found.contains_key("missing") && !found.contains_key("unlisted"), "{found:?}");

    let (code, found, summary) = reconcile(&server, &postgres, &["--apply"]);
    println!("corrected: {summary}");
    assert_eq!((code, &found["drift"]), (0, &planted(rows)));
    assert_eq!(summary["applied"].as_u64(), Some(planted(rows).len() as u64));

    let (code, found, summary) = reconcile(&server, &postgres, &["--apply"]);
    println!("again: {summary}");
    assert_eq!((code, found.get("drift"), summary["applied"].as_u64()), (0, None, Some(0)));

    println!("{} changes on both sides meanwhile", writers.stop());
    compare(&server, &postgres, folder.path());
}

/// How many the server has made, by what it says itself.
fn corrections(server: &Server) -> usize {
    server.log().iter().filter(|line| line.contains("a counter was adjusted")).count()
}

#[test]
fn killed_while_it_corrects_it_corrects_nothing_twice() {
    let rows = 2_000;
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(&folder.path().join("data"));
    let postgres = Postgres::start();
    fill(&server, &postgres, folder.path(), rows);
    // Everything is off by one more.
    sql(&postgres, "UPDATE counts SET value = value + 1");
    let writers = Writers::start(&server, &postgres, rows);
    let url = postgres.url();
    let (mut interrupted, mut ended) = (0, Vec::new());
    while interrupted < 5 && ended.len() < 5 {
        let mut command = server.client_command(&["reconcile", "--source", &url, "--query", QUERY]);
        let before = corrections(&server);
        let mut child = command.args(["--settle", "100ms", "--apply", "--quiet"]).spawn().unwrap();
        while child.try_wait().unwrap().is_none() && corrections(&server) < before + 20 {
            std::thread::sleep(Duration::from_millis(1));
        }
        // In the middle of it, unless it was faster.
        match child.try_wait().unwrap() {
            Some(status) => ended.push(status),
            None => {
                child.kill().unwrap();
                child.wait().unwrap();
                interrupted += 1;
            }
        }
    }
    assert_eq!(interrupted, 5, "the others ended by themselves: {ended:?}");
    assert!(corrections(&server) >= 100, "{} corrections", corrections(&server));
    writers.stop();
    let (code, _, summary) = reconcile(&server, &postgres, &["--apply"]);
    assert_eq!(code, 0, "{summary}");
    compare(&server, &postgres, folder.path());
}

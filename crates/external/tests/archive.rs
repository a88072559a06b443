//! The archive on a real PostgreSQL behind a real Redis.

#![allow(clippy::unwrap_used, reason = "what a test cannot go on without")]

mod support;

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use quipu_counting::slot::slot;
use quipu_counting::{Action, Add, Batch, Body, Condition, Counters, Expiry, Set};
use quipu_external::archive::{Archive, Flusher, FlusherOptions, migrate};
use quipu_external::{External, Options, group, tag};
use support::postgres::Postgres;
use support::{Cluster, PATIENCE, Server, wait_until};

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

async fn run(external: &External, fill: impl FnOnce(&mut Batch)) -> Batch {
    let mut batch = Batch::default();
    fill(&mut batch);
    let (tell, told) = tokio::sync::oneshot::channel();
    external.finish(batch, now_ms(), Box::new(move |batch, result| _ = tell.send(result.map(|_| batch))));
    let batch = told.await.unwrap().unwrap();
    assert!(batch.replies.iter().all(|reply| reply.refusal.is_none()), "{:?}", batch.replies);
    batch
}

async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

async fn totals(client: &tokio_postgres::Client) -> BTreeMap<String, i64> {
    let rows =
        client.query("SELECT counter_key, total_value FROM counter_total_snapshot", &[]).await.unwrap();
    let row = |row: &tokio_postgres::Row| (String::from_utf8(row.get(0)).unwrap(), row.get(1));
    rows.iter().map(row).collect()
}

fn eager() -> FlusherOptions {
    FlusherOptions { interval: Duration::from_millis(5), keeps_log: true, ..FlusherOptions::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn migrations_run_once_however_many_begin() {
    let postgres = Postgres::start();
    let migrating = (0..4).map(|_| {
        let url = postgres.url();
        tokio::spawn(async move { migrate(&mut connect(&url).await).await.unwrap() })
    });
    let mut done = 0;
    for migrating in migrating.collect::<Vec<_>>() {
        done += migrating.await.unwrap();
    }
    let client = connect(&postgres.url()).await;
    let known: i64 = client.query_one("SELECT count(*) FROM quipu_migrations", &[]).await.unwrap().get(0);
    assert_eq!(done as i64, known);
    client.execute("INSERT INTO quipu_migrations (number) VALUES (999)", &[]).await.unwrap();
    let refused = migrate(&mut connect(&postgres.url()).await).await.err().unwrap().to_string();
    assert!(refused.contains("newer version"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_counted_comes_to_the_tables() {
    let (server, postgres) = (Server::start(), Postgres::start());
    let external = External::open(&server.url(), Options::default()).await.unwrap();
    let flusher = Flusher::open(Arc::clone(&external), &postgres.url(), eager()).await.unwrap();
    let long = "k".repeat(512);
    let longest_id = [0xff_u8; 255];
    run(&external, |batch| {
        batch.push_with_id(b"counter:post:7:like", Action::Add(Add::plain(5)), b"a", 0);
        batch.push_with_id(b"counter:post:7:like", Action::Add(Add::plain(5)), b"a", 0);
        batch.push(b"gone", Action::Add(Add::plain(1)));
        batch.push_with_id(long.as_bytes(), Action::Add(Add::plain(i64::MIN)), &longest_id, 3);
    })
    .await;
    assert!(flusher.lag_ms(u64::MAX).await.unwrap() > 0);
    flusher.flush_all().await.unwrap();
    assert_eq!(flusher.lag_ms(u64::MAX).await.unwrap(), 0);
    run(&external, |batch| {
        batch.push(b"counter:post:7:like", Action::Add(Add::plain(2)));
        batch.push(b"gone", Action::Delete(Condition::Always));
    })
    .await;
    flusher.flush_all().await.unwrap();
    let client = connect(&postgres.url()).await;
    let expected = BTreeMap::from([("counter:post:7:like".to_owned(), 7), (long, i64::MIN)]);
    assert_eq!(totals(&client).await, expected);
    let meta = client
        .query_one("SELECT biz_type, status FROM counter_meta WHERE counter_key = 'counter:post:7:like'", &[])
        .await
        .unwrap();
    assert_eq!((meta.get::<_, &str>(0), meta.get::<_, i16>(1)), ("post", 1));
    let number = async |query: &str| -> i64 { client.query_one(query, &[]).await.unwrap().get(0) };
    assert_eq!(number("SELECT count(*) FROM counter_meta WHERE status = 0").await, 1);
    assert_eq!(number("SELECT count(*) FROM counter_idempotency").await, 2);
    assert_eq!(number("SELECT count(*) FROM counter_delta_log").await, 5);
    assert_eq!(number("SELECT sum(events)::bigint FROM counter_watermark").await, 5);
    let left: u64 = redis::cmd("EVAL")
        .arg("local n = 0; for _, k in ipairs(redis.call('KEYS', '*:s')) do n = n + redis.call('XLEN', k) end; return n")
        .arg(0)
        .query(&mut server.connection())
        .unwrap();
    assert_eq!(left, 0, "what is in the tables is trimmed");
    assert_eq!(flusher.purge().await.unwrap(), 0);
    client
        .execute("UPDATE counter_idempotency SET created_at = now() - interval '2 days'", &[])
        .await
        .unwrap();
    assert_eq!(flusher.purge().await.unwrap(), 2);
}

/// What counters have beyond their numbers comes along, as it was at one moment with them.
#[tokio::test(flavor = "multi_thread")]
async fn bodies_come_to_the_tables() {
    let (server, postgres) = (Server::start(), Postgres::start());
    let external = External::open(&server.url(), Options::default()).await.unwrap();
    let flusher = Flusher::open(Arc::clone(&external), &postgres.url(), eager()).await.unwrap();
    let observe = |batch: &mut Batch, key: &[u8], items: std::ops::Range<u64>| {
        let hashes: Vec<u8> = items.flat_map(|item| (item << 20 | item).to_le_bytes()).collect();
        let items = batch.intern(&hashes);
        batch.push(key, Action::Observe { items, at_ms: None });
    };
    run(&external, |batch| {
        observe(batch, b"visitors", 1..4);
        observe(batch, b"overwritten", 1..4);
        observe(batch, b"deleted", 1..4);
        batch.push(b"stock", Action::Reserve(Add::plain(3), 60_000));
        batch.push(b"plain", Action::Add(Add::plain(1)));
    })
    .await;
    flusher.flush_all().await.unwrap();
    run(&external, |batch| {
        observe(batch, b"visitors", 1..6);
        let set = Set { value: 9, expiry: Expiry::Keep, condition: Condition::Always };
        batch.push(b"overwritten", Action::Overwrite(set));
        batch.push(b"deleted", Action::Delete(Condition::Always));
        batch.push(b"stock", Action::Add(Add::plain(4)));
    })
    .await;
    flusher.flush_all().await.unwrap();
    let client = connect(&postgres.url()).await;
    let rows = client
        .query("SELECT counter_key, kind, value, version, body FROM counter_body_snapshot ORDER BY 1", &[])
        .await
        .unwrap();
    let row = |row: &tokio_postgres::Row| {
        let body = Body::read(row.get(4)).expect("a body");
        let key = String::from_utf8(row.get(0)).unwrap();
        (key, row.get::<_, String>(1), row.get::<_, i64>(2), row.get::<_, i64>(3), body.holds.len())
    };
    let found: Vec<_> = rows.iter().map(row).collect();
    let expected = [
        ("stock".to_owned(), "sum".to_owned(), 4, 2, 1),
        ("visitors".to_owned(), "unique".to_owned(), 5, 2, 0),
    ];
    assert_eq!(found, expected);
    let expected = [
        ("overwritten".to_owned(), 9),
        ("plain".to_owned(), 1),
        ("stock".to_owned(), 4),
        ("visitors".to_owned(), 5),
    ];
    assert_eq!(totals(&client).await, BTreeMap::from(expected));
}

/// A master that is away keeps nobody else's changes from the tables, and that it does not answer is seen.
#[tokio::test(flavor = "multi_thread")]
async fn what_others_have_is_flushed_while_a_master_is_away() {
    let (mut cluster, postgres) = (Cluster::start(), Postgres::start());
    let owners = cluster.owners();
    let owner = |name: &str| {
        let slot = slot(name.as_bytes());
        owners.iter().find(|(from, to, _)| (*from..=*to).contains(&slot)).unwrap().2
    };
    let stays = owner("q-policies");
    let away = owners.iter().map(|(_, _, place)| *place).find(|place| *place != stays).unwrap();
    let key = (0..).map(|number| format!("key:{number}"));
    let key = { key }.find(|key| owner(tag(group(key.as_bytes()))) == stays).unwrap();
    let archive = Arc::new(Archive::new(&postgres.url()).unwrap());
    let (url, options) = (cluster.servers[stays].url(), Options::default());
    let external = External::open_before(&url, Some(Arc::clone(&archive)), options).await.unwrap();
    let flusher = Arc::new(Flusher::over(Arc::clone(&external), Arc::clone(&archive), eager()));
    let _flushing = flusher.start();
    let client = connect(&postgres.url()).await;
    let add_and_wait = async |expected: i64| {
        run(&external, |batch| _ = batch.push(key.as_bytes(), Action::Add(Add::plain(1)))).await;
        let begin = Instant::now();
        while totals(&client).await.get(&key) != Some(&expected) {
            assert!(begin.elapsed() < PATIENCE, "it is not flushed: {:?}", archive.state());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    add_and_wait(1).await;
    // Nobody takes its place.
    let replica = cluster.replica_of(away);
    [replica, away].into_iter().for_each(|place| cluster.servers[place].kill());
    tokio::time::sleep(Duration::from_secs(2)).await;
    add_and_wait(2).await;
    tokio::task::block_in_place(|| {
        wait_until("it is seen", || {
            let state = archive.state();
            state.problem.is_some_and(|problem| problem.contains("Redis at"))
                && state.lag_ms > 2_000
                && !state.is_up
        });
    });
    add_and_wait(3).await;
}

/// Not a test of its own: the process that the test below kills.
#[test]
fn a_flusher_that_will_be_killed() {
    let (Ok(redis), Ok(postgres)) = (std::env::var("FLUSH_REDIS"), std::env::var("FLUSH_POSTGRES")) else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let external = External::open(&redis, Options::default()).await.unwrap();
        let options = FlusherOptions { entries: 3, ..eager() };
        // PostgreSQL may be away just now.
        while let Ok(flusher) = Flusher::open(Arc::clone(&external), &postgres, options.clone()).await {
            flusher.run(0).await;
        }
    });
}

async fn events(client: &tokio_postgres::Client) -> i64 {
    let events = client.query_one("SELECT sum(events)::bigint FROM counter_watermark", &[]);
    events.await.unwrap().get(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn flushers_are_killed_and_every_change_is_counted_once() {
    let (server, mut postgres) = (Server::start(), Postgres::start());
    let external = External::open(&server.url(), Options::default()).await.unwrap();
    migrate(&mut connect(&postgres.url()).await).await.unwrap();
    let flusher = || {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_flusher_that_will_be_killed"])
            .env("FLUSH_REDIS", server.url())
            .env("FLUSH_POSTGRES", postgres.url())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut flushers: Vec<_> = (0..2).map(|_| flusher()).collect();
    let client = connect(&postgres.url()).await;
    let mut expected: BTreeMap<String, i64> = BTreeMap::new();
    let mut changes = 0;
    for turn in 0..40_i64 {
        // Some hundred changes, and once some of them are flushed, the next flusher dies wherever it is.
        let flushed = events(&client).await;
        for part in 0..10 {
            run(&external, |batch| {
                for number in 0..30 {
                    let (key, delta) = (format!("key:{}", (turn + part * number) % 97), number - 11);
                    let id = format!("{turn}-{part}-{number}");
                    batch.push_with_id(key.as_bytes(), Action::Add(Add::plain(delta)), id.as_bytes(), 0);
                    *expected.entry(key).or_default() += delta;
                    changes += 1;
                }
            })
            .await;
        }
        tokio::task::block_in_place(|| {
            wait_until("somebody flushes", || {
                tokio::runtime::Handle::current().block_on(events(&client)) > flushed
            });
        });
        let victim = &mut flushers[(turn % 2) as usize];
        victim.kill().unwrap();
        victim.wait().unwrap();
        *victim = flusher();
    }
    postgres.restart();
    for mut flusher in flushers {
        flusher.kill().unwrap();
        flusher.wait().unwrap();
    }
    let last = Flusher::open(Arc::clone(&external), &postgres.url(), eager()).await.unwrap();
    last.flush_all().await.unwrap();
    let client = connect(&postgres.url()).await;
    assert_eq!(totals(&client).await, expected);
    let logged: Vec<(String, i64)> = client
        .query("SELECT counter_key, sum(delta)::bigint FROM counter_delta_log GROUP BY counter_key", &[])
        .await
        .unwrap()
        .iter()
        .map(|row| (String::from_utf8(row.get(0)).unwrap(), row.get(1)))
        .collect();
    assert_eq!(logged.into_iter().collect::<BTreeMap<_, _>>(), expected, "each difference once");
    let remembered: i64 =
        client.query_one("SELECT count(*) FROM counter_idempotency", &[]).await.unwrap().get(0);
    assert_eq!((remembered, events(&client).await), (changes, changes));
}

//! Counters in stripes on real servers: whatever is counted where, the sum is exact, also while the number of stripes changes.

#![allow(clippy::unwrap_used, reason = "what a test cannot go on without")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use quipu_counting::{
    Action, Add, Batch, Condition, Counters, Expiry, ListOrder, Listing, Policy, Refusal, Reply, Selector,
    Set, Unavailable,
};
use quipu_external::archive::{Archive, Flusher, FlusherOptions};
use quipu_external::{External, Options};
use support::postgres::Postgres;
use support::{Cluster, Losing, PATIENCE, Proxy, Server};

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

async fn run(external: &External, fill: impl FnOnce(&mut Batch)) -> Result<Batch, Unavailable> {
    let mut batch = Batch::default();
    fill(&mut batch);
    let (tell, told) = tokio::sync::oneshot::channel();
    let finished = move |batch: Batch, result: Result<u64, Unavailable>| _ = tell.send(result.map(|_| batch));
    external.finish(batch, now_ms(), Box::new(finished));
    told.await.expect("everybody is answered")
}

async fn one(external: &External, key: &str, action: Action) -> Reply {
    run(external, |batch| _ = batch.push(key.as_bytes(), action)).await.unwrap().replies.remove(0)
}

async fn value(external: &External, key: &str) -> i64 {
    let read = one(external, key, Action::Read).await;
    assert_eq!(read.refusal, None);
    read.cell.value
}

fn plain(delta: i64) -> Action {
    Action::Add(Add::plain(delta))
}

fn set_to(value: i64) -> Action {
    Action::Set(Set { value, expiry: Expiry::Keep, condition: Condition::Always })
}

async fn stripe(external: &Arc<External>, stripes: Option<u16>) {
    let policy = stripes.map(|stripes| Policy { stripes: Some(stripes), ..Policy::default() });
    set_policy(external, "hot:*", policy).await;
}

async fn set_policy(external: &Arc<External>, pattern: &'static str, policy: Option<Policy>) {
    let external = Arc::clone(external);
    let set = tokio::task::spawn_blocking(move || external.set_policy(pattern.as_bytes(), policy, now_ms()));
    set.await.unwrap().unwrap();
}

/// How many stripes of a counter there are.
fn stripes_of(cluster: &[&Server], key: &str) -> usize {
    let count = |server: &&Server| -> usize {
        let keys = redis::cmd("KEYS").arg(format!("{{q*}}:c:{key}")).to_owned();
        keys.query::<Vec<String>>(&mut server.connection()).unwrap().len()
    };
    cluster.iter().map(count).sum()
}

async fn striped_counters(url: &str, masters: &[&Server]) {
    let external = External::open(url, Options::default()).await.unwrap();
    let other = External::open(url, Options::default()).await.unwrap();
    // What was counted before is part of it.
    assert_eq!(one(&external, "hot:a", plain(5)).await.cell.value, 5);
    stripe(&external, Some(16)).await;
    let many = run(&external, |batch| {
        (0..200).for_each(|_| _ = batch.push(b"hot:a", plain(1)));
        batch.push(b"hot:a", Action::Read);
        batch.push(b"cold", plain(3));
    });
    let many = many.await.unwrap().replies;
    assert_eq!((many[200].cell.value, many[200].cell.version), (205, 201), "who adds sees it");
    assert_eq!(many[201].cell.value, 3);
    assert_eq!(value(&other, "hot:a").await, 205);
    assert!((8..=16).contains(&stripes_of(masters, "hot:a")), "it is spread");
    let mut told = many[..200].iter().map(|reply| reply.cell.value);
    assert!(
        told.all(|value| (6..=205).contains(&value)),
        "additions are told the sum, as far as it is known"
    );
    // Under ids, each once, whoever is asked.
    for node in [&external, &other, &external] {
        let added = run(node, |batch| {
            for number in 0..50 {
                batch.push_with_id(b"hot:a", plain(2), format!("id {number}").as_bytes(), 0);
            }
        });
        assert!(
            added.await.unwrap().replies.iter().all(|reply| reply.refusal.is_none() && reply.applied == 2)
        );
    }
    assert_eq!(value(&other, "hot:a").await, 305);
    let reused = run(&other, |batch| _ = batch.push_with_id(b"hot:a", plain(9), b"id 7", 0));
    assert_eq!(reused.await.unwrap().replies[0].refusal, Some(Refusal::IdReused));
    // As one counter in lists and sums.
    let (list, totals, scanned) = tokio::task::block_in_place(|| {
        let listing = Listing { prefix: b"".to_vec(), order: ListOrder::Value, after: None, limit: 10 };
        let totals = external.aggregate(&Selector::new(b"*"), now_ms()).unwrap().totals();
        let scanned = external.scan(0, 1_000, now_ms()).unwrap().keys.len();
        (external.list(&listing, now_ms()).unwrap().counters, totals, scanned)
    });
    let list: Vec<(String, i64)> =
        list.into_iter().map(|listed| (String::from_utf8(listed.key).unwrap(), listed.cell.value)).collect();
    assert_eq!(list, [("hot:a".to_owned(), 305), ("cold".to_owned(), 3)]);
    assert_eq!((totals.sum, totals.count), (308, 2));
    assert!(scanned <= 2);
    // All stripes at once.
    let set = one(&other, "hot:a", set_to(7)).await;
    assert_eq!((set.cell.value, set.previous, set.existed), (7, 305, true));
    assert_eq!(value(&external, "hot:a").await, 7);
    one(&external, "hot:a", plain(1)).await;
    assert_eq!(one(&other, "hot:a", Action::Reset(Condition::Always)).await.previous, 8);
    assert_eq!(value(&external, "hot:a").await, 0);
    one(&external, "hot:a", plain(4)).await;
    let gone = one(&other, "hot:a", Action::Delete(Condition::Always)).await;
    assert_eq!((gone.existed, gone.exists, gone.previous), (true, false, 4));
    assert_eq!(stripes_of(masters, "hot:a"), 0);
    assert!(!one(&external, "hot:a", Action::Read).await.exists);
    // What would have to see all of it at once is refused, and nothing is done.
    let bounded = Action::Add(Add { max: 3, ..Add::plain(1) });
    for action in [bounded, Action::Delete(Condition::Exists), Action::Reserve(Add::plain(1), 1_000)] {
        let refused = run(&external, |batch| _ = batch.push(b"hot:a", action)).await.err();
        assert!(matches!(refused, Some(Unavailable::Unsupported(_))), "{action:?}: {refused:?}");
    }
    // That holds for policies of later too: nobody would see the other stripes.
    run(&external, |batch| (0..100).for_each(|_| _ = batch.push(b"hot:a", plain(1)))).await.unwrap();
    set_policy(&external, "hot:*", Some(Policy { max: Some(50), ..Policy::default() })).await;
    let refused = run(&external, |batch| _ = batch.push(b"hot:a", plain(1))).await.err();
    assert!(matches!(refused, Some(Unavailable::Unsupported(_))), "{refused:?}");
    assert_eq!(value(&external, "hot:a").await, 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn striped_counters_on_a_single_server() {
    let server = Server::start();
    striped_counters(&server.url(), &[&server]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn striped_counters_on_a_cluster() {
    let cluster = Cluster::start();
    let masters: Vec<&Server> =
        (0..6).filter(|place| cluster.is_master(*place)).map(|place| &cluster.servers[place]).collect();
    striped_counters(&cluster.url(), &masters).await;
}

/// Asks until it is said to be done, as a client would.
async fn add_once(external: &External, key: &str, id: &str) {
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < PATIENCE, "{key} {id} is not done");
        let told = run(external, |batch| _ = batch.push_with_id(key.as_bytes(), plain(1), id.as_bytes(), 0));
        match told.await.map(|batch| (batch.replies[0].refusal, batch.replies[0].applied)) {
            Ok((None, 1)) => return,
            Ok((Some(Refusal::OutcomeUnknown | Refusal::NoLeader), _)) | Err(Unavailable::NoLeader(_)) => {}
            other => panic!("{key} {id} is refused: {other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Clients add under ids, and add the same again later and elsewhere, while the number of stripes changes again and again.
async fn growth(url: &str, losing: Option<&Losing>) {
    let nodes = [
        External::open(url, Options::default()).await.unwrap(),
        External::open(url, Options::default()).await.unwrap(),
    ];
    let (is_over, counted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicI64::new(0)));
    let clients: Vec<_> = (0..12)
        .map(|client: usize| {
            let (nodes, is_over, counted) = (nodes.clone(), Arc::clone(&is_over), Arc::clone(&counted));
            tokio::spawn(async move {
                let mut turn = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let id = format!("{client}-{turn}");
                    let (one, other) = (&nodes[client % 2], &nodes[(client + 1) % 2]);
                    // By both at the same time, by one and at once by the other, and what was long ago.
                    if turn % 4 == 1 {
                        tokio::join!(add_once(one, "hot:a", &id), add_once(other, "hot:a", &id));
                    } else {
                        add_once(one, "hot:a", &id).await;
                    }
                    counted.fetch_add(1, Ordering::Relaxed);
                    let before = format!("{client}-{}", turn / 2);
                    add_once(other, "hot:a", if turn % 3 == 0 { &id } else { &before }).await;
                    turn += 1;
                }
            })
        })
        .collect();
    if let Some(losing) = losing {
        losing.left.store(i64::MAX, Ordering::Relaxed);
    }
    for stripes in [Some(16), Some(64), Some(4), None, Some(64)] {
        stripe(&nodes[1], stripes).await;
        let seen = counted.load(Ordering::Relaxed);
        while counted.load(Ordering::Relaxed) < seen + 300
            && !clients.iter().any(|client| client.is_finished())
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
    if let Some(losing) = losing {
        losing.left.store(0, Ordering::Relaxed);
    }
    is_over.store(true, Ordering::Relaxed);
    for client in clients {
        client.await.unwrap();
    }
    let expected = counted.load(Ordering::Relaxed);
    for node in &nodes {
        assert_eq!(value(node, "hot:a").await, expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn stripes_come_and_go_and_every_id_counts_once() {
    growth(&Server::start().url(), None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stripes_come_and_go_while_answers_are_lost() {
    let (server, losing) = (Server::start(), Arc::new(Losing::default()));
    let proxy = Proxy::start(server.port, Arc::clone(&losing));
    growth(&proxy.url(), Some(&losing)).await;
    assert!(losing.lost.load(Ordering::Relaxed) > 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_said_to_belong_together_lies_together() {
    let server = Server::start();
    let external = External::open(&server.url(), Options::default()).await.unwrap();
    stripe(&external, Some(64)).await;
    let add = async |key: &str, user: &dyn Fn(usize) -> String, with_ids: bool| {
        let added = run(&external, |batch| {
            for number in 0..60 {
                batch.stripe_next_by(user(number).as_bytes());
                match with_ids {
                    true => batch.push_with_id(key.as_bytes(), plain(1), &number.to_le_bytes(), 0),
                    false => batch.push(key.as_bytes(), plain(1)),
                };
            }
        });
        assert!(added.await.unwrap().replies.iter().all(|reply| reply.refusal.is_none()));
    };
    add("hot:one", &|_| "user-7".to_owned(), false).await;
    add("hot:one", &|_| "user-7".to_owned(), false).await;
    assert_eq!((stripes_of(&[&server], "hot:one"), value(&external, "hot:one").await), (1, 120));
    add("hot:many", &|number| format!("user-{number}"), false).await;
    assert!(stripes_of(&[&server], "hot:many") > 20);
    // An id has to be found again, whatever else is said.
    add("hot:ids", &|_| "user-7".to_owned(), true).await;
    add("hot:ids", &|_| "user-8".to_owned(), true).await;
    assert!(stripes_of(&[&server], "hot:ids") > 20);
    assert_eq!(value(&external, "hot:ids").await, 60);
}

/// Ids were claimed where they lay before, and what was asked under them was not done: it can still be, with any number of stripes.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_only_claimed_is_in_nobodys_way() {
    let server = Server::start();
    let external = External::open(&server.url(), Options::default()).await.unwrap();
    let other = External::open(&server.url(), Options::default()).await.unwrap();
    stripe(&external, Some(16)).await;
    let disabled = |stripes| Some(Policy { stripes: Some(stripes), disabled: true, ..Policy::default() });
    let ask = async |node: &External, number: i32, delta: i64| {
        let id = format!("id {number}");
        let told = run(node, |batch| _ = batch.push_with_id(b"hot:a", plain(delta), id.as_bytes(), 0)).await;
        let reply = told.unwrap().replies.remove(0);
        (reply.refusal, reply.applied)
    };
    for stripes in [4, 64, 1, 16] {
        set_policy(&external, "hot:*", disabled(stripes)).await;
        for number in 0..30 {
            assert_eq!(ask(&external, number, 1).await, (Some(Refusal::Disabled), 0));
        }
    }
    stripe(&external, Some(4)).await;
    for _ in 0..2 {
        for number in 0..30 {
            assert_eq!(ask(&external, number, 1).await, (None, 1));
            assert_eq!(ask(&other, number, 1).await, (None, 1));
        }
    }
    assert_eq!(value(&other, "hot:a").await, 30);
    // What is really used for something else is still told so, wherever it lies by now.
    stripe(&external, Some(64)).await;
    for number in 0..30 {
        assert_eq!(ask(&other, number, 2).await, (Some(Refusal::IdReused), 0));
    }
    assert_eq!(value(&external, "hot:a").await, 30);
}

/// What is for all stripes is done at all of them or at none, also under an id that one of them knows for something else.
#[tokio::test(flavor = "multi_thread")]
async fn ids_of_additions_are_not_for_all_stripes() {
    let server = Server::start();
    let external = External::open(&server.url(), Options::default()).await.unwrap();
    stripe(&external, Some(16)).await;
    let ask = async |action: Action, id: &str| {
        let told = run(&external, |batch| _ = batch.push_with_id(b"hot:a", action, id.as_bytes(), 0)).await;
        let reply = told.unwrap().replies.remove(0);
        (reply.refusal, reply.duplicate, reply.cell.value)
    };
    for number in 0..20 {
        assert_eq!(ask(plain(1), &format!("id {number}")).await.0, None);
    }
    let reused = Some(Refusal::IdReused);
    for number in 0..20 {
        for action in [set_to(5), Action::Reset(Condition::Always), Action::Delete(Condition::Always)] {
            assert_eq!(ask(action, &format!("id {number}")).await.0, reused, "{action:?}");
        }
    }
    assert_eq!(value(&external, "hot:a").await, 20);
    // Under ids of their own they are done, and done once.
    assert_eq!(ask(set_to(5), "set").await, (None, false, 5));
    assert_eq!(ask(set_to(5), "set").await, (None, true, 5));
    assert_eq!(ask(set_to(6), "set").await.0, reused);
    assert_eq!(ask(plain(1), "set").await.0, reused);
    assert_eq!(value(&external, "hot:a").await, 5);
    // Also where a stripe was only claimed for an addition.
    let disabled = Some(Policy { stripes: Some(64), disabled: true, ..Policy::default() });
    set_policy(&external, "hot:*", disabled).await;
    for number in 0..20 {
        assert_eq!(ask(plain(1), &format!("late {number}")).await.0, Some(Refusal::Disabled));
    }
    stripe(&external, Some(64)).await;
    for number in 0..20 {
        let told = ask(set_to(7), &format!("late {number}")).await.0;
        assert!(told.is_none() || told == reused, "{told:?}");
    }
}

/// A policy without stripes comes and goes within a pattern that has some: its ids lie elsewhere, and are found.
#[tokio::test(flavor = "multi_thread")]
async fn ids_are_found_when_another_pattern_had_the_say() {
    let server = Server::start();
    // So that what is older than ids are remembered is not far away.
    let options = Options { id_window_ms: 3_600_000, ..Options::default() };
    let external = External::open(&server.url(), options).await.unwrap();
    let striped = Some(Policy { stripes: Some(64), ..Policy::default() });
    let long_ago = now_ms() - 10 * 3_600_000;
    let node = Arc::clone(&external);
    let set = tokio::task::spawn_blocking(move || node.set_policy(b"hot:*", striped, long_ago));
    set.await.unwrap().unwrap();
    set_policy(&external, "hot:a*", Some(Policy::default())).await;
    let add_all = async || {
        for number in 0..30 {
            add_once(&external, "hot:a", &format!("id {number}")).await;
        }
    };
    add_all().await;
    assert_eq!(stripes_of(&[&server], "hot:a"), 1);
    set_policy(&external, "hot:a*", None).await;
    add_all().await;
    assert_eq!(value(&external, "hot:a").await, 30);
}

#[tokio::test(flavor = "multi_thread")]
async fn stripes_come_to_the_tables_and_are_added_up() {
    let (server, postgres) = (Server::start(), Postgres::start());
    // What has no id is not asked again, however slow the machine is.
    let options = Options { timeout: PATIENCE, patience: PATIENCE, ..Options::default() };
    let external = External::open(&server.url(), options).await.unwrap();
    let flusher =
        Flusher::open(Arc::clone(&external), &postgres.url(), FlusherOptions::default()).await.unwrap();
    one(&external, "hot:a", plain(5)).await;
    one(&external, "hot:b", plain(1)).await;
    // What has an expiry before it gets stripes.
    let set = |expiry| Action::Set(Set { value: 1, expiry, condition: Condition::Always });
    one(&external, "hot:lasting", set(Expiry::In(3_600_000))).await;
    flusher.flush_all().await.unwrap();
    one(&external, "hot:passing", set(Expiry::In(3_600_000))).await;
    stripe(&external, Some(64)).await;
    one(&external, "hot:lasting", set(Expiry::Clear)).await;
    let add = async |key: &str, count: i64| {
        let added = run(&external, |batch| (0..count).for_each(|_| _ = batch.push(key.as_bytes(), plain(1))));
        assert!(added.await.unwrap().replies.iter().all(|reply| reply.refusal.is_none()));
    };
    let (client, connection) = tokio_postgres::connect(&postgres.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let number = async |query: &str| -> Option<i64> {
        client.query_opt(query, &[]).await.unwrap().and_then(|row| row.get(0))
    };
    let total = "SELECT total_value FROM counter_total_snapshot WHERE counter_key = 'hot:a'";
    for expected in [305, 605] {
        add("hot:a", 300).await;
        add("hot:b", 10).await;
        flusher.flush_all().await.unwrap();
        assert_eq!(number(total).await, Some(expected));
    }
    let shards = number("SELECT count(*) FROM counter_shard_snapshot WHERE counter_key = 'hot:a'").await;
    assert!(shards.is_some_and(|shards| shards > 40), "{shards:?}");
    let meta = "SELECT shard_count::bigint FROM counter_meta WHERE counter_key = 'hot:a'";
    assert_eq!(number(meta).await, Some(64));
    let passing = "SELECT count(*) FROM counter_shard_snapshot WHERE expires_at_ms IS NOT NULL";
    assert_eq!(number(passing).await, Some(1));
    assert_eq!(number(&format!("{passing} AND counter_key = 'hot:passing'")).await, Some(1));
    one(&external, "hot:a", Action::Delete(Condition::Always)).await;
    flusher.flush_all().await.unwrap();
    assert_eq!(number(total).await, None);
    let gone = "SELECT status::bigint FROM counter_meta WHERE counter_key = 'hot:a'";
    assert_eq!(number(gone).await, Some(0));
    let other = "SELECT total_value FROM counter_total_snapshot WHERE counter_key = 'hot:b'";
    assert_eq!(number(other).await, Some(21));
}

/// A Redis that has lost everything gets its stripes back, each where it was, with their ids.
#[tokio::test(flavor = "multi_thread")]
async fn stripes_are_rebuilt_from_the_tables() {
    let (server, postgres) = (Server::start(), Postgres::start());
    let archive = Arc::new(Archive::new(&postgres.url()).unwrap());
    let external =
        External::open_before(&server.url(), Some(Arc::clone(&archive)), Options::default()).await.unwrap();
    let options = FlusherOptions { interval: Duration::from_millis(20), ..FlusherOptions::default() };
    let flusher = Arc::new(Flusher::over(Arc::clone(&external), archive, options));
    let _tasks = flusher.start();
    stripe(&external, Some(16)).await;
    let add_all = async || {
        for number in 0..100 {
            add_once(&external, "hot:a", &format!("id {number}")).await;
        }
    };
    add_all().await;
    assert_eq!(value(&external, "hot:a").await, 100);
    let (client, connection) = tokio_postgres::connect(&postgres.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let flushed = async || -> (i64, i64) {
        let both = "SELECT (SELECT count(*) FROM counter_idempotency),
            (SELECT count(*) FROM counter_policies WHERE '~16:hot:*'::bytea = ANY (fields) AND '=hot:*'::bytea = ANY (fields))";
        let row = client.query_one(both, &[]).await.unwrap();
        (row.get(0), row.get(1))
    };
    let begin = Instant::now();
    while flushed().await != (100, 1) {
        assert!(begin.elapsed() < PATIENCE, "everything comes to the tables");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    redis::cmd("FLUSHALL").exec(&mut server.connection()).unwrap();
    add_all().await;
    assert_eq!(value(&external, "hot:a").await, 100, "every id was recognized");
    assert!((8..=16).contains(&stripes_of(&[&server], "hot:a")));
}

/// What one has just set, reset or deleted is not shown as it was before, however short ago that was seen.
#[tokio::test(flavor = "multi_thread")]
async fn an_addition_after_a_set_shows_what_was_set() {
    let server = Server::start();
    let external = External::open(&server.url(), Options::default()).await.unwrap();
    stripe(&external, Some(16)).await;
    for (action, expected) in [
        (set_to(50), 51),
        (Action::Delete(Condition::Always), 1),
        (set_to(7), 8),
        (Action::Reset(Condition::Always), 1),
    ] {
        run(&external, |batch| (0..40).for_each(|_| _ = batch.push(b"hot:a", plain(1)))).await.unwrap();
        one(&external, "hot:a", action).await;
        assert_eq!(one(&external, "hot:a", plain(1)).await.cell.value, expected, "{action:?}");
        // The same in one pipeline.
        let told = run(&external, |batch| {
            batch.push(b"hot:a", plain(1));
            batch.push(b"hot:a", action);
            batch.push(b"hot:a", plain(1));
        });
        assert_eq!(told.await.unwrap().replies[2].cell.value, expected, "{action:?}");
    }
}

/// What was applied is exact, whatever the sum is; a sum beyond 64 bits is not.
#[tokio::test(flavor = "multi_thread")]
async fn replies_of_striped_counters_are_true() {
    let server = Server::start();
    let external = External::open(&server.url(), Options::default()).await.unwrap();
    stripe(&external, Some(16)).await;
    let add = async |delta: i64, id: usize| {
        let told = run(&external, |batch| {
            _ = batch.push_with_id(b"hot:a", plain(delta), format!("id {id}").as_bytes(), 0);
        });
        let batch = told.await.unwrap();
        (batch.replies[0].clone(), batch.staleness_ms(0))
    };
    let is_exact = |reply: &Reply| {
        !matches!(reply.detail.as_deref(), Some(quipu_counting::Detail::Seen { is_exact: false }))
    };
    let (first, staleness_ms) = add(1, 0).await;
    assert_eq!((first.existed, staleness_ms), (false, 0), "all stripes were looked at");
    for id in 1..40 {
        let (reply, staleness_ms) = add(1, id).await;
        assert!(reply.existed && is_exact(&reply), "{id}: {reply:?}");
        assert_eq!((reply.cell.value, reply.difference()), (id as i64 + 1, 1));
        assert!(staleness_ms <= 251);
    }
    let (_, before) = add(1, 40).await;
    let (_, after) = add(1, 41).await;
    assert!(before.max(after) > 0, "the other stripes are those of a moment ago");
    // Two stripes are full.
    let half = i64::MAX / 2 + 1;
    let (mut id, mut beyond) = (100, 0);
    while beyond < 3 {
        let (reply, _) = add(half, id).await;
        let is_done = reply.refusal.is_none();
        assert_eq!(reply.difference(), if is_done { half.into() } else { 0 }, "{reply:?}");
        beyond += usize::from(is_done);
        id += 1;
    }
    let (down, _) = add(-5, id).await;
    assert_eq!((down.refusal, down.difference(), is_exact(&down)), (None, -5, false), "{down:?}");
    let read = one(&external, "hot:a", Action::Read).await;
    assert!(read.cell.value == i64::MAX && !is_exact(&read), "{read:?}");
}

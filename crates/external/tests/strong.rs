//! Strong counters: in rows of a real PostgreSQL, beside a real Redis.

#![allow(clippy::unwrap_used, reason = "what a test cannot go on without")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use quipu_counting::{
    Action, Add, Batch, Condition, Counters, Expiry, GroupKind, ListOrder, ListPlace, Listing, Policy,
    Refusal, Reply, Selector, Set, Unavailable,
};
use quipu_external::archive::Archive;
use quipu_external::{External, Options};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use support::postgres::Postgres;
use support::{Losing, Proxy, Server};

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

async fn node(redis: &Server, postgres: &str) -> Arc<External> {
    let archive = Archive::new(postgres).unwrap();
    External::open_before(&redis.url(), Some(Arc::new(archive)), Options::default()).await.unwrap()
}

async fn ask(external: &External, fill: impl FnOnce(&mut Batch)) -> Result<Vec<Reply>, Unavailable> {
    let mut batch = Batch::default();
    fill(&mut batch);
    let (tell, told) = tokio::sync::oneshot::channel();
    external.finish(
        batch,
        now_ms(),
        Box::new(move |batch, result| _ = tell.send(result.map(|_| batch.replies))),
    );
    told.await.unwrap()
}

/// Blocks where the trait does.
async fn set_policy(
    external: &Arc<External>,
    pattern: &str,
    policy: Option<Policy>,
) -> Result<bool, Unavailable> {
    let (external, pattern) = (Arc::clone(external), pattern.as_bytes().to_vec());
    tokio::task::spawn_blocking(move || external.set_policy(&pattern, policy, now_ms())).await.unwrap()
}

fn strong(min: i64, max: i64) -> Option<Policy> {
    Some(Policy { strong: true, min: Some(min), max: Some(max), ..Policy::default() })
}

fn plain() -> Option<Policy> {
    Some(Policy::default())
}

fn add(batch: &mut Batch, key: &str, delta: i64, id: &str) {
    batch.push_with_id(key.as_bytes(), Action::Add(Add::plain(delta)), id.as_bytes(), 0);
}

fn set_to(value: i64) -> Action {
    Action::Set(Set { value, expiry: Expiry::Keep, condition: Condition::Always })
}

fn told(replies: &[Reply]) -> Vec<(Option<Refusal>, i64, bool)> {
    replies.iter().map(|reply| (reply.refusal, reply.cell.value, reply.duplicate)).collect()
}

async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

#[tokio::test(flavor = "multi_thread")]
async fn strong_counters_lie_in_rows() {
    let (redis, postgres) = (Server::start(), Postgres::start());
    let (one, other) = (node(&redis, &postgres.url()).await, node(&redis, &postgres.url()).await);
    set_policy(&one, "stock:*", strong(0, 10)).await.unwrap();
    // In force at once where it was made, and elsewhere within moments.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let replies = ask(&one, |batch| add(batch, "stock:1", 4, "a")).await.unwrap();
    assert_eq!(told(&replies), [(None, 4, false)]);
    let replies = ask(&other, |batch| {
        add(batch, "stock:1", 4, "a");
        add(batch, "stock:1", 5, "a");
        add(batch, "stock:1", 7, "b");
        batch.push(b"stock:1", Action::Read);
        batch.push(b"stock:2", Action::Read);
        add(batch, "likes", 1, "a");
    })
    .await
    .unwrap();
    let expected = [
        (None, 4, true),
        (Some(Refusal::IdReused), 4, true),
        (Some(Refusal::AboveCeiling), 4, false),
        (None, 4, false),
        (None, 0, false),
        (None, 1, false),
    ];
    let without_value = |(refusal, value, duplicate): (Option<Refusal>, i64, bool)| match refusal {
        Some(Refusal::IdReused) => (refusal, 4, true),
        _ => (refusal, value, duplicate),
    };
    assert_eq!(told(&replies).into_iter().map(without_value).collect::<Vec<_>>(), expected);
    // A refused request stays refused, whatever there is room for by then.
    let replies = ask(&one, |batch| {
        batch.push(b"stock:1", Action::Reset(Condition::Always));
        add(batch, "stock:1", 7, "b");
    });
    assert_eq!(told(&replies.await.unwrap()), [(None, 0, false), (Some(Refusal::AboveCeiling), 4, true)]);

    // All or none, and under a guard.
    let replies = ask(&one, |batch| {
        add(batch, "stock:{x}1", 5, "c");
        add(batch, "stock:{x}2", 11, "c");
        batch.group(0, GroupKind::Atomic);
        batch.push(b"stock:{x}1", Action::Check(Condition::Exists));
        batch.group(2, GroupKind::Guard { until: 4 });
        add(batch, "stock:{x}1", 1, "d");
    });
    let refusals: Vec<Option<Refusal>> = replies.await.unwrap().iter().map(|reply| reply.refusal).collect();
    let (aborted, unmet) = (Some(Refusal::GroupAborted), Some(Refusal::ConditionUnmet));
    assert_eq!(refusals, [aborted, Some(Refusal::AboveCeiling), unmet, aborted]);
    // What is deleted begins anew, and so does what is over.
    let soon = Set { value: 3, expiry: Expiry::In(30), condition: Condition::Always };
    ask(&one, |batch| _ = batch.push(b"stock:3", Action::Set(soon))).await.unwrap();
    tokio::time::sleep(Duration::from_millis(40)).await;
    let replies = ask(&other, |batch| {
        batch.push(b"stock:3", Action::Read);
        add(batch, "stock:3", 2, "e");
        batch.push(b"stock:3", Action::Delete(Condition::Always));
        batch.push(b"stock:3", Action::Read);
        add(batch, "stock:3", 1, "f");
    });
    let replies = replies.await.unwrap();
    assert_eq!(
        replies.iter().map(|reply| reply.exists).collect::<Vec<_>>(),
        [false, true, false, false, true]
    );
    assert!(replies[4].cell.birth > replies[1].cell.birth && replies[4].cell.version == 1);

    let client = connect(&postgres.url()).await;
    let rows = client.query("SELECT value FROM counter_strong WHERE is_there", &[]).await.unwrap();
    assert_eq!(rows.iter().map(|row| row.get::<_, i64>(0)).sum::<i64>(), 1, "stock:1 is 0, stock:3 is 1");
    let listed = Arc::clone(&one);
    let listing = Listing { limit: 10, ..Listing::default() };
    let listed = tokio::task::spawn_blocking(move || listed.list(&listing, now_ms())).await.unwrap().unwrap();
    let listed: Vec<Vec<u8>> = listed.counters.into_iter().map(|listed| listed.key).collect();
    assert_eq!(listed, [b"likes".to_vec(), b"stock:1".to_vec(), b"stock:3".to_vec()]);

    // What cannot be done is said.
    let mixed = ask(&one, |batch| {
        add(batch, "stock:{likes}", 1, "g");
        add(batch, "likes", 1, "g");
        batch.group(0, GroupKind::Atomic);
    });
    assert!(mixed.await.unwrap().iter().all(|reply| reply.refusal == Some(Refusal::CrossSlot)));
    let session = ask(&one, |batch| {
        let producer = batch.intern(b"p");
        batch.push(b"stock:1", Action::Add(Add::plain(1)));
        batch.group(0, GroupKind::Session { producer, epoch: 1, sequence: 1 });
    });
    assert!(session.await.unwrap_err().to_string().contains("producer's session"));
    let refused = set_policy(&one, "like*", strong(0, 10)).await.unwrap_err().to_string();
    assert!(refused.contains("1 counters of this pattern lie in Redis"), "{refused}");
    let refused = set_policy(&one, "stock:*", None).await.unwrap_err().to_string();
    assert!(refused.contains("2 counters of this pattern lie in PostgreSQL"), "{refused}");
    let without = External::open(&redis.url(), Options::default()).await.unwrap();
    let refused = set_policy(&without, "x", strong(0, 1)).await.unwrap_err().to_string();
    assert!(refused.contains("--archive"), "{refused}");
    // Who does not see the rows takes nothing away that lies there.
    for (pattern, policy) in [("stock:*", None), ("stock:*", plain()), ("stock:1", plain())] {
        let refused = set_policy(&without, pattern, policy).await.unwrap_err().to_string();
        assert!(refused.contains("ask a node that has --archive"), "{refused}");
    }
    set_policy(&without, "likes", plain()).await.unwrap();
    set_policy(&without, "likes", None).await.unwrap();
}

/// Their rows lie in the archive alone: who changes it brings them along, or gives up the policy.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_archive_without_the_rows_of_strong_counters_is_refused() {
    let (redis, first, second, third) =
        (Server::start(), Postgres::start(), Postgres::start(), Postgres::start());
    let bind_anew = || {
        let unbind = redis::cmd("HDEL").arg("{q-policies}:p").arg("archive").to_owned();
        unbind.exec(&mut redis.connection()).unwrap();
    };
    let one = node(&redis, &first.url()).await;
    set_policy(&one, "stock:*", strong(0, 10)).await.unwrap();
    ask(&one, |batch| add(batch, "stock:1", 4, "a")).await.unwrap();
    drop(one);
    bind_anew();
    let archive = || Some(Arc::new(Archive::new(&second.url()).unwrap()));
    let refused = External::open_before(&redis.url(), archive(), Options::default()).await;
    let refused = refused.err().unwrap().to_string();
    assert!(["stock:*", "pg_dump", "Stop all nodes"].iter().all(|part| refused.contains(part)), "{refused}");
    let copy = format!(
        "pg_dump -t 'counter_strong*' -t quipu_strong_migrations {} | psql -q {}",
        first.url(),
        second.url()
    );
    assert!(std::process::Command::new("sh").args(["-c", &copy]).output().unwrap().status.success());
    let other = node(&redis, &second.url()).await;
    let replies = ask(&other, |batch| {
        add(batch, "stock:1", 4, "a");
        add(batch, "stock:1", 5, "b");
    });
    assert_eq!(told(&replies.await.unwrap()), [(None, 4, true), (None, 9, false)]);
    drop(other);
    bind_anew();
    let give_up = redis::cmd("HDEL").arg("{q-policies}:p").arg("=stock:*").to_owned();
    give_up.exec(&mut redis.connection()).unwrap();
    node(&redis, &third.url()).await;
}

/// Who is refused hears what PostgreSQL says.
#[tokio::test(flavor = "multi_thread")]
async fn what_postgres_says_is_passed_on() {
    let (redis, mut postgres) = (Server::start(), Postgres::start());
    let node = node(&redis, &postgres.url()).await;
    set_policy(&node, "stock:*", strong(0, 10)).await.unwrap();
    ask(&node, |batch| add(batch, "stock:1", 1, "a")).await.unwrap();
    let client = connect(&postgres.url()).await;
    let lock = "BEGIN; LOCK TABLE counter_strong IN ACCESS EXCLUSIVE MODE";
    client.batch_execute(lock).await.unwrap();
    let refused = |key: &'static str| {
        let node = Arc::clone(&node);
        tokio::spawn(async move {
            ask(&node, |batch| add(batch, key, 1, "b")).await.expect_err("nobody counts").to_string()
        })
    };
    for waiting in ["stock:1", "stock:2", "stock:3", "stock:4"].map(refused) {
        let said = waiting.await.unwrap();
        assert!(said.contains("PostgreSQL") && said.contains("lock timeout"), "{said}");
    }
    client.batch_execute("ROLLBACK").await.unwrap();
    postgres.stop();
    for waiting in ["stock:1", "stock:2"].map(refused) {
        let said = waiting.await.unwrap();
        assert!(said.contains("PostgreSQL") && !said.contains("lock timeout"), "{said}");
    }
    // Policies that have no say about strong counters are set without it, and others are not.
    for policy in [plain(), None] {
        set_policy(&node, "likes:*", policy).await.unwrap();
    }
    let refused = set_policy(&node, "stock:vip:*", plain()).await;
    assert!(matches!(&refused, Err(Unavailable::NoLeader(_))), "{refused:?}");
}

/// More than one transaction may hold, and the first of them fails: everything is done in its order all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_pipeline_keeps_its_order_when_its_beginning_fails() {
    let (redis, postgres) = (Server::start(), Postgres::start());
    let node = node(&redis, &postgres.url()).await;
    set_policy(&node, "stock:*", strong(0, 10_000)).await.unwrap();
    ask(&node, |batch| add(batch, "stock:1", 1, "a")).await.unwrap();
    let failures = |node: &External| {
        node.facts().into_iter().find(|(name, _)| *name == "strong_failures").map_or(0, |(_, count)| count)
    };
    let before = failures(&node);
    let client = connect(&postgres.url()).await;
    client.batch_execute("BEGIN; LOCK TABLE counter_strong IN ACCESS EXCLUSIVE MODE").await.unwrap();
    let asking = Arc::clone(&node);
    let asked = tokio::spawn(async move {
        ask(&asking, |batch| {
            batch.push(b"stock:1", set_to(1_000));
            (0..499).for_each(|_| _ = batch.push(b"stock:1", Action::Read));
            (0..12).for_each(|_| _ = batch.push(b"stock:1", Action::Add(Add::plain(1))));
        })
        .await
        .unwrap()
    });
    while failures(&node) == before {
        assert!(!asked.is_finished());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    client.batch_execute("ROLLBACK").await.unwrap();
    let values: Vec<i64> = asked.await.unwrap()[500..].iter().map(|reply| reply.cell.value).collect();
    assert_eq!(values, (1_001..=1_012).collect::<Vec<_>>());
}

/// As long as nobody knows whether the archive is the right one, nothing is to lie there.
#[tokio::test(flavor = "multi_thread")]
async fn no_policy_wants_strong_counters_before_the_archive_is_bound() {
    let (redis, postgres) = (Server::start(), Postgres::start());
    External::open(&redis.url(), Options::default()).await.unwrap();
    let early = node(&redis, "postgres://quipu@127.0.0.1:1/postgres").await;
    let refused = set_policy(&early, "stock:*", strong(0, 10)).await.unwrap_err();
    assert!(matches!(&refused, Unavailable::NoLeader(why) if why.contains("archive")), "{refused}");
    set_policy(&early, "likes:*", plain()).await.unwrap();
    // So the archive that comes later is not locked out.
    let later = node(&redis, &postgres.url()).await;
    set_policy(&later, "stock:*", strong(0, 10)).await.unwrap();
}

/// Of all policies that match a counter the most specific one says where it lies: what others say does not move it.
#[tokio::test(flavor = "multi_thread")]
async fn no_policy_hides_counters_of_another() {
    let (redis, postgres) = (Server::start(), Postgres::start());
    let node = node(&redis, &postgres.url()).await;
    set_policy(&node, "credit:*", strong(0, 10)).await.unwrap();
    set_policy(&node, "credit:free:*", plain()).await.unwrap();
    ask(&node, |batch| {
        add(batch, "credit:vip:1", 4, "a");
        add(batch, "credit:free:1", 5, "a");
        add(batch, "likes:1", 6, "a");
    })
    .await
    .unwrap();
    let refused = set_policy(&node, "credit:vip:*", plain()).await.unwrap_err().to_string();
    assert!(refused.contains("1 counters of this pattern lie in PostgreSQL"), "{refused}");
    let refused = set_policy(&node, "credit:free:*", None).await.unwrap_err().to_string();
    assert!(refused.contains("1 counters of this pattern lie in Redis"), "{refused}");
    // What stays where it is stands in nobody's way.
    set_policy(&node, "credit:vip:*", strong(0, 20)).await.unwrap();
    set_policy(&node, "likes:*", plain()).await.unwrap();
    set_policy(&node, "credit:*", plain()).await.unwrap();
    set_policy(&node, "credit:*", strong(0, 10)).await.unwrap();
    set_policy(&node, "*", strong(0, 10)).await.unwrap();
    set_policy(&node, "credit:vip:*", None).await.unwrap();
    let replies = ask(&node, |batch| {
        for key in ["credit:vip:1", "credit:free:1", "likes:1"] {
            batch.push(key.as_bytes(), Action::Read);
        }
    });
    let values: Vec<i64> = replies.await.unwrap().iter().map(|reply| reply.cell.value).collect();
    assert_eq!(values, [4, 5, 6]);
}

const COUNTERS: usize = 6;
const CEILING: i64 = 40;

/// Adds and takes under ids until it is told to stop; asks again until it knows. Returns how many were accepted.
async fn count(
    external: Arc<External>,
    seed: u64,
    totals: Arc<Vec<AtomicI64>>,
    left: Arc<AtomicU64>,
) -> (u64, u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let (mut accepted, mut repeated) = (0, 0);
    let mut number = 0;
    while left.load(Ordering::SeqCst) > 0 {
        number += 1;
        let (place, delta) = (random.random_range(0..COUNTERS), random.random_range(-9..=9));
        let (key, id) = (format!("stock:{place}"), format!("{seed}-{number}"));
        loop {
            let replies = ask(&external, |batch| add(batch, &key, delta, &id)).await;
            let Ok(replies) = replies else {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let reply = &replies[0];
            assert!((0..=CEILING).contains(&reply.cell.value), "{reply:?}");
            match reply.refusal {
                Some(Refusal::NoLeader | Refusal::OutcomeUnknown) => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
                Some(Refusal::AboveCeiling | Refusal::BelowFloor) => {}
                None => {
                    totals[place].fetch_add(delta, Ordering::SeqCst);
                    accepted += 1;
                }
                other => panic!("{other:?}"),
            }
            repeated += u64::from(reply.duplicate);
            break;
        }
        left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| Some(left.saturating_sub(1))).unwrap();
    }
    (accepted, repeated)
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_counts_twice_and_no_bound_is_crossed_whatever_dies() {
    let (redis, mut postgres) = (Server::start(), Postgres::start());
    let port = postgres.url().rsplit(':').next().unwrap().split('/').next().unwrap().parse().unwrap();
    // Every answer may be lost on its way, commits included.
    let losing = Arc::new(Losing::default());
    let proxy = Proxy::start(port, Arc::clone(&losing));
    let url = postgres.url().replace(&format!(":{port}/"), &format!(":{}/", proxy.port));
    let nodes = [node(&redis, &url).await, node(&redis, &url).await];
    set_policy(&nodes[0], "stock:*", strong(0, CEILING)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    losing.left.store(60, Ordering::SeqCst);
    let totals: Arc<Vec<AtomicI64>> = Arc::new((0..COUNTERS).map(|_| AtomicI64::new(0)).collect());
    let left = Arc::new(AtomicU64::new(3_000));
    let tasks: Vec<_> = (0..16)
        .map(|seed| {
            let node = Arc::clone(&nodes[seed as usize % 2]);
            tokio::spawn(count(node, seed, Arc::clone(&totals), Arc::clone(&left)))
        })
        .collect();
    for at in [2_400, 1_600, 800] {
        while left.load(Ordering::SeqCst) > at {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        postgres = tokio::task::spawn_blocking(move || {
            postgres.restart();
            postgres
        })
        .await
        .unwrap();
    }
    let (mut accepted, mut repeated) = (0, 0);
    for task in tasks {
        let (more, again) = task.await.unwrap();
        (accepted, repeated) = (accepted + more, repeated + again);
    }
    let lost = losing.lost.load(Ordering::SeqCst);
    println!("{accepted} accepted, {repeated} heard their first outcome again, {lost} answers lost");
    assert!(accepted > 500 && lost >= 10 && repeated > 0, "{accepted} {lost} {repeated}");
    let client = connect(&postgres.url()).await;
    for (place, total) in totals.iter().enumerate() {
        let key = format!("stock:{place}").into_bytes();
        let row = client.query_one("SELECT value FROM counter_strong WHERE counter_key = $1", &[&key]).await;
        assert_eq!(row.unwrap().get::<_, i64>(0), total.load(Ordering::SeqCst), "stock:{place}");
    }
}

/// All keys, page by page, asked of one node and the other in turn; `between` happens after each page.
fn scanned(nodes: &[Arc<External>; 2], mut between: impl FnMut(usize)) -> Vec<String> {
    let (mut cursor, mut keys) = (0, Vec::new());
    for page in 0.. {
        let found = nodes[page % 2].scan(cursor, 7, now_ms()).unwrap();
        keys.extend(found.keys.into_iter().map(|key| String::from_utf8(key).unwrap()));
        cursor = found.cursor;
        if cursor == 0 {
            break;
        }
        between(page);
    }
    keys
}

/// All keys of a list, in its order.
fn listed(node: &External, prefix: &str, order: ListOrder, limit: usize) -> Vec<(String, i64)> {
    let mut all: Vec<(String, i64)> = Vec::new();
    let mut after = None;
    loop {
        let listing = Listing { prefix: prefix.as_bytes().to_vec(), order, after, limit };
        let page = node.list(&listing, now_ms()).unwrap();
        after = page.counters.last().map(|last| ListPlace { value: last.cell.value, key: last.key.clone() });
        let found = page.counters.into_iter().map(|found| (found.key, found.cell.value));
        all.extend(found.map(|(key, value)| (String::from_utf8(key).unwrap(), value)));
        if !page.more {
            return all;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn strong_counters_are_seen_with_all_others() {
    let (redis, mut postgres) = (Server::start(), Postgres::start());
    let nodes = [node(&redis, &postgres.url()).await, node(&redis, &postgres.url()).await];
    set_policy(&nodes[0], "credit:*", strong(0, 1_000_000)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let value = |number: i64| number * 3 % 101;
    let count = |key: String, value: i64| ask(&nodes[0], move |batch| add(batch, &key, value, "first"));
    let mut expected: Vec<(String, i64)> = Vec::new();
    for number in 0..120 {
        for name in ["credit", "likes"] {
            let key = format!("{name}:{number:03}");
            assert_eq!(
                told(&count(key.clone(), value(number)).await.unwrap()),
                [(None, value(number), false)]
            );
            expected.push((key, value(number)));
        }
    }
    // One was deleted, one was never there, one is over, and what begins with the same letters is another.
    ask(&nodes[0], |batch| {
        batch.push(b"credit:gone", set_to(5));
        batch.push(b"credit:gone", Action::Delete(Condition::Always));
        batch.push(b"credit:never", Action::Read);
        let over = Set { value: 7, expiry: Expiry::At(now_ms() + 1), condition: Condition::Always };
        batch.push(b"credit:over", Action::Set(over));
        batch.push(b"credi", set_to(11));
        batch.push(b"credit", set_to(13));
    })
    .await
    .unwrap();
    expected.extend([("credi".to_owned(), 11), ("credit".to_owned(), 13)]);
    expected.sort();
    let sum: i128 = expected.iter().map(|(_, value)| i128::from(*value)).sum();
    let read = tokio::task::block_in_place(|| {
        for node in &nodes {
            for limit in [9, 1_000] {
                assert_eq!(listed(node, "", ListOrder::Key, limit), expected);
                let credit: Vec<_> =
                    expected.iter().filter(|(key, _)| key.starts_with("credit:")).cloned().collect();
                assert_eq!(listed(node, "credit:", ListOrder::Key, limit), credit);
                let mut by_value = expected.clone();
                by_value.sort_by_key(|(key, value)| (std::cmp::Reverse(*value), key.clone()));
                assert_eq!(listed(node, "", ListOrder::Value, limit), by_value);
            }
            let totals = node.aggregate(&Selector::new(b"*"), now_ms()).unwrap().totals();
            assert_eq!((totals.sum, totals.count), (sum, 242));
            let totals = node.aggregate(&Selector::new(b"credit:00*"), now_ms()).unwrap().totals();
            assert_eq!((totals.sum, totals.count), ((0..10).map(|at| i128::from(value(at))).sum(), 10));
            let drawn =
                |draw: u64| node.random_key(draw.wrapping_mul(0x9e37_79b9_7f4a_7c15), now_ms()).unwrap();
            let drawn: Vec<Vec<u8>> = (1..200).filter_map(drawn).collect();
            assert_eq!(drawn.len(), 199);
            let of = |prefix: &[u8]| drawn.iter().filter(|key| key.starts_with(prefix)).count();
            assert!(of(b"credit:") > 0 && of(b"likes:") > 0);
        }
        let mut keys = scanned(&nodes, |_| {});
        keys.sort();
        assert_eq!(keys, expected.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>());
        // What comes and goes meanwhile hides nothing that stays.
        let handle = tokio::runtime::Handle::current();
        let mut keys = scanned(&nodes, |page| {
            let (born, gone) = (format!("credit:new{page}"), format!("credit:{:03}", 2 * (page % 60)));
            let changed = ask(&nodes[0], |batch| {
                add(batch, &born, 1, "first");
                add(batch, "credit:001", 1, &born);
                batch.push(gone.as_bytes(), Action::Delete(Condition::Always));
            });
            handle.block_on(changed).unwrap();
        });
        keys.retain(|key| key.starts_with("credit:") && !key.contains("new"));
        keys.sort();
        keys.dedup();
        let stayed = (0..60).map(|number| format!("credit:{:03}", 2 * number + 1));
        assert!(stayed.into_iter().all(|key| keys.binary_search(&key).is_ok()), "{keys:?}");
        listed(&nodes[1], "", ListOrder::Key, 1_000).len() as i64
    });
    let counted = ask(&nodes[1], |batch| _ = batch.push(b"", Action::Count)).await.unwrap();
    assert_eq!(counted[0].cell.value, read, "DBSIZE");
    // What cannot be seen is not passed over in silence.
    postgres.stop();
    let node = Arc::clone(&nodes[0]);
    let seen =
        tokio::task::spawn_blocking(move || node.aggregate(&Selector::new(b"*"), now_ms())).await.unwrap();
    assert!(matches!(&seen, Err(Unavailable::NoLeader(_))), "{seen:?}");
}

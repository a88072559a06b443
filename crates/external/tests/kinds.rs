//! Counters of every kind on real servers, asked through several nodes: nothing counts twice, no limit is crossed, nothing is forgotten.

#![allow(clippy::unwrap_used, reason = "what a test cannot go on without")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use quipu_counting::body::{Keeping, put_frame};
use quipu_counting::kinds::seen_by;
use quipu_counting::rollup::{Declared, Slice};
use quipu_counting::window::Frame;
use quipu_counting::{
    Acquire, Action, Add, Batch, Condition, Counters, Detail, Ending, Expiry, GroupKind, Kind, ListOrder,
    Listing, Policy, Refusal, Reply, Selector, Set, Told, Unavailable,
};
use quipu_external::{External, Options};
use support::{Cluster, Losing, PATIENCE, Proxy, Server, wait_until};

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

async fn run(external: &External, fill: impl FnOnce(&mut Batch)) -> Result<Vec<Reply>, Unavailable> {
    let mut batch = Batch::default();
    fill(&mut batch);
    let (tell, told) = tokio::sync::oneshot::channel();
    let finished =
        move |batch: Batch, result: Result<u64, Unavailable>| _ = tell.send(result.map(|_| batch.replies));
    external.finish(batch, now_ms(), Box::new(finished));
    told.await.expect("everybody is answered")
}

async fn one(external: &External, key: &str, action: Action) -> Reply {
    run(external, |batch| _ = batch.push(key.as_bytes(), action)).await.unwrap().remove(0)
}

fn plain(delta: i64) -> Action {
    Action::Add(Add::plain(delta))
}

async fn observe(external: &External, key: &str, items: std::ops::Range<u64>) -> Reply {
    let hash = |item: u64| item.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) ^ item;
    let bytes: Vec<u8> = items.flat_map(|item| hash(item).to_le_bytes()).collect();
    let observed = run(external, |batch| {
        let items = batch.intern(&bytes);
        batch.push(key.as_bytes(), Action::Observe { items, at_ms: None });
    });
    observed.await.unwrap().remove(0)
}

fn acquire(batch: &mut Batch, amount: i64, limit: i64) -> Action {
    let mut frame = Vec::new();
    put_frame(&mut frame, &Frame::Sliding { span_ms: 3_600_000, bucket_ms: 60_000 });
    let frame = batch.intern(&frame);
    Action::Acquire(Acquire { amount, limit: Some(limit), frame, is_soft: false })
}

async fn set_policy(external: &Arc<External>, pattern: &str, policy: Policy) {
    let (external, pattern) = (Arc::clone(external), pattern.as_bytes().to_vec());
    let set = tokio::task::spawn_blocking(move || external.set_policy(&pattern, Some(policy), 0));
    set.await.unwrap().unwrap();
}

fn fact(external: &External, name: &str) -> u64 {
    external.facts().into_iter().find(|(known, _)| *known == name).unwrap().1
}

async fn uniques(external: &Arc<External>, other: &Arc<External>) {
    let seen = observe(external, "visitors", 0..3).await;
    assert_eq!((seen.cell.value, seen.kind, seen.refusal), (3, Kind::Unique, None));
    assert_eq!(observe(other, "visitors", 1..1_000).await.kind, Kind::Unique);
    let read = one(external, "visitors", Action::Read).await;
    let Some(Detail::Body(body, frame)) = read.detail.as_deref() else { panic!("no body: {read:?}") };
    let count = seen_by(body, frame.as_ref(), now_ms()).count();
    assert!((950..=1_050).contains(&count), "{count}");
    assert_eq!(read.cell.version, 2);
    // Sums and sets are not for it; another kind is not for sums.
    for action in
        [plain(1), Action::Set(Set { value: 1, expiry: Expiry::Keep, condition: Condition::Always })]
    {
        assert_eq!(one(other, "visitors", action).await.refusal, Some(Refusal::WrongKind));
    }
    assert_eq!(one(external, "likes", plain(2)).await.cell.value, 2);
    assert_eq!(observe(other, "likes", 0..3).await.refusal, Some(Refusal::WrongKind));
    // It expires, and is something else in its next life.
    let expire = quipu_counting::Expire { expiry: Expiry::In(30), when: quipu_counting::ExpireWhen::Always };
    assert!(one(external, "visitors", Action::Expire(expire)).await.exists);
    tokio::task::block_in_place(|| {
        wait_until("it is over", || {
            let read = one(other, "visitors", Action::Read);
            !tokio::runtime::Handle::current().block_on(read).exists
        });
    });
    assert_eq!(one(external, "visitors", plain(7)).await.cell.value, 7);
    assert_eq!(one(other, "visitors", plain(1)).await.kind, Kind::Sum);
    // A number may take the place of a sketch.
    observe(external, "replaced", 0..9).await;
    let set = Set { value: 5, expiry: Expiry::Keep, condition: Condition::Always };
    assert_eq!(one(other, "replaced", Action::Overwrite(set)).await.refusal, None);
    assert_eq!(one(external, "replaced", plain(1)).await.cell.value, 6);
    assert!(one(external, "replaced", Action::Delete(Condition::Always)).await.existed);
    assert_eq!(observe(other, "replaced", 0..2).await.cell.value, 2);
}

async fn quotas_and_holds(external: &Arc<External>, other: &Arc<External>) {
    // Several limits in one decision, where they share a group.
    let both = |amount| {
        run(external, move |batch| {
            for (key, limit) in [("{user}:minute", 5), ("{user}:day", 7)] {
                let action = acquire(batch, amount, limit);
                batch.push(key.as_bytes(), action);
            }
            batch.group(0, GroupKind::Atomic);
        })
    };
    assert!(both(3).await.unwrap().iter().all(|reply| reply.refusal.is_none()));
    let refused: Vec<_> = both(3).await.unwrap().iter().map(|reply| reply.refusal).collect();
    assert_eq!(refused, [Some(Refusal::OverQuota), Some(Refusal::GroupAborted)]);
    let told = run(other, |batch| {
        let action = acquire(batch, 4, 7);
        batch.push(b"{user}:day", action);
    });
    let told = told.await.unwrap().remove(0);
    assert_eq!(told.refusal, None);
    assert!(matches!(told.detail.as_deref(), Some(Detail::Quota { used: 7, limit: 7, .. })), "{told:?}");

    // What is set aside counts for limits, until it is taken, given back, or over.
    let stock = Add { max: 10, ..Add::plain(6) };
    let held = one(external, "stock", Action::Reserve(stock, 60_000)).await;
    let Some(Detail::Hold { number, .. }) = held.detail.as_deref() else { panic!("{held:?}") };
    let capped = Action::Add(Add { max: 10, ..Add::plain(5) });
    assert_eq!(one(other, "stock", capped).await.refusal, Some(Refusal::AboveCeiling));
    let end = |ending| Action::End { birth: held.cell.birth, number: *number, ending };
    assert_eq!(one(other, "stock", end(Ending::Commit(Some(4)))).await.cell.value, 4);
    assert_eq!(one(external, "stock", end(Ending::Void)).await.refusal, Some(Refusal::HoldEnded));
    assert_eq!(one(external, "stock", capped).await.cell.value, 9);
    let short = Add { max: 10, ..Add::plain(1) };
    assert_eq!(one(other, "stock", Action::Reserve(short, 50)).await.refusal, None);
    tokio::task::block_in_place(|| {
        wait_until("what was set aside is free again", || {
            let add = one(external, "stock", Action::Add(short));
            tokio::runtime::Handle::current().block_on(add).refusal.is_none()
        });
    });
    assert_eq!(one(other, "stock", Action::Read).await.cell.value, 10);
}

async fn windows_and_rollups(external: &Arc<External>) {
    let frame = Frame::Sliding { span_ms: 3_600_000, bucket_ms: 60_000 };
    let window = Some(Keeping { frame, keep_ms: 7_200_000 });
    set_policy(external, "window:*", Policy { kind: Some(Kind::Window), window, ..Policy::default() }).await;
    let rollups = Declared::new(&[vec!["tenant".to_owned()]]).unwrap();
    set_policy(external, "rolled:*", Policy { rollups, ..Policy::default() }).await;
    let told = async |key: &str, told: Told<'_>| {
        let told = run(external, |batch| {
            let action = batch.addition(Add::plain(5), &told);
            batch.push(key.as_bytes(), action);
        });
        told.await.unwrap().remove(0)
    };
    let earlier = Told { at_ms: Some(now_ms() - 600_000), ..Told::default() };
    assert_eq!(told("window:1", earlier.clone()).await.refusal, None);
    assert_eq!(one(external, "window:1", plain(2)).await.cell.value, 7);
    let too_old = Told { at_ms: Some(1), ..Told::default() };
    assert_eq!(told("window:1", too_old).await.refusal, Some(Refusal::OutOfTime));
    assert_eq!(told("likes", earlier).await.refusal, Some(Refusal::Timeless));
    let reason = Told { reason: Some("a correction"), ..Told::default() };
    assert_eq!(told("likes", reason).await.cell.value, 7);
    for tenant in ["a", "b", "a"] {
        let dimensions = Told { dimensions: vec![("tenant", tenant)], ..Told::default() };
        assert_eq!(told("rolled:1", dimensions).await.refusal, None);
    }
    let slice = Slice::parse("tenant:a").unwrap();
    let sliced = run(external, |batch| {
        let action = slice.action(batch);
        batch.push(b"rolled:1", action);
    });
    let sliced = sliced.await.unwrap().remove(0);
    assert_eq!(sliced.detail.and_then(|detail| Some(detail.sliced()?.value)), Some(10));
    let totals = tokio::task::block_in_place(|| {
        external.aggregate(&Selector::new(b"rolled:*").of_part(Some(slice)), now_ms()).unwrap().totals()
    });
    assert_eq!((totals.sum, totals.count), (10, 1));
    let listing = Listing { prefix: b"".to_vec(), order: ListOrder::Key, after: None, limit: 100 };
    let page = tokio::task::block_in_place(|| external.list(&listing, now_ms()).unwrap());
    let kinds: Vec<(String, Kind)> = page
        .counters
        .iter()
        .map(|listed| (String::from_utf8(listed.key.clone()).unwrap(), listed.kind()))
        .collect();
    for expected in [("likes", Kind::Sum), ("replaced", Kind::Unique), ("window:1", Kind::Window)] {
        assert!(kinds.contains(&(expected.0.to_owned(), expected.1)), "{expected:?} in {kinds:?}");
    }
}

/// A producer's batches, each once; what one client asks stays in order, of whatever kind it is.
async fn sessions_and_pipelines(external: &Arc<External>, other: &Arc<External>) {
    let send = |node: &Arc<External>, epoch, sequence| {
        let node = Arc::clone(node);
        async move {
            let told = run(&node, |batch| {
                batch.push(b"{p}:a", plain(1));
                batch.push(b"{p}:b", plain(2));
                let producer = batch.intern(b"a producer");
                batch.group(0, GroupKind::Session { producer, epoch, sequence });
            });
            let told = told.await.unwrap().remove(0);
            (told.refusal, told.duplicate, told.cell.version)
        }
    };
    assert_eq!(send(external, 1, 1).await, (None, false, 1));
    assert_eq!(send(other, 1, 1).await, (None, true, 1));
    assert_eq!(send(other, 1, 5).await, (None, false, 5));
    assert_eq!(send(external, 1, 4).await, (None, true, 5));
    assert_eq!(send(external, 2, 1).await, (None, false, 1));
    assert_eq!(send(other, 1, 9).await, (Some(Refusal::Fenced), false, 2));
    assert_eq!(one(external, "{p}:b", Action::Read).await.cell.value, 6);
    let told = run(other, |batch| {
        batch.push(b"{line}:a", plain(1));
        let items = batch.intern(b"12345678");
        batch.push(b"{line}:b", Action::Observe { items, at_ms: None });
        batch.push(b"{line}:a", plain(1));
        batch.push(b"{line}:b", Action::Read);
        batch.push(b"{line}:a", Action::Delete(Condition::Version(2)));
        batch.push(b"{line}:b", Action::Delete(Condition::Always));
        batch.push(b"{line}:b", plain(1));
    });
    let told: Vec<_> = told.await.unwrap().iter().map(|reply| (reply.cell.value, reply.refusal)).collect();
    assert_eq!(told, [(1, None), (1, None), (2, None), (1, None), (0, None), (0, None), (1, None)]);
    // The node does not know that this one is a sketch: what follows waits for it all the same.
    observe(external, "{line}:c", 0..1).await;
    let told = run(other, |batch| {
        batch.push(b"{line}:d", plain(1));
        batch.push(b"{line}:c", Action::Read);
        batch.push(b"{line}:d", plain(1));
        batch.push(b"{line}:c", plain(1));
        batch.push(b"{line}:d", Action::Read);
    });
    let told: Vec<_> = told.await.unwrap().iter().map(|reply| (reply.cell.value, reply.refusal)).collect();
    assert_eq!(told, [(1, None), (1, None), (2, None), (1, Some(Refusal::WrongKind)), (2, None)]);
}

async fn every_kind(url: &str) {
    let external = External::open(url, Options::default()).await.unwrap();
    let other = External::open(url, Options::default()).await.unwrap();
    uniques(&external, &other).await;
    quotas_and_holds(&external, &other).await;
    windows_and_rollups(&external).await;
    sessions_and_pipelines(&external, &other).await;
    let trail = Policy { audit_ms: Some(1_000), ..Policy::default() };
    let refused = tokio::task::block_in_place(|| external.set_policy(b"*", Some(trail), 0));
    assert!(matches!(refused, Err(Unavailable::Unsupported(_))), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_on_a_single_server() {
    every_kind(&Server::start().url()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_kind_on_a_cluster() {
    every_kind(&Cluster::start().url()).await;
}

/// Two nodes race for one limit.
async fn race(url: &str) {
    const LIMIT: i64 = 10_000;
    let nodes = [
        External::open(url, Options::default()).await.unwrap(),
        External::open(url, Options::default()).await.unwrap(),
    ];
    let admitted = Arc::new(AtomicI64::new(0));
    let clients: Vec<_> = (0..40)
        .map(|client| {
            let (node, admitted) = (Arc::clone(&nodes[client % 2]), Arc::clone(&admitted));
            tokio::spawn(async move {
                for _ in 0..500 {
                    let told = run(&node, |batch| {
                        let action = acquire(batch, 1, LIMIT);
                        batch.push(b"limited", action);
                    });
                    match told.await.unwrap().remove(0).refusal {
                        None => _ = admitted.fetch_add(1, Ordering::Relaxed),
                        Some(refusal) => assert_eq!(refusal, Refusal::OverQuota),
                    }
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
    assert_eq!(admitted.load(Ordering::Relaxed), LIMIT);
    assert_eq!(one(&nodes[0], "limited", Action::Read).await.cell.value, LIMIT);
    let conflicts: u64 = nodes.iter().map(|node| fact(node, "external_conflicts")).sum();
    assert!(conflicts > 2, "they did compete: {conflicts}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_holds_for_two_nodes_on_a_single_server() {
    race(&Server::start().url()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_holds_for_two_nodes_on_a_cluster() {
    race(&Cluster::start().url()).await;
}

/// Acquires one under an id until that is said to be done.
async fn acquire_once(external: &External, key: &str, id: &str) -> bool {
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < PATIENCE, "{key} {id} is not done");
        let told = run(external, |batch| {
            let action = acquire(batch, 1, 1_000_000);
            batch.push_with_id(key.as_bytes(), action, id.as_bytes(), 0);
        });
        match told.await.map(|replies| (replies[0].refusal, replies[0].duplicate)) {
            Ok((None, duplicate)) => return duplicate,
            Ok((Some(Refusal::OutcomeUnknown | Refusal::NoLeader), _)) | Err(Unavailable::NoLeader(_)) => {}
            other => panic!("{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Answers are lost, and what was acquired is what was asked for.
async fn lose_answers(url: &str, losing: &Arc<Losing>) {
    let external = External::open(url, Options::default()).await.unwrap();
    losing.left.store(300, Ordering::Relaxed);
    let clients: Vec<_> = (0..16)
        .map(|client| {
            let (external, losing) = (Arc::clone(&external), Arc::clone(losing));
            tokio::spawn(async move {
                let (mut counted, mut duplicates) = ([0; 4], 0);
                for turn in 0.. {
                    if losing.left.load(Ordering::Relaxed) <= 0 {
                        break;
                    }
                    let key = (client + turn) % 4;
                    let id = format!("{client}-{turn}");
                    duplicates += i64::from(acquire_once(&external, &format!("quota:{key}"), &id).await);
                    counted[key] += 1;
                }
                (counted, duplicates)
            })
        })
        .collect();
    let (mut expected, mut duplicates) = ([0; 4], 0);
    for client in clients {
        let (counted, again) = client.await.unwrap();
        (0..4).for_each(|key| expected[key] += counted[key]);
        duplicates += again;
    }
    for (key, expected) in expected.into_iter().enumerate() {
        assert_eq!(one(&external, &format!("quota:{key}"), Action::Read).await.cell.value, expected);
    }
    assert!(duplicates > 0, "some were done before their answer was lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_answers_of_a_single_server_acquire_nothing_twice() {
    let (server, losing) = (Server::start(), Arc::new(Losing::default()));
    let proxy = Proxy::start(server.port, Arc::clone(&losing));
    lose_answers(&proxy.url(), &losing).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_answers_of_a_cluster_acquire_nothing_twice() {
    let losing = Arc::new(Losing::default());
    let cluster = Cluster::start_behind(Some(&losing));
    lose_answers(&cluster.url(), &losing).await;
}

/// A server that comes back with less than it had, and reaches the same version on another way: what a node remembers of the
/// time before is not what is there.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_server_has_forgotten_its_nodes_forget_too() {
    let server = Server::start();
    let external = External::open(&server.url(), Options::default()).await.unwrap();
    let other = External::open(&server.url(), Options::default()).await.unwrap();
    let acquire = async |node: &External, amount: i64, id: &str| {
        let told = run(node, |batch| {
            let action = acquire(batch, amount, 100);
            batch.push_with_id(b"quota", action, id.as_bytes(), 0);
        });
        told.await.unwrap().remove(0).cell.value
    };
    assert_eq!(acquire(&external, 5, "a").await, 5);
    let name = format!("{{{}}}:c:quota", quipu_external::tag(quipu_external::group(b"quota")));
    let mut connection = server.connection();
    let before: Vec<u8> = redis::cmd("GET").arg(&name).query(&mut connection).unwrap();
    assert_eq!(acquire(&external, 3, "b").await, 8);
    redis::cmd("SET").arg(&name).arg(before).exec(&mut connection).unwrap();
    redis::cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal").exec(&mut connection).unwrap();
    assert_eq!(acquire(&other, 1, "c").await, 6);
    assert_eq!(acquire(&external, 1, "d").await, 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_are_lost_are_not_begun_anew() {
    let server = Server::start();
    let external = External::open(&server.url(), Options::default()).await.unwrap();
    observe(&external, "visitors", 0..9).await;
    redis::cmd("FLUSHALL").exec(&mut server.connection()).unwrap();
    let refused = run(&external, |batch| {
        let items = batch.intern(b"12345678");
        batch.push(b"visitors", Action::Observe { items, at_ms: None });
    });
    let Err(Unavailable::NoLeader(why)) = refused.await else { panic!("it was done") };
    assert!(why.contains("lost"), "{why}");
    let keys: u64 = redis::cmd("DBSIZE").query(&mut server.connection()).unwrap();
    assert_eq!(keys, 0);
}

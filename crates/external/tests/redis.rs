//! Counters on real servers: what is lost, what moves, what dies, and that nothing counts twice or vanishes.

#![allow(clippy::unwrap_used, reason = "what a test cannot go on without")]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use quipu_counting::{
    Action, Add, Batch, Condition, Counters, Execution, Expiry, GroupKind, ListOrder, Listing, Policy,
    Refusal, Reply, Selector, Set, Unavailable,
};
use quipu_external::{External, Options, group, tag};
use support::{Cluster, Losing, PATIENCE, Proxy, Server, wait_until};

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

async fn run(external: &External, fill: impl FnOnce(&mut Batch)) -> Result<Batch, Unavailable> {
    let mut batch = Batch::default();
    fill(&mut batch);
    assert_eq!(external.execute(&mut batch, now_ms()), Ok(Execution::Pending));
    let (tell, told) = tokio::sync::oneshot::channel();
    external.finish(batch, now_ms(), Box::new(move |batch, result| _ = tell.send(result.map(|_| batch))));
    told.await.expect("everybody is answered")
}

async fn one(external: &External, key: &str, action: Action) -> Result<Reply, Unavailable> {
    Ok(run(external, |batch| _ = batch.push(key.as_bytes(), action)).await?.replies.remove(0))
}

fn plain(delta: i64) -> Action {
    Action::Add(Add::plain(delta))
}

/// Adds one under an id until that is said to be done, as a client would. Says how often it asked.
async fn add_once(external: &External, key: &str, id: &str) -> u64 {
    let begin = Instant::now();
    for asked in 1.. {
        assert!(begin.elapsed() < PATIENCE, "{key} {id} is not done");
        let told =
            run(external, |batch| _ = batch.push_with_id(key.as_bytes(), plain(1), id.as_bytes(), 0)).await;
        match told.map(|batch| batch.replies[0].refusal) {
            Ok(None) => return asked,
            Ok(Some(Refusal::OutcomeUnknown | Refusal::NoLeader)) | Err(Unavailable::NoLeader(_)) => {}
            other => panic!("{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    unreachable!()
}

async fn value(external: &External, key: &str) -> i64 {
    one(external, key, Action::Read).await.unwrap().cell.value
}

/// Many who count the same keys until they are told to stop; how much each key must have in the end.
struct Crowd {
    is_over: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<BTreeMap<String, i64>>>,
    done: Arc<AtomicU64>,
}

impl Crowd {
    fn of(external: &Arc<External>, name: &'static str, keys: u64) -> Crowd {
        let (is_over, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let client = |number: u64| {
            let (external, is_over, done) = (Arc::clone(external), Arc::clone(&is_over), Arc::clone(&done));
            tokio::spawn(async move {
                let mut counted = BTreeMap::new();
                for turn in 0u64.. {
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                    let key = format!("{name}:{}", (number * 7 + turn) % keys);
                    add_once(&external, &key, &format!("{number}-{turn}")).await;
                    *counted.entry(key).or_default() += 1;
                    done.fetch_add(1, Ordering::Relaxed);
                }
                counted
            })
        };
        let tasks = (0..16).map(client).collect();
        Crowd { is_over, tasks, done }
    }

    /// Waits until so many more are counted.
    async fn go_on(&self, more: u64) {
        let target = self.done.load(Ordering::Relaxed) + more;
        tokio::task::block_in_place(|| {
            wait_until("others go on", || self.done.load(Ordering::Relaxed) >= target);
        });
    }

    async fn end(self) -> BTreeMap<String, i64> {
        self.is_over.store(true, Ordering::Relaxed);
        let mut all = BTreeMap::new();
        for task in self.tasks {
            for (key, counted) in task.await.unwrap() {
                *all.entry(key).or_default() += counted;
            }
        }
        all
    }

    /// Everything is there, and once.
    async fn end_exactly(self, external: &External) {
        for (key, counted) in self.end().await {
            assert_eq!(value(external, &key).await, counted, "{key}");
        }
    }
}

fn fact(external: &External, name: &str) -> u64 {
    external.facts().into_iter().find(|(known, _)| *known == name).unwrap().1
}

#[tokio::test(flavor = "multi_thread")]
async fn counters_of_a_single_server() {
    let server = Server::start();
    let external = External::open(&server.url(), Options::default()).await.unwrap();
    let reply = one(&external, "likes", plain(5)).await.unwrap();
    assert_eq!((reply.cell.value, reply.cell.version, reply.applied, reply.existed), (5, 1, 5, false));
    let many = run(&external, |batch| {
        (0..200).for_each(|number| _ = batch.push(format!("many:{number}").as_bytes(), plain(number)));
        batch.push_with_id(b"likes", plain(1), b"x", 0);
        batch.push_with_id(b"likes", plain(1), b"x", 0);
        batch.push_with_id(b"likes", plain(2), b"x", 0);
        batch.push(b"", Action::Count);
    });
    let replies = many.await.unwrap().replies;
    assert!((0..200).all(|number| replies[number].cell.value == number as i64), "in order");
    assert_eq!((replies[200].cell.value, replies[200].duplicate), (6, false));
    assert_eq!((replies[201].cell.value, replies[201].duplicate), (6, true));
    assert_eq!(replies[202].refusal, Some(Refusal::IdReused));
    assert_eq!(replies[203].cell.value, 201, "what stands before is counted");

    // More than one call may hold, and still in order.
    let long =
        run(&external, |batch| (0..2_500).for_each(|_| _ = batch.push(b"long", plain(1)))).await.unwrap();
    assert!(long.replies.iter().zip(1..).all(|(reply, value)| reply.cell.value == value));

    // All or none, where they share a group; refused where they do not.
    let group_of = |keys: [&'static str; 2]| {
        let external = Arc::clone(&external);
        async move {
            let told = run(&external, |batch| {
                batch.push(keys[0].as_bytes(), plain(1));
                batch.push(keys[1].as_bytes(), Action::Add(Add { max: 0, ..Add::plain(1) }));
                batch.group(0, GroupKind::Atomic);
            });
            told.await.unwrap().replies.iter().map(|reply| reply.refusal).collect::<Vec<_>>()
        }
    };
    assert_eq!(
        group_of(["a{tag}", "b{tag}"]).await,
        [Some(Refusal::GroupAborted), Some(Refusal::AboveCeiling)]
    );
    assert_eq!(value(&external, "a{tag}").await, 0);
    assert_ne!(group(b"likes"), group(b"views"));
    assert_eq!(group_of(["likes", "views"]).await, [Some(Refusal::CrossSlot); 2]);

    // What is not supported is said, and nothing of the batch is done.
    let refused = run(&external, |batch| {
        (0..1_001).for_each(|_| _ = batch.push(b"likes", plain(1)));
        batch.group(0, GroupKind::Atomic);
    });
    assert!(matches!(refused.await, Err(Unavailable::Unsupported(_))));
    assert_eq!(value(&external, "likes").await, 6);

    // Another node sees the same, under the same epoch.
    let other = External::open(&server.url(), Options::default()).await.unwrap();
    assert_eq!(other.epoch(), external.epoch());
    assert_eq!(value(&other, "likes").await, 6);

    // All are deleted, between what stands before and behind it.
    let cleared = run(&external, |batch| {
        batch.push(b"likes", plain(1));
        batch.push(b"", Action::Clear);
        batch.push(b"", Action::Count);
        batch.push(b"likes", plain(1));
    });
    let values: Vec<i64> = cleared.await.unwrap().replies.iter().map(|reply| reply.cell.value).collect();
    assert_eq!((values[0], &values[2..]), (7, &[0, 1][..]));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_has_expired_is_gone_and_redis_forgets_it() {
    let server = Server::start();
    let external = External::open(&server.url(), Options::default()).await.unwrap();
    let set = Set { value: 7, expiry: Expiry::In(20), condition: Condition::Always };
    assert!(one(&external, "short", Action::Set(set)).await.unwrap().exists);
    tokio::task::block_in_place(|| {
        wait_until("it is over", || {
            let read = one(&external, "short", Action::Read);
            !tokio::runtime::Handle::current().block_on(read).unwrap().exists
        });
    });
    let name = format!("{{{}}}:c:short", tag(group(b"short")));
    let left: i64 = redis::cmd("PTTL").arg(name).query(&mut server.connection()).unwrap();
    assert!((0..=60_020).contains(&left), "Redis removes it some time later: {left}");
    assert_eq!(one(&external, "short", plain(1)).await.unwrap().cell.value, 1, "a new life");
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_are_shared() {
    let server = Server::start();
    let external = External::open(&server.url(), Options::default()).await.unwrap();
    let other = External::open(&server.url(), Options::default()).await.unwrap();
    let capped = Policy { max: Some(3), ..Policy::default() };
    let set = |policy: Option<Policy>| {
        let external = Arc::clone(&external);
        tokio::task::spawn_blocking(move || external.set_policy(b"stock:*", policy, 0))
    };
    assert_eq!(set(Some(capped.clone())).await.unwrap(), Ok(false));
    assert_eq!(
        one(&external, "stock:7", plain(4)).await.unwrap().refusal,
        Some(Refusal::AboveCeiling),
        "at once"
    );
    let refused = || {
        let set = Set { value: 4, expiry: Expiry::Keep, condition: Condition::Always };
        let set = one(&other, "stock:8", Action::Set(set));
        let reply = tokio::runtime::Handle::current().block_on(set).unwrap();
        reply.refusal == Some(Refusal::AboveCeiling)
    };
    tokio::task::block_in_place(|| wait_until("others have heard of it", refused));
    assert_eq!(set(Some(capped)).await.unwrap(), Ok(true));
    assert_eq!(set(None).await.unwrap(), Ok(true));
    assert_eq!(set(None).await.unwrap(), Ok(false));
    assert_eq!(one(&external, "stock:7", plain(4)).await.unwrap().refusal, None);
    let trail = Policy { audit_ms: Some(1_000), ..Policy::default() };
    assert!(matches!(set(Some(trail)).await.unwrap(), Err(Unavailable::Unsupported(_))));
}

fn walks(external: &External, count: usize) {
    let mut keys = std::collections::BTreeSet::new();
    let mut cursor = 0;
    loop {
        let page = external.scan(cursor, 10, now_ms()).unwrap();
        keys.extend(page.keys);
        cursor = page.cursor;
        if cursor == 0 {
            break;
        }
    }
    assert_eq!(keys.len(), count + 1);
    let listed = |order, limit| {
        let mut listing = Listing { prefix: b"walk*:".to_vec(), order, after: None, limit };
        let mut all = Vec::new();
        loop {
            let page = external.list(&listing, now_ms()).unwrap();
            all.extend(page.counters.iter().map(|counter| counter.cell.value));
            listing.after = page.next();
            if listing.after.is_none() {
                return all;
            }
        }
    };
    let rising: Vec<i64> = (0..count as i64).collect();
    assert_eq!(listed(ListOrder::Key, 7), rising);
    assert_eq!(listed(ListOrder::Value, 1_000), rising.iter().rev().copied().collect::<Vec<_>>());
    let totals = external.aggregate(&Selector::new(b"walk*"), now_ms()).unwrap().totals();
    let expected = (rising.iter().sum::<i64>().into(), count as u64);
    assert_eq!((totals.sum, totals.count), expected);
    assert_eq!(totals.range(), Some((0, count as i64 - 1)));
    let random = external.random_key(0x1234_5678_9abc_def0, now_ms()).unwrap().unwrap();
    assert!(keys.contains(&random));
}

async fn walks_over(url: &str) {
    let external = External::open(url, Options::default()).await.unwrap();
    assert_eq!(tokio::task::block_in_place(|| external.random_key(7, now_ms())), Ok(None));
    let count = 100;
    let fill = run(&external, |batch| {
        for number in 0..count {
            let key = format!("walk*:{number:03}");
            batch.push_with_id(key.as_bytes(), plain(number), b"fill", 0);
        }
        batch.push(b"other", plain(1));
    });
    assert!(fill.await.unwrap().replies.iter().all(|reply| reply.refusal.is_none()));
    tokio::task::block_in_place(|| walks(&external, count as usize));
    let counted = run(&external, |batch| _ = batch.push(b"", Action::Count)).await.unwrap();
    assert_eq!(counted.replies[0].cell.value, count + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn walks_of_a_single_server() {
    walks_over(&Server::start().url()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn walks_of_a_cluster() {
    walks_over(&Cluster::start().url()).await;
}

/// A thousand answers are lost, and what was counted is what was asked.
async fn lose_answers(url: &str, losing: &Losing) {
    let external = External::open(url, Options::default()).await.unwrap();
    losing.left.store(1_000, Ordering::Relaxed);
    let crowd = Crowd::of(&external, "lossy", 50);
    tokio::task::block_in_place(|| {
        wait_until("all are lost", || losing.left.load(Ordering::Relaxed) <= 0);
    });
    crowd.end_exactly(&external).await;
    assert_eq!(losing.lost.load(Ordering::Relaxed), 1_000);
    assert!(fact(&external, "external_retries") > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_answers_of_a_single_server_count_nothing_twice() {
    let (server, losing) = (Server::start(), Arc::new(Losing::default()));
    let proxy = Proxy::start(server.port, Arc::clone(&losing));
    lose_answers(&proxy.url(), &losing).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lost_answers_of_a_cluster_count_nothing_twice() {
    let losing = Arc::new(Losing::default());
    let cluster = Cluster::start_behind(Some(&losing));
    lose_answers(&cluster.url(), &losing).await;
}

/// Without an id nobody may ask again: it was done, but who asked cannot know.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_without_an_id_is_an_unknown_outcome() {
    let (server, losing) = (Server::start(), Arc::new(Losing::default()));
    let proxy = Proxy::start(server.port, Arc::clone(&losing));
    let external = External::open(&proxy.url(), Options::default()).await.unwrap();
    losing.left.store(20, Ordering::Relaxed);
    let (mut unknown, mut asked) = (0, 0);
    while losing.lost.load(Ordering::Relaxed) < 20 {
        asked += 1;
        match one(&external, "likes", plain(1)).await.unwrap().refusal {
            None => {}
            Some(Refusal::OutcomeUnknown) => unknown += 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(unknown, 20);
    assert_eq!(value(&external, "likes").await, asked, "each was asked once");
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_that_move_lose_and_double_nothing() {
    let cluster = Cluster::start();
    let external = External::open(&cluster.url(), Options::default()).await.unwrap();
    let crowd = Crowd::of(&external, "moving", 300);
    crowd.go_on(500).await;
    let masters: Vec<usize> = (0..6).filter(|place| cluster.is_master(*place)).collect();
    // The lowest slots of a master have some groups among them.
    tokio::task::block_in_place(|| cluster.reshard(masters[0], masters[1], 600));
    crowd.go_on(500).await;
    tokio::task::block_in_place(|| cluster.reshard(masters[1], masters[0], 600));
    crowd.go_on(500).await;
    crowd.end_exactly(&external).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_dies_and_others_go_on() {
    let mut cluster = Cluster::start();
    let external = External::open(&cluster.url(), Options::default()).await.unwrap();
    let mut own: BTreeMap<u64, String> = BTreeMap::new();
    // A key of each third of the slots, which are those of the masters.
    for number in 0.. {
        let key = format!("key:{number}");
        own.entry(u64::from(group(key.as_bytes())) * 3 / 64).or_insert(key);
        if own.len() == 3 {
            break;
        }
    }
    for key in own.values() {
        add_once(&external, key, "before").await;
    }
    let of_slot = |key: &str| {
        let slot: u64 = redis::cmd("CLUSTER")
            .arg("KEYSLOT")
            .arg(format!("{{{}}}", tag(group(key.as_bytes()))))
            .query(&mut cluster.servers[0].connection())
            .unwrap();
        (0..6).find(|place| {
            let mut connection = cluster.servers[*place].connection();
            let name = format!("{{{}}}:m", tag(group(key.as_bytes())));
            let marker: Result<Option<String>, _> =
                redis::cmd("HGET").arg(name).arg("epoch").query(&mut connection);
            cluster.is_master(*place) && marker.is_ok_and(|marker| marker.is_some()) && slot < 16_384
        })
    };
    let homes: Vec<usize> = own.values().map(|key| of_slot(key).unwrap()).collect();
    let (dead, others) =
        own.values().cloned().enumerate().partition::<Vec<_>, _>(|(place, _)| homes[*place] == homes[0]);
    assert!(!others.is_empty());
    // What was acknowledged must have reached the replica before: Redis does not promise that by itself.
    tokio::task::block_in_place(|| cluster.wait_for_replica(homes[0]));
    cluster.servers[homes[0]].kill();
    for turn in 0..200 {
        for (_, key) in &others {
            let told = run(&external, |batch| {
                _ = batch.push_with_id(key.as_bytes(), plain(1), format!("during {turn}").as_bytes(), 0);
            });
            assert_eq!(told.await.unwrap().replies[0].refusal, None, "nobody else is concerned");
        }
    }
    for (_, key) in &dead {
        add_once(&external, key, "after").await;
        add_once(&external, key, "before").await;
        assert_eq!(value(&external, key).await, 2, "its replica has taken over");
    }
    for (_, key) in &others {
        assert_eq!(value(&external, key).await, 201);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn counters_that_are_lost_are_not_counted_from_zero() {
    let server = Server::start();
    let external = External::open(&server.url(), Options::default()).await.unwrap();
    assert_eq!(one(&external, "likes", plain(7)).await.unwrap().cell.value, 7);
    redis::cmd("FLUSHALL").exec(&mut server.connection()).unwrap();
    for action in [plain(1), Action::Read] {
        let Err(Unavailable::NoLeader(why)) = one(&external, "likes", action).await else {
            panic!("it was done")
        };
        assert!(why.contains("lost"), "{why}");
    }
    let keys: u64 = redis::cmd("DBSIZE").query(&mut server.connection()).unwrap();
    assert_eq!(keys, 0);
    assert!(fact(&external, "external_lost") >= 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn remains_of_a_loss_are_not_taken_for_a_beginning() {
    let server = Server::start();
    let external = External::open(&server.url(), Options::default()).await.unwrap();
    one(&external, "likes", plain(7)).await.unwrap();
    redis::cmd("DEL").arg("{q-policies}:p").exec(&mut server.connection()).unwrap();
    let refused = External::open(&server.url(), Options::default()).await.err().unwrap();
    assert!(refused.to_string().contains(&*external.epoch()), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_library_is_loaded_again_where_it_is_missing() {
    let server = Server::start();
    let external = External::open(&server.url(), Options::default()).await.unwrap();
    one(&external, "likes", plain(1)).await.unwrap();
    redis::cmd("FUNCTION").arg("FLUSH").exec(&mut server.connection()).unwrap();
    redis::cmd("SCRIPT").arg("FLUSH").exec(&mut server.connection()).unwrap();
    assert_eq!(one(&external, "likes", plain(1)).await.unwrap().cell.value, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_gone_is_left_alone_and_found_again() {
    let mut server = Server::start();
    let external = External::open(&server.url(), Options::default()).await.unwrap();
    one(&external, "likes", plain(1)).await.unwrap();
    server.kill();
    let refused = one(&external, "likes", plain(1)).await.unwrap().refusal;
    assert!(matches!(refused, Some(Refusal::NoLeader | Refusal::OutcomeUnknown)), "{refused:?}");
    tokio::task::block_in_place(|| {
        wait_until("it is left alone", || {
            let read = one(&external, "likes", Action::Read);
            let read = tokio::runtime::Handle::current().block_on(read).unwrap();
            assert_eq!(read.refusal, Some(Refusal::NoLeader));
            fact(&external, "external_breaker_opened") > 0
        });
    });
    assert_eq!(fact(&external, "external_under_way"), 0);
    server.restart();
    tokio::task::block_in_place(|| {
        wait_until("it is found again", || {
            let read = one(&external, "likes", Action::Read);
            let read = tokio::runtime::Handle::current().block_on(read);
            read.is_err_and(|why| why.to_string().contains("lost"))
        });
    });
}

/// What another node has written is not acknowledged either before enough replicas have it.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_are_waited_for_whoever_wrote() {
    let server = Server::start();
    let port = server.port.to_string();
    let replica = Server::start_with(support::free_port(), &["--replicaof", "127.0.0.1", &port]);
    let one = External::open(&server.url(), Options::default()).await.unwrap();
    let patience = Duration::from_secs(2);
    let options = Options { wait_replicas: 1, patience, ..Options::default() };
    let waiting = External::open(&server.url(), options).await.unwrap();
    add_once(&waiting, "likes", "first").await;
    let add = async |node: &External| {
        let told = run(node, |batch| _ = batch.push_with_id(b"likes", plain(1), b"second", 0)).await;
        let reply = told.unwrap().replies.remove(0);
        (reply.refusal, reply.cell.value)
    };
    replica.signal("STOP");
    assert_eq!(add(&one).await, (None, 2));
    assert_eq!(add(&waiting).await.0, Some(Refusal::OutcomeUnknown));
    replica.signal("CONT");
    add_once(&waiting, "likes", "second").await;
    assert_eq!(value(&one, "likes").await, 2);
}

fn set_user(redis: &Server, rights: &[&str]) {
    let mut set = redis::cmd("ACL");
    set.arg("SETUSER").arg("lim").arg("on").arg(">secret");
    rights.iter().for_each(|right| _ = set.arg(right));
    set.exec(&mut redis.connection()).unwrap();
}

/// A function that is refused a command in its middle has done what comes before it.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_who_may_not_do_everything_is_refused() {
    let redis = Server::start();
    let url = format!("redis://lim:secret@127.0.0.1:{}", redis.port);
    for (rights, parts) in [
        (&["~*", "+@all", "-set", "-mset"][..], &["SET {q", "MSET {q"][..]),
        (&["resetkeys", "~{q*}:c:*", "~{q*}:s", "~{q*}:m", "~{q-*", "+@all"], &["SET {q", ":i:3:key:0:id"]),
        (&["allkeys", "+@all", "-xgroup|create"], &["XGROUP CREATE {q"]),
    ] {
        set_user(&redis, rights);
        let refused = External::open(&url, Options::default()).await.err().unwrap();
        let said = refused.to_string();
        assert!(parts.iter().all(|part| said.contains(part)) && !refused.may_pass(), "{said}");
        assert!(!said.contains("XADD"), "{said}");
    }
    let keys: u64 = redis::cmd("DBSIZE").query(&mut redis.connection()).unwrap();
    assert_eq!(keys, 0, "nothing was begun");
    // As the documentation says.
    let rights = ["~{q*", "+@all", "-@dangerous", "+info", "+cluster|slots", "+role"];
    set_user(&redis, &[&["reset", "on", ">secret"], &rights[..]].concat());
    let options = Options { wait_replicas: 1, ..Options::default() };
    External::open(&url, options).await.unwrap();
    let external = External::open(&url, Options::default()).await.unwrap();
    assert_eq!(one(&external, "likes", plain(1)).await.unwrap().cell.value, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_half_done_is_unknown_and_counts_once() {
    let redis = Server::start();
    set_user(&redis, &["~*", "+@all"]);
    let url = format!("redis://lim:secret@127.0.0.1:{}", redis.port);
    let external = External::open(&url, Options::default()).await.unwrap();
    let items: Vec<u8> = (1..4u64).flat_map(|item| (item << 20 | item).to_le_bytes()).collect();
    let fill = |batch: &mut Batch| {
        batch.push_with_id(b"likes", plain(5), b"a", 0);
        let items = batch.intern(&items);
        batch.push_with_id(b"visitors", Action::Observe { items, at_ms: None }, b"a", 0);
    };
    set_user(&redis, &["-set"]);
    for _ in 0..3 {
        let replies = run(&external, fill).await.unwrap().replies;
        assert!(replies.iter().all(|reply| reply.refusal == Some(Refusal::OutcomeUnknown)), "{replies:?}");
        assert_eq!(value(&external, "likes").await, 0);
    }
    set_user(&redis, &["+@all"]);
    for _ in 0..2 {
        let replies = run(&external, fill).await.unwrap().replies;
        let values: Vec<i64> = replies.iter().map(|reply| reply.cell.value).collect();
        assert_eq!(values, [5, 3], "{replies:?}");
    }
    // What has not begun to write has changed nothing, and says so.
    set_user(&redis, &["-xadd"]);
    let refused = one(&external, "likes", plain(1)).await;
    assert!(
        matches!(&refused, Err(Unavailable::NoLeader(why)) if why.contains("can't run this command")),
        "{refused:?}"
    );
    assert_eq!(value(&external, "likes").await, 5);
}

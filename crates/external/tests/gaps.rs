//! What the archive and Redis could lose of each other: the wrong Redis, a second archive, one that comes later, a Redis that comes back
//! older than it was. Nothing of it is lost silently.

#![allow(clippy::unwrap_used, reason = "what a test cannot go on without")]

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use quipu_counting::{Action, Add, Batch, Counters, GroupKind, Policy, Reply, Unavailable};
use quipu_external::archive::{Archive, ArchiveState, Flusher, FlusherOptions, FlusherTasks};
use quipu_external::{External, GROUPS, OpenError, Options, group, tag};
use support::postgres::Postgres;
use support::{PATIENCE, Server};

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as u64
}

fn eager() -> FlusherOptions {
    FlusherOptions { interval: Duration::from_millis(20), ..FlusherOptions::default() }
}

/// A node with an archive. Flushes as long as it is there.
struct Node {
    external: Arc<External>,
    archive: Arc<Archive>,
    flushing: Option<FlusherTasks>,
}

impl Node {
    async fn start(redis: &str, postgres: &Postgres) -> Result<Node, OpenError> {
        let mut node = Node::idle(redis, postgres).await?;
        node.flush();
        Ok(node)
    }

    /// The same once those that were there before are forgotten.
    async fn in_the_end(redis: &str, postgres: &Postgres) -> Node {
        let mut node = Node::idle_in_the_end(redis, postgres).await;
        node.flush();
        node
    }

    async fn idle_in_the_end(redis: &str, postgres: &Postgres) -> Node {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match Node::idle(redis, postgres).await {
                Ok(node) => return node,
                Err(why) => assert!(why.may_pass() && Instant::now() < deadline, "{why}"),
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// One that does not flush.
    async fn idle(redis: &str, postgres: &Postgres) -> Result<Node, OpenError> {
        let archive = Arc::new(Archive::new(&postgres.url()).unwrap());
        let external = External::open_before(redis, Some(Arc::clone(&archive)), Options::default()).await?;
        Ok(Node { external, archive, flushing: None })
    }

    fn flush(&mut self) {
        let flusher = Flusher::over(Arc::clone(&self.external), Arc::clone(&self.archive), eager());
        self.flushing = Some(Arc::new(flusher).start());
    }

    fn state(&self) -> ArchiveState {
        self.archive.state()
    }

    /// Asks until Redis answers: it may just be starting.
    async fn run(&self, fill: impl Fn(&mut Batch)) -> Vec<Reply> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match ask(&self.external, &fill).await {
                Ok(replies) => return replies,
                Err(why) => assert!(Instant::now() < deadline, "{why:?}"),
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Adds under an id. Returns the value, and whether it was done before.
    async fn add(&self, key: &str, delta: i64, id: &str) -> (i64, bool) {
        let fill = |batch: &mut Batch| {
            batch.push_with_id(key.as_bytes(), Action::Add(Add::plain(delta)), id.as_bytes(), 0);
        };
        let reply = self.run(fill).await.remove(0);
        assert_eq!(reply.refusal, None);
        (reply.cell.value, reply.duplicate)
    }

    async fn observe(&self, key: &str, items: std::ops::Range<u64>) -> i64 {
        let hashes: Vec<u8> = items.flat_map(|item| (item << 20 | item).to_le_bytes()).collect();
        let fill = |batch: &mut Batch| {
            let items = batch.intern(&hashes);
            batch.push(key.as_bytes(), Action::Observe { items, at_ms: None });
        };
        self.run(fill).await.remove(0).cell.value
    }

    async fn read(&self, key: &str) -> i64 {
        self.run(|batch| _ = batch.push(key.as_bytes(), Action::Read)).await.remove(0).cell.value
    }

    /// A producer's batch. Says whether it was done before.
    async fn send(&self, sequence: u64) -> bool {
        let fill = |batch: &mut Batch| {
            batch.push(b"{p}:a", Action::Add(Add::plain(1)));
            let producer = batch.intern(b"a producer");
            batch.group(0, GroupKind::Session { producer, epoch: 1, sequence });
        };
        self.run(fill).await.remove(0).duplicate
    }

    async fn until_flushed(&self) {
        until("everything is flushed", async || left(self) == 0).await;
    }

    async fn until_rebuilt(&self, count: usize) {
        let deadline = Instant::now() + PATIENCE;
        while self.external.problem().is_some() || self.state().recoveries.len() != count {
            let problem = self.external.problem();
            assert!(Instant::now() < deadline, "it is not rebuilt: {problem:?} {:?}", self.state());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

async fn ask(external: &External, fill: &impl Fn(&mut Batch)) -> Result<Vec<Reply>, Unavailable> {
    let mut batch = Batch::default();
    fill(&mut batch);
    let (tell, told) = tokio::sync::oneshot::channel();
    let finished =
        move |batch: Batch, result: Result<u64, Unavailable>| _ = tell.send(result.map(|_| batch.replies));
    external.finish(batch, now_ms(), Box::new(finished));
    told.await.expect("everybody is answered")
}

/// Entries that are in no table.
fn left(node: &Node) -> u64 {
    let url = format!("redis://{}", node.external.masters()[0].0);
    let mut connection = redis::Client::open(url).unwrap().get_connection().unwrap();
    let sum = "local n = 0; for _, k in ipairs(redis.call('KEYS', '{q*}:s')) do n = n + redis.call('XLEN', k) end; return n";
    redis::cmd("EVAL").arg(sum).arg(0).query(&mut connection).unwrap()
}

async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so().await {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until the archive knows of all groups, also of those in which nothing happened.
async fn until_drained(postgres: &Postgres) {
    let client = connect(postgres).await;
    let unknown = "SELECT count(*) FROM counter_watermark WHERE drained_at_ms = 0 AND event_ms = 0";
    until("all groups are known", async || {
        client.query_one(unknown, &[]).await.unwrap().get::<_, i64>(0) == 0
    })
    .await;
}

async fn connect(postgres: &Postgres) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(&postgres.url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

fn command(server: &Server, words: &[&str]) -> redis::Value {
    let mut connection = server.connection();
    let mut command = redis::cmd(words[0]);
    words[1..].iter().for_each(|word| _ = command.arg(word));
    command.query(&mut connection).unwrap()
}

fn said(refused: Result<Node, OpenError>) -> String {
    refused.err().expect("it is refused").to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_redis_elsewhere_is_not_taken_for_the_right_one() {
    let (right, wrong, postgres) = (Server::start(), Server::start(), Postgres::start());
    let mut node = Node::start(&right.url(), &postgres).await.unwrap();
    node.add("likes", 7, "a").await;
    node.until_flushed().await;
    for url in [wrong.url(), format!("{}/1", right.url())] {
        let said = said(Node::start(&url, &postgres).await);
        assert!(said.contains("INSERT INTO counter_home") && said.contains("--backend"), "{said}");
    }
    assert_eq!(node.add("likes", 1, "b").await.0, 8);
    node.until_flushed().await;
    // The counters shall move there, but not while others count on.
    let client = connect(&postgres).await;
    let home = format!("127.0.0.1:{}/0", wrong.port);
    client.execute("INSERT INTO counter_home (address) VALUES ($1)", &[&home]).await.unwrap();
    let said = said(Node::start(&wrong.url(), &postgres).await);
    assert!(said.contains("in use by nodes that are on another Redis"), "{said}");
    assert_eq!(node.add("likes", 1, "c").await.0, 9);
    node.until_flushed().await;
    node.flushing = None;
    let there = Node::in_the_end(&wrong.url(), &postgres).await;
    there.until_rebuilt(1).await;
    assert_eq!(there.read("likes").await, 9);
    // The old one is not rebuilt over what it has, and does not write over what came after.
    node.add("likes", 1, "d").await;
    drop(there);
    let old = Node::in_the_end(&right.url(), &postgres).await;
    until("it says why", async || {
        old.state().problem.is_some_and(|why| why.contains("Nothing is overwritten"))
    })
    .await;
    let text: String = redis::cmd("GET")
        .arg(format!("{{{}}}:c:likes", tag(group(b"likes"))))
        .query(&mut right.connection())
        .unwrap();
    assert!(text.starts_with("10 "), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_redis_is_not_used_beside_it() {
    let (right, copy, postgres) = (Server::start(), Server::start(), Postgres::start());
    let node = Node::start(&right.url(), &postgres).await.unwrap();
    node.add("likes", 7, "a").await;
    command(&copy, &["REPLICAOF", "127.0.0.1", &right.port.to_string()]);
    until("it is copied", async || {
        let info: redis::Value = command(&copy, &["INFO", "replication"]);
        redis::from_redis_value::<String>(info).unwrap().contains("master_link_status:up")
    })
    .await;
    command(&copy, &["REPLICAOF", "NO", "ONE"]);
    node.until_flushed().await;
    let client = connect(&postgres).await;
    let says = "SELECT count(*) FROM counter_node WHERE whole_at > now() - interval '2 seconds'";
    until("the node says where it is", async || {
        client.query_one(says, &[]).await.unwrap().get::<_, i64>(0) == 1
    })
    .await;
    let said = said(Node::start(&copy.url(), &postgres).await);
    assert!(said.contains("in use by nodes that are on another Redis"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_archive_is_refused_and_one_that_takes_over_gets_everything() {
    let (server, first, second) = (Server::start(), Postgres::start(), Postgres::start());
    let node = Node::start(&server.url(), &first).await.unwrap();
    node.add("likes", 7, "a").await;
    node.observe("visitors", 1..4).await;
    node.send(1).await;
    node.until_flushed().await;
    let said = said(Node::start(&server.url(), &second).await);
    assert!(said.contains("HDEL {q-policies}:p archive"), "{said}");
    let tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'";
    let tables: i64 = connect(&second).await.query_one(tables, &[]).await.unwrap().get(0);
    assert_eq!(tables, 0, "nothing is made in the wrong one");
    let late = Flusher::open(Arc::clone(&node.external), &second.url(), eager()).await;
    assert!(late.err().unwrap().to_string().contains("HDEL {q-policies}:p archive"));
    drop(node);
    command(&server, &["HDEL", "{q-policies}:p", "archive"]);
    let node = Node::start(&server.url(), &second).await.unwrap();
    node.add("likes", 1, "b").await;
    let client = connect(&second).await;
    let whole = "SELECT count(*) FROM counter_watermark
        WHERE (event_ms, event_sequence) >= (whole_from_ms, whole_from_sequence)";
    let total = "SELECT count(*) FROM counter_total_snapshot WHERE total_value = 8";
    let number = async |query| client.query_one(query, &[]).await.unwrap().get::<_, i64>(0);
    until("it has everything", async || number(whole).await == 64 && number(total).await == 1).await;
    until("and says so", async || node.state().unseeded_groups == 0).await;
    command(&server, &["FLUSHALL"]);
    node.until_rebuilt(1).await;
    assert_eq!(node.add("likes", 7, "a").await, (7, true), "its id was decided before this archive");
    assert_eq!(node.read("likes").await, 8);
    assert_eq!(node.observe("visitors", 1..5).await, 4);
    assert!(node.send(1).await, "the producer's batch is known");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_archive_that_comes_later_is_seeded_and_not_rebuilt_from_before() {
    let (server, postgres) = (Server::start(), Postgres::start());
    let external = External::open(&server.url(), Options::default()).await.unwrap();
    let stripes = Policy { stripes: Some(4), ..Policy::default() };
    let setting = Arc::clone(&external);
    let set = move || setting.set_policy(b"hot:*", Some(stripes), now_ms());
    tokio::task::spawn_blocking(set).await.unwrap().unwrap();
    for number in 0..500 {
        let fill = |batch: &mut Batch| {
            let (key, id) = (format!("key:{number}"), format!("id:{number}"));
            batch.push_with_id(key.as_bytes(), Action::Add(Add::plain(number)), id.as_bytes(), 0);
            batch.push_with_id(b"hot:a", Action::Add(Add::plain(1)), id.as_bytes(), 0);
        };
        ask(&external, &fill).await.unwrap();
    }
    for key in 0..64 {
        command(&server, &["XTRIM", &format!("{{{}}}:s", tag(key)), "MAXLEN", "0"]);
    }
    let flusher = Flusher::open(Arc::clone(&external), &postgres.url(), eager()).await.unwrap();
    // It is noticed what is missing, and nothing is done about it yet.
    flusher.flush_all().await.unwrap();
    let copy = Server::start();
    command(&copy, &["REPLICAOF", "127.0.0.1", &server.port.to_string()]);
    until("there is a backup", async || {
        let info: redis::Value = command(&copy, &["INFO", "replication"]);
        redis::from_redis_value::<String>(info).unwrap().contains("master_link_status:up")
    })
    .await;
    command(&copy, &["REPLICAOF", "NO", "ONE"]);
    drop((flusher, external));
    command(&server, &["FLUSHALL"]);
    let node = Node::start(&server.url(), &postgres).await.unwrap();
    until("it says why it is not rebuilt", async || {
        node.state().problem.is_some_and(|why| why.contains("has not got everything"))
    })
    .await;
    drop(node);
    // Redis is restored from its own backup.
    command(&server, &["REPLICAOF", "127.0.0.1", &copy.port.to_string()]);
    until("it is restored", async || {
        let info: redis::Value = command(&server, &["INFO", "replication"]);
        redis::from_redis_value::<String>(info).unwrap().contains("master_link_status:up")
    })
    .await;
    command(&server, &["REPLICAOF", "NO", "ONE"]);
    let node = Node::start(&server.url(), &postgres).await.unwrap();
    let client = connect(&postgres).await;
    let whole = "SELECT count(*) FROM counter_watermark
        WHERE (event_ms, event_sequence) >= (whole_from_ms, whole_from_sequence)";
    until("the archive has everything", async || {
        client.query_one(whole, &[]).await.unwrap().get::<_, i64>(0) == 64
    })
    .await;
    let kept = "SELECT count(*) FROM counter_policies";
    until("and the policies", async || client.query_one(kept, &[]).await.unwrap().get::<_, i64>(0) == 1)
        .await;
    node.add("key:7", 1, "later").await;
    node.until_flushed().await;
    command(&server, &["FLUSHALL"]);
    node.until_rebuilt(1).await;
    for number in 0..500 {
        let (value, was_done) = node.add(&format!("key:{number}"), number, &format!("id:{number}")).await;
        assert_eq!((value, was_done), (number, true));
    }
    assert_eq!((node.read("key:7").await, node.read("hot:a").await), (8, 500));
}

/// A snapshot of before, with the right marker; and something is counted on it before anybody looks.
#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_comes_back_older_is_rebuilt() {
    let (mut server, postgres) = (Server::start(), Postgres::start());
    let mut node = Node::start(&server.url(), &postgres).await.unwrap();
    node.add("likes", 5, "a").await;
    node.add("idle", 1, "a").await;
    node.observe("visitors", 1..4).await;
    node.until_flushed().await;
    command(&server, &["SAVE"]);
    node.add("likes", 3, "b").await;
    node.add("idle", 1, "b").await;
    node.observe("visitors", 1..9).await;
    node.send(1).await;
    node.until_flushed().await;
    node.flushing = None;
    server.kill();
    server.revive();
    assert_eq!(node.add("likes", 1, "c").await, (6, false), "on what was");
    node.flush();
    node.until_rebuilt(1).await;
    assert_eq!(node.add("likes", 3, "b").await, (8, true));
    assert_eq!(node.add("likes", 1, "c").await, (9, false), "it was lost, and its id with it");
    assert_eq!((node.read("idle").await, node.read("visitors").await), (2, 8));
    assert!(node.send(1).await);
    let told = node.state().recoveries.remove(0);
    assert!(told.gap_ms.is_some() && told.groups_lost == 4 && told.watermark != "0-0", "{told:?}");
    // The same for a node that starts.
    node.until_flushed().await;
    command(&server, &["SAVE"]);
    node.add("likes", 1, "d").await;
    node.until_flushed().await;
    drop(node);
    server.kill();
    server.revive();
    let node = Node::idle_in_the_end(&server.url(), &postgres).await;
    assert!(
        node.external.problem().is_some_and(|why| why.contains("1 of 64 groups")),
        "it is noticed at once"
    );
    drop(node);
    let node = Node::in_the_end(&server.url(), &postgres).await;
    node.until_rebuilt(2).await;
    assert_eq!(node.add("likes", 1, "d").await, (10, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn producers_come_back_and_the_watermark_is_told() {
    let (server, postgres) = (Server::start(), Postgres::start());
    let node = Node::start(&server.url(), &postgres).await.unwrap();
    assert!(!node.send(1).await && !node.send(2).await);
    node.until_flushed().await;
    until_drained(&postgres).await;
    command(&server, &["FLUSHALL"]);
    node.until_rebuilt(1).await;
    assert!(node.send(2).await && node.send(1).await, "the last batch does not count again");
    assert_eq!(node.read("{p}:a").await, 2);
    assert!(!node.send(3).await);
    let told = node.state().recoveries.remove(0);
    assert_eq!(told.groups_lost, 64);
    assert_ne!(told.watermark, "0-0", "a group in which nothing ever happened says nothing: {told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_of_somebody_else_stops_its_group_alone() {
    let (server, postgres) = (Server::start(), Postgres::start());
    let node = Node::start(&server.url(), &postgres).await.unwrap();
    // In all groups but one, so that whoever begins anywhere meets one of them first.
    let untouched = group(b"{p}:a");
    let streams =
        (0..GROUPS).filter(|group| *group != untouched).map(|group| format!("{{{}}}:s", tag(group)));
    let put = |stream: String| {
        let entry = command(&server, &["XADD", &stream, "*", "what", "ever"]);
        (stream, redis::from_redis_value::<String>(entry).unwrap())
    };
    let entries: Vec<(String, String)> = streams.map(put).collect();
    let keys: Vec<String> = (0..100).map(|number| format!("key:{number}")).collect();
    for key in &keys {
        node.add(key, 1, "a").await;
    }
    let others = keys.iter().filter(|key| group(key.as_bytes()) == untouched).count() as i64;
    assert!(others > 0 && others < keys.len() as i64);
    let client = connect(&postgres).await;
    let count = "SELECT count(*) FROM counter_total_snapshot";
    let flushed = async || client.query_one(count, &[]).await.unwrap().get::<_, i64>(0);
    until("the other group is flushed", async || flushed().await == others).await;
    until("what to do is said", async || {
        let says = |why: String| {
            entries.iter().any(|(stream, entry)| why.contains(&format!("XDEL {stream} {entry}")))
        };
        node.state().problem.is_some_and(says)
    })
    .await;
    for (stream, entry) in &entries {
        command(&server, &["XDEL", stream, entry]);
    }
    until("the rest is flushed", async || flushed().await == keys.len() as i64).await;
    until("nothing is said any more", async || node.state().problem.is_none()).await;
}

/// What ended has ended, also where the same key began anew, plainly, before the next flush, under a birth of a block that another node drew earlier.
#[tokio::test(flavor = "multi_thread")]
async fn a_counter_that_began_anew_comes_back_as_what_it_is() {
    let (redis, postgres) = (Server::start(), Postgres::start());
    let first = Node::idle(&redis.url(), &postgres).await.unwrap();
    let mut second = Node::idle(&redis.url(), &postgres).await.unwrap();
    second.flush();
    // Each has a block of births, the first one the smaller.
    assert_eq!(first.observe("{t}:a", 0..3).await, 3);
    assert_eq!(second.observe("{t}:b", 0..3).await, 3);
    assert_eq!(second.observe("{t}:k", 0..40).await, 40);
    // So the first one knows it as one with a body, and decides about it.
    assert_eq!(first.observe("{t}:k", 40..50).await, 50);
    second.until_flushed().await;
    let client = connect(&postgres).await;
    let bodies = async || {
        client.query_one("SELECT count(*) FROM counter_body_snapshot", &[]).await.unwrap().get::<_, i64>(0)
    };
    assert_eq!(bodies().await, 3);
    second.flushing = None;
    first.run(|batch| _ = batch.push(b"{t}:k", Action::Delete(quipu_counting::Condition::Always))).await;
    first.add("{t}:k", 4, "anew").await;
    second.flush();
    second.until_flushed().await;
    assert_eq!(bodies().await, 2, "its body has ended with it");
    drop(first);
    redis::cmd("FLUSHALL").exec(&mut redis.connection()).unwrap();
    second.until_rebuilt(1).await;
    assert_eq!(second.read("{t}:k").await, 4);
    assert_eq!(second.add("{t}:k", 4, "anew").await, (4, true));
    assert_eq!(second.observe("{t}:a", 0..3).await, 3);
}

/// While Redis hangs, what has a body is read from the archive like everything else.
#[tokio::test(flavor = "multi_thread")]
async fn counters_of_every_kind_are_read_from_the_archive() {
    let (redis, postgres) = (Server::start(), Postgres::start());
    let node = Node::start(&redis.url(), &postgres).await.unwrap();
    assert_eq!(node.observe("visitors", 0..40).await, 40);
    assert_eq!(node.add("likes", 7, "a").await, (7, false));
    node.until_flushed().await;
    until_drained(&postgres).await;
    redis.signal("STOP");
    for (key, value) in [("visitors", 40), ("likes", 7), ("nothing", 0)] {
        let fill = |batch: &mut Batch| {
            batch.freshness = quipu_counting::Freshness::Eventual { max_staleness_ms: None };
            batch.push(key.as_bytes(), Action::Read);
        };
        let replies = ask(&node.external, &fill).await.expect("the archive answers");
        assert_eq!((replies[0].cell.value, replies[0].refusal), (value, None), "{key}");
        assert_eq!(replies[0].detail.is_some(), key == "visitors", "{key}");
    }
    redis.signal("CONT");
}

/// A server and its replica may both be named: whoever is the master has the counters, and a replica is not taken for it.
#[tokio::test(flavor = "multi_thread")]
async fn of_a_server_and_its_replica_the_master_is_asked() {
    let (mut primary, other) = (Server::start(), Server::start());
    let address = primary.url();
    let port = address.rsplit(':').next().unwrap().trim_end_matches('/').to_owned();
    let both = format!("{},{}", other.url(), primary.url());
    let refused = External::open(&both, Options::default()).await.err().expect("two servers of their own");
    assert!(refused.to_string().contains("servers of their own") && !refused.may_pass(), "{refused}");
    redis::cmd("REPLICAOF").arg("127.0.0.1").arg(port).exec(&mut other.connection()).unwrap();
    let external = External::open(&both, Options::default()).await.expect("the master is found");
    let add = |batch: &mut Batch| _ = batch.push(b"likes", Action::Add(Add::plain(1)));
    assert_eq!(ask(&external, &add).await.unwrap()[0].cell.value, 1);
    primary.signal("STOP");
    tokio::time::sleep(Duration::from_secs(4)).await;
    primary.signal("CONT");
    until("it counts again", async || ask(&external, &add).await.is_ok_and(|told| told[0].refusal.is_none()))
        .await;
    until("the replica has it", async || {
        let info: String = redis::cmd("INFO").arg("replication").query(&mut other.connection()).unwrap();
        info.contains("master_link_status:up")
    })
    .await;
    // The operator makes the replica a master: it has the counters.
    primary.kill();
    redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec(&mut other.connection()).unwrap();
    until("the other one is asked", async || {
        ask(&external, &add).await.is_ok_and(|told| told[0].refusal.is_none() && told[0].cell.value >= 3)
    })
    .await;
}

/// Without an archive nobody empties the streams but the nodes themselves; once there is one, they leave them alone.
#[tokio::test(flavor = "multi_thread")]
async fn streams_that_nobody_archives_are_trimmed() {
    let (redis, postgres) = (Server::start(), Postgres::start());
    let external = External::open(&redis.url(), Options::default()).await.unwrap();
    let stream = format!("{{{}}}:s", tag(group(b"likes")));
    let length = || redis::cmd("XLEN").arg(&stream).query::<usize>(&mut redis.connection()).unwrap();
    let add = |batch: &mut Batch| _ = batch.push(b"likes", Action::Add(Add::plain(1)));
    for _ in 0..2_000 {
        assert_eq!(ask(&external, &add).await.unwrap()[0].refusal, None);
    }
    until("old entries are gone", async || length() < 1_200).await;
    let node = Node::idle(&redis.url(), &postgres).await.unwrap();
    let before = length();
    for _ in 0..2_000 {
        assert_eq!(ask(&external, &add).await.unwrap()[0].refusal, None);
    }
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(length(), before + 2_000, "they are for the archive");
    assert_eq!(node.read("likes").await, 4_000);
}

/// Whoever forgets sooner does not forget for the others: neither the rows of their ids, nor when it rebuilds Redis.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_with_a_shorter_window_brings_back_the_ids_of_others() {
    let (server, postgres) = (Server::start(), Postgres::start());
    let node = Node::start(&server.url(), &postgres).await.unwrap();
    node.add("likes", 7, "a").await;
    node.until_flushed().await;
    let client = connect(&postgres).await;
    let knows = "SELECT count(*) FROM counter_policies WHERE fields @> ARRAY['id_window'::bytea]";
    until("the archive knows the window", async || {
        client.query_one(knows, &[]).await.unwrap().get::<_, i64>(0) == 1
    })
    .await;
    drop(node);
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    // Nobody is there who knows more than the archive.
    command(&server, &["FLUSHALL"]);
    let archive = Arc::new(Archive::new(&postgres.url()).unwrap());
    let (options, deadline) =
        (Options { id_window_ms: 1_000, ..Options::default() }, Instant::now() + PATIENCE);
    let external = loop {
        let opened = External::open_before(&server.url(), Some(Arc::clone(&archive)), options.clone()).await;
        match opened {
            Ok(external) => break external,
            Err(why) => assert!(why.may_pass() && Instant::now() < deadline, "{why}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    let eager = FlusherOptions { id_window: Duration::from_secs(1), ..eager() };
    let flusher = Arc::new(Flusher::over(Arc::clone(&external), Arc::clone(&archive), eager));
    assert_eq!(flusher.purge().await.unwrap(), 0, "rows of ids that others remember");
    let short = Node { external, archive, flushing: Some(flusher.start()) };
    short.until_rebuilt(1).await;
    assert_eq!(short.add("likes", 7, "a").await, (7, true));
    let field: String =
        redis::cmd("HGET").arg("{q-policies}:p").arg("id_window").query(&mut server.connection()).unwrap();
    assert_eq!(field, "86400000");
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_begin_together_on_new_stores_all_begin() {
    let postgres = Postgres::start();
    for round in 0..5 {
        let server = Server::start();
        let database = format!("round{round}");
        connect(&postgres).await.batch_execute(&format!("CREATE DATABASE {database}")).await.unwrap();
        let url = postgres.url().replace("/postgres", &format!("/{database}"));
        let begin = |number: u64| {
            let (archive, redis) = (Arc::new(Archive::new(&url).unwrap()), server.url());
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(7 * number)).await;
                External::open_before(&redis, Some(archive), Options::default()).await
            })
        };
        let beginning: Vec<_> = (0..6).map(begin).collect();
        let mut epochs = std::collections::BTreeSet::new();
        for node in beginning {
            let external = node.await.unwrap().unwrap_or_else(|why| panic!("round {round}: {why}"));
            epochs.insert(external.epoch().to_string());
        }
        assert_eq!(epochs.len(), 1, "{epochs:?}");
    }
}

//! What can only be seen between two steps of a flush.

#![allow(clippy::unwrap_used, reason = "what a test cannot go on without")]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use quipu_counting::{Action, Add, Batch, Counters, Expire, ExpireWhen, Expiry, Reply, Unavailable};

use super::watermark::ANY;
use super::{Archive, Flusher, FlusherOptions, Snapshot, wall_ms};
use crate::support::postgres::Postgres;
use crate::support::{PATIENCE, Server};
use crate::{External, Options, groups};

async fn observe(external: &External, item: u64, id: &str) -> Result<Reply, Unavailable> {
    ask(external, |batch| {
        let items = batch.intern(&(item << 20 | item).to_le_bytes());
        batch.push_with_id(b"visitors", Action::Observe { items, at_ms: None }, id.as_bytes(), 0);
    })
    .await
}

async fn ask(external: &External, fill: impl FnOnce(&mut Batch)) -> Result<Reply, Unavailable> {
    let mut batch = Batch::default();
    fill(&mut batch);
    let (tell, told) = tokio::sync::oneshot::channel();
    let finished = move |mut batch: Batch, result: Result<u64, Unavailable>| {
        _ = tell.send(result.map(|_| batch.replies.remove(0)))
    };
    external.finish(batch, wall_ms() as u64, Box::new(finished));
    told.await.unwrap()
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_never_comes_back_newer_than_the_ids_of_its_changes() {
    flush_one_and_lose_the_rest(3, 0).await;
}

/// However few entries are had at a time.
#[tokio::test(flavor = "multi_thread")]
async fn ids_of_a_body_are_looked_for_far_behind() {
    flush_one_and_lose_the_rest(40, 1_000).await;
}

/// The first of some changes is flushed, with a body that has all of them; then Redis is gone. Whatever came back in the body is known by
/// its id.
async fn flush_one_and_lose_the_rest(changes: u64, halvings: u32) {
    let (server, postgres) = (Server::start(), Postgres::start());
    let archive = Arc::new(Archive::new(&postgres.url()).unwrap());
    let url = server.url();
    let opened = External::open_before(&url, Some(Arc::clone(&archive)), Options::default());
    let external = opened.await.unwrap();
    let options =
        FlusherOptions { entries: 1, interval: Duration::from_millis(20), ..FlusherOptions::default() };
    let flusher = Arc::new(Flusher::over(Arc::clone(&external), Arc::clone(&archive), options));
    for item in 1..=changes {
        assert!(!observe(&external, item, &format!("id {item}")).await.unwrap().duplicate);
    }
    let mut client = archive.connect().await.unwrap();
    let group = groups::group(b"visitors");
    flusher.halvings[usize::from(group)].store(halvings, Ordering::Relaxed);
    assert_eq!(flusher.flush_group(&mut client, group, ANY, &external.epoch()).await.unwrap(), 1);
    redis::cmd("FLUSHALL").exec(&mut server.connection()).unwrap();
    let _flushing = flusher.start();
    until("Redis is rebuilt", || !archive.state().recoveries.is_empty() && external.problem().is_none())
        .await;
    for item in 1..=changes {
        assert!(observe(&external, item, &format!("id {item}")).await.unwrap().duplicate, "{item}");
    }
    let next = observe(&external, changes + 1, "next").await.unwrap();
    assert_eq!(next.cell.value as u64, changes + 1);
}

/// Nobody tells the stream that a counter has expired, so the row of its body stays. What comes after it has not got that body.
#[tokio::test(flavor = "multi_thread")]
async fn what_has_expired_does_not_come_back_with_its_body() {
    let (server, postgres) = (Server::start(), Postgres::start());
    let archive = Arc::new(Archive::new(&postgres.url()).unwrap());
    let url = server.url();
    let opened = External::open_before(&url, Some(Arc::clone(&archive)), Options::default());
    let external = opened.await.unwrap();
    let options = FlusherOptions { interval: Duration::from_millis(20), ..FlusherOptions::default() };
    let flusher = Arc::new(Flusher::over(Arc::clone(&external), Arc::clone(&archive), options));
    for (item, id) in [(1, "a"), (2, "b"), (3, "c")] {
        observe(&external, item, id).await.unwrap();
    }
    let expire = Expire { expiry: Expiry::In(1), when: ExpireWhen::Always };
    ask(&external, |batch| _ = batch.push(b"visitors", Action::Expire(expire))).await.unwrap();
    flusher.flush_all().await.unwrap();
    tokio::time::sleep(Duration::from_millis(10)).await;
    // As Redis does some time later.
    let name = groups::cell(groups::group(b"visitors"), b"visitors");
    assert_eq!(redis::cmd("DEL").arg(&name).query::<u8>(&mut server.connection()).unwrap(), 1);
    let add =
        |delta| ask(&external, move |batch| _ = batch.push(b"visitors", Action::Add(Add::plain(delta))));
    assert_eq!(add(7).await.unwrap().cell.value, 7);
    flusher.flush_all().await.unwrap();
    let seen =
        Snapshot::new(Arc::clone(&archive)).read(&[(b"visitors".to_vec(), 0)]).await.unwrap().remove(0);
    assert_eq!((seen.whole.cell.map(|cell| cell.value), seen.whole.body.is_some()), (Some(7), false));
    redis::cmd("FLUSHALL").exec(&mut server.connection()).unwrap();
    let _flushing = flusher.start();
    until("Redis is rebuilt", || !archive.state().recoveries.is_empty() && external.problem().is_none())
        .await;
    let added = add(1).await.unwrap();
    assert_eq!((added.refusal, added.cell.value), (None, 8));
}

/// While the tables lack something, nothing is read from them: what they lack is not what is not there.
#[tokio::test(flavor = "multi_thread")]
async fn tables_that_are_not_whole_are_not_read() {
    let (server, postgres) = (Server::start(), Postgres::start());
    let before = External::open(&server.url(), Options::default()).await.unwrap();
    ask(&before, |batch| _ = batch.push(b"likes", Action::Add(Add::plain(7)))).await.unwrap();
    let group = groups::group(b"likes");
    redis::cmd("XTRIM")
        .arg(groups::stream(group))
        .arg("MAXLEN")
        .arg(0)
        .exec(&mut server.connection())
        .unwrap();
    drop(before);
    let archive = Arc::new(Archive::new(&postgres.url()).unwrap());
    let url = server.url();
    let opened = External::open_before(&url, Some(Arc::clone(&archive)), Options::default());
    let external = opened.await.unwrap();
    let snapshot = Snapshot::new(Arc::clone(&archive));
    let read = async || {
        snapshot.read(&[(b"likes".to_vec(), 0)]).await.map(|seen| seen[0].whole.cell.map(|cell| cell.value))
    };
    assert_eq!(read().await, None, "nobody has looked");
    let options = FlusherOptions { interval: Duration::from_millis(20), ..FlusherOptions::default() };
    let flusher = Arc::new(Flusher::over(Arc::clone(&external), Arc::clone(&archive), options));
    // It is noticed what is missing, and nothing is done about it yet.
    flusher.flush_all().await.unwrap();
    let client = archive.connect().await.unwrap();
    client.execute("UPDATE counter_watermark SET drained_at_ms = 1000", &[]).await.unwrap();
    assert_eq!(read().await, None, "they lack it");
    let _flushing = flusher.start();
    let deadline = Instant::now() + PATIENCE;
    while read().await != Some(Some(7)) {
        assert!(Instant::now() < deadline, "it is not seeded");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

//! What can only be seen between two steps of a flush.

#![allow(clippy::unwrap_used, reason = "what a test cannot go on without")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use quipu_counting::{Action, Batch, Counters, Reply, Unavailable};

use super::watermark::ANY;
use super::{Archive, Flusher, FlusherOptions, wall_ms};
use crate::support::postgres::Postgres;
use crate::support::{PATIENCE, Server};
use crate::{External, Options, groups};

async fn observe(external: &External, item: u64, id: &str) -> Result<Reply, Unavailable> {
    let mut batch = Batch::default();
    let items = batch.intern(&(item << 20 | item).to_le_bytes());
    batch.push_with_id(b"visitors", Action::Observe { items, at_ms: None }, id.as_bytes(), 0);
    let (tell, told) = tokio::sync::oneshot::channel();
    let finished = move |mut batch: Batch, result: Result<u64, Unavailable>| {
        _ = tell.send(result.map(|_| batch.replies.remove(0)))
    };
    external.finish(batch, wall_ms() as u64, Box::new(finished));
    told.await.unwrap()
}

/// The first of three changes is flushed, with a body that has all three; then Redis is gone. Whatever came back in the body is known by
/// its id.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_never_comes_back_newer_than_the_ids_of_its_changes() {
    let (server, postgres) = (Server::start(), Postgres::start());
    let archive = Arc::new(Archive::new(&postgres.url()).unwrap());
    let url = server.url();
    let opened = External::open_before(&url, Some(Arc::clone(&archive)), Options::default());
    let external = opened.await.unwrap();
    let options =
        FlusherOptions { entries: 1, interval: Duration::from_millis(20), ..FlusherOptions::default() };
    let flusher = Arc::new(Flusher::over(Arc::clone(&external), Arc::clone(&archive), options));
    for (item, id) in [(1, "a"), (2, "b"), (3, "c")] {
        assert!(!observe(&external, item, id).await.unwrap().duplicate);
    }
    let mut client = archive.connect().await.unwrap();
    let group = groups::group(b"visitors");
    assert_eq!(flusher.flush_group(&mut client, group, ANY, &external.epoch()).await.unwrap(), 1);
    redis::cmd("FLUSHALL").exec(&mut server.connection()).unwrap();
    let _flushing = flusher.start();
    let deadline = Instant::now() + PATIENCE;
    while archive.state().recoveries.is_empty() || external.problem().is_some() {
        assert!(Instant::now() < deadline, "waited in vain until Redis is rebuilt");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for (item, id) in [(1, "a"), (2, "b"), (3, "c")] {
        assert!(observe(&external, item, id).await.unwrap().duplicate, "{id}");
    }
    assert_eq!(observe(&external, 4, "d").await.unwrap().cell.value, 4);
}

//! Streams of events without sockets: what is shown, and what is not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;
use parking_lot::Mutex;
use quipu_counting::aggregate::{Aggregate, Selector};
use quipu_counting::service::{Finished, ScanPage};
use quipu_counting::{
    Batch, Cell, Changes, Counters, Execution, HotKeys, ListPage, Listing, Policies, Policy, Reply,
    Unavailable,
};

use super::{Api, outages};

/// Counters of which one, `a`, is answered at once, and `b`, which lies elsewhere, never.
#[derive(Default)]
struct Half {
    value: AtomicU64,
    reads_of_b: AtomicU64,
    changed: Mutex<Vec<Vec<u8>>>,
}

impl Half {
    fn change(&self, key: &str) {
        self.value.fetch_add(1, Ordering::Relaxed);
        self.changed.lock().push(key.into());
    }
}

impl Counters for Half {
    fn execute(&self, batch: &mut Batch, _: u64) -> Result<Execution, Unavailable> {
        if (0..batch.requests.len()).any(|index| batch.key(index) == b"b") {
            self.reads_of_b.fetch_add(1, Ordering::Relaxed);
            return Ok(Execution::Pending);
        }
        let value = self.value.load(Ordering::Relaxed);
        let cell = Cell { value: value as i64, version: value, updated_at_ms: value, ..Cell::ABSENT };
        batch.replies = vec![Reply::state(Some(cell)); batch.requests.len()];
        Ok(Execution::Done { offset: 0 })
    }

    fn finish(&self, _: Batch, _: u64, finished: Finished) {
        std::mem::forget(finished);
    }

    fn settle(&self, _: u64) -> Result<(), Unavailable> {
        Ok(())
    }

    fn is_settled(&self, _: u64) -> bool {
        true
    }

    fn when_settled(&self, _: u64, settled: Box<dyn FnOnce(Result<(), Unavailable>) + Send>) {
        settled(Ok(()));
    }

    fn policies(&self) -> Result<Policies, Unavailable> {
        Ok(Policies::default())
    }

    fn set_policy(&self, _: &[u8], _: Option<Policy>, _: u64) -> Result<bool, Unavailable> {
        Ok(false)
    }

    fn scan(&self, _: u64, _: usize, _: u64) -> Result<ScanPage, Unavailable> {
        Ok(ScanPage::default())
    }

    fn list(&self, _: &Listing, _: u64) -> Result<ListPage, Unavailable> {
        Ok(ListPage::default())
    }

    fn aggregate(&self, _: &Selector, _: u64) -> Result<Aggregate, Unavailable> {
        Ok(Aggregate { parts: Vec::new(), missing: Vec::new() })
    }

    fn random_key(&self, _: u64, _: u64) -> Result<Option<Vec<u8>>, Unavailable> {
        Ok(None)
    }

    fn changes(&self) -> Changes {
        Changes { keys: std::mem::take(&mut *self.changed.lock()), ..Changes::default() }
    }

    fn hot(&self, _: usize, _: u64) -> Result<HotKeys, Unavailable> {
        Ok(HotKeys::default())
    }

    fn facts(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// The next piece of a body.
async fn next(body: &mut Body) -> String {
    let frame = body.frame().await.unwrap().unwrap();
    String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()
}

async fn watch(api: &Api, query: &str) -> Body {
    let request = Request::get(format!("/api/v1/watch?{query}")).header("host", "quipu");
    let response = api.front.answer(request.body(Body::empty()).unwrap()).await;
    assert_eq!(response.status(), 200);
    response.into_body()
}

/// Time stands still but for waiting, so heartbeats come at once.
#[tokio::test(start_paused = true)]
async fn what_is_not_durable_is_not_shown() {
    let api = outages::never_settles();
    let mut body = watch(&api, "key=a").await;
    assert_eq!(next(&mut body).await, "retry: 1000\n\n");
    for _ in 0..10 {
        assert_eq!(next(&mut body).await, ":\n\n", "nothing but that the connection is alive");
    }
}

#[tokio::test]
async fn a_stream_ends_with_the_server() {
    let api = Api::new();
    let mut body = watch(&api, "key=a&prefix=b").await;
    assert_eq!(next(&mut body).await, "retry: 1000\n\n");
    let state = next(&mut body).await;
    assert!(state.starts_with("event: change\ndata: {\"counterKey\":\"a\",\"value\":0,"), "{state}");
    assert!(state.ends_with("data: {\"counters\":1,\"complete\":true,\"resumed\":false}\n\n"), "{state}");
    api.front.stop();
    assert!(body.frame().await.is_none());
}

/// Time stands still but for waiting, so it is known what a round has waited for.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_holds_up_nobody() {
    let half = Arc::new(Half::default());
    let api = Api::over(Arc::clone(&half) as Arc<dyn Counters>, true);
    let mut body = watch(&api, "key=a&prefix=b").await;
    while !next(&mut body).await.contains("event: ready") {}
    half.change("b");
    for value in 2..6 {
        half.change("a");
        while !next(&mut body).await.contains(&format!("\"counterKey\":\"a\",\"value\":{value},")) {}
    }
    assert_eq!(half.reads_of_b.load(Ordering::Relaxed), 1, "the first look at it is still under way");
}

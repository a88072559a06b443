//! What clients are told when the service below cannot answer, or answers late.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::Request;
use hyper::body::Frame;
use quipu_counting::aggregate::{Aggregate, Missing, Selector};
use quipu_counting::service::{Finished, ScanPage};
use quipu_counting::{
    Batch, Counters, Execution, HotKeys, ListPage, Listing, Policies, Policy, Reply, Unavailable,
};
use serde_json::json;

use super::Api;

/// How the service below behaves.
#[derive(Clone)]
enum Service {
    /// Answers nothing, for this reason.
    Down(Unavailable),
    /// Must fetch first; then answers, or fails for this reason.
    Fetches(Option<Unavailable>),
    /// Decides, and then never hears from the disk.
    NeverSettles,
    /// Decides, and then the disk fails for this reason.
    FailsToSettle(Unavailable),
    /// Forgets its callers, as one does that is being torn down.
    Forgets,
}

/// An API whose disk never answers.
pub fn never_settles() -> Api {
    Api::over(Arc::new(Service::NeverSettles), true)
}

fn answer(batch: &mut Batch) {
    batch.replies = vec![Reply::state(None); batch.requests.len()];
}

impl Counters for Service {
    fn execute(&self, batch: &mut Batch, _: u64) -> Result<Execution, Unavailable> {
        match self {
            Service::Down(reason) => Err(reason.clone()),
            Service::Fetches(_) => Ok(Execution::Pending),
            _ => {
                answer(batch);
                Ok(Execution::Done { offset: 7 })
            }
        }
    }

    fn finish(&self, mut batch: Batch, _: u64, finished: Finished) {
        let Service::Fetches(failure) = self.clone() else { unreachable!("only after Pending") };
        answer(&mut batch);
        finished(batch, failure.map_or(Ok(7), Err));
    }

    fn settle(&self, _: u64) -> Result<(), Unavailable> {
        Ok(())
    }

    fn when_settled(&self, offset: u64, settled: Box<dyn FnOnce(Result<(), Unavailable>) + Send>) {
        assert_eq!(offset, 7);
        match self {
            Service::NeverSettles => std::mem::forget(settled),
            Service::FailsToSettle(reason) => settled(Err(reason.clone())),
            Service::Forgets => drop(settled),
            _ => settled(Ok(())),
        }
    }

    fn policies(&self) -> Result<Policies, Unavailable> {
        Ok(Policies::default())
    }

    fn set_policy(&self, _: &[u8], _: Option<Policy>, _: u64) -> Result<bool, Unavailable> {
        match self {
            Service::Down(reason) => Err(reason.clone()),
            _ => Ok(false),
        }
    }

    fn random_key(&self, _: u64, _: u64) -> Result<Option<Vec<u8>>, Unavailable> {
        Ok(None)
    }

    fn scan(&self, _: u64, _: usize, _: u64) -> Result<ScanPage, Unavailable> {
        Ok(ScanPage::default())
    }

    fn list(&self, _: &Listing, _: u64) -> Result<ListPage, Unavailable> {
        match self {
            Service::Down(reason) => Err(reason.clone()),
            _ => Ok(ListPage::default()),
        }
    }

    fn aggregate(&self, _: &Selector, _: u64) -> Result<Aggregate, Unavailable> {
        let missing = Missing { partition: 3, why: "nobody leads it at the moment".to_owned() };
        match self {
            Service::Down(reason) => Err(reason.clone()),
            _ => Ok(Aggregate { parts: Vec::new(), missing: vec![missing] }),
        }
    }

    fn hot(&self, _: usize, _: u64) -> Result<HotKeys, Unavailable> {
        match self {
            Service::Down(reason) => Err(reason.clone()),
            _ => Ok(HotKeys::default()),
        }
    }

    fn facts(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// Time stands still but for waiting, so the service that never settles is given up on at once.
#[tokio::test(start_paused = true)]
async fn each_outage_has_its_answer() {
    let why = || "why".to_owned();
    for (service, status, reason) in [
        (Service::Down(Unavailable::Full(why())), 503, json!("disk-full")),
        (Service::Down(Unavailable::Busy(why())), 503, json!("busy")),
        (Service::Down(Unavailable::Failed(why())), 504, json!("outcome-unknown")),
        (Service::Down(Unavailable::Unsupported(why())), 400, json!("unsupported")),
        (Service::Fetches(Some(Unavailable::Unreadable(why()))), 503, json!("unavailable")),
        (Service::Fetches(None), 200, json!(null)),
        (Service::Fetches(Some(Unavailable::Busy(why()))), 503, json!("busy")),
        (Service::FailsToSettle(Unavailable::Failed(why())), 504, json!("outcome-unknown")),
        (Service::NeverSettles, 504, json!("outcome-unknown")),
        (Service::Forgets, 504, json!("outcome-unknown")),
    ] {
        let api = Api::over(Arc::new(service), true);
        let reply =
            api.expect("POST counters/a/increment", &[], "", status, json!({ "reason": reason })).await;
        assert_eq!(reply.header("retry-after").is_some(), matches!(status, 503 | 504));
        assert_eq!(reply.body["retryAfterMs"].is_number(), matches!(status, 503 | 504));
    }
}

/// Who looks changes nothing, so there is nothing that could be unknown about it.
#[tokio::test(start_paused = true)]
async fn a_look_has_no_unknown_outcome() {
    let failed = || Unavailable::Failed("why".to_owned());
    for service in [Service::NeverSettles, Service::FailsToSettle(failed()), Service::Forgets] {
        let api = Api::over(Arc::new(service), true);
        for call in ["GET counters/a", "GET counters/a?consistency=eventual"] {
            api.expect(call, &[], "", 503, json!({"reason": "unavailable"})).await;
        }
        let keys = r#"{"keys":["a"]}"#;
        api.expect("POST counters/batch-get", &[], keys, 503, json!({"reason": "unavailable"})).await;
    }
}

#[tokio::test]
async fn totals_without_some_partitions_say_so() {
    let api = Api::over(Arc::new(Service::Fetches(None)), true);
    let missing = json!([{"partition": 3, "detail": "nobody leads it at the moment"}]);
    let partial =
        json!({"sum": 0, "count": 0, "min": null, "max": null, "partial": true, "missing": missing});
    for query in ["", "?partial=true"] {
        let call = format!("GET counters/a:*/aggregate{query}");
        api.expect(&call, &[], "", 200, partial.clone()).await;
    }
    let detail = "partition 3: nobody leads it at the moment; nothing was changed, retry";
    let refused = json!({"reason": "no-leader", "detail": detail});
    api.expect("GET counters/a:*/aggregate?partial=false", &[], "", 503, refused).await;
    api.expect("GET counters/a:*/aggregate?partial=no", &[], "", 400, json!({"reason": "malformed"})).await;
    let api = Api::over(Arc::new(Service::Down(Unavailable::Full("why".to_owned()))), true);
    api.expect("GET counters/a:*/aggregate", &[], "", 503, json!({"reason": "disk-full"})).await;
}

#[tokio::test]
async fn a_policy_that_cannot_be_stored_is_not_acknowledged() {
    let api = Api::over(Arc::new(Service::Down(Unavailable::Full("why".to_owned()))), true);
    api.expect("PUT policies/a", &[], "{}", 503, json!({"reason": "disk-full"})).await;
}

#[tokio::test]
async fn a_server_that_drains_is_not_ready_but_alive() {
    let api = Api::new();
    api.health.set("draining");
    api.expect("GET /readyz", &[], "", 503, json!({"reason": "not-ready", "detail": "draining"})).await;
    api.expect("GET /healthz", &[], "", 200, json!({})).await;
}

/// A body that is announced and never comes.
struct NeverComes;

impl HttpBody for NeverComes {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Pending
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_never_comes_is_given_up_on() {
    let api = Api::over(Arc::new(Service::Fetches(None)), true);
    let request = Request::post("/api/v1/counters/a/increment").header("host", "quipu");
    let response = api.front.answer(request.body(Body::new(NeverComes)).unwrap()).await;
    assert_eq!(response.status(), 408);
}

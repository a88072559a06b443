//! Streams of events without sockets: what is shown, and what is not.

use axum::body::Body;
use axum::http::Request;
use http_body_util::BodyExt;

use super::{Api, outages};

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

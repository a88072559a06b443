//! Limits and holds: what is told of them, in replies, in trails and in numbers.

use serde_json::json;

use super::Api;

#[tokio::test]
async fn what_came_of_limits_and_holds_is_counted() {
    let api = Api::new();
    let acquire = "POST counters/calls/acquire";
    for (body, status) in [
        (r#"{"amount":2,"limit":3}"#, 200),
        (r#"{"amount":2,"limit":3}"#, 429),
        (r#"{"amount":2,"limit":3,"soft":true}"#, 200),
    ] {
        api.expect(acquire, &[], body, status, json!({})).await;
    }
    let all = r#"{"items":[{"key":"a","limit":5},{"key":"b","limit":5}]}"#;
    api.expect("POST acquire", &[], all, 200, json!({})).await;
    // Said again, it is no other.
    for _ in 0..2 {
        let id = [("idempotency-key", "once")];
        api.expect("POST counters/c/acquire", &id, r#"{"limit":1}"#, 200, json!({})).await;
    }
    for ending in ["commit", "void"] {
        let held = api.send("POST counters/seats/reserve", &[], r#"{"amount":1,"ttlMs":60000}"#).await;
        let call = format!("POST holds/{}/{ending}", held.body["holdId"].as_str().unwrap());
        for _ in 0..2 {
            api.expect(&call, &[], "", 200, json!({})).await;
        }
    }
    let metrics = api.send("GET /metrics", &[], "").await;
    for line in [
        "# TYPE quipu_acquires counter",
        "quipu_acquires_total{result=\"admitted\"} 4",
        "quipu_acquires_total{result=\"over_soft_limit\"} 1",
        "quipu_acquires_total{result=\"refused\"} 1",
        "quipu_holds_total{result=\"reserved\"} 2",
        "quipu_holds_total{result=\"committed\"} 1",
        "quipu_holds_total{result=\"voided\"} 1",
    ] {
        let text = metrics.body.as_str().unwrap();
        assert!(text.contains(line), "no {line:?} in\n{text}");
    }
}

#[tokio::test]
async fn who_asks_for_nothing_is_told_what_is_used() {
    let api = Api::new();
    let acquire = "POST counters/a/acquire";
    api.expect(acquire, &[], r#"{"amount":4,"limit":3,"soft":true}"#, 200, json!({})).await;
    let detail = "the limit 3 is crossed already: 4 are used";
    api.expect(acquire, &[], r#"{"amount":0,"limit":3}"#, 429, json!({"detail": detail})).await;
}

/// What a counter would have been is what its policy says.
#[tokio::test]
async fn what_is_refused_at_birth_names_its_kind() {
    let api = Api::new();
    for (kind, call, body, status) in [
        ("window", "POST counters/window:a/acquire", r#"{"amount":9,"limit":3}"#, 429),
        ("unique", "POST counters/unique:a/increment", "", 409),
        ("sum", "POST counters/sum:a/observe", r#"{"items":["b"]}"#, 409),
    ] {
        let policy = format!(r#"{{"kind":"{kind}"}}"#);
        api.expect(&format!("PUT policies/{kind}:*"), &[], &policy, 201, json!({})).await;
        api.expect(call, &[], body, status, json!({"kind": kind})).await;
    }
}

#[tokio::test]
async fn a_hold_that_never_was_is_not_found() {
    let api = Api::new();
    let reserve = |key: &str| format!("POST counters/{key}/reserve");
    let hold = |reply: &super::Reply| reply.body["holdId"].as_str().unwrap().to_owned();
    let body = r#"{"amount":1,"ttlMs":60000}"#;
    let mine = hold(&api.send(&reserve("mine"), &[], body).await);
    // Of a counter that is gone, and of one that came after it.
    api.send("DELETE counters/mine", &[], "").await;
    let gone = json!({"reason": "no-such-hold"});
    api.expect(&format!("POST holds/{mine}/commit"), &[], "", 404, gone.clone()).await;
    // A number that the counter has not come to.
    let first = hold(&api.send(&reserve("other"), &[], body).await);
    let known = quipu_counting::hold::HoldId::parse(&first).unwrap();
    let later = quipu_counting::hold::HoldId { number: known.number + 1, ..known.clone() }.text();
    let elsewhere = quipu_counting::hold::HoldId { birth: known.birth + 1, ..known }.text();
    for name in [&later, &elsewhere] {
        api.expect(&format!("POST holds/{name}/void"), &[], "", 404, gone.clone()).await;
    }
    // One that has ended has ended.
    api.expect(&format!("POST holds/{first}/void"), &[], "", 200, json!({})).await;
    api.expect(&format!("POST holds/{first}/commit"), &[], "", 409, json!({"reason": "hold-ended"})).await;
}

/// Holds end under ids of their own, which are nobody's business.
#[tokio::test]
async fn a_trail_shows_ids_that_somebody_gave() {
    let api = Api::new();
    api.expect("PUT policies/*", &[], r#"{"audit":"30d"}"#, 201, json!({})).await;
    let id = [("idempotency-key", "order-7")];
    let held = api.send("POST counters/a/reserve", &id, r#"{"amount":3,"ttlMs":60000}"#).await;
    let call = format!("POST holds/{}/commit", held.body["holdId"].as_str().unwrap());
    api.expect(&call, &[], "", 200, json!({})).await;
    let trail = api.send("GET counters/a/audit", &[], "").await;
    let shown: Vec<_> = (0..2)
        .map(|row| &trail.body["changes"][row])
        .map(|row| json!([row["action"], row["held"], row["requestId"]]))
        .collect();
    assert_eq!(json!(shown), json!([["commit", -3, null], ["reserve", 3, "order-7"]]));
}

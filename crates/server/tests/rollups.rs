//! Values by dimensions, over HTTP, RESP and the command line, against real servers: what is counted, refused and read, kill -9 in between, and a
//! cluster whose nodes all say the same.
#![allow(clippy::unwrap_used)] // a panic here is a failed test

mod resp_support;
mod support;

use resp_support::Client;
use serde_json::{Value, json};
use support::cluster::{found, start_settled};
use support::{Response, Server};

const ROLLUPS: &str = r#"{"rollups":[["tenant"],["day"],["tenant","plan"]],"max":1000}"#;

fn call(server: &Server, line: &str, id: &str, body: &str) -> Response {
    let (method, path) = line.split_once(' ').unwrap();
    let headers: &[(&str, &str)] = if id.is_empty() { &[] } else { &[("Idempotency-Key", id)] };
    server.request(method, &format!("/api/v1/{path}"), headers, body)
}

/// A reply without what is the same for all counters, or differs from moment to moment.
fn shown(reply: &Response) -> Value {
    let mut body = reply.json();
    let usual = ["updatedAt", "version", "exists", "kind", "mode", "exact", "stalenessMs", "parts"];
    body.as_object_mut().unwrap().retain(|name, _| !usual.contains(&name.as_str()));
    body
}

fn told(server: &Server, line: &str) -> Value {
    let reply = call(server, line, "", "");
    assert_eq!(reply.status, 200, "{line}: {}", reply.body);
    shown(&reply)
}

fn refused(server: &Server, line: &str, body: &str, status: u16, reason: &str, detail: &str) {
    let reply = call(server, line, "", body);
    let problem = reply.json();
    assert_eq!((reply.status, &problem["reason"]), (status, &json!(reason)), "{line} {body}: {}", reply.body);
    assert!(problem["detail"].as_str().unwrap().contains(detail), "{}", reply.body);
}

fn cli(server: &Server, arguments: &[&str]) -> String {
    let output = server.client(arguments);
    let said =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    said.trim_end().to_owned()
}

/// Counts on every way there is, each step at the next of the servers.
fn count(servers: &[&Server]) {
    let mut turn = 0;
    let mut next = || {
        turn += 1;
        servers[turn % servers.len()]
    };
    let add = |server: &Server, id: &str, body: &str| {
        let reply = call(server, "POST counters/hits:home/increment", id, body);
        assert_eq!(reply.status, 200, "{body}: {}", reply.body);
        shown(&reply)["value"].as_i64().unwrap()
    };
    assert_eq!(add(next(), "", r#"{"delta":5}"#), 5);
    assert_eq!(call(next(), "PUT policies/hits:*", "", ROLLUPS).status, 201);
    assert_eq!(add(next(), "once", r#"{"delta":3,"dims":{"tenant":"a","plan":"free"}}"#), 8);
    assert_eq!(add(next(), "once", r#"{"delta":3,"dims":{"tenant":"a","plan":"free"}}"#), 8);
    let reused =
        call(next(), "POST counters/hits:home/increment", "once", r#"{"delta":3,"dims":{"tenant":"b"}}"#);
    assert_eq!(reused.status, 422, "{}", reused.body);
    assert_eq!(add(next(), "", r#"{"delta":2,"dims":{"tenant":"b","day":"2020-01-01"}}"#), 10);
    let taken = call(next(), "POST counters/hits:home/decrement", "", r#"{"dims":{"tenant":"b"}}"#);
    assert_eq!(shown(&taken)["value"], json!(9));
    let adjusted = r#"{"delta":10,"reason":"found","dims":{"tenant":"a, b"}}"#;
    assert_eq!(shown(&call(next(), "POST counters/hits:home/adjust", "", adjusted))["value"], json!(19));
    let items = r#"{"items":[{"key":"hits:other","delta":7,"dims":{"tenant":"a"}},{"key":"hits:third","dims":{"zone":"x"}}]}"#;
    let batch = call(next(), "POST counters/batch-increment", "", items).json();
    assert_eq!(batch["results"][0]["value"], json!(7));
    assert_eq!(batch["results"][1]["reason"], json!("undeclared-dimension"));
    assert!(
        batch["results"][1]["detail"]
            .as_str()
            .unwrap()
            .ends_with("declared are [day], [tenant], [plan, tenant]")
    );
    assert_eq!(cli(next(), &["incr", "hits:home", "--dim", "tenant=a", "--dim", "plan=paid"]), "20");
    assert_eq!(cli(next(), &["decr", "hits:home", "2", "--dim", "tenant=a"]), "18");
    assert_eq!(cli(next(), &["add", "hits:home", "4", "--dim", "plan=paid"]), "22");
    // Only what was really added counts.
    let mut client = Client::connect(next().resp);
    assert_eq!(
        client.ask("Q.ADD hits:home 5000 SATURATE MAX 25 DIM tenant c DIM plan free"),
        "*4|:25|:3|:9|:0|"
    );
    assert_eq!(client.ask("INCR hits:home"), ":26|");
}

/// What everybody says of it from then on.
fn verify(server: &Server) {
    let part = |dims: &str| told(server, &format!("GET counters/hits:home?dims={dims}"))["value"].clone();
    for (dims, value) in [
        ("tenant:a", 2),
        ("tenant:b", 1),
        ("tenant:a%5C,%20b", 10),
        ("tenant:c", 3),
        ("tenant:", 10),
        ("tenant:nobody", 0),
        ("plan:paid", 5),
        ("plan:free,tenant:a", 3),
        ("tenant:a,plan:*", 2),
        ("day:2020-01-01", 2),
        // What was counted before the roll-up was declared.
        ("day:", 5),
        ("day:*", 26),
    ] {
        assert_eq!(part(dims), json!(value), "{dims}");
    }
    let groups = told(server, "GET counters/hits:home?dims=plan:*");
    let group = |plan: &str, value: i64| json!({"dims": {"plan": plan}, "value": value});
    let expected = json!({"counterKey": "hits:home", "value": 26, "dims": {"plan": "*"},
        "groups": [group("", 15), group("free", 6), group("paid", 5)]});
    assert_eq!(groups, expected);
    let unknown = told(server, "GET counters/hits:unknown?dims=tenant:a");
    assert_eq!(unknown, json!({"counterKey": "hits:unknown", "value": 0, "dims": {"tenant": "a"}}));
    let sum = told(server, "GET counters/hits:*/aggregate?dims=tenant:a");
    let expected = json!({"pattern": "hits:*", "dims": {"tenant": "a"}, "sum": 9, "count": 2, "min": 2, "max": 7,
        "partial": false});
    assert_eq!(sum, expected);
    assert_eq!(told(server, "GET counters/hits:home/aggregate?dims=tenant:c")["sum"], json!(3));
    let groups = &told(server, "GET counters/hits:*/aggregate?dims=tenant:*")["groups"];
    let group = |tenant: &str, sum: i64| json!({"dims": {"tenant": tenant}, "sum": sum});
    assert_eq!(
        groups,
        &json!([group("", 10), group("a", 9), group("a, b", 10), group("b", 1), group("c", 3)])
    );
    assert_eq!(told(server, "GET counters/hits:*/aggregate")["sum"], json!(33));

    let declared = "declared are [day], [tenant], [plan, tenant]";
    refused(server, "GET counters/hits:home?dims=zone:x", "", 400, "undeclared-dimension", declared);
    refused(server, "GET counters/hits:home?dims=day:x,tenant:a", "", 400, "undeclared-dimension", declared);
    refused(server, "GET counters/hits:*/aggregate?dims=zone:x", "", 400, "undeclared-dimension", declared);
    let zone = r#"{"dims":{"zone":"x"}}"#;
    refused(server, "POST counters/hits:home/increment", zone, 409, "undeclared-dimension", declared);
    refused(
        server,
        "POST counters/plain/increment",
        zone,
        409,
        "undeclared-dimension",
        "declare it with `rollups`",
    );

    let mut client = Client::connect(server.resp);
    for (command, reply) in [
        ("Q.DGET hits:home tenant a", ":2|"),
        ("Q.DGET hits:home tenant a plan free", ":3|"),
        ("Q.DGET hits:home plan * tenant c", "*1|*2|$4|free|:3|"),
        ("Q.DGET hits:unknown tenant a", ":0|"),
        ("Q.SUM hits:* DIM tenant a", ":9|"),
        ("Q.SUM hits:*", ":33|"),
        ("GET hits:home", "$2|26|"),
        ("Q.DGET hits:home tenant", "-ERR wrong number of arguments for 'q.dget' command|"),
        ("Q.SUM hits:* DIM tenant * DIM plan free", "*2|*2|$1|a|:3|*2|$1|c|:3|"),
        (
            "Q.SUM hits:* DIM zone x",
            "-DIMENSION no policy declares a roll-up with all of these dimensions; declared are [day], [tenant], [plan, tenant]|",
        ),
        ("Q.ADD hits:home 1 DIM tenant a DIM tenant b", "-ERR syntax error|"),
        (
            "Q.ADD hits:home 1 DIM tenant *",
            "-ERR the value of tenant cannot be *: readers ask for every value with it|",
        ),
        (
            "Q.ADD hits:home 1 DIM zone x",
            "-DIMENSION no roll-up of the counter's policy has all of these dimensions, nothing was changed; \
             declare it with `rollups` in the policy; declared are [day], [tenant], [plan, tenant]|",
        ),
    ] {
        assert_eq!(client.ask(command), reply, "{command}");
    }

    assert_eq!(cli(server, &["get", "hits:home", "--dim", "tenant=a"]), "2");
    assert_eq!(cli(server, &["get", "hits:home", "--dim", "tenant=a, b"]), "10");
    assert_eq!(cli(server, &["get", "hits:home", "--dim", "plan=*"]), "\t15\nfree\t6\npaid\t5");
    assert_eq!(cli(server, &["sum", "hits:*", "--dim", "tenant=a"]), "9");
    assert_eq!(
        cli(server, &["sum", "hits:*", "--dim", "plan=*", "--dim", "tenant=a"]),
        "\t5\nfree\t3\npaid\t1"
    );
    let json: Value =
        serde_json::from_str(&cli(server, &["get", "hits:home", "--dim", "tenant=a", "--json"])).unwrap();
    assert_eq!((&json["value"], &json["dims"]), (&json!(2), &json!({"tenant": "a"})));
    let json: Value =
        serde_json::from_str(&cli(server, &["sum", "hits:*", "--dim", "tenant=a", "--json"])).unwrap();
    assert_eq!(json["sum"], json!(9));
    assert!(cli(server, &["incr", "hits:home", "--dim", "zone=x"]).contains(declared));
    assert!(cli(server, &["incr", "hits:home", "--dim", "zone"]).contains("a dimension looks like tenant=a"));
}

#[test]
fn kill_9_takes_nothing_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let mut server = Server::start(folder.path());
    count(&[&server]);
    verify(&server);
    for _ in 0..2 {
        server.kill();
        server = Server::start(folder.path());
        verify(&server);
    }
    // What a clean stop has written down is the same.
    assert!(server.terminate().0.success());
    let server = Server::start(folder.path());
    verify(&server);
    assert_eq!(call(&server, "PUT counters/hits:home", "", r#"{"value":4}"#).status, 200);
    assert_eq!(told(&server, "GET counters/hits:home?dims=tenant:")["value"], json!(4));
    let policy = cli(&server, &["policy", "set", "hits:*", "--rollup", "tenant", "--rollup", "tenant,day"]);
    assert_eq!(policy, "hits:*  rollup tenant  rollup day,tenant");
    assert_eq!(cli(&server, &["incr", "hits:home", "--dim", "tenant=z", "--dim", "day=d"]), "5");
    assert_eq!(told(&server, "GET counters/hits:home?dims=day:d,tenant:z")["value"], json!(1));
}

#[test]
fn a_cluster_says_the_same_at_every_node() {
    let folder = tempfile::tempdir().unwrap();
    let data = found(folder.path(), 3);
    let servers = start_settled(&data);
    count(&servers.iter().collect::<Vec<_>>());
    servers.iter().for_each(verify);
    let eventual = "GET counters/hits:home?dims=tenant:a&consistency=eventual&maxStalenessMs=60000";
    assert!(servers.iter().all(|server| call(server, eventual, "", "").status == 200));
    // Who takes a copy gets the cells too, whoever is asked.
    let copy = |server: &Server| {
        let asked = r#"{"keys":["hits:home"],"bodies":true}"#;
        call(server, "POST counters/batch-get", "", asked).json()["results"][0]["body"].clone()
    };
    let first = copy(&servers[0]);
    assert!(first.as_str().is_some_and(|body| body.len() > 100), "{first}");
    assert!(servers.iter().all(|server| copy(server) == first));
    servers.into_iter().for_each(Server::kill);
    let servers = start_settled(&data);
    servers.iter().for_each(verify);
}

//! `quipu bench` over HTTP against the real binary: what the report says must be what the server holds.
#![allow(clippy::unwrap_used)] // a panic here is a failed test

mod support;

use serde_json::Value;
use support::{Server, run};

fn bench(server: &Server, line: &str) -> (bool, String, Value) {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("result.json");
    let target = format!("http://{}", server.http);
    let mut arguments = vec!["bench", "--target", &target, "--json", json.to_str().unwrap()];
    arguments.extend(line.split_whitespace());
    let output = run(&arguments, &[]);
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let result = std::fs::read(json).map_or(Value::Null, |bytes| serde_json::from_slice(&bytes).unwrap());
    (output.status.success(), text, result)
}

#[test]
fn every_load_counts_what_it_reports() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start_with(data.path(), &["--durability", "none"]);
    let cases = [
        ("--command load --keys 300 --value 7", 300, 2_100),
        ("--command incr --operations 500 --keys 300", 500, 500),
        ("--command hot --operations 200 --keys 300 --connections 9 --threads 2", 200, 200),
        ("--command get --operations 500 --keys 300", 500, 0),
        ("--command add-id --operations 300 --keys 300 --seed 5", 300, 300),
        ("--command batch --batch 50 --operations 20 --keys 300", 20, 1_000),
        ("--command incr --operations 200 --keys 300 --rate 5000 --pipeline 3", 200, 200),
    ];
    for (line, operations, growth) in cases {
        let (success, text, result) = bench(&server, &format!("{line} --verify"));
        assert!(success, "{line}: {text}");
        assert_eq!(result["operations"], operations, "{line}: {result}");
        assert_eq!(result["sum"]["found"], growth.to_string(), "{line}: {result}");
        assert_eq!(result["server"]["pid"], server.process_id(), "{line}: a local server names its process");
        assert_eq!(result["server"]["checkpoints"], 0, "{line}: {result}");
    }
    let (success, text, _) = bench(&server, "--command add-id --operations 300 --keys 300 --seed 5 --verify");
    assert!(
        !success && text.contains("grew by 0, but 300 was acknowledged"),
        "the same ids count once: {text}"
    );
}

#[test]
fn error_statuses_are_counted_by_code() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start_with(data.path(), &["--durability", "none"]);
    let put = server.request("PUT", "/api/v1/policies/counter%3A*", &[], r#"{"max":3}"#);
    assert_eq!(put.status, 201, "{put:?}");
    let line = "--command hot --operations 10 --keys 10 --connections 1 --verify";
    let (success, text, result) = bench(&server, line);
    assert!(!success && text.contains("7 of 10 replies were errors"), "{text}");
    assert_eq!((&result["errors"], &result["errorsByCode"]["409"]), (&7.into(), &7.into()), "{result}");
    let (success, text, _) = bench(&server, &format!("{line} --keep-going"));
    assert!(success && text.contains("10 (10 409), the first: 409 Conflict"), "{text}");
}

#[test]
fn loads_of_the_other_protocol_are_refused() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    let (success, text, _) = bench(&server, "--command mget100");
    assert!(!success && text.contains("--command mget100 cannot be sent to http://"), "{text}");
}

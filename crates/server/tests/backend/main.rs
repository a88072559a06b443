//! The real binary on a real Redis and a real PostgreSQL.

#![allow(clippy::unwrap_used, reason = "what a test cannot go on without")]

#[path = "../../../external/tests/support/mod.rs"]
mod stores;
#[path = "../support/mod.rs"]
mod support;

mod archive;
mod failover;
mod loss;
mod lost_answers;
mod many;
mod once;
mod serving;
mod settings;
mod strong;
mod unwell;

use std::process::Command;

use serde_json::json;
use stores::postgres::Postgres;
use support::Server;

/// A node on this backend, and the folder in which it runs.
struct Node {
    server: Server,
    folder: tempfile::TempDir,
}

impl Node {
    fn start(backend: &str, arguments: &[&str]) -> Node {
        let folder = tempfile::tempdir().unwrap();
        let server = Server::spawn(support::backed_command(folder.path(), backend, arguments));
        Node { server, folder }
    }

    /// One change over HTTP, which must be accepted. Returns the value.
    fn add(&self, key: &str, delta: i64, id: Option<&str>) -> i64 {
        let headers: Vec<(&str, &str)> = id.iter().map(|id| ("Idempotency-Key", *id)).collect();
        let path = format!("/api/v1/counters/{key}/increment");
        let reply = self.server.request("POST", &path, &headers, &json!({ "delta": delta }).to_string());
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()["value"].as_i64().unwrap()
    }

    fn read(&self, key: &str) -> i64 {
        let reply = self.server.request("GET", &format!("/api/v1/counters/{key}"), &[], "");
        assert_eq!(reply.status, 200, "{reply:?}");
        reply.json()["value"].as_i64().unwrap()
    }

    /// A fact of `/metrics`.
    fn fact(&self, name: &str) -> Option<u64> {
        let text = self.server.request("GET", "/metrics", &[], "").body;
        let names = [format!("quipu_{name} "), format!("quipu_{name}_total ")];
        let value = text.lines().find_map(|line| names.iter().find_map(|name| line.strip_prefix(&**name)));
        value.map(|value| value.trim().parse().unwrap())
    }

    fn readiness(&self) -> (u16, String) {
        let reply = self.server.request("GET", "/readyz", &[], "");
        (reply.status, reply.body)
    }
}

/// What a query answers, as `psql` prints it.
fn query(postgres: &Postgres, text: &str) -> String {
    let output = Command::new("psql").args(["-AtX", "-c", text, &postgres.url()]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

//! Data folders of the nodes of a cluster, made by the command line.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Server, run};

/// A port that is free now, with the 29 behind it. Below those that the system gives out by itself, so that nobody gets one of
/// them before the server does.
pub fn free_ports() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = (std::process::id() % 97) * 7 + NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 10_000 + (number % 700) as u16 * 30;
        if (port..port + 30).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok()) {
            return port;
        }
    }
}

fn free_address() -> String {
    format!("127.0.0.1:{}", free_ports())
}

pub fn quipu(arguments: &[&str]) -> String {
    let output = run(arguments, &[]);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The data folders of a new cluster.
pub fn found(folder: &Path, nodes: usize) -> Vec<PathBuf> {
    let data: Vec<PathBuf> = (1..=nodes).map(|node| folder.join(format!("node-{node}"))).collect();
    let text = |path: &PathBuf| path.to_str().unwrap().to_string();
    quipu(&["cluster", "init", "--data", &text(&data[0]), "--peer", &free_address()]);
    for joining in &data[1..] {
        let invitation = folder.join("invitation.toml");
        std::fs::write(&invitation, quipu(&["cluster", "invite", "--data", &text(&data[0])])).unwrap();
        let peer = free_address();
        quipu(&["cluster", "join", &text(&invitation), "--data", &text(joining), "--peer", &peer]);
    }
    data
}

/// Waits until a server knows so many nodes and holds so many partitions.
pub fn wait_for(server: &Server, nodes: u64, partitions: u64) {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let metrics = server.request("GET", "/metrics", &[], "").body;
        let is = |name: &str, wanted: u64| {
            metrics.lines().any(|line| line.contains(name) && line.ends_with(&format!(" {wanted}")))
        };
        // What it leads must be where it should be: half way, a group may still depend on the first node alone.
        let is_settled = || {
            let cluster = server.request("GET", "/api/v1/cluster", &[], "").json();
            cluster["partitions"].as_array().unwrap().iter().all(|partition| partition["settled"] != false)
        };
        if is("cluster_nodes", nodes) && is("cluster_partitions_held", partitions) && is_settled() {
            return;
        }
        assert!(Instant::now() < until, "{metrics}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The cluster as a server describes it.
pub fn described(server: &Server) -> Value {
    let reply = server.request("GET", "/api/v1/cluster", &[], "");
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

/// Waits until every partition is led by somebody who finds it where it should be, with nobody behind: everywhere, or in a larger
/// cluster at three nodes.
pub fn wait_until_settled(servers: &[&Server]) {
    let until = Instant::now() + Duration::from_secs(60);
    let is_settled = |partition: &&Value| {
        let behind = partition["behind"].as_array().unwrap();
        partition["settled"] == true
            && behind.len() + 1 == servers.len().min(3)
            && behind.iter().all(|other| other["entries"] == 0)
    };
    loop {
        let described: Vec<Value> = servers.iter().map(|server| described(server)).collect();
        let all = described.iter().flat_map(|cluster| cluster["partitions"].as_array().unwrap());
        let is_known =
            described.iter().all(|cluster| cluster["nodes"].as_array().unwrap().len() >= servers.len());
        if is_known && all.filter(is_settled).count() == 16 {
            return;
        }
        assert!(Instant::now() < until, "{described:#?}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

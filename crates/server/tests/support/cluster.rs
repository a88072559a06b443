//! Data folders of the nodes of a cluster, made by the command line, and what the servers over them are asked.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
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

pub fn free_address() -> String {
    format!("127.0.0.1:{}", free_ports())
}

pub fn quipu(arguments: &[&str]) -> String {
    let output = run(arguments, &[]);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The data folders of a new cluster.
pub fn found(folder: &Path, nodes: usize) -> Vec<PathBuf> {
    found_with(folder, nodes, &[])
}

/// The same with more arguments of `quipu cluster init`.
pub fn found_with(folder: &Path, nodes: usize, arguments: &[&str]) -> Vec<PathBuf> {
    let data: Vec<PathBuf> = (1..=nodes).map(|node| folder.join(format!("node-{node}"))).collect();
    let text = |path: &PathBuf| path.to_str().unwrap().to_string();
    let init = ["cluster", "init", "--data", &text(&data[0]), "--peer", &free_address()];
    quipu(&[&init[..], arguments].concat());
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

/// One command on a connection of its own; the lines of its reply.
pub fn ask(address: SocketAddr, command: &str) -> std::io::Result<Vec<String>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    let mut lines = BufReader::new(stream).lines();
    let mut next = || lines.next().unwrap_or_else(|| Err(std::io::ErrorKind::UnexpectedEof.into()));
    let first = next()?;
    let more = first.strip_prefix('*').map_or(0, |count| count.parse::<usize>().unwrap());
    let mut reply = vec![first];
    for _ in 0..more {
        reply.push(next()?);
    }
    Ok(reply)
}

/// Adds one under an id, at any of these servers, until one of them has done it.
pub fn add(servers: &[&Server], key: &str, id: &str) {
    let until = Instant::now() + Duration::from_secs(60);
    for server in servers.iter().cycle() {
        match ask(server.resp, &format!("Q.ADD {key} 1 ID {id}")) {
            Ok(reply) if reply.len() == 5 => return,
            other => assert!(Instant::now() < until, "{id}: {other:?}"),
        }
    }
}

/// The value of a counter, as soon as a server can say it.
pub fn value(server: &Server, key: &str) -> i64 {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let reply = server.request("GET", &format!("/api/v1/counters/{key}"), &[], "");
        if reply.status == 200 {
            return serde_json::from_str::<Value>(&reply.body).unwrap()["value"].as_i64().unwrap();
        }
        assert!(Instant::now() < until, "{reply:?}");
    }
}

/// The cluster as a server describes it.
pub fn described(server: &Server) -> Value {
    let reply = server.request("GET", "/api/v1/cluster", &[], "");
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()
}

/// Waits until a server describes the cluster so.
pub fn wait_until(server: &Server, is_so: impl Fn(&Value) -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !is_so(&described(server)) {
        assert!(Instant::now() < until, "{:#}", described(server));
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Servers over these folders, once each partition is where it should be.
pub fn start_settled(data: &[PathBuf]) -> Vec<Server> {
    let servers: Vec<Server> = data.iter().map(|data| Server::start(data)).collect();
    wait_until_settled(&servers.iter().collect::<Vec<_>>());
    servers
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

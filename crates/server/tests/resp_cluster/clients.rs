//! Clients that find the node of a key by themselves. Each counts over all slots, with tags, pipelines, expiry and
//! transactions, then a node is killed and it goes on.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use redis::cluster::ClusterClient;
use redis::{TypedCommands, cmd};

use super::host::succeeds;
use super::nodes::{Nodes, eventually};
use super::{SYSTEM_PYTHON, installed};

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/resp_cluster").join(name)
}

/// Runs a client with the ports of all nodes. It says `kill` when it wants to lose one, hears `killed` then, and says `fine`
/// at its end.
fn converse(mut client: Command) {
    let mut nodes = Nodes::start(3);
    client.args(nodes.addresses().iter().map(|address| address.port().to_string()));
    let spawned = client.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child =
        spawned.unwrap_or_else(|error| panic!("{client:?}: {error}; `cargo xtask test` installs it"));
    let mut stdin = child.stdin.take().unwrap();
    let mut said = Vec::new();
    for line in BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok) {
        if line == "kill" {
            nodes.kill(1);
            stdin.write_all(b"killed\n").unwrap();
        }
        said.push(line);
    }
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{client:?}: {}\n{}\n{errors}", output.status, said.join("\n"));
    assert_eq!(said, ["kill", "fine"], "{client:?}\n{errors}");
}

#[test]
fn redis_py_of_the_distribution() {
    let mut python = Command::new(SYSTEM_PYTHON);
    python.arg(script("redis_py.py"));
    converse(python);
}

#[test]
fn redis_py_newest() {
    let mut python = Command::new(installed::python());
    python.arg(script("redis_py.py"));
    converse(python);
}

#[test]
fn ioredis() {
    let mut node = Command::new("node");
    node.arg(script("ioredis.cjs")).env("NODE_PATH", installed::node_modules());
    converse(node);
}

#[test]
fn redis_cli() {
    let mut nodes = Nodes::start(3);
    let cli = |nodes: &Nodes, words: &[&str]| {
        let mut cli = Command::new("redis-cli");
        let port = nodes.addresses()[0].port().to_string();
        succeeds(cli.args(["-c", "-p", &port]).args(words)).trim_end().to_owned()
    };
    for number in 0..30 {
        assert_eq!(cli(&nodes, &["incr", &format!("counter:{number}")]), "1");
    }
    assert_eq!(cli(&nodes, &["mset", "{t}a", "1", "{t}b", "2"]), "OK");
    assert_eq!(cli(&nodes, &["mget", "{t}a", "{t}b"]), "1\n2");
    assert!(cli(&nodes, &["mget", "a", "b"]).starts_with("CROSSSLOT"));
    let ports: Vec<String> = nodes.addresses().iter().map(|address| address.to_string()).collect();
    let checked = succeeds(Command::new("redis-cli").args(["--cluster", "check", &ports[2]]));
    assert!(checked.contains("All 16384 slots covered"), "{checked}");
    nodes.kill(1);
    let port = nodes.addresses()[0].port().to_string();
    for number in 0..30 {
        // It may be sent to the one that is gone until another leads.
        eventually(|| {
            let key = format!("counter:{number}");
            let output = Command::new("redis-cli")
                .args(["-c", "-p", &port, "q.add", &key, "1", "ID", "after"])
                .output()
                .unwrap();
            if output.stdout.starts_with(b"2\n1\n2\n") { Ok(()) } else { Err(output) }
        });
    }
}

#[test]
fn redis_rs() {
    let mut nodes = Nodes::start(3);
    let urls: Vec<String> = nodes.addresses().iter().map(|address| format!("redis://{address}")).collect();
    let client = ClusterClient::new(urls).unwrap();
    let mut connection = client.get_connection().unwrap();
    for number in 0..100 {
        assert_eq!(connection.incr(format!("counter:{number}"), 1).unwrap(), 1);
        connection.set_ex(format!("t:{number}"), 5, 100).unwrap();
    }
    connection.mset(&[("{t}a", 1), ("{t}b", 2)]).unwrap();
    assert_eq!(connection.mget(&["{t}a", "{t}b"]).unwrap(), ["1", "2"].map(|text| Some(text.to_owned())));
    let mut pipeline = redis::cluster::cluster_pipe();
    for number in 0..100 {
        pipeline.incr(format!("counter:{number}"), 1);
    }
    let replies: Vec<i64> = pipeline.query(&mut connection).unwrap();
    assert_eq!(replies, [2; 100]);
    nodes.kill(1);
    for number in 0..100 {
        let mut add = cmd("Q.ADD");
        add.arg(format!("counter:{number}")).arg(1).arg("ID").arg("after");
        // The client keeps connections to those that are gone for a while; a new one looks around first.
        eventually(|| {
            let added: Result<Vec<i64>, _> = add.query(&mut connection);
            if added.is_err()
                && let Ok(fresh) = client.get_connection()
            {
                connection = fresh;
            }
            added.map(|added| assert_eq!(added[0], 3))
        });
    }
}

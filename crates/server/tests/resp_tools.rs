//! Tools and libraries that people already have, against a real server.

mod resp_support;

use std::process::Command;

use resp_support::Quipu;

fn run(program: &str, arguments: &[&str]) -> String {
    let output =
        Command::new(program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{program} {arguments:?}\n{out}\n{err}");
    out.into_owned()
}

#[test]
fn redis_cli() {
    let quipu = Quipu::start();
    let port = quipu.address().port().to_string();
    let cli = |words: &[&str]| run("redis-cli", &[&["-p", &port], words].concat()).trim().to_owned();
    assert_eq!(cli(&["ping"]), "PONG");
    assert_eq!(cli(&["incrby", "a", "41"]), "41");
    assert_eq!(cli(&["-3", "incr", "a"]), "42");
    assert_eq!(cli(&["--scan", "--pattern", "a*"]), "a");
    assert_eq!(cli(&["--no-raw", "get", "nosuch"]), "(nil)");
    assert!(cli(&["info", "server"]).contains("redis_version:7."));
    assert_eq!(cli(&["-3", "q.add", "a", "1", "ID", "x"]), "43\n1\n3\n0");
}

#[test]
fn redis_benchmark() {
    let quipu = Quipu::start();
    let port = quipu.address().port().to_string();
    let load = ["-p", &port, "-n", "20000", "-r", "1000", "-P", "16", "-c", "20", "-q"];
    let out = run("redis-benchmark", &[&load[..], &["-t", "ping,get,incr"]].concat());
    assert!(out.contains("INCR:") && out.contains("requests per second"), "{out}");
    // Its own SET stores letters, which are refused here.
    run("redis-benchmark", &[&load[..], &["set", "number", "5"]].concat());
    let mut client = quipu.client();
    let mut sum = 0;
    for number in 0..1000 {
        let reply = client.ask(&format!("GET counter:{number:012}"));
        if let Some(value) = reply.split('|').nth(1) {
            sum += value.parse::<i64>().unwrap_or(0);
        }
    }
    assert_eq!(sum, 20_000);
}

/// The Python client, in both protocols where it can, with pipelines, transactions, scans and its connection pool.
const PYTHON: &str = r#"
import sys, threading, redis
r = redis.Redis(port=int(sys.argv[1]), client_name="py")
assert r.ping() and r.client_getname() in ("py", b"py")
assert r.incr("a") == 1 and r.incrby("a", 9) == 10 and r.decr("a", 3) == 7 and int(r.get("a")) == 7
assert r.get("nosuch") is None and r.exists("a", "nosuch") == 1
assert r.set("b", 5, ex=100) is True and 0 < r.ttl("b") <= 100 and r.persist("b") is True and r.ttl("b") == -1
assert r.set("b", 6, nx=True) is None and r.set("b", 6, xx=True, get=True) == b"5"
assert r.mset({"c": 1, "d": 2}) is True and r.mget("c", "d", "nosuch") == [b"1", b"2", None]
assert r.expire("c", 100) and r.type("c") == b"string" and r.delete("c", "d") == 2
with r.pipeline(transaction=True) as pipe:
    assert pipe.incr("t").incr("t").get("t").execute() == [1, 2, b"2"]
with r.pipeline(transaction=False) as pipe:
    for _ in range(1000):
        pipe.incr("p")
    assert pipe.execute() == list(range(1, 1001))
try:
    r.set("word", "hello")
    raise AssertionError("a word was taken for a number")
except redis.ResponseError as error:
    assert "not an integer" in str(error)
assert sorted(r.scan_iter(count=10)) == sorted(r.keys("*")) and r.dbsize() == len(r.keys())
assert r.info()["redis_version"].startswith("7.") and r.info("keyspace")["db0"]["keys"] == r.dbsize()
assert r.config_get("maxmemory") == {"maxmemory": "0"} and any(c["name"] == "py" for c in r.client_list())
assert r.command_count() > 50 and "get" in r.command()
assert r.execute_command("Q.ADD", "q", 5, "ID", "one") == [5, 5, 1, 0]
assert r.execute_command("Q.ADD", "q", 5, "ID", "one") == [5, 5, 1, 1]
def count():
    own = redis.Redis(port=int(sys.argv[1]))
    for _ in range(500):
        own.incr("shared")
threads = [threading.Thread(target=count) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
assert int(r.get("shared")) == 4000
assert r.flushall() and r.dbsize() == 0
print("fine")
"#;

#[test]
fn redis_py() {
    let quipu = Quipu::start();
    let port = quipu.address().port().to_string();
    assert_eq!(run("/usr/bin/python3", &["-c", PYTHON, &port]).trim(), "fine");
}

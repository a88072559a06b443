//! redis-cli: one command, many of them, at a terminal, and the tools that are built into it.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use super::host::{Host, succeeds};

fn redis_cli(host: &Host, words: &[&str]) -> String {
    let mut cli = Command::new("redis-cli");
    succeeds(cli.args(["-p", &host.port()]).args(words)).trim_end().to_owned()
}

/// The same with something to read.
fn redis_cli_reading(host: &Host, words: &[&str], input: &[u8]) -> String {
    let mut cli = Command::new("redis-cli");
    let mut child = cli
        .args(["-p", &host.port()])
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("redis-cli is installed");
    child.stdin.take().expect("it is piped").write_all(input).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

#[test]
fn one_command_after_the_other() {
    let host = Host::start();
    let cases: &[(&[&str], &str)] = &[
        (&["ping"], "PONG"),
        (&["incrby", "a", "41"], "41"),
        (&["-3", "incr", "a"], "42"),
        (&["--scan", "--pattern", "a*"], "a"),
        (&["--no-raw", "get", "nosuch"], "(nil)"),
        (&["--no-raw", "incr", "a"], "(integer) 43"),
        (&["-3", "q.add", "a", "1", "ID", "x"], "44\n1\n4\n0"),
        (&["--csv", "mget", "a", "nosuch"], "\"44\",NULL"),
        (&["--json", "mget", "a", "nosuch"], "[\"44\",null]"),
        (&["-3", "--json", "config", "get", "maxmemory"], "{\"maxmemory\":\"0\"}"),
        (&["-r", "3", "-i", "0.01", "incr", "b"], "1\n2\n3"),
        (&["-c", "incr", "b"], "4"),
        (&["-n", "0", "dbsize"], "2"),
        (&["-u", &format!("redis://127.0.0.1:{}/0", host.port()), "get", "b"], "4"),
    ];
    for (words, expected) in cases {
        assert_eq!(redis_cli(&host, words), *expected, "{words:?}");
    }
    assert!(redis_cli(&host, &["info", "server"]).contains("redis_version:7."));
    assert_eq!(redis_cli_reading(&host, &["-x", "set", "c"], b"7"), "OK");
    // With -e an error is an exit code.
    let refused =
        Command::new("redis-cli").args(["-p", &host.port(), "-e", "set", "a", "word"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("not an integer"));
}

#[test]
fn mass_insertion() {
    let host = Host::start();
    let commands: String = (0..100_000).map(|number| format!("INCRBY k:{} 1\r\n", number % 1000)).collect();
    let said = redis_cli_reading(&host, &["--pipe"], commands.as_bytes());
    assert!(said.ends_with("errors: 0, replies: 100000"), "{said}");
    assert_eq!(redis_cli(&host, &["get", "k:999"]), "100");
    assert_eq!(redis_cli(&host, &["--scan"]).lines().count(), 1000);
    let said = redis_cli_reading(&host, &["--pipe"], b"INCR a\r\nSET a word\r\nINCR a\r\n");
    assert!(said.ends_with("errors: 1, replies: 3"), "{said}");
}

/// redis-cli at a terminal.
struct Terminal {
    child: Child,
    /// What was shown since something was typed.
    shown: String,
}

impl Terminal {
    fn open(host: &Host, arguments: &str) -> Terminal {
        // The size is set because redis-cli would ask the terminal for it, and there is nobody to answer.
        let line = format!("stty cols 200 rows 50; exec redis-cli -p {} {arguments}", host.port());
        let child = Command::new("script")
            .args(["-qefc", &line, "/dev/null"])
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script is installed");
        Terminal { child, shown: String::new() }
    }

    fn enter(&mut self, line: &str) {
        self.shown.clear();
        let stdin = self.child.stdin.as_mut().expect("it is piped");
        stdin.write_all(format!("{line}\r").as_bytes()).expect("it reads");
    }

    /// Waits until all of these were shown, one after the other.
    fn wait_for(&mut self, expected: &[&str]) {
        let is_shown = |shown: &str| {
            let mut rest = Some(shown);
            for text in expected {
                rest = rest.and_then(|rest| rest.split_once(text)).map(|(_, rest)| rest);
            }
            rest.is_some()
        };
        let mut buffer = [0; 4096];
        while !is_shown(&self.shown) {
            match self.child.stdout.as_mut().expect("it is piped").read(&mut buffer) {
                Ok(length @ 1..) => self.shown.push_str(&String::from_utf8_lossy(&buffer[..length])),
                _ => panic!("it ended without {expected:?}: {}", self.shown),
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Tools that run until they are stopped.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn at_a_prompt() {
    let host = Host::start();
    let prompt = format!("127.0.0.1:{}> ", host.port());
    let in_transaction = format!("127.0.0.1:{}(TX)> ", host.port());
    let mut terminal = Terminal::open(&host, "");
    terminal.wait_for(&[&prompt]);
    for (line, expected) in [
        ("incr likes", &["(integer) 1", &prompt][..]),
        ("mget likes nosuch", &["1) \"1\"", "2) (nil)", &prompt]),
        ("set likes word", &["(error) ERR value is not an integer or out of range", &prompt]),
        ("nosuch", &["(error) ERR unknown command", &prompt]),
        ("multi", &["OK", &in_transaction]),
        ("incr likes", &["QUEUED", &in_transaction]),
        ("exec", &["1) (integer) 2", &prompt]),
        ("3 incr likes", &["(integer) 3", "(integer) 4", "(integer) 5", &prompt]),
        ("hello 3", &["\"server\" => \"quipu\"", &prompt]),
        ("client info", &["resp=3", &prompt]),
        ("help incr", &["INCR", "summary:", &prompt]),
        ("select 0", &["OK", &prompt]),
        ("auth secret", &["(error) ERR AUTH <password> called without", &prompt]),
    ] {
        terminal.enter(line);
        terminal.wait_for(expected);
    }
    terminal.enter("quit");
    assert!(terminal.child.wait().expect("it ends").success());
}

#[test]
fn built_in_tools() {
    let host = Host::start();
    redis_cli(&host, &["mset", "a", "1", "bb", "22222", "ccc", "333"]);
    for tool in ["--bigkeys", "--memkeys"] {
        let said = redis_cli(&host, &[tool]);
        assert!(said.contains("Sampled 3 keys in the keyspace!"), "{said}");
    }
    // These run until they are stopped: two lines show that they understand the server.
    Terminal::open(&host, "--stat -i 0.01").wait_for(&["keys       mem      clients", "\n3 ", "\n3 "]);
    Terminal::open(&host, "--latency -i 0.01").wait_for(&["min: ", "samples)"]);
    Terminal::open(&host, "--latency-history -i 0.01").wait_for(&["min: ", "seconds range"]);
    Terminal::open(&host, "-r 3 -i 0.01 incr a").wait_for(&["(integer) 2", "(integer) 3", "(integer) 4"]);
}

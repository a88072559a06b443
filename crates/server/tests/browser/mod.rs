//! A real Chromium without a window, driven through a pipe by its DevTools protocol: JSON messages that end with a zero
//! byte.
#![allow(clippy::unwrap_used)] // a panic here is a failed test

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

/// How long a condition on a page may take to hold.
const PATIENCE: Duration = Duration::from_secs(60);

/// A browser with one page. Killed when dropped.
pub struct Browser {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// The page all calls go to.
    session: Option<String>,
    calls: u64,
    events: VecDeque<Value>,
    _profile: TempDir,
}

impl Browser {
    /// Starts it with an empty page. Names are not resolved, so that it reaches this machine only.
    pub fn start() -> Browser {
        let profile = tempfile::tempdir().unwrap();
        let chromium = format!(
            "exec chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
             --host-resolver-rules='MAP * ~NOTFOUND, EXCLUDE 127.0.0.1' --user-data-dir='{}' --remote-debugging-pipe \
             3<&0 4>&1 </dev/null >/dev/null",
            profile.path().display()
        );
        let mut child = Command::new("sh")
            .args(["-c", &chromium])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let events = VecDeque::new();
        let mut browser =
            Browser { child, input, output, session: None, calls: 0, events, _profile: profile };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}))["targetId"].clone();
        let attached = browser.call("Target.attachToTarget", json!({"targetId": target, "flatten": true}));
        browser.session = Some(attached["sessionId"].as_str().unwrap().to_owned());
        for domain in ["Page", "Runtime", "Log", "Network"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// Calls a method and returns its result.
    pub fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.calls += 1;
        let mut message = json!({"id": self.calls, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let sent = self.input.write_all(format!("{message}\0").as_bytes()).and_then(|()| self.input.flush());
        sent.expect("chromium is installed and runs (Debian: apt-get install chromium)");
        loop {
            let message = self.receive();
            if message["id"] == json!(self.calls) {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].clone();
            }
        }
    }

    fn receive(&mut self) -> Value {
        let mut bytes = Vec::new();
        self.output.read_until(0, &mut bytes).unwrap();
        assert_eq!(
            bytes.pop(),
            Some(0),
            "chromium ended; is it installed? (Debian: apt-get install chromium)"
        );
        let message: Value = serde_json::from_slice(&bytes).unwrap();
        if message["method"].is_string() {
            self.events.push_back(message.clone());
        }
        message
    }

    /// The value of an expression on the page.
    pub fn evaluate(&mut self, expression: &str) -> Value {
        let parameters = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let result = self.call("Runtime.evaluate", parameters);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {}", result["exceptionDetails"]);
        result["result"]["value"].clone()
    }

    /// Opens an address and waits until an expression is true there.
    pub fn open(&mut self, address: &str, until: &str) {
        self.call("Page.navigate", json!({ "url": address }));
        self.wait(until);
    }

    /// Waits until an expression is true.
    pub fn wait(&mut self, until: &str) {
        let begin = Instant::now();
        while self.evaluate(until) != json!(true) {
            assert!(begin.elapsed() < PATIENCE, "it never came to {until}");
        }
    }

    /// What the page asked for so far: addresses.
    pub fn requests(&self) -> Vec<String> {
        let sent = self.events.iter().filter(|event| event["method"] == "Network.requestWillBeSent");
        sent.map(|event| event["params"]["request"]["url"].as_str().unwrap().to_owned()).collect()
    }

    /// What the page complained about so far.
    pub fn complaints(&self) -> Vec<&Value> {
        let is_complaint = |event: &&Value| match event["method"].as_str().unwrap_or_default() {
            "Runtime.exceptionThrown" | "Log.entryAdded" | "Network.loadingFailed" => true,
            "Runtime.consoleAPICalled" => event["params"]["type"] != "log",
            _ => false,
        };
        self.events.iter().filter(is_complaint).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It may have ended already; there is nothing to learn from a failure here.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

//! One call of `quipu bench`, and what it measured.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::servers::Server;

/// Pipeline and connections for work that only prepares a measurement.
const PREPARING_PIPELINE: u32 = 256;

/// What to send; the arguments of `quipu bench` but for where to.
#[derive(Debug, Clone)]
pub struct Load {
    arguments: Vec<String>,
    is_http: bool,
}

impl Load {
    /// A load of this `--command`.
    pub fn new(command: &str) -> Load {
        Load { arguments: vec!["--command".into(), command.into()], is_http: false }
    }

    /// Creates `keys` keys.
    pub fn of_keys(keys: u64) -> Load {
        Load::new("load").with("--keys", keys).with("--pipeline", PREPARING_PIPELINE)
    }

    /// With a flag and its value.
    pub fn with(mut self, flag: &str, value: impl ToString) -> Load {
        self.arguments.extend([flag.to_string(), value.to_string()]);
        self
    }

    /// With a flag that has no value.
    pub fn with_flag(mut self, flag: &str) -> Load {
        self.arguments.push(flag.to_string());
        self
    }

    /// Over HTTP instead of RESP.
    pub fn over_http(self) -> Load {
        Load { is_http: true, ..self }
    }

    /// As somebody else would type it.
    pub fn shown(&self) -> String {
        let scheme = if self.is_http { "http" } else { "resp" };
        format!("quipu bench --target {scheme}://... {}", self.arguments.join(" "))
    }

    /// Offers it to a server; any error reply is a failure.
    pub fn offer(&self, binary: &Path, server: &Server) -> Result<Run> {
        let (run, failure) = self.offer_anyway(binary, server)?;
        ensure!(failure.is_empty(), "{}: {failure}", self.shown());
        Ok(run)
    }

    /// Offers it to a server, and also returns what the generator complained about, if it did.
    pub fn offer_anyway(&self, binary: &Path, server: &Server) -> Result<(Run, String)> {
        let json = tempfile::NamedTempFile::new()?;
        self.run(self.command(binary, server, json.path())?, json.path())
    }

    /// Offers it to whoever speaks RESP there; any error reply is a failure.
    pub fn offer_at(&self, binary: &Path, address: SocketAddr, process: u32) -> Result<Run> {
        let json = tempfile::NamedTempFile::new()?;
        let command = self.command_to(binary, &format!("resp://{address}"), process, json.path());
        let (run, failure) = self.run(command, json.path())?;
        ensure!(failure.is_empty(), "{}: {failure}", self.shown());
        Ok(run)
    }

    fn run(&self, mut command: Command, json: &Path) -> Result<(Run, String)> {
        let output = command.output()?;
        let complaint = String::from_utf8_lossy(&output.stderr).trim().to_string();
        let text = std::fs::read(json)?;
        // It fails before there is a result, or after.
        ensure!(!text.is_empty(), "{}: {complaint}", self.shown());
        let run = serde_json::from_slice(&text).with_context(|| format!("the result of {}", self.shown()))?;
        Ok((run, if output.status.success() { String::new() } else { complaint }))
    }

    /// The generator as a program to start.
    pub fn command(&self, binary: &Path, server: &Server, json: &Path) -> Result<Command> {
        let target = match server.http.filter(|_| self.is_http) {
            Some(address) => format!("http://{address}"),
            None => {
                ensure!(!self.is_http, "{}: the server speaks no HTTP", self.shown());
                format!("resp://{}", server.resp)
            }
        };
        Ok(self.command_to(binary, &target, server.process_id(), json))
    }

    fn command_to(&self, binary: &Path, target: &str, process: u32, json: &Path) -> Command {
        let mut command = Command::new(binary);
        command
            .args(["bench", "--target", target, "--server-pid", &process.to_string()])
            .args(&self.arguments)
            .arg("--json")
            .arg(json);
        command
    }
}

/// What one run of the generator measured; everything it said is kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Run {
    /// Operations per second.
    pub throughput: f64,
    /// Operations answered.
    pub operations: u64,
    /// From the intended start to the reply.
    pub latency_us: Percentiles,
    /// What the server's process used.
    pub server: ServerUse,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// Some percentiles.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Percentiles {
    /// The median.
    pub p50: f64,
    /// One of a hundred is slower.
    pub p99: f64,
    /// One of a thousand is slower.
    #[serde(rename = "p99.9")]
    pub p999: f64,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// What the server's process used.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServerUse {
    /// User and system time, per million operations.
    pub cpu_seconds_per_million: f64,
    /// At the end of the run.
    pub resident_bytes: u64,
    /// During the run, of servers that say so.
    pub checkpoints: Option<u64>,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

impl Run {
    /// Another number of the result, by JSON pointer.
    pub fn number(&self, pointer: &str) -> Option<f64> {
        let (first, others) = pointer.strip_prefix('/')?.split_once('/').unwrap_or((&pointer[1..], ""));
        let value = self.rest.get(first)?;
        if others.is_empty() { value.as_f64() } else { value.pointer(&format!("/{others}"))?.as_f64() }
    }

    /// Codes of the error replies that came.
    pub fn codes(&self) -> Vec<String> {
        let codes = self.rest.get("errorsByCode").and_then(Value::as_object);
        codes.map(|codes| codes.keys().cloned().collect()).unwrap_or_default()
    }

    /// A text of the result.
    pub fn text(&self, pointer: &str) -> Option<&str> {
        let (first, others) = pointer.strip_prefix('/')?.split_once('/').unwrap_or((&pointer[1..], ""));
        let value = self.rest.get(first)?;
        if others.is_empty() { value.as_str() } else { value.pointer(&format!("/{others}"))?.as_str() }
    }
}

#[cfg(test)]
pub mod tests {
    use serde_json::json;

    use super::*;

    /// A result as the generator writes it, with some fields of the caller's choice.
    pub fn run_with(fields: Value) -> Run {
        let mut result = serde_json::to_value(run(1.0, 1e6, 1.0)).unwrap();
        result.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        serde_json::from_value(result).unwrap()
    }

    /// A result as the generator writes it, with the figures that matter.
    pub fn run(cpu: f64, throughput: f64, p99_us: f64) -> Run {
        let result = json!({
            "command": "incr",
            "throughput": throughput,
            "operations": 1_000_000,
            "replyBytes": 4_000_000,
            "latencyUs": { "p50": p99_us / 2.0, "p95": 1.0, "p99": p99_us, "p99.9": p99_us * 2.0, "max": 9.0 },
            "sendDelayUs": { "p99": 7.5 },
            "server": { "pid": 7, "cpuSecondsPerMillion": cpu, "residentBytes": 1 << 20, "checkpoints": 1 },
            "sum": { "found": "12" },
        });
        serde_json::from_value(result).unwrap()
    }

    #[test]
    fn results_keep_everything_they_were_read_from() {
        let run = run(1.5, 2e6, 300.0);
        assert_eq!((run.server.cpu_seconds_per_million, run.latency_us.p999), (1.5, 600.0));
        assert_eq!((run.number("/sendDelayUs/p99"), run.number("/replyBytes")), (Some(7.5), Some(4e6)));
        assert_eq!((run.text("/sum/found"), run.text("/command")), (Some("12"), Some("incr")));
        assert_eq!((run.number("/nothing"), run.number("nothing")), (None, None));
        let written = serde_json::to_value(&run).unwrap();
        assert_eq!((&written["server"]["pid"], &written["latencyUs"]["max"]), (&json!(7), &json!(9.0)));
    }

    #[test]
    fn loads_are_shown_as_they_would_be_typed() {
        let load = Load::new("incr").with("--connections", 50).with_flag("--verify").over_http();
        assert_eq!(load.shown(), "quipu bench --target http://... --command incr --connections 50 --verify");
    }
}

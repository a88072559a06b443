//! What a run says at its end: lines for people, JSON for programs.

use std::fmt;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// The percentiles that are printed.
const PERCENTILES: [(&str, f64); 4] = [("p50", 50.0), ("p95", 95.0), ("p99", 99.0), ("p99.9", 99.9)];

/// The result of a run.
pub struct Report {
    /// As given, without credentials.
    pub target: String,
    /// Name of the load.
    pub command: &'static str,
    /// Connections of all threads.
    pub connections: usize,
    /// Commands sent together.
    pub pipeline: u32,
    /// Generator threads.
    pub threads: usize,
    /// Keys were numbered below this.
    pub keys: u64,
    /// What to pass as `--seed` for the same run.
    pub seed: u64,
    /// Operations per second asked for; `None` is the closed loop.
    pub rate: Option<f64>,
    /// Operations that were answered.
    pub operations: u64,
    /// Of these, with an error.
    pub errors: u64,
    /// Text of the first error.
    pub first_error: Option<String>,
    /// From the first command to the last reply.
    pub seconds: f64,
    /// Nanoseconds from the intended start to the reply.
    pub latency_ns: Histogram<u64>,
    /// CPU seconds the generator used: it competes with a server on the same machine.
    pub client_cpu_seconds: f64,
    /// What the server's process used, if it could be watched.
    pub server: Option<ServerUse>,
    /// With `--verify`: by how much the sum of all keys grew, and by how much it should have.
    pub sum: Option<SumCheck>,
}

/// What the server's process used during the run.
pub struct ServerUse {
    /// Its process.
    pub pid: u32,
    /// User and system time, all threads.
    pub cpu_seconds: f64,
    /// In memory at the end of the run.
    pub resident_bytes: u64,
    /// Checkpoints written during the run, of servers that say so in `INFO`.
    pub checkpoints: Option<u64>,
}

/// Growth of the sum of all keys.
pub struct SumCheck {
    /// By the replies.
    pub expected: i128,
    /// By reading all keys before and after.
    pub found: i128,
}

impl Report {
    /// Operations answered per second.
    pub fn throughput(&self) -> f64 {
        self.operations as f64 / self.seconds.max(f64::MIN_POSITIVE)
    }

    /// Everything measured, for `--json`. Latencies are in microseconds.
    pub fn to_json(&self) -> Value {
        let mut latency: serde_json::Map<String, Value> =
            self.percentiles().map(|(name, ns)| (name.to_string(), json!(ns as f64 / 1e3))).collect();
        latency.insert("max".into(), json!(self.latency_ns.max() as f64 / 1e3));
        json!({
            "target": self.target,
            "command": self.command,
            "connections": self.connections,
            "pipeline": self.pipeline,
            "threads": self.threads,
            "keys": self.keys,
            "seed": self.seed,
            "rate": self.rate,
            "operations": self.operations,
            "errors": self.errors,
            "firstError": self.first_error,
            "seconds": self.seconds,
            "throughput": self.throughput(),
            "latencyUs": latency,
            "clientCpuSecondsPerMillion": self.per_million(self.client_cpu_seconds),
            "server": self.server.as_ref().map(|server| json!({
                "pid": server.pid,
                "cpuSeconds": server.cpu_seconds,
                "cpuSecondsPerMillion": self.per_million(server.cpu_seconds),
                "residentBytes": server.resident_bytes,
                "checkpoints": server.checkpoints,
            })),
            "sum": self.sum.as_ref().map(|sum| json!({
                "expected": sum.expected.to_string(),
                "found": sum.found.to_string(),
            })),
        })
    }

    fn per_million(&self, seconds: f64) -> f64 {
        seconds * 1e6 / (self.operations.max(1)) as f64
    }

    fn percentiles(&self) -> impl Iterator<Item = (&'static str, u64)> {
        PERCENTILES.iter().map(|&(name, percentile)| (name, self.latency_ns.value_at_percentile(percentile)))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pace = match self.rate {
            Some(rate) => format!("open loop at {rate:.0}/s"),
            None => "closed loop".to_string(),
        };
        writeln!(
            f,
            "{} on {}: {} connections, pipeline {}, {} threads, {} keys, seed {}, {pace}",
            self.command, self.target, self.connections, self.pipeline, self.threads, self.keys, self.seed
        )?;
        let (operations, seconds) = (self.operations, self.seconds);
        writeln!(f, "operations  {operations} in {seconds:.2} s, {:.0} per second", self.throughput())?;
        write!(f, "latency    ")?;
        for (name, ns) in self.percentiles() {
            write!(f, " {name} {},", Milliseconds(ns))?;
        }
        writeln!(f, " max {}", Milliseconds(self.latency_ns.max()))?;
        match &self.server {
            Some(server) => writeln!(
                f,
                "server      {:.3} CPU seconds per million operations, {:.1} MiB resident, pid {}{}",
                self.per_million(server.cpu_seconds),
                server.resident_bytes as f64 / f64::from(1 << 20),
                server.pid,
                server.checkpoints.map(|n| format!(", {n} checkpoints")).unwrap_or_default()
            )?,
            None => writeln!(f, "server      not measured: not on this machine, or give --server-pid")?,
        }
        writeln!(
            f,
            "generator   {:.3} CPU seconds per million operations",
            self.per_million(self.client_cpu_seconds)
        )?;
        if let Some(sum) = &self.sum {
            writeln!(f, "sum         grew by {}, {} expected", sum.found, sum.expected)?;
        }
        match &self.first_error {
            Some(first) => write!(f, "errors      {}, the first: {first}", self.errors),
            None => write!(f, "errors      none"),
        }
    }
}

/// Nanoseconds, shown as milliseconds with microseconds behind the point.
struct Milliseconds(u64);

impl fmt::Display for Milliseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3} ms", self.0 as f64 / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        let mut latency_ns = Histogram::new_with_bounds(1, 60_000_000_000, 3).unwrap();
        latency_ns.record_n(1_000_000, 999).unwrap();
        latency_ns.record(9_000_000).unwrap();
        Report {
            target: "resp://127.0.0.1:7071".into(),
            command: "incr",
            connections: 50,
            pipeline: 16,
            threads: 1,
            keys: 1_000_000,
            seed: 9,
            rate: None,
            operations: 2_000_000,
            errors: 1,
            first_error: Some("ERR no".into()),
            seconds: 4.0,
            latency_ns,
            client_cpu_seconds: 1.0,
            server: Some(ServerUse {
                pid: 7,
                cpu_seconds: 3.0,
                resident_bytes: 1 << 20,
                checkpoints: Some(2),
            }),
            sum: Some(SumCheck { expected: 2_000_000, found: 1_999_999 }),
        }
    }

    #[test]
    fn people_read_lines() {
        let text = report().to_string();
        for expected in [
            "incr on resp://127.0.0.1:7071: 50 connections, pipeline 16",
            "2000000 in 4.00 s, 500000 per second",
            "p50 1.000 ms",
            "1.500 CPU seconds per million operations, 1.0 MiB resident, pid 7, 2 checkpoints",
            "generator   0.500",
            "grew by 1999999, 2000000 expected",
            "errors      1, the first: ERR no",
        ] {
            assert!(text.contains(expected), "{expected:?} is missing in\n{text}");
        }
    }

    #[test]
    fn programs_read_json() {
        let json = report().to_json();
        assert_eq!(json["throughput"], 500_000.0);
        assert_eq!(json["server"]["cpuSecondsPerMillion"], 1.5);
        assert_eq!(json["server"]["checkpoints"], 2);
        assert_eq!(json["firstError"], "ERR no");
        let max = json["latencyUs"]["max"].as_f64().unwrap();
        assert!((8_990.0..9_020.0).contains(&max), "{max}");
    }
}

//! What a run says at its end: lines for people, JSON for programs.

use std::fmt;

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

use super::tally::Tally;

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
    /// Counters that one operation touches.
    pub counters_per_operation: u32,
    /// What to pass as `--seed` for the same run.
    pub seed: u64,
    /// Operations per second asked for; `None` is the closed loop.
    pub rate: Option<u64>,
    /// When the first command was sent, in milliseconds since 1970: what else was watched can be put beside it.
    pub started_at_ms: u64,
    /// From the first command to the last reply.
    pub seconds: f64,
    /// Replies and their latencies.
    pub tally: Tally,
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
    /// Checkpoints written during the run, of servers that say so.
    pub checkpoints: Option<u64>,
}

/// Growth of the sum of all keys.
#[derive(Debug, Clone, Copy)]
pub struct SumCheck {
    /// By the replies.
    pub expected: i128,
    /// What may come on top: operations whose connection was closed before a reply came.
    pub unknown: i128,
    /// By reading all keys before and after.
    pub found: i128,
}

impl SumCheck {
    /// Whether what was found is what was acknowledged.
    pub fn holds(&self) -> bool {
        let (low, high) = (
            self.expected.min(self.expected + self.unknown),
            self.expected.max(self.expected + self.unknown),
        );
        (low..=high).contains(&self.found)
    }
}

impl Report {
    /// Operations answered per second.
    pub fn throughput(&self) -> f64 {
        self.tally.replies as f64 / self.seconds.max(f64::MIN_POSITIVE)
    }

    /// Everything measured, for `--json`. Latencies are in microseconds.
    pub fn to_json(&self) -> Value {
        let tally = &self.tally;
        json!({
            "target": self.target,
            "command": self.command,
            "connections": self.connections,
            "pipeline": self.pipeline,
            "threads": self.threads,
            "keys": self.keys,
            "countersPerOperation": self.counters_per_operation,
            "seed": self.seed,
            "rate": self.rate,
            "operations": tally.replies,
            "replyBytes": tally.reply_bytes,
            "errors": tally.error_count(),
            "errorsByCode": tally.errors,
            "firstError": tally.first_error,
            "skipped": tally.skipped,
            "unanswered": tally.unanswered,
            "closedConnections": tally.closed_connections,
            "startedAtMs": self.started_at_ms,
            "seconds": self.seconds,
            "throughput": self.throughput(),
            "latencyUs": microseconds(&tally.latency_ns),
            "errorLatencyUs": (tally.error_count() > 0).then(|| microseconds(&tally.error_latency_ns)),
            "sendDelayUs": self.rate.map(|_| microseconds(&tally.send_delay_ns)),
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
                "unknown": sum.unknown.to_string(),
                "found": sum.found.to_string(),
            })),
        })
    }

    fn per_million(&self, seconds: f64) -> f64 {
        seconds * 1e6 / (self.tally.replies.max(1)) as f64
    }

    /// What did not go as asked for: nothing, in a good run.
    fn write_trouble(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tally = &self.tally;
        if tally.skipped > 0 {
            writeln!(
                f,
                "not sent    {} operations that were due while their connection was full",
                tally.skipped
            )?;
        }
        if tally.closed_connections > 0 {
            let (closed, unanswered) = (tally.closed_connections, tally.unanswered);
            writeln!(
                f,
                "closed      {closed} connections by the server, {unanswered} operations unanswered"
            )?;
        }
        let Some(first) = &tally.first_error else { return write!(f, "errors      none") };
        let kinds: Vec<String> = tally.errors.iter().map(|(code, count)| format!("{count} {code}")).collect();
        write!(f, "errors      {} ({}), the first: {first}", tally.error_count(), kinds.join(", "))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pace = match self.rate {
            Some(rate) => format!("open loop at {rate}/s"),
            None => "closed loop".to_string(),
        };
        writeln!(
            f,
            "{} on {}: {} connections, pipeline {}, {} threads, {} keys, seed {}, {pace}",
            self.command, self.target, self.connections, self.pipeline, self.threads, self.keys, self.seed
        )?;
        let (operations, seconds) = (self.tally.replies, self.seconds);
        write!(f, "operations  {operations} in {seconds:.2} s, {:.0} per second", self.throughput())?;
        if self.counters_per_operation > 1 {
            let counters = self.throughput() * f64::from(self.counters_per_operation);
            write!(
                f,
                " of {} counters each, {counters:.0} counters per second",
                self.counters_per_operation
            )?;
        }
        writeln!(f)?;
        writeln!(f, "latency     {}", Percentiles(&self.tally.latency_ns))?;
        if self.rate.is_some() {
            writeln!(f, "sent late by {}", Percentiles(&self.tally.send_delay_ns))?;
        }
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
        self.write_trouble(f)
    }
}

fn percentiles(histogram: &Histogram<u64>) -> impl Iterator<Item = (&'static str, u64)> {
    PERCENTILES.iter().map(|&(name, percentile)| (name, histogram.value_at_percentile(percentile)))
}

/// Percentiles and maximum in microseconds.
fn microseconds(histogram: &Histogram<u64>) -> Value {
    let shown = percentiles(histogram).chain([("max", histogram.max())]);
    shown.map(|(name, ns)| (name.to_string(), json!(ns as f64 / 1e3))).collect::<Map<_, _>>().into()
}

/// Percentiles and maximum for people.
struct Percentiles<'a>(&'a Histogram<u64>);

impl fmt::Display for Percentiles<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, ns) in percentiles(self.0) {
            write!(f, "{name} {}, ", Milliseconds(ns))?;
        }
        write!(f, "max {}", Milliseconds(self.0.max()))
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
        let mut tally = Tally::new().unwrap();
        tally.note_replies(1_999_999, 1_000_000, false);
        tally.note_replies(1, 9_000_000, true);
        tally.note_error("BUSY", "BUSY come back");
        tally.skipped = 48;
        Report {
            target: "resp://127.0.0.1:7071".into(),
            command: "incr",
            connections: 50,
            pipeline: 16,
            threads: 1,
            keys: 1_000_000,
            counters_per_operation: 1,
            seed: 9,
            rate: None,
            started_at_ms: 1_700_000_000_000,
            seconds: 4.0,
            tally,
            client_cpu_seconds: 1.0,
            server: Some(ServerUse {
                pid: 7,
                cpu_seconds: 3.0,
                resident_bytes: 1 << 20,
                checkpoints: Some(2),
            }),
            sum: Some(SumCheck { expected: 2_000_000, unknown: 0, found: 1_999_999 }),
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
            "not sent    48 operations",
            "errors      1 (1 BUSY), the first: BUSY come back",
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
        assert_eq!((&json["errors"], &json["errorsByCode"]["BUSY"]), (&json!(1), &json!(1)));
        assert_eq!(json["firstError"], "BUSY come back");
        assert!(json["latencyUs"]["max"].as_f64().unwrap() < 1_010.0, "errors are apart");
        let max = json["errorLatencyUs"]["max"].as_f64().unwrap();
        assert!((8_990.0..9_020.0).contains(&max), "{max}");
    }

    #[test]
    fn lost_replies_may_have_counted_or_not() {
        for (expected, unknown, found, holds) in [
            (10, 0, 10, true),
            (10, 0, 11, false),
            (10, 2, 12, true),
            (10, 2, 9, false),
            (-10, -2, -11, true),
        ] {
            assert_eq!(SumCheck { expected, unknown, found }.holds(), holds, "{expected} {unknown} {found}");
        }
    }

    #[test]
    fn operations_on_many_counters_say_so() {
        let batch = Report { counters_per_operation: 1_000, rate: Some(7), ..report() };
        let text = batch.to_string();
        for expected in [
            "500000 per second of 1000 counters each, 500000000 counters",
            "open loop at 7/s",
            "sent late by p50",
        ] {
            assert!(text.contains(expected), "{expected:?} is missing in\n{text}");
        }
    }
}

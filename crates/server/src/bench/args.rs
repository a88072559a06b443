//! What `quipu bench` can be asked to do.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::driver::{Pace, Share};
use super::target::Protocol;
use super::workload::Command;

/// Operations of a run that is limited by nothing else.
const DEFAULT_OPERATIONS: u64 = 1_000_000;

/// Commands sent together where nobody says how many: HTTP clients do not pipeline.
const DEFAULT_PIPELINE_RESP: u32 = 16;
const DEFAULT_PIPELINE_HTTP: u32 = 1;

/// Offer load to quipu or any Redis-protocol server and measure what it takes
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "Examples:\n  \
    quipu bench --command incr --connections 50 --pipeline 16 --operations 5000000\n  \
    quipu bench --target resp://127.0.0.1:6379 --command get --rate 50000 --seconds 30 --json result.json\n  \
    quipu bench --target http://127.0.0.1:7070 --command batch --batch 1000 --operations 10000")]
pub struct Args {
    /// The server: resp://[user:password@]host:port, or http://host:port of quipu
    #[arg(long, default_value = "resp://127.0.0.1:7071")]
    pub target: String,
    /// What to send
    #[arg(long, value_enum, default_value = "incr")]
    pub command: Command,
    /// Connections, shared out over the threads
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub connections: u32,
    /// Commands sent together on a connection [default: 16; over HTTP 1]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub pipeline: Option<u32>,
    /// Increments in one request of `batch`
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub batch: u32,
    /// Keys are numbered from 0 to below this
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub keys: u64,
    /// Name of key number n
    #[arg(long, default_value = "counter:{n}")]
    pub key_format: String,
    /// What `load` adds to each key
    #[arg(long, default_value_t = 1)]
    pub value: i64,
    /// Stop after this many operations [default: 1000000; with --seconds no limit; with load: --keys]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub operations: Option<u64>,
    /// Stop after this many seconds (at most a day)
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: Option<u64>,
    /// Open loop: start this many operations per second, and count latency from when each should have started
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub rate: Option<u64>,
    /// Open loop: pipelines that may be unanswered on one connection; what is due beyond it is sent late
    #[arg(long, requires = "rate", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub window: u32,
    /// Open loop: what is due beyond --window is counted and never sent, so that an overload goes on as long as asked
    #[arg(long, requires = "rate")]
    pub skip_late: bool,
    /// Error replies and closed connections do not end or fail the run; they are counted
    #[arg(long)]
    pub keep_going: bool,
    /// Generator threads
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    pub threads: u32,
    /// Repeat a run: the same keys and request ids [default: random]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Process of the server, for its CPU and memory [default: asked from a server on this machine]
    #[arg(long)]
    pub server_pid: Option<u32>,
    /// Read all keys before and after, and fail unless their sum grew by what was acknowledged
    #[arg(long)]
    pub verify: bool,
    /// Write the result as JSON to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl Args {
    /// Refuses what does not go together.
    pub fn check(&self, protocol: Protocol) -> Result<()> {
        ensure!(self.threads <= self.connections, "--threads {} need as many --connections", self.threads);
        ensure!(
            self.command.is_spoken_over(protocol),
            "--command {} cannot be sent to {}://; see --help",
            self.command.name(),
            protocol.scheme()
        );
        Ok(())
    }

    /// Commands sent together.
    pub fn pipeline(&self, protocol: Protocol) -> u32 {
        self.pipeline.unwrap_or(match protocol {
            Protocol::Resp => DEFAULT_PIPELINE_RESP,
            Protocol::Http => DEFAULT_PIPELINE_HTTP,
        })
    }

    /// Divides connections, operations and rate over the threads.
    pub fn shares(&self, protocol: Protocol) -> Vec<Share> {
        let threads = u64::from(self.threads);
        let total = match (self.operations, self.seconds) {
            (Some(operations), _) => operations,
            (None, _) if self.command == Command::Load => self.keys,
            (None, Some(_)) => u64::MAX,
            (None, None) => DEFAULT_OPERATIONS,
        };
        let part = |whole: u64, index: u64| whole / threads + u64::from(index < whole % threads);
        let mut first_operation = 0;
        (0..threads)
            .map(|index| {
                let connections = part(u64::from(self.connections), index);
                let operations = part(total, index);
                let share = Share {
                    connections: connections as usize,
                    operations,
                    first_operation,
                    pipeline: self.pipeline(protocol),
                    time_limit: self.seconds.map(Duration::from_secs),
                    pace: self.pace(connections as f64 / f64::from(self.connections)),
                    keep_going: self.keep_going,
                };
                first_operation += operations;
                share
            })
            .collect()
    }

    fn pace(&self, part: f64) -> Pace {
        match self.rate {
            None => Pace::Closed,
            Some(rate) => Pace::Open {
                per_second: rate as f64 * part,
                window: self.window as usize,
                skip_late: self.skip_late,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn parse(line: &str) -> Result<Args, clap::Error> {
        Line::try_parse_from(["bench"].into_iter().chain(line.split_whitespace())).map(|line| line.args)
    }

    #[test]
    fn shares_add_up() {
        let args = parse("--threads 3 --connections 10 --operations 100 --rate 1000 --window 7 --skip-late")
            .unwrap();
        let shares = args.shares(Protocol::Resp);
        assert_eq!(shares.iter().map(|share| share.connections).collect::<Vec<_>>(), [4, 3, 3]);
        assert_eq!(shares.iter().map(|share| share.operations).collect::<Vec<_>>(), [34, 33, 33]);
        assert_eq!(shares.iter().map(|share| share.first_operation).collect::<Vec<_>>(), [0, 34, 67]);
        let rates = shares.iter().map(|share| match share.pace {
            Pace::Open { per_second, window: 7, skip_late: true } => per_second,
            ref other => panic!("{other:?}"),
        });
        assert_eq!(rates.sum::<f64>(), 1_000.0);
    }

    #[test]
    fn what_nobody_says_depends_on_the_protocol() {
        let args = parse("").unwrap();
        assert_eq!((args.pipeline(Protocol::Resp), args.pipeline(Protocol::Http)), (16, 1));
        assert_eq!(args.shares(Protocol::Resp)[0].operations, DEFAULT_OPERATIONS);
        assert_eq!(parse("--seconds 3").unwrap().shares(Protocol::Resp)[0].operations, u64::MAX);
        assert_eq!(parse("--command load --keys 9").unwrap().shares(Protocol::Resp)[0].operations, 9);
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        for line in ["--skip-late", "--window 3", "--rate 0", "--batch 0", "--connections 0"] {
            assert!(parse(line).is_err(), "{line}");
        }
        let cases = [
            ("--threads 9 --connections 8", Protocol::Resp, false),
            ("--command batch", Protocol::Resp, false),
            ("--command batch", Protocol::Http, true),
            ("--command mget100", Protocol::Http, false),
            ("--command script-id", Protocol::Http, false),
            ("--command add-id", Protocol::Http, true),
        ];
        for (line, protocol, is_fine) in cases {
            assert_eq!(parse(line).unwrap().check(protocol).is_ok(), is_fine, "{line} {protocol:?}");
        }
    }
}

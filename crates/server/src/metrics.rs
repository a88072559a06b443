//! What `/metrics` shows: calls by operation and result, their latencies, and what the engine and the RESP front say of themselves.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use quipu_counting::{Counters, Detail, Refusal, Reply};

use crate::clock::Clock;
use crate::{http, mirror, resp};

/// The labels of a call.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Call {
    operation: &'static str,
    result: &'static str,
}

/// The label of a latency.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Operation {
    operation: &'static str,
}

/// What came of asking for limits and of setting aside, as one front has told its clients. A repeat under the same request id is not counted again.
#[derive(Debug, Default)]
pub struct Outcomes {
    admitted: AtomicU64,
    over_soft_limit: AtomicU64,
    refused: AtomicU64,
    reserved: AtomicU64,
    committed: AtomicU64,
    voided: AtomicU64,
}

impl Outcomes {
    /// An attempt to acquire was answered so.
    pub fn acquired(&self, reply: &Reply) {
        let is_over =
            matches!(reply.detail.as_deref(), Some(Detail::Quota { used, limit, .. }) if used > limit);
        match reply.refusal {
            None if is_over => count(&self.over_soft_limit, reply),
            None => count(&self.admitted, reply),
            Some(Refusal::OverQuota) => count(&self.refused, reply),
            Some(_) => {}
        }
    }

    /// An attempt to set something aside was answered so.
    pub fn reserved(&self, reply: &Reply) {
        if reply.refusal.is_none() {
            count(&self.reserved, reply);
        }
    }

    /// An attempt to end a hold was answered so.
    pub fn ended(&self, is_void: bool, reply: &Reply) {
        if reply.refusal.is_none() {
            count(if is_void { &self.voided } else { &self.committed }, reply);
        }
    }
}

fn count(number: &AtomicU64, reply: &Reply) {
    if !reply.duplicate {
        number.fetch_add(1, Ordering::Relaxed);
    }
}

/// All metrics of one server.
#[derive(Debug)]
pub struct Metrics {
    /// What HTTP has told of limits and holds.
    pub outcomes: Arc<Outcomes>,
    registry: Registry,
    calls: Family<Call, Counter>,
    latencies: Family<Operation, Histogram>,
}

impl Metrics {
    /// Metrics of a server that counts with `counters` and may have a RESP front.
    pub fn new(
        counters: Arc<dyn Counters>,
        resp: Option<Arc<resp::Shared>>,
        http: Option<Arc<http::Load>>,
        mirror: Option<(Arc<mirror::Status>, Arc<Clock>)>,
    ) -> Metrics {
        let mut registry = Registry::with_prefix("quipu");
        let calls = Family::<Call, Counter>::default();
        // From 50 microseconds, doubling, to 0.8 seconds: a reply from memory, one sync, a disk in trouble.
        let latencies = Family::<Operation, Histogram>::new_with_constructor(|| {
            Histogram::new(exponential_buckets(0.000_05, 2.0, 15))
        });
        registry.register("http_requests", "Calls of the HTTP API by operation and result", calls.clone());
        registry.register("http_request_duration_seconds", "Time from head to reply", latencies.clone());
        let outcomes = Arc::new(Outcomes::default());
        let facts = Facts { outcomes: Arc::clone(&outcomes), counters, resp, http, mirror };
        registry.register_collector(Box::new(facts));
        Metrics { outcomes, registry, calls, latencies }
    }

    /// Counts and times one call.
    pub fn observe(&self, operation: &'static str, result: &'static str, took: Duration) {
        self.calls.get_or_create(&Call { operation, result }).inc();
        self.latencies.get_or_create(&Operation { operation }).observe(took.as_secs_f64());
    }

    /// The text a scraper reads.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

/// Facts that only grow; the others go up and down.
const GROWING: &[&str] = &[
    "evicted",
    "expired",
    "log_end",
    "log_durable",
    "log_syncs",
    "checkpoints",
    "checkpoint_failures",
    "checkpoint_rows",
    "cold_reads",
    "cold_id_reads",
    "pending_batches",
    "external_rounds",
    "external_calls",
    "external_requests",
    "external_retries",
    "external_failures",
    "external_breaker_opened",
    "external_lost",
    "archive_flushed_events",
    "archive_failures",
    "archive_recoveries",
    "external_stale_reads",
    "external_unreplicated",
];

/// How the names of facts begin that count what was refused; the rest of the name is the reason.
const SHED: &str = "shed_";

/// How the names of facts end that are parts of one; shown without it, and as that part.
const MILLIONTHS: &str = "_millionths";

/// What the engine and the RESP front know of themselves, asked for at each scrape.
struct Facts {
    outcomes: Arc<Outcomes>,
    counters: Arc<dyn Counters>,
    resp: Option<Arc<resp::Shared>>,
    http: Option<Arc<http::Load>>,
    mirror: Option<(Arc<mirror::Status>, Arc<Clock>)>,
}

impl fmt::Debug for Facts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Facts")
    }
}

impl Collector for Facts {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let facts = self.counters.facts();
        let (shed, facts): (Vec<_>, Vec<_>) = facts.into_iter().partition(|(name, _)| name.starts_with(SHED));
        let help = "Requests refused because too much was asked, by reason";
        let walks = self.resp.as_ref().map(|resp| ("walks", resp.background.refused()));
        let reasons = shed.iter().map(|(name, value)| (&name[SHED.len()..], *value)).chain(walks);
        encode_parts(&mut encoder, "shed", help, "reason", reasons)?;
        self.encode_outcomes(&mut encoder)?;
        let (parts, facts): (Vec<_>, Vec<_>) =
            facts.into_iter().partition(|(name, _)| name.ends_with(MILLIONTHS));
        for (name, value) in parts {
            let metric = ConstGauge::new(value as f64 / 1e6);
            let name = &name[..name.len() - MILLIONTHS.len()];
            let help = "A fact of the engine, as a ratio";
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)?;
        }
        for (name, value) in facts {
            let encode = if GROWING.contains(&name) { encode_counter } else { encode_gauge };
            encode(&mut encoder, name, "A fact of the engine", value)?;
        }
        if let Some(http) = &self.http {
            encode_http(&mut encoder, http)?;
        }
        if let Some((mirror, clock)) = &self.mirror {
            let (gauges, growing) = mirror.numbers(clock.now_ms());
            for (name, help, value) in gauges {
                encode_gauge(&mut encoder, name, help, value)?;
            }
            for (name, help, value) in growing {
                encode_counter(&mut encoder, name, help, value)?;
            }
        }
        let help = "The process, for tools on the same machine";
        encode_gauge(&mut encoder, "process_id", help, std::process::id().into())?;
        let Some(resp) = &self.resp else { return Ok(()) };
        let resp::Statistics {
            commands, connections_accepted, connections_rejected, closed, waiting, ..
        } = &resp.statistics;
        for (name, help, number) in [
            ("resp_commands", "Commands understood on the RESP port", commands),
            ("resp_connections_accepted", "Connections accepted on the RESP port", connections_accepted),
            (
                "resp_connections_rejected",
                "Connections refused because there were too many",
                connections_rejected,
            ),
        ] {
            encode_counter(&mut encoder, name, help, number.load(Ordering::Relaxed))?;
        }
        let help = "Connections closed because they took too much, by what they took";
        let reasons = [("memory", &closed.for_memory), ("stalled", &closed.stalled), ("idle", &closed.idle)];
        let reasons = reasons.map(|(reason, number)| (reason, number.load(Ordering::Relaxed)));
        encode_parts(&mut encoder, "resp_connections_closed", help, "reason", reasons.into_iter())?;
        let buffered_bytes = resp.buffered_bytes.load(Ordering::Relaxed) as u64;
        let help = "Commands and replies that RESP connections have in memory";
        encode_gauge(&mut encoder, "resp_buffered_bytes", help, buffered_bytes)?;
        encode_gauge(&mut encoder, "resp_connections", "Open RESP connections", resp.registry.len() as u64)?;
        let help = "RESP connections that wait for a counter on disk or for a slow command";
        encode_gauge(&mut encoder, "resp_waiting", help, waiting.load(Ordering::Relaxed))
    }
}

impl Facts {
    /// What both fronts have told.
    fn encode_outcomes(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let fronts = [Some(&*self.outcomes), self.resp.as_ref().map(|resp| &resp.outcomes)];
        let sum = |number: fn(&Outcomes) -> &AtomicU64| -> u64 {
            fronts.iter().flatten().map(|front| number(front).load(Ordering::Relaxed)).sum()
        };
        let help = "Attempts to acquire that were decided, by result";
        let results = [
            ("admitted", sum(|front| &front.admitted)),
            ("over_soft_limit", sum(|front| &front.over_soft_limit)),
            ("refused", sum(|front| &front.refused)),
        ];
        encode_parts(encoder, "acquires", help, "result", results.into_iter())?;
        let help =
            "Amounts set aside, and how holds were ended; those that were over by themselves are the rest";
        let results = [
            ("reserved", sum(|front| &front.reserved)),
            ("committed", sum(|front| &front.committed)),
            ("voided", sum(|front| &front.voided)),
        ];
        encode_parts(encoder, "holds", help, "result", results.into_iter())
    }
}

fn encode_http(encoder: &mut DescriptorEncoder<'_>, load: &http::Load) -> Result<(), fmt::Error> {
    let connections = load.connections.load(Ordering::Relaxed) as u64;
    encode_gauge(encoder, "http_connections", "Open HTTP connections", connections)?;
    encode_gauge(encoder, "http_watching", "HTTP clients that watch counters", load.watching() as u64)?;
    encode_gauge(encoder, "http_in_flight", "HTTP requests in flight", load.in_flight() as u64)?;
    let help = "HTTP connections refused because there were too many";
    encode_counter(
        encoder,
        "http_connections_rejected",
        help,
        load.connections_rejected.load(Ordering::Relaxed),
    )?;
    let help = "HTTP requests told to come again because there was too much";
    encode_counter(encoder, "http_requests_shed", help, load.shed.load(Ordering::Relaxed))
}

fn encode_counter(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: u64,
) -> Result<(), fmt::Error> {
    let metric = ConstCounter::new(value);
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}

/// A number in parts, told apart by a label.
fn encode_parts<'r>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    label: &'static str,
    parts: impl Iterator<Item = (&'r str, u64)>,
) -> Result<(), fmt::Error> {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (part, value) in parts {
        ConstCounter::new(value).encode(family.encode_family(&[(label, part)])?)?;
    }
    Ok(())
}

fn encode_gauge(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: u64,
) -> Result<(), fmt::Error> {
    let metric = ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX));
    metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
}

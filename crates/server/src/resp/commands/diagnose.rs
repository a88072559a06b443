//! LATENCY, SLOWLOG, MEMORY: what tools ask a Redis about its health. Nothing is recorded here that `/metrics` does not
//! have, so most answers are empty.

use quipu_wire::commands::Command;
use quipu_wire::resp::{Arguments, Encoder, errors};

use super::info::{fact, resident_bytes};
use super::{Complaint, integer};
use crate::resp::Shared;

const LOOK_AT_METRICS: &str =
    "Nothing is recorded here. Numbers about the server are in INFO and under /metrics on the HTTP port.\n";

/// Answers a subcommand of these.
pub fn answer(
    shared: &Shared,
    command: Command,
    arguments: Arguments<'_, '_>,
    encoder: &mut Encoder<'_>,
) -> Result<(), Complaint> {
    let operands = arguments.tail(2);
    match command {
        Command::LatencyDoctor | Command::MemoryDoctor => {
            encoder.verbatim(b"txt", LOOK_AT_METRICS.as_bytes());
        }
        Command::LatencyGraph => {
            return Err(errors::quoting("ERR No samples available for event '", operands.name(), "'").into());
        }
        Command::LatencyHistogram => encoder.map(0),
        Command::LatencyReset | Command::SlowLogLen => encoder.integer(0),
        Command::SlowLogGet => {
            if operands.len() > 1 {
                return Err(
                    errors::unknown_or_wrong_arity("slowlog", arguments.get(1).unwrap_or_default()).into()
                );
            }
            let count = operands.get(0).map_or(Ok(0), integer);
            if !count.is_ok_and(|count| count >= -1) {
                return Err("ERR count should be greater than or equal to -1".into());
            }
            encoder.array(0);
        }
        Command::SlowLogReset | Command::MemoryPurge => encoder.ok(),
        Command::MemoryStats => memory(shared, encoder),
        _ => encoder.array(0),
    }
    Ok(())
}

/// MEMORY STATS: the fields of Redis that mean something here.
fn memory(shared: &Shared, encoder: &mut Encoder<'_>) {
    let facts = shared.counters.facts();
    let (resident, counters) = (resident_bytes(), fact(&facts, "counters"));
    let dataset = fact(&facts, "memory_bytes");
    let fields = [
        ("total.allocated", resident),
        ("clients.normal", shared.buffered_bytes.load(std::sync::atomic::Ordering::Relaxed) as u64),
        ("keys.count", counters),
        ("keys.bytes-per-key", dataset.checked_div(fact(&facts, "counters_in_memory")).unwrap_or(0)),
        ("dataset.bytes", dataset),
    ];
    encoder.map(fields.len());
    for (name, number) in fields {
        encoder.bulk(name.as_bytes());
        encoder.integer(i64::try_from(number).unwrap_or(i64::MAX));
    }
}

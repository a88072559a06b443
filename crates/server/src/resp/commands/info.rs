//! INFO: the server described in lines of `name:value`, in sections.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::atomic::Ordering;

use quipu_wire::resp::Arguments;

use crate::resp::pressure::Closed;
use crate::resp::{REDIS_VERSION, Shared};

/// Writes one section's lines, without its title.
type Section = fn(&Shared, &mut String) -> std::fmt::Result;

/// The sections, in the order they are shown.
const SECTIONS: [(&str, Section); 8] = [
    ("Server", server),
    ("Clients", clients),
    ("Memory", memory),
    ("Persistence", persistence),
    ("Stats", stats),
    ("Replication", replication),
    ("Cluster", cluster),
    ("Keyspace", keyspace),
];

/// The text for the sections asked for; no names, `all`, `default` and `everything` mean all of them.
pub fn text(shared: &Shared, names: Arguments<'_, '_>) -> String {
    let wanted: BTreeSet<Vec<u8>> = names.iter().map(<[u8]>::to_ascii_lowercase).collect();
    let everything = wanted.is_empty()
        || [&b"all"[..], b"default", b"everything"].iter().any(|name| wanted.contains(*name));
    let mut text = String::new();
    for (title, section) in SECTIONS {
        if everything || wanted.contains(title.to_ascii_lowercase().as_bytes()) {
            if !text.is_empty() {
                text.push_str("\r\n");
            }
            // Writing to a string cannot fail.
            let _ = write!(text, "# {title}\r\n").and_then(|()| section(shared, &mut text));
        }
    }
    text
}

fn server(shared: &Shared, out: &mut String) -> std::fmt::Result {
    let now_ms = shared.clock.now_ms();
    let uptime_s = now_ms.saturating_sub(shared.started_at_ms) / 1000;
    write!(out, "redis_version:{REDIS_VERSION}\r\nquipu_version:{}\r\n", env!("CARGO_PKG_VERSION"))?;
    write!(out, "redis_mode:standalone\r\nos:{} {}\r\n", std::env::consts::OS, std::env::consts::ARCH)?;
    write!(out, "arch_bits:{}\r\nmultiplexing_api:epoll\r\n", usize::BITS)?;
    write!(out, "process_id:{}\r\nrun_id:{}\r\n", std::process::id(), shared.run_id)?;
    write!(out, "tcp_port:{}\r\nserver_time_usec:{}\r\n", shared.address.port(), now_ms * 1000)?;
    write!(out, "uptime_in_seconds:{uptime_s}\r\nuptime_in_days:{}\r\n", uptime_s / 86_400)?;
    write!(out, "io_threads_active:{}\r\n", shared.inboxes.len())
}

fn clients(shared: &Shared, out: &mut String) -> std::fmt::Result {
    let max = shared.connections_max.load(Ordering::Relaxed);
    write!(
        out,
        "connected_clients:{}\r\ncluster_connections:0\r\nmaxclients:{max}\r\n",
        shared.registry.len()
    )?;
    write!(out, "blocked_clients:{}\r\n", shared.statistics.waiting.load(Ordering::Relaxed))
}

fn memory(shared: &Shared, out: &mut String) -> std::fmt::Result {
    let resident_bytes = resident_bytes();
    write!(out, "used_memory:{resident_bytes}\r\nused_memory_rss:{resident_bytes}\r\n")?;
    let buffered_bytes = shared.buffered_bytes.load(Ordering::Relaxed);
    write!(out, "mem_clients_normal:{buffered_bytes}\r\n")?;
    write!(out, "maxmemory:0\r\nmaxmemory_policy:noeviction\r\n")
}

/// What the operating system says this process holds; 0 where it does not say.
fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok();
    let pages: Option<u64> = pages.and_then(|text| text.split_whitespace().nth(1)?.parse().ok());
    // The size of a page on every machine this is built for.
    pages.unwrap_or(0) * 4096
}

fn persistence(shared: &Shared, out: &mut String) -> std::fmt::Result {
    write!(out, "loading:0\r\naof_enabled:1\r\nrdb_bgsave_in_progress:0\r\naof_rewrite_in_progress:0\r\n")?;
    write!(out, "durability:{}\r\n", shared.options.durability)
}

fn stats(shared: &Shared, out: &mut String) -> std::fmt::Result {
    let statistics = &shared.statistics;
    write!(
        out,
        "total_connections_received:{}\r\n",
        statistics.connections_accepted.load(Ordering::Relaxed)
    )?;
    write!(out, "total_commands_processed:{}\r\n", statistics.commands.load(Ordering::Relaxed))?;
    write!(out, "rejected_connections:{}\r\n", statistics.connections_rejected.load(Ordering::Relaxed))?;
    let Closed { for_memory, stalled, idle } = &statistics.closed;
    write!(out, "client_memory_disconnections:{}\r\n", for_memory.load(Ordering::Relaxed))?;
    write!(out, "client_stalled_disconnections:{}\r\n", stalled.load(Ordering::Relaxed))?;
    write!(out, "client_idle_disconnections:{}\r\n", idle.load(Ordering::Relaxed))?;
    for (name, number) in shared.counters.facts() {
        write!(out, "{name}:{number}\r\n")?;
    }
    Ok(())
}

fn replication(_: &Shared, out: &mut String) -> std::fmt::Result {
    write!(out, "role:master\r\nconnected_slaves:0\r\n")
}

fn cluster(_: &Shared, out: &mut String) -> std::fmt::Result {
    write!(out, "cluster_enabled:0\r\n")
}

fn keyspace(shared: &Shared, out: &mut String) -> std::fmt::Result {
    match shared.counters.facts().into_iter().find(|(name, _)| *name == "counters") {
        Some((_, count)) if count > 0 => write!(out, "db0:keys={count},expires=0,avg_ttl=0\r\n"),
        _ => Ok(()),
    }
}

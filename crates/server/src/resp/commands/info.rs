//! INFO: the server described in lines of `name:value`, in sections. Names are those of Redis, as far as they mean
//! something here; what a monitor would read wrongly is left out.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::atomic::Ordering;

use quipu_wire::commands::ROWS;
use quipu_wire::resp::Arguments;

use crate::resp::pressure::Closed;
use crate::resp::session::Card;
use crate::resp::{Calls, REDIS_VERSION, Shared};

/// Writes one section's lines, without its title.
type Section = fn(&Shared, &Card, &mut String) -> std::fmt::Result;

/// The sections, in the order they are shown, and whether they are shown unasked.
const SECTIONS: [(&str, Section, bool); 11] = [
    ("Server", server, true),
    ("Clients", clients, true),
    ("Memory", memory, true),
    ("Persistence", persistence, true),
    ("Stats", stats, true),
    ("Replication", replication, true),
    ("CPU", cpu, true),
    ("Modules", modules, true),
    ("Commandstats", command_stats, false),
    ("Cluster", cluster, true),
    ("Keyspace", keyspace, true),
];

/// The text for the sections asked for.
pub fn text(shared: &Shared, card: &Card, names: Arguments<'_, '_>) -> String {
    let wanted: BTreeSet<Vec<u8>> = names.iter().map(<[u8]>::to_ascii_lowercase).collect();
    let has = |name: &str| wanted.contains(name.as_bytes());
    let everything = has("all") || has("everything");
    let defaults = everything || wanted.is_empty() || has("default");
    let mut text = String::new();
    for (title, section, is_default) in SECTIONS {
        if everything || (defaults && is_default) || has(&title.to_ascii_lowercase()) {
            if !text.is_empty() {
                text.push_str("\r\n");
            }
            // Writing to a string cannot fail.
            let _ = write!(text, "# {title}\r\n").and_then(|()| section(shared, card, &mut text));
        }
    }
    text
}

/// One of the engine's facts; 0 if it has no such one.
pub fn fact(facts: &[(&'static str, u64)], name: &str) -> u64 {
    facts.iter().find(|(found, _)| *found == name).map_or(0, |(_, number)| *number)
}

fn server(shared: &Shared, card: &Card, out: &mut String) -> std::fmt::Result {
    let now_ms = shared.clock.now_ms();
    let uptime_s = now_ms.saturating_sub(shared.started_at_ms) / 1000;
    write!(out, "redis_version:{REDIS_VERSION}\r\nquipu_version:{}\r\n", env!("CARGO_PKG_VERSION"))?;
    write!(out, "redis_mode:{}\r\nos:{} {}\r\n", card.mode(), std::env::consts::OS, std::env::consts::ARCH)?;
    write!(out, "arch_bits:{}\r\nmultiplexing_api:epoll\r\n", usize::BITS)?;
    write!(out, "process_id:{}\r\nrun_id:{}\r\n", std::process::id(), shared.run_id)?;
    write!(out, "tcp_port:{}\r\nserver_time_usec:{}\r\n", card.local.port(), now_ms * 1000)?;
    write!(out, "uptime_in_seconds:{uptime_s}\r\nuptime_in_days:{}\r\n", uptime_s / 86_400)?;
    let executable = std::env::current_exe().unwrap_or_default();
    write!(out, "executable:{}\r\nconfig_file:\r\n", executable.display())?;
    write!(out, "io_threads_active:{}\r\n", shared.inboxes.len())
}

fn clients(shared: &Shared, _: &Card, out: &mut String) -> std::fmt::Result {
    let max = shared.connections_max.load(Ordering::Relaxed);
    write!(
        out,
        "connected_clients:{}\r\ncluster_connections:0\r\nmaxclients:{max}\r\n",
        shared.registry.len()
    )?;
    write!(out, "blocked_clients:{}\r\n", shared.statistics.waiting.load(Ordering::Relaxed))?;
    write!(out, "tracking_clients:0\r\nclients_in_timeout_table:0\r\n")
}

fn memory(shared: &Shared, _: &Card, out: &mut String) -> std::fmt::Result {
    let (resident, peak) = (resident_bytes(), kilobytes("/proc/self/status", "VmHWM:"));
    let facts = shared.counters.facts();
    for (name, bytes) in [
        ("used_memory", resident),
        ("used_memory_rss", resident),
        ("used_memory_peak", peak.max(resident)),
        ("used_memory_dataset", fact(&facts, "memory_bytes")),
        ("total_system_memory", kilobytes("/proc/meminfo", "MemTotal:")),
        ("maxmemory", 0),
    ] {
        write!(out, "{name}:{bytes}\r\n{name}_human:{}\r\n", human(bytes))?;
    }
    write!(out, "maxmemory_policy:noeviction\r\n")?;
    write!(out, "mem_clients_normal:{}\r\n", shared.buffered_bytes.load(Ordering::Relaxed))?;
    write!(out, "mem_allocator:mimalloc\r\n")
}

/// What the operating system says this process holds; 0 where it does not say.
pub fn resident_bytes() -> u64 {
    kilobytes("/proc/self/status", "VmRSS:")
}

/// The bytes of a line such as `VmRSS:  1234 kB`; 0 if there is none.
fn kilobytes(file: &str, name: &str) -> u64 {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let number = text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next());
    number.and_then(|number| number.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// As Redis shows bytes to people.
fn human(bytes: u64) -> String {
    let units = [(1u64 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")];
    match units.into_iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => format!("{:.2}{name}", bytes as f64 / unit as f64),
        None => format!("{bytes}B"),
    }
}

fn persistence(shared: &Shared, _: &Card, out: &mut String) -> std::fmt::Result {
    write!(out, "loading:0\r\nasync_loading:0\r\nrdb_bgsave_in_progress:0\r\nrdb_last_bgsave_status:ok\r\n")?;
    write!(out, "aof_enabled:1\r\naof_rewrite_in_progress:0\r\naof_rewrite_scheduled:0\r\n")?;
    write!(out, "aof_last_bgrewrite_status:ok\r\naof_last_write_status:ok\r\n")?;
    write!(out, "durability:{}\r\n", shared.options.durability)
}

fn stats(shared: &Shared, _: &Card, out: &mut String) -> std::fmt::Result {
    let (statistics, facts) = (&shared.statistics, shared.counters.facts());
    let commands = statistics.commands.load(Ordering::Relaxed);
    let accepted = statistics.connections_accepted.load(Ordering::Relaxed);
    write!(out, "total_connections_received:{accepted}\r\ntotal_commands_processed:{commands}\r\n")?;
    let rate = statistics.rate.lock().since_last(commands, shared.clock.now_ms());
    write!(out, "instantaneous_ops_per_sec:{rate}\r\n")?;
    write!(out, "rejected_connections:{}\r\n", statistics.connections_rejected.load(Ordering::Relaxed))?;
    let Closed { for_memory, stalled, idle } = &statistics.closed;
    write!(out, "client_memory_disconnections:{}\r\n", for_memory.load(Ordering::Relaxed))?;
    write!(out, "client_stalled_disconnections:{}\r\n", stalled.load(Ordering::Relaxed))?;
    write!(out, "client_idle_disconnections:{}\r\n", idle.load(Ordering::Relaxed))?;
    write!(out, "expired_keys:{}\r\nevicted_keys:0\r\n", fact(&facts, "expired"))?;
    write!(out, "pubsub_channels:0\r\npubsub_patterns:0\r\n")?;
    for (name, number) in facts {
        write!(out, "{name}:{number}\r\n")?;
    }
    Ok(())
}

fn replication(shared: &Shared, _: &Card, out: &mut String) -> std::fmt::Result {
    write!(out, "role:master\r\nconnected_slaves:0\r\nmaster_failover_state:no-failover\r\n")?;
    write!(out, "master_replid:{}\r\nmaster_replid2:{:040}\r\n", shared.run_id, 0)?;
    write!(out, "master_repl_offset:0\r\nsecond_repl_offset:-1\r\nrepl_backlog_active:0\r\n")
}

/// Time on processors, which the system counts in hundredths of a second.
fn cpu(_: &Shared, _: &Card, out: &mut String) -> std::fmt::Result {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The second field is the name of the program, in parentheses, and may hold anything.
    let fields: Vec<&str> = text.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let seconds = |at: usize| {
        let hundredths = fields.get(at).and_then(|field| field.parse::<f64>().ok());
        hundredths.unwrap_or(0.0) / 100.0
    };
    write!(out, "used_cpu_sys:{:.6}\r\nused_cpu_user:{:.6}\r\n", seconds(12), seconds(11))
}

fn modules(_: &Shared, _: &Card, _: &mut String) -> std::fmt::Result {
    Ok(())
}

/// Calls alone: commands of many connections are executed together, so one of them has no time of its own. Those who
/// read this want every field; what is not counted is 0.
fn command_stats(shared: &Shared, _: &Card, out: &mut String) -> std::fmt::Result {
    for spec in ROWS {
        let calls: u64 = shared.calls.iter().map(|calls: &Calls| calls.of(spec.command)).sum();
        if calls > 0 {
            let name = spec.name;
            write!(
                out,
                "cmdstat_{name}:calls={calls},usec=0,usec_per_call=0.00,rejected_calls=0,failed_calls=0\r\n"
            )?;
        }
    }
    Ok(())
}

fn cluster(_: &Shared, card: &Card, out: &mut String) -> std::fmt::Result {
    write!(out, "cluster_enabled:{}\r\n", u8::from(card.is_of_cluster))
}

fn keyspace(shared: &Shared, _: &Card, out: &mut String) -> std::fmt::Result {
    match fact(&shared.counters.facts(), "counters") {
        0 => Ok(()),
        count => write!(out, "db0:keys={count},expires=0,avg_ttl=0\r\n"),
    }
}

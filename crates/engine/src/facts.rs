//! Numbers about a running engine, by name.

use std::sync::atomic::Ordering;

use crate::engine::Engine;
use crate::trail::SPACE_PREFIX;

/// All facts. Cheap enough for every scrape: one short lock per partition.
pub fn facts(engine: &Engine) -> Vec<(&'static str, u64)> {
    let (mut counters, mut hot, mut memory, mut evicted, mut ids, mut id_tags, mut producers) =
        (0, 0, 0, 0, 0, 0, 0);
    let (mut audit_rows_recent, mut audit_bytes_recent) = (0, 0);
    for partition in &engine.partitions {
        let held = partition.lock();
        let (whole, tags) = held.ids.counts();
        counters += held.count;
        hot += held.table.len() as u64;
        memory += held.allocated_bytes() as u64;
        evicted += held.evicted;
        ids += whole as u64;
        id_tags += tags as u64;
        producers += held.sessions.len() as u64;
        audit_rows_recent += held.trail.len() as u64;
        audit_bytes_recent += held.trail.bytes() as u64;
    }
    let cold = engine.cold.stats();
    let (audit_rows, audit_disk_bytes) = engine.cold.sizes(SPACE_PREFIX);
    let counts = &engine.counts;
    let (waiting, refused_full, refused_late) = engine.pool.get().map_or((0, 0, 0), |pool| {
        (pool.requests() as u64, pool.refused().full.get(), pool.refused().late.get())
    });
    vec![
        ("counters", counters),
        ("counters_in_memory", hot),
        ("memory_bytes", memory),
        ("memory_budget_bytes", (engine.partition_budget_bytes * engine.partitions.len()) as u64),
        ("evicted", evicted),
        ("expired", counts.expired.get()),
        ("request_ids_recent", ids),
        ("request_ids_on_disk", id_tags),
        ("producers", producers),
        ("audit_rows_recent", audit_rows_recent),
        ("audit_bytes_recent", audit_bytes_recent),
        ("audit_rows_on_disk", audit_rows),
        ("audit_bytes_on_disk", audit_disk_bytes),
        ("policies", engine.partitions[0].lock().policies.len() as u64),
        ("partitions", engine.partitions.len() as u64),
        ("log_end", engine.log.end()),
        ("log_durable", engine.log.durable()),
        ("log_tail_bytes", engine.log.end().saturating_sub(engine.oldest_cut.load(Ordering::Acquire))),
        ("log_syncs", engine.log.syncs()),
        ("checkpoints", counts.checkpoints.get()),
        ("checkpoint_failures", counts.checkpoint_failures.get()),
        ("checkpoint_rows", counts.checkpoint_rows.get()),
        ("cold_reads", counts.cold_reads.get()),
        ("cold_id_reads", counts.cold_id_reads.get()),
        ("cold_rows", cold.rows),
        ("cold_disk_bytes", cold.disk_bytes),
        ("cold_cache_bytes", cold.cache_bytes),
        ("pending_batches", counts.pending_batches.get()),
        ("pending_requests", waiting),
        ("hot_counters", engine.hot_facts.counters.load(Ordering::Relaxed)),
        ("hot_top_share_millionths", engine.hot_facts.top_share_millionths.load(Ordering::Relaxed)),
        ("partition_skew_millionths", engine.hot_facts.skew_millionths.load(Ordering::Relaxed)),
        ("shed_queue_full", refused_full),
        ("shed_queue_wait", refused_late),
    ]
}

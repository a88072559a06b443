//! Counters in stripes: a row for each stripe, as the streams of their groups tell of it, and a total that is added up from those rows some time later,
//! since no stream knows more than one stripe.

use quipu_counting::{Cell, NEVER};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Transaction};

use super::ArchiveError;
use super::change::Change;
use super::rows::business;

/// Totals that are added up in one transaction.
const COMPACT_ROWS: i64 = 500;

/// The last change of a stripe.
pub(super) struct Shard<'a> {
    pub(super) change: &'a Change,
    pub(super) stripe: u16,
    /// How many stripes the counter has.
    pub(super) stripes: u16,
}

/// Brings stripes to their rows, and notes that their totals are to be added up. Who adds up waits for who holds such a note, so none is lost; and
/// notes are taken in the order of keys, so that those who flush do not wait for each other in a circle.
pub(super) async fn write(
    rows: &Transaction<'_>,
    mut shards: Vec<Shard<'_>>,
    event_id: i64,
) -> Result<(), ArchiveError> {
    if shards.is_empty() {
        return Ok(());
    }
    shards.sort_unstable_by(|one, other| one.change.key.cmp(&other.change.key));
    let keys: Vec<&[u8]> = shards.iter().map(|shard| &shard.change.key[..]).collect();
    let dirty = "INSERT INTO counter_dirty (counter_key, event_id) SELECT key, $2 FROM unnest($1::bytea[]) AS given (key)
        ON CONFLICT (counter_key) DO UPDATE SET event_id = greatest(counter_dirty.event_id, excluded.event_id)";
    rows.execute(dirty, &[&keys, &event_id]).await?;
    let (gone, there): (Vec<Shard<'_>>, Vec<Shard<'_>>) =
        shards.into_iter().partition(|shard| shard.change.has_ended());
    let keys_of = |shards: &[Shard<'_>]| -> Vec<Vec<u8>> {
        shards.iter().map(|shard| shard.change.key.clone()).collect()
    };
    let stripes_of =
        |shards: &[Shard<'_>]| -> Vec<i32> { shards.iter().map(|shard| i32::from(shard.stripe)).collect() };
    let keys = keys_of(&there);
    let kinds: Vec<String> = keys.iter().map(|key| business(key)).collect();
    let counts: Vec<i32> = there.iter().map(|shard| i32::from(shard.stripes)).collect();
    let meta = "INSERT INTO counter_meta (counter_key, biz_type, shard_count)
        SELECT * FROM unnest($1::bytea[], $2::text[], $3::int[])
        ON CONFLICT (counter_key) DO UPDATE SET status = 1, shard_count = excluded.shard_count, updated_at = now()
        WHERE counter_meta.status <> 1 OR counter_meta.shard_count <> excluded.shard_count";
    rows.execute(meta, &[&keys, &kinds, &counts]).await?;
    let of = |number: fn(&Cell) -> i64| -> Vec<i64> {
        there.iter().map(|shard| number(&shard.change.cell)).collect()
    };
    let (values, versions, births) =
        (of(|cell| cell.value), of(|cell| cell.version as i64), of(|cell| cell.birth as i64));
    let updated = of(|cell| cell.updated_at_ms as i64);
    // Stripes get no expiry, but a counter may have had one before it got stripes.
    let expiry = |shard: &Shard<'_>| {
        let at_ms = shard.change.cell.expires_at_ms;
        (at_ms != NEVER).then(|| at_ms.to_string())
    };
    let expires: Vec<Option<String>> = there.iter().map(expiry).collect();
    let insert = "INSERT INTO counter_shard_snapshot
            (counter_key, shard_id, value, version, birth, updated_at, expires_at_ms)
        SELECT key, stripe, value, version, birth, to_timestamp(updated / 1000.0), expires::numeric
        FROM unnest($1::bytea[], $2::int[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::text[])
            AS given (key, stripe, value, version, birth, updated, expires)
        ON CONFLICT (counter_key, shard_id) DO UPDATE SET value = excluded.value, version = excluded.version,
            birth = excluded.birth, updated_at = excluded.updated_at, expires_at_ms = excluded.expires_at_ms";
    let given: [&(dyn ToSql + Sync); 7] =
        [&keys, &stripes_of(&there), &values, &versions, &births, &updated, &expires];
    rows.execute(insert, &given).await?;
    if !gone.is_empty() {
        let delete =
            "DELETE FROM counter_shard_snapshot USING unnest($1::bytea[], $2::int[]) AS given (key, stripe)
            WHERE counter_key = key AND shard_id = stripe";
        rows.execute(delete, &[&keys_of(&gone), &stripes_of(&gone)]).await?;
    }
    Ok(())
}

/// Adds up some totals. Returns how many.
pub(super) async fn compact(client: &mut Client) -> Result<u64, ArchiveError> {
    let rows = client.transaction().await?;
    let take = "DELETE FROM counter_dirty WHERE counter_key IN (
            SELECT counter_key FROM counter_dirty ORDER BY counter_key LIMIT $1 FOR UPDATE SKIP LOCKED)
        RETURNING counter_key, event_id";
    let taken = rows.query(take, &[&COMPACT_ROWS]).await?;
    if taken.is_empty() {
        return Ok(0);
    }
    let keys: Vec<&[u8]> = taken.iter().map(|row| row.get(0)).collect();
    let events: Vec<i64> = taken.iter().map(|row| row.get(1)).collect();
    // A statement of its own, which sees all that was there when the notes were taken.
    let totals = "INSERT INTO counter_total_snapshot (counter_key, total_value, watermark_event_id, updated_at)
        SELECT key, least(greatest(sum(value), -9223372036854775808), 9223372036854775807)::bigint, max(event), now()
        FROM unnest($1::bytea[], $2::bigint[]) AS given (key, event)
            JOIN counter_shard_snapshot ON counter_key = key
        GROUP BY key
        ON CONFLICT (counter_key) DO UPDATE SET total_value = excluded.total_value,
            watermark_event_id = excluded.watermark_event_id, updated_at = excluded.updated_at";
    rows.execute(totals, &[&keys, &events]).await?;
    let is_gone = "NOT EXISTS (SELECT FROM counter_shard_snapshot AS shard WHERE shard.counter_key = whole.counter_key)";
    for statement in [
        format!("DELETE FROM counter_total_snapshot AS whole WHERE counter_key = ANY($1) AND {is_gone}"),
        format!(
            "UPDATE counter_meta AS whole SET status = 0, updated_at = now() WHERE counter_key = ANY($1) AND {is_gone}"
        ),
    ] {
        rows.execute(&statement, &[&keys]).await?;
    }
    rows.commit().await?;
    Ok(taken.len() as u64)
}

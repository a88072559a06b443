//! Changes as rows: counters, what was asked under ids, and, if wanted, every change.

use std::collections::HashMap;

use quipu_counting::{Cell, NEVER};
use tokio_postgres::Transaction;
use tokio_postgres::types::ToSql;

use super::ArchiveError;
use super::change::Change;
use super::shards::{self, Shard};
use super::streams::Place;
use crate::stripes::{Stripes, stripe_in};

/// Brings counters to their rows as they are after these changes.
pub(super) async fn write(
    rows: &Transaction<'_>,
    stripes: &Stripes,
    group: u16,
    to: Place,
    changes: &[Change],
) -> Result<(), ArchiveError> {
    // Of each counter only the last state matters.
    let mut last: HashMap<&[u8], &Change> = changes.iter().map(|change| (&change.key[..], change)).collect();
    let striped: Vec<Shard<'_>> = last
        .extract_if(|key, _| stripe_in(key, group) != 0 || stripes.widest(key) > 1)
        .map(|(key, change)| Shard { change, stripe: stripe_in(key, group), stripes: stripes.widest(key) })
        .collect();
    shards::write(rows, striped, to.number()).await?;
    let there: Vec<(&[u8], &Cell)> = last
        .iter()
        .filter(|(_, change)| !change.has_ended())
        .map(|(key, change)| (*key, &change.cell))
        .collect();
    let gone: Vec<&[u8]> =
        last.iter().filter(|(_, change)| change.has_ended()).map(|(key, _)| *key).collect();
    let keys: Vec<&[u8]> = there.iter().map(|(key, _)| *key).collect();
    let of = |number: fn(&Cell) -> i64| -> Vec<i64> { there.iter().map(|(_, cell)| number(cell)).collect() };
    let (values, versions, births) =
        (of(|cell| cell.value), of(|cell| cell.version as i64), of(|cell| cell.birth as i64));
    let updated: Vec<f64> = there.iter().map(|(_, cell)| cell.updated_at_ms as f64 / 1000.0).collect();
    let expires: Vec<Option<String>> = there
        .iter()
        .map(|(_, cell)| (cell.expires_at_ms != NEVER).then(|| cell.expires_at_ms.to_string()))
        .collect();
    let kinds: Vec<String> = keys.iter().map(|key| business(key)).collect();
    let meta = "INSERT INTO counter_meta (counter_key, biz_type)
        SELECT * FROM unnest($1::bytea[], $2::text[])
        ON CONFLICT (counter_key) DO UPDATE SET status = 1, updated_at = now() WHERE counter_meta.status <> 1";
    rows.execute(meta, &[&keys, &kinds]).await?;
    let shards = "INSERT INTO counter_shard_snapshot
            (counter_key, shard_id, value, version, birth, updated_at, expires_at_ms)
        SELECT key, 0, value, version, birth, to_timestamp(updated), expires::numeric
        FROM unnest($1::bytea[], $2::bigint[], $3::bigint[], $4::bigint[], $5::float8[], $6::text[])
            AS given (key, value, version, birth, updated, expires)
        ON CONFLICT (counter_key, shard_id) DO UPDATE SET value = excluded.value, version = excluded.version,
            birth = excluded.birth, updated_at = excluded.updated_at, expires_at_ms = excluded.expires_at_ms";
    rows.execute(shards, &[&keys, &values, &versions, &births, &updated, &expires]).await?;
    let totals =
        "INSERT INTO counter_total_snapshot (counter_key, total_value, watermark_event_id, updated_at)
        SELECT key, value, $3::bigint, now() FROM unnest($1::bytea[], $2::bigint[]) AS given (key, value)
        ON CONFLICT (counter_key) DO UPDATE SET total_value = excluded.total_value,
            watermark_event_id = excluded.watermark_event_id, updated_at = excluded.updated_at";
    rows.execute(totals, &[&keys, &values, &to.number()]).await?;
    if !gone.is_empty() {
        for statement in [
            "DELETE FROM counter_shard_snapshot WHERE counter_key = ANY($1)",
            "DELETE FROM counter_total_snapshot WHERE counter_key = ANY($1)",
            "UPDATE counter_meta SET status = 0, updated_at = now() WHERE counter_key = ANY($1)",
        ] {
            rows.execute(statement, &[&gone]).await?;
        }
    }
    Ok(())
}

/// From when on ids are remembered.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Since {
    /// Their changes were told just now.
    Now,
    /// Each since its change.
    Change,
}

/// Brings what was asked under ids to its rows.
pub(super) async fn write_ids<'a>(
    rows: &Transaction<'_>,
    group: u16,
    changes: impl IntoIterator<Item = &'a Change>,
    since: Since,
) -> Result<(), ArchiveError> {
    let asked: HashMap<_, _> = changes
        .into_iter()
        .filter_map(|change| {
            let request = change.request.as_ref()?;
            Some((
                (&change.key[..], &request.id[..], i64::from(request.index)),
                (change, request.fingerprint),
            ))
        })
        .collect();
    if asked.is_empty() {
        return Ok(());
    }
    let asked: Vec<_> = asked.into_iter().collect();
    let keys: Vec<&[u8]> = asked.iter().map(|((key, _, _), _)| *key).collect();
    let ids: Vec<&[u8]> = asked.iter().map(|((_, id, _), _)| *id).collect();
    let indexes: Vec<i64> = asked.iter().map(|((_, _, index), _)| *index).collect();
    let prints: Vec<String> = asked.iter().map(|(_, (_, print))| print.to_string()).collect();
    let deltas: Vec<String> = asked.iter().map(|(_, (change, _))| change.difference.to_string()).collect();
    let values: Vec<i64> = asked.iter().map(|(_, (change, _))| change.cell.value).collect();
    let versions: Vec<i64> = asked.iter().map(|(_, (change, _))| change.cell.version as i64).collect();
    let births: Vec<i64> = asked.iter().map(|(_, (change, _))| change.cell.birth as i64).collect();
    let insert = "INSERT INTO counter_idempotency
            (counter_key, request_id, request_index, fingerprint, delta, value, version, birth, shard_id,
            created_at)
        SELECT key, id, place, print::numeric, delta::numeric, value, version, birth, stripe,
            coalesce(to_timestamp(since), now())
        FROM unnest($1::bytea[], $2::bytea[], $3::bigint[], $4::text[], $5::text[], $6::bigint[],
            $7::bigint[], $8::bigint[], $9::int[], $10::float8[])
            AS given (key, id, place, print, delta, value, version, birth, stripe, since)
        ON CONFLICT (counter_key, request_id, request_index, shard_id) DO UPDATE SET
            fingerprint = excluded.fingerprint, delta = excluded.delta, value = excluded.value,
            version = excluded.version, birth = excluded.birth, created_at = excluded.created_at";
    let stripes: Vec<i32> = keys.iter().map(|key| i32::from(stripe_in(key, group))).collect();
    let seconds = |change: &Change| change.cell.updated_at_ms as f64 / 1000.0;
    let sinces: Vec<Option<f64>> =
        asked.iter().map(|(_, (change, _))| (since == Since::Change).then(|| seconds(change))).collect();
    let given: [&(dyn ToSql + Sync); 10] =
        [&keys, &ids, &indexes, &prints, &deltas, &values, &versions, &births, &stripes, &sinces];
    rows.execute(insert, &given).await?;
    Ok(())
}

/// Every change, for the log.
pub(super) async fn write_log(
    rows: &Transaction<'_>,
    group: u16,
    changes: &[Change],
) -> Result<(), ArchiveError> {
    let keys: Vec<&[u8]> = changes.iter().map(|change| &change.key[..]).collect();
    let deltas: Vec<String> = changes.iter().map(|change| change.difference.to_string()).collect();
    let ids: Vec<Option<&[u8]>> =
        changes.iter().map(|change| change.request.as_ref().map(|asked| &asked.id[..])).collect();
    let times: Vec<f64> = changes.iter().map(|change| change.cell.updated_at_ms as f64 / 1000.0).collect();
    let stripes: Vec<i32> = keys.iter().map(|key| i32::from(stripe_in(key, group))).collect();
    let log = "INSERT INTO counter_delta_log (counter_key, shard_id, delta, request_id, event_time)
        SELECT key, stripe, delta::numeric, id, to_timestamp(happened)
        FROM unnest($1::bytea[], $2::int[], $3::text[], $4::bytea[], $5::float8[])
            AS given (key, stripe, delta, id, happened)";
    rows.execute(log, &[&keys, &stripes, &deltas, &ids, &times]).await?;
    Ok(())
}

/// The business that a key of the recommended form, `counter:{biz}:{entity}:...`, names.
pub(super) fn business(key: &[u8]) -> String {
    let mut parts = key.splitn(3, |byte| *byte == b':');
    match (parts.next(), parts.next()) {
        (Some(b"counter"), Some(business)) => String::from_utf8_lossy(business).replace('\0', ""),
        _ => String::new(),
    }
}

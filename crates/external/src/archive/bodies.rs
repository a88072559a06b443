//! What counters have beyond their numbers. The streams say only that a body has changed, since a body may be large and changes often;
//! so it is read when the change is flushed, together with the numbers of that moment, which is at or after the change.

use std::collections::HashMap;

use quipu_counting::{Body, Cell, NEVER};
use tokio_postgres::Transaction;

use super::ArchiveError;
use super::change::Change;
use crate::call::stored_parts;
use crate::wholes::EventKind;

/// A key, and what lies in Redis under it.
pub(super) type Stored = (Vec<u8>, Vec<u8>);

/// The keys of counters that have a body after all of these changes.
pub(super) fn changed(changes: &[Change]) -> Vec<&[u8]> {
    last_kinds(changes).into_iter().filter(|(_, kind)| *kind == EventKind::Body).map(|(key, _)| key).collect()
}

/// What the last change of each counter was.
fn last_kinds(changes: &[Change]) -> HashMap<&[u8], EventKind> {
    changes.iter().map(|change| (&change.key[..], change.kind)).collect()
}

/// A body with the numbers of its moment.
struct Row<'a> {
    key: &'a [u8],
    cell: Cell,
    kind: &'static str,
    body: &'a [u8],
}

impl Row<'_> {
    /// None if the counter has no body any more, of which the stream will tell.
    fn of((key, stored): &Stored) -> Option<Row<'_>> {
        let (cell, body) = stored_parts(stored)?;
        let body = body?;
        Some(Row { key, cell, kind: Body::kind_of(body)?.name(), body })
    }
}

/// How far a counter is: comes later in the life of its key, or in a later one.
pub(super) fn stamp(cell: &Cell) -> (u64, u64) {
    (cell.birth, cell.version)
}

/// How far these are, as they will be in their table.
pub(super) fn stamps(stored: &[Stored]) -> HashMap<&[u8], (u64, u64)> {
    stored.iter().filter_map(Row::of).map(|row| (row.key, stamp(&row.cell))).collect()
}

/// Brings bodies to their table, and takes out those of counters that have none any more.
pub(super) async fn write(
    rows: &Transaction<'_>,
    stored: &[Stored],
    changes: &[Change],
) -> Result<(), ArchiveError> {
    let without: Vec<&[u8]> = last_kinds(changes)
        .into_iter()
        .filter(|(_, kind)| matches!(kind, EventKind::End | EventKind::BodyLost))
        .map(|(key, _)| key)
        .collect();
    if !without.is_empty() {
        rows.execute("DELETE FROM counter_body_snapshot WHERE counter_key = ANY($1)", &[&without]).await?;
    }
    let found: Vec<Row<'_>> = stored.iter().filter_map(Row::of).collect();
    if found.is_empty() {
        return Ok(());
    }
    let keys: Vec<&[u8]> = found.iter().map(|row| row.key).collect();
    let kinds: Vec<&str> = found.iter().map(|row| row.kind).collect();
    let of = |number: fn(&Cell) -> i64| -> Vec<i64> { found.iter().map(|row| number(&row.cell)).collect() };
    let (values, versions, births) =
        (of(|cell| cell.value), of(|cell| cell.version as i64), of(|cell| cell.birth as i64));
    let changed = of(|cell| cell.updated_at_ms as i64);
    let expiry =
        |row: &Row<'_>| (row.cell.expires_at_ms != NEVER).then(|| row.cell.expires_at_ms.to_string());
    let expires: Vec<Option<String>> = found.iter().map(expiry).collect();
    let bodies: Vec<&[u8]> = found.iter().map(|row| row.body).collect();
    let insert = "INSERT INTO counter_body_snapshot
            (counter_key, kind, value, version, birth, expires_at_ms, changed_at_ms, body, updated_at)
        SELECT key, kind, value, version, birth, expires::numeric, changed, body, now()
        FROM unnest($1::bytea[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[], $7::bigint[],
            $8::bytea[]) AS given (key, kind, value, version, birth, expires, changed, body)
        ON CONFLICT (counter_key) DO UPDATE SET kind = excluded.kind, value = excluded.value,
            version = excluded.version, birth = excluded.birth, expires_at_ms = excluded.expires_at_ms,
            changed_at_ms = excluded.changed_at_ms, body = excluded.body, updated_at = excluded.updated_at";
    rows.execute(insert, &[&keys, &kinds, &values, &versions, &births, &expires, &changed, &bodies]).await?;
    Ok(())
}

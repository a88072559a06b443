//! What counters have beyond their numbers. The streams say only that a body has changed, since a body may be large and changes often;
//! so it is read when the change is flushed, together with the numbers of that moment, which is at or after the change.

use std::collections::{HashMap, HashSet};

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

/// Which state of a counter this is. Of two states nothing says which is the later one but the stream: nodes give out births from blocks
/// of their own, so a later life may have the smaller one.
fn stamp(cell: &Cell) -> (u64, u64) {
    (cell.birth, cell.version)
}

/// Bodies that were read after the changes at hand, and so may have later ones in them.
pub(super) struct Early<'a>(HashMap<&'a [u8], (u64, u64)>);

impl<'a> Early<'a> {
    /// Those that are not as these changes left them.
    pub(super) fn of(stored: &'a [Stored], changes: &[Change]) -> Early<'a> {
        let last: HashMap<&[u8], (u64, u64)> =
            changes.iter().map(|change| (&change.key[..], stamp(&change.cell))).collect();
        let found = stored.iter().filter_map(Row::of).map(|row| (row.key, stamp(&row.cell)));
        Early(found.filter(|(key, stamp)| last.get(key) != Some(stamp)).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a later change is in one of them. They are asked about in the order of the stream.
    pub(super) fn has(&mut self, change: &Change) -> bool {
        match self.0.get(&change.key[..]) {
            None => false,
            // The last one that is.
            Some(known) if *known == stamp(&change.cell) => self.0.remove(&change.key[..]).is_some(),
            Some(_) => true,
        }
    }
}

/// Brings bodies to their table, and takes out those of counters that have none any more, or that ended in between: what began anew under
/// the same key has not got what the one before had.
pub(super) async fn write(
    rows: &Transaction<'_>,
    stored: &[Stored],
    changes: &[Change],
) -> Result<(), ArchiveError> {
    let has_lost = |change: &&Change| matches!(change.kind, EventKind::End | EventKind::BodyLost);
    let without: HashSet<&[u8]> = changes.iter().filter(has_lost).map(|change| &change.key[..]).collect();
    let without: Vec<&[u8]> = without.into_iter().collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    fn change(birth: u64, version: u64) -> Change {
        let cell = Cell { birth, version, ..Cell::ABSENT };
        Change { key: b"stock".to_vec(), difference: 1, cell, kind: EventKind::Body, request: None }
    }

    #[test]
    fn a_body_has_what_the_stream_tells_up_to_its_own_state() {
        let cell = Cell { birth: 3, version: 2, ..Cell::ABSENT };
        let body = Body::new(quipu_counting::body::Shape::Sum);
        let stored = vec![(b"stock".to_vec(), crate::call::to_store(&cell, Some(&body)))];
        assert!(Early::of(&stored, &[change(9, 4), change(3, 2)]).is_empty(), "it is as they left it");
        // Another life has begun since, under a birth of an older block.
        let mut early = Early::of(&stored, &[change(9, 4)]);
        let later = [change(9, 5), change(9, 0), change(3, 1), change(3, 2), change(3, 3)];
        assert_eq!(later.map(|change| early.has(&change)), [true, true, true, true, false]);
    }
}

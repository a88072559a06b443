//! How far producers are, in a table. The streams tell of it in the entry of the batch itself, so a batch and its sequence come to the
//! tables together, or not at all.

use std::collections::HashMap;

use tokio_postgres::Transaction;

use super::ArchiveError;

/// Those of a group after one, in order.
pub(super) const PRODUCERS: &str = "SELECT producer, session FROM counter_producer
    WHERE stream_group = $1 AND producer > $2 ORDER BY producer LIMIT $3";

/// Brings these to their rows. Of each only the last state matters.
pub(super) async fn write(
    rows: &Transaction<'_>,
    group: u16,
    told: &[(Vec<u8>, String)],
) -> Result<(), ArchiveError> {
    if told.is_empty() {
        return Ok(());
    }
    let last: HashMap<&[u8], &str> = told.iter().map(|(name, session)| (&name[..], &session[..])).collect();
    let (names, sessions): (Vec<&[u8]>, Vec<&str>) = last.into_iter().unzip();
    let insert = "INSERT INTO counter_producer (stream_group, producer, session)
        SELECT $1, * FROM unnest($2::bytea[], $3::text[])
        ON CONFLICT (stream_group, producer) DO UPDATE SET session = excluded.session";
    rows.execute(insert, &[&i32::from(group), &names, &sessions]).await?;
    Ok(())
}

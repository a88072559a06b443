//! Brings to the tables what no stream tells any more: of counters that were there before the archive was, or whose changes went from
//! the streams before they came to the tables.
//!
//! One transaction holds the watermarks of all groups that lack something, so nobody flushes them meanwhile, and whoever dies leaves
//! nothing half done. It notes how many entries the streams have had, then walks over all that Redis has in those groups: so whatever a walk
//! misses, or sees older than it becomes, is told by an entry that is flushed afterwards. Those entries may also tell of what the walk
//! has seen newer already; the tables are whole once they are flushed up to where the streams were when the walk ended.
//!
//! The walk goes from master to master. A group that moves meanwhile could be missed, so all of them must have stayed where they were.

use std::collections::{BTreeMap, HashSet};

use quipu_counting::{Cell, Remembered};
use redis::{Pipeline, Value};
use tokio_postgres::{Client, Transaction};

use super::bodies::{self, Stored};
use super::change::{Asked, Change};
use super::flusher::Flusher;
use super::rows::{self, Since};
use super::streams::{self, Place, Position};
use super::watermark::Watermark;
use super::{ArchiveError, producers};
use crate::call::{stored_id, stored_parts};
use crate::groups::{self, Name};
use crate::stripes::{group_of_stripe, stripe_in};
use crate::wholes::EventKind;

/// Keys that one step of the walk looks at.
const STEP: usize = 1_000;
/// Keys that are read at once: most have some bytes, few have megabytes.
const KEYS_AT_ONCE: usize = 250;
/// Rows that are compared with what the walk has seen, in one page.
const PAGE: i64 = 10_000;

/// Those that lack something and that nobody is at.
const LACKING: &str = "SELECT stream_group, epoch, event_ms, event_sequence, entries_added, whole_from_ms,
        whole_from_sequence, drained_at_ms, births
    FROM counter_watermark WHERE whole_from_ms IS NULL AND epoch = $1 ORDER BY stream_group FOR UPDATE SKIP LOCKED";
/// What the walk has seen.
const SEEN: &str = "CREATE TEMPORARY TABLE quipu_seen (
        counter_key BYTEA, shard_id INT, PRIMARY KEY (counter_key, shard_id)) ON COMMIT DROP";

/// What a step of the walk has found in one group.
#[derive(Default)]
struct Found {
    counters: Vec<Change>,
    /// Those with a body.
    bodies: Vec<Stored>,
    ids: Vec<Change>,
}

impl Flusher {
    /// Brings what the tables lack to them.
    pub(super) async fn seed(&self, client: &mut Client, ours: &str) -> Result<(), ArchiveError> {
        let rows = client.transaction().await?;
        let lacking = rows.query(LACKING, &[&ours]).await?;
        let lacking: Vec<Watermark> = lacking.iter().map(Watermark::of).collect();
        if lacking.is_empty() {
            return Ok(());
        }
        tracing::warn!(
            groups = lacking.len(),
            "the archive lacks counters: all of these groups are read from Redis"
        );
        let groups: HashSet<u16> = lacking.iter().map(|known| known.group).collect();
        rows.batch_execute(SEEN).await?;
        let mut homes: BTreeMap<String, Vec<u16>> = BTreeMap::new();
        for known in &lacking {
            homes.entry(self.begin_at(&rows, known).await?).or_default().push(known.group);
        }
        let count = self.walk_over(&rows, &groups, &homes).await?;
        self.seed_producers(&rows, &groups).await?;
        self.remove_unseen(&rows, &groups).await?;
        for known in &lacking {
            self.whole_from_here(&rows, known).await?;
        }
        rows.commit().await?;
        tracing::info!(groups = groups.len(), counters = count, "the archive was seeded from Redis");
        Ok(())
    }

    /// Notes how many entries a stream has had up to where it is flushed from, and the newest birth. Returns the group's master.
    async fn begin_at(&self, rows: &Transaction<'_>, known: &Watermark) -> Result<String, ArchiveError> {
        let (address, found) = self.position_now(known.group, known.place).await?;
        let births = redis::cmd("HGET").arg(groups::marker(known.group)).arg("births").to_owned();
        let births: Option<i64> = self.links.ask_for(&address, &births).await?;
        let begin = "UPDATE counter_watermark SET entries_added = $2, births = greatest(births, $3)
            WHERE stream_group = $1";
        rows.execute(begin, &[&i32::from(known.group), &found.before, &births.unwrap_or(0)]).await?;
        Ok(address)
    }

    /// The walk is over: the tables are whole once they are flushed up to here.
    async fn whole_from_here(&self, rows: &Transaction<'_>, known: &Watermark) -> Result<(), ArchiveError> {
        let (_, found) = self.position_now(known.group, known.place).await?;
        // Where nothing is left to be flushed they are already.
        let place = if found.left == 0 { known.place.max(found.last) } else { known.place };
        let whole = "UPDATE counter_watermark SET event_ms = $2, event_sequence = $3, whole_from_ms = $4,
            whole_from_sequence = $5 WHERE stream_group = $1";
        let Place { ms, sequence } = found.last;
        rows.execute(whole, &[&i32::from(known.group), &place.ms, &place.sequence, &ms, &sequence]).await?;
        Ok(())
    }

    async fn position_now(&self, group: u16, place: Place) -> Result<(String, Position), ArchiveError> {
        let address = self.external.master_of(group).ok_or_else(crate::external::nobody)?;
        let found = streams::position_of(&self.links, &address, group, place).await?;
        let found =
            found.ok_or_else(|| ArchiveError::Unfit(format!("group {group} moves to another master")))?;
        Ok((address, found))
    }

    /// Brings all that lies in these groups, each at its master, to its rows. Returns how many counters that were.
    async fn walk_over(
        &self,
        rows: &Transaction<'_>,
        groups: &HashSet<u16>,
        homes: &BTreeMap<String, Vec<u16>>,
    ) -> Result<u64, ArchiveError> {
        let mut count = 0;
        for address in homes.keys() {
            let mut cursor = 0;
            loop {
                let mut scan = redis::cmd("SCAN");
                scan.arg(cursor).arg("MATCH").arg("{q*}:[ci]:*").arg("COUNT").arg(STEP);
                let (next, names): (u64, Vec<Vec<u8>>) = self.links.ask_for(address, &scan).await?;
                for (group, found) in self.found(address, names, groups).await? {
                    count += found.counters.len() as u64;
                    self.write_found(rows, group, found).await?;
                }
                // Where there is much else, a transaction in which nothing happens would be given up.
                rows.batch_execute("SELECT 1").await?;
                if next == 0 {
                    break;
                }
                cursor = next;
            }
            self.have_stayed(homes).await?;
        }
        Ok(count)
    }

    /// Fails if a group is no longer wholly where it was. A master whose slot moves, or has moved, says so when it is asked for a key
    /// that it does not have; no counter has the empty key.
    async fn have_stayed(&self, homes: &BTreeMap<String, Vec<u16>>) -> Result<(), ArchiveError> {
        for (address, groups) in homes {
            let mut pipeline = Pipeline::with_capacity(groups.len());
            groups.iter().for_each(|group| _ = pipeline.cmd("GET").arg(groups::cell(*group, b"")));
            let answers = self.links.ask_all(address, &pipeline, groups.len()).await?;
            for (group, answer) in groups.iter().zip(answers) {
                if let Err(error) = answer.extract_error() {
                    let why = "it has moved while it was read, and is read again";
                    return Err(ArchiveError::Unfit(format!("group {group} at {address}: {why} ({error})")));
                }
            }
        }
        Ok(())
    }

    async fn found(
        &self,
        address: &str,
        names: Vec<Vec<u8>>,
        groups: &HashSet<u16>,
    ) -> Result<BTreeMap<u16, Found>, ArchiveError> {
        let is_wanted = |name: &Vec<u8>| Name::of(name).is_some_and(|name| groups.contains(&name.group()));
        let names: Vec<Vec<u8>> = names.into_iter().filter(is_wanted).collect();
        let mut found: BTreeMap<u16, Found> = BTreeMap::new();
        for names in names.chunks(KEYS_AT_ONCE) {
            let mut pipeline = Pipeline::with_capacity(names.len());
            names.iter().for_each(|name| _ = pipeline.cmd("GET").arg(&name[..]));
            let stored = self.links.ask_all(address, &pipeline, names.len()).await?;
            for (name, stored) in names.iter().zip(stored) {
                // One that has just gone is told about by its stream.
                let Value::BulkString(stored) = stored.extract_error()? else { continue };
                if let Some(name) = Name::of(name) {
                    found.entry(name.group()).or_default().take(&name, stored);
                }
            }
        }
        Ok(found)
    }

    async fn write_found(
        &self,
        rows: &Transaction<'_>,
        group: u16,
        found: Found,
    ) -> Result<(), ArchiveError> {
        let Found { counters, bodies, ids } = found;
        rows::write(rows, &self.external.stripes(), group, Place::default(), &counters).await?;
        bodies::write(rows, &bodies, &counters).await?;
        rows::write_ids(rows, group, &ids, Since::Change).await?;
        let keys: Vec<&[u8]> = counters.iter().map(|change| &change.key[..]).collect();
        let stripes: Vec<i32> = keys.iter().map(|key| i32::from(stripe_in(key, group))).collect();
        let seen =
            "INSERT INTO quipu_seen SELECT * FROM unnest($1::bytea[], $2::int[]) ON CONFLICT DO NOTHING";
        rows.execute(seen, &[&keys, &stripes]).await?;
        Ok(())
    }

    async fn seed_producers(
        &self,
        rows: &Transaction<'_>,
        groups: &HashSet<u16>,
    ) -> Result<(), ArchiveError> {
        for group in groups {
            let address = self.external.master_of(*group).ok_or_else(crate::external::nobody)?;
            let all = redis::cmd("HGETALL").arg(groups::producers(*group)).to_owned();
            let sessions: Vec<(Vec<u8>, String)> = self.links.ask_for(&address, &all).await?;
            rows.execute("DELETE FROM counter_producer WHERE stream_group = $1", &[&i32::from(*group)])
                .await?;
            producers::write(rows, *group, &sessions).await?;
        }
        Ok(())
    }

    /// Counters of these groups that the tables have and the walk has not seen are no more, or are told about by entries that come.
    async fn remove_unseen(&self, rows: &Transaction<'_>, groups: &HashSet<u16>) -> Result<(), ArchiveError> {
        let unseen = "SELECT counter_key, shard_id FROM counter_shard_snapshot
                LEFT JOIN quipu_seen AS seen USING (counter_key, shard_id)
            WHERE seen.counter_key IS NULL AND (counter_key, shard_id) > ($1, $2)
            ORDER BY counter_key, shard_id LIMIT $3";
        let (mut key, mut shard): (Vec<u8>, i32) = (Vec::new(), 0);
        loop {
            let page = rows.query(unseen, &[&key, &shard, &PAGE]).await?;
            let Some(last) = page.last() else { return Ok(()) };
            (key, shard) = (last.get(0), last.get(1));
            let mut gone: BTreeMap<u16, Vec<Change>> = BTreeMap::new();
            for row in &page {
                let (key, shard): (Vec<u8>, i32) = (row.get(0), row.get(1));
                let group = group_of_stripe(&key, shard);
                if groups.contains(&group) {
                    gone.entry(group).or_default().push(seen(key, Cell::ABSENT, EventKind::End));
                }
            }
            for (group, changes) in gone {
                rows::write(rows, &self.external.stripes(), group, Place::default(), &changes).await?;
                bodies::write(rows, &[], &changes).await?;
            }
        }
    }
}

fn seen(key: Vec<u8>, cell: Cell, kind: EventKind) -> Change {
    Change { key, difference: 0, cell, kind, request: None }
}

impl Found {
    fn take(&mut self, name: &Name<'_>, stored: Vec<u8>) {
        match *name {
            Name::Counter(_, key) => {
                let Some((cell, body)) = stored_parts(&stored) else { return };
                let kind = if body.is_some() { EventKind::Body } else { EventKind::BodyLost };
                self.counters.push(seen(key.to_vec(), cell, kind));
                if kind == EventKind::Body {
                    self.bodies.push((key.to_vec(), stored));
                }
            }
            Name::Id { key, index, id, .. } => {
                let text = std::str::from_utf8(&stored).ok();
                let asked = |fingerprint| Asked { fingerprint, index, id: id.to_vec() };
                self.ids.extend(text.and_then(stored_id).and_then(|known| decided(key, &known, asked)));
            }
        }
    }
}

/// What was decided under an id, as the change that it was. Refusals, and what found nothing to change, are none.
fn decided(key: &[u8], known: &Remembered, asked: impl Fn(u64) -> Asked) -> Option<Change> {
    let outcome = known.outcome;
    if outcome.refusal.is_some() || !(outcome.existed || outcome.exists) {
        return None;
    }
    let ended = Cell { updated_at_ms: known.at_ms, ..Cell::ABSENT };
    let (cell, kind) = match outcome.exists {
        true => (
            Cell { value: outcome.value, version: outcome.version, birth: outcome.birth, ..ended },
            EventKind::Plain,
        ),
        // As the streams tell of what ended.
        false => (ended, EventKind::End),
    };
    let difference = i128::from(cell.value) - i128::from(outcome.previous);
    Some(Change { key: key.to_vec(), difference, cell, kind, request: Some(asked(known.fingerprint)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_come_back_as_the_changes_that_they_were() {
        let asked = |fingerprint| Asked { fingerprint, index: 0, id: b"a".to_vec() };
        let of = |text: &str| {
            let change = decided(b"likes", &stored_id(text).expect("an outcome"), asked)?;
            Some((change.difference, change.cell.value, change.cell.version, change.has_ended()))
        };
        assert_eq!(of("77 1000 0 1 1 7 5 3 9"), Some((2, 7, 3, false)), "changed");
        assert_eq!(of("77 1000 0 0 1 5 0 1 9"), Some((5, 5, 1, false)), "born");
        assert_eq!(of("77 1000 0 1 0 0 7 0 0"), Some((-7, 0, 0, true)), "deleted");
        assert_eq!(of("77 1000 3 1 1 7 7 3 9"), None, "refused");
        assert_eq!(of("77 1000 0 0 0 0 0 0 0"), None, "nothing was there");
    }
}

//! Brings the changes from the streams to PostgreSQL, each once.
//!
//! Up to where a stream is in the tables is a row of a table itself, and moves in the same transaction as the rows that it
//! speaks of: whenever a flusher dies, the next one begins where the tables end. That row is locked while its stream is being
//! flushed, so any number of flushers may run: each takes streams that nobody else is at.
//!
//! The streams' own consumer groups would hand out entries of one stream to several flushers, in no order, and remember in
//! Redis what is pending; a watermark needs order, and Redis may forget. So entries are read after the watermark, and
//! what a dead flusher had in its hands is simply still there.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use quipu_counting::{Cell, NEVER};
use redis::{Pipeline, Value};
use tokio::task::{AbortHandle, JoinHandle};
use tokio_postgres::{Client, Transaction};

use super::bodies::{self, Stored};
use super::change::Change;
use super::migrations::migrate;
use super::recovery::Attempt;
use super::shards::{self, Shard};
use super::{Archive, ArchiveError};
use crate::epoch;
use crate::external::External;
use crate::groups::{self, GROUPS, POLICIES};
use crate::masters::Links;
use crate::stripes::stripe_in;

/// How a flusher works.
#[derive(Clone, Debug)]
pub struct FlusherOptions {
    /// Between two looks at streams in which nothing was.
    pub interval: Duration,
    /// The most entries of one transaction; each may tell many changes.
    pub entries: usize,
    /// Whether every change gets a row in `counter_delta_log`.
    pub keeps_log: bool,
    /// How long rows in `counter_idempotency` are kept.
    pub id_window: Duration,
}

impl Default for FlusherOptions {
    fn default() -> FlusherOptions {
        FlusherOptions {
            interval: Duration::from_secs(1),
            entries: 500,
            keeps_log: false,
            id_window: Duration::from_secs(24 * 60 * 60),
        }
    }
}

/// Brings changes to PostgreSQL.
pub struct Flusher {
    pub(super) external: Arc<External>,
    pub(super) links: Arc<Links>,
    pub(super) archive: Arc<Archive>,
    options: FlusherOptions,
    /// When streams were last noted as drained.
    noted_ms: AtomicI64,
    /// The version of the policies in the tables, as far as this one knows.
    policies_version: AtomicU64,
}

/// A flusher at work. Ends when it is dropped.
pub struct FlusherTasks(Vec<AbortHandle>);

impl Drop for FlusherTasks {
    fn drop(&mut self) {
        self.0.iter().for_each(AbortHandle::abort);
    }
}

/// Streams that a node flushes at a time: PostgreSQL is at one of them while Redis is asked for another.
const STREAMS_AT_ONCE: usize = 2;
/// Ids that are over are forgotten so often.
const PURGE_INTERVAL: Duration = Duration::from_secs(60);
/// So many at a time, and again at once while there are as many.
const PURGE_ROWS: u64 = 10_000;
/// Streams that are drained are noted, and policies are looked at, so often.
const NOTE_INTERVAL_MS: i64 = 1_000;
/// Totals of counters in stripes are added up so often.
const COMPACT_INTERVAL: Duration = Duration::from_secs(2);
/// What goes on failing is said so often.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(30);

/// The watermark of a stream, if nobody is at it.
pub(super) const FREE: &str = "SELECT epoch, event_ms, event_sequence FROM counter_watermark
    WHERE stream_group = $1 FOR UPDATE SKIP LOCKED";
/// The same once nobody is.
pub(super) const ANY: &str = "SELECT epoch, event_ms, event_sequence FROM counter_watermark
    WHERE stream_group = $1 FOR UPDATE";

/// Bodies that are read at once: most have some kilobytes, few have megabytes.
const BODIES_AT_ONCE: usize = 64;

/// A place in a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) ms: i64,
    pub(super) sequence: i64,
}

impl Place {
    pub(super) fn of(id: &str) -> Option<Place> {
        let (ms, sequence) = id.split_once('-')?;
        Some(Place { ms: ms.parse().ok()?, sequence: sequence.parse().ok()? })
    }

    /// Everything after it, for XRANGE.
    pub(super) fn behind(self) -> String {
        format!("({}-{}", self.ms, self.sequence)
    }

    /// As one number, for people to compare: as much of the sequence as fits.
    fn number(self) -> i64 {
        self.ms << 20 | self.sequence.min((1 << 20) - 1)
    }
}

impl Flusher {
    /// A flusher of these counters. The tables are brought up to date.
    pub async fn open(
        external: Arc<External>,
        url: &str,
        options: FlusherOptions,
    ) -> Result<Flusher, ArchiveError> {
        let archive = Arc::new(Archive::new(url)?);
        migrate(&mut archive.connect().await?).await?;
        Ok(Flusher::over(external, archive, options))
    }

    /// The same for an archive whose tables are brought up to date when it can be reached.
    pub fn over(external: Arc<External>, archive: Arc<Archive>, options: FlusherOptions) -> Flusher {
        Flusher {
            links: external.links(),
            external,
            archive,
            options,
            noted_ms: AtomicI64::new(0),
            policies_version: AtomicU64::new(u64::MAX),
        }
    }

    /// How many events this node has flushed.
    pub fn flushed(&self) -> u64 {
        self.archive.facts.flushed.load(Ordering::Relaxed)
    }

    /// Flushes, forgets what is over, and measures, until what is returned is dropped. Called within a runtime.
    pub fn start(self: &Arc<Self>) -> FlusherTasks {
        let (purging, measuring, compacting) = (Arc::clone(self), Arc::clone(self), Arc::clone(self));
        let mut tasks = vec![
            tokio::spawn(async move { compacting.compact_for_ever().await }),
            tokio::spawn(async move { purging.purge_for_ever().await }),
            tokio::spawn(async move { measuring.measure().await }),
        ];
        for worker in 0..STREAMS_AT_ONCE {
            let flushing = Arc::clone(self);
            tasks.push(tokio::spawn(async move { flushing.run(worker).await }));
        }
        FlusherTasks(tasks.iter().map(JoinHandle::abort_handle).collect())
    }

    /// Flushes until it is stopped. What fails is tried again. Each worker begins with another stream.
    pub async fn run(&self, worker: usize) {
        let (mut client, facts) = (None, &self.archive.facts);
        let mut complained: Option<Instant> = None;
        loop {
            match self.turn(&mut client, worker).await {
                Ok(events) => {
                    facts.is_up.store(true, Ordering::Relaxed);
                    if complained.take().is_some() {
                        tracing::info!("changes are flushed to the archive again");
                    }
                    if events > 0 {
                        continue;
                    }
                }
                Err(error) => {
                    client = None;
                    facts.is_up.store(false, Ordering::Relaxed);
                    facts.failures.fetch_add(1, Ordering::Relaxed);
                    if complained.is_none_or(|last| last.elapsed() > COMPLAINT_INTERVAL) {
                        complained = Some(Instant::now());
                        tracing::warn!(
                            %error,
                            "changes cannot be flushed to the archive; they wait in the streams in Redis"
                        );
                    }
                }
            }
            tokio::time::sleep(self.options.interval).await;
        }
    }

    async fn turn(&self, client: &mut Option<Client>, worker: usize) -> Result<u64, ArchiveError> {
        let client = match client {
            Some(client) => client,
            None => {
                let mut new = self.archive.connect().await?;
                migrate(&mut new).await?;
                client.insert(new)
            }
        };
        if let Some(detected_at_ms) = self.external.lost_since_ms() {
            // One of them is enough.
            if worker == 0
                && let Attempt::Whole(epoch) = self.recover(detected_at_ms).await?
            {
                self.external.take_over_epoch(&epoch).await;
            }
            return Ok(0);
        }
        let (asked_at_ms, ours, mut events) = (wall_ms(), self.external.epoch(), 0);
        let (mut waiting, drained) = self.waiting(&ours).await?;
        let first = waiting.len() * (worker % STREAMS_AT_ONCE) / STREAMS_AT_ONCE;
        waiting.rotate_left(first);
        for group in &waiting {
            events += self.flush_group(client, *group, FREE, &ours).await?;
        }
        if worker == 0 && asked_at_ms - self.noted_ms.load(Ordering::Relaxed) >= NOTE_INTERVAL_MS {
            self.noted_ms.store(asked_at_ms, Ordering::Relaxed);
            self.note_drained(client, &drained, asked_at_ms, &ours).await?;
            self.flush_policies(client, &ours).await?;
        }
        Ok(events)
    }

    /// Streams in which nothing was: all that was counted there before is in the tables.
    async fn note_drained(
        &self,
        client: &Client,
        drained: &[u16],
        at_ms: i64,
        epoch: &str,
    ) -> Result<(), ArchiveError> {
        let drained: Vec<i32> = drained.iter().copied().map(i32::from).collect();
        // In order, and none that somebody is at: nobody waits for anybody.
        let note = "UPDATE counter_watermark SET drained_at_ms = $1 WHERE stream_group IN (
            SELECT stream_group FROM counter_watermark
            WHERE stream_group = ANY($2) AND epoch = $3 AND drained_at_ms < $1
            ORDER BY stream_group FOR UPDATE SKIP LOCKED)";
        client.execute(note, &[&at_ms, &drained, &epoch]).await?;
        Ok(())
    }

    /// Policies are lost with everything else: they are kept in the tables too.
    async fn flush_policies(&self, client: &Client, epoch: &str) -> Result<(), ArchiveError> {
        let version = self.external.policies_version();
        if version == self.policies_version.load(Ordering::Relaxed) {
            return Ok(());
        }
        let Some(address) = self.external.map().of_policies().map(str::to_owned) else { return Ok(()) };
        let all = redis::cmd("HGETALL").arg(POLICIES).to_owned();
        let fields: Vec<(Vec<u8>, Vec<u8>)> = self.links.ask_for(&address, &all).await?;
        if !fields.iter().any(|(name, value)| name == b"epoch" && value == epoch.as_bytes()) {
            return Ok(());
        }
        let found = fields.iter().find(|(name, _)| name == b"version");
        let found = found.and_then(|(_, value)| std::str::from_utf8(value).ok()?.parse::<i64>().ok());
        let found = found.unwrap_or(0);
        let kept = fields.into_iter().filter(|(name, _)| name != b"epoch" && name != b"complete");
        let fields: Vec<Vec<u8>> = kept.flat_map(|(name, value)| [name, value]).collect();
        let keep = "INSERT INTO counter_policies (epoch, version, fields)
            SELECT $1, $2, $3 WHERE EXISTS (SELECT 1 FROM counter_watermark WHERE epoch = $1)
            ON CONFLICT (only_row) DO UPDATE
                SET epoch = excluded.epoch, version = excluded.version, fields = excluded.fields
                WHERE counter_policies.epoch <> excluded.epoch OR counter_policies.version < excluded.version";
        client.execute(keep, &[&epoch, &found, &fields]).await?;
        self.policies_version.store(version, Ordering::Relaxed);
        Ok(())
    }

    /// The groups in whose streams something lies, and those in which nothing does: what is flushed is trimmed, so there are few of the
    /// first when little happens. A stream that is gone with its marker is not empty but lost, and is neither.
    async fn waiting(&self, epoch: &str) -> Result<(Vec<u16>, Vec<u16>), ArchiveError> {
        let map = self.external.map();
        let (mut waiting, mut drained) = (Vec::new(), Vec::new());
        for address in map.masters() {
            let here: Vec<u16> = map.groups_of(&address).collect();
            let mut pipeline = Pipeline::with_capacity(2 * here.len());
            for group in &here {
                pipeline.cmd("XLEN").arg(groups::stream(*group));
                pipeline.cmd("HGET").arg(groups::marker(*group)).arg("epoch");
            }
            let answers = self.links.ask_all(&address, &pipeline, 2 * here.len()).await?;
            for (group, answer) in here.iter().zip(answers.chunks(2)) {
                match answer {
                    [Value::Int(0), Value::BulkString(marker)] if marker == epoch.as_bytes() => {
                        drained.push(*group);
                    }
                    [Value::Int(0), _] => {}
                    _ => waiting.push(*group),
                }
            }
        }
        Ok((waiting, drained))
    }

    /// Adds up the totals of counters in stripes.
    async fn compact_for_ever(&self) {
        let mut client = None;
        loop {
            tokio::time::sleep(COMPACT_INTERVAL).await;
            let compacted = async {
                let known = match &mut client {
                    Some(known) => known,
                    None => client.insert(self.archive.connect().await?),
                };
                while shards::compact(known).await? > 0 {}
                Ok::<(), ArchiveError>(())
            };
            // While PostgreSQL is away there is nothing to be said that flushing does not say.
            if compacted.await.is_err() {
                client = None;
            }
        }
    }

    async fn purge_for_ever(&self) {
        loop {
            tokio::time::sleep(PURGE_INTERVAL).await;
            // While PostgreSQL is away there is nothing to be said that flushing does not say.
            while let Ok(PURGE_ROWS..) = self.purge().await {}
        }
    }

    /// One transaction for every stream. Returns how many events that were.
    async fn flush(&self, client: &mut Client, watermark: &str) -> Result<u64, ArchiveError> {
        let (mut events, ours) = (0, self.external.epoch());
        for group in 0..GROUPS {
            events += self.flush_group(client, group, watermark, &ours).await?;
        }
        Ok(events)
    }

    /// Flushes everything that is there now, also what others are at.
    pub async fn flush_all(&self) -> Result<(), ArchiveError> {
        let mut client = self.archive.connect().await?;
        while self.flush(&mut client, ANY).await? > 0 {}
        while shards::compact(&mut client).await? > 0 {}
        Ok(())
    }

    /// How long ago the oldest change was that is not in the tables yet, by Redis's clock; 0 if all are.
    pub async fn lag_ms(&self, now_ms: u64) -> Result<u64, ArchiveError> {
        let all = "SELECT stream_group, event_ms, event_sequence FROM counter_watermark";
        let mut lag_ms = 0;
        for row in self.archive.connect().await?.query(all, &[]).await? {
            let group = u16::try_from(row.get::<_, i32>(0)).unwrap_or(GROUPS);
            let from = Place { ms: row.get(1), sequence: row.get(2) };
            if group < GROUPS
                && let Some((first, _)) = self.read(group, from, 1).await?
            {
                lag_ms = now_ms.saturating_sub(first.ms as u64).max(lag_ms);
            }
        }
        Ok(lag_ms)
    }

    /// Forgets ids that are over, some at a time. Returns how many those were.
    pub async fn purge(&self) -> Result<u64, ArchiveError> {
        let window_ms = self.options.id_window.as_millis() as f64;
        let purge = "DELETE FROM counter_idempotency WHERE id IN (
            SELECT id FROM counter_idempotency
            WHERE created_at < now() - $1 * interval '1 millisecond' ORDER BY created_at LIMIT 10000 FOR UPDATE SKIP LOCKED)";
        Ok(self.archive.connect().await?.execute(purge, &[&window_ms]).await?)
    }

    /// How long ids are remembered.
    pub(super) fn id_window_ms(&self) -> u64 {
        self.options.id_window.as_millis() as u64
    }

    pub(super) async fn flush_group(
        &self,
        client: &mut Client,
        group: u16,
        watermark: &str,
        ours: &str,
    ) -> Result<u64, ArchiveError> {
        let rows = client.transaction().await?;
        let number = i32::from(group);
        // Somebody else is at it.
        let Some(row) = rows.query_opt(watermark, &[&number]).await? else { return Ok(0) };
        let (epoch, from): (String, _) = (row.get(0), Place { ms: row.get(1), sequence: row.get(2) });
        if epoch::is_newer(&epoch, ours) {
            // Redis was rebuilt; this node is about to hear of it.
            return Ok(0);
        }
        if !epoch.is_empty() && epoch != ours {
            return Err(ArchiveError::Unfit(format!(
                "the tables have group {group} of epoch {epoch}, and Redis has epoch {ours}"
            )));
        }
        let Some((to, changes)) = self.read(group, from, self.options.entries).await? else { return Ok(0) };
        let Some(bodies) = self.bodies_of(group, &changes).await? else { return Ok(0) };
        self.write(&rows, group, to, &changes).await?;
        bodies::write(&rows, &bodies, &changes).await?;
        let moved = "UPDATE counter_watermark SET epoch = $2, event_ms = $3, event_sequence = $4,
            events = events + $5, births = greatest(births, $6), updated_at = now() WHERE stream_group = $1";
        let events = changes.len() as u64;
        let count = events as i64;
        let births = changes.iter().map(|change| change.cell.birth as i64).max().unwrap_or(0);
        rows.execute(moved, &[&number, &ours, &to.ms, &to.sequence, &count, &births]).await?;
        rows.commit().await?;
        self.archive.facts.flushed.fetch_add(events, Ordering::Relaxed);
        // What is in the tables may go. Should that fail, the next one does it.
        let mut trim = redis::cmd("XTRIM");
        trim.arg(groups::stream(group)).arg("MINID").arg(format!("{}-{}", to.ms, to.sequence + 1));
        if let Some(address) = self.external.master_of(group) {
            self.links.ask(&address, &trim).await?;
        }
        Ok(events)
    }

    /// The changes after a place, and up to where they are.
    async fn read(
        &self,
        group: u16,
        from: Place,
        entries: usize,
    ) -> Result<Option<(Place, Vec<Change>)>, ArchiveError> {
        let Some(address) = self.external.master_of(group) else { return Ok(None) };
        let mut range = redis::cmd("XRANGE");
        range.arg(groups::stream(group)).arg(from.behind()).arg("+");
        range.arg("COUNT").arg(entries);
        let answer = match self.links.ask(&address, &range).await {
            Err(error) if is_on_the_way(&error) => return Ok(None),
            answer => answer?,
        };
        type Entry = (String, Vec<(Vec<u8>, Value)>);
        let entries: Vec<Entry> = redis::from_redis_value(answer).map_err(redis::RedisError::from)?;
        let malformed = |id: &str| ArchiveError::Unfit(format!("entry {id} of group {group} is malformed"));
        let mut changes = Vec::new();
        let mut to = None;
        for (id, fields) in entries {
            to = Some(Place::of(&id).ok_or_else(|| malformed(&id))?);
            for (key, told) in fields {
                let change = match &told {
                    Value::BulkString(told) => Change::of(&key, told),
                    _ => None,
                };
                changes.push(change.ok_or_else(|| malformed(&id))?);
            }
        }
        Ok(to.map(|to| (to, changes)))
    }

    /// Counters whose bodies may have changed, as they are now, which may be later than the changes at hand; nothing while they
    /// cannot be had.
    async fn bodies_of(&self, group: u16, changes: &[Change]) -> Result<Option<Vec<Stored>>, ArchiveError> {
        let keys = bodies::changed(changes);
        let Some(address) = self.external.master_of(group) else { return Ok(None) };
        let mut found = Vec::with_capacity(keys.len());
        for keys in keys.chunks(BODIES_AT_ONCE) {
            let mut get = redis::cmd("MGET");
            keys.iter().for_each(|key| _ = get.arg(groups::cell(group, key)));
            let stored: Vec<Option<Vec<u8>>> = match self.links.ask_for(&address, &get).await {
                Err(error) if is_on_the_way(&error) => return Ok(None),
                stored => stored?,
            };
            let of_keys = keys.iter().zip(stored);
            found.extend(of_keys.filter_map(|(key, stored)| Some((key.to_vec(), stored?))));
        }
        Ok(Some(found))
    }

    async fn write(
        &self,
        rows: &Transaction<'_>,
        group: u16,
        to: Place,
        changes: &[Change],
    ) -> Result<(), ArchiveError> {
        // Of each counter only the last state matters.
        let mut last: HashMap<&[u8], &Change> =
            changes.iter().map(|change| (&change.key[..], change)).collect();
        let stripes = self.external.stripes();
        let striped: Vec<Shard<'_>> = last
            .extract_if(|key, _| stripe_in(key, group) != 0 || stripes.widest(key) > 1)
            .map(|(key, change)| Shard {
                change,
                stripe: stripe_in(key, group),
                stripes: stripes.widest(key),
            })
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
        let of =
            |number: fn(&Cell) -> i64| -> Vec<i64> { there.iter().map(|(_, cell)| number(cell)).collect() };
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
        self.write_requests(rows, group, changes).await
    }

    /// What was asked under ids, and, if wanted, every change.
    async fn write_requests(
        &self,
        rows: &Transaction<'_>,
        group: u16,
        changes: &[Change],
    ) -> Result<(), ArchiveError> {
        let asked: HashMap<_, _> = changes
            .iter()
            .filter_map(|change| {
                let request = change.request.as_ref()?;
                Some((
                    (&change.key[..], &request.id[..], i64::from(request.index)),
                    (change, request.fingerprint),
                ))
            })
            .collect();
        if !asked.is_empty() {
            let asked: Vec<_> = asked.into_iter().collect();
            let keys: Vec<&[u8]> = asked.iter().map(|((key, _, _), _)| *key).collect();
            let ids: Vec<&[u8]> = asked.iter().map(|((_, id, _), _)| *id).collect();
            let indexes: Vec<i64> = asked.iter().map(|((_, _, index), _)| *index).collect();
            let prints: Vec<String> = asked.iter().map(|(_, (_, print))| print.to_string()).collect();
            let deltas: Vec<String> =
                asked.iter().map(|(_, (change, _))| change.difference.to_string()).collect();
            let values: Vec<i64> = asked.iter().map(|(_, (change, _))| change.cell.value).collect();
            let versions: Vec<i64> =
                asked.iter().map(|(_, (change, _))| change.cell.version as i64).collect();
            let births: Vec<i64> = asked.iter().map(|(_, (change, _))| change.cell.birth as i64).collect();
            let insert = "INSERT INTO counter_idempotency
                    (counter_key, request_id, request_index, fingerprint, delta, value, version, birth, shard_id,
                    created_at)
                SELECT key, id, place, print::numeric, delta::numeric, value, version, birth, stripe, now()
                FROM unnest($1::bytea[], $2::bytea[], $3::bigint[], $4::text[], $5::text[], $6::bigint[],
                    $7::bigint[], $8::bigint[], $9::int[])
                    AS given (key, id, place, print, delta, value, version, birth, stripe)
                ON CONFLICT (counter_key, request_id, request_index, shard_id) DO UPDATE SET
                    fingerprint = excluded.fingerprint, delta = excluded.delta, value = excluded.value,
                    version = excluded.version, birth = excluded.birth, created_at = excluded.created_at";
            let stripes: Vec<i32> = keys.iter().map(|key| i32::from(stripe_in(key, group))).collect();
            rows.execute(
                insert,
                &[&keys, &ids, &indexes, &prints, &deltas, &values, &versions, &births, &stripes],
            )
            .await?;
        }
        if self.options.keeps_log {
            let keys: Vec<&[u8]> = changes.iter().map(|change| &change.key[..]).collect();
            let deltas: Vec<String> = changes.iter().map(|change| change.difference.to_string()).collect();
            let ids: Vec<Option<&[u8]>> =
                changes.iter().map(|change| change.request.as_ref().map(|asked| &asked.id[..])).collect();
            let times: Vec<f64> =
                changes.iter().map(|change| change.cell.updated_at_ms as f64 / 1000.0).collect();
            let stripes: Vec<i32> = keys.iter().map(|key| i32::from(stripe_in(key, group))).collect();
            let log = "INSERT INTO counter_delta_log (counter_key, shard_id, delta, request_id, event_time)
                SELECT key, stripe, delta::numeric, id, to_timestamp(happened)
                FROM unnest($1::bytea[], $2::int[], $3::text[], $4::bytea[], $5::float8[])
                    AS given (key, stripe, delta, id, happened)";
            rows.execute(log, &[&keys, &stripes, &deltas, &ids, &times]).await?;
        }
        Ok(())
    }
}

/// While a slot moves, there is nothing to be had.
fn is_on_the_way(error: &redis::RedisError) -> bool {
    matches!(error.code(), Some("MOVED" | "ASK" | "TRYAGAIN"))
}

pub(crate) fn wall_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

/// The business that a key of the recommended form, `counter:{biz}:{entity}:...`, names.
pub(super) fn business(key: &[u8]) -> String {
    let mut parts = key.splitn(3, |byte| *byte == b':');
    match (parts.next(), parts.next()) {
        (Some(b"counter"), Some(business)) => String::from_utf8_lossy(business).replace('\0', ""),
        _ => String::new(),
    }
}

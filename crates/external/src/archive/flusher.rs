//! Brings the changes from the streams to PostgreSQL, each once.
//!
//! Up to where a stream is in the tables is a row of a table itself, and moves in the same transaction as the rows that it
//! speaks of: whenever a flusher dies, the next one begins where the tables end. That row is locked while its stream is being
//! flushed, so any number of flushers may run: each takes streams that nobody else is at.
//!
//! The streams' own consumer groups would hand out entries of one stream to several flushers, in no order, and remember in
//! Redis what is pending; a watermark needs order, and Redis may forget. So entries are read after the watermark, and
//! what a dead flusher had in its hands is simply still there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use redis::{Pipeline, RedisResult, Value};
use tokio::task::{AbortHandle, JoinHandle};
use tokio_postgres::{Client, Transaction};

use super::bodies::{self, Early, Stored};
use super::change::Change;
use super::migrations::migrate;
use super::recovery::Attempt;
use super::rows::{self, Since};
use super::streams::{self, CHANGES_MAX, Place, Position, Told};
use super::watermark::{self, ANY, FREE, Judged, Watermark};
use super::{Archive, ArchiveError, bond, producers, shards};
use crate::epoch;
use crate::external::External;
use crate::groups::{self, GROUPS};
use crate::masters::Links;
use crate::standing::to_ms;

/// How a flusher works.
#[derive(Clone, Debug)]
pub struct FlusherOptions {
    /// Between two looks at streams in which nothing was.
    pub interval: Duration,
    /// The most entries of one transaction; each may tell many changes.
    pub entries: usize,
    /// Whether every change gets a row in `counter_delta_log`.
    pub keeps_log: bool,
    /// How long rows in `counter_idempotency` are kept, unless ids are remembered longer.
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
    /// What it is called among those that use the archive.
    pub(super) name: String,
    /// Whether this one has made sure that Redis and archive belong together.
    has_bound: AtomicBool,
    /// Whether others use the archive on another Redis.
    pub(super) is_in_use: AtomicBool,
    /// How often the number of entries was halved that are read at once, by group.
    pub(super) halvings: Vec<AtomicU32>,
    /// How many entries tell enough, by group.
    enough: Vec<AtomicUsize>,
}

/// What a turn came to.
#[derive(Default)]
struct Turned {
    events: u64,
    /// What stands in the way of some of them, or of all.
    problem: Option<String>,
}

/// What lies in the streams, as far as that is known.
#[derive(Default)]
struct Waiting {
    /// Groups in whose streams something lies.
    groups: Vec<u16>,
    /// Those in which nothing does, and when that was, by their master's clock.
    drained: Vec<(u16, i64)>,
    /// Why it is not known of others.
    problem: Option<String>,
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
/// Streams that are drained are noted so often.
const NOTE_INTERVAL_MS: i64 = 1_000;
/// Totals of counters in stripes are added up so often.
const COMPACT_INTERVAL: Duration = Duration::from_secs(2);
/// What goes on failing is said so often.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(30);

/// With so many halvings one entry is read at a time, however many were wanted.
const HALVINGS_MAX: u32 = 16;

/// Bodies that are read at once: most have some kilobytes, few have megabytes.
const BODIES_AT_ONCE: usize = 64;
/// Entries that are looked through for what changed the bodies at hand meanwhile: so many at once, and so many in all.
const EARLY_ENTRIES: usize = 1_000;
const EARLY_ENTRIES_MAX: usize = 10_000;
/// And for so long: entries may be large, more come meanwhile, and PostgreSQL ends a transaction that rests for 20 s.
const EARLY_TIME: Duration = Duration::from_secs(5);

impl Flusher {
    /// A flusher of these counters. The tables are brought up to date.
    pub async fn open(
        external: Arc<External>,
        url: &str,
        options: FlusherOptions,
    ) -> Result<Flusher, ArchiveError> {
        let archive = Arc::new(Archive::new(url)?);
        let mut client = archive.connect().await?;
        migrate(&mut client).await?;
        let flusher = Flusher::over(external, archive, options);
        flusher.is_bound(&client).await?;
        Ok(flusher)
    }

    /// The same for an archive whose tables are brought up to date when it can be reached.
    pub fn over(external: Arc<External>, archive: Arc<Archive>, options: FlusherOptions) -> Flusher {
        Flusher {
            links: external.links(),
            external,
            archive,
            options,
            noted_ms: AtomicI64::new(0),
            policies_version: AtomicU64::new(0),
            name: format!("{:016x}", SmallRng::from_os_rng().random::<u64>()),
            has_bound: AtomicBool::new(false),
            is_in_use: AtomicBool::new(false),
            halvings: (0..GROUPS).map(|_| AtomicU32::new(0)).collect(),
            enough: (0..GROUPS).map(|_| AtomicUsize::new(usize::MAX)).collect(),
        }
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
            let turned = self.turn(&mut client, worker).await;
            let (problem, events) = match &turned {
                Ok(Turned { events, problem }) => (problem.clone(), *events),
                Err(error) => (Some(error.to_string()), 0),
            };
            if turned.is_err() {
                client = None;
            }
            // What stands in the way of one group is a failure, whatever others have got.
            if problem.is_some() {
                facts.failures.fetch_add(1, Ordering::Relaxed);
            }
            // The first asks PostgreSQL each time; that others had nothing to ask it says nothing.
            if worker == 0 || problem.is_some() {
                facts.is_up.store(problem.is_none(), Ordering::Relaxed);
                self.archive.note_problem(problem.clone());
            }
            match problem {
                Some(problem) if complained.is_none_or(|last| last.elapsed() > COMPLAINT_INTERVAL) => {
                    complained = Some(Instant::now());
                    tracing::warn!(
                        "changes cannot be flushed to the archive; they wait in the streams in Redis: {problem}"
                    );
                }
                Some(_) => {}
                None if complained.take().is_some() => {
                    tracing::info!("changes are flushed to the archive again");
                }
                None => {}
            }
            if events == 0 {
                tokio::time::sleep(self.options.interval).await;
            }
        }
    }

    async fn turn(&self, client: &mut Option<Client>, worker: usize) -> Result<Turned, ArchiveError> {
        let client = match client {
            Some(client) => client,
            None => {
                let mut new = self.archive.connect().await?;
                migrate(&mut new).await?;
                client.insert(new)
            }
        };
        if let Some(loss) = self.external.loss() {
            let mut turned = Turned::default();
            // One of them is enough.
            if worker == 0 {
                match self.recover(loss).await? {
                    Attempt::Whole(epoch) => self.external.take_over_epoch(&epoch).await,
                    Attempt::Elsewhere => turned.problem = Some(bond::in_use()),
                    Attempt::Busy | Attempt::NotYet => {}
                }
            }
            return Ok(turned);
        }
        if !self.is_bound(client).await? {
            self.external.look_soon();
            return Ok(Turned::default());
        }
        let (asked_at_ms, ours, mut turned) = (wall_ms(), self.external.epoch(), Turned::default());
        let is_noting = asked_at_ms - self.noted_ms.load(Ordering::Relaxed) >= NOTE_INTERVAL_MS;
        if worker == 0 && is_noting {
            turned.problem = self.look_for_gaps(client, &ours).await?;
        }
        let Waiting { mut groups, drained, problem } = self.waiting(&ours).await;
        turned.problem = problem.or(turned.problem);
        let first = groups.len() * (worker % STREAMS_AT_ONCE) / STREAMS_AT_ONCE;
        groups.rotate_left(first);
        for group in &groups {
            match self.flush_group(client, *group, FREE, &ours).await {
                Err(error) if error.is_of_one_group() => turned.problem = Some(self.told_of(*group, &error)),
                events => turned.events += events?,
            }
        }
        if worker == 0 && is_noting {
            self.noted_ms.store(asked_at_ms, Ordering::Relaxed);
            self.note_drained(client, &drained, &ours).await?;
        }
        if worker == 0 {
            self.flush_policies(client, &ours).await?;
        }
        Ok(turned)
    }

    /// Makes sure that Redis and archive belong together, before anything is written there or trimmed here. Not so while Redis has
    /// lost what says so.
    async fn is_bound(&self, client: &Client) -> Result<bool, ArchiveError> {
        let map = self.external.map();
        if !self.has_bound.load(Ordering::Relaxed) {
            bond::bind(client, &self.links, &map, &self.external.epoch()).await?;
            self.has_bound.store(true, Ordering::Relaxed);
            self.archive.note_bound();
        }
        if self.is_in_use.load(Ordering::Relaxed) {
            return Err(ArchiveError::InUse(bond::in_use()));
        }
        bond::check(client, &self.links, &map).await
    }

    /// Compares all streams with their watermarks, also those in which nothing lies; and brings to the tables what they lack. Says what
    /// stands in the way of that for some of them.
    async fn look_for_gaps(&self, client: &mut Client, ours: &str) -> Result<Option<String>, ArchiveError> {
        // The watermarks first: what a stream has had by then only grows.
        let known = watermark::all(client).await?;
        if let Some(newer) = known.iter().find(|known| epoch::is_newer(&known.epoch, ours)) {
            return Err(self.is_outdated(newer, ours));
        }
        let map = self.external.map();
        let places: Vec<Place> = known.iter().map(|known| known.place).collect();
        let (found, failed) = streams::known_positions(&self.links, &map, &places).await;
        let mut problem = failed.map(|(address, error)| format!("Redis at {address}: {error}"));
        for (known, found) in known.iter().zip(found) {
            let judged = found.map(|found| known.judge(&found));
            if known.epoch != ours || judged.is_some_and(|judged| judged != Judged::Whole) {
                // Nobody else is at it then, and it is certain.
                match self.flush_group(client, known.group, FREE, ours).await {
                    Err(error) if error.is_of_one_group() => {
                        problem = Some(self.told_of(known.group, &error));
                    }
                    flushed => _ = flushed?,
                }
            }
        }
        let lacking = watermark::all(client).await?;
        let unseeded = lacking.iter().filter(|known| !known.is_whole()).count();
        self.archive.facts.unseeded_groups.store(unseeded as u64, Ordering::Relaxed);
        if lacking.iter().any(|known| known.whole_from.is_none() && known.epoch == ours) {
            match self.seed(client, ours).await {
                // What others have is flushed meanwhile.
                Err(error @ ArchiveError::Redis(_)) => {
                    problem = Some(format!("it lacks counters, which cannot be read: {error}"));
                }
                seeded => seeded?,
            }
        }
        Ok(problem)
    }

    /// What stands in the way of a group, with which one that is, and where.
    fn told_of(&self, group: u16, error: &ArchiveError) -> String {
        match (error, self.external.master_of(group)) {
            (ArchiveError::Redis(error), Some(address)) => {
                format!("Redis at {address}, group {group}: {error}")
            }
            _ => format!("group {group}: {error}"),
        }
    }

    /// Streams in which nothing was: all that was counted there before is in the tables.
    async fn note_drained(
        &self,
        client: &Client,
        drained: &[(u16, i64)],
        epoch: &str,
    ) -> Result<(), ArchiveError> {
        let (groups, times): (Vec<i32>, Vec<i64>) =
            drained.iter().map(|(group, time_ms)| (i32::from(*group), *time_ms)).unzip();
        // In order, and none that somebody is at: nobody waits for anybody.
        let note = "UPDATE counter_watermark AS known SET drained_at_ms = seen.time_ms FROM (
            SELECT stream_group, time_ms FROM counter_watermark
                JOIN unnest($1::int[], $2::bigint[]) AS drained (stream_group, time_ms) USING (stream_group)
            WHERE epoch = $3 AND drained_at_ms < time_ms
            ORDER BY stream_group FOR UPDATE OF counter_watermark SKIP LOCKED) AS seen
            WHERE known.stream_group = seen.stream_group";
        client.execute(note, &[&groups, &times, &epoch]).await?;
        Ok(())
    }

    /// Policies are lost with everything else: they are kept in the tables too.
    async fn flush_policies(&self, client: &Client, epoch: &str) -> Result<(), ArchiveError> {
        let after = self.policies_version.load(Ordering::Relaxed);
        let Some((version, fields)) = self.external.policies_after(after) else { return Ok(()) };
        let kept = i64::try_from(version).unwrap_or(i64::MAX);
        let keep = "INSERT INTO counter_policies (epoch, version, fields)
            SELECT $1, $2, $3 WHERE EXISTS (SELECT 1 FROM counter_watermark WHERE epoch = $1)
            ON CONFLICT (only_row) DO UPDATE
                SET epoch = excluded.epoch, version = excluded.version, fields = excluded.fields
                WHERE counter_policies.epoch <> excluded.epoch OR counter_policies.version < excluded.version";
        client.execute(keep, &[&epoch, &kept, &fields]).await?;
        let is_kept = "SELECT 1 FROM counter_policies WHERE epoch = $1 AND version >= $2";
        if client.query_opt(is_kept, &[&epoch, &kept]).await?.is_some() {
            self.policies_version.store(version, Ordering::Relaxed);
        }
        Ok(())
    }

    /// What is flushed is trimmed, so few groups wait when little happens. A stream that is gone with its marker is not empty but lost, and
    /// neither waits nor is drained; nor does what a master has that does not answer.
    async fn waiting(&self, epoch: &str) -> Waiting {
        let map = self.external.map();
        let mut waiting = Waiting::default();
        for address in map.masters() {
            let here: Vec<u16> = map.groups_of(&address).collect();
            let mut pipeline = Pipeline::with_capacity(2 * here.len() + 1);
            pipeline.cmd("TIME");
            for group in &here {
                pipeline.cmd("XLEN").arg(groups::stream(*group));
                pipeline.cmd("HGET").arg(groups::marker(*group)).arg("epoch");
            }
            let answered = self.links.ask_all(&address, &pipeline, 2 * here.len() + 1).await;
            let answered = answered.and_then(|mut answers| Ok((to_ms(answers.remove(0))?, answers)));
            let (time_ms, answers) = match answered {
                Ok(answered) => answered,
                Err(error) => {
                    waiting.problem = Some(format!("Redis at {address}: {error}"));
                    continue;
                }
            };
            for (group, answer) in here.iter().zip(answers.chunks(2)) {
                match answer {
                    [Value::Int(0), Value::BulkString(marker)] if marker == epoch.as_bytes() => {
                        waiting.drained.push((*group, time_ms));
                    }
                    [Value::Int(0), _] => {}
                    _ => waiting.groups.push(*group),
                }
            }
        }
        waiting
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
        let (mut events, ours, mut stopped) = (0, self.external.epoch(), None);
        for group in 0..GROUPS {
            match self.flush_group(client, group, watermark, &ours).await {
                Err(error @ ArchiveError::Foreign(_)) => stopped = Some(error),
                flushed => events += flushed?,
            }
        }
        match stopped {
            Some(error) if events == 0 => Err(error),
            _ => Ok(events),
        }
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
                && let Some(address) = self.external.master_of(group)
                && let Some(Told { to: Some(first), .. }) =
                    streams::read(&self.links, &address, group, from, 1).await?
            {
                lag_ms = now_ms.saturating_sub(first.ms as u64).max(lag_ms);
            }
        }
        Ok(lag_ms)
    }

    /// Forgets ids that are over, some at a time. Returns how many those were.
    pub async fn purge(&self) -> Result<u64, ArchiveError> {
        let window_ms = self.id_window_ms() as f64;
        let purge = "DELETE FROM counter_idempotency WHERE id IN (
            SELECT id FROM counter_idempotency
            WHERE created_at < now() - $1 * interval '1 millisecond' ORDER BY created_at LIMIT $2 FOR UPDATE SKIP LOCKED)";
        Ok(self.archive.connect().await?.execute(purge, &[&window_ms, &(PURGE_ROWS as i64)]).await?)
    }

    /// How long ids are remembered, by whichever node remembers them longest.
    pub(super) fn id_window_ms(&self) -> u64 {
        self.external.id_window_ms().max(self.options.id_window.as_millis() as u64)
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
        let known = Watermark::of(&row);
        if epoch::is_newer(&known.epoch, ours) {
            return Err(self.is_outdated(&known, ours));
        }
        if epoch::is_newer(ours, &known.epoch) {
            return note_lack(rows, &known, ours, "they are of an older epoch").await;
        }
        if !known.epoch.is_empty() && known.epoch != ours {
            let Watermark { epoch, .. } = &known;
            return Err(ArchiveError::Unfit(format!(
                "the tables have group {group} of epoch {epoch}, and Redis has epoch {ours}"
            )));
        }
        // What it lacks comes first.
        if known.whole_from.is_none() {
            return Ok(0);
        }
        let Some(address) = self.external.master_of(group) else { return Ok(0) };
        let found = streams::position_of(&self.links, &address, group, known.place).await?;
        let Some(found) = found else { return Ok(0) };
        match known.judge(&found) {
            Judged::Whole => {}
            Judged::RedisIsBehind => return self.doubt(&known, &found, ours).await,
            Judged::TablesLack => {
                return note_lack(rows, &known, ours, "changes went from its stream before they came there")
                    .await;
            }
        }
        let told = self.read(&address, group, known.place, self.options.entries).await?;
        let Some(told) = told else { return Ok(0) };
        let Some(to) = told.to else {
            return told.foreign.map_or(Ok(0), |entry| Err(foreign(group, &entry)));
        };
        let Some(bodies) = self.bodies_of(group, &told.changes).await? else { return Ok(0) };
        rows::write(&rows, &self.external.stripes(), group, to, &told.changes).await?;
        rows::write_ids(&rows, group, &told.changes, Since::Now).await?;
        if self.options.keeps_log {
            rows::write_log(&rows, group, &told.changes).await?;
        }
        producers::write(&rows, group, &told.producers).await?;
        bodies::write(&rows, &bodies, &told.changes).await?;
        let early = Early::of(&bodies, &told.changes);
        self.write_early_ids(&rows, &address, group, to, early).await?;
        let moved = "UPDATE counter_watermark SET epoch = $2, event_ms = $3, event_sequence = $4,
            events = events + $5, births = greatest(births, $6), entries_added = $7, updated_at = now()
            WHERE stream_group = $1";
        let events = told.changes.len() as u64;
        let count = events as i64;
        let births = told.changes.iter().map(|change| change.cell.birth as i64).max().unwrap_or(0);
        let added = found.before + told.entries;
        rows.execute(moved, &[&number, &ours, &to.ms, &to.sequence, &count, &births, &added]).await?;
        rows.commit().await?;
        self.archive.facts.flushed.fetch_add(events, Ordering::Relaxed);
        // What is in the tables may go. Should that fail, the next one does it.
        let mut trim = redis::cmd("XTRIM");
        trim.arg(groups::stream(group)).arg("MINID").arg(to.next().to_string());
        self.links.ask(&address, &trim).await?;
        // An entry without any change, such as a refused batch, is progress too.
        Ok(events.max(1))
    }

    /// The entries after a place; fewer than these where so many could not be had in time before, or told more than enough, since nobody
    /// knows how large they are.
    async fn read(&self, address: &str, group: u16, from: Place, most: usize) -> RedisResult<Option<Told>> {
        let (halvings, enough) = (&self.halvings[usize::from(group)], &self.enough[usize::from(group)]);
        let (known, began) = (halvings.load(Ordering::Relaxed), Instant::now());
        let count = fewer(most, known).min(enough.load(Ordering::Relaxed));
        let told = streams::read(&self.links, address, group, from, count).await;
        let took = told.as_ref().ok().map(|_| began.elapsed());
        halvings.store(halvings_after(known, took, self.external.lanes.options.timeout), Ordering::Relaxed);
        if let Ok(Some(told)) = &told {
            enough.store(enough_after(enough.load(Ordering::Relaxed), told), Ordering::Relaxed);
        }
        told
    }

    /// The tables are of a newer epoch than Redis as this node knows it: it is about to hear of that, or looks at another Redis.
    fn is_outdated(&self, known: &Watermark, ours: &str) -> ArchiveError {
        self.external.look_soon();
        ArchiveError::Unfit(format!(
            "the archive is of epoch {} by now, and this Redis of epoch {ours}: it was rebuilt, and this node is about to hear of \
             it; or another Redis was rebuilt from the archive, or this one has come back from an old copy. Nothing is written \
             there meanwhile. If this lasts, restart this node with the right --backend",
            known.epoch
        ))
    }

    /// Redis has come back older than it was: nobody counts in that group from now on, until it is rebuilt.
    async fn doubt(&self, known: &Watermark, found: &Position, ours: &str) -> Result<u64, ArchiveError> {
        if streams::doubt(&self.links, &self.external.map(), known.group, ours).await? {
            known.log_behind(found);
        }
        self.external.look_soon();
        Ok(0)
    }

    /// Bodies are read after the changes at hand, and so may have later ones in them: the ids of those come along. If too many lie in
    /// between to be looked through, some may be missing.
    async fn write_early_ids(
        &self,
        rows: &Transaction<'_>,
        address: &str,
        group: u16,
        mut from: Place,
        mut early: Early<'_>,
    ) -> Result<(), ArchiveError> {
        let (mut left, began) = (EARLY_ENTRIES_MAX, Instant::now());
        while left > 0 && !early.is_empty() && began.elapsed() < EARLY_TIME {
            // A look may see far fewer than are asked for.
            let told = self.read(address, group, from, EARLY_ENTRIES.min(left)).await?;
            let Some(Told { to: Some(to), entries, may_be_more, changes, .. }) = told else { return Ok(()) };
            rows::write_ids(rows, group, changes.iter().filter(|change| early.has(change)), Since::Now)
                .await?;
            if !may_be_more {
                return Ok(());
            }
            (from, left) = (to, left.saturating_sub(usize::try_from(entries).unwrap_or(left)));
        }
        Ok(())
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
                Err(error) if streams::is_on_the_way(&error) => return Ok(None),
                stored => stored?,
            };
            let of_keys = keys.iter().zip(stored);
            found.extend(of_keys.filter_map(|(key, stored)| Some((key.to_vec(), stored?))));
        }
        Ok(Some(found))
    }
}

/// So many, halved so often, but not none.
fn fewer(most: usize, halvings: u32) -> usize {
    most.checked_shr(halvings).unwrap_or(0).max(1)
}

/// How often the number of entries is halved after a read that took so long, or failed. Twice as many are asked for only where those
/// would still be quick.
fn halvings_after(halvings: u32, took: Option<Duration>, timeout: Duration) -> u32 {
    match took {
        Some(took) if took < timeout / 8 => halvings.saturating_sub(1),
        Some(took) if took < timeout / 2 => halvings,
        _ => (halvings + 1).min(HALVINGS_MAX),
    }
}

/// How many entries tell enough, after these were read. Twice as many are asked for only where those would still be told.
fn enough_after(enough: usize, told: &Told) -> usize {
    match told.is_cut {
        true => usize::try_from(told.entries).unwrap_or(1).max(1),
        false if told.changes.len() <= CHANGES_MAX / 2 => enough.saturating_mul(2),
        false => enough,
    }
}

/// The tables have not got everything of a group, and say so until they have.
async fn note_lack(
    rows: Transaction<'_>,
    known: &Watermark,
    ours: &str,
    why: &str,
) -> Result<u64, ArchiveError> {
    let note = "UPDATE counter_watermark SET epoch = $2, whole_from_ms = NULL, whole_from_sequence = NULL
        WHERE stream_group = $1";
    rows.execute(note, &[&i32::from(known.group), &ours]).await?;
    rows.commit().await?;
    tracing::warn!(
        group = known.group,
        "the archive has not got all counters of a group: {why}; they are read from Redis"
    );
    Ok(0)
}

fn foreign(group: u16, entry: &str) -> ArchiveError {
    let stream = groups::stream(group);
    ArchiveError::Foreign(format!(
        "entry {entry} of {stream} was not written by this version of quipu, and what comes behind it waits; other streams go on. If \
         nodes of a newer version run, bring this one up to date; else look at it (XRANGE {stream} {entry} {entry}) and remove it \
         (XDEL {stream} {entry})"
    ))
}

pub(crate) fn wall_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_that_take_long_are_read_in_smaller_pieces() {
        let timeout = Duration::from_millis(800);
        let after = |halvings, ms| halvings_after(halvings, Some(Duration::from_millis(ms)), timeout);
        assert_eq!([after(0, 10), after(3, 10), after(3, 200), after(3, 500)], [0, 2, 3, 4]);
        assert_eq!(halvings_after(3, None, timeout), 4);
        let down = (0..100).fold(0, |halvings, _| halvings_after(halvings, None, timeout));
        assert_eq!([fewer(500, 0), fewer(500, 1), fewer(500, 8), fewer(500, down)], [500, 250, 1, 1]);
        assert_eq!((0..100).fold(down, |halvings, _| after(halvings, 1)), 0);
    }

    #[test]
    fn no_more_entries_are_read_than_tell_enough() {
        let change = Change::of(b"likes", b"a 5 7 3 1000 9 n").expect("a change");
        let told = |entries, changes, is_cut| Told {
            entries,
            changes: vec![change.clone(); changes],
            is_cut,
            ..Told::default()
        };
        assert_eq!(enough_after(usize::MAX, &told(500, 500, false)), usize::MAX);
        assert_eq!(enough_after(usize::MAX, &told(20, CHANGES_MAX, true)), 20);
        assert_eq!(enough_after(20, &told(20, CHANGES_MAX, false)), 20);
        assert_eq!(enough_after(20, &told(20, CHANGES_MAX / 2, false)), 40);
    }
}

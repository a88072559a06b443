//! Redis has lost counters: brings them back from the tables.
//!
//! One node at a time, under a lock in PostgreSQL, which ends with its connection. In order:
//!
//! 1. What the streams still have after the watermarks goes to the tables: those are as good then as they can be.
//! 2. Every group that has lost its marker is emptied and filled from the snapshots: counters, and what was decided under request
//!    ids. Its marker comes last. Until then nobody counts there.
//! 3. All other groups get the new epoch too, then the watermarks, with a row that tells what happened, then the hash of policies.
//!    From there every node takes the new epoch over.
//!
//! Whoever dies in between leaves something that the next one goes on from: groups that have the new epoch are whole. What was
//! acknowledged after the watermark and is in no stream is gone: that is the gap, and it is told.

use std::collections::{BTreeMap, HashSet};

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use redis::{Cmd, Pipeline, Value};
use tokio_postgres::Client;

use super::flusher::Flusher;
use super::migrations::migrate;
use super::producers::PRODUCERS;
use super::restored::{self, Restored};
use super::streams::{self, FUNCTIONS, Place};
use super::watermark::{self, ANY, Judged, Watermark};
use super::{ArchiveError, Recovery, bond};
use crate::epoch;
use crate::external::Loss;
use crate::groups::{self, GROUPS, POLICIES};
use crate::standing::{Named, Standing};

/// Of the lock: any number that nobody else uses.
const LOCK: i64 = 0x71_75_69_70_76;
/// Births that may have been given out after the watermark: counters that come back must not get one of them.
const BIRTHS_GAP: i64 = 1 << 32;
/// Versions that the policies may have had after the last flush: what comes back must be newer than all of them.
const VERSIONS_GAP: u64 = 1 << 20;
/// Keys of one call: what a master does meanwhile is this and nothing else.
const KEYS_PER_CALL: usize = 500;
/// Rows of one page: some have a body of kilobytes.
const PAGE: i64 = 2_000;
/// Keys that one step of a walk looks at.
const SCAN_STEP: usize = 1_000;

/// How an attempt went.
#[derive(Debug)]
pub(super) enum Attempt {
    /// Everything is there, in this epoch.
    Whole(String),
    /// Somebody else is at it.
    Busy,
    /// Not everybody can be asked yet.
    NotYet,
    /// Others see everything: this is another Redis, or they are about to hear of the loss.
    Elsewhere,
}

/// What an attempt has brought back so far.
#[derive(Default)]
struct Tally {
    counters: i64,
    request_ids: i64,
    replayed: i64,
}

impl Flusher {
    /// Brings back what Redis has lost, if nobody else is at it.
    pub(super) async fn recover(&self, known: Loss) -> Result<Attempt, ArchiveError> {
        let mut client = self.archive.connect().await?;
        migrate(&mut client).await?;
        let is_ours: bool = client.query_one("SELECT pg_try_advisory_lock($1)", &[&LOCK]).await?.get(0);
        if !is_ours {
            return Ok(Attempt::Busy);
        }
        let Some(before) = super::store::epoch_in(&client).await? else { return Ok(Attempt::NotYet) };
        let standing = Standing::look(&self.links, &self.external.map()).await;
        if standing.is_partly_unknown() {
            return Ok(Attempt::NotYet);
        }
        let after = epoch::after(&before);
        refuse_strangers(&standing, &before)?;
        refuse_other_epochs(&standing, &before, &after)?;
        bond::refuse_other(&client, &self.links, &self.external.map()).await?;
        // What has come back older is lost too, and all of it comes back at once.
        bond::doubt_what_is_behind(&client, &self.links, &self.external.map(), &before).await?;
        let standing = Standing::look(&self.links, &self.external.map()).await;
        if standing.is_partly_unknown() {
            return Ok(Attempt::NotYet);
        }
        let is_whole = |marker: &Named| marker.is(&before) || marker.is(&after);
        let lost: Vec<u16> =
            (0..GROUPS).filter(|group| !is_whole(&standing.markers[usize::from(*group)])).collect();
        if standing.names_nothing() && self.is_elsewhere(&client).await? {
            return Ok(Attempt::Elsewhere);
        }
        refuse_unseeded(&client, &lost).await?;
        if lost.is_empty() && standing.markers.iter().all(|marker| marker.is(&before)) {
            self.restore_policies(&client, &before, &before).await?;
            return Ok(Attempt::Whole(before));
        }
        // What is lost beyond what was known was counted in until now.
        let is_new = lost.iter().any(|group| known.groups & 1 << group == 0);
        let lost_at_ms = if is_new { standing.time_ms } else { known.since_ms };
        let attempt = Rebuilding { flusher: self, before, after, lost, lost_at_ms };
        attempt.run(&mut client).await.map(Attempt::Whole)
    }

    /// The hash of policies: the one that is there goes over to the new epoch; one that is gone comes from the tables.
    async fn restore_policies(&self, client: &Client, before: &str, after: &str) -> Result<(), ArchiveError> {
        let address = self.external.map().of_policies().map(str::to_owned);
        let address = address.ok_or_else(|| ArchiveError::Unfit("nobody has the policies".into()))?;
        streams::load(&self.links, &address).await?;
        let mut advance = redis::cmd("FCALL");
        advance.arg(format!("{FUNCTIONS}advance")).arg(1).arg(POLICIES).arg(before).arg(after);
        if self.links.ask_for::<u8>(&address, &advance).await? == 1 {
            return Ok(());
        }
        let stored = client.query_opt("SELECT version, fields FROM counter_policies", &[]).await?;
        let (version, fields) = stored.map_or((0, Vec::new()), |row| (row.get::<_, i64>(0), row.get(1)));
        // What was set since the last flush is still known here.
        let newer = self.external.policies_after(u64::try_from(version).unwrap_or(0));
        let mut fields: Vec<Vec<u8>> = newer.map_or(fields, |(_, fields)| fields);
        make_newer(&mut fields);
        let mut put = redis::cmd("FCALL");
        put.arg(format!("{FUNCTIONS}policies")).arg(1).arg(POLICIES).arg(after).arg("complete").arg(1);
        fields.iter().for_each(|field| _ = put.arg(&field[..]));
        put.arg(bond::FIELD).arg(bond::identity(client).await?);
        self.links.ask(&address, &put).await?;
        Ok(())
    }

    /// Whether other nodes see all counters while this one sees none at all: then it looks at another Redis, or they are about to hear
    /// of the loss.
    async fn is_elsewhere(&self, client: &Client) -> Result<bool, ArchiveError> {
        bond::take_back(client, &self.name).await?;
        bond::others_see_all(client, &self.name, None).await
    }
}

/// From tables that lack something nothing is rebuilt.
async fn refuse_unseeded(client: &Client, lost: &[u16]) -> Result<(), ArchiveError> {
    let known = watermark::all(client).await?;
    match lost.iter().find(|group| !known[usize::from(**group)].is_whole()) {
        None => Ok(()),
        Some(group) => Err(ArchiveError::Unfit(format!(
            "Redis has lost group {group}, and the archive has not got everything of it, because it was added, or came back from an \
             old copy, when there were counters already: nothing is rebuilt from that. Restore Redis from its own backup. To take \
             what the archive has for all there is: UPDATE counter_watermark SET whole_from_ms = 0, whole_from_sequence = 0"
        ))),
    }
}

/// Puts policies beyond all versions that anybody may have seen.
fn make_newer(fields: &mut [Vec<u8>]) {
    for pair in fields.chunks_exact_mut(2).filter(|pair| pair[0] == b"version") {
        let version = std::str::from_utf8(&pair[1]).ok().and_then(|text| text.parse::<u64>().ok());
        pair[1] = version.unwrap_or(0).saturating_add(VERSIONS_GAP).to_string().into_bytes();
    }
}

/// Counters of another deployment are nothing to be overwritten.
fn refuse_strangers(standing: &Standing, before: &str) -> Result<(), ArchiveError> {
    let all = standing.markers.iter().chain([&standing.policies]);
    for named in all {
        if let Named::Epoch(named) = named
            && !epoch::is_related(named, before)
        {
            return Err(ArchiveError::Unfit(format!(
                "Redis has lost the counters of epoch {before}, and has others of epoch {named} by now, which somebody began \
                 without this archive: they are not overwritten. Flush that Redis if nobody needs them"
            )));
        }
    }
    Ok(())
}

/// A Redis that is of another epoch as a whole may have counted on while another one was rebuilt from the archive: there are two truths
/// then. A part of one that is of an older epoch has merely come back old.
fn refuse_other_epochs(standing: &Standing, before: &str, after: &str) -> Result<(), ArchiveError> {
    let all = || standing.markers.iter().chain([&standing.policies]);
    let is_ours = all().any(|named| named.is(before) || named.is(after));
    let other = all().find_map(|named| match named {
        Named::Epoch(named) if !is_ours || epoch::is_newer(named, after) => Some(named),
        _ => None,
    });
    let Some(other) = other else { return Ok(()) };
    Err(ArchiveError::Unfit(format!(
        "Redis is of epoch {other}, and the archive of epoch {before}: another Redis was rebuilt from it, or one of the two has come \
         back from an old copy. Nothing is overwritten. To keep what the archive has, flush this Redis: then it is rebuilt. To keep \
         what this Redis has: redis-cli HDEL {POLICIES} {}, and name an empty database in --archive",
        bond::FIELD
    )))
}

struct Rebuilding<'a> {
    flusher: &'a Flusher,
    before: String,
    after: String,
    lost: Vec<u16>,
    /// When nobody counted any more in any of them, by the clock of Redis.
    lost_at_ms: i64,
}

impl Rebuilding<'_> {
    async fn run(&self, client: &mut Client) -> Result<String, ArchiveError> {
        let Rebuilding { flusher, before, after, lost, .. } = self;
        tracing::warn!(
            groups = lost.len(),
            "Redis has lost counters of epoch {before}; they are rebuilt from the archive as epoch {after}"
        );
        let map = flusher.external.map();
        for address in map.masters() {
            streams::load(&flusher.links, &address).await?;
        }
        let has_survived = self.surviving_streams(client).await?;
        let mut tally = Tally { replayed: self.drain(client).await?, ..Tally::default() };
        refuse_unseeded(client, lost).await?;
        self.refuse_undrained(client, &has_survived).await?;
        let known = watermark::all(client).await?;
        let token = format!("{:016x}", SmallRng::from_os_rng().random::<u64>());
        let groups: HashSet<u16> = self.begin(&token).await?;
        self.empty(&token, &groups).await?;
        tally.counters = self.put_counters(client, &token, &groups).await?;
        tally.request_ids = self.put_request_ids(client, &token, &groups).await?;
        let producers = self.put_producers(client, &token, &groups).await?;
        tracing::info!(producers, "producers are as far as they were at the last flush");
        self.finish(client, &token, &groups, &known).await?;
        for group in (0..GROUPS).filter(|group| !lost.contains(group)) {
            self.call(group, "advance", &[], &[before.as_bytes(), after.as_bytes()]).await?;
        }
        let gone = lost.iter().filter(|group| !has_survived.contains(*group)).copied().collect::<Vec<_>>();
        let told = self.told(&tally, &gone, &known);
        self.tell(client, &told).await?;
        flusher.restore_policies(client, before, after).await?;
        told.log();
        Ok(after.clone())
    }

    /// Groups whose stream is still there, with all that the tables know of: of those nothing is missing.
    async fn surviving_streams(&self, client: &Client) -> Result<HashSet<u16>, ArchiveError> {
        let known = watermark::all(client).await?;
        let places: Vec<Place> = known.iter().map(|known| known.place).collect();
        let found = streams::positions(&self.flusher.links, &self.flusher.external.map(), &places).await?;
        let has_survived = |group: &u16| {
            let (known, found) = (&known[usize::from(*group)], found[usize::from(*group)]);
            found.is_some_and(|found| {
                found.last != Place::default() && known.judge(&found) != Judged::RedisIsBehind
            })
        };
        Ok(self.lost.iter().copied().filter(has_survived).collect())
    }

    /// Brings what the streams still have to the tables. A stream that has come back older is left alone: what it has was counted
    /// on what is no more.
    async fn drain(&self, client: &mut Client) -> Result<i64, ArchiveError> {
        let mut events = 0;
        for group in 0..GROUPS {
            loop {
                match self.flusher.flush_group(client, group, ANY, &self.before).await {
                    // What is not lost need not be flushed now.
                    Err(ArchiveError::Foreign(_)) if !self.lost.contains(&group) => break,
                    Ok(0) => break,
                    more => events += more? as i64,
                }
            }
        }
        Ok(events)
    }

    /// What is still in a stream goes with it, so there must be nothing.
    async fn refuse_undrained(&self, client: &Client, survived: &HashSet<u16>) -> Result<(), ArchiveError> {
        let known = watermark::all(client).await?;
        let places: Vec<Place> = known.iter().map(|known| known.place).collect();
        let found = streams::positions(&self.flusher.links, &self.flusher.external.map(), &places).await?;
        for group in survived {
            if found[usize::from(*group)].is_none_or(|found| found.left > 0) {
                return Err(ArchiveError::Unfit(format!(
                    "the stream of group {group} cannot be read to its end yet"
                )));
            }
        }
        Ok(())
    }

    /// Takes the groups that have to be rebuilt. One that is whole by now is left alone.
    async fn begin(&self, token: &str) -> Result<HashSet<u16>, ArchiveError> {
        let mut begun = HashSet::new();
        for group in &self.lost {
            let arguments = [token.as_bytes(), self.before.as_bytes()];
            let producers = [groups::producers(*group).into_bytes()];
            if self.call(*group, "begin", &producers, &arguments).await? {
                begun.insert(*group);
            }
        }
        Ok(begun)
    }

    async fn call(
        &self,
        group: u16,
        function: &str,
        keys: &[Vec<u8>],
        arguments: &[&[u8]],
    ) -> Result<bool, ArchiveError> {
        let address = self.flusher.external.master_of(group);
        let address = address.ok_or_else(|| ArchiveError::Unfit(format!("nobody has group {group}")))?;
        let call = fcall(group, function, keys, arguments);
        Ok(self.flusher.links.ask_for::<u8>(&address, &call).await? == 1)
    }

    /// What lies in these groups is not what was lost, or only a part of it: it goes.
    async fn empty(&self, token: &str, groups: &HashSet<u16>) -> Result<(), ArchiveError> {
        let links = &self.flusher.links;
        let tags: HashSet<&[u8]> = groups.iter().map(|group| groups::tag(*group).as_bytes()).collect();
        for address in self.flusher.external.map().masters() {
            let mut cursor = 0;
            loop {
                let mut scan = redis::cmd("SCAN");
                scan.arg(cursor).arg("MATCH").arg("{q*}:[ci]:*").arg("COUNT").arg(SCAN_STEP);
                let (next, names): (u64, Vec<Vec<u8>>) = links.ask_for(&address, &scan).await?;
                let of_lost =
                    names.into_iter().filter(|name| tag_in(name).is_some_and(|tag| tags.contains(tag)));
                let gone = of_lost.map(Restored::gone).collect();
                self.put(token, gone).await?;
                if next == 0 {
                    break;
                }
                cursor = next;
            }
        }
        Ok(())
    }

    async fn put_counters(
        &self,
        client: &Client,
        token: &str,
        groups: &HashSet<u16>,
    ) -> Result<i64, ArchiveError> {
        let (mut after, mut count): (Option<(Vec<u8>, i32)>, i64) = (None, 0);
        loop {
            let (key, shard) = after.clone().unwrap_or_default();
            let rows = client.query(restored::COUNTERS, &[&key, &shard, &PAGE]).await?;
            let Some(last) = rows.last() else { return Ok(count) };
            after = Some((last.get(0), last.get(1)));
            let found = rows.iter().map(restored::counter);
            let found: Vec<Restored> = found.filter(|found| groups.contains(&found.group)).collect();
            count += found.len() as i64;
            self.put(token, found).await?;
        }
    }

    async fn put_request_ids(
        &self,
        client: &Client,
        token: &str,
        groups: &HashSet<u16>,
    ) -> Result<i64, ArchiveError> {
        let window_ms = i64::try_from(self.flusher.id_window_ms()).unwrap_or(i64::MAX);
        let oldest_ms = self.lost_at_ms.saturating_sub(window_ms);
        let (mut after, mut count) = (0_i64, 0);
        loop {
            let rows = client.query(restored::REQUEST_IDS, &[&after, &oldest_ms, &PAGE]).await?;
            let Some(last) = rows.last() else { return Ok(count) };
            after = last.get(0);
            let found = rows.iter().map(|row| restored::request_id(row, window_ms));
            let found: Vec<Restored> = found.filter(|found| groups.contains(&found.group)).collect();
            count += found.len() as i64;
            self.put(token, found).await?;
        }
    }

    /// How far producers were.
    async fn put_producers(
        &self,
        client: &Client,
        token: &str,
        groups: &HashSet<u16>,
    ) -> Result<i64, ArchiveError> {
        let mut count = 0;
        for group in groups {
            let mut after: Vec<u8> = Vec::new();
            loop {
                let rows = client.query(PRODUCERS, &[&i32::from(*group), &after, &PAGE]).await?;
                let Some(last) = rows.last() else { break };
                after = last.get(0);
                count += rows.len() as i64;
                let texts =
                    rows.iter().flat_map(|row| [row.get::<_, &[u8]>(0), row.get::<_, &str>(1).as_bytes()]);
                let arguments: Vec<&[u8]> = [token.as_bytes()].into_iter().chain(texts).collect();
                let producers = [groups::producers(*group).into_bytes()];
                if !self.call(*group, "producers", &producers, &arguments).await? {
                    return Err(taken_over());
                }
            }
        }
        Ok(count)
    }

    /// Brings these back, in calls by group, and the calls of a master in one pipeline.
    async fn put(&self, token: &str, found: Vec<Restored>) -> Result<(), ArchiveError> {
        let map = self.flusher.external.map();
        let mut by_group: BTreeMap<u16, Vec<Restored>> = BTreeMap::new();
        found.into_iter().for_each(|found| by_group.entry(found.group).or_default().push(found));
        let mut by_master: BTreeMap<&str, Vec<Cmd>> = BTreeMap::new();
        for (group, found) in &by_group {
            let address = map.of_group(*group);
            let address = address.ok_or_else(|| ArchiveError::Unfit(format!("nobody has group {group}")))?;
            for part in found.chunks(KEYS_PER_CALL) {
                let keys: Vec<Vec<u8>> = part.iter().map(|found| found.name.clone()).collect();
                let texts = part.iter().flat_map(|found| [&found.text[..], found.removal.as_bytes()]);
                let arguments: Vec<&[u8]> = [token.as_bytes()].into_iter().chain(texts).collect();
                by_master.entry(address).or_default().push(fcall(*group, "put", &keys, &arguments));
            }
        }
        for (address, calls) in by_master {
            let mut pipeline = Pipeline::with_capacity(calls.len());
            let count = calls.len();
            calls.into_iter().for_each(|call| _ = pipeline.add_command(call));
            for answer in self.flusher.links.ask_all(address, &pipeline, count).await? {
                if !matches!(answer.extract_error()?, Value::Int(1)) {
                    return Err(taken_over());
                }
            }
        }
        Ok(())
    }

    async fn finish(
        &self,
        client: &Client,
        token: &str,
        groups: &HashSet<u16>,
        known: &[Watermark],
    ) -> Result<(), ArchiveError> {
        let newest: i64 = client.query_one(restored::NEWEST_BIRTH, &[]).await?.get(0);
        for group in groups {
            let Watermark { place, births, added, .. } = &known[usize::from(*group)];
            let births = births.max(&newest).saturating_add(BIRTHS_GAP).to_string();
            let (last, added) = (place.to_string(), added.map_or(String::new(), |added| added.to_string()));
            let arguments = [token, &self.after, &births, &last, &added].map(str::as_bytes);
            let stream = [groups::stream(*group).into_bytes()];
            if !self.call(*group, "finish", &stream, &arguments).await? {
                return Err(taken_over());
            }
        }
        Ok(())
    }

    fn told(&self, tally: &Tally, gone: &[u16], known: &[Watermark]) -> Recovery {
        let until = |group: &u16| known[usize::from(*group)].known_until();
        let furthest = gone.iter().min_by_key(|group| until(group));
        let last = furthest.or(self.lost.first()).map_or(Place::default(), until);
        Recovery {
            epoch_before: self.before.clone(),
            epoch_after: self.after.clone(),
            detected_at_ms: self.lost_at_ms,
            finished_at_ms: self.flusher.external.time_of_redis_ms(),
            groups_lost: self.lost.len() as i32,
            counters: tally.counters,
            request_ids: tally.request_ids,
            replayed: tally.replayed,
            gap_ms: furthest.map(|group| {
                let from_ms = until(group).ms;
                // A server that takes another's place may have an earlier time.
                (from_ms, self.lost_at_ms.max(from_ms))
            }),
            watermark: last.to_string(),
        }
    }

    /// The new epoch, and what happened, in one transaction.
    async fn tell(&self, client: &mut Client, told: &Recovery) -> Result<(), ArchiveError> {
        let rows = client.transaction().await?;
        let moved = "UPDATE counter_watermark SET epoch = $1, births = births + $2";
        rows.execute(moved, &[&told.epoch_after, &BIRTHS_GAP]).await?;
        let insert = "INSERT INTO counter_recovery (epoch_before, epoch_after, detected_at_ms, finished_at_ms, groups_lost,
                counters, request_ids, replayed, gap_from_ms, gap_to_ms, watermark)
            VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
        let (from, to) = (told.gap_ms.map(|gap| gap.0), told.gap_ms.map(|gap| gap.1));
        rows.execute(
            insert,
            &[
                &told.epoch_before,
                &told.epoch_after,
                &told.detected_at_ms,
                &told.finished_at_ms,
                &told.groups_lost,
                &told.counters,
                &told.request_ids,
                &told.replayed,
                &from,
                &to,
                &told.watermark,
            ],
        )
        .await?;
        rows.commit().await?;
        Ok(())
    }
}

/// A call for one group: its marker, then these.
fn fcall(group: u16, function: &str, keys: &[Vec<u8>], arguments: &[&[u8]]) -> Cmd {
    let mut call = redis::cmd("FCALL");
    call.arg(format!("{FUNCTIONS}{function}")).arg(1 + keys.len()).arg(groups::marker(group));
    keys.iter().for_each(|key| _ = call.arg(&key[..]));
    arguments.iter().for_each(|argument| _ = call.arg(*argument));
    call
}

fn taken_over() -> ArchiveError {
    ArchiveError::Unfit("another node has taken the rebuilding over".into())
}

/// The hash tag of a name.
fn tag_in(name: &[u8]) -> Option<&[u8]> {
    let rest = name.strip_prefix(b"{")?;
    rest.iter().position(|byte| *byte == b'}').map(|close| &rest[..close])
}

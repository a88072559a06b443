//! How far behind the tables are, and how much lies in the streams. Measured apart from flushing, so that it is also known
//! while nothing can be flushed.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use redis::{Pipeline, RedisError, RedisResult, Value};
use tokio_postgres::Client;

use super::flusher::Flusher;
use super::streams::Place;
use super::told::recoveries;
use super::{ArchiveError, bond};
use crate::groups::{self, GROUPS};
use crate::standing::to_ms;

/// Between two measurements.
const INTERVAL: Duration = Duration::from_secs(1);

/// What is known of a stream, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Backlog {
    lag_ms: u64,
    entries: u64,
}

/// What was last known of a stream, and when.
#[derive(Clone, Copy)]
struct Measured {
    at: Instant,
    backlog: Backlog,
}

impl Flusher {
    /// Measures again and again, until it is stopped.
    pub(super) async fn measure(&self) {
        let (mut client, mut places) = (None, vec![Place::default(); usize::from(GROUPS)]);
        let nothing = Measured { at: Instant::now(), backlog: Backlog::default() };
        let (mut measured, mut is_told) = (vec![nothing; usize::from(GROUPS)], false);
        loop {
            // While PostgreSQL is away, its watermarks stay where they were.
            match self.watermarks(&mut client).await {
                Ok(known) => places = known,
                Err(_) => client = None,
            }
            if let Some(client) = &client
                && let Ok((count, last)) = recoveries(client).await
            {
                self.archive.note_recoveries(count, last);
            }
            if let Some(connected) = &client
                && self.say_whole(connected).await.is_err()
            {
                client = None;
            }
            let now = Instant::now();
            let failed = self.look_at_streams(&places, &mut measured, now).await;
            let Backlog { lag_ms, entries } = added_up(&measured, now);
            let facts = &self.archive.facts;
            facts.lag_ms.store(lag_ms, Ordering::Relaxed);
            facts.stream_entries.store(entries, Ordering::Relaxed);
            if let Some(error) = failed.as_ref().filter(|_| !is_told) {
                tracing::warn!(%error, "it cannot be measured how far the archive is behind");
            }
            is_told = failed.is_some();
            tokio::time::sleep(INTERVAL).await;
        }
    }

    /// Tells others that all counters are seen, on which Redis; or that they are not. And hears whether others see them elsewhere.
    pub(super) async fn say_whole(&self, client: &Client) -> Result<(), ArchiveError> {
        if !self.external.has_all() {
            return bond::take_back(client, &self.name).await;
        }
        let servers = bond::servers(&self.links, &self.external.map()).await;
        // It may have gone while that was asked.
        if !self.external.has_all() {
            return bond::take_back(client, &self.name).await;
        }
        let is_in_use = bond::others_see_all(client, &self.name, Some(&servers)).await?;
        self.is_in_use.store(is_in_use, Ordering::Relaxed);
        bond::say_whole(client, &self.name, &servers).await
    }

    async fn watermarks(&self, client: &mut Option<Client>) -> Result<Vec<Place>, ArchiveError> {
        let known = match client {
            Some(known) => known,
            None => client.insert(self.archive.connect().await?),
        };
        let all = "SELECT stream_group, event_ms, event_sequence FROM counter_watermark";
        let mut places = vec![Place::default(); usize::from(GROUPS)];
        for row in known.query(all, &[]).await? {
            let place = usize::try_from(row.get::<_, i32>(0)).ok().and_then(|group| places.get_mut(group));
            if let Some(place) = place {
                *place = Place { ms: row.get(1), sequence: row.get(2) };
            }
        }
        Ok(places)
    }

    /// Measures what lies behind these places, at all masters that answer. Says why another does not.
    async fn look_at_streams(
        &self,
        places: &[Place],
        measured: &mut [Measured],
        at: Instant,
    ) -> Option<RedisError> {
        let (map, mut failed) = (self.external.map(), None);
        for address in map.masters() {
            let here: Vec<u16> = map.groups_of(&address).collect();
            let mut pipeline = Pipeline::with_capacity(1 + 2 * here.len());
            pipeline.cmd("TIME");
            for group in &here {
                let (stream, from) = (groups::stream(*group), places[usize::from(*group)]);
                pipeline.cmd("XLEN").arg(&stream);
                pipeline.cmd("XRANGE").arg(&stream).arg(from.behind()).arg("+").arg("COUNT").arg(1);
            }
            match self.links.ask_all(&address, &pipeline, 1 + 2 * here.len()).await.and_then(backlogs) {
                Ok(found) => {
                    for (group, backlog) in here.into_iter().zip(found) {
                        let known = &mut measured[usize::from(group)];
                        *known = backlog.map_or(*known, |backlog| Measured { at, backlog });
                    }
                }
                Err(error) => failed = Some(error),
            }
        }
        failed
    }
}

/// What a master said: its time, and of each stream the length and the first entry that is not flushed. Nothing of a stream whose slot
/// moves just now: the next look will find it.
fn backlogs(answers: Vec<Value>) -> RedisResult<Vec<Option<Backlog>>> {
    let mut answers = answers.into_iter();
    let now_ms = to_ms(answers.next().unwrap_or(Value::Nil))?;
    let mut found = Vec::new();
    while let (Some(length), Some(first)) = (answers.next(), answers.next()) {
        let (Ok(length), Ok(first)) = (length.extract_error(), first.extract_error()) else {
            found.push(None);
            continue;
        };
        let entries = redis::from_redis_value(length)?;
        let first: Vec<(String, Value)> = redis::from_redis_value(first)?;
        let place = first.first().and_then(|(id, _)| Place::of(id));
        let lag_ms = place.map_or(0, |place| u64::try_from(now_ms - place.ms).unwrap_or(0));
        found.push(Some(Backlog { lag_ms, entries }));
    }
    Ok(found)
}

/// What all streams come to. Of one that could not be asked nobody knows what it has got since: it is the further behind, the longer
/// that is ago.
fn added_up(measured: &[Measured], now: Instant) -> Backlog {
    let lag_ms = |Measured { at, backlog }: &Measured| {
        backlog.lag_ms.saturating_add(now.saturating_duration_since(*at).as_millis() as u64)
    };
    Backlog {
        lag_ms: measured.iter().map(lag_ms).max().unwrap_or(0),
        entries: measured.iter().map(|known| known.backlog.entries).sum(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_entry_that_waits_says_how_far_behind() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let first = |id: &str| {
            Value::Array(vec![Value::Array(vec![text(id), Value::Array(vec![text("key"), text("told")])])])
        };
        let answers = vec![
            Value::Array(vec![text("1000"), text("500000")]),
            Value::Int(3),
            first("1000300-0"),
            Value::Int(0),
            Value::Array(vec![]),
            Value::Int(2),
            first("1000100-7"),
        ];
        let of = |lag_ms, entries| Backlog { lag_ms, entries };
        let found: Vec<Backlog> =
            backlogs(answers).expect("answers of a master").into_iter().flatten().collect();
        assert_eq!(found, [of(200, 3), of(0, 0), of(400, 2)]);
        let at = Instant::now();
        let measured: Vec<Measured> = found.into_iter().map(|backlog| Measured { at, backlog }).collect();
        assert_eq!(added_up(&measured, at), of(400, 5));
        // The second one has not been heard of since.
        let now = at + Duration::from_secs(9);
        let measured: Vec<Measured> =
            measured.into_iter().zip([now, at, now]).map(|(known, at)| Measured { at, ..known }).collect();
        assert_eq!(added_up(&measured, now), of(9_000, 5));
    }
}

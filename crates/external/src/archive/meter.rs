//! How far behind the tables are, and how much lies in the streams. Measured apart from flushing, so that it is also known
//! while nothing can be flushed.

use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::{Pipeline, RedisResult, Value};
use tokio_postgres::Client;

use super::flusher::Flusher;
use super::streams::Place;
use super::told::recoveries;
use super::{ArchiveError, bond};
use crate::groups::{self, GROUPS};

/// Between two measurements.
const INTERVAL: Duration = Duration::from_secs(1);

/// What is known of the streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Backlog {
    pub(super) lag_ms: u64,
    pub(super) entries: u64,
}

impl Flusher {
    /// Measures again and again, until it is stopped.
    pub(super) async fn measure(&self) {
        let (mut client, mut places) = (None, vec![Place::default(); usize::from(GROUPS)]);
        let mut is_told = false;
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
            // While Redis is away nothing is known: what was holds on.
            match self.backlog(&places).await {
                Ok(Backlog { lag_ms, entries }) => {
                    let facts = &self.archive.facts;
                    facts.lag_ms.store(lag_ms, Ordering::Relaxed);
                    facts.stream_entries.store(entries, Ordering::Relaxed);
                    is_told = false;
                }
                Err(error) if !is_told => {
                    tracing::warn!(%error, "it cannot be measured how far the archive is behind");
                    is_told = true;
                }
                Err(_) => {}
            }
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

    /// What lies behind these places.
    pub(super) async fn backlog(&self, places: &[Place]) -> RedisResult<Backlog> {
        let map = self.external.map();
        let mut backlog = Backlog::default();
        for address in map.masters() {
            let here: Vec<u16> = map.groups_of(&address).collect();
            let mut pipeline = Pipeline::with_capacity(1 + 2 * here.len());
            pipeline.cmd("TIME");
            for group in &here {
                let (stream, from) = (groups::stream(*group), places[usize::from(*group)]);
                pipeline.cmd("XLEN").arg(&stream);
                pipeline.cmd("XRANGE").arg(&stream).arg(from.behind()).arg("+").arg("COUNT").arg(1);
            }
            let answers = self.links.ask_all(&address, &pipeline, 1 + 2 * here.len()).await?;
            backlog = add_up(backlog, answers)?;
        }
        Ok(backlog)
    }
}

/// Adds what a master said: its time, and of each stream the length and the first entry that is not flushed.
fn add_up(mut backlog: Backlog, answers: Vec<Value>) -> RedisResult<Backlog> {
    let mut answers = answers.into_iter();
    let time = answers.next().unwrap_or(Value::Nil).extract_error()?;
    let (seconds, micros): (u64, u64) = redis::from_redis_value(time)?;
    let now_ms = seconds * 1000 + micros / 1000;
    while let (Some(length), Some(first)) = (answers.next(), answers.next()) {
        // A stream whose slot moves just now says so; the next look will find it.
        let (Ok(length), Ok(first)) = (length.extract_error(), first.extract_error()) else { continue };
        backlog.entries += redis::from_redis_value::<u64>(length)?;
        let first: Vec<(String, Value)> = redis::from_redis_value(first)?;
        if let Some(place) = first.first().and_then(|(id, _)| Place::of(id)) {
            backlog.lag_ms = backlog.lag_ms.max(now_ms.saturating_sub(place.ms as u64));
        }
    }
    Ok(backlog)
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
        let backlog = add_up(Backlog::default(), answers).expect("answers of a master");
        assert_eq!(backlog, Backlog { lag_ms: 400, entries: 5 });
    }
}

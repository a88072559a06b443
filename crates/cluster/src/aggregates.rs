//! Totals over the counters of a pattern: every partition's leader adds up its own.
//!
//! A partition that cannot be asked in time is named as missing; what the others said is told all the same.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use quipu_counting::aggregate::{Aggregate, Missing, Part, Selector, Totals};
use quipu_counting::{KEY_BYTES_MAX, Slice};
use quipu_wire::entry::{Malformed, Reader, put_bytes, put_varint, put_zigzag};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::node::Node;
use crate::questions::{kind, question, read_partition};
use crate::raft::{NodeId, NotDone};

/// How long adding up may take, of all partitions together.
const ADD_UP_MAX: Duration = Duration::from_secs(20);
/// How many partitions are asked at the same time, for one pattern.
const ASKED_MAX: usize = 32;
/// How often it is looked whether the node that was asked still leads: one that hangs says nothing.
const STILL_LEADS_PAUSE: Duration = Duration::from_millis(500);
/// Partitions that a node adds up at the same time, of patterns that begin with what keys begin with, and of others: those
/// look at every counter, and must not hold up the quick ones.
const PREFIXED_MAX: usize = 3;
const UNPREFIXED_MAX: usize = 1;

/// The turns of adding up.
pub(crate) struct Turns {
    prefixed: Semaphore,
    unprefixed: Semaphore,
}

impl Default for Turns {
    fn default() -> Turns {
        Turns { prefixed: Semaphore::new(PREFIXED_MAX), unprefixed: Semaphore::new(UNPREFIXED_MAX) }
    }
}

impl Node {
    /// The totals of all counters that a pattern selects.
    pub async fn aggregate(&self, selector: &Selector) -> Aggregate {
        let until = Instant::now() + ADD_UP_MAX;
        let partitions = match selector.only_partition(self.partitions) {
            Some(only) => only..only + 1,
            None => 0..self.partitions,
        };
        let asked = partitions.map(|partition| async move {
            let answer = tokio::time::timeout_at(until, self.add_up(partition, selector, until)).await;
            (partition, answer.unwrap_or_else(|_| Err(NotDone::Stopped(too_late()))))
        });
        let mut answers: Vec<_> = stream::iter(asked).buffer_unordered(ASKED_MAX).collect().await;
        answers.sort_unstable_by_key(|(partition, _)| *partition);
        let mut aggregate = Aggregate::default();
        for (partition, answer) in answers {
            match answer {
                Ok((node, totals)) if totals.count > 0 => {
                    aggregate.parts.push(Part { partition, node: Some(node), totals });
                }
                Ok(_) => {}
                Err(why) => aggregate.missing.push(Missing { partition, why: reason(why) }),
            }
        }
        aggregate
    }

    /// The totals of one partition, and who leads it and so knows.
    async fn add_up(
        &self,
        partition: u16,
        selector: &Selector,
        until: Instant,
    ) -> Result<(NodeId, Totals), NotDone> {
        let ask = |target| async move {
            let left = until.saturating_duration_since(Instant::now());
            let asked = question(kind::ADD_UP, partition, |out| {
                put_varint(out, left.as_millis() as u64);
                put_bytes(out, selector.pattern());
                let mut slice = Vec::new();
                selector.slice().iter().for_each(|asked| asked.put(&mut slice));
                put_bytes(out, &slice);
            });
            // In this order, so that a simulation goes the same way each time.
            tokio::select! {
                biased;
                answer = self.ask(target, asked, left, read_totals) => answer,
                () = self.another_leads(partition, target) => Err(NotDone::NotLeader(None)),
            }
        };
        self.with_leader(partition, ask).await
    }

    /// Comes back when a partition is led by another than this node, as far as is known here.
    async fn another_leads(&self, partition: u16, node: NodeId) {
        loop {
            tokio::time::sleep(STILL_LEADS_PAUSE).await;
            if self.leader(partition).is_some_and(|leader| leader != node) {
                return;
            }
        }
    }

    /// Answers the question of this file.
    pub(crate) async fn answer_add_up(
        &self,
        reader: &mut Reader<'_>,
    ) -> Result<Result<Vec<u8>, NotDone>, Malformed> {
        let partition = read_partition(reader)?;
        let within = Duration::from_millis(reader.varint()?).min(ADD_UP_MAX);
        let selector = Selector::new(reader.bytes_up_to(KEY_BYTES_MAX)?);
        let slice = match reader.bytes()? {
            [] => None,
            bytes => Some(Slice::read(bytes).ok_or(Malformed("part of values"))?),
        };
        let selector = selector.of_part(slice);
        let turns = match selector.prefix().is_empty() {
            true => &self.adding_up.unprefixed,
            false => &self.adding_up.prefixed,
        };
        // Who is not the leader says so at once.
        if let Err(why) = self.leading(partition) {
            return Ok(Err(why));
        }
        // When its turn comes too late, nobody waits any more.
        let Ok(Ok(_turn)) = tokio::time::timeout(within, turns.acquire()).await else {
            return Ok(Err(NotDone::Stopped(too_late())));
        };
        let totals = self.of_led(partition, move |node, now_ms| {
            node.engine.aggregate_of(partition, &selector, now_ms).map_err(|error| error.to_string())
        });
        Ok(totals.await.map(|totals| encode_totals(&totals)))
    }
}

fn too_late() -> String {
    format!("it was not added up within {} s", ADD_UP_MAX.as_secs())
}

fn reason(why: NotDone) -> String {
    match why {
        NotDone::NotLeader(_) => "nobody leads it at the moment".to_owned(),
        other => other.to_string(),
    }
}

fn encode_totals(totals: &Totals) -> Vec<u8> {
    let mut out = totals.sum.to_le_bytes().to_vec();
    put_varint(&mut out, totals.count);
    put_zigzag(&mut out, totals.min);
    put_zigzag(&mut out, totals.max);
    out.push(u8::from(totals.has_more_groups));
    put_varint(&mut out, totals.groups.len() as u64);
    for (values, sum) in &totals.groups {
        put_varint(&mut out, values.len() as u64);
        values.iter().for_each(|value| put_bytes(&mut out, value.as_bytes()));
        out.extend_from_slice(&sum.to_le_bytes());
    }
    out
}

fn read_totals(reader: &mut Reader<'_>) -> Result<Totals, Malformed> {
    let mut totals = Totals {
        sum: i128::from_le_bytes(reader.array()?),
        count: reader.varint()?,
        min: reader.zigzag()?,
        max: reader.zigzag()?,
        has_more_groups: reader.flag()?,
        groups: BTreeMap::new(),
    };
    for _ in 0..reader.count()? {
        let mut values = Vec::new();
        for _ in 0..reader.count()? {
            let value = std::str::from_utf8(reader.bytes()?);
            values.push(value.map_err(|_| Malformed("value of a dimension"))?.to_owned());
        }
        totals.groups.insert(values, i128::from_le_bytes(reader.array()?));
    }
    Ok(totals)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_read_as_written() {
        let mut some = Totals::NOTHING;
        [i64::MIN, i64::MIN, 3].into_iter().for_each(|value| some.add(value));
        some.groups.insert(vec!["a".into(), String::new()], i128::MIN);
        for totals in [Totals::NOTHING, some] {
            let bytes = encode_totals(&totals);
            assert_eq!(read_totals(&mut Reader::new(&bytes)).unwrap(), totals);
            for length in 0..bytes.len() {
                assert!(read_totals(&mut Reader::new(&bytes[..length])).is_err());
            }
        }
    }
}

//! CLUSTER, READONLY, ROLE, WAIT. On the port that speaks the Redis Cluster protocol CLUSTER tells who is to be asked about
//! which slots; on the other there is no cluster to speak of.

use std::fmt::Write as _;
use std::ops::ControlFlow;
use std::sync::Arc;

use quipu_counting::Unavailable;
use quipu_counting::slot::{SLOTS, slot};
use quipu_wire::commands::{Command, encode_help};
use quipu_wire::resp::{Arguments, Encoder, errors};

use super::{Complaint, Drafted, integer};
use crate::cluster::map::{Map, Place, Range, Standing};
use crate::resp::background::Job;

/// The most keys of one GETKEYSINSLOT.
const KEYS_MAX: usize = 100_000;

/// Answers these commands. The slot of a key is a matter of the key alone; for the rest it takes a map.
pub fn answer(
    map: Option<&Map>,
    command: Command,
    arguments: Arguments<'_, '_>,
    now_ms: u64,
    encoder: &mut Encoder<'_>,
) -> Drafted {
    let operand = arguments.get(2).unwrap_or_default();
    match (command, map) {
        (Command::ClusterKeySlot, _) => encoder.integer(slot(operand).into()),
        // A master without replicas; offsets of replication are not kept.
        (Command::Role, _) => {
            encoder.array(3);
            encoder.bulk(b"master");
            encoder.integer(0);
            encoder.array(0);
        }
        (_, None) => return Err(errors::CLUSTER_DISABLED.into()),
        // Slots never move half, so nobody is ever told to ask.
        (Command::Asking, Some(_)) => encoder.ok(),
        (Command::ClusterHelp, Some(_)) => encode_help(Command::Cluster.spec(), encoder),
        (Command::ClusterMyId | Command::ClusterMyShardId, Some(map)) => {
            encoder.bulk(map.own_name().as_bytes())
        }
        (Command::ClusterSlots, Some(map)) => slots(&map.standing(), encoder),
        (Command::ClusterShards, Some(map)) => shards(&map.standing(), encoder),
        (Command::ClusterNodes, Some(map)) => {
            encoder.verbatim(b"txt", nodes(&map.standing(), now_ms).as_bytes());
        }
        (Command::ClusterInfo, Some(map)) => encoder.verbatim(b"txt", info(&map.standing()).as_bytes()),
        // Nobody reports others; what counts is who is elected.
        (Command::ClusterCountFailureReports, Some(map)) => {
            let is_known = map.standing().nodes.values().any(|place| place.id.as_bytes() == operand);
            if !is_known {
                return Err(errors::quoting("ERR Unknown node ", operand, "").into());
            }
            encoder.integer(0);
        }
        _ => return Err(errors::unknown_subcommand("cluster", arguments.get(1).unwrap_or_default()).into()),
    }
    Ok(())
}

/// How many replicas have everything for certain: what was answered a majority has, and waiting makes it no more.
pub fn wait(map: Option<&Map>, arguments: Arguments<'_, '_>, encoder: &mut Encoder<'_>) -> Drafted {
    let [_, count, timeout] = arguments.first().unwrap_or_default();
    integer(count)?;
    if integer(timeout).map_err(|_| errors::TIMEOUT_NOT_AN_INTEGER)? < 0 {
        return Err(errors::TIMEOUT_NEGATIVE.into());
    }
    encoder.integer(map.map_or(0, Map::replicas_certain));
    Ok(())
}

/// Reads COUNTKEYSINSLOT and GETKEYSINSLOT.
pub fn keys_in_slot(
    map: &Arc<Map>,
    command: Command,
    arguments: Arguments<'_, '_>,
) -> Result<Job, Complaint> {
    let number = |at: usize| integer(arguments.get(at).unwrap_or_default());
    let slot = u16::try_from(number(2)?).ok().filter(|slot| *slot < SLOTS);
    let (slot, most) = if command == Command::ClusterCountKeysInSlot {
        (slot.ok_or("ERR Invalid slot")?, None)
    } else {
        let most = usize::try_from(number(3)?).ok();
        let (slot, most) = slot.zip(most).ok_or("ERR Invalid slot or number of keys")?;
        (slot, Some(most.min(KEYS_MAX)))
    };
    Ok(Job::KeysInSlot { map: Arc::clone(map), slot, most })
}

/// Carries them out: the number of keys, or at most so many of them.
pub fn answer_keys_in_slot(
    map: &Map,
    slot: u16,
    most: Option<usize>,
    now_ms: u64,
    encoder: &mut Encoder<'_>,
) -> Result<(), Unavailable> {
    let (mut count, mut keys) = (0, Vec::new());
    if most != Some(0) {
        map.keys_in_slot(slot, now_ms, |key| {
            count += 1;
            if let Some(most) = most {
                keys.push(key);
                if keys.len() == most {
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        })?;
    }
    match most {
        None => encoder.integer(count),
        Some(_) => {
            encoder.array(keys.len());
            keys.iter().for_each(|key| encoder.bulk(key));
        }
    }
    Ok(())
}

/// Every leader comes first with one of its slots alone. A node that leads some slots follows in others, and clients (redis-py,
/// node-redis) take it for what it is called first: they walk over the keys of those that they take for masters.
fn slots(standing: &Standing, encoder: &mut Encoder<'_>) {
    let mut heads: Vec<Range> = Vec::new();
    let mut rest = standing.ranges.clone();
    for range in &mut rest {
        if heads.iter().all(|head| head.nodes[0] != range.nodes[0]) {
            let nodes = vec![range.nodes[0]];
            heads.push(Range { first: range.first, last: range.first, nodes });
            range.first += 1;
        }
    }
    let is_left = |range: &Range| range.first <= range.last;
    let ranges: Vec<Range> = heads.into_iter().chain(rest.into_iter().filter(is_left)).collect();
    encoder.array(ranges.len());
    for Range { first, last, nodes } in &ranges {
        encoder.array(2 + nodes.len());
        encoder.integer((*first).into());
        encoder.integer((*last).into());
        for Place { id, host, port, .. } in nodes.iter().filter_map(|node| standing.nodes.get(node)) {
            encoder.array(4);
            encoder.bulk(host.as_bytes());
            encoder.integer((*port).into());
            encoder.bulk(id.as_bytes());
            encoder.map(0);
        }
    }
}

/// Ranges with the same leader and replicas are a shard.
fn shards(standing: &Standing, encoder: &mut Encoder<'_>) {
    let mut shards: Vec<(&[u64], Vec<&Range>)> = Vec::new();
    for range in &standing.ranges {
        match shards.iter_mut().find(|(nodes, _)| *nodes == range.nodes) {
            Some((_, ranges)) => ranges.push(range),
            None => shards.push((&range.nodes, vec![range])),
        }
    }
    encoder.array(shards.len());
    for (nodes, ranges) in shards {
        encoder.map(2);
        encoder.bulk(b"slots");
        encoder.array(2 * ranges.len());
        ranges
            .iter()
            .flat_map(|range| [range.first, range.last])
            .for_each(|slot| encoder.integer(slot.into()));
        encoder.bulk(b"nodes");
        encoder.array(nodes.len());
        for (place, at) in nodes.iter().filter_map(|node| standing.nodes.get(node)).zip(0..) {
            encoder.map(7);
            encoder.bulk(b"id");
            encoder.bulk(place.id.as_bytes());
            encoder.bulk(b"port");
            encoder.integer(place.port.into());
            let role = if at == 0 { "master" } else { "replica" };
            for text in ["ip", &place.host, "endpoint", &place.host, "role", role, "replication-offset"] {
                encoder.bulk(text.as_bytes());
            }
            encoder.integer(0);
            encoder.bulk(b"health");
            encoder.bulk(b"online");
        }
    }
}

/// A line for every node. Who leads nothing is shown as the replica of one of those whose counters it holds.
fn nodes(standing: &Standing, now_ms: u64) -> String {
    let mut text = String::new();
    for (node, Place { id, host, port, peer_port }) in &standing.nodes {
        let led = || standing.ranges.iter().filter(|range| range.nodes[0] == *node);
        let followed = standing.ranges.iter().find(|range| range.nodes.contains(node));
        let master = match followed.and_then(|range| standing.nodes.get(&range.nodes[0])) {
            Some(master) if led().next().is_none() => &*master.id,
            _ => "-",
        };
        let role = if master == "-" { "master" } else { "slave" };
        let (myself, heard_ms) = if *node == standing.own { ("myself,", 0) } else { ("", now_ms) };
        let epoch = standing.epoch;
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "{id} {host}:{port}@{peer_port} {myself}{role} {master} 0 {heard_ms} {epoch} connected"
        );
        for range in led() {
            let _ = write!(text, " {}-{}", range.first, range.last);
        }
        text.push('\n');
    }
    text
}

fn info(standing: &Standing) -> String {
    let assigned: u16 = standing.ranges.iter().map(|range| range.last - range.first + 1).sum();
    let led = assigned.saturating_sub(standing.leaderless);
    let state = if led == SLOTS { "ok" } else { "fail" };
    let facts = [
        ("slots_assigned", assigned.into()),
        ("slots_ok", led.into()),
        ("slots_pfail", 0),
        ("slots_fail", (assigned - led).into()),
        ("known_nodes", standing.nodes.len() as u64),
        ("size", standing.leaders().len() as u64),
        ("current_epoch", standing.epoch),
        ("my_epoch", standing.epoch),
        ("stats_messages_sent", 0),
        ("stats_messages_received", 0),
    ];
    let mut text = format!("cluster_state:{state}\r\n");
    for (name, number) in facts {
        let _ = write!(text, "cluster_{name}:{number}\r\n");
    }
    text + "total_cluster_links_buffer_limit_exceeded:0\r\n"
}

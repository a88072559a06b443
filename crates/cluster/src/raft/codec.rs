//! Our own form of votes, log ids and entries, on disk and between nodes.
//!
//! ```text
//! log_id     := term:v node:v index:v           maybe x := 0 | 1 x
//! vote       := term:v node:v committed:1
//! entry      := log_id payload
//! payload    := 0 blank | 1 length:v command | 2 membership
//! membership := configs:v (nodes:v node:v*)*  nodes:v node:v*        more than one config: on the way from one to the next
//! ```
//! Numbers are coded as in `quipu_wire::entry`.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use openraft::EntryPayload;
use openraft::entry::RaftEntry;
use openraft::vote::RaftLeaderId;
use quipu_wire::entry::{Malformed, Reader, put_bytes, put_varint};

use super::types::{Command, Entry, LogId, Membership, NodeId, Vote};

/// Appends a log id.
pub fn put_log_id(out: &mut Vec<u8>, log_id: &LogId) {
    put_varint(out, log_id.leader_id.term);
    put_varint(out, log_id.leader_id.node_id);
    put_varint(out, log_id.index);
}

/// Reads a log id.
pub fn read_log_id(reader: &mut Reader<'_>) -> Result<LogId, Malformed> {
    let leader = RaftLeaderId::new(reader.varint()?, reader.varint()?);
    Ok(LogId::new(leader, reader.varint()?))
}

/// Appends something that may be missing.
pub fn put_maybe<T>(out: &mut Vec<u8>, thing: Option<&T>, put: impl FnOnce(&mut Vec<u8>, &T)) {
    out.push(u8::from(thing.is_some()));
    if let Some(thing) = thing {
        put(out, thing);
    }
}

/// Reads something that may be missing.
pub fn read_maybe<'a, T>(
    reader: &mut Reader<'a>,
    read: impl FnOnce(&mut Reader<'a>) -> Result<T, Malformed>,
) -> Result<Option<T>, Malformed> {
    if reader.flag()? { read(reader).map(Some) } else { Ok(None) }
}

/// Appends a vote.
pub fn put_vote(out: &mut Vec<u8>, vote: &Vote) {
    put_varint(out, vote.leader_id.term);
    put_varint(out, vote.leader_id.node_id);
    out.push(u8::from(vote.committed));
}

/// Reads a vote.
pub fn read_vote(reader: &mut Reader<'_>) -> Result<Vote, Malformed> {
    let leader_id = RaftLeaderId::new(reader.varint()?, reader.varint()?);
    Ok(Vote { leader_id, committed: reader.flag()? })
}

/// Appends an entry.
pub fn put_entry(out: &mut Vec<u8>, entry: &Entry) {
    put_log_id(out, &entry.log_id());
    match &entry.payload {
        EntryPayload::Blank => out.push(0),
        EntryPayload::Normal(command) => {
            out.push(1);
            put_bytes(out, &command.0);
        }
        EntryPayload::Membership(membership) => {
            out.push(2);
            put_membership(out, membership);
        }
    }
}

/// Reads an entry.
pub fn read_entry(reader: &mut Reader<'_>) -> Result<Entry, Malformed> {
    let log_id = read_log_id(reader)?;
    let payload = match reader.byte()? {
        0 => EntryPayload::Blank,
        1 => EntryPayload::Normal(Command(Bytes::copy_from_slice(reader.bytes()?))),
        2 => EntryPayload::Membership(read_membership(reader)?),
        _ => return Err(Malformed("unknown payload; written by a newer version?")),
    };
    Ok(Entry::new(log_id, payload))
}

/// Appends a membership.
pub fn put_membership(out: &mut Vec<u8>, membership: &Membership) {
    let put_nodes = |out: &mut Vec<u8>, nodes: &BTreeSet<NodeId>| {
        put_varint(out, nodes.len() as u64);
        nodes.iter().for_each(|node| put_varint(out, *node));
    };
    let configs = membership.get_joint_config();
    put_varint(out, configs.len() as u64);
    configs.iter().for_each(|config| put_nodes(out, config));
    put_nodes(out, &membership.nodes().map(|(node, ())| *node).collect());
}

/// Reads a membership.
pub fn read_membership(reader: &mut Reader<'_>) -> Result<Membership, Malformed> {
    let read_nodes = |reader: &mut Reader<'_>| -> Result<BTreeSet<NodeId>, Malformed> {
        (0..reader.count()?).map(|_| reader.varint()).collect()
    };
    let configs: Vec<BTreeSet<NodeId>> =
        (0..reader.count()?).map(|_| read_nodes(reader)).collect::<Result<_, _>>()?;
    let nodes: BTreeMap<NodeId, ()> = read_nodes(reader)?.into_iter().map(|node| (node, ())).collect();
    if configs.is_empty() && nodes.is_empty() {
        return Ok(Membership::default());
    }
    Membership::new(configs, nodes).map_err(|_| Malformed("a membership that cannot be"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn log_id(term: u64, node: u64, index: u64) -> LogId {
        LogId::new(RaftLeaderId::new(term, node), index)
    }

    fn entries() -> Vec<Entry> {
        let membership = |configs: &[&[u64]], nodes: &[u64]| {
            let configs = configs.iter().map(|config| config.iter().copied().collect()).collect();
            let nodes: BTreeMap<u64, ()> = nodes.iter().map(|node| (*node, ())).collect();
            EntryPayload::Membership(Membership::new(configs, nodes).unwrap())
        };
        let payloads = [
            EntryPayload::Blank,
            EntryPayload::Normal(Command(Bytes::from_static(b""))),
            EntryPayload::Normal(Command(Bytes::from(vec![7; 300]))),
            membership(&[&[1, 2, 3]], &[1, 2, 3, 4]),
            membership(&[&[1, 2, 3], &[2, 3, u64::MAX]], &[1, 2, 3, u64::MAX]),
            EntryPayload::Membership(Membership::default()),
        ];
        payloads
            .into_iter()
            .zip(1..)
            .map(|(payload, index)| Entry::new(log_id(9, 2, index), payload))
            .collect()
    }

    #[test]
    fn entries_are_read_as_written() {
        for entry in entries() {
            let mut bytes = Vec::new();
            put_entry(&mut bytes, &entry);
            let mut reader = Reader::new(&bytes);
            assert_eq!(read_entry(&mut reader).unwrap(), entry);
            assert!(reader.is_empty());
            for length in 0..bytes.len() {
                assert!(read_entry(&mut Reader::new(&bytes[..length])).is_err(), "{entry:?} cut at {length}");
            }
        }
    }

    #[test]
    fn votes_are_read_as_written() {
        for committed in [false, true] {
            let vote = Vote { leader_id: RaftLeaderId::new(u64::MAX, 3), committed };
            let mut bytes = Vec::new();
            put_maybe(&mut bytes, Some(&vote), put_vote);
            put_maybe(&mut bytes, None, put_vote);
            let mut reader = Reader::new(&bytes);
            assert_eq!(read_maybe(&mut reader, read_vote).unwrap(), Some(vote));
            assert_eq!(read_maybe(&mut reader, read_vote).unwrap(), None);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_error_or_an_entry(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = read_entry(&mut Reader::new(&bytes));
        }
    }
}

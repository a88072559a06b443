//! What all nodes agree on: who they are, who holds what, and the limits of counters.
//!
//! One group of its own orders these changes; every node has its copy. Each change is decided here, by a pure function,
//! when it is carried out.
//!
//! ```text
//! meta   := version:1 cluster:16 level:v partitions:v replicas:v epoch:v
//!           nodes:v (node:v member)*  partitions:v (nodes:v node:v*)*  policies:v (pattern policy)*
//!           removed:v node:v*
//! member := level:v address zone:maybe folder:16 leaving:1 resp http
//! change := 1 cluster:16 partitions:v replicas:v node:v member      the first node of all
//!         | 2 node:v member                                         joins, or moves
//!         | 3 node:v                                                shall leave
//!         | 4 node:v                                                is gone
//!         | 5 epoch:v partitions:v (nodes:v node:v*)*               who holds what, decided when things stood so
//!         | 6 pattern (0 | 1 policy)                                a policy is stored or removed
//!         | 7 cluster:16 partitions:v replicas:v node:v member policies:v (pattern policy)*
//!                                                                   as 1, of a folder that has policies
//! address, zone, resp, http, pattern := length:v bytes
//! ```
//!
//! Replicas decide when they carry out an entry, so all of them must know every kind of entry and decide alike. What a newer
//! program could do that an older one cannot waits for the cluster's level: the highest that all nodes know. It never falls.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use quipu_counting::kinds::RULES;
use quipu_counting::placement::{self, Node as Place, Placement, Shape, VIRTUAL_NODES_DEFAULT};
use quipu_counting::policy::POLICIES_MAX;
use quipu_counting::slot::PARTITIONS_MAX;
use quipu_counting::{KEY_BYTES_MAX, Policies, Policy};
use quipu_wire::entry::{Malformed, Reader, put_bytes, put_policy_value, put_varint};

use crate::raft::NodeId;

const VERSION: u8 = 2;
/// The entries and rules that this program knows; raised by whoever adds to them. Since 4, which brought clusters that begin with policies, the
/// rules of counting have the same number: an entry names rules that all nodes know.
pub const LEVEL: u64 = RULES;
/// From here on all nodes know counters that are more than a number, what is told of additions, and roll-ups.
pub const LEVEL_OF_KINDS: u64 = 3;
/// From here on all nodes know how to ask for counters with their roll-ups.
pub const LEVEL_OF_WHOLE: u64 = 5;
/// An address is a name or a number, and a port.
pub const ADDRESS_BYTES_MAX: usize = 300;
/// The longest name that a host can have.
const HOST_BYTES_MAX: usize = 253;
/// Nodes a cluster may have.
const NODES_MAX: usize = 1_000;

/// What is known of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// The [`LEVEL`] of its program.
    pub level: u64,
    /// Where other nodes reach it.
    pub address: String,
    /// What it shares the fate of.
    pub zone: Option<String>,
    /// The number of its data folder, which no other has: two nodes with one number are told apart by it.
    pub folder: u128,
    /// Whether it shall give up what it holds.
    pub is_leaving: bool,
    /// Where clients that speak the Redis Cluster protocol reach it.
    pub resp: String,
    /// Where clients that speak HTTP reach it.
    pub http: String,
}

/// See the head of this file.
#[derive(Clone, Debug, Default)]
pub struct Meta {
    /// Which cluster this is: a number that no other has. 0 before it is founded.
    pub cluster: u128,
    /// What all nodes know: see [`LEVEL`].
    pub level: u64,
    /// How many partitions there are.
    pub partitions: u16,
    /// How many nodes shall hold each.
    pub replicas: u16,
    /// Raised with every change of nodes or placement.
    pub epoch: u64,
    /// Everybody.
    pub nodes: BTreeMap<NodeId, Member>,
    /// Who holds what, or shall.
    pub placement: Placement,
    /// The limits of counters.
    pub policies: Policies,
    /// Those who left, for ever: what they may still have is old.
    pub removed: BTreeSet<NodeId>,
}

/// What can be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The first node of all.
    Found {
        /// The number of the cluster.
        cluster: u128,
        /// How many partitions.
        partitions: u16,
        /// How many nodes shall hold each.
        replicas: u16,
        /// Its number.
        node: NodeId,
        /// Itself.
        member: Member,
        /// The limits by which its folder has counted so far.
        policies: Vec<(Vec<u8>, Policy)>,
    },
    /// A node joins, or is somewhere else now.
    Join(NodeId, Member),
    /// A node shall give up what it holds.
    Leave(NodeId),
    /// A node is no longer one.
    Remove(NodeId),
    /// Who holds what, decided at this epoch.
    Place(u64, Placement),
    /// A policy is stored or removed.
    Policy(Vec<u8>, Option<Policy>),
}

impl Meta {
    /// Carries out a change, or says why not.
    pub fn apply(&mut self, change: Change) -> Result<(), String> {
        match change {
            Change::Found { cluster, partitions, replicas, node, member, policies } => {
                if self.cluster != 0 {
                    return Err("the cluster is founded already".into());
                }
                let level = member.level;
                *self = Meta { cluster, level, partitions, replicas, epoch: 1, ..Meta::default() };
                self.nodes.insert(node, member);
                self.placement.replicas = vec![vec![node]; usize::from(partitions)];
                for (pattern, policy) in policies {
                    self.policies.set(&pattern, Some(policy));
                }
            }
            Change::Join(node, mut member) => {
                if self.removed.contains(&node) {
                    return Err(removed(node));
                }
                if member.level < self.level {
                    return Err(too_old(self.level, member.level));
                }
                let elsewhere =
                    |(id, known): (&NodeId, &Member)| *id != node && known.address == member.address;
                if let Some((other, _)) = self.nodes.iter().find(|known| elsewhere(*known)) {
                    return Err(same_address(*other, &member.address));
                }
                if self.nodes.len() >= NODES_MAX && !self.nodes.contains_key(&node) {
                    return Err(format!("there are already {NODES_MAX} nodes"));
                }
                if self.nodes.get(&node).is_some_and(|known| known.folder != member.folder) {
                    return Err(format!(
                        "another data folder is node {node}; remove that node, and join by a new invitation"
                    ));
                }
                // Who was told to leave does not stay by moving.
                member.is_leaving = self.nodes.get(&node).is_some_and(|known| known.is_leaving);
                if self.nodes.insert(node, member.clone()) != Some(member) {
                    self.epoch += 1;
                }
                self.raise_level();
            }
            Change::Leave(node) => {
                let others =
                    self.nodes.iter().filter(|(id, known)| **id != node && !known.is_leaving).count();
                let known = self.nodes.get_mut(&node).ok_or_else(|| format!("there is no node {node}"))?;
                if others == 0 {
                    return Err("the last node cannot leave".into());
                }
                known.is_leaving = true;
                self.epoch += 1;
            }
            Change::Remove(node) => {
                if self.placement.replicas.iter().any(|replicas| replicas.contains(&node)) {
                    return Err(format!("node {node} still holds partitions; let it leave first"));
                }
                if self.nodes.remove(&node).is_none() {
                    return Err(format!("there is no node {node}"));
                }
                self.removed.insert(node);
                self.epoch += 1;
                self.raise_level();
            }
            Change::Place(epoch, placement) => {
                if epoch != self.epoch {
                    return Err(format!("decided at epoch {epoch}, and it is {}", self.epoch));
                }
                let is_known = |node: &NodeId| self.nodes.contains_key(node);
                if placement.replicas.len() != usize::from(self.partitions)
                    || !placement
                        .replicas
                        .iter()
                        .all(|replicas| !replicas.is_empty() && replicas.iter().all(is_known))
                {
                    return Err("a placement that does not fit the nodes".into());
                }
                self.placement = placement;
                self.epoch += 1;
            }
            Change::Policy(pattern, policy) => {
                let is_new = policy.is_some() && self.policies.get(&pattern).is_none();
                if is_new && self.policies.len() >= POLICIES_MAX {
                    return Err(format!("there are already {POLICIES_MAX} policies, the most there can be"));
                }
                self.policies.set(&pattern, policy);
            }
        }
        Ok(())
    }

    fn raise_level(&mut self) {
        let known = self.nodes.values().map(|member| member.level).min().unwrap_or(0);
        self.level = self.level.max(known);
    }

    /// Who should hold what, as things stand.
    pub fn plan(&self) -> Placement {
        let stays = self.nodes.iter().filter(|(_, member)| !member.is_leaving);
        let nodes: Vec<Place> =
            stays.map(|(id, member)| Place { id: *id, zone: member.zone.clone() }).collect();
        let shape = Shape {
            partitions: self.partitions,
            replicas: usize::from(self.replicas),
            virtual_nodes: VIRTUAL_NODES_DEFAULT,
        };
        placement::plan(&nodes, shape, &self.placement)
    }

    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend_from_slice(&self.cluster.to_le_bytes());
        put_varint(&mut out, self.level);
        put_varint(&mut out, u64::from(self.partitions));
        put_varint(&mut out, u64::from(self.replicas));
        put_varint(&mut out, self.epoch);
        put_varint(&mut out, self.nodes.len() as u64);
        for (node, member) in &self.nodes {
            put_varint(&mut out, *node);
            put_member(&mut out, member);
        }
        put_placement(&mut out, &self.placement);
        put_policies(&mut out, self.policies.iter());
        put_varint(&mut out, self.removed.len() as u64);
        self.removed.iter().for_each(|node| put_varint(&mut out, *node));
        out
    }

    /// From bytes.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Meta, Malformed> {
        if reader.byte()? != VERSION {
            return Err(Malformed("what nodes agreed on is of another version; written by a newer one?"));
        }
        let mut meta = Meta {
            cluster: u128::from_le_bytes(reader.array()?),
            level: reader.varint()?,
            partitions: read_partitions(reader)?,
            replicas: read_u16(reader)?,
            epoch: reader.varint()?,
            ..Meta::default()
        };
        for _ in 0..reader.count()? {
            meta.nodes.insert(reader.varint()?, read_member(reader)?);
        }
        meta.placement = read_placement(reader)?;
        for (pattern, policy) in read_policies(reader)? {
            meta.policies.set(&pattern, Some(policy));
        }
        for _ in 0..reader.count()? {
            meta.removed.insert(reader.varint()?);
        }
        Ok(meta)
    }
}

impl Change {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match self {
            Change::Found { cluster, partitions, replicas, node, member, policies } => {
                out.push(if policies.is_empty() { 1 } else { 7 });
                out.extend_from_slice(&cluster.to_le_bytes());
                put_varint(&mut out, u64::from(*partitions));
                put_varint(&mut out, u64::from(*replicas));
                put_varint(&mut out, *node);
                put_member(&mut out, member);
                if !policies.is_empty() {
                    put_policies(&mut out, policies.iter().map(|(pattern, policy)| (&pattern[..], policy)));
                }
            }
            Change::Join(node, member) => {
                out.push(2);
                put_varint(&mut out, *node);
                put_member(&mut out, member);
            }
            Change::Leave(node) => {
                out.push(3);
                put_varint(&mut out, *node);
            }
            Change::Remove(node) => {
                out.push(4);
                put_varint(&mut out, *node);
            }
            Change::Place(epoch, placement) => {
                out.push(5);
                put_varint(&mut out, *epoch);
                put_placement(&mut out, placement);
            }
            Change::Policy(pattern, policy) => {
                out.push(6);
                put_bytes(&mut out, pattern);
                out.push(u8::from(policy.is_some()));
                if let Some(policy) = policy {
                    put_policy_value(&mut out, policy);
                }
            }
        }
        out
    }

    /// From bytes.
    pub fn decode(bytes: &[u8]) -> Result<Change, Malformed> {
        let mut reader = Reader::new(bytes);
        let change = match reader.byte()? {
            kind @ (1 | 7) => Change::Found {
                cluster: u128::from_le_bytes(reader.array()?),
                partitions: read_partitions(&mut reader)?,
                replicas: read_u16(&mut reader)?,
                node: reader.varint()?,
                member: read_member(&mut reader)?,
                policies: if kind == 7 { read_policies(&mut reader)? } else { Vec::new() },
            },
            2 => Change::Join(reader.varint()?, read_member(&mut reader)?),
            3 => Change::Leave(reader.varint()?),
            4 => Change::Remove(reader.varint()?),
            5 => Change::Place(reader.varint()?, read_placement(&mut reader)?),
            6 => {
                let pattern = reader.bytes_up_to(KEY_BYTES_MAX)?.to_vec();
                Change::Policy(pattern, if reader.flag()? { Some(reader.policy()?) } else { None })
            }
            _ => return Err(Malformed("unknown change; sent by a newer version?")),
        };
        if reader.is_empty() { Ok(change) } else { Err(Malformed("more than a change")) }
    }
}

/// Says no to what is not the address of one node, as others can reach it: a host and a port.
pub fn check_address(address: &str) -> Result<(), String> {
    let wrong = |why: &str| {
        Err(format!("{address:?} is no address of a node: {why}; write host:port, like 10.0.0.1:7072"))
    };
    let Some((host, port)) = address.rsplit_once(':') else { return wrong("it has no port") };
    let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    if !is_port || port.parse::<u16>().is_ok_and(|port| port == 0) || port.parse::<u16>().is_err() {
        return wrong("the port must be a number from 1 to 65535");
    }
    let number = match host.strip_prefix('[').map(|host| host.strip_suffix(']')) {
        Some(inside) => match inside.and_then(|inside| inside.parse::<Ipv6Addr>().ok()) {
            Some(number) => Some(IpAddr::V6(number)),
            None => return wrong("what stands in brackets must be an IPv6 address"),
        },
        None => host.parse::<Ipv4Addr>().ok().map(IpAddr::V4),
    };
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    match number {
        Some(number) if number.is_unspecified() => wrong("nobody reaches a node there"),
        Some(_) => Ok(()),
        None if host.is_empty() || host.len() > HOST_BYTES_MAX => {
            wrong("the name of the host is empty or too long")
        }
        None if !host.bytes().all(is_name) => wrong("that is no name of a host"),
        None => Ok(()),
    }
}

/// What a node is told that is where another one is, or was.
pub fn same_address(other: NodeId, address: &str) -> String {
    format!(
        "node {other} has the address {address}; remove that node first if it is lost (`quipu cluster remove {other}`), or join with another \
         address (`--peer`)"
    )
}

/// What a node is told that was removed.
pub fn removed(node: NodeId) -> String {
    format!("node {node} was removed from the cluster; invite a new node, with a new data folder")
}

/// What is said of a program that knows too little for its cluster.
pub fn too_old(needed: u64, known: u64) -> String {
    format!("the cluster is at feature level {needed}, and this program knows up to {known}; use a newer one")
}

/// Appends a member.
pub fn put_member(out: &mut Vec<u8>, member: &Member) {
    put_varint(out, member.level);
    put_bytes(out, member.address.as_bytes());
    out.push(u8::from(member.zone.is_some()));
    if let Some(zone) = &member.zone {
        put_bytes(out, zone.as_bytes());
    }
    out.extend_from_slice(&member.folder.to_le_bytes());
    out.push(u8::from(member.is_leaving));
    put_bytes(out, member.resp.as_bytes());
    put_bytes(out, member.http.as_bytes());
}

/// Reads a member.
pub fn read_member(reader: &mut Reader<'_>) -> Result<Member, Malformed> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| Malformed("not UTF-8"));
    Ok(Member {
        level: reader.varint()?,
        address: text(reader.bytes_up_to(ADDRESS_BYTES_MAX)?)?,
        zone: if reader.flag()? { Some(text(reader.bytes_up_to(ADDRESS_BYTES_MAX)?)?) } else { None },
        folder: u128::from_le_bytes(reader.array()?),
        is_leaving: reader.flag()?,
        resp: text(reader.bytes_up_to(ADDRESS_BYTES_MAX)?)?,
        http: text(reader.bytes_up_to(ADDRESS_BYTES_MAX)?)?,
    })
}

fn put_policies<'a>(out: &mut Vec<u8>, policies: impl ExactSizeIterator<Item = (&'a [u8], &'a Policy)>) {
    put_varint(out, policies.len() as u64);
    for (pattern, policy) in policies {
        put_bytes(out, pattern);
        put_policy_value(out, policy);
    }
}

fn read_policies(reader: &mut Reader<'_>) -> Result<Vec<(Vec<u8>, Policy)>, Malformed> {
    let count = reader.count()?;
    (0..count).map(|_| Ok((reader.bytes_up_to(KEY_BYTES_MAX)?.to_vec(), reader.policy()?))).collect()
}

fn put_placement(out: &mut Vec<u8>, placement: &Placement) {
    put_varint(out, placement.replicas.len() as u64);
    for replicas in &placement.replicas {
        put_varint(out, replicas.len() as u64);
        replicas.iter().for_each(|node| put_varint(out, *node));
    }
}

fn read_placement(reader: &mut Reader<'_>) -> Result<Placement, Malformed> {
    let mut placement = Placement::default();
    for _ in 0..reader.count()? {
        let count = reader.count()?;
        placement.replicas.push((0..count).map(|_| reader.varint()).collect::<Result<_, _>>()?);
    }
    Ok(placement)
}

fn read_u16(reader: &mut Reader<'_>) -> Result<u16, Malformed> {
    u16::try_from(reader.varint()?).map_err(|_| Malformed("a number that is too large"))
}

fn read_partitions(reader: &mut Reader<'_>) -> Result<u16, Malformed> {
    let count = read_u16(reader)?;
    // None before the cluster is founded.
    if count == 0 || count.is_power_of_two() && count <= PARTITIONS_MAX {
        Ok(count)
    } else {
        Err(Malformed("a number of partitions that cannot be"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(address: &str) -> Member {
        let (resp, http) = (format!("{address}3"), format!("{address}0"));
        let folder = address.len() as u128;
        Member { level: LEVEL, address: address.into(), zone: None, folder, is_leaving: false, resp, http }
    }

    fn found_with(policies: Vec<(Vec<u8>, Policy)>) -> Change {
        let member = member("one:7072");
        Change::Found { cluster: 77, partitions: 8, replicas: 3, node: 1, member, policies }
    }

    fn founded() -> Meta {
        let mut meta = Meta::default();
        let found = found_with(Vec::new());
        meta.apply(found.clone()).unwrap();
        assert!(meta.apply(found).is_err(), "once");
        meta
    }

    #[test]
    fn a_cluster_grows_and_shrinks() {
        let mut meta = founded();
        assert_eq!(meta.plan().replicas, vec![vec![1]; 8]);
        for node in 2..=4 {
            meta.apply(Change::Join(node, member(&format!("node-{node}:7072")))).unwrap();
        }
        assert!(meta.apply(Change::Join(5, member("one:7072"))).is_err(), "an address that is taken");
        let impostor = Member { folder: 99, ..member("node-2:7072") };
        assert!(meta.apply(Change::Join(2, impostor)).is_err(), "a number that is taken");
        let planned = meta.plan();
        assert!(planned.replicas.iter().all(|replicas| replicas.len() == 3));
        let epoch = meta.epoch;
        assert!(meta.apply(Change::Place(epoch - 1, planned.clone())).is_err(), "things have changed since");
        meta.apply(Change::Place(epoch, planned)).unwrap();
        assert!(meta.apply(Change::Remove(2)).is_err(), "it holds partitions");
        meta.apply(Change::Leave(2)).unwrap();
        let planned = meta.plan();
        assert!(planned.replicas.iter().all(|replicas| replicas.len() == 3 && !replicas.contains(&2)));
        meta.apply(Change::Place(meta.epoch, planned)).unwrap();
        meta.apply(Change::Remove(2)).unwrap();
        assert_eq!(meta.nodes.keys().copied().collect::<Vec<_>>(), [1, 3, 4]);
        meta.apply(Change::Leave(3)).unwrap();
        meta.apply(Change::Leave(4)).unwrap();
        assert!(meta.apply(Change::Leave(1)).is_err(), "the last one");
    }

    #[test]
    fn an_address_is_a_host_and_a_port() {
        for right in ["10.0.0.1:7072", "node-1:1", "a.example:65535", "my_host:7072", "[::1]:7072"] {
            assert_eq!(check_address(right), Ok(()), "{right}");
        }
        let wrong = [
            "",
            "foo",
            ":7072",
            "foo:",
            "foo:0",
            "foo:65536",
            "foo:+1",
            "http://a:1",
            "http://a:1/",
            "a b:1",
            "0.0.0.0:1",
            "[::]:1",
            "[foo]:1",
            "::1:7072",
        ];
        for wrong in wrong {
            assert!(check_address(wrong).is_err_and(|why| why.contains("host:port")), "{wrong}");
        }
    }

    #[test]
    fn a_cluster_begins_with_the_policies_of_its_first_folder() {
        let policy = Policy { min: Some(0), ..Policy::default() };
        let mut meta = Meta::default();
        meta.apply(found_with(vec![(b"stock:*".to_vec(), policy.clone())])).unwrap();
        assert_eq!(meta.policies.get(b"stock:*"), Some(&policy));
    }

    #[test]
    fn the_level_is_what_all_know_and_never_falls() {
        let mut meta = founded();
        let at = |level, node: u64| Change::Join(node, Member { level, ..member(&format!("node-{node}")) });
        meta.apply(at(LEVEL + 2, 2)).unwrap();
        meta.apply(at(LEVEL + 1, 3)).unwrap();
        assert_eq!(meta.level, LEVEL);
        meta.apply(Change::Join(1, Member { level: LEVEL + 2, ..member("one:7072") })).unwrap();
        assert_eq!(meta.level, LEVEL + 1, "the first was started again with a newer program");
        assert!(meta.apply(at(LEVEL, 4)).is_err_and(|why| why.contains("use a newer one")));
        assert!(meta.apply(at(LEVEL, 3)).is_err(), "an older program again");
        meta.apply(Change::Leave(3)).unwrap();
        meta.apply(Change::Remove(3)).unwrap();
        assert_eq!(meta.level, LEVEL + 2);
        let bytes = meta.encode();
        assert_eq!(Meta::decode(&mut Reader::new(&bytes)).unwrap().level, LEVEL + 2);
    }

    #[test]
    fn everything_is_read_as_written() {
        let mut meta = founded();
        let policy = Policy { max: Some(9), disabled: true, ..Policy::default() };
        let founds = [Vec::new(), vec![(b"a*".to_vec(), policy.clone()), (b"b".to_vec(), Policy::default())]];
        for found in founds.map(found_with) {
            let bytes = found.encode();
            assert_eq!(Change::decode(&bytes).unwrap(), found);
            assert!((0..bytes.len()).all(|length| Change::decode(&bytes[..length]).is_err()), "{found:?}");
        }
        let changes = [
            Change::Join(2, Member { zone: Some("east".into()), ..member("two:7072") }),
            Change::Join(3, member("three:7072")),
            Change::Leave(3),
            Change::Place(4, Placement { replicas: vec![vec![2, 1]; 8] }),
            Change::Remove(3),
            Change::Policy(b"a*".to_vec(), Some(policy)),
            Change::Policy(b"b*".to_vec(), None),
        ];
        for change in changes {
            let bytes = change.encode();
            assert_eq!(Change::decode(&bytes).unwrap(), change);
            assert!((0..bytes.len()).all(|length| Change::decode(&bytes[..length]).is_err()), "{change:?}");
            meta.apply(change).unwrap();
        }
        let bytes = meta.encode();
        let read = Meta::decode(&mut Reader::new(&bytes)).unwrap();
        assert_eq!(read.encode(), bytes);
        assert_eq!((read.cluster, read.nodes, read.placement), (77, meta.nodes, meta.placement));
        assert!((0..bytes.len()).all(|length| Meta::decode(&mut Reader::new(&bytes[..length])).is_err()));
    }
}

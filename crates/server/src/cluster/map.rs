//! Who is to be asked about which slots, as the Redis Cluster protocol tells it to clients.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use quipu_cluster::meta::Member;
use quipu_cluster::node::Node;
use quipu_counting::Unavailable;
use quipu_counting::slot::{SLOTS, partition};

use super::counters::ClusterCounters;

/// The cluster as this node knows it.
pub struct Map {
    node: Arc<Node>,
    counters: Arc<ClusterCounters>,
    /// Where clients reach this node.
    address: String,
}

impl fmt::Debug for Map {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "the map of node {}", self.node.id())
    }
}

/// Slots in a row that the same nodes hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first slot.
    pub first: u16,
    /// The last slot.
    pub last: u16,
    /// Whom to ask, then the other replicas; never empty.
    pub nodes: Vec<u64>,
}

/// How things stand at one moment.
#[derive(Clone, Debug, Default)]
pub struct Standing {
    /// The number of this node.
    pub own: u64,
    /// Raised with every change of nodes or placement.
    pub epoch: u64,
    /// Those whom clients can reach.
    pub nodes: BTreeMap<u64, Place>,
    /// All slots that somebody is responsible for, in order.
    pub ranges: Vec<Range>,
    /// Slots that nobody leads at the moment.
    pub leaderless: u16,
}

/// Where a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its name: forty hexadecimal digits, as clients expect.
    pub id: String,
    /// Its host.
    pub host: String,
    /// Its port for clients.
    pub port: u16,
    /// Its port for other nodes.
    pub peer_port: u16,
}

impl Place {
    /// `None` for a node that has not said where clients reach it.
    fn of(node: u64, member: &Member) -> Option<Place> {
        let (host, port) = host_and_port(&member.resp)?;
        let peer_port = host_and_port(&member.address).map_or(0, |(_, port)| port);
        Some(Place { id: name(node, member.folder), host: host.to_owned(), port, peer_port })
    }
}

/// The data folder has a number that no other has; the node's own is there for people.
fn name(node: u64, folder: u128) -> String {
    format!("{folder:032x}{:08x}", node as u32)
}

/// The parts of `host:port`; an IPv6 address stands in brackets, which are left out.
pub fn host_and_port(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    Some((host, port.parse().ok()?)).filter(|(host, _)| !host.is_empty())
}

impl Map {
    /// Of a node that clients reach at `address`.
    pub fn new(counters: Arc<ClusterCounters>, address: String) -> Map {
        Map { node: Arc::clone(&counters.node), counters, address }
    }

    /// Where walks over what this node leads are done.
    pub fn led(&self) -> &ClusterCounters {
        &self.counters
    }

    /// The partition of a slot.
    pub fn partition(&self, slot: u16) -> u16 {
        partition(slot, self.node.partitions())
    }

    /// The name of this node.
    pub fn own_name(&self) -> String {
        name(self.node.id(), self.node.engine().folder_number())
    }

    /// Where a client is to ask about a slot, if not here. Who only wants to look may do so at any replica. Where nobody is
    /// known to lead, or who leads has not been heard of for seconds, this is the place: the request will wait for a leader, as on the
    /// other port.
    pub fn elsewhere(&self, slot: u16, looks: bool) -> Option<String> {
        let partition = self.partition(slot);
        let leader = self.node.leader_heard_of(partition).filter(|leader| *leader != self.node.id())?;
        if looks && self.node.engine().holds(partition) {
            return None;
        }
        // Nodes that nobody told how clients reach them may all say 127.0.0.1: who was sent there would come back.
        let address = self.node.meta(|meta| meta.nodes.get(&leader).map(|member| member.resp.clone()))?;
        let (host, port) = host_and_port(&address).filter(|_| address != self.address)?;
        Some(format!("{host}:{port}"))
    }

    /// How many nodes beside the leader have what was acknowledged, at least.
    pub fn replicas_certain(&self) -> i64 {
        let others = |count: usize| (count / 2) as i64;
        let shall =
            self.node.meta(|meta| meta.placement.replicas.iter().map(|held| others(held.len())).min());
        // Those who shall hold it may not have it yet.
        let held = (0..self.node.partitions()).filter_map(|partition| self.node.group(partition));
        let are = held.map(|group| others(group.voters().len())).min();
        are.into_iter().chain(shall).min().unwrap_or(0)
    }

    /// How things stand.
    pub fn standing(&self) -> Standing {
        let own = self.node.id();
        let (epoch, nodes, placement) = self.node.meta(|meta| {
            let place = |(node, member): (&u64, &Member)| Some((*node, Place::of(*node, member)?));
            let nodes: BTreeMap<u64, Place> = meta.nodes.iter().filter_map(place).collect();
            (meta.epoch, nodes, meta.placement.replicas.clone())
        });
        let mut standing = Standing { own, epoch, nodes, ..Standing::default() };
        let width = SLOTS / self.node.partitions();
        for (replicas, partition) in placement.iter().zip(0u16..) {
            let leader = self.node.leader_heard_of(partition);
            if leader.is_none() {
                standing.leaderless += width;
            }
            // Without a leader: this node if it can wait for one, else whoever should lead, and at worst whoever passes it on.
            let held = Some(own).filter(|_| self.node.engine().holds(partition));
            let asked = leader.or(held).into_iter().chain(replicas.iter().copied()).chain([own]);
            let known: Vec<u64> = asked.filter(|node| standing.nodes.contains_key(node)).collect();
            let Some(first) = known.first() else { continue };
            let mut others: Vec<u64> =
                replicas.iter().filter(|node| *node != first && known.contains(node)).copied().collect();
            others.sort_unstable();
            let nodes = [vec![*first], others].concat();
            let (start, last) = (partition * width, partition * width + (width - 1));
            match standing.ranges.last_mut() {
                Some(range) if range.nodes == nodes && range.last + 1 == start => range.last = last,
                _ => standing.ranges.push(Range { first: start, last, nodes }),
            }
        }
        standing
    }

    /// Shows the keys of a slot that are here, until it is told to stop.
    pub fn keys_in_slot(
        &self,
        slot: u16,
        now_ms: u64,
        see: impl FnMut(Vec<u8>) -> ControlFlow<()>,
    ) -> Result<(), Unavailable> {
        match self.node.engine().holds(partition(slot, self.node.partitions())) {
            true => self.node.engine().keys_in_slot(slot, now_ms, see),
            false => Ok(()),
        }
    }
}

impl Standing {
    /// Those who lead something.
    pub fn leaders(&self) -> BTreeSet<u64> {
        self.ranges.iter().map(|range| range.nodes[0]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::{host_and_port, name};

    #[test]
    fn addresses_are_taken_apart() {
        let cases = [
            ("127.0.0.1:7073", Some(("127.0.0.1", 7073))),
            ("node-1.example:80", Some(("node-1.example", 80))),
            ("[::1]:7073", Some(("::1", 7073))),
            ("", None),
            (":7073", None),
            ("host", None),
            ("host:", None),
            ("host:65536", None),
        ];
        for (address, expected) in cases {
            assert_eq!(host_and_port(address), expected, "{address}");
        }
    }

    #[test]
    fn names_have_forty_digits() {
        for (node, folder) in [(1, 1), (u64::MAX, u128::MAX)] {
            assert_eq!(name(node, folder).len(), 40);
        }
    }
}

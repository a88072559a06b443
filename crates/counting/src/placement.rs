//! Which nodes hold which partition: consistent hashing with virtual nodes, under a bound on the load.
//!
//! Every node stands on a ring at many places; a partition stands at one, and prefers the nodes in the order in which it
//! meets them. Hashing alone would leave one node with twice the load of another, so none gets more than its share,
//! rounded up: who is full is passed over. A plan starts from the one before: what need not move stays.

use std::collections::{BTreeMap, BTreeSet};

/// A node that can hold partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its number, for ever.
    pub id: u64,
    /// What it shares the fate of: a rack, a data centre. Replicas go to different ones where there are enough.
    pub zone: Option<String>,
}

/// For each partition the nodes that hold it; the first should lead.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// By partition.
    pub replicas: Vec<Vec<u64>>,
}

/// What a plan must keep to.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// How many partitions there are.
    pub partitions: u16,
    /// How many nodes hold each, if there are so many.
    pub replicas: usize,
    /// At how many places of the ring a node stands.
    pub virtual_nodes: u32,
}

/// Virtual nodes unless told otherwise.
pub const VIRTUAL_NODES_DEFAULT: u32 = 100;

/// Places all partitions on the nodes, whatever their order. Nodes that are gone are left, nodes with more than their share
/// give some up, and nothing else moves: a node that joins takes at most its share, one that leaves takes only its own along.
pub fn plan(nodes: &[Node], shape: Shape, previous: &Placement) -> Placement {
    let mut planning = Planning::new(nodes, shape, previous);
    for partition in 0..planning.sets.len() {
        planning.fill(partition);
    }
    planning.level();
    planning.spread();
    planning.lead()
}

struct Planning {
    /// In ascending order of ids.
    nodes: Vec<Node>,
    /// By partition: nodes as indexes, in the order the ring shows them.
    preferences: Vec<Vec<usize>>,
    /// By partition: the nodes that hold it.
    sets: Vec<Vec<usize>>,
    /// By node: how many it holds.
    loads: Vec<usize>,
    /// How many hold a partition.
    replicas: usize,
    /// The most a node may hold.
    share: usize,
}

impl Planning {
    fn new(nodes: &[Node], shape: Shape, previous: &Placement) -> Planning {
        let mut nodes = nodes.to_vec();
        nodes.sort_by_key(|node| node.id);
        nodes.dedup_by_key(|node| node.id);
        let count = usize::from(shape.partitions);
        let replicas = shape.replicas.min(nodes.len());
        let mut planning = Planning {
            preferences: preferences(&nodes, shape),
            sets: vec![Vec::new(); count],
            loads: vec![0; nodes.len()],
            share: (count * replicas).div_ceil(nodes.len().max(1)),
            replicas,
            nodes,
        };
        for (partition, before) in previous.replicas.iter().take(count).enumerate() {
            for id in before {
                let known = planning.nodes.binary_search_by_key(id, |node| node.id);
                if let Ok(node) = known
                    && planning.sets[partition].len() < replicas
                    && !planning.sets[partition].contains(&node)
                {
                    planning.add(partition, node);
                }
            }
        }
        planning
    }

    fn add(&mut self, partition: usize, node: usize) {
        self.sets[partition].push(node);
        self.loads[node] += 1;
    }

    fn replace(&mut self, partition: usize, old: usize, new: usize) {
        for node in &mut self.sets[partition] {
            if *node == old {
                *node = new;
            }
        }
        self.loads[old] -= 1;
        self.loads[new] += 1;
    }

    /// How many different zones a set of nodes is in; a node without one is in its own.
    fn zones(&self, set: &[usize]) -> usize {
        let zone = |node: &usize| match &self.nodes[*node].zone {
            Some(zone) => (Some(zone.as_str()), 0),
            None => (None, *node),
        };
        set.iter().map(zone).collect::<BTreeSet<_>>().len()
    }

    fn zones_with(&self, partition: usize, old: Option<usize>, new: usize) -> usize {
        let kept = self.sets[partition].iter().copied().filter(|node| Some(*node) != old);
        self.zones(&kept.chain([new]).collect::<Vec<_>>())
    }

    /// Finds nodes for what a partition lacks.
    fn fill(&mut self, partition: usize) {
        while self.sets[partition].len() < self.replicas {
            let free = |node: &usize| self.loads[*node] < self.share && !self.sets[partition].contains(node);
            let zones = self.zones(&self.sets[partition]);
            let candidates: Vec<usize> =
                self.preferences[partition].iter().copied().filter(|node| free(node)).collect();
            let elsewhere =
                candidates.iter().find(|node| self.zones_with(partition, None, **node) > zones).copied();
            match elsewhere.or(candidates.first().copied()) {
                Some(node) => self.add(partition, node),
                None => self.fill_by_exchange(partition),
            }
        }
    }

    /// Whoever has room holds this partition already: another partition gives up one of its nodes for this one, and takes
    /// the one with room. There is such a partition, because the one with room holds fewer than the others.
    fn fill_by_exchange(&mut self, partition: usize) {
        for roomy in 0..self.nodes.len() {
            if self.loads[roomy] >= self.share {
                continue;
            }
            for other in 0..self.sets.len() {
                let given =
                    self.sets[other].iter().copied().find(|node| !self.sets[partition].contains(node));
                if let Some(given) = given
                    && !self.sets[other].contains(&roomy)
                {
                    self.replace(other, given, roomy);
                    self.add(partition, given);
                    return;
                }
            }
        }
        // Unreachable while shares cover all replicas; one above its share is better than one too few.
        let any = (0..self.nodes.len()).find(|node| !self.sets[partition].contains(node));
        if let Some(node) = any {
            self.add(partition, node);
        }
    }

    /// A share, rounded down.
    fn least(&self) -> usize {
        self.loads.iter().sum::<usize>() / self.nodes.len().max(1)
    }

    /// Takes from those above their share, rounded up, and gives to those below it, rounded down: as the ring would have it.
    fn level(&mut self) {
        let least = self.least();
        loop {
            let fullest = (0..self.nodes.len()).max_by_key(|node| self.loads[*node]);
            let Some(full) = fullest else { return };
            let poorest = self.loads.iter().copied().min().unwrap_or(0);
            let most = match (self.loads[full] > self.share, poorest < least) {
                (true, _) => self.share,
                (false, true) => least,
                (false, false) => return,
            };
            let mut best: Option<((usize, usize, usize), usize, usize)> = None;
            for partition in 0..self.sets.len() {
                if !self.sets[partition].contains(&full) {
                    continue;
                }
                let zones = self.zones(&self.sets[partition]);
                for (rank, node) in self.preferences[partition].iter().copied().enumerate() {
                    if self.loads[node] >= most || self.sets[partition].contains(&node) {
                        continue;
                    }
                    let lost = zones.saturating_sub(self.zones_with(partition, Some(full), node));
                    let cost = (lost, self.loads[node], rank);
                    if best.is_none_or(|(known, ..)| cost < known) {
                        best = Some((cost, partition, node));
                    }
                }
            }
            let Some((_, partition, node)) = best else { return };
            self.replace(partition, full, node);
        }
    }

    /// Exchanges nodes between partitions where that puts more zones under one of them and fewer under none.
    fn spread(&mut self) {
        let zones = self.zones(&(0..self.nodes.len()).collect::<Vec<_>>()).min(self.replicas);
        for partition in 0..self.sets.len() {
            while self.zones(&self.sets[partition]) < zones && self.spread_one(partition) {}
        }
    }

    fn spread_one(&mut self, partition: usize) -> bool {
        let here = self.zones(&self.sets[partition]);
        for old in self.sets[partition].clone() {
            // A node with room, if there is one.
            let roomy = (0..self.nodes.len()).find(|node| {
                self.loads[*node] < self.share
                    && self.loads[old] > self.least()
                    && !self.sets[partition].contains(node)
                    && self.zones_with(partition, Some(old), *node) > here
            });
            if let Some(node) = roomy {
                self.replace(partition, old, node);
                return true;
            }
            for other in 0..self.sets.len() {
                let there = self.zones(&self.sets[other]);
                for new in self.sets[other].clone() {
                    let fits = !self.sets[partition].contains(&new) && !self.sets[other].contains(&old);
                    if fits
                        && self.zones_with(partition, Some(old), new) > here
                        && self.zones_with(other, Some(new), old) >= there
                    {
                        self.replace(partition, old, new);
                        self.replace(other, new, old);
                        return true;
                    }
                }
            }
        }
        false
    }

    /// Puts in front of each partition a node that leads it, so that none leads more than its share of partitions. There is
    /// such a choice: a set of partitions is held by at least as many nodes as are needed to lead it.
    fn lead(self) -> Placement {
        let share = self.sets.len().div_ceil(self.nodes.len().max(1));
        let mut led: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for partition in 0..self.sets.len() {
            self.find_leader(partition, share, &mut led, &mut BTreeSet::new());
        }
        let mut sets = self.sets;
        for (node, partitions) in led {
            for partition in partitions {
                let at = sets[partition].iter().position(|held| *held == node).unwrap_or(0);
                sets[partition][..=at].rotate_right(1);
            }
        }
        let ids = |set: &Vec<usize>| set.iter().map(|node| self.nodes[*node].id).collect();
        Placement { replicas: sets.iter().map(ids).collect() }
    }

    /// Lets a node with room lead the partition, or one whose partition another can lead.
    fn find_leader(
        &self,
        partition: usize,
        share: usize,
        led: &mut BTreeMap<usize, Vec<usize>>,
        tried: &mut BTreeSet<usize>,
    ) -> bool {
        for node in self.sets[partition].iter().copied() {
            if !tried.insert(node) {
                continue;
            }
            let held = led.entry(node).or_default();
            if held.len() < share {
                held.push(partition);
                return true;
            }
            for other in held.clone() {
                if self.find_leader(other, share, led, tried) {
                    if let Some(held) = led.get_mut(&node) {
                        held.retain(|held| *held != other);
                        held.push(partition);
                    }
                    return true;
                }
            }
        }
        false
    }
}

/// By partition: the nodes in the order the ring shows them.
fn preferences(nodes: &[Node], shape: Shape) -> Vec<Vec<usize>> {
    let mut ring: Vec<(u64, usize)> = Vec::new();
    for (index, node) in nodes.iter().enumerate() {
        ring.extend(
            (0..shape.virtual_nodes.max(1)).map(|place| (mix(mix(node.id) ^ u64::from(place)), index)),
        );
    }
    ring.sort_unstable();
    (0..shape.partitions)
        .map(|partition| {
            let at = mix(!u64::from(partition));
            let from = ring.partition_point(|(place, _)| *place < at);
            let mut seen = BTreeSet::new();
            let walk = ring[from..].iter().chain(&ring[..from]).map(|(_, node)| *node);
            walk.filter(|node| seen.insert(*node)).collect()
        })
        .collect()
}

/// Spreads numbers evenly (the finalizer of SplitMix64); the same on every machine, for ever.
fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shape(partitions: u16, replicas: usize) -> Shape {
        Shape { partitions, replicas, virtual_nodes: VIRTUAL_NODES_DEFAULT }
    }

    fn nodes(ids: impl IntoIterator<Item = u64>) -> Vec<Node> {
        ids.into_iter().map(|id| Node { id, zone: None }).collect()
    }

    fn zoned(zones: u64, per_zone: u64) -> Vec<Node> {
        (0..zones * per_zone).map(|id| Node { id: id + 1, zone: Some(format!("z{}", id % zones)) }).collect()
    }

    fn count_by_node<'a>(held: impl Iterator<Item = &'a u64>) -> BTreeMap<u64, usize> {
        held.fold(BTreeMap::new(), |mut counts, id| {
            *counts.entry(*id).or_default() += 1;
            counts
        })
    }

    /// What holds of every plan.
    fn check(nodes: &[Node], shape: Shape, placement: &Placement) {
        let replicas = shape.replicas.min(nodes.len());
        assert_eq!(placement.replicas.len(), usize::from(shape.partitions));
        for set in &placement.replicas {
            assert_eq!(set.iter().collect::<BTreeSet<_>>().len(), replicas, "{set:?}");
            assert_eq!(set.len(), replicas);
            assert!(set.iter().all(|id| nodes.iter().any(|node| node.id == *id)));
        }
        let total = usize::from(shape.partitions) * replicas;
        let held = count_by_node(placement.replicas.iter().flatten());
        for node in nodes {
            let count = held.get(&node.id).copied().unwrap_or(0);
            assert!((total / nodes.len()..=total.div_ceil(nodes.len())).contains(&count), "{held:?}");
        }
        let lead_share = usize::from(shape.partitions).div_ceil(nodes.len());
        let led = count_by_node(placement.replicas.iter().filter_map(|set| set.first()));
        assert!(led.values().all(|count| *count <= lead_share), "{led:?} above {lead_share}");
    }

    /// How many replicas are where none was before.
    fn moved(before: &Placement, after: &Placement) -> usize {
        let sets = before.replicas.iter().zip(&after.replicas);
        sets.map(|(before, after)| after.iter().filter(|id| !before.contains(id)).count()).sum()
    }

    proptest! {
        #[test]
        fn shares_are_kept_through_joins_and_departures(
            partitions in prop::sample::select(vec![1u16, 2, 8, 16, 64, 256]),
            replicas in 1usize..6,
            first in prop::collection::btree_set(1u64..1_000, 1..8),
            steps in prop::collection::vec((any::<bool>(), 1u64..1_000), 0..8),
        ) {
            let shape = shape(partitions, replicas);
            let mut ids = first;
            let mut placement = plan(&nodes(ids.clone()), shape, &Placement::default());
            check(&nodes(ids.clone()), shape, &placement);
            for (joins, id) in steps {
                let before = (ids.len(), placement.clone());
                if joins && ids.insert(id) {
                    placement = plan(&nodes(ids.clone()), shape, &before.1);
                    let share = (usize::from(partitions) * replicas.min(ids.len())).div_ceil(ids.len());
                    prop_assert!(moved(&before.1, &placement) <= share.max(usize::from(partitions)));
                    if before.0 >= replicas {
                        prop_assert!(moved(&before.1, &placement) <= share);
                    }
                } else if !joins && ids.len() > 1 {
                    let gone = *ids.range(id..).next().or(ids.first()).unwrap();
                    ids.remove(&gone);
                    placement = plan(&nodes(ids.clone()), shape, &before.1);
                    let lost = before.1.replicas.iter().flatten().filter(|id| **id == gone).count();
                    // An exchange moves two for one.
                    prop_assert!(moved(&before.1, &placement) <= 2 * lost);
                }
                check(&nodes(ids.clone()), shape, &placement);
            }
        }

        #[test]
        fn replicas_are_in_different_zones(
            zones in 1u64..6, per_zone in 1u64..4, replicas in 1usize..5,
            partitions in prop::sample::select(vec![8u16, 16, 64]),
        ) {
            let nodes = zoned(zones, per_zone);
            let shape = shape(partitions, replicas);
            let placement = plan(&nodes, shape, &Placement::default());
            check(&nodes, shape, &placement);
            for set in &placement.replicas {
                let in_zones: BTreeSet<_> = set.iter().map(|id| (id - 1) % zones).collect();
                prop_assert_eq!(in_zones.len() as u64, zones.min(set.len() as u64), "{:?}", set);
            }
        }
    }

    #[test]
    fn a_plan_is_the_same_on_every_machine_and_in_every_order() {
        let shape = shape(16, 3);
        let one = plan(&nodes([1, 2, 3, 4, 5]), shape, &Placement::default());
        assert_eq!(plan(&nodes([5, 3, 1, 4, 2]), shape, &Placement::default()), one);
        assert_eq!(plan(&nodes([1, 2, 3, 4, 5]), shape, &one), one, "and stays when nothing changes");
    }

    #[test]
    fn without_nodes_nothing_is_placed() {
        let placement = plan(&[], shape(4, 3), &Placement::default());
        assert_eq!(placement.replicas, vec![Vec::<u64>::new(); 4]);
    }
}

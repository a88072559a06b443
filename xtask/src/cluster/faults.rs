//! What goes wrong, and when: a plan made from a seed, and carried out as the time comes.

use std::fmt;
use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;

/// One thing that goes wrong. Nodes are numbered from 0.
///
/// Nodes that join, leave and are replaced belong here too, once the command line can do that while others fail.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    /// A node is killed, and started again in the end.
    Kill(usize),
    /// All nodes are killed at the same moment.
    KillAll,
    /// A node stands still.
    Pause(usize),
    /// A node and all others do not reach each other; clients reach it.
    Isolate(usize),
    /// Two nodes do not reach each other.
    CutPair(usize, usize),
    /// Nothing of what the first says to the second arrives.
    CutOneWay(usize, usize),
    /// A node hears nothing of what others say, who hear it.
    Deafen(usize),
    /// What a node says and hears comes late.
    Delay(usize, Duration),
    /// So many of a hundred packets to and from a node are lost.
    Lose(usize, u8),
    /// The disk of a node is full.
    FillDisk(usize),
}

impl Fault {
    /// The node whose process it is about, if it is about one.
    fn process(self) -> Option<usize> {
        match self {
            Fault::Kill(node) | Fault::Pause(node) | Fault::FillDisk(node) => Some(node),
            _ => None,
        }
    }

    /// Whether both may happen at the same time.
    fn goes_with(self, other: Fault) -> bool {
        let everybody = |fault| fault == Fault::KillAll;
        let is_process = |fault: Fault| fault.process().is_some() || everybody(fault);
        match (self.process(), other.process()) {
            (Some(one), Some(another)) => one != another,
            _ => !(is_process(self) && is_process(other)),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |node: &usize| format!("node {}", node + 1);
        match self {
            Fault::Kill(node) => write!(f, "{} is killed", name(node)),
            Fault::KillAll => write!(f, "all nodes are killed"),
            Fault::Pause(node) => write!(f, "{} stands still", name(node)),
            Fault::Isolate(node) => write!(f, "{} is cut off", name(node)),
            Fault::CutPair(one, other) => write!(f, "{} and {} are cut apart", name(one), name(other)),
            Fault::CutOneWay(from, to) => write!(f, "{} does not hear {}", name(to), name(from)),
            Fault::Deafen(node) => write!(f, "{} hears nobody", name(node)),
            Fault::Delay(node, delay) => write!(f, "{} is {} ms away", name(node), delay.as_millis()),
            Fault::Lose(node, percent) => write!(f, "{percent} % to and from {} are lost", name(node)),
            Fault::FillDisk(node) => write!(f, "the disk of {} is full", name(node)),
        }
    }
}

/// A fault in its time, counted from the beginning.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Planned {
    /// When it begins.
    pub from: Duration,
    /// When it is over.
    pub to: Duration,
    /// What it is.
    pub fault: Fault,
}

/// Plans faults for so long: one or two at a time, with quiet moments between. The last is over by then.
pub fn plan(random: &mut StdRng, nodes: usize, small_disks: &[usize], length: Duration) -> Vec<Planned> {
    let mut plan = Vec::new();
    let mut now = milliseconds(random, 500, 2_000);
    while now < length {
        let fault = draw(random, nodes, small_disks);
        let to = (now + lasts(random, fault)).min(length);
        plan.push(Planned { from: now, to, fault });
        let mut quiet_from = to;
        if random.random_range(0..100) < 40 {
            let other = draw(random, nodes, small_disks);
            let from = now + (to - now).mul_f64(random.random_range(0.0..1.0));
            let until = (from + lasts(random, other)).min(length);
            if fault.goes_with(other) {
                plan.push(Planned { from, to: until, fault: other });
                quiet_from = quiet_from.max(until);
            }
        }
        now = quiet_from + milliseconds(random, 100, 3_000);
    }
    plan
}

fn draw(random: &mut StdRng, nodes: usize, small_disks: &[usize]) -> Fault {
    let node = random.random_range(0..nodes);
    let other = (node + random.random_range(1..nodes)) % nodes;
    match random.random_range(0..100) {
        0..22 => Fault::Kill(node),
        22..26 => Fault::KillAll,
        26..40 => Fault::Pause(node),
        40..52 => Fault::Isolate(node),
        52..60 => Fault::CutPair(node, other),
        60..68 => Fault::CutOneWay(node, other),
        68..74 => Fault::Deafen(node),
        74..84 => Fault::Delay(node, milliseconds(random, 5, 300)),
        84..94 => Fault::Lose(node, random.random_range(2..40)),
        _ if small_disks.is_empty() => Fault::Kill(node),
        _ => Fault::FillDisk(small_disks[random.random_range(0..small_disks.len())]),
    }
}

fn lasts(random: &mut StdRng, fault: Fault) -> Duration {
    match fault {
        Fault::Kill(_) | Fault::KillAll => milliseconds(random, 50, 6_000),
        Fault::Pause(_) => milliseconds(random, 200, 8_000),
        // Long enough to use up what the log has reserved.
        Fault::FillDisk(_) => milliseconds(random, 5_000, 20_000),
        _ => milliseconds(random, 300, 10_000),
    }
}

fn milliseconds(random: &mut StdRng, from: u64, to: u64) -> Duration {
    Duration::from_millis(random.random_range(from..=to))
}

/// The ways between a node and all others: those it hears on, then those it speaks on.
pub fn ways_of(node: usize, nodes: usize) -> [Vec<(usize, usize)>; 2] {
    let others = || (0..nodes).filter(move |other| *other != node);
    [others().map(|other| (other, node)).collect(), others().map(|other| (node, other)).collect()]
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn a_seed_is_a_plan() {
        let plan = |seed| plan(&mut StdRng::seed_from_u64(seed), 5, &[0, 1], Duration::from_secs(600));
        assert_eq!(plan(7), plan(7));
        assert_ne!(plan(7), plan(8));
    }

    #[test]
    fn plans_are_over_in_time_and_never_more_than_two_faults_at_once() {
        let length = Duration::from_secs(3_600);
        let plan = plan(&mut StdRng::seed_from_u64(1), 3, &[0, 1], length);
        let mut kinds = std::collections::HashSet::new();
        for planned in &plan {
            kinds.insert(std::mem::discriminant(&planned.fault));
            assert!(planned.from <= planned.to && planned.to <= length, "{planned:?}");
            let at_once: Vec<&Planned> =
                plan.iter().filter(|other| other.from <= planned.from && planned.from < other.to).collect();
            assert!(at_once.len() <= 2, "{at_once:?}");
            if let [one, another] = at_once[..] {
                assert!(one.fault.goes_with(another.fault), "{at_once:?}");
            }
        }
        assert_eq!(kinds.len(), 10, "every kind of fault");
    }

    #[test]
    fn a_node_has_ways_to_and_from_all_others() {
        assert_eq!(ways_of(1, 3), [vec![(0, 1), (2, 1)], vec![(1, 0), (1, 2)]]);
    }
}

//! What goes wrong, and when: a plan made from a seed, and carried out as the time comes.

use std::time::Duration;

use rand::Rng;
use rand::rngs::StdRng;

/// One thing that goes wrong. Nodes are numbered by their places, from 0.
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
    /// The disk of a node is full, and so is its log soon.
    FillDisk(usize),
    /// A node is killed and its disk deleted; another joins by invitation, and the lost one is removed.
    Replace(usize),
    /// A node joins, and leaves again.
    Visit,
}

impl Fault {
    /// The node whose process it is about, if it is about one.
    fn process(self) -> Option<usize> {
        match self {
            Fault::Kill(node) | Fault::Pause(node) | Fault::FillDisk(node) | Fault::Replace(node) => {
                Some(node)
            }
            _ => None,
        }
    }

    /// What it is, whomever it hits.
    pub fn kind(self) -> String {
        let text = format!("{self:?}");
        text.split('(').next().unwrap_or_default().to_string()
    }

    /// Whether it is about who belongs to the cluster. The first node must be able to write that down.
    fn is_move(self) -> bool {
        matches!(self, Fault::Replace(_) | Fault::Visit)
    }

    /// Whether both may happen at the same time.
    fn goes_with(self, other: Fault) -> bool {
        let needs_disk = |fault: Fault| fault.is_move() || matches!(fault, Fault::FillDisk(_));
        if (self.is_move() || other.is_move()) && needs_disk(self) && needs_disk(other) {
            return false;
        }
        let everybody = |fault| fault == Fault::KillAll;
        let is_process = |fault: Fault| fault.process().is_some() || everybody(fault);
        match (self.process(), other.process()) {
            (Some(one), Some(another)) => one != another,
            _ => !(is_process(self) && is_process(other)),
        }
    }
}

impl Fault {
    /// In words, with names for the places.
    pub fn named(self, name: impl Fn(usize) -> String) -> String {
        match self {
            Fault::Kill(node) => format!("{} is killed", name(node)),
            Fault::KillAll => "all nodes are killed".into(),
            Fault::Pause(node) => format!("{} stands still", name(node)),
            Fault::Isolate(node) => format!("{} is cut off", name(node)),
            Fault::CutPair(one, other) => format!("{} and {} are cut apart", name(one), name(other)),
            Fault::CutOneWay(from, to) => format!("{} does not hear {}", name(to), name(from)),
            Fault::Deafen(node) => format!("{} hears nobody", name(node)),
            Fault::Delay(node, delay) => format!("{} is {} ms away", name(node), delay.as_millis()),
            Fault::Lose(node, percent) => format!("{percent} % to and from {} are lost", name(node)),
            Fault::FillDisk(node) => format!("the disk of {} is full", name(node)),
            Fault::Replace(node) => format!("{} is lost with its disk, and replaced", name(node)),
            Fault::Visit => "another node joins".into(),
        }
    }

    /// The same with seats instead of places.
    #[must_use]
    pub fn at(self, seat: impl Fn(usize) -> usize) -> Fault {
        match self {
            Fault::Kill(node) => Fault::Kill(seat(node)),
            Fault::Pause(node) => Fault::Pause(seat(node)),
            Fault::Isolate(node) => Fault::Isolate(seat(node)),
            Fault::CutPair(one, other) => Fault::CutPair(seat(one), seat(other)),
            Fault::CutOneWay(from, to) => Fault::CutOneWay(seat(from), seat(to)),
            Fault::Deafen(node) => Fault::Deafen(seat(node)),
            Fault::Delay(node, delay) => Fault::Delay(seat(node), delay),
            Fault::Lose(node, percent) => Fault::Lose(seat(node), percent),
            Fault::FillDisk(node) => Fault::FillDisk(seat(node)),
            Fault::Replace(node) => Fault::Replace(seat(node)),
            Fault::KillAll | Fault::Visit => self,
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

/// What is not drawn so soon is not there to be drawn.
const DRAWS_MAX: usize = 10_000;

/// Where faults happen, and which.
#[derive(Debug, Clone, Copy)]
pub struct Scene<'a> {
    /// How many nodes.
    pub nodes: usize,
    /// Those whose disk can be filled.
    pub small_disks: &'a [usize],
    /// Only these kinds, if there are any.
    pub only: &'a [String],
}

/// Plans faults for so long: one or two at a time, with quiet moments between. The last is over by then. Nothing is planned
/// where nothing of that kind can happen.
pub fn plan(random: &mut StdRng, scene: Scene<'_>, length: Duration) -> Vec<Planned> {
    let mut plan = Vec::new();
    let mut now = milliseconds(random, 500, 2_000);
    while now < length {
        let Some(fault) = draw(random, scene) else { break };
        let to = (now + lasts(random, fault)).min(length);
        plan.push(Planned { from: now, to, fault });
        let mut quiet_from = to;
        if random.random_range(0..100) < 40 {
            let other = draw(random, scene).unwrap_or(fault);
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

fn draw(random: &mut StdRng, scene: Scene<'_>) -> Option<Fault> {
    let is_wanted = |fault: &Fault| scene.only.is_empty() || scene.only.contains(&fault.kind());
    (0..DRAWS_MAX).map(|_| draw_any(random, scene)).find(is_wanted)
}

fn draw_any(random: &mut StdRng, Scene { nodes, small_disks, .. }: Scene<'_>) -> Fault {
    let node = random.random_range(0..nodes);
    let other = (node + random.random_range(1..nodes)) % nodes;
    match random.random_range(0..100) {
        0..19 => Fault::Kill(node),
        19..23 => Fault::KillAll,
        23..35 => Fault::Pause(node),
        35..46 => Fault::Isolate(node),
        46..53 => Fault::CutPair(node, other),
        53..60 => Fault::CutOneWay(node, other),
        60..66 => Fault::Deafen(node),
        66..75 => Fault::Delay(node, milliseconds(random, 5, 300)),
        75..84 => Fault::Lose(node, random.random_range(2..40)),
        // The first node alone can invite others.
        84..89 => Fault::Replace(random.random_range(1..nodes)),
        89..94 => Fault::Visit,
        _ if small_disks.is_empty() => Fault::Kill(node),
        _ => Fault::FillDisk(small_disks[random.random_range(0..small_disks.len())]),
    }
}

fn lasts(random: &mut StdRng, fault: Fault) -> Duration {
    match fault {
        Fault::Kill(_) | Fault::KillAll => milliseconds(random, 50, 6_000),
        Fault::Pause(_) => milliseconds(random, 200, 8_000),
        // From the moment the log has no room any more; before, what it has reserved must be used up.
        Fault::FillDisk(_) => milliseconds(random, 2_000, 8_000),
        Fault::Visit => milliseconds(random, 2_000, 12_000),
        _ => milliseconds(random, 300, 10_000),
    }
}

fn milliseconds(random: &mut StdRng, from: u64, to: u64) -> Duration {
    Duration::from_millis(random.random_range(from..=to))
}

/// The ways between a node and all others: those it hears on, then those it speaks on.
pub fn ways_of(node: usize, nodes: &[usize]) -> [Vec<(usize, usize)>; 2] {
    let others = || nodes.iter().copied().filter(move |other| *other != node);
    [others().map(|other| (other, node)).collect(), others().map(|other| (node, other)).collect()]
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn a_seed_is_a_plan() {
        let scene = Scene { nodes: 5, small_disks: &[0, 1], only: &[] };
        let plan = |seed| plan(&mut StdRng::seed_from_u64(seed), scene, Duration::from_secs(600));
        assert_eq!(plan(7), plan(7));
        assert_ne!(plan(7), plan(8));
    }

    #[test]
    fn plans_are_over_in_time_and_never_more_than_two_faults_at_once() {
        let length = Duration::from_secs(3_600);
        let scene = Scene { nodes: 3, small_disks: &[0, 1], only: &[] };
        let plan = plan(&mut StdRng::seed_from_u64(1), scene, length);
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
        assert_eq!(kinds.len(), 12, "every kind of fault");
    }

    #[test]
    fn only_what_is_wanted_is_planned() {
        let length = Duration::from_secs(600);
        let plan = |small_disks: &[usize], only: &str| {
            let scene = Scene { nodes: 3, small_disks, only: &[only.to_string()] };
            plan(&mut StdRng::seed_from_u64(1), scene, length)
        };
        let fills = plan(&[1], "FillDisk");
        assert!(!fills.is_empty() && fills.iter().all(|planned| planned.fault == Fault::FillDisk(1)));
        assert!(plan(&[], "FillDisk").is_empty() && plan(&[1], "Rain").is_empty());
    }

    #[test]
    fn a_node_has_ways_to_and_from_all_others() {
        assert_eq!(ways_of(1, &[0, 1, 2]), [vec![(0, 1), (2, 1)], vec![(1, 0), (1, 2)]]);
    }
}

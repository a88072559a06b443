//! What the head of `striping.rs` says, tried out on a model: one id, some stripes, nodes that know different editions, and whatever is
//! sent may arrive never, now, late, or twice. The model is trusted because it finds what is wrong with the rules that were rejected.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

/// What lies at a stripe under the id.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Record {
    Nothing,
    Claim(usize),
    Done,
}

/// What is asked of a stripe, by who knows an edition.
#[derive(Clone, Copy)]
enum Ask {
    Take(usize),
    Add,
    Open(usize),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Rules {
    /// As they are.
    Editions,
    /// A claim is taken away by whoever has claimed the others.
    AnybodyOpens,
    /// A claim stays.
    NobodyOpens,
}

/// How it ends for a node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// It was told that it is done.
    Done,
    /// It was told that the id was used for something else.
    Refused,
    /// It was told nothing.
    Unknown,
}

struct World {
    rules: Rules,
    /// By edition, the stripe that it says.
    says: Vec<usize>,
    stripes: Vec<Record>,
    counted: usize,
    /// What was sent, and may still arrive.
    late: Vec<(usize, Ask)>,
    chance: StdRng,
}

/// Where a node is with its request.
#[derive(Clone, Copy)]
struct Node {
    edition: usize,
    /// How many of the older editions' stripes are claimed.
    claimed: usize,
    opens: bool,
}

impl Node {
    fn of(edition: usize) -> Node {
        Node { edition, claimed: 0, opens: false }
    }
}

impl World {
    fn new(rules: Rules, seed: u64) -> World {
        let mut chance = StdRng::seed_from_u64(seed);
        let stripes = chance.random_range(2..4);
        let says = (0..chance.random_range(2..5)).map(|_| chance.random_range(0..stripes)).collect();
        World { rules, says, stripes: vec![Record::Nothing; stripes], counted: 0, late: Vec::new(), chance }
    }

    /// What `library.lua` does. The record that was there is the answer.
    fn arrive(&mut self, stripe: usize, ask: Ask) -> Record {
        let there = self.stripes[stripe];
        self.stripes[stripe] = match (ask, there) {
            (_, Record::Done) => Record::Done,
            (Ask::Add, Record::Nothing) => {
                self.counted += 1;
                Record::Done
            }
            (Ask::Take(edition), Record::Claim(other)) => Record::Claim(edition.max(other)),
            (Ask::Take(edition), Record::Nothing) => Record::Claim(edition),
            (Ask::Open(_), Record::Claim(_)) if self.rules == Rules::AnybodyOpens => Record::Nothing,
            (Ask::Open(edition), Record::Claim(other)) if other <= edition => Record::Nothing,
            (_, there) => there,
        };
        there
    }

    /// One step of a node: it sends something, and may hear what is answered.
    fn step(&mut self, node: &mut Node) -> Option<End> {
        let newest = self.says.len() - 1;
        let target = self.says[node.edition];
        let (stripe, ask) = match node.claimed < node.edition {
            true => (self.says[node.claimed], Ask::Take(node.edition)),
            false if node.opens => (target, Ask::Open(node.edition)),
            false => (target, Ask::Add),
        };
        if matches!(ask, Ask::Take(_)) && stripe == target {
            node.claimed += 1;
            return None;
        }
        self.late.push((stripe, ask));
        if self.chance.random_ratio(1, 8) {
            return Some(End::Unknown);
        }
        let there = self.arrive(stripe, ask);
        if self.chance.random_ratio(1, 8) {
            return Some(End::Unknown);
        }
        let is_newer = matches!(there, Record::Claim(other) if other > node.edition);
        match (ask, there) {
            (_, Record::Done) | (Ask::Add, Record::Nothing) => return Some(End::Done),
            (Ask::Add, Record::Claim(_)) if self.rules == Rules::NobodyOpens => return Some(End::Refused),
            (Ask::Take(_) | Ask::Open(_), _) if is_newer && self.rules == Rules::Editions => {
                *node = Node::of(newest)
            }
            (Ask::Take(_), _) => node.claimed += 1,
            (Ask::Add, Record::Claim(_)) => node.opens = true,
            (Ask::Open(_), _) => node.opens = false,
        }
        None
    }

    /// Several nodes at once, with everything that is late; then somebody who keeps asking.
    fn run(mut self) -> (usize, End) {
        let mut nodes: Vec<Node> = Vec::new();
        for _ in 0..60 {
            let editions = self.says.len();
            match self.chance.random_range(0..8) {
                0 => nodes.push(Node::of(self.chance.random_range(0..editions))),
                1 if !self.late.is_empty() => {
                    let (stripe, ask) = self.late[self.chance.random_range(0..self.late.len())];
                    self.arrive(stripe, ask);
                }
                _ if !nodes.is_empty() => {
                    let place = self.chance.random_range(0..nodes.len());
                    let mut node = nodes[place];
                    match self.step(&mut node) {
                        Some(_) => _ = nodes.swap_remove(place),
                        None => nodes[place] = node,
                    }
                }
                _ => {}
            }
        }
        let mut last = Node::of(self.says.len() - 1);
        for _ in 0..1_000 {
            match self.step(&mut last) {
                Some(End::Unknown) => last = Node::of(last.edition),
                Some(end) => return (self.counted, end),
                None => {}
            }
        }
        (self.counted, End::Unknown)
    }
}

fn outcomes(rules: Rules) -> impl Iterator<Item = (usize, End)> {
    (0..200_000).map(move |seed| World::new(rules, seed).run())
}

#[test]
fn an_id_counts_once_wherever_it_is_asked() {
    for (seed, (counted, end)) in outcomes(Rules::Editions).enumerate() {
        assert!(counted == 1 && end == End::Done, "world {seed}: counted {counted} times");
    }
}

#[test]
fn the_rules_that_were_rejected_fail() {
    assert!(outcomes(Rules::AnybodyOpens).any(|(counted, _)| counted > 1), "it is counted twice");
    assert!(outcomes(Rules::NobodyOpens).all(|(counted, _)| counted <= 1));
    assert!(outcomes(Rules::NobodyOpens).any(|(_, end)| end == End::Refused), "it is refused");
}

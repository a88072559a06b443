//! How it is to go from one node to another: cut, slow, lossy. The switch and the proxies ask here.

use std::sync::{Mutex, PoisonError, RwLock};
use std::time::Duration;

/// One direction between two nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Way {
    /// Nothing arrives.
    pub is_cut: bool,
    /// Everything arrives this much later.
    pub delay: Duration,
    /// So many of a hundred do not arrive.
    pub loss_percent: u8,
}

impl Way {
    /// With both troubles.
    fn and(self, other: Way) -> Way {
        Way {
            is_cut: self.is_cut || other.is_cut,
            delay: self.delay.max(other.delay),
            loss_percent: self.loss_percent.max(other.loss_percent),
        }
    }
}

/// A trouble on some ways, by number.
type Trouble = (usize, Vec<(usize, usize)>, Way);

/// All ways between nodes, which are numbered from 0.
pub struct Ways {
    nodes: usize,
    /// At from * nodes + to.
    now: RwLock<Vec<Way>>,
    troubles: Mutex<Vec<Trouble>>,
}

impl Ways {
    /// All well.
    pub fn new(nodes: usize) -> Ways {
        Ways { nodes, now: RwLock::new(vec![Way::default(); nodes * nodes]), troubles: Mutex::default() }
    }

    /// How a way is now. Those who are no nodes are always reached.
    pub fn get(&self, from: usize, to: usize) -> Way {
        if from >= self.nodes || to >= self.nodes {
            return Way::default();
        }
        self.now.read().unwrap_or_else(PoisonError::into_inner)[from * self.nodes + to]
    }

    /// Adds a trouble, under a number.
    pub fn begin(&self, number: usize, pairs: Vec<(usize, usize)>, way: Way) {
        self.change(|troubles| troubles.push((number, pairs, way)));
    }

    /// Ends it.
    pub fn end(&self, number: usize) {
        self.change(|troubles| troubles.retain(|(other, ..)| *other != number));
    }

    fn change(&self, change: impl FnOnce(&mut Vec<Trouble>)) {
        let mut troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut troubles);
        let mut now = vec![Way::default(); self.nodes * self.nodes];
        for (_, pairs, way) in troubles.iter() {
            for (from, to) in pairs {
                let at = from * self.nodes + to;
                now[at] = now[at].and(*way);
            }
        }
        *self.now.write().unwrap_or_else(PoisonError::into_inner) = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn troubles_add_up_and_go_one_by_one() {
        let ways = Ways::new(3);
        let cut = Way { is_cut: true, ..Way::default() };
        let slow = Way { delay: Duration::from_millis(9), ..Way::default() };
        ways.begin(1, vec![(0, 1), (1, 0)], cut);
        ways.begin(2, vec![(0, 1)], slow);
        assert_eq!(ways.get(0, 1), Way { delay: slow.delay, ..cut });
        assert_eq!((ways.get(1, 0), ways.get(2, 0), ways.get(0, 9)), (cut, Way::default(), Way::default()));
        ways.end(1);
        assert_eq!((ways.get(0, 1), ways.get(1, 0)), (slow, Way::default()));
        ways.end(2);
        assert_eq!(ways.get(0, 1), Way::default());
    }
}

//! Nodes that come and go for good, while everything else goes wrong: each change begins when its time comes, and is over when
//! the cluster says so.
//!
//! A plan speaks of places, 0 to n - 1. Who sits there changes: a node that was replaced does not come back. One change at a
//! time, because two lost disks out of three are more than anybody promises to stand.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::nodes::Nodes;

/// How long a change may take that nothing else disturbs any more.
pub const MOVE_MAX: Duration = Duration::from_secs(60);
/// Between looks at how far it is.
const LOOK_PAUSE: Duration = Duration::from_millis(500);

/// See the head of this file.
pub struct Moves {
    /// By place, the seat of the node that is there.
    seats: Vec<usize>,
    current: Option<Move>,
    looked: Instant,
    /// How many are over.
    pub done: usize,
    /// How many did not begin, because another was not over, or could not.
    pub skipped: usize,
}

struct Move {
    joined: usize,
    leaving: usize,
    /// A guest stays for as long as is planned.
    may_leave: bool,
    has_joined: bool,
    was_told: bool,
    began: Instant,
}

impl Moves {
    pub fn new(nodes: usize) -> Moves {
        Moves { seats: (0..nodes).collect(), current: None, looked: Instant::now(), done: 0, skipped: 0 }
    }

    /// The seat of a place.
    pub fn seat(&self, place: usize) -> usize {
        self.seats[place]
    }

    /// Whether a change is under way.
    pub fn is_moving(&self) -> bool {
        self.current.is_some()
    }

    /// Whether a node is on its way out, so that its end is its own affair.
    pub fn is_leaving(&self, seat: usize) -> bool {
        self.current.as_ref().is_some_and(|current| current.leaving == seat && current.may_leave)
    }

    /// A node is lost with its disk, and another joins in its place.
    pub fn replace(&mut self, place: usize, nodes: &mut Nodes) -> Result<()> {
        if self.is_moving() || !nodes.has_room() {
            self.skipped += 1;
            return Ok(());
        }
        let leaving = self.seats[place];
        let has_small_disk = nodes.has_small_disk(leaving);
        nodes.destroy(leaving)?;
        let joined = nodes.join(has_small_disk)?;
        self.seats[place] = joined;
        self.current = Some(Move {
            joined,
            leaving,
            may_leave: true,
            has_joined: false,
            was_told: false,
            began: Instant::now(),
        });
        Ok(())
    }

    /// A node joins, for a while.
    pub fn visit(&mut self, nodes: &mut Nodes) -> Result<()> {
        if self.is_moving() || !nodes.has_room() {
            self.skipped += 1;
            return Ok(());
        }
        let joined = nodes.join(false)?;
        let began = Instant::now();
        let (leaving, has_joined) = (joined, false);
        self.current = Some(Move { joined, leaving, may_leave: false, has_joined, was_told: false, began });
        Ok(())
    }

    /// The guest may go.
    pub fn end_visit(&mut self) {
        if let Some(current) = &mut self.current {
            current.may_leave = true;
        }
    }

    /// Sees how far the change is, and does what comes next. Returns what to tell once it is over.
    pub fn look(&mut self, nodes: &mut Nodes) -> Result<Option<String>> {
        let Some(current) = &mut self.current else { return Ok(None) };
        if self.looked.elapsed() < LOOK_PAUSE {
            return Ok(None);
        }
        self.looked = Instant::now();
        if !current.was_told {
            current.has_joined |= nodes.has(current.joined);
            // Who is told when others are cut off is told again, unless it was done and only the answer was lost.
            current.was_told = current.may_leave
                && current.has_joined
                && (nodes.remove(current.leaving) || nodes.lacks(current.leaving));
            return Ok(None);
        }
        let stay: Vec<usize> = nodes.seats().into_iter().filter(|seat| *seat != current.leaving).collect();
        if !nodes.is_settled(&stay) {
            return Ok(None);
        }
        let told = format!(
            "node {} is gone; that took {:.1} s",
            current.leaving + 1,
            current.began.elapsed().as_secs_f64()
        );
        if nodes.seats().contains(&current.leaving) {
            nodes.destroy(current.leaving)?;
        }
        self.current = None;
        self.done += 1;
        Ok(Some(told))
    }
}

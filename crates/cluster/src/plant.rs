//! Bugs planted on purpose, to see that the simulation notices them. Without the feature `plants` there are none, and asking
//! for one costs nothing.

/// Which bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// Entries are said to be durable before they are synced.
    AcknowledgesBeforeSync,
    /// A leader answers reads without asking whether it still leads.
    ReadsWithoutAsking,
    /// The first entry after a restart is carried out twice.
    AppliesTwice,
    /// Votes are not written down.
    ForgetsVotes,
    /// A replica that was started again votes whatever it promised before.
    ForgetsPromises,
}

#[cfg(feature = "plants")]
mod planted {
    use std::cell::Cell;

    use super::Plant;

    thread_local! {
        static PLANTED: Cell<Option<Plant>> = const { Cell::new(None) };
    }

    /// Plants a bug, or none, for everything on this thread.
    pub fn plant(plant: Option<Plant>) {
        PLANTED.set(plant);
    }

    /// Whether this bug is planted.
    pub fn is_planted(plant: Plant) -> bool {
        PLANTED.get() == Some(plant)
    }
}

#[cfg(feature = "plants")]
pub use planted::{is_planted, plant};

/// Whether this bug is planted.
#[cfg(not(feature = "plants"))]
pub const fn is_planted(_plant: Plant) -> bool {
    false
}

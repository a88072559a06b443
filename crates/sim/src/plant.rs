//! Bugs planted on purpose, one at a time, to see that the properties notice them.
//!
//! None of them is in the engine: they sit in the disk, in the cold store, or in whoever talks to the engine,
//! where a real mistake of the same kind would show the same way.

/// Which bug is planted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Plant {
    /// None: everything keeps its promises.
    #[default]
    None,
    /// Syncs of files say they succeeded and did nothing.
    SyncsLie,
    /// Syncs of recycled segments do nothing, so a power loss brings their old bytes back.
    RecycledSegmentsKeepOldBytes,
    /// Where a file is damaged, everything behind the damage reads as zeros, as if it had never been written.
    DamageReadsAsTheEnd,
    /// A power loss may take the last write of the cold store back.
    ColdForgetsTheLastWrite,
    /// A power loss may leave half of a write in the cold store.
    ColdTearsWrites,
    /// Rows of the cold store read as they were before their last change, now and then.
    ColdReadsStaleRows,
    /// Rows of request ids never reach the cold store.
    ColdDropsRequestIds,
    /// Rows of trails never reach the cold store.
    ColdDropsTrails,
    /// The two engines that recover from copies of one disk read different rows.
    ColdDiffersBetweenCopies,
    /// Replies are shown before they are settled.
    RepliesBeforeSettling,
    /// Retries leave their request id away.
    RetriesWithoutId,
    /// The bounds of additions are left away.
    BoundsLeftAway,
    /// Groups are sent as single requests, each in a batch of its own.
    GroupsTornApart,
    /// Pages of scans lose their last key.
    ScansLoseAKey,
}

//! What can be asked of one counter.

use crate::batch::Span;

/// One request's verb and arguments. The key travels beside it, see [`crate::Request`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Look, change nothing.
    Read,
    /// Look at the part of the value that belongs to some dimensions.
    Slice {
        /// Which: see [`crate::rollup::Slice`].
        slice: Span,
    },
    /// Refused unless this holds of the counter; changes nothing. See [`crate::GroupKind::Guard`].
    Check(Condition),
    /// Add a signed delta.
    Add(Add),
    /// The same, with what is told of it.
    Told {
        /// The addition.
        add: Add,
        /// When it happened, what it belongs to, why: see [`crate::told::Told`].
        told: Span,
    },
    /// Replace the value.
    Set(Set),
    /// The same, also of a counter of uniques, which is a sum from then on: Redis's SET.
    Overwrite(Set),
    /// Back to zero; the counter stays. A counter that does not exist stays absent.
    Reset(Condition),
    /// The counter ceases to exist.
    Delete(Condition),
    /// Change when the counter expires, and nothing else.
    Expire(Expire),
    /// These items were seen. Makes a counter of uniques of one that does not exist.
    Observe {
        /// Their hashes, eight bytes each.
        items: Span,
        /// When, if not now.
        at_ms: Option<u64>,
    },
    /// All that another counter of uniques has seen was seen.
    Join {
        /// Its sketch, as it is stored; see [`crate::kinds::put_join`].
        sketch: Span,
    },
    /// This is what was seen, and nothing else.
    Replace {
        /// A sketch, as it is stored.
        sketch: Span,
        /// What happens to the expiry.
        expiry: Expiry,
        /// What must hold of the counter first.
        condition: Condition,
    },
    /// The counter becomes what it was elsewhere.
    Restore {
        /// All it had, see [`crate::kinds::put_restored`].
        whole: Span,
        /// What happens to the expiry.
        expiry: Expiry,
        /// What must hold of the counter first.
        condition: Condition,
    },
    /// Count so much if a limit leaves room for it.
    Acquire(Acquire),
    /// Set so much aside for so many milliseconds, as if it were added: the delta and the bounds of the addition hold.
    Reserve(Add, u64),
    /// What was set aside is counted, or free again.
    End {
        /// The birth of the counter.
        birth: u64,
        /// The number of the hold.
        number: u64,
        /// How it ends.
        ending: Ending,
    },
    /// How many counters there are. Has no key.
    Count,
    /// Delete every counter. Has no key. Request ids and producer sessions are kept.
    Clear,
}

impl Action {
    /// Whether the action could change anything.
    pub fn is_write(&self) -> bool {
        !matches!(self, Action::Read | Action::Slice { .. } | Action::Check(_) | Action::Count)
    }

    /// Whether the action is about all counters instead of one.
    pub fn is_global(&self) -> bool {
        matches!(self, Action::Count | Action::Clear)
    }

    /// Whether only the rules for whole counters (`kinds`) know it.
    #[inline]
    pub fn is_for_whole(&self) -> bool {
        matches!(
            self,
            Action::Told { .. }
                | Action::Slice { .. }
                | Action::Observe { .. }
                | Action::Join { .. }
                | Action::Replace { .. }
                | Action::Restore { .. }
                | Action::Acquire(_)
                | Action::Reserve(..)
                | Action::End { .. }
        )
    }

    /// The bytes that belong to it.
    pub fn payload(&self) -> Option<Span> {
        match self {
            Action::Told { told, .. } => Some(*told),
            Action::Slice { slice } => Some(*slice),
            Action::Observe { items, .. } => Some(*items),
            Action::Join { sketch } | Action::Replace { sketch, .. } => Some(*sketch),
            Action::Restore { whole, .. } => Some(*whole),
            Action::Acquire(acquire) => Some(acquire.frame),
            _ => None,
        }
    }

    /// The same with its bytes moved.
    #[inline]
    pub(crate) fn moved(self, moved: impl FnOnce(Span) -> Span) -> Action {
        if self.is_for_whole()
            && let Some(payload) = self.payload()
        {
            return self.with_payload(moved(payload));
        }
        self
    }

    /// The same with its bytes at another place.
    pub fn with_payload(self, payload: Span) -> Action {
        match self {
            Action::Told { add, .. } => Action::Told { add, told: payload },
            Action::Slice { .. } => Action::Slice { slice: payload },
            Action::Observe { at_ms, .. } => Action::Observe { items: payload, at_ms },
            Action::Join { .. } => Action::Join { sketch: payload },
            Action::Replace { expiry, condition, .. } => {
                Action::Replace { sketch: payload, expiry, condition }
            }
            Action::Restore { expiry, condition, .. } => {
                Action::Restore { whole: payload, expiry, condition }
            }
            Action::Acquire(acquire) => Action::Acquire(Acquire { frame: payload, ..acquire }),
            other => other,
        }
    }
}

/// An attempt to count within a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acquire {
    /// How much; not negative.
    pub amount: i64,
    /// The most there may be in the window; the policy's where none is given.
    pub limit: Option<i64>,
    /// How time is cut, see [`crate::body::put_frame`]; empty for the counter's own way, or none.
    pub frame: Span,
    /// Count it also beyond the limit.
    pub is_soft: bool,
}

/// How a hold ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// So much of it is counted, or all of it.
    Commit(Option<i64>),
    /// Nothing of it is.
    Void,
}

/// An addition with everything that may guard it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Add {
    /// What to add; negative to subtract.
    pub delta: i64,
    /// The result must not be below this.
    pub min: i64,
    /// The result must not be above this.
    pub max: i64,
    /// Take as much as the bounds leave instead of refusing.
    pub saturate: bool,
    /// What happens to the expiry if the addition is accepted.
    pub expiry: Expiry,
    /// What must hold of the counter first.
    pub condition: Condition,
}

impl Add {
    /// An addition without any guard.
    pub const fn plain(delta: i64) -> Add {
        Add {
            delta,
            min: i64::MIN,
            max: i64::MAX,
            saturate: false,
            expiry: Expiry::Keep,
            condition: Condition::Always,
        }
    }
}

/// A replacement of the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Set {
    /// The new value.
    pub value: i64,
    /// What happens to the expiry.
    pub expiry: Expiry,
    /// What must hold of the counter first.
    pub condition: Condition,
}

/// A change of the expiry alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expire {
    /// The new expiry.
    pub expiry: Expiry,
    /// Compared with the expiry the counter has.
    pub when: ExpireWhen,
}

/// What must hold of the counter before a change is considered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Nothing.
    Always,
    /// It exists.
    Exists,
    /// It does not exist.
    Absent,
    /// It has this version; 0 stands for "does not exist".
    Version(u64),
    /// It is this very life of the counter at this version.
    Tag {
        /// Sequence at its creation.
        birth: u64,
        /// Version within that life.
        version: u64,
    },
}

/// What an accepted change does to the expiry. Relative forms count from the entry time, and are kept relative
/// so that a retry is recognized as the same request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// Leave it.
    Keep,
    /// The counter no longer expires.
    Clear,
    /// Expire so many milliseconds after the entry time.
    In(u64),
    /// Expire at this UTC millisecond; in the past: at once.
    At(u64),
    /// As `In`, only if the counter has no expiry yet.
    InIfNone(u64),
    /// As `At`, only if the counter has no expiry yet.
    AtIfNone(u64),
}

/// Redis's conditions of EXPIRE. A counter without expiry counts as expiring infinitely late.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpireWhen {
    /// Unconditionally.
    Always,
    /// It has no expiry.
    None,
    /// It has one.
    Some,
    /// The new one is later.
    Later,
    /// The new one is earlier.
    Earlier,
    /// NX/XX with GT/LT as Redis combines them: it has one and the new one is later.
    SomeAndLater,
    /// It has one and the new one is earlier.
    SomeAndEarlier,
}

impl ExpireWhen {
    /// All of them. Their places are numbers between nodes: add at the end.
    pub const ALL: [ExpireWhen; 7] = [
        ExpireWhen::Always,
        ExpireWhen::None,
        ExpireWhen::Some,
        ExpireWhen::Later,
        ExpireWhen::Earlier,
        ExpireWhen::SomeAndLater,
        ExpireWhen::SomeAndEarlier,
    ];
}

//! The closed list of reasons for which counting says no.
//!
//! How a refusal looks on a protocol is the wire's business; whether it is remembered under a request id is a
//! rule of counting and stands here.

/// Why a request was refused. The numbers are stored on disk: add at the end, never renumber.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Refusal {
    /// The result does not fit 64 bits.
    Overflow = 1,
    /// The result would be below the floor of the call or of the policy.
    BelowFloor = 2,
    /// The result would be above the ceiling of the call or of the policy.
    AboveCeiling = 3,
    /// The condition on existence, version or expiry does not hold.
    ConditionUnmet = 4,
    /// The policy disables writes to this counter.
    Disabled = 5,
    /// Another item of the same all-or-none group was refused.
    GroupAborted = 6,
    /// This request id was used for another request.
    IdReused = 7,
    /// The producer has moved on to a higher epoch.
    Fenced = 8,
    /// There is no room for another producer session.
    TooManyProducers = 9,
    /// An all-or-none group names counters of several slots, and this deployment decides per slot.
    CrossSlot = 10,
    /// Nobody leads the counter's partition at the moment; nothing was changed.
    NoLeader = 11,
    /// Too few replicas of the counter's partition can be reached; nothing was changed.
    NoQuorum = 12,
    /// It may have been done or not: whoever asks again under the same request id learns which.
    OutcomeUnknown = 13,
    /// The counter counts something else: sums, uniques, or sums by time.
    WrongKind = 14,
    /// The limit leaves no room.
    OverQuota = 15,
    /// Neither the call nor the policy says what the limit is.
    NoLimit = 16,
    /// The hold was committed, voided or has expired.
    HoldEnded = 17,
    /// More than was set aside.
    BeyondHold = 18,
    /// The counter has as many holds as it can have.
    TooManyHolds = 19,
    /// What was asked for is too large for one answer.
    TooLarge = 20,
    /// It happened too long ago to be counted for its time, or has not happened yet.
    OutOfTime = 21,
    /// It says when it happened, and the counter does not count by time.
    Timeless = 22,
    /// No roll-up of the policy has this dimension, or all of those that are asked for together.
    UndeclaredDimension = 23,
    /// The counter has as many cells of roll-ups as it can have.
    TooManyCells = 24,
    /// Who leads the counter's partition has too much to do; nothing was changed.
    Overloaded = 25,
    /// The node that was asked was removed from its cluster; nothing was changed.
    NotMember = 26,
    /// The counter never had such a hold, or had it in another life.
    NoHold = 27,
}

impl Refusal {
    /// Every refusal, for tables and tests.
    pub const ALL: [Refusal; 27] = [
        Refusal::Overflow,
        Refusal::BelowFloor,
        Refusal::AboveCeiling,
        Refusal::ConditionUnmet,
        Refusal::Disabled,
        Refusal::GroupAborted,
        Refusal::IdReused,
        Refusal::Fenced,
        Refusal::TooManyProducers,
        Refusal::CrossSlot,
        Refusal::NoLeader,
        Refusal::NoQuorum,
        Refusal::OutcomeUnknown,
        Refusal::WrongKind,
        Refusal::OverQuota,
        Refusal::NoLimit,
        Refusal::HoldEnded,
        Refusal::BeyondHold,
        Refusal::TooManyHolds,
        Refusal::TooLarge,
        Refusal::OutOfTime,
        Refusal::Timeless,
        Refusal::UndeclaredDimension,
        Refusal::TooManyCells,
        Refusal::Overloaded,
        Refusal::NotMember,
        Refusal::NoHold,
    ];

    /// The stored number.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// From the stored number.
    pub fn from_number(number: u8) -> Option<Refusal> {
        Self::ALL.get(usize::from(number).checked_sub(1)?).copied()
    }

    /// A stable word for programs.
    pub fn code(self) -> &'static str {
        match self {
            Refusal::Overflow => "overflow",
            Refusal::BelowFloor => "below-floor",
            Refusal::AboveCeiling => "above-ceiling",
            Refusal::ConditionUnmet => "condition-unmet",
            Refusal::Disabled => "disabled",
            Refusal::GroupAborted => "group-aborted",
            Refusal::IdReused => "id-reused",
            Refusal::Fenced => "fenced",
            Refusal::TooManyProducers => "too-many-producers",
            Refusal::CrossSlot => "cross-slot",
            Refusal::NoLeader => "no-leader",
            Refusal::NoQuorum => "no-quorum",
            Refusal::OutcomeUnknown => "outcome-unknown",
            Refusal::WrongKind => "wrong-kind",
            Refusal::OverQuota => "over-quota",
            Refusal::NoLimit => "no-limit",
            Refusal::HoldEnded => "hold-ended",
            Refusal::BeyondHold => "beyond-hold",
            Refusal::TooManyHolds => "too-many-holds",
            Refusal::TooLarge => "too-large",
            Refusal::OutOfTime => "out-of-time",
            Refusal::Timeless => "no-window",
            Refusal::UndeclaredDimension => "undeclared-dimension",
            Refusal::TooManyCells => "too-many-cells",
            Refusal::Overloaded => "overloaded",
            Refusal::NotMember => "not-a-member",
            Refusal::NoHold => "no-such-hold",
        }
    }

    /// Whether who refused it has looked at the counter, so that the reply says how that stands. A state of the service says nothing
    /// about any counter, and an id that was used before knows it as it was then.
    pub fn knows_counter(self) -> bool {
        !matches!(
            self,
            Refusal::CrossSlot
                | Refusal::IdReused
                | Refusal::NoLeader
                | Refusal::NoQuorum
                | Refusal::OutcomeUnknown
                | Refusal::Overloaded
                | Refusal::NotMember
                | Refusal::TooLarge
        )
    }

    /// Whether a retry under the same request id gets the same refusal for as long as the id is remembered.
    /// A decision about the counter is final; a state of the service or of the id itself is not.
    pub fn is_remembered(self) -> bool {
        match self {
            Refusal::Overflow
            | Refusal::BelowFloor
            | Refusal::AboveCeiling
            | Refusal::ConditionUnmet
            | Refusal::GroupAborted
            | Refusal::HoldEnded => true,
            Refusal::Disabled
            | Refusal::IdReused
            | Refusal::Fenced
            | Refusal::TooManyProducers
            | Refusal::CrossSlot
            | Refusal::NoLeader
            | Refusal::NoQuorum
            | Refusal::OutcomeUnknown
            // Of another request under the same id, or at another time, more may be possible.
            | Refusal::WrongKind
            | Refusal::OverQuota
            | Refusal::NoLimit
            | Refusal::NoHold
            | Refusal::BeyondHold
            | Refusal::TooManyHolds
            | Refusal::TooLarge
            | Refusal::OutOfTime
            | Refusal::Timeless
            | Refusal::UndeclaredDimension
            | Refusal::TooManyCells
            | Refusal::Overloaded
            | Refusal::NotMember => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Refusal;

    /// What is remembered was decided about a counter, which was looked at for it.
    #[test]
    fn a_decision_knows_its_counter() {
        assert!(
            Refusal::ALL.into_iter().filter(|refusal| refusal.is_remembered()).all(Refusal::knows_counter)
        );
    }

    #[test]
    fn numbers_are_stable_and_complete() {
        for (index, refusal) in Refusal::ALL.into_iter().enumerate() {
            assert_eq!(refusal.number() as usize, index + 1);
            assert_eq!(Refusal::from_number(refusal.number()), Some(refusal));
        }
        assert_eq!(Refusal::from_number(0), None);
        assert_eq!(Refusal::from_number(200), None);
    }
}

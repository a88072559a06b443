//! Producer sessions: exactly once for clients that number their own requests.
//!
//! Memory is bounded by producers, not by requests, and there is no time window: any sequence at or below the
//! last one is a duplicate. "Last plus one" is not demanded, because a client whose reply got lost and whose
//! later requests succeeded must not be stuck for ever.

use crate::refusal::Refusal;

/// The most producers one partition remembers. A session costs about 100 bytes; the limit keeps a client that
/// invents a new producer per request from filling the memory.
pub const SESSIONS_PER_PARTITION_MAX: usize = 65_536;

/// What is known of a producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// The highest epoch seen.
    pub epoch: u64,
    /// The last sequence decided in that epoch.
    pub sequence: u64,
    /// Why that last one was refused, if it was: a refused request stays refused.
    pub refusal: Option<Refusal>,
}

/// What to do with a request of a producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionVerdict {
    /// It is new: decide it.
    Fresh,
    /// It was decided before.
    Duplicate {
        /// The last sequence decided.
        last: u64,
        /// The refusal, if this very sequence was refused.
        refusal: Option<Refusal>,
    },
    /// A newer incarnation of the producer has taken over.
    Fenced {
        /// The epoch that holds.
        epoch: u64,
    },
}

/// Whether (epoch, sequence) is new for a producer.
pub fn admit(known: Option<&Session>, epoch: u64, sequence: u64) -> SessionVerdict {
    match known {
        None => SessionVerdict::Fresh,
        Some(session) if epoch < session.epoch => SessionVerdict::Fenced { epoch: session.epoch },
        Some(session) if epoch > session.epoch || sequence > session.sequence => SessionVerdict::Fresh,
        Some(session) => SessionVerdict::Duplicate {
            last: session.sequence,
            refusal: session.refusal.filter(|_| sequence == session.sequence),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::{Session, SessionVerdict, admit};
    use crate::Refusal;

    #[test]
    fn admission() {
        let known = Session { epoch: 3, sequence: 10, refusal: Some(Refusal::Overflow) };
        for (epoch, sequence, expected) in [
            (3, 11, SessionVerdict::Fresh),
            (3, 50, SessionVerdict::Fresh),
            (3, 10, SessionVerdict::Duplicate { last: 10, refusal: Some(Refusal::Overflow) }),
            (3, 9, SessionVerdict::Duplicate { last: 10, refusal: None }),
            (3, 0, SessionVerdict::Duplicate { last: 10, refusal: None }),
            (2, 99, SessionVerdict::Fenced { epoch: 3 }),
            (4, 1, SessionVerdict::Fresh),
        ] {
            assert_eq!(admit(Some(&known), epoch, sequence), expected, "epoch {epoch} sequence {sequence}");
        }
        assert_eq!(admit(None, 0, 1), SessionVerdict::Fresh);
    }
}

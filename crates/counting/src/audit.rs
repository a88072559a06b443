//! The trail of a counter: what was done to it, when, by whom and why.
//!
//! A policy says for which counters it is kept, and for how long. Every accepted change leaves one row in it; what is refused,
//! or asked again under the id of an earlier request, leaves none.

use crate::action::{Action, Ending};
use crate::told::Told;

/// The longest name of who asks.
pub const ACTOR_BYTES_MAX: usize = 128;
/// The longest address of who asks: an IPv6 address with zone and port fits.
pub const ADDRESS_BYTES_MAX: usize = 64;
/// The shortest time a trail can be kept.
pub const AUDIT_MS_MIN: u64 = 3_600_000;
/// The longest time a trail can be kept, about thirty years.
pub const AUDIT_MS_MAX: u64 = 11_000 * 86_400_000;

/// Who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// The name it gave itself; empty for none.
    pub name: String,
    /// Where it is.
    pub address: String,
}

impl Origin {
    /// Who asks; what is too long is cut.
    pub fn new(name: &[u8], address: impl ToString) -> Origin {
        let cut = |mut text: String, longest: usize| {
            text.truncate(text.floor_char_boundary(longest));
            text
        };
        Origin {
            name: cut(String::from_utf8_lossy(name).into_owned(), ACTOR_BYTES_MAX),
            address: cut(address.to_string(), ADDRESS_BYTES_MAX),
        }
    }
}

/// What was done to a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deed {
    /// Something was added.
    Add,
    /// Something was added, and it was said why.
    Adjust,
    /// The value was replaced.
    Set,
    /// Back to zero.
    Reset,
    /// It was deleted.
    Delete,
    /// It expires at another time.
    Expire,
    /// Items were seen.
    Observe,
    /// What another counter has seen was seen.
    Merge,
    /// What was seen was replaced.
    Replace,
    /// A limit left room.
    Acquire,
    /// An amount was set aside.
    Reserve,
    /// What was set aside is counted.
    Commit,
    /// What was set aside is free again.
    Void,
    /// Its time was over.
    Expired,
    /// All counters were deleted.
    Clear,
}

impl Deed {
    /// All of them with their names. Their places are stored: add at the end.
    pub const ALL: [(Deed, &str); 15] = [
        (Deed::Add, "add"),
        (Deed::Adjust, "adjust"),
        (Deed::Set, "set"),
        (Deed::Reset, "reset"),
        (Deed::Delete, "delete"),
        (Deed::Expire, "expire"),
        (Deed::Observe, "observe"),
        (Deed::Merge, "merge"),
        (Deed::Replace, "replace"),
        (Deed::Acquire, "acquire"),
        (Deed::Reserve, "reserve"),
        (Deed::Commit, "commit"),
        (Deed::Void, "void"),
        (Deed::Expired, "expired"),
        (Deed::Clear, "clear"),
    ];

    /// What an action that changed something has done, and why it was asked for.
    pub fn of<'a>(action: &Action, payload: &'a [u8]) -> (Deed, Option<&'a str>) {
        let deed = match action {
            Action::Told { .. } => {
                let reason = Told::read(payload).and_then(|told| told.reason);
                return (if reason.is_some() { Deed::Adjust } else { Deed::Add }, reason);
            }
            Action::Set(_) | Action::Overwrite(_) => Deed::Set,
            Action::Reset(_) => Deed::Reset,
            Action::Delete(_) => Deed::Delete,
            Action::Expire(_) => Deed::Expire,
            Action::Observe { .. } => Deed::Observe,
            Action::Join { .. } => Deed::Merge,
            Action::Replace { .. } | Action::Restore { .. } => Deed::Replace,
            Action::Acquire(_) => Deed::Acquire,
            Action::Reserve(..) => Deed::Reserve,
            Action::End { ending: Ending::Commit(_), .. } => Deed::Commit,
            Action::End { ending: Ending::Void, .. } => Deed::Void,
            Action::Clear => Deed::Clear,
            Action::Add(_) | Action::Read | Action::Slice { .. } | Action::Check(_) | Action::Count => {
                Deed::Add
            }
        };
        (deed, None)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Deed::ALL[self as usize].1
    }
}

/// One row of a trail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditChange {
    /// Its place: later rows of a counter have higher ones.
    pub number: u64,
    /// When.
    pub at_ms: u64,
    /// What was done.
    pub deed: Deed,
    /// By how much the value changed, as far as 64 bits can say it. Means nothing where all counters were deleted.
    pub applied: i64,
    /// By how much what is set aside changed: a hold was made, or has ended.
    pub held: i64,
    /// The value after.
    pub value: i64,
    /// The version after, or the last one of a counter that is gone.
    pub version: u64,
    /// The id of the request, if it had one.
    pub request_id: Option<Vec<u8>>,
    /// Why, if it was said.
    pub reason: Option<String>,
    /// Who, if it is known.
    pub by: Option<Origin>,
}

impl AuditChange {
    /// The id that whoever asked gave. Holds end under ids that they have by themselves, which nobody gave.
    pub fn shown_request_id(&self) -> Option<&[u8]> {
        self.request_id.as_deref().filter(|_| !matches!(self.deed, Deed::Commit | Deed::Void))
    }
}

/// Which rows of a counter's trail are wanted, the newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditQuery {
    /// The counter.
    pub key: Vec<u8>,
    /// Not before this.
    pub from_ms: u64,
    /// Not after this.
    pub to_ms: u64,
    /// Only what lies before the row of this number: the last of the page before.
    pub before: Option<u64>,
    /// The most rows of a page.
    pub limit: usize,
}

/// The most rows of a page.
pub const AUDIT_PAGE_MAX: usize = 1_000;

/// One page of a trail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditPage {
    /// The newest first.
    pub changes: Vec<AuditChange>,
    /// Whether others follow.
    pub more: bool,
    /// What was done before this is not kept, by the policy that holds now; `None` where none has a trail kept.
    pub since_ms: Option<u64>,
}

impl AuditPage {
    /// Where the next page goes on, if there is one.
    pub fn next(&self) -> Option<u64> {
        self.changes.last().filter(|_| self.more).map(|change| change.number)
    }

    /// Whether there is nothing to tell, and never was meant to be.
    pub fn is_of_nothing(&self) -> bool {
        self.changes.is_empty() && self.since_ms.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deeds_are_named_in_their_order() {
        for (place, (deed, name)) in Deed::ALL.into_iter().enumerate() {
            assert_eq!((deed as usize, deed.name()), (place, name));
        }
    }

    #[test]
    fn long_names_are_cut_between_letters() {
        let origin = Origin::new("é".repeat(100).as_bytes(), "a".repeat(100));
        assert_eq!((origin.name.len(), origin.address.len()), (ACTOR_BYTES_MAX, ADDRESS_BYTES_MAX));
        let odd = Origin::new(format!("x{}", "é".repeat(100)).as_bytes(), "");
        assert_eq!(odd.name.len(), ACTOR_BYTES_MAX - 1);
    }
}

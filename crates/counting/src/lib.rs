//! The meaning of counting, pure and deterministic.
//!
//! A counter is a [`Cell`]. A caller asks for an [`Action`] on a key; [`decide`] turns the cell as it is,
//! the action, the limits that hold for the key, the entry time and the next sequence into a [`Verdict`]:
//! what becomes of the cell and what the caller is told. Nothing here reads a clock, draws a random number,
//! touches a file or a socket, or iterates in hash order; whoever calls decides the order and the time.
//!
//! | file | what it says |
//! |---|---|
//! | `cell` | what a counter is |
//! | `action` | what can be asked of it |
//! | `rules` | what the answer is, for one counter and for an all-or-none group |
//! | `refusal` | the closed list of reasons for "no" |
//! | `batch` | many requests that travel together, and their replies |
//! | `identity` | request ids: who is the same request as before |
//! | `session` | producer sessions: sequences and epochs |
//! | `policy` | limits by key pattern |
//! | `placement` | which nodes hold which partition |
//! | `slot` | keys to slots to partitions |
//! | `listing` | which counters a list shows, and in which order |
//! | `service` | the seam: what every deployment offers to every front |

pub mod action;
pub mod batch;
pub mod cell;
pub mod identity;
pub mod listing;
pub mod placement;
pub mod policy;
pub mod refusal;
pub mod rules;
pub mod service;
pub mod session;
pub mod slot;

pub use action::{Action, Add, Condition, Expire, ExpireWhen, Expiry, Set};
pub use batch::{Batch, BatchMark, Freshness, Group, GroupKind, Reply, Request, RequestId};
pub use cell::{Cell, NEVER};
pub use identity::{Identity, IdentityKey, Outcome, Remembered};
pub use listing::{ListOrder, ListPage, ListPlace, Listing};
pub use policy::{Limits, Policies, Policy};
pub use refusal::Refusal;
pub use rules::{Change, Verdict, decide, decide_group};
pub use service::{Counters, Execution, Unavailable};
pub use session::{Session, SessionVerdict};

/// The longest key, in bytes. Long enough for any composed name, short enough that a key never dominates a record.
pub const KEY_BYTES_MAX: usize = 512;
/// The longest request id or producer id, in bytes (the limit Stripe and the HTTP header draft settled on).
pub const ID_BYTES_MAX: usize = 255;

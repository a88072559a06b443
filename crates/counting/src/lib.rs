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
//! | `body` | what a counter may have beyond its five numbers |
//! | `kinds` | what the answer is where it has |
//! | `bytes` | how that is stored |
//! | `refusal` | the closed list of reasons for "no" |
//! | `batch` | many requests that travel together, and their replies |
//! | `identity` | request ids: who is the same request as before |
//! | `session` | producer sessions: sequences and epochs |
//! | `policy` | limits by key pattern |
//! | `unique` | counters of distinct items, and Redis's HyperLogLog values |
//! | `visitors` | distinct items by time |
//! | `placement` | which nodes hold which partition |
//! | `slot` | keys to slots to partitions |
//! | `window` | sums in buckets of time: sliding, fixed and calendar windows |
//! | `told` | what an addition says beyond its amount |
//! | `rollup` | the value by what its additions belong to |
//! | `hold` | amounts set aside until they are taken, given back, or over |
//! | `series` | the history of a counter: its value at full minutes, hours and days |
//! | `listing` | which counters a list shows, and in which order |
//! | `aggregate` | totals over the counters of a pattern |
//! | `audit` | the trail of changes that policies have kept |
//! | `watching` | which counters are watched, and what is noted of their changes |
//! | `hot`, `ranking` | which counters are asked for most, and how they are found |
//! | `service` | the seam: what every deployment offers to every front |

pub mod action;
pub mod aggregate;
pub mod audit;
pub mod batch;
pub mod body;
pub mod bytes;
pub mod cell;
pub mod hold;
pub mod hot;
pub mod identity;
pub mod kinds;
pub mod listing;
pub mod placement;
pub mod policy;
pub mod ranking;
pub mod refusal;
pub mod rollup;
pub mod rules;
pub mod series;
pub mod service;
pub mod session;
pub mod slot;
pub mod told;
pub mod unique;
mod varint;
pub mod visitors;
pub mod watching;
pub mod window;

pub use action::{Acquire, Action, Add, Condition, Ending, Expire, ExpireWhen, Expiry, Set};
pub use aggregate::{Aggregate, Selector, Totals};
pub use audit::{AuditChange, AuditPage, AuditQuery, Deed, Origin};
pub use batch::{Batch, BatchMark, Freshness, Group, GroupKind, Reply, Request, RequestId};
pub use body::{Body, Kind};
pub use cell::{Cell, NEVER};
pub use hot::{HotKey, HotKeys};
pub use identity::{Identity, IdentityKey, Outcome, Remembered};
pub use kinds::{Detail, Whole};
pub use listing::{ListOrder, ListPage, ListPlace, Listed, Listing};
pub use policy::{Limits, Policies, Policy};
pub use ranking::Ranking;
pub use refusal::Refusal;
pub use rollup::{Slice, Sliced};
pub use rules::{Change, Verdict, decide, decide_group};
pub use service::{Counters, Execution, Unavailable};
pub use session::{Session, SessionVerdict};
pub use told::Told;
pub use unique::Unique;
pub use watching::{Changes, Interest};

/// The longest key, in bytes. Long enough for any composed name, short enough that a key never dominates a record.
pub const KEY_BYTES_MAX: usize = 512;
/// The longest request id or producer id, in bytes (the limit Stripe and the HTTP header draft decided on).
pub const ID_BYTES_MAX: usize = 255;

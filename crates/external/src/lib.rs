//! Counters on engines that people already run: the trait `Counters` on Redis or Valkey, a single server or a cluster.
//!
//! A node keeps nothing. Counters lie in Redis, in 64 groups whose keys share a slot each; one function there
//! (`library.lua`) decides many requests of a group as one, by the rules of `quipu_counting::rules`. About counters that are more
//! than a number a node decides, and another function (`wholes.lua`) carries it out. What many callers ask at
//! about the same time travels to a master in one piece.
//!
//! | file | what lives there |
//! |---|---|
//! | `external` | [`External`], what a server holds; opening it |
//! | `founding` | what is found in Redis at the start, and how new counters begin |
//! | `groups` | which group a key belongs to, and the names of keys in Redis |
//! | `units` | a batch in what must be decided together, and put together again |
//! | `call` | what the function is asked for some of them, and what it answers |
//! | `runs` | plain additions as the function wants them: short, and many in a row |
//! | `wholes` | counters that are more than a number, about which a node decides |
//! | `stripes`, `striped`, `striping` | counters that are spread over several groups: which, what is asked of them, and how |
//! | `lanes` | the rounds to each master, and what is asked again |
//! | `masters` | where the groups are, and connections to there |
//! | `breaker`, `retry` | when a master is left alone, and when it is asked again |
//! | `policies` | limits, shared by all nodes |
//! | `epoch` | which of two epochs is the newer |
//! | `rights` | whether the user of Redis may do all that is needed |
//! | `eviction` | whether Redis throws counters away |
//! | `stages` | what is about all counters, and deletions over several groups |
//! | `standing` | what Redis says of itself: whether it has lost something |
//! | `walks` | all counters: scans, lists, sums |
//! | `watching` | which watched counters have changed, from the streams |
//! | `archive` | what was counted, in PostgreSQL |
//! | `mirror` | what an engine of quipu's own has counted, in a table of PostgreSQL |
//! | `strong` | counters in rows of PostgreSQL, for policies that want it |
//! | `source` | what should have been counted, by a query of PostgreSQL |

pub mod archive;
mod breaker;
mod call;
mod epoch;
mod eviction;
mod external;
mod founding;
mod groups;
mod lanes;
mod masters;
pub mod mirror;
mod policies;
mod retry;
mod rights;
mod runs;
pub mod source;
mod stages;
mod standing;
mod striped;
mod stripes;
mod striping;
mod strong;
mod units;
mod walks;
mod watching;
mod wholes;

#[cfg(test)]
mod differential;
#[cfg(test)]
mod differential_wholes;
#[cfg(test)]
mod striping_model;
#[cfg(test)]
#[path = "../tests/support/mod.rs"]
mod support;

pub use breaker::{Breaker, BreakerSettings, BreakerState};
pub use external::{External, OpenError, Options};
pub use groups::{GROUPS, group, tag};
pub use retry::{Budget, BudgetSettings, full_jitter};

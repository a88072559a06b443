//! Worlds of counters that are more than five numbers: uniques, windows, quotas, holds, and sums among them.
//!
//! The model keeps whole counters and decides by the same rules as the engine (what the rules say is the business of their own
//! tests); what these worlds prove is that nothing the engine does with counters shows: logs, checkpoints that run while
//! counters change, eviction, expiry, retries, restarts after crashes at any operation. What is found after a restart is the
//! model as it was after some batch, the last that was acknowledged or a later one; and so are the trails of what was done.
//!
//! | file | what lives there |
//! |---|---|
//! | `asks` | what is asked |
//! | `model` | what must be answered |
//! | `ground` | a simulated machine, or a folder on a real disk |
//! | `world` | one world, from its seed to its end |

mod asks;
mod ground;
mod model;
mod world;

pub use ground::Ground;
pub use world::{STEPS, Stats, run};

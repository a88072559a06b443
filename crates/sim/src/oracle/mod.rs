//! What the service must answer and remember, independent of how it does so.
//!
//! | file | what it says |
//! |---|---|
//! | `rules` | what an action does to one counter |
//! | `policies` | which policy holds for a key |
//! | `births` | that every life of a counter has a number of its own |
//! | `model` | what a batch does to counters, ids, sessions and policies |
//! | `history` | which states a crash may leave behind |
//! | `answers` | whether a reply is the one the model expects |

pub mod answers;
pub mod births;
pub mod history;
pub mod model;
pub mod policies;
pub mod rules;

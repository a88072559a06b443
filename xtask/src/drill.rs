//! Servers of Redis and PostgreSQL, and clients, for torture and measurements, as `quipu drill` starts them.

#![allow(dead_code, reason = "drills use the rest")]

#[path = "../../crates/server/src/drill/ending.rs"]
pub mod ending;
#[path = "../../crates/server/src/drill/load.rs"]
pub mod load;
#[path = "../../crates/server/src/drill/stage.rs"]
pub mod stage;
#[path = "../../crates/server/src/drill/talk.rs"]
pub mod talk;

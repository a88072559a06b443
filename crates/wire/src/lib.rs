//! quipu-wire
pub mod entry;
pub mod commands;
pub mod glob;
pub mod number;
pub mod resp;
pub mod json;
pub mod refusal;

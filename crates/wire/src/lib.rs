//! Bytes that are exchanged, without I/O: how requests, replies and records look, never what they decide.
//!
//! | module | what lives there |
//! |---|---|
//! | [`resp`] | Redis's protocol: commands in, replies out, and the reader of replies for clients |
//! | [`commands`] | the one table of commands |
//! | [`differences`] | where answers to Redis commands are not those of Redis, and why |
//! | [`json`] | the bodies of the HTTP interface |
//! | [`refusal`] | the one table of how a refusal looks on each protocol |
//! | [`entry`] | the codec of log records and cells |
//! | [`audit`] | the codec of trails, in the log, on disk and between nodes |
//! | [`batch`] | the codec of batches and replies, between nodes |
//! | [`dump`] | a value as Redis's DUMP and RESTORE exchange it |
//! | [`glob`], [`number`] | patterns and integers as Redis reads them |
//! | [`duration`] | durations like `15m` |

pub mod audit;
pub mod batch;
pub mod commands;
pub mod differences;
pub mod dump;
pub mod duration;
pub mod entry;
pub mod glob;
pub mod json;
pub mod number;
pub mod refusal;
pub mod resp;

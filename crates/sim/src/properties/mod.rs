//! The properties that are checked on a whole engine or disk, one per file. Survival, atomicity and "nothing
//! shown is taken back" are one question, answered by [`crate::oracle::history`].

pub mod bounds;
pub mod damage;
pub mod exactly_once;
pub mod expiry;
pub mod ledger;
pub mod scans;
pub mod twins;

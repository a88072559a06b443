//! The JSON of the HTTP API, as bytes in and bytes out. The types of `counting` are not serializable on purpose:
//! their form on the wire is decided here and nowhere else.
//!
//! | file | direction |
//! |---|---|
//! | [`request`] | client to server: bodies, read strictly (an unknown field is refused by name) |
//! | [`reply`] | server to client: counters, changes, batches |
//! | [`policy`], [`cluster`] | server to client: what was decided for counters, and who holds them |
//! | [`mirror`] | server to client: how the table in PostgreSQL is doing |
//! | [`backend`] | server to client: the Redis that keeps the counters |
//! | [`hot`] | server to client: the keys that are asked for most |
//! | [`unique`], [`quota`], [`hold`], [`buckets`], [`window`] | both: counters that are more than a sum |
//! | [`problem`] | server to client: errors, as RFC 9457 problem details |
//! | [`cursor`] | both: where a list goes on |
//! | [`schema`] | what values look like, for `/openapi.json` |
//! | [`timestamp`] | milliseconds as RFC 3339 text |
//!
//! Two rules hold throughout. A number is an `i64`, and since JavaScript loses integers beyond 2^53, such a number
//! is repeated as text (`valueText`), and any number may be sent as text. A key is text (`counterKey`, `key`) if
//! it is UTF-8, else `keyBase64`.

pub mod audit;
pub mod backend;
pub mod buckets;
pub mod cluster;
pub mod cursor;
pub mod history;
pub mod hold;
pub mod hot;
pub mod mirror;
pub mod policy;
pub mod problem;
pub mod quota;
pub mod reply;
pub mod request;
pub mod schema;
pub mod timestamp;
pub mod unique;
pub mod window;

/// Integers up to this size survive being read as a double.
pub const EXACT_INTEGER_MAX: u64 = 1 << 53;

/// The number as text, where a reader with doubles would lose digits.
fn text_if_large(number: impl Into<i128>) -> Option<String> {
    let number = number.into();
    (number.unsigned_abs() > u128::from(EXACT_INTEGER_MAX)).then(|| number.to_string())
}

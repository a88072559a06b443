//! The error texts of Redis 7.0 that client libraries and scripts look for, each beginning with its code.
//!
//! Texts that quote what the client sent are functions over bytes: arguments need not be UTF-8. How much they quote is as
//! in Redis.

/// How much of a client's words an error repeats.
const MAX_QUOTED_BYTES: usize = 128;

/// An argument or a stored value that should be an integer.
pub const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
/// The sum would leave 64 bits.
pub const WOULD_OVERFLOW: &str = "ERR increment or decrement would overflow";
/// `INCREX` with `SATURATE` into a range so far that the step does not fit 64 bits.
pub const APPLIED_WOULD_OVERFLOW: &str = "ERR applied increment would overflow";
/// The argument of `DECRBY` has no negation.
pub const DECREMENT_WOULD_OVERFLOW: &str = "ERR decrement would overflow";
/// Options that do not go together, or are none.
pub const SYNTAX: &str = "ERR syntax error";
/// An answer that would be cut short, without a way to say so.
pub const TOO_MANY_GROUPS: &str = "DIMENSION there are more than 1000 values to answer with: name some of them, or ask over HTTP, which gives the first";
/// The key holds another kind of counter.
pub const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
/// A command for sketches, of a key that holds something else.
pub const NOT_A_SKETCH: &str = "WRONGTYPE Key is not a valid HyperLogLog string value.";
/// A login is required first.
pub const NO_AUTH: &str = "NOAUTH Authentication required.";
/// The login failed.
pub const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair or user is disabled.";
/// A password was given where none is configured.
pub const NO_PASSWORD_CONFIGURED: &str = "ERR AUTH <password> called without any password configured for the default \
    user. Are you sure your configuration is correct?";
/// `HELLO` with a version other than 2 and 3.
pub const NO_PROTOCOL: &str = "NOPROTO unsupported protocol version";
/// `HELLO` with a version that is no number.
pub const PROTOCOL_NOT_AN_INTEGER: &str = "ERR Protocol version is not an integer or out of range";
/// `SELECT` of a database that does not exist.
pub const DB_OUT_OF_RANGE: &str = "ERR DB index is out of range";
/// A number that fits 64 bits where Redis has 32.
pub const OUT_OF_INT_RANGE: &str = "ERR value is out of range, value must between -2147483648 and 2147483647";
/// A timeout that is no number.
pub const TIMEOUT_NOT_AN_INTEGER: &str = "ERR timeout is not an integer or out of range";
/// A timeout in the past.
pub const TIMEOUT_NEGATIVE: &str = "ERR timeout is negative";
/// A command of a cluster, where there is none.
pub const CLUSTER_DISABLED: &str = "ERR This instance has cluster support disabled";
/// `SELECT` of a database other than 0 where there is a cluster.
pub const SELECT_IN_CLUSTER: &str = "ERR SELECT is not allowed in cluster mode";
/// `RESTORE` without `REPLACE`.
pub const BUSY_KEY: &str = "BUSYKEY Target key name already exists.";
/// `OBJECT FREQ` where no frequencies are kept.
pub const NO_FREQUENCY: &str = "ERR An LFU maxmemory policy is not selected, access frequency not tracked. Please note \
    that when switching between policies at runtime LRU and LFU data will take some time to adjust.";
/// `SCAN` with a cursor that is no number.
pub const INVALID_CURSOR: &str = "ERR invalid cursor";
/// `MULTI` inside `MULTI`.
pub const NESTED_MULTI: &str = "ERR MULTI calls can not be nested";
/// `EXEC` outside.
pub const EXEC_WITHOUT_MULTI: &str = "ERR EXEC without MULTI";
/// `DISCARD` outside.
pub const DISCARD_WITHOUT_MULTI: &str = "ERR DISCARD without MULTI";
/// `WATCH` inside.
pub const WATCH_INSIDE_MULTI: &str = "ERR WATCH inside MULTI is not allowed";
/// A command of the transaction was refused when it was queued.
pub const EXEC_ABORT: &str = "EXECABORT Transaction discarded because of previous errors.";
/// `EXPIRE` with `NX` beside another condition.
pub const EXPIRE_NX_CONFLICT: &str = "ERR NX and XX, GT or LT options at the same time are not compatible";
/// `EXPIRE` with `GT` beside `LT`.
pub const EXPIRE_GT_LT_CONFLICT: &str = "ERR GT and LT options at the same time are not compatible";

/// No such command.
pub fn unknown_command<'b>(name: &[u8], arguments: impl Iterator<Item = &'b [u8]>) -> Vec<u8> {
    let mut quoted = Vec::new();
    for argument in arguments {
        if quoted.len() >= MAX_QUOTED_BYTES {
            break;
        }
        let room = MAX_QUOTED_BYTES - quoted.len();
        quoted.push(b'\'');
        quoted.extend_from_slice(quotable(argument, room));
        quoted.extend_from_slice(b"' ");
    }
    let name = quotable(name, MAX_QUOTED_BYTES);
    [b"ERR unknown command '", name, b"', with args beginning with: ", &quoted].concat()
}

/// No such subcommand of a command that has some.
pub fn unknown_subcommand(container: &str, subcommand: &[u8]) -> Vec<u8> {
    let container = container.to_ascii_uppercase();
    let subcommand = quotable(subcommand, MAX_QUOTED_BYTES);
    [b"ERR unknown subcommand '", subcommand, b"'. Try ", container.as_bytes(), b" HELP."].concat()
}

/// A subcommand with arguments that it finds too many by itself.
pub fn unknown_or_wrong_arity(container: &str, subcommand: &[u8]) -> Vec<u8> {
    let container = container.to_ascii_uppercase();
    let subcommand = quotable(subcommand, MAX_QUOTED_BYTES);
    let head = b"ERR unknown subcommand or wrong number of arguments for '";
    [head, subcommand, b"'. Try ", container.as_bytes(), b" HELP."].concat()
}

/// Too few or too many arguments. A subcommand is named `client|setname`.
pub fn wrong_arity(name: &str) -> String {
    format!("ERR wrong number of arguments for '{name}' command")
}

/// A time to live that is not positive or does not fit.
pub fn invalid_expire_time(name: &str) -> String {
    format!("ERR invalid expire time in '{name}' command")
}

/// A text around a word of the client, which is shown in full: Redis cuts only the names of commands.
pub fn quoting(before: &str, word: &[u8], after: &str) -> Vec<u8> {
    [before.as_bytes(), quotable(word, word.len()), after.as_bytes()].concat()
}

/// The part of a client's word that is shown. A zero byte ends it, as it ends a text in Redis.
fn quotable(word: &[u8], room: usize) -> &[u8] {
    let word = &word[..word.len().min(room)];
    &word[..memchr::memchr(0, word).unwrap_or(word.len())]
}

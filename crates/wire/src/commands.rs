//! The one table of commands: dispatch, arity, `COMMAND`, documentation and help are all read from it.
//!
//! A row reads as `COMMAND INFO` prints it. For commands Redis has, arity, flags, keys and categories equal those of
//! Redis 7.0, because cluster clients and proxies route by them; a test asks a real server. `INCREX` is Redis 8.8's.

use crate::resp::Encoder;

/// How many slots the name index has. Large enough that a seed without collisions is found within a few tries.
const INDEX_SLOTS: usize = 1 << INDEX_BITS;
const INDEX_BITS: u32 = 10;

/// What fits a packed name. The longest of Redis's and ours has 11 bytes.
const MAX_NAME_BYTES: usize = 15;

/// No command; also the most commands the index can hold.
const NO_COMMAND: u8 = u8::MAX;

macro_rules! bits {
    ($(#[$note:meta])* $type:ident($repr:ty) { $($name:ident = $text:literal,)* }) => {
        $(#[$note])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $type($repr);

        #[allow(missing_docs, reason = "names of Redis")]
        impl $type {
            const NONE: $type = $type(0);
            bits!(@each $type, 1, $($name)*);

            /// Every single one with the name Redis prints, in the order Redis prints them.
            pub const ALL: &[($type, &str)] = &[$(($type::$name, $text)),*];

            /// Whether all of `other` are set.
            pub const fn contains(self, other: $type) -> bool {
                self.0 & other.0 == other.0
            }

            /// The names of those that are set.
            pub fn names(self) -> impl Iterator<Item = &'static str> + Clone {
                Self::ALL.iter().filter(move |(one, _)| self.contains(*one)).map(|(_, name)| *name)
            }

            const fn with(self, other: $type, when: bool) -> $type {
                if when { $type(self.0 | other.0) } else { self }
            }
        }
    };
    (@each $type:ident, $bit:expr, $name:ident $($rest:ident)*) => {
        pub const $name: $type = $type($bit);
        bits!(@each $type, $bit << 1, $($rest)*);
    };
    (@each $type:ident, $bit:expr,) => {};
}

bits! {
    /// What a command does and when it may run.
    Flags(u16) {
        WRITE = "write",
        READONLY = "readonly",
        DENYOOM = "denyoom",
        ADMIN = "admin",
        NOSCRIPT = "noscript",
        LOADING = "loading",
        STALE = "stale",
        SKIP_SLOWLOG = "skip_slowlog",
        FAST = "fast",
        NO_AUTH = "no_auth",
        ALLOW_BUSY = "allow_busy",
    }
}

bits! {
    /// Classes of commands that access rules speak of.
    Categories(u16) {
        KEYSPACE = "@keyspace",
        READ = "@read",
        WRITE = "@write",
        STRING = "@string",
        ADMIN = "@admin",
        FAST = "@fast",
        SLOW = "@slow",
        DANGEROUS = "@dangerous",
        CONNECTION = "@connection",
        TRANSACTION = "@transaction",
    }
}

/// Which arguments are keys: from `first` to `last` every `step`; `last` counts from the end when negative. All zero
/// without keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keys {
    /// Place of the first key; the command's name is at 0.
    pub first: i8,
    /// Place of the last key.
    pub last: i8,
    /// Distance from key to key.
    pub step: i8,
}

/// All there is to know of a command without running it.
#[derive(Debug)]
pub struct CommandSpec {
    /// For dispatch.
    pub command: Command,
    /// In lower case.
    pub name: &'static str,
    /// Arguments with the name; negative means at least that many.
    pub arity: i8,
    /// What it does and when it may run.
    pub flags: Flags,
    /// Which arguments are keys.
    pub keys: Keys,
    /// Access classes beyond those that follow from the flags; see [`CommandSpec::categories`].
    extra_categories: Categories,
    /// The chapter of the documentation.
    pub group: &'static str,
    /// The version of Redis that introduced it, or of quipu for our own.
    pub since: &'static str,
    /// One line for people.
    pub summary: &'static str,
}

macro_rules! commands {
    ($($variant:ident $name:literal $arity:literal ($first:literal $last:literal $step:literal)
       [$($flag:ident)*] [$($category:ident)*] $group:literal $since:literal $summary:literal;)*) => {
        /// A command, for dispatch.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "each has its summary in the table")]
        #[repr(u8)]
        pub enum Command { $($variant,)* }

        /// Every command, in the order of [`Command`].
        pub static COMMANDS: &[CommandSpec] = &[$(CommandSpec {
            command: Command::$variant,
            name: $name,
            arity: $arity,
            flags: Flags::NONE$(.with(Flags::$flag, true))*,
            keys: Keys { first: $first, last: $last, step: $step },
            extra_categories: Categories::NONE$(.with(Categories::$category, true))*,
            group: $group,
            since: $since,
            summary: $summary,
        },)*];

        const NAMES: &[&str] = &[$($name),*];
    };
}

commands! {
//  variant     name        arity (keys)  [flags] [categories] group since summary
    Ping        "ping"         -1 (0  0 0) [FAST] [CONNECTION] "connection" "1.0.0" "Answers PONG, or the message given.";
    Echo        "echo"          2 (0  0 0) [LOADING STALE FAST] [CONNECTION] "connection" "1.0.0" "Answers the message given.";
    Hello       "hello"        -1 (0  0 0) [NOSCRIPT LOADING STALE FAST NO_AUTH ALLOW_BUSY] [CONNECTION] "connection" "6.0.0" "Chooses the protocol, and may log in and name the connection.";
    Auth        "auth"         -2 (0  0 0) [NOSCRIPT LOADING STALE FAST NO_AUTH ALLOW_BUSY] [CONNECTION] "connection" "1.0.0" "Logs in.";
    Select      "select"        2 (0  0 0) [LOADING STALE FAST] [CONNECTION] "connection" "1.0.0" "Chooses a database; there is only 0.";
    Reset       "reset"         1 (0  0 0) [NOSCRIPT LOADING STALE FAST NO_AUTH ALLOW_BUSY] [CONNECTION] "connection" "6.2.0" "Makes the connection as new.";
    Quit        "quit"         -1 (0  0 0) [NOSCRIPT LOADING STALE FAST NO_AUTH ALLOW_BUSY] [CONNECTION] "connection" "1.0.0" "Answers OK and closes the connection.";
    Client      "client"       -2 (0  0 0) [] [] "connection" "2.4.0" "Names, lists and describes connections.";
    Info        "info"         -1 (0  0 0) [LOADING STALE] [DANGEROUS] "server" "1.0.0" "Describes the server and what it has done.";
    CommandInfo "command"      -1 (0  0 0) [LOADING STALE] [CONNECTION] "server" "2.8.13" "Describes the commands.";
    Config      "config"       -2 (0  0 0) [] [] "server" "2.0.0" "Reads and changes settings.";
    DbSize      "dbsize"        1 (0  0 0) [READONLY FAST] [KEYSPACE] "server" "1.0.0" "The number of counters.";
    FlushAll    "flushall"     -1 (0  0 0) [WRITE] [KEYSPACE DANGEROUS] "server" "1.0.0" "Deletes every counter.";
    FlushDb     "flushdb"      -1 (0  0 0) [WRITE] [KEYSPACE DANGEROUS] "server" "1.0.0" "Deletes every counter.";
    Time        "time"          1 (0  0 0) [LOADING STALE FAST] [] "server" "2.6.0" "The server's clock, in seconds and microseconds.";

    Get         "get"           2 (1  1 1) [READONLY FAST] [STRING] "string" "1.0.0" "The value of a counter.";
    MGet        "mget"         -2 (1 -1 1) [READONLY FAST] [STRING] "string" "1.0.0" "The values of several counters.";
    Set         "set"          -3 (1  1 1) [WRITE DENYOOM] [STRING] "string" "1.0.0" "Gives a counter a value, an integer.";
    SetNx       "setnx"         3 (1  1 1) [WRITE DENYOOM FAST] [STRING] "string" "1.0.0" "Gives a counter a value unless it exists.";
    SetEx       "setex"         4 (1  1 1) [WRITE DENYOOM] [STRING] "string" "2.0.0" "Gives a counter a value and seconds to live.";
    PSetEx      "psetex"        4 (1  1 1) [WRITE DENYOOM] [STRING] "string" "2.6.0" "Gives a counter a value and milliseconds to live.";
    GetSet      "getset"        3 (1  1 1) [WRITE DENYOOM FAST] [STRING] "string" "1.0.0" "Gives a counter a value and answers the old one.";
    GetDel      "getdel"        2 (1  1 1) [WRITE FAST] [STRING] "string" "6.2.0" "Deletes a counter and answers its value.";
    GetEx       "getex"        -2 (1  1 1) [WRITE FAST] [STRING] "string" "6.2.0" "Answers the value and changes the time to live.";
    MSet        "mset"         -3 (1 -1 2) [WRITE DENYOOM] [STRING] "string" "1.0.1" "Gives several counters values, all or none.";
    Incr        "incr"          2 (1  1 1) [WRITE DENYOOM FAST] [STRING] "string" "1.0.0" "Adds one.";
    Decr        "decr"          2 (1  1 1) [WRITE DENYOOM FAST] [STRING] "string" "1.0.0" "Takes one away.";
    IncrBy      "incrby"        3 (1  1 1) [WRITE DENYOOM FAST] [STRING] "string" "1.0.0" "Adds an amount.";
    DecrBy      "decrby"        3 (1  1 1) [WRITE DENYOOM FAST] [STRING] "string" "1.0.0" "Takes an amount away.";
    IncrEx      "increx"       -2 (1  1 1) [WRITE DENYOOM FAST] [STRING] "string" "8.8.0" "Adds within bounds and with a time to live, in one step.";

    Del         "del"          -2 (1 -1 1) [WRITE] [KEYSPACE] "generic" "1.0.0" "Deletes counters.";
    Unlink      "unlink"       -2 (1 -1 1) [WRITE FAST] [KEYSPACE] "generic" "4.0.0" "Deletes counters; the same as DEL.";
    Exists      "exists"       -2 (1 -1 1) [READONLY FAST] [KEYSPACE] "generic" "1.0.0" "How many of the keys exist.";
    Type        "type"          2 (1  1 1) [READONLY FAST] [KEYSPACE] "generic" "1.0.0" "The type of a key.";
    Ttl         "ttl"           2 (1  1 1) [READONLY FAST] [KEYSPACE] "generic" "1.0.0" "Seconds left to live.";
    PTtl        "pttl"          2 (1  1 1) [READONLY FAST] [KEYSPACE] "generic" "2.6.0" "Milliseconds left to live.";
    Expire      "expire"       -3 (1  1 1) [WRITE FAST] [KEYSPACE] "generic" "1.0.0" "Sets seconds to live.";
    PExpire     "pexpire"      -3 (1  1 1) [WRITE FAST] [KEYSPACE] "generic" "2.6.0" "Sets milliseconds to live.";
    ExpireAt    "expireat"     -3 (1  1 1) [WRITE FAST] [KEYSPACE] "generic" "1.2.0" "Sets the end of life, in Unix seconds.";
    PExpireAt   "pexpireat"    -3 (1  1 1) [WRITE FAST] [KEYSPACE] "generic" "2.6.0" "Sets the end of life, in Unix milliseconds.";
    ExpireTime  "expiretime"    2 (1  1 1) [READONLY FAST] [KEYSPACE] "generic" "7.0.0" "The end of life, in Unix seconds.";
    PExpireTime "pexpiretime"   2 (1  1 1) [READONLY FAST] [KEYSPACE] "generic" "7.0.0" "The end of life, in Unix milliseconds.";
    Persist     "persist"       2 (1  1 1) [WRITE FAST] [KEYSPACE] "generic" "2.2.0" "Removes the end of life.";
    Scan        "scan"         -2 (0  0 0) [READONLY] [KEYSPACE] "generic" "2.8.0" "Walks through the keys in steps.";
    Keys        "keys"          2 (0  0 0) [READONLY] [KEYSPACE DANGEROUS] "generic" "1.0.0" "All keys that match a pattern; SCAN is kinder.";

    Multi       "multi"         1 (0  0 0) [NOSCRIPT LOADING STALE FAST ALLOW_BUSY] [TRANSACTION] "transactions" "1.2.0" "Begins a transaction.";
    Exec        "exec"          1 (0  0 0) [NOSCRIPT LOADING STALE SKIP_SLOWLOG] [TRANSACTION] "transactions" "1.2.0" "Runs the transaction, all of it or none.";
    Discard     "discard"       1 (0  0 0) [NOSCRIPT LOADING STALE FAST ALLOW_BUSY] [TRANSACTION] "transactions" "2.0.0" "Forgets the transaction.";
    Watch       "watch"        -2 (1 -1 1) [NOSCRIPT LOADING STALE FAST ALLOW_BUSY] [TRANSACTION] "transactions" "2.2.0" "Runs the next transaction only if these keys stay as they are.";
    Unwatch     "unwatch"       1 (0  0 0) [NOSCRIPT LOADING STALE FAST ALLOW_BUSY] [TRANSACTION] "transactions" "2.2.0" "Forgets the watched keys.";

    QAdd        "q.add"        -3 (1  1 1) [WRITE DENYOOM FAST] [STRING] "quipu" "0.1.0" "Adds once per request id, within bounds, at a version.";
    QBatch      "q.batch"      -6 (4 -1 2) [WRITE DENYOOM] [STRING] "quipu" "0.1.0" "Adds to several counters, once per producer sequence.";
    QStat       "q.stat"        2 (1  1 1) [READONLY FAST] [STRING] "quipu" "0.1.0" "All there is to know of a counter.";
    QPolicy     "q.policy"     -2 (0  0 0) [ADMIN] [] "quipu" "0.1.0" "Reads and changes the rules of counters by pattern.";
}

impl Command {
    /// The row of this command.
    #[inline]
    pub fn spec(self) -> &'static CommandSpec {
        &COMMANDS[self as usize]
    }
}

impl CommandSpec {
    /// Whether a command of so many arguments, the name included, is well formed.
    #[inline]
    pub fn accepts(&self, argument_count: usize) -> bool {
        let bound = usize::from(self.arity.unsigned_abs());
        if self.arity < 0 { argument_count >= bound } else { argument_count == bound }
    }

    /// The places of the keys among so many arguments.
    pub fn key_positions(&self, argument_count: usize) -> impl Iterator<Item = usize> + use<> {
        let Keys { first, last, step } = self.keys;
        let end = match usize::try_from(last) {
            Ok(last) => last + 1,
            Err(_) => (argument_count + 1).saturating_sub(usize::from(last.unsigned_abs())),
        };
        let first = usize::from(first.unsigned_abs());
        let count = if first == 0 { 0 } else { end.min(argument_count).saturating_sub(first) };
        (first..first + count).step_by(usize::from(step.unsigned_abs()).max(1))
    }

    /// The access classes of the command.
    pub const fn categories(&self) -> Categories {
        let admin = self.flags.contains(Flags::ADMIN);
        let fast = self.flags.contains(Flags::FAST);
        self.extra_categories
            .with(Categories::READ, self.flags.contains(Flags::READONLY))
            .with(Categories::WRITE, self.flags.contains(Flags::WRITE))
            .with(Categories::ADMIN, admin)
            .with(Categories::DANGEROUS, admin)
            .with(Categories::FAST, fast)
            .with(Categories::SLOW, !fast)
    }

    /// Writes the ten fields of `COMMAND INFO`. The last three (hints, key specifications, subcommands) are empty:
    /// routing needs only the keys' places.
    pub fn encode_info(&self, encoder: &mut Encoder<'_>) {
        encoder.array(10);
        encoder.bulk(self.name.as_bytes());
        encoder.integer(self.arity.into());
        encode_names(encoder, self.flags.names());
        for place in [self.keys.first, self.keys.last, self.keys.step] {
            encoder.integer(place.into());
        }
        encode_names(encoder, self.categories().names());
        for _ in 0..3 {
            encoder.set(0);
        }
    }

    /// Writes the name and the fields of `COMMAND DOCS`: one pair of the map that command answers.
    pub fn encode_docs(&self, encoder: &mut Encoder<'_>) {
        encoder.bulk(self.name.as_bytes());
        encoder.map(3);
        for text in ["summary", self.summary, "since", self.since, "group", self.group] {
            encoder.bulk(text.as_bytes());
        }
    }
}

fn encode_names(encoder: &mut Encoder<'_>, names: impl Iterator<Item = &'static str> + Clone) {
    encoder.set(names.clone().count());
    names.for_each(|name| encoder.simple(name));
}

/// Finds a command by its name in any case.
#[inline]
pub fn lookup(name: &[u8]) -> Option<&'static CommandSpec> {
    if name.len() > MAX_NAME_BYTES {
        return None;
    }
    let packed = pack(name);
    let row = usize::from(INDEX[slot(packed, INDEX_SEED)]);
    if *PACKED_NAMES.get(row)? == packed { COMMANDS.get(row) } else { None }
}

/// Whether a "command" is the beginning of an HTTP request: a browser tricked into attacking a local port. Such a
/// connection is closed without an answer, before the body can pass for commands.
pub fn is_http_request(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}

/// The names as numbers, in the order of the table: one comparison tells whether a name is the one meant.
static PACKED_NAMES: [u128; NAMES.len()] = pack_names();

/// A seed under which no two names share a slot, found when this is compiled.
const INDEX_SEED: u64 = find_index_seed();

/// For each slot the row of the one command that can be there.
static INDEX: [u8; INDEX_SLOTS] =
    fill_index(INDEX_SEED).expect("the seed was chosen for having no collisions");

/// A name in lower case as a number. It begins with a 1, so that leading zero bytes count.
#[inline]
const fn pack(name: &[u8]) -> u128 {
    let mut packed: u128 = 1;
    let mut at = 0;
    while at < name.len() {
        packed = packed << 8 | name[at].to_ascii_lowercase() as u128;
        at += 1;
    }
    packed
}

const fn pack_names() -> [u128; NAMES.len()] {
    let mut packed = [0; NAMES.len()];
    let mut row = 0;
    while row < NAMES.len() {
        assert!(NAMES[row].len() <= MAX_NAME_BYTES);
        packed[row] = pack(NAMES[row].as_bytes());
        row += 1;
    }
    packed
}

#[inline]
const fn slot(packed: u128, seed: u64) -> usize {
    let folded = packed as u64 ^ ((packed >> 64) as u64).rotate_left(32);
    (folded.wrapping_mul(seed) >> (u64::BITS - INDEX_BITS)) as usize
}

const fn fill_index(seed: u64) -> Option<[u8; INDEX_SLOTS]> {
    let names = pack_names();
    let mut index = [NO_COMMAND; INDEX_SLOTS];
    let mut row = 0;
    while row < names.len() {
        let slot = slot(names[row], seed);
        if index[slot] != NO_COMMAND {
            return None;
        }
        index[slot] = row as u8;
        row += 1;
    }
    Some(index)
}

const fn find_index_seed() -> u64 {
    assert!(NAMES.len() < NO_COMMAND as usize);
    // Every step is even, so every seed is odd and the multiplication loses nothing.
    let mut seed: u64 = 0x9e37_79b9_7f4a_7c15;
    while fill_index(seed).is_none() {
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c16);
    }
    seed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_in_any_case() {
        for (row, spec) in COMMANDS.iter().enumerate() {
            assert_eq!(spec.command as usize, row);
            assert_eq!(spec.name, spec.name.to_ascii_lowercase());
            for name in [spec.name.to_owned(), spec.name.to_ascii_uppercase()] {
                assert_eq!(lookup(name.as_bytes()).map(|found| found.command), Some(spec.command), "{name}");
            }
        }
    }

    #[test]
    fn other_names_are_not() {
        let strangers: &[&[u8]] = &[
            b"",
            b"g",
            b"gett",
            b"get\0",
            b"ge\x14",
            b"Q\x0eADD",
            b"incrbyfloat",
            b"\xe7et",
            b"\0get",
            b"pexpiretimepexpiretime",
            &[b'a'; 4096],
        ];
        for name in strangers {
            assert!(lookup(name).is_none(), "{}", name.escape_ascii());
        }
    }

    #[test]
    fn arity() {
        let cases = [
            (Command::Get, 1, false),
            (Command::Get, 2, true),
            (Command::Get, 3, false),
            (Command::Ping, 1, true),
            (Command::Set, 2, false),
            (Command::Set, 9, true),
            (Command::QBatch, 5, false),
            (Command::QBatch, 6, true),
        ];
        for (command, count, expected) in cases {
            assert_eq!(command.spec().accepts(count), expected, "{command:?} {count}");
        }
    }

    #[test]
    fn key_positions() {
        let cases: &[(Command, usize, &[usize])] = &[
            (Command::Ping, 2, &[]),
            (Command::Get, 2, &[1]),
            (Command::MGet, 4, &[1, 2, 3]),
            (Command::MSet, 5, &[1, 3]),
            (Command::MSet, 4, &[1, 3]),
            (Command::QBatch, 8, &[4, 6]),
            (Command::QBatch, 2, &[]),
            (Command::Get, 1, &[]),
        ];
        for (command, count, expected) in cases {
            let found: Vec<usize> = command.spec().key_positions(*count).collect();
            assert_eq!(found, *expected, "{command:?} {count}");
        }
    }
}

//! The one table of commands: dispatch, arity, `COMMAND`, documentation and help are all read from it.
//!
//! A row reads as `COMMAND INFO` prints it. For commands Redis has, arity, flags, keys, categories and tips equal those
//! of Redis 7.0, because cluster clients and proxies route by them; a test asks a real server. `INCREX` is Redis 8.8's.
//!
//! | file | what it says |
//! |---|---|
//! | `table` | the rows |
//! | `describe` | a row as `COMMAND INFO`, `COMMAND DOCS` and `HELP` show it |
//! | `syntax` | what the arguments of a row mean |
//! | `page` | the table as a page for people, `docs/commands.md` |

mod describe;
pub mod page;
mod syntax;
mod table;

pub use describe::encode_help;
pub use table::{Command, ROWS};

use table::NAMES;

/// How many rows there are.
pub const ROW_COUNT: usize = NAMES.len();

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
        HYPERLOGLOG = "@hyperloglog",
        ADMIN = "@admin",
        FAST = "@fast",
        SLOW = "@slow",
        DANGEROUS = "@dangerous",
        CONNECTION = "@connection",
        TRANSACTION = "@transaction",
    }
}

bits! {
    /// What a command does to its keys.
    KeyUse(u16) {
        RO = "RO",
        RW = "RW",
        OW = "OW",
        RM = "RM",
        ACCESS = "access",
        UPDATE = "update",
        INSERT = "insert",
        DELETE = "delete",
        VARIABLE_FLAGS = "variable_flags",
    }
}

/// Hints for those who send commands to several nodes or compare replies.
mod tips {
    pub const VARIES: &str = "nondeterministic_output";
    pub const ANY_ORDER: &str = "nondeterministic_output_order";
    pub const ALL_NODES: &str = "request_policy:all_nodes";
    pub const ALL_SHARDS: &str = "request_policy:all_shards";
    pub const MULTI_SHARD: &str = "request_policy:multi_shard";
    pub const SPECIAL_REQUEST: &str = "request_policy:special";
    pub const ALL_SUCCEEDED: &str = "response_policy:all_succeeded";
    pub const SUM: &str = "response_policy:agg_sum";
    pub const MIN: &str = "response_policy:agg_min";
    pub const SPECIAL_REPLY: &str = "response_policy:special";
}

/// Separates the names of a container and its subcommand, as in `client|id`.
const SEPARATOR: u8 = b'|';

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
    /// In lower case; that of a subcommand as in `client|id`.
    pub name: &'static str,
    /// Arguments with the name; negative means at least that many.
    pub arity: i8,
    /// What it does and when it may run.
    pub flags: Flags,
    /// Which arguments are keys.
    pub keys: Keys,
    /// What is done to them.
    pub key_use: KeyUse,
    /// Access classes beyond those that follow from the flags; see [`CommandSpec::categories`].
    extra_categories: Categories,
    /// Hints for clients of several nodes.
    pub tips: &'static [&'static str],
    /// The chapter of the documentation.
    pub group: &'static str,
    /// The version of Redis that introduced it, or of quipu for our own.
    pub since: &'static str,
    /// The arguments behind the name, in the notation of Redis's pages.
    pub syntax: &'static str,
    /// One line for people.
    pub summary: &'static str,
}

impl Command {
    /// The row of this command.
    #[inline]
    pub fn spec(self) -> &'static CommandSpec {
        &ROWS[self as usize]
    }
}

impl CommandSpec {
    /// Whether a command of so many arguments, the name included, is well formed.
    #[inline]
    pub fn accepts(&self, argument_count: usize) -> bool {
        let bound = usize::from(self.arity.unsigned_abs());
        if self.arity < 0 { argument_count >= bound } else { argument_count == bound }
    }

    /// The subcommands; the rows of a container are followed by theirs.
    pub fn subcommands(&self) -> &'static [CommandSpec] {
        let behind = &ROWS[self.command as usize + 1..];
        let count = behind.iter().take_while(|spec| is_subcommand(spec.name)).count();
        if is_subcommand(self.name) { &[] } else { &behind[..count] }
    }

    /// The subcommand of this name in any case.
    pub fn subcommand(&self, name: &[u8]) -> Option<&'static CommandSpec> {
        self.subcommands().iter().find(|spec| spec.last_name().as_bytes().eq_ignore_ascii_case(name))
    }

    /// The name of the container, or its own.
    pub fn container_name(&self) -> &'static str {
        self.name.split(SEPARATOR as char).next().unwrap_or(self.name)
    }

    /// The name without that of the container.
    pub fn last_name(&self) -> &'static str {
        self.name.rsplit(SEPARATOR as char).next().unwrap_or(self.name)
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
}

/// Every command, without subcommands.
pub fn commands() -> impl Iterator<Item = &'static CommandSpec> + Clone {
    ROWS.iter().filter(|spec| !is_subcommand(spec.name))
}

/// Finds a command, or a subcommand by its whole name as in `client|id`.
pub fn lookup_whole(name: &[u8]) -> Option<&'static CommandSpec> {
    match memchr::memchr(SEPARATOR, name) {
        None => lookup(name),
        Some(at) => lookup(&name[..at])?.subcommand(&name[at + 1..]),
    }
}

/// Finds a command by its name in any case.
#[inline]
pub fn lookup(name: &[u8]) -> Option<&'static CommandSpec> {
    if name.len() > MAX_NAME_BYTES {
        return None;
    }
    let packed = pack(name);
    let row = usize::from(INDEX[slot(packed, INDEX_SEED)]);
    if *PACKED_NAMES.get(row)? == packed { ROWS.get(row) } else { None }
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

const fn is_subcommand(name: &str) -> bool {
    let name = name.as_bytes();
    let mut at = 0;
    while at < name.len() {
        if name[at] == SEPARATOR {
            return true;
        }
        at += 1;
    }
    false
}

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
        // A subcommand is found through its container; no name packs to 0.
        if !is_subcommand(NAMES[row]) {
            assert!(NAMES[row].len() <= MAX_NAME_BYTES);
            packed[row] = pack(NAMES[row].as_bytes());
        }
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
        if names[row] != 0 {
            let slot = slot(names[row], seed);
            if index[slot] != NO_COMMAND {
                return None;
            }
            index[slot] = row as u8;
        }
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
        for (row, spec) in ROWS.iter().enumerate() {
            assert_eq!(spec.command as usize, row);
            assert_eq!(spec.name, spec.name.to_ascii_lowercase());
            for name in [spec.name.to_owned(), spec.name.to_ascii_uppercase()] {
                let found = |spec: Option<&CommandSpec>| spec.map(|found| found.command);
                assert_eq!(found(lookup_whole(name.as_bytes())), Some(spec.command), "{name}");
                let by_itself = (!is_subcommand(&name)).then_some(spec.command);
                assert_eq!(found(lookup(name.as_bytes())), by_itself, "{name}");
            }
        }
    }

    #[test]
    fn subcommands_stand_behind_their_containers() {
        for spec in commands() {
            let names: Vec<&str> = spec.subcommands().iter().map(|spec| spec.name).collect();
            assert!(names.iter().all(|name| name.starts_with(&format!("{}|", spec.name))), "{names:?}");
            assert!(names.is_sorted(), "{names:?}");
            assert!(names.is_empty() || spec.subcommand(b"HELP").is_some(), "{names:?}");
        }
        assert_eq!(Command::ClientId.spec().subcommands().len(), 0);
        assert!(Command::Client.spec().subcommand(b"client|id").is_none());
        for name in ["client|", "|id", "client|id|", "get|id", "client||id"] {
            assert!(lookup_whole(name.as_bytes()).is_none(), "{name}");
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
            (Command::QAcquireAll, 10, &[2, 6]),
            (Command::Get, 1, &[]),
        ];
        for (command, count, expected) in cases {
            let found: Vec<usize> = command.spec().key_positions(*count).collect();
            assert_eq!(found, *expected, "{command:?} {count}");
        }
    }
}

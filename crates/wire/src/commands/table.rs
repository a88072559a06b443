//! The rows: one for every command, and behind each container one for every subcommand of it.
//!
//! ```text
//! variant "name" arity (first last step of the keys) [flags] [categories] [what is done to the keys] [tips] "group" "since"
//!     "arguments" "one line for people";
//! ```

use super::{Categories, CommandSpec, Flags, KeyUse, Keys, tips};

macro_rules! commands {
    ($($variant:ident $name:literal $arity:literal ($first:literal $last:literal $step:literal)
       [$($flag:ident)*] [$($category:ident)*] [$($key_use:ident)*] [$($tip:ident)*] $group:literal $since:literal
       $syntax:literal $summary:literal;)*) => {
        /// A command or subcommand, for dispatch.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "each has its summary in the table")]
        #[repr(u8)]
        pub enum Command { $($variant,)* }

        /// Every row, in the order of [`Command`].
        pub static ROWS: &[CommandSpec] = &[$(CommandSpec {
            command: Command::$variant,
            name: $name,
            arity: $arity,
            flags: Flags::NONE$(.with(Flags::$flag, true))*,
            keys: Keys { first: $first, last: $last, step: $step },
            key_use: KeyUse::NONE$(.with(KeyUse::$key_use, true))*,
            extra_categories: Categories::NONE$(.with(Categories::$category, true))*,
            tips: &[$(tips::$tip),*],
            group: $group,
            since: $since,
            syntax: $syntax,
            summary: $summary,
        },)*];

        /// The names, for what is computed while this is compiled.
        pub(super) const NAMES: &[&str] = &[$($name),*];
    };
}

commands! {
    Ping "ping" -1 (0 0 0) [FAST] [CONNECTION] [] [ALL_SHARDS ALL_SUCCEEDED] "connection" "1.0.0"
        "[message]" "Answers PONG, or the message given.";
    Echo "echo" 2 (0 0 0) [LOADING STALE FAST] [CONNECTION] [] [] "connection" "1.0.0"
        "message" "Answers the message given.";
    Hello "hello" -1 (0 0 0) [NOSCRIPT LOADING STALE FAST NO_AUTH ALLOW_BUSY] [CONNECTION] [] [] "connection" "6.0.0"
        "[protover [AUTH username password] [SETNAME clientname]]" "Chooses the protocol, 2 or 3, and may log in and name the connection.";
    Auth "auth" -2 (0 0 0) [NOSCRIPT LOADING STALE FAST NO_AUTH ALLOW_BUSY] [CONNECTION] [] [] "connection" "1.0.0"
        "[username] password" "Logs in.";
    Select "select" 2 (0 0 0) [LOADING STALE FAST] [CONNECTION] [] [] "connection" "1.0.0"
        "index" "Chooses a database; there is only 0.";
    Reset "reset" 1 (0 0 0) [NOSCRIPT LOADING STALE FAST NO_AUTH ALLOW_BUSY] [CONNECTION] [] [] "connection" "6.2.0"
        "" "Makes the connection as new.";
    Quit "quit" -1 (0 0 0) [NOSCRIPT LOADING STALE FAST NO_AUTH ALLOW_BUSY] [CONNECTION] [] [] "connection" "1.0.0"
        "" "Answers OK and closes the connection.";
    Client "client" -2 (0 0 0) [] [] [] [] "connection" "2.4.0"
        "" "Names, lists and describes connections.";
    ClientCaching "client|caching" 3 (0 0 0) [NOSCRIPT LOADING STALE] [CONNECTION] [] [] "connection" "6.0.0"
        "<YES | NO>" "Refused: no connection is ever tracked.";
    ClientGetName "client|getname" 2 (0 0 0) [NOSCRIPT LOADING STALE] [CONNECTION] [] [] "connection" "2.6.9"
        "" "The connection's name.";
    ClientGetRedir "client|getredir" 2 (0 0 0) [NOSCRIPT LOADING STALE] [CONNECTION] [] [] "connection" "6.0.0"
        "" "Answers -1: nothing is tracked.";
    ClientHelp "client|help" 2 (0 0 0) [LOADING STALE] [CONNECTION] [] [] "connection" "5.0.0"
        "" "Prints this help.";
    ClientId "client|id" 2 (0 0 0) [NOSCRIPT LOADING STALE] [CONNECTION] [] [] "connection" "5.0.0"
        "" "The connection's number, never used twice while the server runs.";
    ClientInfo "client|info" 2 (0 0 0) [NOSCRIPT LOADING STALE] [CONNECTION] [] [VARIES] "connection" "6.2.0"
        "" "The line of CLIENT LIST for this connection.";
    ClientKill "client|kill" -3 (0 0 0) [ADMIN NOSCRIPT LOADING STALE] [CONNECTION] [] [] "connection" "2.4.0"
        "<address | <ID client-id | TYPE type | USER username | ADDR address | LADDR address | SKIPME yes-no> ...>" "Closes connections.";
    ClientList "client|list" -2 (0 0 0) [ADMIN NOSCRIPT LOADING STALE] [CONNECTION] [] [VARIES] "connection" "2.4.0"
        "[TYPE type] [ID client-id [client-id ...]]" "One line for every connection.";
    ClientNoEvict "client|no-evict" 3 (0 0 0) [ADMIN NOSCRIPT LOADING STALE] [CONNECTION] [] [] "connection" "7.0.0"
        "<ON | OFF>" "Accepted; connections are not evicted.";
    ClientNoTouch "client|no-touch" 3 (0 0 0) [NOSCRIPT LOADING STALE] [CONNECTION] [] [] "connection" "7.2.0"
        "<ON | OFF>" "Accepted; reading leaves no trace.";
    ClientReply "client|reply" 3 (0 0 0) [NOSCRIPT LOADING STALE] [CONNECTION] [] [] "connection" "3.2.0"
        "<ON | OFF | SKIP>" "Whether commands are answered.";
    ClientSetInfo "client|setinfo" 4 (0 0 0) [NOSCRIPT LOADING STALE] [CONNECTION] [] [ALL_NODES ALL_SUCCEEDED] "connection" "7.2.0"
        "<LIB-NAME libname | LIB-VER libver>" "Names the client library.";
    ClientSetName "client|setname" 3 (0 0 0) [NOSCRIPT LOADING STALE] [CONNECTION] [] [] "connection" "2.6.9"
        "connection-name" "Names the connection.";
    ClientTracking "client|tracking" -3 (0 0 0) [NOSCRIPT LOADING STALE] [CONNECTION] [] [] "connection" "6.0.0"
        "<ON | OFF>" "OFF is accepted, ON is refused: changes are not pushed to clients.";
    ClientTrackingInfo "client|trackinginfo" 2 (0 0 0) [NOSCRIPT LOADING STALE] [CONNECTION] [] [] "connection" "6.2.0"
        "" "Says that tracking is off.";
    ClientUnblock "client|unblock" -3 (0 0 0) [ADMIN NOSCRIPT LOADING STALE] [CONNECTION] [] [] "connection" "5.0.0"
        "client-id [TIMEOUT | ERROR]" "Answers 0: no command blocks.";

    Info "info" -1 (0 0 0) [LOADING STALE] [DANGEROUS] [] [VARIES ALL_SHARDS SPECIAL_REPLY] "server" "1.0.0"
        "[section [section ...]]" "Describes the server and what it has done.";
    CommandTable "command" -1 (0 0 0) [LOADING STALE] [CONNECTION] [] [ANY_ORDER] "server" "2.8.13"
        "" "Describes all commands.";
    CommandCount "command|count" 2 (0 0 0) [LOADING STALE] [CONNECTION] [] [] "server" "2.8.13"
        "" "The number of commands.";
    CommandDocs "command|docs" -2 (0 0 0) [LOADING STALE] [CONNECTION] [] [ANY_ORDER] "server" "7.0.0"
        "[command-name [command-name ...]]" "What commands do and which arguments they take.";
    CommandGetKeys "command|getkeys" -4 (0 0 0) [LOADING STALE] [CONNECTION] [] [] "server" "2.8.13"
        "command [arg [arg ...]]" "The keys in a command.";
    CommandGetKeysAndFlags "command|getkeysandflags" -4 (0 0 0) [LOADING STALE] [CONNECTION] [] [] "server" "7.0.0"
        "command [arg [arg ...]]" "The keys in a command and what it does to them.";
    CommandHelp "command|help" 2 (0 0 0) [LOADING STALE] [CONNECTION] [] [] "server" "5.0.0"
        "" "Prints this help.";
    CommandInfo "command|info" -2 (0 0 0) [LOADING STALE] [CONNECTION] [] [ANY_ORDER] "server" "2.8.13"
        "[command-name [command-name ...]]" "Arity, flags and keys of commands.";
    CommandList "command|list" -2 (0 0 0) [LOADING STALE] [CONNECTION] [] [ANY_ORDER] "server" "7.0.0"
        "[FILTERBY <MODULE module-name | ACLCAT category | PATTERN pattern>]" "The names of the commands.";
    Config "config" -2 (0 0 0) [] [] [] [] "server" "2.0.0"
        "" "Reads and changes settings.";
    ConfigGet "config|get" -3 (0 0 0) [ADMIN NOSCRIPT LOADING STALE] [] [] [] "server" "2.0.0"
        "parameter [parameter ...]" "Settings whose names match a pattern.";
    ConfigHelp "config|help" 2 (0 0 0) [LOADING STALE] [] [] [] "server" "5.0.0"
        "" "Prints this help.";
    ConfigResetStat "config|resetstat" 2 (0 0 0) [ADMIN NOSCRIPT LOADING STALE] [] [] [] "server" "2.0.0"
        "" "Sets the numbers of INFO that count since the start to zero.";
    ConfigRewrite "config|rewrite" 2 (0 0 0) [ADMIN NOSCRIPT LOADING STALE] [] [] [] "server" "2.8.0"
        "" "Refused: the configuration file is the operator's.";
    ConfigSet "config|set" -4 (0 0 0) [ADMIN NOSCRIPT LOADING STALE] [] [] [ALL_NODES ALL_SUCCEEDED] "server" "2.0.0"
        "parameter value [parameter value ...]" "Changes maxclients and timeout; other settings may be set to what they are.";
    DbSize "dbsize" 1 (0 0 0) [READONLY FAST] [KEYSPACE] [] [ALL_SHARDS SUM] "server" "1.0.0"
        "" "The number of counters.";
    FlushAll "flushall" -1 (0 0 0) [WRITE] [KEYSPACE DANGEROUS] [] [ALL_SHARDS ALL_SUCCEEDED] "server" "1.0.0"
        "[ASYNC | SYNC]" "Deletes every counter, also those under a policy that disables writes.";
    FlushDb "flushdb" -1 (0 0 0) [WRITE] [KEYSPACE DANGEROUS] [] [ALL_SHARDS ALL_SUCCEEDED] "server" "1.0.0"
        "[ASYNC | SYNC]" "Deletes every counter, also those under a policy that disables writes.";
    Latency "latency" -2 (0 0 0) [] [] [] [] "server" "2.8.13"
        "" "Nothing is recorded; numbers are under /metrics.";
    LatencyDoctor "latency|doctor" 2 (0 0 0) [ADMIN NOSCRIPT LOADING STALE] [] [] [VARIES ALL_NODES SPECIAL_REPLY] "server" "2.8.13"
        "" "Says where to look instead.";
    LatencyGraph "latency|graph" 3 (0 0 0) [ADMIN NOSCRIPT LOADING STALE] [] [] [VARIES ALL_NODES SPECIAL_REPLY] "server" "2.8.13"
        "event" "Refused: there are no samples.";
    LatencyHelp "latency|help" 2 (0 0 0) [LOADING STALE] [] [] [] "server" "2.8.13"
        "" "Prints this help.";
    LatencyHistogram "latency|histogram" -2 (0 0 0) [ADMIN NOSCRIPT LOADING STALE] [] [] [VARIES ALL_NODES SPECIAL_REPLY] "server" "7.0.0"
        "[command [command ...]]" "Empty.";
    LatencyHistory "latency|history" 3 (0 0 0) [ADMIN NOSCRIPT LOADING STALE] [] [] [VARIES ALL_NODES SPECIAL_REPLY] "server" "2.8.13"
        "event" "Empty.";
    LatencyLatest "latency|latest" 2 (0 0 0) [ADMIN NOSCRIPT LOADING STALE] [] [] [VARIES ALL_NODES SPECIAL_REPLY] "server" "2.8.13"
        "" "Empty.";
    LatencyReset "latency|reset" -2 (0 0 0) [ADMIN NOSCRIPT LOADING STALE] [] [] [ALL_NODES ALL_SUCCEEDED] "server" "2.8.13"
        "[event [event ...]]" "Answers 0: there was nothing to reset.";
    Memory "memory" -2 (0 0 0) [] [] [] [] "server" "4.0.0"
        "" "What memory is used for.";
    MemoryDoctor "memory|doctor" 2 (0 0 0) [] [] [] [VARIES ALL_SHARDS SPECIAL_REPLY] "server" "4.0.0"
        "" "Says where to look instead.";
    MemoryHelp "memory|help" 2 (0 0 0) [LOADING STALE] [] [] [] "server" "4.0.0"
        "" "Prints this help.";
    MemoryPurge "memory|purge" 2 (0 0 0) [] [] [] [ALL_SHARDS ALL_SUCCEEDED] "server" "4.0.0"
        "" "Accepted; freed memory goes back to the system by itself.";
    MemoryStats "memory|stats" 2 (0 0 0) [] [] [] [VARIES ALL_SHARDS SPECIAL_REPLY] "server" "4.0.0"
        "" "Memory of the process and of its counters.";
    MemoryUsage "memory|usage" -3 (2 2 1) [READONLY] [] [RO] [] "server" "4.0.0"
        "key [SAMPLES count]" "Bytes that a counter takes while it is in memory.";
    Role "role" 1 (0 0 0) [NOSCRIPT LOADING STALE FAST] [ADMIN DANGEROUS] [] [] "server" "2.8.12"
        "" "Answers master without replicas.";
    SlowLog "slowlog" -2 (0 0 0) [] [] [] [] "server" "2.2.12"
        "" "No slow log is kept; numbers are under /metrics.";
    SlowLogGet "slowlog|get" -2 (0 0 0) [ADMIN LOADING STALE] [] [] [ALL_NODES VARIES] "server" "2.2.12"
        "[count]" "Empty.";
    SlowLogHelp "slowlog|help" 2 (0 0 0) [LOADING STALE] [] [] [] "server" "6.2.0"
        "" "Prints this help.";
    SlowLogLen "slowlog|len" 2 (0 0 0) [ADMIN LOADING STALE] [] [] [ALL_NODES SUM VARIES] "server" "2.2.12"
        "" "Answers 0.";
    SlowLogReset "slowlog|reset" 2 (0 0 0) [ADMIN LOADING STALE] [] [] [ALL_NODES ALL_SUCCEEDED] "server" "2.2.12"
        "" "Accepted.";
    Time "time" 1 (0 0 0) [LOADING STALE FAST] [] [] [VARIES] "server" "2.6.0"
        "" "The server's clock, in seconds and microseconds.";

    Get "get" 2 (1 1 1) [READONLY FAST] [STRING] [RO ACCESS] [] "string" "1.0.0"
        "key" "The value of a counter.";
    MGet "mget" -2 (1 -1 1) [READONLY FAST] [STRING] [RO ACCESS] [MULTI_SHARD] "string" "1.0.0"
        "key [key ...]" "The values of several counters.";
    StrLen "strlen" 2 (1 1 1) [READONLY FAST] [STRING] [RO] [] "string" "2.2.0"
        "key" "How many characters the value has as text; 0 without one.";
    Set "set" -3 (1 1 1) [WRITE DENYOOM] [STRING] [RW ACCESS UPDATE VARIABLE_FLAGS] [] "string" "1.0.0"
        "key value [NX | XX] [GET] [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | KEEPTTL]" "Gives a counter a value, an integer.";
    SetNx "setnx" 3 (1 1 1) [WRITE DENYOOM FAST] [STRING] [OW INSERT] [] "string" "1.0.0"
        "key value" "Gives a counter a value unless it exists.";
    SetEx "setex" 4 (1 1 1) [WRITE DENYOOM] [STRING] [OW UPDATE] [] "string" "2.0.0"
        "key seconds value" "Gives a counter a value and seconds to live.";
    PSetEx "psetex" 4 (1 1 1) [WRITE DENYOOM] [STRING] [OW UPDATE] [] "string" "2.6.0"
        "key milliseconds value" "Gives a counter a value and milliseconds to live.";
    GetSet "getset" 3 (1 1 1) [WRITE DENYOOM FAST] [STRING] [RW ACCESS UPDATE] [] "string" "1.0.0"
        "key value" "Gives a counter a value and answers the old one.";
    GetDel "getdel" 2 (1 1 1) [WRITE FAST] [STRING] [RW ACCESS DELETE] [] "string" "6.2.0"
        "key" "Deletes a counter and answers its value.";
    GetEx "getex" -2 (1 1 1) [WRITE FAST] [STRING] [RW ACCESS UPDATE] [] "string" "6.2.0"
        "key [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | PERSIST]" "Answers the value and changes the time to live.";
    MSet "mset" -3 (1 -1 2) [WRITE DENYOOM] [STRING] [OW UPDATE] [MULTI_SHARD ALL_SUCCEEDED] "string" "1.0.1"
        "key value [key value ...]" "Gives several counters values, all or none.";
    Incr "incr" 2 (1 1 1) [WRITE DENYOOM FAST] [STRING] [RW ACCESS UPDATE] [] "string" "1.0.0"
        "key" "Adds one.";
    Decr "decr" 2 (1 1 1) [WRITE DENYOOM FAST] [STRING] [RW ACCESS UPDATE] [] "string" "1.0.0"
        "key" "Takes one away.";
    IncrBy "incrby" 3 (1 1 1) [WRITE DENYOOM FAST] [STRING] [RW ACCESS UPDATE] [] "string" "1.0.0"
        "key increment" "Adds an amount.";
    DecrBy "decrby" 3 (1 1 1) [WRITE DENYOOM FAST] [STRING] [RW ACCESS UPDATE] [] "string" "1.0.0"
        "key decrement" "Takes an amount away.";
    IncrEx "increx" -2 (1 1 1) [WRITE DENYOOM FAST] [STRING] [RW ACCESS UPDATE] [] "string" "8.8.0"
        "key [BYINT increment] [LBOUND lowerbound] [UBOUND upperbound] [SATURATE] [EX seconds | PX milliseconds | EXAT unix-time-seconds | PXAT unix-time-milliseconds | PERSIST] [ENX]" "Adds within bounds and with a time to live, in one step. Answers new value, applied.";

    PfAdd "pfadd" -2 (1 1 1) [WRITE DENYOOM FAST] [HYPERLOGLOG] [RW INSERT] [] "hyperloglog" "2.8.9"
        "key [element [element ...]]" "Shows items to a counter of uniques. Answers 1 if its sketch changed.";
    PfCount "pfcount" -2 (1 -1 1) [READONLY] [HYPERLOGLOG] [RW ACCESS] [] "hyperloglog" "2.8.9"
        "key [key ...]" "How many different items counters of uniques have seen, as Redis estimates it, also while quipu knows the number exactly.";
    PfMerge "pfmerge" -2 (1 -1 1) [WRITE DENYOOM] [HYPERLOGLOG] [RW ACCESS INSERT] [] "hyperloglog" "2.8.9"
        "destkey [sourcekey [sourcekey ...]]" "Shows a counter of uniques all that others have seen.";

    Del "del" -2 (1 -1 1) [WRITE] [KEYSPACE] [RM DELETE] [MULTI_SHARD SUM] "generic" "1.0.0"
        "key [key ...]" "Deletes counters.";
    Unlink "unlink" -2 (1 -1 1) [WRITE FAST] [KEYSPACE] [RM DELETE] [MULTI_SHARD SUM] "generic" "4.0.0"
        "key [key ...]" "Deletes counters; the same as DEL.";
    Exists "exists" -2 (1 -1 1) [READONLY FAST] [KEYSPACE] [RO] [MULTI_SHARD SUM] "generic" "1.0.0"
        "key [key ...]" "How many of the keys exist.";
    Touch "touch" -2 (1 -1 1) [READONLY FAST] [KEYSPACE] [RO] [MULTI_SHARD SUM] "generic" "3.2.1"
        "key [key ...]" "How many of the keys exist; the same as EXISTS.";
    Type "type" 2 (1 1 1) [READONLY FAST] [KEYSPACE] [RO] [] "generic" "1.0.0"
        "key" "The type of a key: string for a counter.";
    Ttl "ttl" 2 (1 1 1) [READONLY FAST] [KEYSPACE] [RO ACCESS] [VARIES] "generic" "1.0.0"
        "key" "Seconds left to live.";
    PTtl "pttl" 2 (1 1 1) [READONLY FAST] [KEYSPACE] [RO ACCESS] [VARIES] "generic" "2.6.0"
        "key" "Milliseconds left to live.";
    Expire "expire" -3 (1 1 1) [WRITE FAST] [KEYSPACE] [RW UPDATE] [] "generic" "1.0.0"
        "key seconds [NX | XX | GT | LT]" "Sets seconds to live.";
    PExpire "pexpire" -3 (1 1 1) [WRITE FAST] [KEYSPACE] [RW UPDATE] [] "generic" "2.6.0"
        "key milliseconds [NX | XX | GT | LT]" "Sets milliseconds to live.";
    ExpireAt "expireat" -3 (1 1 1) [WRITE FAST] [KEYSPACE] [RW UPDATE] [] "generic" "1.2.0"
        "key unix-time-seconds [NX | XX | GT | LT]" "Sets the end of life, in Unix seconds.";
    PExpireAt "pexpireat" -3 (1 1 1) [WRITE FAST] [KEYSPACE] [RW UPDATE] [] "generic" "2.6.0"
        "key unix-time-milliseconds [NX | XX | GT | LT]" "Sets the end of life, in Unix milliseconds.";
    ExpireTime "expiretime" 2 (1 1 1) [READONLY FAST] [KEYSPACE] [RO ACCESS] [] "generic" "7.0.0"
        "key" "The end of life, in Unix seconds.";
    PExpireTime "pexpiretime" 2 (1 1 1) [READONLY FAST] [KEYSPACE] [RO ACCESS] [] "generic" "7.0.0"
        "key" "The end of life, in Unix milliseconds.";
    Persist "persist" 2 (1 1 1) [WRITE FAST] [KEYSPACE] [RW UPDATE] [] "generic" "2.2.0"
        "key" "Removes the end of life.";
    Scan "scan" -2 (0 0 0) [READONLY] [KEYSPACE] [] [VARIES SPECIAL_REQUEST] "generic" "2.8.0"
        "cursor [MATCH pattern] [COUNT count] [TYPE type]" "Walks through the keys in steps.";
    Keys "keys" 2 (0 0 0) [READONLY] [KEYSPACE DANGEROUS] [] [ALL_SHARDS ANY_ORDER] "generic" "1.0.0"
        "pattern" "All keys that match a pattern; SCAN is kinder.";
    RandomKey "randomkey" 1 (0 0 0) [READONLY] [KEYSPACE] [] [ALL_SHARDS VARIES] "generic" "1.0.0"
        "" "One of the keys.";
    Dump "dump" 2 (1 1 1) [READONLY] [KEYSPACE] [RO ACCESS] [VARIES] "generic" "2.6.0"
        "key" "A counter in the form Redis restores.";
    Restore "restore" -4 (1 1 1) [WRITE DENYOOM] [KEYSPACE DANGEROUS] [OW UPDATE] [] "generic" "2.6.0"
        "key ttl serialized-value [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]" "Makes a counter of what DUMP gave, here or in Redis: an integer or a sketch.";
    Object "object" -2 (0 0 0) [] [] [] [] "generic" "2.2.3"
        "" "Looks at a key as Redis keeps it.";
    ObjectEncoding "object|encoding" 3 (2 2 1) [READONLY] [KEYSPACE] [RO] [VARIES] "generic" "2.2.3"
        "key" "How the value is kept: int.";
    ObjectFreq "object|freq" 3 (2 2 1) [READONLY] [KEYSPACE] [RO] [VARIES] "generic" "4.0.0"
        "key" "Refused: how often a counter is used is not kept.";
    ObjectHelp "object|help" 2 (0 0 0) [LOADING STALE] [KEYSPACE] [] [] "generic" "6.2.0"
        "" "Prints this help.";
    ObjectIdleTime "object|idletime" 3 (2 2 1) [READONLY] [KEYSPACE] [RO] [VARIES] "generic" "2.2.3"
        "key" "Seconds since the last change.";
    ObjectRefCount "object|refcount" 3 (2 2 1) [READONLY] [KEYSPACE] [RO] [VARIES] "generic" "2.2.3"
        "key" "References to the value, as Redis would count them.";
    Wait "wait" 3 (0 0 0) [NOSCRIPT] [CONNECTION] [] [ALL_SHARDS MIN] "generic" "3.0.0"
        "numreplicas timeout" "Answers at once: 0 on a single node, in a cluster how many nodes beside the leader have it for certain.";

    Multi "multi" 1 (0 0 0) [NOSCRIPT LOADING STALE FAST ALLOW_BUSY] [TRANSACTION] [] [] "transactions" "1.2.0"
        "" "Begins a transaction.";
    Exec "exec" 1 (0 0 0) [NOSCRIPT LOADING STALE SKIP_SLOWLOG] [TRANSACTION] [] [] "transactions" "1.2.0"
        "" "Runs the transaction; nobody sees it half done.";
    Discard "discard" 1 (0 0 0) [NOSCRIPT LOADING STALE FAST ALLOW_BUSY] [TRANSACTION] [] [] "transactions" "2.0.0"
        "" "Forgets the transaction.";
    Watch "watch" -2 (1 -1 1) [NOSCRIPT LOADING STALE FAST ALLOW_BUSY] [TRANSACTION] [RO] [] "transactions" "2.2.0"
        "key [key ...]" "Runs the next transaction only if these keys stay as they are.";
    Unwatch "unwatch" 1 (0 0 0) [NOSCRIPT LOADING STALE FAST ALLOW_BUSY] [TRANSACTION] [] [] "transactions" "2.2.0"
        "" "Forgets the watched keys.";

    Asking "asking" 1 (0 0 0) [FAST] [CONNECTION] [] [] "cluster" "3.0.0"
        "" "Accepted on the cluster port; no slot is ever half moved.";
    Cluster "cluster" -2 (0 0 0) [] [] [] [] "cluster" "3.0.0"
        "" "Who is to be asked about which slots; on the cluster port.";
    ClusterCountFailureReports "cluster|count-failure-reports" 3 (0 0 0) [ADMIN STALE] [] [] [VARIES] "cluster" "3.0.0"
        "node-id" "Answers 0: nodes do not report each other, they elect.";
    ClusterCountKeysInSlot "cluster|countkeysinslot" 3 (0 0 0) [STALE] [] [] [] "cluster" "3.0.0"
        "slot" "How many counters of a slot this node holds.";
    ClusterGetKeysInSlot "cluster|getkeysinslot" 4 (0 0 0) [STALE] [] [] [VARIES] "cluster" "3.0.0"
        "slot count" "Keys of a slot that this node holds.";
    ClusterHelp "cluster|help" 2 (0 0 0) [LOADING STALE] [] [] [] "cluster" "5.0.0"
        "" "Prints this help.";
    ClusterInfo "cluster|info" 2 (0 0 0) [STALE] [] [] [VARIES] "cluster" "3.0.0"
        "" "Whether every slot has a leader, and how many nodes there are.";
    ClusterKeySlot "cluster|keyslot" 3 (0 0 0) [STALE] [] [] [] "cluster" "3.0.0"
        "key" "The slot of a key.";
    ClusterMyId "cluster|myid" 2 (0 0 0) [STALE] [] [] [] "cluster" "3.0.0"
        "" "The name of this node.";
    ClusterMyShardId "cluster|myshardid" 2 (0 0 0) [STALE] [] [] [VARIES] "cluster" "7.2.0"
        "" "The name of this node, which stands for the slots it leads.";
    ClusterNodes "cluster|nodes" 2 (0 0 0) [STALE] [] [] [VARIES] "cluster" "3.0.0"
        "" "A line for every node, with the slots it leads.";
    ClusterShards "cluster|shards" 2 (0 0 0) [STALE] [] [] [VARIES] "cluster" "7.0.0"
        "" "Slots with the node that leads them and the other replicas, by shard.";
    ClusterSlots "cluster|slots" 2 (0 0 0) [STALE] [] [] [VARIES] "cluster" "3.0.0"
        "" "Slots with the node that leads them and the other replicas, by range.";
    ReadOnly "readonly" 1 (0 0 0) [LOADING STALE FAST] [CONNECTION] [] [] "cluster" "3.0.0"
        "" "From now on any replica may be asked to look; it answers what it knows, which may be behind.";
    ReadWrite "readwrite" 1 (0 0 0) [LOADING STALE FAST] [CONNECTION] [] [] "cluster" "3.0.0"
        "" "From now on who looks is sent to the leader too.";

    QAdd "q.add" -3 (1 1 1) [WRITE DENYOOM FAST] [STRING] [RW ACCESS UPDATE] [] "quipu" "0.1.0"
        "key delta [ID id] [MIN min] [MAX max] [SATURATE] [PX milliseconds] [IFVERSION version] [AT milliseconds] [DIM name value [DIM name value ...]]" "Adds once per request id, within bounds, at a version, in a window also for a time that is past, for values of dimensions. Answers value, applied, version, duplicate.";
    QBatch "q.batch" -6 (4 -1 2) [WRITE DENYOOM] [STRING] [RW ACCESS UPDATE] [] "quipu" "0.1.0"
        "producer epoch sequence key delta [key delta ...]" "Adds to several counters, all or none, once per producer sequence. Answers last sequence, duplicate.";
    QAdjust "q.adjust" -4 (1 1 1) [WRITE DENYOOM FAST] [STRING] [RW ACCESS UPDATE] [] "quipu" "0.1.0"
        "key delta reason [ID id]" "Corrects a counter and says why. Answers value, applied, version, duplicate.";
    QAudit "q.audit" -2 (1 1 1) [READONLY] [STRING] [RO ACCESS] [VARIES] "quipu" "0.1.0"
        "key [COUNT n]" "Who changed a counter, when, how and why, the newest first, where a policy has that kept.";
    QObserve "q.observe" -4 (1 1 1) [WRITE DENYOOM FAST] [HYPERLOGLOG] [RW INSERT] [] "quipu" "0.1.0"
        "key [AT milliseconds] [ID id] ITEMS item [item ...]" "Counts different items, once per request id, by time also for a time that is past. Answers how many there are, whether any was new, whether the number is exact, duplicate.";
    QAcquire "q.acquire" -5 (1 1 1) [WRITE DENYOOM FAST] [STRING] [RW ACCESS UPDATE] [] "quipu" "0.1.0"
        "key amount limit window-milliseconds [SOFT] [ID id]" "Counts if the limit leaves room in the window. Answers allowed, remaining, milliseconds until some is free.";
    QAcquireAll "q.acquireall" -6 (2 -1 4) [WRITE DENYOOM] [STRING] [RW ACCESS UPDATE] [] "quipu" "0.1.0"
        "id key amount limit window-milliseconds [key amount limit window-milliseconds ...]" "Counts if all limits leave room, else nothing; an empty id is none. Answers allowed, which limit it is that refused or leaves least (from 0), what that leaves, milliseconds until some of it is free.";
    QHold "q.hold" -4 (1 1 1) [WRITE DENYOOM FAST] [STRING] [RW ACCESS UPDATE] [] "quipu" "0.1.0"
        "key amount ttl-milliseconds [MIN min] [MAX max] [ID id]" "Sets an amount aside for some time. Answers the name of the hold and when it expires.";
    QCommit "q.commit" -2 (0 0 0) [WRITE DENYOOM FAST] [STRING] [] [] "quipu" "0.1.0"
        "hold [amount]" "Counts what was set aside, or less. Answers value, applied, version, duplicate.";
    QVoid "q.void" 2 (0 0 0) [WRITE FAST] [STRING] [] [] "quipu" "0.1.0"
        "hold" "Gives back what was set aside. Answers value, applied, version, duplicate.";
    QWGet "q.wget" 3 (1 1 1) [READONLY FAST] [STRING] [RO ACCESS] [] "quipu" "0.1.0"
        "key milliseconds" "What a counter by time has counted in the last so many milliseconds.";
    QHistory "q.history" -3 (1 1 1) [READONLY] [STRING] [RO ACCESS] [] "quipu" "0.1.0"
        "key <AT milliseconds | MINUTE | HOUR | DAY> [FROM milliseconds] [TO milliseconds]" "What the value was at full minutes, hours or days (UTC), where a policy has that kept: an array of time in milliseconds and value for each, of the last sixty unless told otherwise, and at most 1,500. AT: the value as of a time, with the time of which it is, or null.";
    QDGet "q.dget" -4 (1 1 1) [READONLY FAST] [STRING] [RO ACCESS] [] "quipu" "0.1.0"
        "key name value [name value ...]" "The part of a value that belongs to values of dimensions. With `*` for every value: an array of values and sum for each, values in the order of their names; an error where that would be more than 1,000.";
    QStat "q.stat" 2 (1 1 1) [READONLY FAST] [STRING] [RO ACCESS] [] "quipu" "0.1.0"
        "key" "All there is to know of a counter: value, version, times, expiry.";
    QSum "q.sum" -2 (0 0 0) [READONLY] [KEYSPACE] [] [] "quipu" "0.1.0"
        "pattern [DIM name value [DIM name value ...]]" "The sum of all counters whose keys match: `*` stands for any bytes, `?` for one. With DIM the sum of that part of each; with `*` for a value as in Q.DGET.";
    QTop "q.top" 3 (0 0 0) [READONLY] [KEYSPACE] [] [] "quipu" "0.1.0"
        "prefix count" "The largest counters whose keys begin so, the largest first: keys and values.";
    QHot "q.hot" -1 (0 0 0) [READONLY] [KEYSPACE] [] [VARIES] "quipu" "0.1.0"
        "[n]" "The keys asked for most in the last ten seconds, with rates and shares of all requests, and the skew between partitions.";
    QPolicy "q.policy" -2 (0 0 0) [] [] [] [] "quipu" "0.1.0"
        "" "Reads and changes the rules of counters by pattern.";
    QPolicyDel "q.policy|del" 3 (0 0 0) [ADMIN] [] [] [] "quipu" "0.1.0"
        "pattern" "Removes the policy of a pattern.";
    QPolicyGet "q.policy|get" 3 (0 0 0) [ADMIN] [] [] [] "quipu" "0.1.0"
        "pattern" "The policy of a pattern, as JSON.";
    QPolicyHelp "q.policy|help" 2 (0 0 0) [LOADING STALE] [] [] [] "quipu" "0.1.0"
        "" "Prints this help.";
    QPolicyList "q.policy|list" 2 (0 0 0) [ADMIN] [] [] [] "quipu" "0.1.0"
        "" "All policies, as JSON.";
    QPolicySet "q.policy|set" 4 (0 0 0) [ADMIN] [] [] [] "quipu" "0.1.0"
        "pattern json" "Stores a policy.";
}

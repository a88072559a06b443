//! Where quipu answers a Redis command other than Redis 7.0 does, and why. A test plays every example on both and thousands
//! of generated scripts beside; what differs and is not listed here is a defect.

/// One difference.
#[derive(Debug, Clone, Copy)]
pub struct Difference {
    /// A few words that name it.
    pub name: &'static str,
    /// What happens here.
    pub here: &'static str,
    /// Why.
    pub reason: &'static str,
    /// Commands of which the last is answered differently. None where it takes more than a line, or luck.
    pub example: &'static [&'static str],
}

/// All of them.
pub static DIFFERENCES: &[Difference] = &[
    Difference {
        name: "integer values",
        here: "SET and its kin refuse a value that is not an integer in its one spelling (`+1`, `01` and `1.0` are none).",
        reason: "Every key is a counter, and what is stored reads back byte for byte.",
        example: &["SET a hello"],
    },
    Difference {
        name: "other types",
        here: "There are no lists, hashes, sets, streams, scripts or channels; their commands are unknown.",
        reason: "This is a counter service.",
        example: &["LPUSH a 1"],
    },
    Difference {
        name: "key length",
        here: "A key has 1 to 512 bytes.",
        reason: "Keys lie in memory, in the log and in the cold store; their bound makes the bounds of all three.",
        example: &["GET ''"],
    },
    Difference {
        name: "limits",
        here: "A command has at most 65,536 keys, 1 Mi arguments of 8 MiB each and 16 MiB in all; a typed line 64 KiB; a \
               transaction 65,536 commands and 16 MiB; a connection 32,768 watched keys and a name of 256 bytes; the reply \
               of KEYS 32 MiB of keys.",
        reason: "Every buffer is bounded, and no verdict depends on how the bytes were divided on their way.",
        example: &[],
    },
    Difference {
        name: "one database",
        here: "There is database 0 alone; SELECT of another is out of range.",
        reason: "Names have room for prefixes.",
        // Redis has one too in the comparison.
        example: &[],
    },
    Difference {
        name: "order inside EXEC",
        here: "In a transaction the commands about counters come first, as one record of the log. KEYS, SCAN, RANDOMKEY, INFO \
               and those that change the connection or the server follow, and see all that the transaction did.",
        reason: "Walks read from disk for as long as it takes; a transaction is done at one moment, or not at all.",
        example: &["MULTI", "KEYS *", "SET a 1", "EXEC"],
    },
    Difference {
        name: "PFMERGE in transactions",
        here: "PFMERGE is refused in a transaction.",
        reason: "It reads before it writes, maybe at other nodes.",
        example: &["MULTI", "PFMERGE a b"],
    },
    Difference {
        name: "no counts in sketches",
        here: "PFCOUNT leaves the sketch as it is; Redis keeps the number it has counted in bytes 8 to 15 of it, where GET shows it.",
        reason: "Looking changes nothing.",
        example: &["PFADD a b", "PFCOUNT a", "GET a"],
    },
    Difference {
        name: "settings",
        here: "CONFIG knows the settings that clients ask for; of these, only maxclients and timeout can be changed.",
        reason: "Settings belong to whoever starts the server: `quipu config show`.",
        example: &["CONFIG SET maxmemory 5"],
    },
    Difference {
        name: "descriptions",
        here: "HELLO, INFO, COMMAND, MEMORY and CLIENT LIST describe this server, with fewer fields; CLIENT, CLUSTER and \
               MEMORY have fewer subcommands; cursors of SCAN are its own.",
        reason: "What a field of Redis would say about another program helps nobody.",
        example: &["CLIENT PAUSE 1"],
    },
    Difference {
        name: "nothing recorded",
        here: "LATENCY and SLOWLOG are empty, and INFO commandstats counts calls alone.",
        reason: "Commands of many connections are executed together, so one of them has no time of its own; numbers are \
                 under /metrics.",
        example: &[],
    },
    Difference {
        name: "no trace of reading",
        here: "OBJECT IDLETIME counts from the last change; CLIENT TRACKING ON is refused.",
        reason: "Nothing is written because somebody looked, and changes are not pushed to clients.",
        example: &["CLIENT TRACKING ON"],
    },
    Difference {
        name: "replicas that are certain",
        here: "WAIT answers at once: 0 on a single node, and in a cluster how many nodes beside the leader have it for certain.",
        reason: "What was answered in a cluster is on a majority of disks already, and waiting makes it no more.",
        example: &[],
    },
    Difference {
        name: "slots of keys",
        here: "CLUSTER KEYSLOT answers without a cluster.",
        reason: "The slot is a matter of the key alone.",
        example: &["CLUSTER KEYSLOT a"],
    },
    Difference {
        name: "restored payloads",
        here: "RESTORE takes integers and sketches, in payloads of Redis up to 7.4, and counters of every kind as `quipu import` sends them; a time to live beyond 64 bits is the latest there is.",
        reason: "Integers look the same in all of them. Redis 7.0 takes nothing newer, and lets that time lie in the past.",
        example: &[],
    },
    Difference {
        name: "all or none",
        here: "DEL of several keys is all or none, as MSET is; FLUSHALL and FLUSHDB keep request ids, producers and policies.",
        reason: "A policy may refuse one of the keys, and a retry must be recognized after everything else is gone.",
        example: &[],
    },
    Difference {
        name: "later commands",
        here: "INCREX (Redis 8.8), CLIENT SETINFO, CLIENT NO-TOUCH and CLUSTER MYSHARDID (7.2) are there.",
        reason: "Clients of today send them.",
        example: &["CLIENT SETINFO LIB-NAME x"],
    },
    Difference {
        name: "watched states",
        here: "A watched counter that did not exist, was created and deleted again, or was told to expire when it would \
               anyway, does not stop the transaction.",
        reason: "What counts is the state and not who touched it meanwhile; nothing has to be remembered about deleted keys.",
        example: &[],
    },
    Difference {
        name: "born expired",
        here: "SET with EXAT or PXAT in the past leaves nothing that DBSIZE would count.",
        reason: "Redis 7.0 keeps such a key until someone looks at it.",
        example: &[],
    },
    Difference {
        name: "zero bytes in lines",
        here: "In a command typed as a line a zero byte is a byte like any other.",
        reason: "Redis does not see the end of such a line and waits for ever.",
        example: &[],
    },
];

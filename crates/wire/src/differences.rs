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
        here: "A command has at most 65,536 keys, 1 Mi arguments of 1 MiB each and 64 MiB in all; a typed line 64 KiB; a \
               transaction 65,536 commands; the name of a connection 256 bytes.",
        reason: "Every buffer is bounded, and no verdict depends on how the bytes were divided on their way.",
        example: &[],
    },
    Difference {
        name: "refused inside MULTI",
        here: "HELLO, KEYS, SCAN, CLIENT REPLY and CLIENT KILL are refused between MULTI and EXEC.",
        reason: "A transaction is one batch at one moment. Walks read from disk for as long as it takes, and the others \
                 change how its own reply is sent.",
        example: &["MULTI", "KEYS *"],
    },
    Difference {
        name: "settings",
        here: "CONFIG knows the settings that clients ask for; of these, only maxclients can be changed.",
        reason: "Settings belong to whoever starts the server: `quipu config show`.",
        example: &["CONFIG SET timeout 5"],
    },
    Difference {
        name: "descriptions",
        here: "HELLO, INFO, COMMAND and CLIENT LIST describe this server, with fewer fields; CLIENT, CONFIG and COMMAND \
               have fewer subcommands; cursors of SCAN are its own.",
        reason: "What a field of Redis would say about another program helps nobody.",
        example: &["CLIENT TRACKINGINFO"],
    },
    Difference {
        name: "later commands",
        here: "INCREX (Redis 8.8), CLIENT SETINFO and CLIENT NO-TOUCH (7.2) are there.",
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

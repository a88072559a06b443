//! Which documented difference explains two answers. The list itself is `quipu_wire::differences`.

use quipu_wire::commands::lookup;
use quipu_wire::differences::DIFFERENCES;

use super::script::Word;

/// Two replies that are not the same.
pub struct Seen<'s> {
    /// The command, if it is known.
    pub words: &'s [Word],
    /// Whether it is a part of what EXEC answers.
    pub within_exec: bool,
    /// Everything that was sent, if commands are not told apart.
    pub poured: &'s [u8],
    /// Ours.
    pub ours: &'s [u8],
    /// Redis's.
    pub theirs: &'s [u8],
}

/// Whether a difference is this one.
type Sign = fn(&Seen<'_>) -> bool;

/// How each documented difference looks. In the order of the list, which a test compares.
const SIGNS: &[(&str, Sign)] = &[
    ("integer values", |seen| {
        let stores = ["set", "setnx", "setex", "psetex", "getset", "mset", "msetnx", "restore"];
        stores.contains(&&*seen.word(0)) && seen.ours == b"-ERR value is not an integer or out of range\r\n"
    }),
    ("other types", |seen| {
        let is_unknown = lookup(seen.word(0).as_bytes()).is_none();
        !seen.words.is_empty() && is_unknown && seen.ours.starts_with(b"-ERR unknown command")
    }),
    ("key length", |seen| seen.ours.starts_with(b"-ERR a key has 1 to 512 bytes")),
    ("limits", |seen| {
        let texts =
            ["-ERR Client names cannot be longer than", "-ERR Protocol error: too big inline request"];
        texts.iter().any(|text| seen.ours.starts_with(text.as_bytes()))
    }),
    ("one database", |seen| {
        seen.word(0) == "select"
            && seen.ours == b"-ERR DB index is out of range\r\n"
            && seen.theirs == b"+OK\r\n"
    }),
    ("order inside EXEC", |seen| {
        seen.within_exec && ["keys", "scan", "randomkey", "info"].contains(&&*seen.word(0))
    }),
    ("settings", |seen| seen.word(0) == "config" && seen.ours.ends_with(b"can't set immutable config\r\n")),
    // Fields are compared by rules; here only what is not there at all.
    ("descriptions", |seen| seen.ours.starts_with(b"-ERR unknown subcommand") && seen.theirs != seen.ours),
    ("nothing recorded", |_| false),
    ("no trace of reading", |seen| seen.ours.starts_with(b"-ERR tracking is not supported")),
    ("no replicas", |_| false),
    ("slots of keys", |seen| {
        seen.word(0) == "cluster" && seen.word(1) == "keyslot" && seen.ours.starts_with(b":")
    }),
    ("restored payloads", |_| false),
    ("all or none", |_| false),
    ("later commands", |seen| seen.word(0) == "client" && ["setinfo", "no-touch"].contains(&&*seen.word(1))),
    // Scripts watch what exists, or remove nothing.
    ("watched states", |_| false),
    // Scripts touch such a counter at once, and Redis forgets it then.
    ("born expired", |_| false),
    ("zero bytes in lines", |seen| seen.poured.contains(&0) && seen.theirs.is_empty()),
];

impl Seen<'_> {
    /// A word of the command in lower case.
    fn word(&self, at: usize) -> String {
        let word = self.words.get(at).map(|word| word.to_ascii_lowercase()).unwrap_or_default();
        String::from_utf8_lossy(&word).into_owned()
    }
}

/// The name of the difference that explains what was seen, if one does.
pub fn explain(seen: &Seen<'_>) -> Option<&'static str> {
    SIGNS.iter().find(|(_, is_it)| is_it(seen)).map(|(name, _)| *name)
}

#[test]
fn every_documented_difference_has_its_sign() {
    let listed: Vec<&str> = DIFFERENCES.iter().map(|difference| difference.name).collect();
    let known: Vec<&str> = SIGNS.iter().map(|(name, _)| *name).collect();
    assert_eq!(listed, known);
}

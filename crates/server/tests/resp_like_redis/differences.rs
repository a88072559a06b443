//! Which documented difference explains two answers. The list itself is `quipu_wire::differences`.

use quipu_wire::commands::lookup;
use quipu_wire::differences::DIFFERENCES;
use quipu_wire::resp::Value;

use super::compare::decode;
use super::script::Word;

/// Two replies that are not the same.
pub struct Seen<'s> {
    /// The command, if it is known.
    pub words: &'s [Word],
    /// The commands behind it in the same transaction, if it is a part of what EXEC answers.
    pub later: &'s [Vec<Word>],
    /// Everything that was sent, if commands are not told apart.
    pub poured: &'s [u8],
    /// Ours.
    pub ours: &'s [u8],
    /// Redis's.
    pub theirs: &'s [u8],
}

/// Whether a difference is this one.
type Sign = fn(&Seen<'_>) -> bool;

/// A reply in which sketches do not say what Redis counted last.
fn without_counts(reply: &[u8]) -> Vec<u8> {
    let mut reply = reply.to_vec();
    for at in 0..reply.len().saturating_sub(16) {
        if reply[at..].starts_with(b"HYLL") {
            reply[at + 8..at + 16].fill(0);
        }
    }
    reply
}

/// Words of a command here, as "limits" says, and in Redis.
const ARGUMENTS_MAX: u64 = 1 << 20;
const REDIS_MAX: u64 = i32::MAX as u64;

/// How each documented difference looks. In the order of the list, which a test compares.
const SIGNS: &[(&str, Sign)] = &[
    ("integer values", |seen| {
        seen.ours == b"-ERR value is not an integer or out of range\r\n"
            && seen.is_done_by_redis()
            && seen.values_to_store().iter().any(|value| !is_integer(value))
    }),
    ("other types", |seen| {
        let is_unknown = lookup(seen.word(0).as_bytes()).is_none();
        !seen.words.is_empty() && is_unknown && seen.ours.starts_with(b"-ERR unknown command")
    }),
    ("key length", |seen| {
        seen.refused_length().is_some_and(|length| {
            // Commands that were poured out have no words, but enough bytes.
            let is_there = seen.words.iter().any(|word| word.len() == length) || seen.poured.len() > length;
            is_there && !(1..=512).contains(&length)
        })
    }),
    ("limits", |seen| {
        let texts =
            ["-ERR Client names cannot be longer than", "-ERR Protocol error: too big inline request"];
        texts.iter().any(|text| seen.ours.starts_with(text.as_bytes()))
            || seen.ours == b"-ERR Protocol error: invalid multibulk length\r\n"
                && announced(seen.poured, b'*')
                    .any(|length| (ARGUMENTS_MAX + 1..=REDIS_MAX).contains(&length))
    }),
    ("one database", |seen| {
        seen.word(0) == "select"
            && seen.ours == b"-ERR DB index is out of range\r\n"
            && seen.theirs == b"+OK\r\n"
    }),
    ("order inside EXEC", |seen| match &*seen.word(0) {
        "keys" | "scan" => {
            seen.keys_apart().is_some_and(|keys| keys.iter().all(|key| seen.is_touched_later(key)))
        }
        "randomkey" => seen.is_done_by_redis() && !seen.ours.starts_with(b"-") && !seen.later.is_empty(),
        _ => false,
    }),
    ("PFMERGE in transactions", |seen| {
        seen.ours.starts_with(b"-ERR PFMERGE is not possible in a transaction")
    }),
    ("no counts in sketches", |seen| {
        seen.ours != seen.theirs && without_counts(seen.ours) == without_counts(seen.theirs)
    }),
    ("settings", |seen| {
        (seen.word(0), seen.word(1)) == ("config".into(), "set".into())
            && seen.ours.ends_with(b"can't set immutable config\r\n")
    }),
    // Fields are compared by rules; here only what is not there at all.
    ("descriptions", |seen| {
        ["client", "cluster", "memory"].contains(&&*seen.word(0))
            && seen.ours.starts_with(b"-ERR unknown subcommand")
            && !seen.theirs.starts_with(b"-ERR unknown subcommand")
    }),
    ("nothing recorded", |_| false),
    ("no trace of reading", |seen| seen.ours.starts_with(b"-ERR tracking is not supported")),
    ("replicas that are certain", |_| false),
    ("slots of keys", |seen| {
        (seen.word(0), seen.word(1)) == ("cluster".into(), "keyslot".into())
            && seen.ours.starts_with(b":")
            && seen.theirs == b"-ERR This instance has cluster support disabled\r\n"
    }),
    ("restored payloads", |_| false),
    ("all or none", |_| false),
    ("later commands", |seen| {
        let later = [("client", "setinfo"), ("client", "no-touch"), ("cluster", "myshardid")];
        later.contains(&(&*seen.word(0), &*seen.word(1)))
            && seen.theirs.starts_with(b"-ERR unknown subcommand")
    }),
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

    /// How long the key is that was refused for its length.
    fn refused_length(&self) -> Option<usize> {
        let text = std::str::from_utf8(self.ours).ok()?;
        text.strip_prefix("-ERR a key has 1 to 512 bytes, this one has ")?.trim_end().parse().ok()
    }

    fn is_done_by_redis(&self) -> bool {
        !self.theirs.is_empty() && !self.theirs.starts_with(b"-")
    }

    /// The words that the command would store.
    fn values_to_store(&self) -> Vec<&Word> {
        let words = self.words.iter();
        match &*self.word(0) {
            "set" | "setnx" | "getset" => words.skip(2).take(1).collect(),
            "setex" | "psetex" => words.skip(3).take(1).collect(),
            "mset" | "msetnx" => words.skip(2).step_by(2).collect(),
            _ => vec![],
        }
    }

    /// The keys that only one of two lists has.
    fn keys_apart(&self) -> Option<Vec<Value>> {
        let listed = |reply| match decode(reply)?.as_elements()? {
            // A page, of which there is but one.
            [cursor, Value::Array(keys)] if cursor.as_bytes() == Some(b"0") && self.word(0) == "scan" => {
                Some(keys.clone())
            }
            keys => (self.word(0) == "keys").then(|| keys.to_vec()),
        };
        let (ours, theirs) = (listed(self.ours)?, listed(self.theirs)?);
        let only = |these: &[Value], those: &[Value]| -> Vec<Value> {
            these.iter().filter(|key| !those.contains(key)).cloned().collect()
        };
        Some([only(&ours, &theirs), only(&theirs, &ours)].concat())
    }

    /// Whether a command behind this one in the transaction names the key, or all of them.
    fn is_touched_later(&self, key: &Value) -> bool {
        self.later.iter().any(|words| {
            let is_about_all = ["flushall", "flushdb"]
                .iter()
                .any(|name| words.first().is_some_and(|word| word.eq_ignore_ascii_case(name.as_bytes())));
            is_about_all || words[1..].iter().any(|word| Some(&word[..]) == key.as_bytes())
        })
    }
}

/// The lengths that stand behind `mark` somewhere in the bytes.
fn announced(bytes: &[u8], mark: u8) -> impl Iterator<Item = u64> {
    bytes.split(move |byte| *byte == mark).skip(1).filter_map(|rest| {
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
    })
}

/// Whether this is how an integer is written, in its one spelling.
fn is_integer(word: &[u8]) -> bool {
    let text = String::from_utf8_lossy(word);
    text.parse::<i64>().is_ok_and(|number| number.to_string() == text)
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

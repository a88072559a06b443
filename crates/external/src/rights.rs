//! What the user of Redis must be allowed to do. It is looked at before anything is counted: a function that is refused a command in its
//! middle has done what comes before it.

use crate::call::FUNCTION;
use crate::external::OpenError;
use crate::groups::{self, GROUPS, POLICIES};
use crate::masters::Links;

/// Commands of the functions and of nodes, and on which keys: cells, ids, streams, markers, producers, the hash of policies (`h`).
const COUNTING: &[(&str, &[&str])] = &[
    ("ci", &["MGET K", "GET K", "GETRANGE K 0 1", "MSET K 0", "SET K 0 PX 1", "DEL K"]),
    (
        "s",
        &[
            "XADD K * a b",
            "XTRIM K MAXLEN 0",
            "XLEN K",
            "XRANGE K - +",
            "XINFO STREAM K",
            "XGROUP CREATE K a 0 MKSTREAM",
        ],
    ),
    ("m", &["HGET K a", "HMGET K a", "HSET K a b", "HSETNX K a b", "HINCRBY K a 1"]),
    ("p", &["HGET K a", "HLEN K", "HSET K a b"]),
    (
        "h",
        &[
            "HGET K a",
            "HMGET K a",
            "HGETALL K",
            "HSET K a b",
            "HSETNX K a b",
            "HDEL K a",
            "HINCRBY K a 1",
            "SCAN 0",
            "MULTI",
            "EXEC",
        ],
    ),
];
/// The same for who has an archive.
const ARCHIVING: &[(&str, &[&str])] = &[
    ("ci", &["UNLINK K"]),
    ("s", &["DEL K", "XSETID K 0-1"]),
    ("m", &["DEL K", "HDEL K a"]),
    ("p", &["DEL K", "HGETALL K"]),
    ("h", &["DEL K", "TIME"]),
];
const WAITING: &[(&str, &[&str])] = &[("h", &["WAIT 1 1"])];

/// What a node does beyond counting.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doing {
    pub(crate) archives: bool,
    pub(crate) waits: bool,
}

/// Refuses a server whose user may not do everything.
pub(crate) async fn check(links: &Links, address: &str, doing: Doing) -> Result<(), OpenError> {
    let all = commands(doing);
    let mut ask = redis::cmd("FCALL");
    ask.arg(format!("{FUNCTION}_rights")).arg(0);
    for words in &all {
        ask.arg(words.len());
        words.iter().for_each(|word| _ = ask.arg(&word[..]));
    }
    let missing: Vec<usize> = links.ask_for(address, &ask).await?;
    let mut shown: Vec<String> = Vec::new();
    for words in missing.iter().filter_map(|place| all.get(place - 1)) {
        // One key of each sort is enough.
        let text = words.join(&b' ');
        let text = String::from_utf8_lossy(&text).into_owned();
        let command = text.split(' ').next().unwrap_or_default();
        if !shown.iter().any(|known| known.split(' ').next() == Some(command)) {
            shown.push(text);
        }
    }
    match shown.is_empty() {
        true => Ok(()),
        false => Err(OpenError::Denied(format!(
            "the user of Redis at {address} may not do everything that is needed: it is refused {}; allow it these commands on keys that begin with {{q (ACL SETUSER)",
            shown.join(", ")
        ))),
    }
}

fn commands(doing: Doing) -> Vec<Vec<Vec<u8>>> {
    let lists = [(COUNTING, true), (ARCHIVING, doing.archives), (WAITING, doing.waits)];
    let wanted = lists.into_iter().filter(|(_, is_wanted)| *is_wanted).flat_map(|(list, _)| list);
    let mut all = Vec::new();
    for (sorts, texts) in wanted {
        for key in sorts.chars().flat_map(keys) {
            let word = |word: &str| if word == "K" { key.clone() } else { word.as_bytes().to_vec() };
            all.extend(texts.iter().map(|text| text.split(' ').map(word).collect::<Vec<_>>()));
        }
    }
    all
}

/// A key of this sort in every group.
fn keys(sort: char) -> Vec<Vec<u8>> {
    let key = |group: u16| match sort {
        'c' => groups::cell(group, b"key"),
        'i' => groups::id(group, b"key", 0, b"id"),
        's' => groups::stream(group).into_bytes(),
        'm' => groups::marker(group).into_bytes(),
        'p' => groups::producers(group).into_bytes(),
        _ => POLICIES.as_bytes().to_vec(),
    };
    (0..if sort == 'h' { 1 } else { GROUPS }).map(key).collect()
}

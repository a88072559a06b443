//! The same tests on counters in Redis: where `QUIPU_TEST_BACKEND` names one, servers keep their counters there. They run one at
//! a time then (`cargo xtask on-redis`).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use quipu_wire::commands::lookup;

/// URLs of all servers of it, with commas in between.
const VARIABLE: &str = "QUIPU_TEST_BACKEND";

/// Settings of a data folder, which make no sense there; all take a value.
const OF_A_FOLDER: &[&str] =
    &["--data", "--durability", "--memory", "--partitions", "--queue-wait", "--hot-keys"];

/// The Redis that stands for this data folder, if tests run on one: an empty one when the folder is first used.
pub fn for_folder(folder: &Path) -> Option<String> {
    static USED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    let urls = std::env::var(VARIABLE).ok()?;
    if USED.lock().expect("nobody panics here").insert(folder.to_owned()) {
        urls.split(',').for_each(empty);
    }
    Some(urls)
}

/// A replica cannot be emptied, and need not be.
fn empty(url: &str) {
    let client = redis::Client::open(url).expect("a URL");
    let mut connection = client.get_connection().expect("a Redis to test with");
    match redis::cmd("FLUSHALL").exec(&mut connection) {
        Err(error) if error.code() != Some("READONLY") => panic!("{error}"),
        _ => {}
    }
}

/// Arguments of `quipu serve` without those of a data folder.
pub fn without_folder<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    let mut kept = Vec::new();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        if OF_A_FOLDER.contains(argument) {
            arguments.next();
        } else if !OF_A_FOLDER.iter().any(|name| argument.starts_with(&format!("{name}="))) {
            kept.push(*argument);
        }
    }
    kept
}

/// Whether tests run on one.
pub fn is_on_redis() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// What all keys of a test begin with there, so that they lie in one group: what belongs together must.
const TAG: &[u8] = b"{t}";
/// Keys of so many bytes stay as long as they are, since some are as long as a key may be.
const LONG: usize = 100;

/// A command whose keys lie in one group, where tests run on Redis.
pub fn in_one_group(mut words: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let name = words.first().map(Vec::as_slice).unwrap_or_default();
    let spec = lookup(name);
    let spec = spec.and_then(|spec| spec.subcommand(words.get(1)?)).or(spec);
    let Some(spec) = spec.filter(|_| is_on_redis()) else { return words };
    for place in spec.key_positions(words.len()) {
        match &mut words[place] {
            key if key.is_empty() || key.starts_with(TAG) => {}
            key if key.len() >= LONG => key[..TAG.len()].copy_from_slice(TAG),
            key => *key = [TAG, key].concat(),
        }
    }
    words
}

/// The same for a line.
pub fn line_in_one_group(line: &str) -> String {
    let words = in_one_group(line.split_whitespace().map(|word| word.as_bytes().to_vec()).collect());
    let words: Vec<String> = words.into_iter().map(|word| String::from_utf8(word).expect("text")).collect();
    words.join(" ")
}

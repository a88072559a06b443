//! The same tests on counters in Redis: where `QUIPU_TEST_BACKEND` names one, servers keep their counters there. They run one at
//! a time then (`cargo xtask on-redis`).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

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

//! The same commands to quipu and to a real Redis: the replies must be the same bytes, in both protocols.
//!
//! Some conversations are written by hand ([`stories`]); thousands are drawn from seeds ([`scenes`]). A difference is printed
//! with its seed and with the shortest script that still shows it. What differs by design is listed, with reasons, in
//! `quipu_wire::differences`; what cannot be the same bytes is compared by a rule of [`compare`].
//!
//! ```text
//!   QUIPU_REDIS_SCRIPTS=100000 QUIPU_REDIS_SEED=7 cargo test -p quipu-server --test resp_like_redis -- --nocapture
//! ```
#![allow(clippy::unwrap_used)] // a panic here is a failed test

mod compare;
mod differences;
mod grammar;
mod lines;
#[path = "../resp_support/mod.rs"]
mod resp_support;
mod scenes;
mod script;
mod server_stories;
mod servers;
mod shrink;
mod stories;
#[path = "../support/mod.rs"]
mod support;
mod vocabulary;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use compare::{Apart, Comparison, Outcome};
use quipu_wire::differences::DIFFERENCES;
use resp_support::on_redis;
use script::{Act, Step, Word, show};
use server_stories::{KEYS, SERVER, TRANSACTIONS};
use servers::{Pace, Pair};
use stories::STORIES;

/// Scripts played unless the environment says otherwise.
const SCRIPTS: u64 = 20_000;
/// Pairs of servers that play at the same time.
const PAIRS: usize = 2;
/// The same where counters lie in Redis: there is one of it, and all counters are deleted before each script, one by one.
const ON_REDIS: (u64, usize) = (1_000, 1);
/// Differences after which a run ends: more of them tell nothing new.
const DIFFERENCES_MAX: usize = 40;

/// Alike for two scripts that show the same: the command and the beginnings of the replies.
fn kind(apart: &Apart) -> String {
    let word =
        |at: usize| apart.words.get(at).map(|word| word.escape_ascii().to_string()).unwrap_or_default();
    let name = word(0).to_ascii_lowercase();
    let has_subcommands =
        ["client", "command", "config", "object", "memory", "latency", "slowlog", "cluster"]
            .contains(&&*name);
    let subcommand = if has_subcommands { word(1).to_ascii_lowercase() } else { String::new() };
    let beginning = |reply: &[u8]| reply[..reply.len().min(24)].escape_ascii().to_string();
    format!("{name} {subcommand} {} {}", beginning(&apart.ours), beginning(&apart.theirs))
}

/// How a script ended.
enum End {
    Same,
    Documented(&'static str),
    Apart(Apart),
}

/// Where counters lie in Redis, the keys of a script lie in one group.
fn in_one_group(script: &[Step]) -> Vec<Step> {
    let moved = |step: &Step| {
        let act = match &step.act {
            Act::Ask(words) => Act::Ask(on_redis::in_one_group(words.clone())),
            Act::Type(words) => Act::Type(on_redis::in_one_group(words.clone())),
            other => other.clone(),
        };
        Step { act, ..*step }
    };
    script.iter().map(moved).collect()
}

fn play(pair: &Pair, pace: Pace, script: &[Step]) -> End {
    let (mut comparison, mut end) = (Comparison::default(), End::Same);
    pair.play(&in_one_group(script), pace, |step, ours, theirs| {
        end = match comparison.step(step, &ours, &theirs) {
            Outcome::Same => return true,
            Outcome::Documented(name) => End::Documented(name),
            Outcome::Different(apart) => End::Apart(apart),
        };
        false
    });
    end
}

/// A script that shows a difference, made short and told.
fn tell(pair: &Pair, pace: Pace, title: &str, script: Vec<Step>, apart: &Apart) -> String {
    let shows_it = |end: &End| matches!(end, End::Apart(other) if kind(other) == kind(apart));
    let shortest = shrink::shrink(script, |script| shows_it(&play(pair, pace, script)));
    let shown = |bytes: &[u8]| resp_support::show(bytes);
    format!(
        "{title}, {}\n{}    quipu {}\n    redis {}\n",
        script::words_shown(&apart.words),
        show(&shortest),
        shown(&apart.ours),
        shown(&apart.theirs)
    )
}

/// A line of words; see `resp_support::command`.
fn words(line: &str) -> Vec<Word> {
    line.split_whitespace()
        .map(|word| match word.strip_prefix('\'').and_then(|word| word.strip_suffix('\'')) {
            Some(quoted) => quoted.replace('_', " ").into_bytes(),
            None => word.as_bytes().to_vec(),
        })
        .collect()
}

fn script_of(lines: &[&str]) -> Vec<Step> {
    lines.iter().map(|line| Step { connection: 0, act: Act::Ask(words(line)) }).collect()
}

#[test]
fn stories_are_answered_as_by_redis() {
    let pair = Pair::start();
    let mut told = Vec::new();
    for pace in [Pace::OneByOne, Pace::Pipelined] {
        for story in [STORIES, SERVER, KEYS, TRANSACTIONS].concat() {
            for greeting in ["HELLO 2", "HELLO 3"] {
                let script = script_of(&[&[greeting], story].concat());
                match play(&pair, pace, &script) {
                    End::Same => {}
                    End::Documented(name) => told.push(format!("{story:?} shows {name}")),
                    End::Apart(apart) => told.push(tell(&pair, pace, greeting, script, &apart)),
                }
            }
        }
    }
    assert!(told.is_empty(), "{} differences:\n{}", told.len(), told.join("\n"));
}

#[test]
fn long_pipelines_are_answered_as_by_redis() {
    let pair = Pair::start();
    for seed in 0..8 {
        let mut script = script_of(&[if seed % 2 == 0 { "HELLO 2" } else { "HELLO 3" }]);
        script.extend(scenes::long_pipeline(seed, 5000, seed % 4 < 2));
        match play(&pair, Pace::Pipelined, &script) {
            End::Same => {}
            End::Documented(name) => panic!("seed {seed} was to avoid {name}"),
            End::Apart(apart) => {
                panic!("{}", tell(&pair, Pace::Pipelined, &format!("seed {seed}"), script, &apart))
            }
        }
    }
}

#[test]
fn documented_differences_are_as_described() {
    let pair = Pair::start();
    for difference in DIFFERENCES.iter().filter(|difference| !difference.example.is_empty()) {
        match play(&pair, Pace::OneByOne, &script_of(difference.example)) {
            End::Documented(name) => assert_eq!(name, difference.name, "{:?}", difference.example),
            End::Same => panic!("{:?} is answered as by Redis: {}", difference.example, difference.name),
            End::Apart(apart) => panic!("{} is told as {apart:?}", difference.name),
        }
    }
}

fn setting(name: &str, unless: u64) -> u64 {
    std::env::var(name)
        .map_or(unless, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number, not {text}")))
}

#[test]
fn generated_scripts_are_answered_as_by_redis() {
    let first = setting("QUIPU_REDIS_SEED", 0);
    let (scripts, pairs) = if on_redis::is_on_redis() { ON_REDIS } else { (SCRIPTS, PAIRS) };
    let last = first + setting("QUIPU_REDIS_SCRIPTS", scripts);
    let next = AtomicU64::new(first);
    let told = Mutex::new(BTreeMap::<String, String>::new());
    let documented = Mutex::new(BTreeMap::<&str, u64>::new());
    std::thread::scope(|scope| {
        for _ in 0..pairs {
            scope.spawn(|| {
                let pair = Pair::start();
                let stage = pair.stage();
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= last || told.lock().unwrap().len() >= DIFFERENCES_MAX {
                        return;
                    }
                    let script = scenes::script(seed, &stage);
                    match play(&pair, Pace::Pipelined, &script) {
                        End::Same => {}
                        End::Documented(name) => *documented.lock().unwrap().entry(name).or_default() += 1,
                        End::Apart(apart) => {
                            let kind = kind(&apart);
                            let is_known = told.lock().unwrap().contains_key(&kind);
                            if !is_known {
                                let title = format!("seed {seed}");
                                let text = tell(&pair, Pace::Pipelined, &title, script, &apart);
                                told.lock().unwrap().insert(kind, text);
                            }
                        }
                    }
                }
            });
        }
    });
    let (told, documented) = (told.into_inner().unwrap(), documented.into_inner().unwrap());
    println!("{} scripts; ended by documented differences: {documented:?}", last - first);
    let told: Vec<String> = told.into_values().collect();
    assert!(told.is_empty(), "{} differences:\n{}", told.len(), told.join("\n"));
    // A script that ends early compares little.
    assert!(documented.values().sum::<u64>() * 5 < last - first, "too many ended early: {documented:?}");
}

//! When two answers are the same. Mostly when their bytes are; the exceptions stand in [`Rule`].

use std::collections::BTreeMap;

use quipu_wire::resp::{ReplyDecoder, Value};

use super::differences::{self, Seen};
use super::resp_support::on_redis::is_on_redis;
use super::script::{Step, Word};
use super::servers::Answer;
use super::vocabulary::FAR_SECONDS;

/// How far apart the two servers may be when they are asked the same, in milliseconds. Lifetimes in scripts differ by
/// more.
const TOLERANCE_MS: i64 = 60_000;

/// How a refusal begins where counters lie in Redis, and what belongs together lies in several groups.
const CROSS_SLOT: &[u8] = b"-CROSSSLOT";

/// How the replies to a command are compared when they are not the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// Not at all: they are different.
    Exact,
    /// Times left: time passes between the two servers. In units of so many milliseconds.
    Left(i64),
    /// Points in time: those counted from now may be apart; those given as such are exact.
    Moment(i64),
    /// In any order.
    Unordered,
    /// A page of a walk: cursors are each server's own.
    Page,
    /// One of several: only whether there is one is compared.
    Drawn,
    /// The fields of HELLO but for those that name the server and the connection.
    Greeting,
    /// Descriptions of commands but for the last field: some have fewer subcommands here.
    Specifications,
    /// Facts about this server: only whether it is an error is compared.
    Own,
}

fn rule(words: &[Word]) -> Rule {
    let lower = |at: usize| words.get(at).map(|word| word.to_ascii_lowercase()).unwrap_or_default();
    match (lower(0).as_slice(), lower(1).as_slice()) {
        (b"ttl", _) => Rule::Left(1000),
        (b"pttl", _) => Rule::Left(1),
        (b"expiretime", _) => Rule::Moment(1000),
        (b"pexpiretime", _) => Rule::Moment(1),
        (b"keys", _) | (b"config", b"get") => Rule::Unordered,
        (b"scan", b"0" | b"00" | b"+0" | b"") => Rule::Page,
        (b"scan", _) => Rule::Own,
        (b"hello", _) => Rule::Greeting,
        (b"command", b"info" | b"list") if words.len() == 2 => Rule::Own,
        (b"command", b"info") => Rule::Specifications,
        (b"command", b"" | b"count" | b"docs") => Rule::Own,
        (b"client", b"id" | b"info" | b"list") => Rule::Own,
        (b"info", b"cluster" | b"modules" | b"nosuch") => Rule::Exact,
        (b"randomkey", _) => Rule::Drawn,
        (b"time" | b"info", _) => Rule::Own,
        (b"memory", b"usage" | b"stats" | b"doctor") => Rule::Own,
        (b"latency", b"latest" | b"doctor" | b"histogram") => Rule::Own,
        (b"slowlog", b"get" | b"len") => Rule::Own,
        (b"object", b"idletime" | b"freq") => Rule::Own,
        (b"cluster", b"myid" | b"nodes" | b"slots" | b"shards" | b"info") => Rule::Own,
        (_, b"help") => Rule::Own,
        _ => Rule::Exact,
    }
}

/// The outcome of comparing one step.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// They agree.
    Same,
    /// They differ as documented under this name. What follows cannot be compared.
    Documented(&'static str),
    /// They differ.
    Different(Apart),
}

/// Two replies that should be the same, and the command they answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Apart {
    /// Empty where commands are not told apart.
    pub words: Vec<Word>,
    /// Ours.
    pub ours: Vec<u8>,
    /// Redis's.
    pub theirs: Vec<u8>,
}

/// Follows a script: within a transaction the replies come later and together.
#[derive(Default)]
pub struct Comparison {
    queued: BTreeMap<usize, Vec<Vec<Word>>>,
}

impl Comparison {
    /// Compares the answers to a step; ours first.
    pub fn step(&mut self, step: &Step, ours: &Answer, theirs: &Answer) -> Outcome {
        let queued = self.queued.get(&step.connection).cloned().unwrap_or_default();
        let outcome = match (ours, theirs) {
            (Answer::Reply(ours), Answer::Reply(theirs)) => {
                let asked = Asked { words: step.words(), later: &[] };
                replies(asked, &queued, ours, theirs)
            }
            (Answer::Everything(ours), Answer::Everything(theirs)) => streams(&step.bytes(), ours, theirs),
            _ if ours == theirs => Outcome::Same,
            (ours, theirs) => {
                let asked = Asked { words: step.words(), later: &[] };
                documented(asked, &[], ours.to_string().as_bytes(), theirs.to_string().as_bytes())
            }
        };
        self.follow(step, ours);
        outcome
    }

    /// Keeps in mind what EXEC will answer.
    fn follow(&mut self, step: &Step, answer: &Answer) {
        let name = step.words().first().map(|word| word.to_ascii_lowercase()).unwrap_or_default();
        match (name.as_slice(), answer) {
            (_, Answer::Reply(reply)) if reply == b"+QUEUED\r\n" => {
                self.queued.entry(step.connection).or_default().push(step.words().to_vec());
            }
            (b"exec" | b"discard" | b"reset", Answer::Reply(_)) => drop(self.queued.remove(&step.connection)),
            _ => {}
        }
    }
}

/// What is answered.
#[derive(Clone, Copy, Default)]
struct Asked<'s> {
    words: &'s [Word],
    /// The commands behind it, as a part of what EXEC answers.
    later: &'s [Vec<Word>],
}

fn replies(asked: Asked<'_>, queued: &[Vec<Word>], ours: &[u8], theirs: &[u8]) -> Outcome {
    if ours == theirs {
        return Outcome::Same;
    }
    if !queued.is_empty()
        && let (Some(ours), Some(theirs)) = (elements(ours), elements(theirs))
        && ours.len() == queued.len()
        && theirs.len() == queued.len()
    {
        let pairs = queued.iter().enumerate().zip(ours.iter().zip(&theirs));
        let outcomes = pairs.map(|((at, words), (ours, theirs))| {
            replies(Asked { words, later: &queued[at + 1..] }, &[], ours, theirs)
        });
        return outcomes
            .fold(Outcome::Same, |before, next| if before == Outcome::Same { next } else { before });
    }
    let is_same = match (decode(ours), decode(theirs)) {
        (Some(ours), Some(theirs)) => same(rule(asked.words), &ours, &theirs),
        _ => false,
    };
    if is_same { Outcome::Same } else { documented(asked, &[], ours, theirs) }
}

/// Two streams agree as far as every reply does.
fn streams(poured: &[u8], ours: &[u8], theirs: &[u8]) -> Outcome {
    let (mut our_rest, mut their_rest) = (ours, theirs);
    while our_rest != their_rest {
        let (Some(our), Some(their)) = (first(our_rest), first(their_rest)) else {
            return documented(Asked::default(), poured, our_rest, their_rest);
        };
        if our != their {
            return documented(Asked::default(), poured, our, their);
        }
        (our_rest, their_rest) = (&our_rest[our.len()..], &their_rest[their.len()..]);
    }
    Outcome::Same
}

fn documented(asked: Asked<'_>, poured: &[u8], ours: &[u8], theirs: &[u8]) -> Outcome {
    let Asked { words, later } = asked;
    if is_on_redis() && ours.windows(CROSS_SLOT.len()).any(|some| some == CROSS_SLOT) {
        return Outcome::Documented("what belongs together lies in one group");
    }
    match differences::explain(&Seen { words, later, poured, ours, theirs }) {
        Some(name) => Outcome::Documented(name),
        None => {
            Outcome::Different(Apart { words: words.to_vec(), ours: ours.to_vec(), theirs: theirs.to_vec() })
        }
    }
}

fn same(rule: Rule, ours: &Value, theirs: &Value) -> bool {
    if matches!(ours, Value::Error(_)) || matches!(theirs, Value::Error(_)) {
        return ours == theirs;
    }
    match rule {
        Rule::Exact => false,
        Rule::Left(unit_ms) => close(ours, theirs, unit_ms, 0..0),
        Rule::Moment(unit_ms) => close(ours, theirs, unit_ms, FAR_SECONDS),
        Rule::Unordered => sorted(ours) == sorted(theirs),
        Rule::Page => match (ours.as_elements(), theirs.as_elements()) {
            (Some([ours, our_keys]), Some([theirs, their_keys])) if ours == theirs => {
                sorted(our_keys) == sorted(their_keys)
            }
            (Some([_, Value::Array(_)]), Some([_, Value::Array(_)])) => true,
            _ => false,
        },
        Rule::Drawn => ours.as_bytes().is_some() == theirs.as_bytes().is_some(),
        Rule::Greeting => greeting(ours) == greeting(theirs),
        Rule::Specifications => match (ours.as_elements(), theirs.as_elements()) {
            (Some(ours), Some(theirs)) => {
                let known =
                    |spec: &Value| spec.as_elements().map(|fields| fields[..fields.len().min(9)].to_vec());
                ours.iter().map(known).eq(theirs.iter().map(known))
            }
            _ => false,
        },
        Rule::Own => true,
    }
}

/// Numbers of one unit that are apart by no more than the time between the servers, unless they lie in `exact` seconds.
fn close(ours: &Value, theirs: &Value, unit_ms: i64, exact: std::ops::Range<i64>) -> bool {
    match (ours, theirs) {
        (Value::Integer(ours), Value::Integer(theirs)) if *ours > 0 && *theirs > 0 => {
            let is_exact = exact.contains(&(ours / (1000 / unit_ms)));
            !is_exact && (ours - theirs).abs() <= TOLERANCE_MS / unit_ms
        }
        _ => false,
    }
}

fn sorted(value: &Value) -> Option<Vec<String>> {
    let mut shown: Vec<String> = match value {
        // A map's order is nobody's promise either; in the older protocol it is a list of pairs.
        Value::Map(pairs) => pairs.iter().map(|pair| format!("{pair:?}")).collect(),
        value => value.as_elements()?.iter().map(|element| format!("{element:?}")).collect(),
    };
    shown.sort();
    Some(shown)
}

/// The fields of HELLO that two servers share.
fn greeting(value: &Value) -> Option<Vec<(Value, Value)>> {
    let pairs: Vec<(Value, Value)> = match value {
        Value::Map(pairs) => pairs.clone(),
        value => {
            value.as_elements()?.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
        }
    };
    let is_shared = |name: &Value| !matches!(name.as_bytes(), Some(b"server" | b"version" | b"id"));
    Some(pairs.into_iter().filter(|(name, _)| is_shared(name)).collect())
}

/// The reply as a value, if it is one.
pub fn decode(reply: &[u8]) -> Option<Value> {
    ReplyDecoder::new().decode(reply).ok().flatten().map(|(value, _)| value)
}

/// The bytes of the first reply.
fn first(bytes: &[u8]) -> Option<&[u8]> {
    quipu_wire::resp::skip_reply(bytes).ok().flatten().map(|length| &bytes[..length])
}

/// The bytes of each element of an array.
fn elements(reply: &[u8]) -> Option<Vec<&[u8]>> {
    let header = reply.iter().position(|byte| *byte == b'\n')? + 1;
    if reply.first() != Some(&b'*') {
        return None;
    }
    let (mut rest, mut elements) = (&reply[header..], Vec::new());
    while !rest.is_empty() {
        let element = first(rest)?;
        rest = &rest[element.len()..];
        elements.push(element);
    }
    Some(elements)
}

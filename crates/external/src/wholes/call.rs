//! What the function is asked to carry out, and what it answers: see the head of `wholes.lua`.

use std::collections::HashMap;

use quipu_counting::{Cell, Refusal, Remembered, Whole};
use redis::{Cmd, Value};

use super::draft::Drafted;
use super::known::{Known, Needs};
use super::producer::{self, Producer};
use crate::call::{Terms, expiry_text, stored_whole, to_store};
use crate::groups;

/// What a piece is asked with.
pub(crate) struct Asked<'a> {
    pub(crate) needs: &'a Needs,
    pub(crate) known: &'a Known,
    pub(crate) drafted: &'a Drafted,
}

/// What became of all pieces of a call.
pub(crate) enum Answered {
    /// The last of the births that were wanted; what became of each piece.
    Pieces(Option<u64>, Vec<Outcome>),
    /// Nothing was done: this epoch is there instead, or none.
    Lost(String),
}

/// What became of a piece.
pub(crate) enum Outcome {
    Done,
    /// Nothing was done, because this is so.
    Otherwise(Known),
}

/// Where nothing should be, or is.
const NOTHING: &[u8] = b"-";

pub(crate) fn command(terms: &Terms<'_>, function: String, births: u64, pieces: &[Asked<'_>]) -> Cmd {
    let places = Places::of(pieces);
    let mut command = Cmd::new();
    command.arg("FCALL").arg(function).arg(FIRST + places.cells.len() + places.ids.len() - 1);
    command.arg(groups::marker(terms.group)).arg(groups::stream(terms.group));
    command.arg(groups::producers(terms.group));
    places.in_order(&places.cells).for_each(|key| _ = command.arg(groups::cell(terms.group, key)));
    places.in_order(&places.ids).for_each(|name| _ = command.arg(name));
    command.arg(terms.epoch).arg(births).arg(terms.id_window_ms);
    for piece in pieces {
        put_looks(&mut command, &places, piece);
        put_writes(&mut command, &places, piece.drafted);
        command.arg(piece.drafted.events.len() * 2);
        for (key, told) in &piece.drafted.events {
            command.arg(&key[..]).arg(&told[..]);
        }
    }
    command
}

/// The function counts keys from 1, and the first three are marker, stream and producers.
const FIRST: usize = 4;

/// Where each key of the call stands.
struct Places<'a> {
    cells: HashMap<&'a [u8], usize>,
    ids: HashMap<&'a [u8], usize>,
}

impl<'a> Places<'a> {
    fn of(pieces: &[Asked<'a>]) -> Places<'a> {
        let (mut cells, mut ids) = (HashMap::new(), HashMap::new());
        for key in pieces.iter().flat_map(|piece| &piece.needs.keys) {
            let next = FIRST + cells.len();
            cells.entry(&key[..]).or_insert(next);
        }
        for name in pieces.iter().flat_map(|piece| &piece.needs.ids) {
            let next = FIRST + cells.len() + ids.len();
            ids.entry(&name[..]).or_insert(next);
        }
        Places { cells, ids }
    }

    fn in_order(&self, names: &HashMap<&'a [u8], usize>) -> impl Iterator<Item = &'a [u8]> {
        let mut names: Vec<(usize, &'a [u8])> = names.iter().map(|(name, place)| (*place, *name)).collect();
        names.sort_unstable();
        names.into_iter().map(|(_, name)| name)
    }

    fn cell(&self, key: &[u8]) -> usize {
        self.cells.get(key).copied().unwrap_or(0)
    }

    fn id(&self, name: &[u8]) -> usize {
        self.ids.get(name).copied().unwrap_or(0)
    }
}

fn put_looks(command: &mut Cmd, places: &Places<'_>, piece: &Asked<'_>) {
    let Needs { keys, ids, producers } = piece.needs;
    command.arg(keys.len() + ids.len() + producers.len());
    for key in keys {
        command.arg("c").arg(places.cell(key));
        match piece.known.counters.get(key).and_then(|whole| whole.cell) {
            Some(Cell { version, birth, .. }) => command.arg(format!("{version} {birth}")),
            None => command.arg(NOTHING),
        };
    }
    for name in ids {
        command.arg("i").arg(places.id(name));
        command.arg(piece.known.ids.get(name).map_or(NOTHING, |text| text.as_bytes()));
    }
    for producer in producers {
        let text = piece.known.producers.get(producer).and_then(Producer::text);
        command.arg("p").arg(&producer[..]).arg(text.as_ref().map_or(NOTHING, |text| text.as_bytes()));
    }
}

fn put_writes(command: &mut Cmd, places: &Places<'_>, drafted: &Drafted) {
    let Drafted { counters, ids, producers, .. } = drafted;
    command.arg(counters.len() + ids.len() + producers.len());
    for (key, whole) in counters {
        match &whole.cell {
            Some(cell) => {
                command.arg("c").arg(places.cell(key)).arg(to_store(cell, whole.body.as_deref()));
                command.arg(expiry_text(cell.expires_at_ms));
            }
            None => _ = command.arg("d").arg(places.cell(key)),
        }
    }
    for (name, remembered) in ids {
        command.arg("i").arg(places.id(name)).arg(id_text(remembered));
    }
    for (producer, session) in producers {
        command.arg("p").arg(&producer[..]).arg(producer::text(session));
    }
}

/// As the function in `library.lua` writes it too.
fn id_text(remembered: &Remembered) -> String {
    let Remembered { fingerprint, at_ms, outcome, .. } = remembered;
    let refusal = outcome.refusal.map_or(0, Refusal::number);
    let (existed, exists) = (u8::from(outcome.existed), u8::from(outcome.exists));
    let (value, previous) = (outcome.value, outcome.previous);
    let (version, birth) = (outcome.version, outcome.birth);
    format!("{fingerprint} {at_ms} {refusal} {existed} {exists} {value} {previous} {version} {birth}")
}

/// What Redis's answer says about these pieces; nothing if it is not one of the function's.
pub(crate) fn answered(answer: &Value, pieces: &[(&Needs, &Known)]) -> Option<Answered> {
    let Value::Array(lines) = answer else { return None };
    let (first, rest) = lines.split_first()?;
    match bytes(first)? {
        b"ok" => {}
        b"lost" => {
            return Some(Answered::Lost(String::from_utf8_lossy(bytes(rest.first()?)?).into_owned()));
        }
        _ => return None,
    }
    let (births, rest) = rest.split_first()?;
    let births = std::str::from_utf8(bytes(births)?).ok()?;
    let births = if births.is_empty() { None } else { Some(births.parse().ok()?) };
    if rest.len() != pieces.len() {
        return None;
    }
    let outcome = |(line, (needs, known)): (&Value, &(&Needs, &Known))| match line {
        Value::Int(1) => Some(Outcome::Done),
        Value::Array(found) => Some(Outcome::Otherwise(known_now(found, needs, known)?)),
        _ => None,
    };
    let outcomes: Option<Vec<Outcome>> = rest.iter().zip(pieces).map(outcome).collect();
    Some(Answered::Pieces(births, outcomes?))
}

/// What was found where something was thought to be.
fn known_now(found: &[Value], needs: &Needs, thought: &Known) -> Option<Known> {
    let mut found = found.iter().map(|value| bytes(value).and_then(Found::of));
    let mut known = Known::default();
    for key in &needs.keys {
        let whole = match found.next()?? {
            Found::AsThought => thought.counters.get(key).cloned().unwrap_or_default(),
            Found::Nothing => Whole::default(),
            Found::Text(text) => stored_whole(text)?,
        };
        known.counters.insert(key.clone(), whole);
    }
    for name in &needs.ids {
        let text = match found.next()?? {
            Found::AsThought => thought.ids.get(name).cloned(),
            Found::Nothing => None,
            Found::Text(text) => Some(std::str::from_utf8(text).ok()?.to_owned()),
        };
        known.ids.extend(text.map(|text| (name.clone(), text)));
    }
    for name in &needs.producers {
        let producer = match found.next()?? {
            Found::AsThought => thought.producers.get(name).copied(),
            Found::Nothing => None,
            Found::Text(text) => Some(Producer::read(std::str::from_utf8(text).ok()?)?),
        };
        known.producers.extend(producer.map(|producer| (name.clone(), producer)));
    }
    found.next().is_none().then_some(known)
}

enum Found<'a> {
    AsThought,
    Nothing,
    Text(&'a [u8]),
}

impl Found<'_> {
    fn of(found: &[u8]) -> Option<Found<'_>> {
        match found.split_first()? {
            (b'=', []) => Some(Found::AsThought),
            (b'-', []) => Some(Found::Nothing),
            (b'+', text) => Some(Found::Text(text)),
            _ => None,
        }
    }
}

fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.as_bytes()),
        _ => None,
    }
}

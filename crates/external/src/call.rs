//! What the function in Redis is asked for some units of a group, and what it answers: see the head of `library.lua`.

use std::collections::HashMap;
use std::io::Write as _;
use std::sync::Arc;

use quipu_counting::identity::{group_fingerprint, request_fingerprint};
use quipu_counting::{
    Action, Batch, Body, Cell, Condition, ExpireWhen, Expiry, Group, GroupKind, Limits, NEVER, Outcome,
    Policies, Refusal, Remembered, Reply, Set, Whole,
};
use redis::{Cmd, Value};

use crate::groups;
use crate::runs::{Run, addition, arrange};
use crate::units::{Claim, Unit, guarded_until};

/// The function and its library. A library that does other things has another name.
pub(crate) const FUNCTION: &str = "quipu_5";
/// Its source, with that of what carries out decisions of nodes.
pub(crate) const LIBRARY: &str = concat!(include_str!("library.lua"), include_str!("wholes.lua"));

/// What holds for all requests of a call.
pub(crate) struct Terms<'a> {
    pub(crate) group: u16,
    pub(crate) epoch: &'a str,
    pub(crate) time_ms: u64,
    pub(crate) id_window_ms: u64,
    pub(crate) policies: &'a Policies,
}

/// What Redis answered.
pub(crate) enum Answered {
    /// The replies of each unit; none for one that was not done, because a counter of it has a body.
    Replies(Vec<Option<Vec<Reply>>>),
    /// Nothing was done: this epoch is there instead, or none.
    Lost(String),
}

/// The command for some units of one group, which are brought into the order in which they are answered.
pub(crate) fn command(terms: &Terms<'_>, units: &mut Vec<Unit>) -> Cmd {
    let runs = arrange(units, terms.policies);
    let in_full = &units[..runs.first().map_or(units.len(), |run| run.units.start)];
    let mut asking = Asking { terms, cells: HashMap::new(), ids: HashMap::new(), keys: Keys::default() };
    for unit in in_full {
        unit.range().for_each(|index| match unit.claim {
            Some(_) => asking.note_id(unit.batch(), index),
            None => asking.note_keys(unit.batch(), index),
        });
    }
    let cells_in_full = asking.keys.cells.len();
    for unit in &units[in_full.len()..] {
        unit.range().for_each(|index| asking.note_keys(unit.batch(), index));
    }
    let mut arguments = asking.head(cells_in_full);
    for of_batch in in_full.chunk_by(Unit::is_of_same_batch) {
        if of_batch.len() > 1 {
            arguments.put('b');
            arguments.put(of_batch.len());
        }
        for unit in of_batch {
            match unit.claim {
                Some(claim) => asking.put_claims(&mut arguments, unit, claim),
                None => asking.put_range(&mut arguments, unit.batch(), unit.range(), unit.groups()),
            }
        }
    }
    runs.iter().for_each(|run| asking.put_run(&mut arguments, run, &units[run.units.clone()]));
    let Keys { cells, ids } = asking.keys;
    let names = cells.iter().map(|(name, _)| name).chain(&ids);
    let bytes = names.clone().map(|name| name.len() + 8).sum::<usize>() + arguments.bytes.len() * 2;
    let mut command = Cmd::with_capacity(cells.len() + ids.len() + arguments.ends.len() + 5, bytes + 64);
    command.arg("FCALL").arg(function("", &units[..])).arg(2 + cells.len() + ids.len());
    command.arg(groups::marker(terms.group)).arg(groups::stream(terms.group));
    names.for_each(|name| _ = command.arg(&name[..]));
    arguments.iter().for_each(|argument| _ = command.arg(argument));
    command
}

/// The function that is asked for these: one that a Redis without memory lets through, where it takes none.
pub(crate) fn function<'a>(kind: &str, units: impl IntoIterator<Item = &'a Unit>) -> String {
    let spare = if units.into_iter().all(Unit::is_spare) { "_spare" } else { "" };
    format!("{FUNCTION}{kind}{spare}")
}

#[derive(Default)]
struct Keys {
    cells: Vec<(Vec<u8>, Limits)>,
    ids: Vec<Vec<u8>>,
}

struct Asking<'a> {
    terms: &'a Terms<'a>,
    /// Where each key of the call stands among the cells, and each id among the ids.
    cells: HashMap<&'a [u8], usize>,
    ids: HashMap<Vec<u8>, usize>,
    keys: Keys,
}

/// What is said behind the keys of a call, one behind the other.
#[derive(Default)]
struct Arguments {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Arguments {
    fn put(&mut self, argument: impl std::fmt::Display) {
        // Memory does not fail.
        let _ = write!(self.bytes, "{argument}");
        self.ends.push(self.bytes.len());
    }

    fn append(&mut self, other: &Arguments) {
        let begin = self.bytes.len();
        self.bytes.extend_from_slice(&other.bytes);
        self.ends.extend(other.ends.iter().map(|end| begin + end));
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        begins.zip(&self.ends).map(|(begin, end)| &self.bytes[begin..*end])
    }
}

impl<'a> Asking<'a> {
    fn note_keys(&mut self, batch: &'a Batch, index: usize) {
        let key = batch.key(index);
        if !self.cells.contains_key(key) {
            self.cells.insert(key, self.keys.cells.len());
            let limits = self.terms.policies.limits(key);
            self.keys.cells.push((groups::cell(self.terms.group, key), limits));
        }
        self.note_id(batch, index);
    }

    fn note_id(&mut self, batch: &Batch, index: usize) {
        if let Some(name) = self.id_name(batch, index)
            && !self.ids.contains_key(&name)
        {
            self.ids.insert(name.clone(), self.keys.ids.len());
            self.keys.ids.push(name);
        }
    }

    fn id_name(&self, batch: &Batch, index: usize) -> Option<Vec<u8>> {
        let id = batch.requests[index].id?;
        Some(groups::id(self.terms.group, batch.key(index), id.index, batch.bytes(id.span)))
    }

    /// What comes before the requests. So many of the cells are not only of runs.
    fn head(&self, cells_in_full: usize) -> Arguments {
        let terms = self.terms;
        let mut arguments = Arguments::default();
        arguments.put(terms.epoch);
        arguments.put(terms.time_ms);
        arguments.put(terms.id_window_ms);
        arguments.put(self.keys.cells.len());
        arguments.put(cells_in_full);
        let mut known: Vec<Limits> = Vec::new();
        let mut number = |limits: &Limits| {
            if *limits == Limits::NONE {
                return 0;
            }
            let place = known.iter().position(|other| other == limits).unwrap_or_else(|| {
                known.push(*limits);
                known.len() - 1
            });
            place + 1
        };
        let numbers: Vec<usize> = self.keys.cells.iter().map(|(_, limits)| number(limits)).collect();
        arguments.put(known.len());
        for limits in &known {
            arguments.put(limits.floor);
            arguments.put(limits.ceiling);
            arguments.put(u8::from(limits.saturate));
            match limits.ttl_ms {
                0 => arguments.put('n'),
                ttl_ms => arguments.put(self.deadline(ttl_ms)),
            }
            arguments.put(u8::from(limits.disabled));
        }
        if !known.is_empty() {
            numbers.into_iter().for_each(|number| arguments.put(number));
        }
        arguments
    }

    /// As counting reckons it.
    fn deadline(&self, ms: u64) -> u64 {
        self.terms.time_ms.saturating_add(ms).min(NEVER - 1)
    }

    fn put_range(
        &self,
        arguments: &mut Arguments,
        batch: &Batch,
        range: std::ops::Range<usize>,
        mut groups: &[Group],
    ) {
        let mut index = range.start;
        while index < range.end {
            let Some((group, others)) = groups.split_first().filter(|(group, _)| group.start == index) else {
                self.put_request(arguments, batch, index, request_print(batch, index));
                index += 1;
                continue;
            };
            groups = others;
            match group.kind {
                GroupKind::Guard { .. } => {
                    let guarded = group.end..guarded_until(batch, group);
                    arguments.put('w');
                    arguments.put(group.end - group.start);
                    arguments.put(guarded.len());
                    let inner = groups.iter().take_while(|group| group.start < guarded.end).count();
                    let mut behind = Arguments::default();
                    self.put_range(&mut behind, batch, guarded.clone(), &groups[..inner]);
                    groups = &groups[inner..];
                    arguments.put(behind.ends.len());
                    for check in group.start..group.end {
                        self.put_request(arguments, batch, check, request_print(batch, check));
                    }
                    arguments.append(&behind);
                    index = guarded.end;
                }
                // Those of a producer are decided by the node, and do not come here.
                GroupKind::Atomic | GroupKind::Session { .. } => {
                    arguments.put('g');
                    arguments.put(group.end - group.start);
                    for item in group.start..group.end {
                        self.put_request(arguments, batch, item, print_in(batch, group, item));
                    }
                    index = group.end;
                }
            }
        }
    }

    /// Additions to counters without limits.
    fn put_run(&self, arguments: &mut Arguments, run: &Run, units: &[Unit]) {
        arguments.put(if run.is_of_client { 'Q' } else { 'q' });
        arguments.put(units.len());
        let first = &units[0];
        // No two of a call have the same id, so those of a run follow each other.
        let first_id = self.id_name(first.batch(), first.range().start).and_then(|name| self.ids.get(&name));
        arguments.put(first_id.map_or(0, |place| place + 3 + self.keys.cells.len()));
        for unit in units {
            let (batch, index) = (unit.batch(), unit.range().start);
            arguments.put(self.cells.get(batch.key(index)).map_or(0, |place| place + 3));
            let delta = addition(&batch.requests[index].action).unwrap_or(0);
            arguments.put(delta);
            if run.has_ids {
                arguments.put(format_args!("{} +{delta} ", request_print(batch, index)));
            }
        }
    }

    /// What is claimed is the id: no counter has to be looked at.
    fn put_claims(&self, arguments: &mut Arguments, unit: &Unit, claim: Claim) {
        for index in unit.range() {
            let id = self.id_name(unit.batch(), index).and_then(|name| self.ids.get(&name));
            let (op, edition) = match claim {
                Claim::Take { edition } => ('k', edition),
                Claim::Open { edition } => ('o', edition),
            };
            arguments.put(op);
            arguments.put(0);
            arguments.put(id.map_or(0, |place| place + 3 + self.keys.cells.len()));
            arguments.put(request_print(unit.batch(), index));
            arguments.put(edition);
        }
    }

    fn put_request(&self, arguments: &mut Arguments, batch: &Batch, index: usize, print: u64) {
        // The function counts keys from 1, and the first two are marker and stream.
        let cell = self.cells.get(batch.key(index)).map_or(0, |place| place + 3);
        let id = self.id_name(batch, index).and_then(|name| self.ids.get(&name));
        // What is told beside an addition that comes this way is why it is made, which nobody here keeps.
        let action = match batch.requests[index].action {
            Action::Told { add, .. } => &Action::Add(add),
            _ => &batch.requests[index].action,
        };
        let is_plain = matches!(action, Action::Add(add) if *add == quipu_counting::Add::plain(add.delta));
        arguments.put(match action {
            Action::Check(_) => 'c',
            Action::Add(_) if is_plain => 'a',
            Action::Add(_) => 'A',
            Action::Set(_) | Action::Overwrite(_) => 's',
            Action::Reset(_) => 'z',
            Action::Delete(_) => 'd',
            Action::Expire(_) => 'e',
            // Others are for whole counters.
            _ => 'r',
        });
        arguments.put(cell);
        match id {
            Some(place) => {
                arguments.put(place + 3 + self.keys.cells.len());
                arguments.put(print);
            }
            None => arguments.put(0),
        }
        match action {
            Action::Check(condition) | Action::Reset(condition) | Action::Delete(condition) => {
                put_condition(arguments, *condition);
            }
            Action::Add(add) => {
                arguments.put(add.delta);
                if !is_plain {
                    arguments.put(add.min);
                    arguments.put(add.max);
                    arguments.put(u8::from(add.saturate));
                    self.put_expiry(arguments, add.expiry);
                    put_condition(arguments, add.condition);
                }
            }
            Action::Set(Set { value, expiry, condition })
            | Action::Overwrite(Set { value, expiry, condition }) => {
                arguments.put(value);
                self.put_expiry(arguments, *expiry);
                put_condition(arguments, *condition);
            }
            Action::Expire(expire) => {
                self.put_expiry(arguments, expire.expiry);
                let when = ExpireWhen::ALL.iter().position(|when| *when == expire.when);
                arguments.put(when.unwrap_or(0));
            }
            _ => {}
        }
    }

    fn put_expiry(&self, arguments: &mut Arguments, expiry: Expiry) {
        let (kind, time) = match expiry {
            Expiry::Keep => ('k', None),
            Expiry::Clear => ('c', None),
            Expiry::In(ms) => ('a', Some(self.deadline(ms))),
            Expiry::At(ms) => ('a', Some(ms.min(NEVER - 1))),
            Expiry::InIfNone(ms) => ('i', Some(self.deadline(ms))),
            Expiry::AtIfNone(ms) => ('i', Some(ms.min(NEVER - 1))),
        };
        arguments.put(kind);
        time.into_iter().for_each(|time| arguments.put(time));
    }
}

fn put_condition(arguments: &mut Arguments, condition: Condition) {
    match condition {
        Condition::Always => arguments.put('y'),
        Condition::Exists => arguments.put('x'),
        Condition::Absent => arguments.put('n'),
        Condition::Version(version) => {
            arguments.put('v');
            arguments.put(version);
        }
        Condition::Tag { birth, version } => {
            arguments.put('t');
            arguments.put(birth);
            arguments.put(version);
        }
    }
}

pub(crate) fn request_print(batch: &Batch, index: usize) -> u64 {
    batch.requests[index].id.map_or(0, |_| request_fingerprint(batch, index))
}

/// The first item of an all-or-none group speaks for the whole group.
pub(crate) fn print_in(batch: &Batch, group: &Group, index: usize) -> u64 {
    match batch.requests[index].id {
        Some(_) if index == group.start => group_fingerprint(batch, group),
        _ => request_print(batch, index),
    }
}

/// What is said about one request.
enum Line {
    Decided(Reply),
    /// Something was added in a run.
    Added(Cell),
    Known(Remembered),
    OfKnownGroup,
    Unguarded,
    ForWhole,
}

/// What Redis's answer says about these units; nothing if it is not one of the function's.
pub(crate) fn answered(answer: &Value, units: &[Unit]) -> Option<Answered> {
    let Value::Array(lines) = answer else { return None };
    let (first, lines) = lines.split_first()?;
    match text(first)? {
        "ok" => {}
        "lost" => return Some(Answered::Lost(text(lines.first()?)?.to_owned())),
        _ => return None,
    }
    let mut lines = lines.iter().map(|line| text(line).and_then(line_of));
    let mut replies = Vec::with_capacity(units.len());
    for unit in units {
        let of_unit: Option<Vec<Line>> = lines.by_ref().take(unit.range().len()).collect();
        let of_unit = of_unit?;
        let is_for_whole = of_unit.iter().any(|line| matches!(line, Line::ForWhole));
        replies.push(if is_for_whole { None } else { Some(unit_replies(unit, of_unit)?) });
    }
    lines.next().is_none().then_some(Answered::Replies(replies))
}

fn unit_replies(unit: &Unit, lines: Vec<Line>) -> Option<Vec<Reply>> {
    let (batch, range) = (unit.batch(), unit.range());
    if lines.len() != range.len() {
        return None;
    }
    let atomics = unit.groups().iter().filter(|group| matches!(group.kind, GroupKind::Atomic));
    // Of a group that was decided before, or that shares counters with one that was.
    let known_in = |group: &Group| {
        lines[group.start - range.start..group.end - range.start].iter().find_map(|line| match line {
            Line::Known(known) => Some(*known),
            _ => None,
        })
    };
    let first_known: HashMap<usize, (&Group, Remembered)> = atomics
        .filter_map(|group| Some((group, known_in(group)?)))
        .flat_map(|(group, known)| (group.start..group.end).map(move |index| (index, (group, known))))
        .collect();
    let is_same = |group: &Group| match &lines[group.start - range.start] {
        Line::Known(first) => first.fingerprint == print_in(batch, group, group.start),
        _ => false,
    };
    let reply = |(line, index): (&Line, usize)| match (line, first_known.get(&index)) {
        (Line::Known(known), Some((group, _))) if is_same(group) => {
            Some(known.answer(print_in(batch, group, index)))
        }
        (Line::Known(_) | Line::OfKnownGroup, Some((_, any))) => Some(any.answer(!any.fingerprint)),
        (Line::Known(known), None) => Some(known.answer(request_print(batch, index))),
        (Line::OfKnownGroup, None) | (Line::ForWhole, _) => None,
        (Line::Unguarded, _) => Some(Reply { refusal: Some(Refusal::GroupAborted), ..Reply::state(None) }),
        (Line::Decided(reply), _) => Some(reply.clone()),
        (Line::Added(cell), _) => {
            let outcome = added(cell, addition(&batch.requests[index].action)?);
            let Outcome { existed, exists, previous, .. } = outcome;
            let applied = cell.value.saturating_sub(previous);
            Some(Reply { existed, exists, previous, applied, cell: *cell, ..Reply::state(None) })
        }
    };
    lines.iter().zip(range.clone()).map(reply).collect()
}

fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}

/// What became of an addition without any limits that left a counter like this.
fn added(cell: &Cell, delta: i64) -> Outcome {
    Outcome {
        refusal: None,
        existed: cell.version != 1,
        exists: true,
        value: cell.value,
        previous: cell.value.saturating_sub(delta),
        version: cell.version,
        birth: cell.birth,
    }
}

fn line_of(line: &str) -> Option<Line> {
    let rest = line.get(1..)?;
    let mut fields = rest.split(' ');
    Some(match line.as_bytes().first()? {
        b'!' => {
            let refusal = refusal_of(fields.next()?)?;
            let (existed, exists) = (fields.next()? == "1", fields.next()? == "1");
            let previous = number(fields.next())?;
            let cell = cell_of(&mut fields)?;
            let applied = cell.value.saturating_sub(previous);
            Line::Decided(Reply { refusal, existed, exists, previous, applied, cell, ..Reply::state(None) })
        }
        b'=' => Line::Known(stored_id(rest)?),
        b'?' => Line::OfKnownGroup,
        b'-' if rest.is_empty() => Line::Unguarded,
        b'#' => Line::ForWhole,
        _ => Line::Added(stored_cell(line)?),
    })
}

fn number<N: std::str::FromStr>(field: Option<&str>) -> Option<N> {
    field?.parse().ok()
}

fn refusal_of(field: &str) -> Option<Option<Refusal>> {
    match field.parse().ok()? {
        0 => Some(None),
        number => Refusal::from_number(number).map(Some),
    }
}

fn cell_of<'a>(fields: &mut impl Iterator<Item = &'a str>) -> Option<Cell> {
    Some(Cell {
        value: number(fields.next())?,
        version: number(fields.next())?,
        updated_at_ms: number(fields.next())?,
        birth: number(fields.next())?,
        expires_at_ms: match fields.next()? {
            "n" => NEVER,
            time => time.parse().ok()?,
        },
    })
}

/// What is remembered under a request id, as it lies in Redis.
pub(crate) fn stored_id(text: &str) -> Option<Remembered> {
    let mut fields = text.split(' ');
    let (fingerprint, second) = (number(fields.next())?, fields.next()?);
    if let Some(delta) = second.strip_prefix('+') {
        let cell = cell_of(&mut fields)?;
        let outcome = added(&cell, delta.parse().ok()?);
        return Some(Remembered { identity: 0, fingerprint, at_ms: cell.updated_at_ms, outcome });
    }
    let at_ms = second.parse().ok()?;
    let outcome = Outcome {
        refusal: refusal_of(fields.next()?)?,
        existed: fields.next()? == "1",
        exists: fields.next()? == "1",
        value: number(fields.next())?,
        previous: number(fields.next())?,
        version: number(fields.next())?,
        birth: number(fields.next())?,
    };
    Some(Remembered { identity: 0, fingerprint, at_ms, outcome })
}

/// A cell without a body, as it lies in Redis.
pub(crate) fn stored_cell(text: &str) -> Option<Cell> {
    cell_of(&mut text.split(' '))
}

/// Where the numbers of a cell end: a body follows behind one more space.
pub(crate) const CELL_WORDS: usize = 5;

/// A cell and the bytes of its body, if it has one, as they lie in Redis. Of a body not all bytes need to be there.
pub(crate) fn stored_parts(stored: &[u8]) -> Option<(Cell, Option<&[u8]>)> {
    let mut spaces = stored.iter().enumerate().filter(|(_, byte)| **byte == b' ').map(|(place, _)| place);
    let (numbers, body) = match spaces.nth(CELL_WORDS - 1) {
        Some(end) => (&stored[..end], Some(&stored[end + 1..])),
        None => (stored, None),
    };
    Some((stored_cell(std::str::from_utf8(numbers).ok()?)?, body))
}

/// The same, put together.
pub(crate) fn stored_whole(stored: &[u8]) -> Option<Whole> {
    let (cell, body) = stored_parts(stored)?;
    let body = match body {
        Some(bytes) => Some(Arc::new(Body::read(bytes)?)),
        None => None,
    };
    Some(Whole { cell: Some(cell), body })
}

/// A cell and its body as they are stored.
pub(crate) fn to_store(cell: &Cell, body: Option<&Body>) -> Vec<u8> {
    let mut text = numbers(cell).into_bytes();
    if let Some(body) = body {
        text.push(b' ');
        body.put(&mut text);
    }
    text
}

/// When a counter expires, as it is written here.
pub(crate) fn expiry_text(expires_at_ms: u64) -> String {
    if expires_at_ms == NEVER { "n".to_owned() } else { expires_at_ms.to_string() }
}

/// The numbers of a cell as they are written here.
pub(crate) fn numbers(cell: &Cell) -> String {
    let Cell { value, version, updated_at_ms, birth, expires_at_ms } = *cell;
    format!("{value} {version} {updated_at_ms} {birth} {}", expiry_text(expires_at_ms))
}

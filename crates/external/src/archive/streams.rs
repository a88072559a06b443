//! The streams of changes as Redis has them: what lies in them after a place, and how much there ever was before it.

use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisResult, Value};

use super::change::Change;
use crate::groups::{self, GROUPS};
use crate::masters::{Links, Map, Said, said};

/// The library of functions that the archive needs in Redis.
const LIBRARY: &str = include_str!("library.lua");
/// What its functions' names begin with.
pub(super) const FUNCTIONS: &str = "quipu_archive_2_";

/// A place in a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) ms: i64,
    pub(super) sequence: i64,
}

impl Place {
    pub(super) fn of(id: &str) -> Option<Place> {
        let (ms, sequence) = id.split_once('-')?;
        Some(Place { ms: ms.parse().ok()?, sequence: sequence.parse().ok()? })
    }

    /// Everything after it, for XRANGE.
    pub(super) fn behind(self) -> String {
        format!("({self}")
    }

    /// The first place after it.
    pub(super) fn next(self) -> Place {
        Place { ms: self.ms, sequence: self.sequence.saturating_add(1) }
    }

    /// As one number, for people to compare: as much of the sequence as fits.
    pub(super) fn number(self) -> i64 {
        self.ms << 20 | self.sequence.min((1 << 20) - 1)
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "{}-{}", self.ms, self.sequence)
    }
}

/// A stream, seen from a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    /// How many entries there ever were up to the place: never another number for the same place, unless something is lost.
    pub(super) before: i64,
    /// The last entry that ever was.
    pub(super) last: Place,
    /// How many entries lie after the place.
    pub(super) left: u64,
}

/// What entries tell.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// The last of them.
    pub(super) to: Option<Place>,
    pub(super) entries: i64,
    pub(super) changes: Vec<Change>,
    /// Producers, and their sessions.
    pub(super) producers: Vec<(Vec<u8>, String)>,
    /// The entry that quipu has not written, if one stands in the way of the rest.
    pub(super) foreign: Option<String>,
    /// There may be more entries behind them.
    pub(super) may_be_more: bool,
    /// More were read than are told: these tell enough.
    pub(super) is_cut: bool,
}

/// With so many changes entries tell enough: more would take one transaction too long.
pub(super) const CHANGES_MAX: usize = 20_000;

/// While a slot moves, there is nothing to be had.
pub(super) fn is_on_the_way(error: &RedisError) -> bool {
    matches!(error.code(), Some("MOVED" | "ASK" | "TRYAGAIN"))
}

/// Brings the archive's functions to a master.
pub(super) async fn load(links: &Links, address: &str) -> RedisResult<()> {
    let load = redis::cmd("FUNCTION").arg("LOAD").arg("REPLACE").arg(LIBRARY).clone();
    links.ask(address, &load).await.map(|_| ())
}

fn knows_no_function(answer: &RedisResult<Value>) -> bool {
    let Err(error) = answer else { return false };
    let (code, text) = (error.code().unwrap_or_default(), error.to_string());
    let kind = match error.kind() {
        ErrorKind::Server(kind) => Some(kind),
        _ => None,
    };
    said(kind, code, &text) == Said::NoFunction
}

/// A call of such a function. A master that does not know it gets it.
pub(super) async fn call(links: &Links, address: &str, call: &Cmd) -> RedisResult<Value> {
    let answer = links.ask(address, call).await;
    if !knows_no_function(&answer) {
        return answer;
    }
    load(links, address).await?;
    links.ask(address, call).await
}

fn counting(group: u16, place: Place) -> Cmd {
    let mut count = redis::cmd("FCALL");
    count.arg(format!("{FUNCTIONS}count")).arg(1).arg(groups::stream(group)).arg(place.next().to_string());
    count
}

fn position(answer: Value) -> RedisResult<Position> {
    let (before, last, left): (i64, String, u64) = redis::from_redis_value(answer)?;
    let last = Place::of(&last).ok_or((ErrorKind::Parse, "no place in a stream"))?;
    Ok(Position { before, last, left })
}

/// The streams of all groups, seen from these places, up to which they are trimmed; nothing for those that cannot be had.
/// Everybody has to answer.
pub(super) async fn positions(
    links: &Links,
    map: &Map,
    places: &[Place],
) -> RedisResult<Vec<Option<Position>>> {
    match known_positions(links, map, places).await {
        (found, None) => Ok(found),
        (_, Some((_, error))) => Err(error),
    }
}

/// The same from those masters that answer; and which other does not, and why.
pub(super) async fn known_positions(
    links: &Links,
    map: &Map,
    places: &[Place],
) -> (Vec<Option<Position>>, Option<(String, RedisError)>) {
    let (mut found, mut failed) = (vec![None; usize::from(GROUPS)], None);
    for address in map.masters() {
        let here: Vec<u16> = map.groups_of(&address).collect();
        match positions_at(links, &address, &here, places).await {
            Ok(answers) => {
                let known = here.into_iter().zip(answers);
                known.for_each(|(group, position)| found[usize::from(group)] = position);
            }
            Err(error) => failed = Some((address, error)),
        }
    }
    (found, failed)
}

async fn positions_at(
    links: &Links,
    address: &str,
    here: &[u16],
    places: &[Place],
) -> RedisResult<Vec<Option<Position>>> {
    let mut pipeline = Pipeline::with_capacity(here.len());
    here.iter().for_each(|group| _ = pipeline.add_command(counting(*group, places[usize::from(*group)])));
    let mut answers = links.ask_all(address, &pipeline, here.len()).await?;
    let first = answers.first().cloned().map(Value::extract_error);
    if first.is_some_and(|first| knows_no_function(&first)) {
        load(links, address).await?;
        answers = links.ask_all(address, &pipeline, here.len()).await?;
    }
    Ok(answers.into_iter().map(|answer| answer.extract_error().and_then(position).ok()).collect())
}

/// One stream, seen from a place, up to which it is trimmed; nothing while it cannot be had.
pub(super) async fn position_of(
    links: &Links,
    address: &str,
    group: u16,
    place: Place,
) -> RedisResult<Option<Position>> {
    match call(links, address, &counting(group, place)).await {
        Err(error) if is_on_the_way(&error) => Ok(None),
        answer => position(answer?).map(Some),
    }
}

/// Has nobody count in a group until it is rebuilt. Says whether it was this that did it.
pub(super) async fn doubt(links: &Links, map: &Map, group: u16, epoch: &str) -> RedisResult<bool> {
    let address = map.of_group(group).ok_or_else(crate::external::nobody)?;
    let mut doubt = redis::cmd("FCALL");
    doubt.arg(format!("{FUNCTIONS}doubt")).arg(1).arg(groups::marker(group)).arg(epoch);
    Ok(matches!(call(links, address, &doubt).await?, Value::Int(1)))
}

/// The entries after a place, as many as are wanted; nothing while they cannot be had.
pub(super) async fn read(
    links: &Links,
    address: &str,
    group: u16,
    from: Place,
    count: usize,
) -> RedisResult<Option<Told>> {
    let mut range = redis::cmd("XRANGE");
    range.arg(groups::stream(group)).arg(from.behind()).arg("+").arg("COUNT").arg(count);
    let answer = match links.ask(address, &range).await {
        Err(error) if is_on_the_way(&error) => return Ok(None),
        answer => answer?,
    };
    Ok(Some(told_by(redis::from_redis_value(answer)?, count)))
}

/// An entry: its place, keys, and what is told of them.
type Entry = (String, Vec<(Vec<u8>, Value)>);

/// What entries tell, when so many were asked for.
fn told_by(entries: Vec<Entry>, count: usize) -> Told {
    let mut told = Told { may_be_more: entries.len() >= count, ..Told::default() };
    for (id, fields) in entries {
        let known = told.changes.len();
        if known >= CHANGES_MAX {
            (told.may_be_more, told.is_cut) = (true, true);
            break;
        }
        let producers = told.producers.len();
        let place = Place::of(&id).filter(|_| fields.into_iter().all(|(key, text)| told.take(key, text)));
        if place.is_none() {
            // All of an entry or nothing of it.
            told.changes.truncate(known);
            told.producers.truncate(producers);
            told.foreign = Some(id);
            break;
        }
        told.to = place;
        told.entries += 1;
    }
    told
}

impl Told {
    /// Takes a field of an entry. Says whether it is one of quipu's.
    fn take(&mut self, key: Vec<u8>, text: Value) -> bool {
        let Value::BulkString(text) = text else { return false };
        // No counter has an empty key.
        if key.is_empty() {
            let session = crate::wholes::told_session(&text);
            return session.map(|session| self.producers.push(session)).is_some();
        }
        Change::of(&key, &text).map(|change| self.changes.push(change)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_follow_each_other() {
        let place = Place::of("1000-7").expect("a place");
        assert_eq!((place.to_string(), place.next().to_string()), ("1000-7".into(), "1000-8".into()));
        assert!(place < place.next() && place.next() < Place { ms: 1001, sequence: 0 });
        assert_eq!((Place::of("1000"), Place::of("x-1")), (None, None));
    }

    #[test]
    fn what_tells_enough_is_cut_between_two_entries() {
        let entry = |number: usize, changes: usize| {
            let told = (b"likes".to_vec(), Value::BulkString(b"a 5 7 3 1000 9 n".to_vec()));
            (format!("{number}-0"), vec![told; changes])
        };
        let told = told_by((0..50).map(|number| entry(number, 1_000)).collect(), 500);
        assert_eq!((told.changes.len(), told.entries, told.may_be_more), (20_000, 20, true));
        assert!(told.is_cut);
        assert_eq!(told.to, Place::of("19-0"));
        // However much the first one tells, it is taken.
        let told = told_by(vec![entry(1, 30_000), entry(2, 1)], 500);
        assert_eq!((told.changes.len(), told.to, told.may_be_more), (30_000, Place::of("1-0"), true));
        let told = told_by(vec![entry(1, 30_000)], 500);
        assert!(!told.may_be_more && !told.is_cut);
        let told = told_by(vec![entry(1, 1)], 1);
        assert!(told.may_be_more && !told.is_cut);
    }

    #[test]
    fn what_is_no_change_and_no_session_is_foreign() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let mut told = Told::default();
        assert!(told.take(b"likes".to_vec(), text("a 5 7 3 1000 9 n")));
        assert!(told.take(Vec::new(), text("1 2 0 importer")));
        assert!(!told.take(b"likes".to_vec(), text("7")) && !told.take(Vec::new(), text("1 2 importer")));
        assert!(!told.take(b"likes".to_vec(), Value::Int(7)));
        assert_eq!(told.producers, [(b"importer".to_vec(), "1 2 0".to_owned())]);
        assert_eq!(told.changes.len(), 1);
    }
}

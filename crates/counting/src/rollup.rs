//! Roll-ups: a counter's value, cut by what its additions belong to.
//!
//! A policy declares them as lists of names of dimensions ([`Declared`]). A counter keeps a sum for every combination of values that it
//! met ([`Rollups`]), one list of such cells for each roll-up, and every addition counts once in each of them: so the cells of a roll-up always
//! add up to the counter's value. What says nothing of a dimension has the empty value there. What was counted before a roll-up was declared
//! is in the cell of empty values, which a reader of a counter that has no cells yet takes for granted: so no counter need be changed when
//! a policy is. [`Slice`] is what a reader asks for.
//!
//! Cells by time would grow without end. Where a policy says how long they are kept ([`CellsKept`]), older ones are folded: what they counted goes to
//! the cell that has the empty value for that time, and the same values else, so the parts still add up to the whole. That is done
//! by the first addition in a minute, hour or day, whichever is the shortest that is kept for some time; nobody walks over counters for it.
//!
//! ```text
//! declared := names:v name*  rollups:v (names:v place:1*)*
//! rollups  := declared folded_at_ms:v (cells:v (values sum:z)*)*     for each roll-up; cells in the order of the bytes of their values
//! values   := value*                                     for each name of the roll-up
//! name, value := length:v bytes
//! ```

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::action::Action;
use crate::batch::Batch;
use crate::body::Body;
use crate::bytes::{Bytes, put_bytes, put_varint, put_zigzag};
use crate::refusal::Refusal;
use crate::told::{DIMENSION_NAME_BYTES_MAX, DIMENSION_VALUE_BYTES_MAX, DIMENSIONS_MAX};
use crate::window::Zone;

/// The most roll-ups of one policy: so many cells change with each addition.
pub const ROLLUPS_MAX: usize = 16;
/// The most names of one roll-up.
pub const ROLLUP_NAMES_MAX: usize = 4;
/// The most different names in all roll-ups of one policy: what the log says of an addition has a place for each.
pub const NAMES_MAX: usize = 16;
/// The most cells of one counter, of all its roll-ups.
pub const CELLS_MAX: usize = 65_536;
/// The most bytes that the values of all its cells take: a checkpoint writes them with the counter, in one row.
pub const CELL_BYTES_MAX: usize = 8 << 20;
/// The most groups of one answer.
pub const GROUPS_MAX: usize = 1_000;
/// Names that have their value from the time of an addition, where it does not say it.
pub const TIMES: [&str; 6] = ["minute", "hour", "day", "week", "month", "year"];
/// The shortest time for which one of them is the same, in the same order; longer ones are looked after once a day.
const STEPS_MS: [u64; 6] = [60_000, 3_600_000, DAY_MS, DAY_MS, DAY_MS, DAY_MS];
const DAY_MS: u64 = 86_400_000;
/// The longest value that time gives, `2026-02-23T10:05`, as long as years have four digits; with room for those that have more.
const TIME_BYTES_MAX: usize = 32;
/// Cells that are copied at once when one of them changes while somebody looks at them.
const CHUNK_CELLS: usize = 256;
/// What a cell takes in memory beside its values, roughly.
const CELL_BYTES: usize = 48;

/// How long cells by time are kept, for each of [`TIMES`]; 0 is for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CellsKept([u64; TIMES.len()]);

impl CellsKept {
    /// From names and milliseconds, or what is wrong with them.
    pub fn new<'n>(kept: impl IntoIterator<Item = (&'n str, u64)>) -> Result<CellsKept, String> {
        let mut all = CellsKept::default();
        for (name, ms) in kept {
            let place = TIMES.iter().position(|time| *time == name).ok_or_else(|| {
                format!("{name:?} does not come from the time of an addition; {} do", TIMES.join(", "))
            })?;
            if ms < STEPS_MS[place] {
                return Err(format!("a cell by {name} is kept for at least {} ms", STEPS_MS[place]));
            }
            all.0[place] = ms;
        }
        Ok(all)
    }

    /// The milliseconds of each, 0 for ever, as they are stored.
    pub fn to_ms(&self) -> [u64; TIMES.len()] {
        self.0
    }

    /// From what is stored.
    pub fn from_ms(kept: [u64; TIMES.len()]) -> CellsKept {
        CellsKept(kept)
    }

    /// Whether everything is kept for ever.
    pub fn is_for_ever(&self) -> bool {
        *self == CellsKept::default()
    }

    /// How long those of a name are kept, where that is not for ever.
    pub fn of(&self, name: &str) -> Option<u64> {
        let place = TIMES.iter().position(|time| *time == name)?;
        Some(self.0[place]).filter(|ms| *ms > 0)
    }

    /// Names and milliseconds of those that are not kept for ever.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        TIMES.into_iter().zip(self.0).filter(|(_, ms)| *ms > 0)
    }

    /// How often there is something to fold.
    fn step_ms(&self) -> Option<u64> {
        STEPS_MS.into_iter().zip(self.0).filter(|(_, ms)| *ms > 0).map(|(step_ms, _)| step_ms).min()
    }
}

/// Roll-ups as a policy declares them. Names are in the order of the alphabet, and roll-ups with fewer of them come first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Declared(Arc<Layout>);

#[derive(Debug, PartialEq, Eq)]
struct Layout {
    /// Every name once, ascending.
    names: Vec<String>,
    /// For each roll-up the places of its names, ascending.
    rollups: Vec<Vec<u8>>,
}

impl Declared {
    /// From the names of each roll-up, or what is wrong with them. `None` where there is none.
    pub fn new(rollups: &[Vec<String>]) -> Result<Option<Declared>, String> {
        if rollups.len() > ROLLUPS_MAX {
            return Err(format!("at most {ROLLUPS_MAX} roll-ups, not {}", rollups.len()));
        }
        let mut names: Vec<String> = rollups.iter().flatten().cloned().collect();
        names.sort_unstable();
        names.dedup();
        if names.len() > NAMES_MAX {
            return Err(format!("at most {NAMES_MAX} different names, not {}", names.len()));
        }
        if let Some(problem) = names.iter().find_map(|name| name_problem(name)) {
            return Err(problem);
        }
        let mut all: Vec<Vec<u8>> = Vec::with_capacity(rollups.len());
        for rollup in rollups {
            if !(1..=ROLLUP_NAMES_MAX).contains(&rollup.len()) {
                return Err(format!("a roll-up has 1 to {ROLLUP_NAMES_MAX} names, not {}", rollup.len()));
            }
            let shown = rollup.join(",");
            let mut places: Vec<u8> =
                rollup.iter().map(|name| names.partition_point(|known| known < name) as u8).collect();
            places.sort_unstable();
            if places.is_sorted_by(|a, b| a < b) && !all.contains(&places) {
                all.push(places);
            } else {
                return Err(format!("a name or a roll-up comes twice: {shown}"));
            }
        }
        all.sort_unstable_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
        Ok((!all.is_empty()).then(|| Declared(Arc::new(Layout { names, rollups: all }))))
    }

    /// The names of each roll-up.
    pub fn rollups(&self) -> impl Iterator<Item = Vec<&str>> {
        self.0.rollups.iter().map(|places| self.names_at(places))
    }

    /// The most bytes that the log says of an addition because of them, beside what the addition itself brings along.
    pub fn event_bytes_max(&self) -> usize {
        let mut declared = Vec::new();
        self.put(&mut declared);
        let values = 10 + 2 * self.0.names.len() + TIMES.len() * TIME_BYTES_MAX;
        (1 + declared.len() + 10) + (1 + 10 + values) + (1 + 10 + values)
    }

    /// For every name the value from which on cells are kept; empty where that is not so.
    fn kept_from(&self, kept: &CellsKept, zone: impl Fn() -> Zone, now_ms: u64) -> Vec<u8> {
        let mut values = Vec::new();
        for name in &self.0.names {
            let from_ms = kept.of(name).map(|keep_ms| now_ms.saturating_sub(keep_ms));
            let value = from_ms.and_then(|from_ms| zone().name_of(name, from_ms));
            put_bytes(&mut values, value.unwrap_or_default().as_bytes());
        }
        values
    }

    fn names_at(&self, places: &[u8]) -> Vec<&str> {
        places.iter().map(|place| self.0.names[usize::from(*place)].as_str()).collect()
    }

    /// The values of an addition for all names: those it gives, those of time, else the empty one. Refused if it gives one that is not
    /// declared.
    pub fn values(
        &self,
        given: &[(&str, &str)],
        zone: impl Fn() -> Zone,
        at_ms: u64,
    ) -> Result<Vec<u8>, Refusal> {
        let names = &self.0.names;
        if !given.iter().all(|(name, _)| names.iter().any(|known| known == name)) {
            return Err(Refusal::UndeclaredDimension);
        }
        let mut values = Vec::new();
        for name in names {
            match given.iter().find(|(given, _)| given == name) {
                Some((_, value)) => put_bytes(&mut values, value.as_bytes()),
                None if TIMES.contains(&name.as_str()) => {
                    put_bytes(&mut values, zone().name_of(name, at_ms).unwrap_or_default().as_bytes());
                }
                None => put_bytes(&mut values, b""),
            }
        }
        Ok(values)
    }

    /// The smallest roll-up that has all names of a slice.
    fn for_slice(&self, slice: &Slice) -> Option<&[u8]> {
        let has_all = |places: &&Vec<u8>| {
            let names = self.names_at(places);
            slice.0.iter().all(|(name, _)| names.contains(&name.as_str()))
        };
        self.0.rollups.iter().find(has_all).map(Vec::as_slice)
    }

    /// Whether a slice can be read.
    pub fn tells(&self, slice: &Slice) -> bool {
        self.for_slice(slice).is_some()
    }

    /// Appends them.
    pub fn put(&self, out: &mut Vec<u8>) {
        put_varint(out, self.0.names.len() as u64);
        self.0.names.iter().for_each(|name| put_bytes(out, name.as_bytes()));
        put_varint(out, self.0.rollups.len() as u64);
        for places in &self.0.rollups {
            put_bytes(out, places);
        }
    }

    /// Reads what was appended.
    pub fn read(bytes: &mut Bytes<'_>) -> Option<Declared> {
        let mut names: Vec<String> = Vec::new();
        for _ in 0..bytes.varint()? {
            names.push(std::str::from_utf8(bytes.bytes()?).ok()?.to_owned());
        }
        let mut rollups = Vec::new();
        for _ in 0..bytes.varint()? {
            let places = bytes.bytes()?.iter();
            rollups.push(places.map(|place| names.get(usize::from(*place)).cloned()).collect::<Option<_>>()?);
        }
        Declared::new(&rollups).ok()?.filter(|declared| declared.0.names == names)
    }
}

impl fmt::Display for Declared {
    /// `[day], [day, tenant]`
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: Vec<String> = self.rollups().map(|names| format!("[{}]", names.join(", "))).collect();
        formatter.write_str(&shown.join(", "))
    }
}

/// What is wrong with the name of a dimension, if anything.
pub fn name_problem(name: &str) -> Option<String> {
    let is_sound = |letter: char| !letter.is_control() && !letter.is_whitespace() && !":,=*".contains(letter);
    if !(1..=DIMENSION_NAME_BYTES_MAX).contains(&name.len()) {
        return Some(format!(
            "the name of a dimension has 1 to {DIMENSION_NAME_BYTES_MAX} bytes, not {}",
            name.len()
        ));
    }
    (!name.chars().all(is_sound)).then(|| {
        format!("the name of a dimension has no blanks and none of : , = * in it, but {name:?} does")
    })
}

/// What is wrong with the dimensions of an addition, if anything. Whether they are declared is for a policy to say.
pub fn dimensions_problem<'a>(dimensions: impl Iterator<Item = (&'a str, &'a str)>) -> Option<String> {
    let mut count = 0;
    for (name, value) in dimensions {
        count += 1;
        if let Some(problem) = name_problem(name).or_else(|| value_problem(name, value)) {
            return Some(problem);
        }
    }
    (count > DIMENSIONS_MAX)
        .then(|| format!("an addition has at most {DIMENSIONS_MAX} dimensions, not {count}"))
}

fn value_problem(name: &str, value: &str) -> Option<String> {
    if value.len() > DIMENSION_VALUE_BYTES_MAX {
        let length = value.len();
        return Some(format!(
            "the value of {name} has at most {DIMENSION_VALUE_BYTES_MAX} bytes, not {length}"
        ));
    }
    (value == "*").then(|| format!("the value of {name} cannot be *: readers ask for every value with it"))
}

/// Some cells in the order of their names.
type Page = Vec<(Box<[u8]>, i64)>;

/// The cells of one roll-up, in chunks that are shared with whoever looks at them.
#[derive(Clone, Debug, Default)]
struct Cells(Vec<Arc<Page>>);

impl PartialEq for Cells {
    fn eq(&self, other: &Cells) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Cells {}

impl Cells {
    fn iter(&self) -> impl Iterator<Item = (&[u8], i64)> {
        self.0.iter().flat_map(|chunk| chunk.iter().map(|(values, sum)| (&values[..], *sum)))
    }

    /// The chunk in which values are or belong, and where in it.
    fn place(&self, values: &[u8]) -> (usize, Result<usize, usize>) {
        let behind =
            self.0.partition_point(|chunk| chunk.first().is_some_and(|(first, _)| **first <= *values));
        let chunk = behind.saturating_sub(1);
        let cells = self.0.get(chunk).map_or(&[][..], |cells| &cells[..]);
        (chunk, cells.binary_search_by(|(known, _)| (**known).cmp(values)))
    }

    fn get(&self, values: &[u8]) -> Option<i64> {
        let (chunk, place) = self.place(values);
        place.ok().map(|place| self.0[chunk][place].1)
    }

    /// A cell that comes to nothing goes. `None` if the sum does not fit.
    fn add(&mut self, values: &[u8], delta: i64) -> Option<Grown> {
        let (chunk, place) = self.place(values);
        let Some(shared) = self.0.get_mut(chunk) else {
            if delta != 0 {
                self.0.push(Arc::new(vec![(values.into(), delta)]));
            }
            return Some(if delta == 0 { Grown::Not } else { Grown::ByOne });
        };
        let cells = Arc::make_mut(shared);
        match place {
            Ok(place) => match cells[place].1.checked_add(delta)? {
                0 => {
                    cells.remove(place);
                    if cells.is_empty() {
                        self.0.remove(chunk);
                    }
                    Some(Grown::LessOne)
                }
                sum => {
                    cells[place].1 = sum;
                    Some(Grown::Not)
                }
            },
            Err(_) if delta == 0 => Some(Grown::Not),
            Err(place) => {
                cells.insert(place, (values.into(), delta));
                if cells.len() > CHUNK_CELLS {
                    let upper = cells.split_off(CHUNK_CELLS / 2);
                    self.0.insert(chunk + 1, Arc::new(upper));
                }
                Some(Grown::ByOne)
            }
        }
    }
}

impl Cells {
    /// What is older than these values, one for each name, goes to the cell with empty values in their place. A sum that would not fit
    /// stays where it is.
    fn fold(&mut self, kept_from: &[&[u8]]) -> Option<()> {
        let is_kept_whole = |from: &&[u8]| **from == [0];
        if kept_from.iter().all(is_kept_whole) {
            return Some(());
        }
        // Cells lie in the order of their first value: where that is the time, behind the first that is kept are no older ones.
        let is_by_time = kept_from[1..].iter().all(is_kept_whole);
        let texts_from =
            kept_from.iter().map(|from| texts(from)?.first().copied()).collect::<Option<Vec<&str>>>()?;
        let mut folded: Vec<(Vec<u8>, Vec<u8>, i64)> = Vec::new();
        for (values, sum) in self.iter() {
            if is_by_time && values >= kept_from[0] {
                break;
            }
            let mut after = Vec::with_capacity(values.len());
            for ((value, text), from) in pieces(values)?.into_iter().zip(texts(values)?).zip(&texts_from) {
                // Times sort as they come.
                let is_old = !text.is_empty() && text < *from;
                after.extend_from_slice(if is_old { &[0] } else { value });
            }
            if after != values {
                folded.push((values.to_vec(), after, sum));
            }
        }
        for (before, after, sum) in folded {
            let fits = self.get(&after).unwrap_or(0).checked_add(sum).is_some();
            if let (true, Some(back)) = (fits, sum.checked_neg()) {
                self.add(&after, sum)?;
                self.add(&before, back)?;
            }
        }
        Some(())
    }
}

enum Grown {
    Not,
    ByOne,
    LessOne,
}

/// The cells of one counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rollups {
    declared: Declared,
    /// Of each roll-up.
    cells: Vec<Cells>,
    /// When old cells were last looked for.
    folded_at_ms: u64,
    /// How many cells there are in all.
    count: usize,
    /// The bytes of their values.
    bytes: usize,
}

/// Whether these are values of no dimension at all: as many empty ones as there are names.
pub(crate) fn is_of_none(values: &[u8]) -> bool {
    values.iter().all(|byte| *byte == 0)
}

impl Rollups {
    /// Those that are declared now, with the cells there are; `value` is what was counted before, which is all that a new one knows.
    pub fn declare(before: Option<Rollups>, declared: Declared, value: i64) -> Rollups {
        let folded_at_ms = before.as_ref().map_or(0, |before| before.folded_at_ms);
        let mut rollups =
            Rollups { declared: declared.clone(), cells: Vec::new(), folded_at_ms, count: 0, bytes: 0 };
        for names in declared.rollups() {
            let cells = match before.as_ref().and_then(|before| before.cells_of(&names)) {
                Some(cells) => cells.clone(),
                None => {
                    let mut cells = Cells::default();
                    cells.add(&empty_values(names.len()), value);
                    cells
                }
            };
            rollups.cells.push(cells);
        }
        rollups.measure();
        rollups
    }

    /// What is declared.
    pub fn declared(&self) -> &Declared {
        &self.declared
    }

    fn measure(&mut self) {
        let all = || self.cells.iter().flat_map(Cells::iter);
        (self.count, self.bytes) = (all().count(), all().map(|(values, _)| values.len()).sum());
    }

    fn cells_of(&self, names: &[&str]) -> Option<&Cells> {
        let place = self.declared.rollups().position(|known| known == names)?;
        self.cells.get(place)
    }

    /// How many cells there are.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether the cells of every roll-up add up to the value of the counter.
    pub fn adds_up_to(&self, value: i64) -> bool {
        let sum = |cells: &Cells| cells.iter().map(|(_, sum)| i128::from(sum)).sum::<i128>();
        self.cells.iter().all(|cells| sum(cells) == i128::from(value))
    }

    /// The cells of each roll-up: its names, and values and sum of each cell.
    pub fn iter(&self) -> impl Iterator<Item = (Vec<&str>, Vec<(Vec<&str>, i64)>)> {
        self.declared.rollups().zip(&self.cells).map(|(names, cells)| {
            let cells = cells.iter().filter_map(|(values, sum)| Some((texts(values)?, sum)));
            (names, cells.collect())
        })
    }

    /// The values of a roll-up among those of all names.
    fn values_at(&self, values: &[u8], places: &[u8]) -> Option<Vec<u8>> {
        let all = pieces(values)?;
        let mut chosen = Vec::new();
        for place in places {
            chosen.extend_from_slice(all.get(usize::from(*place))?);
        }
        Some(chosen)
    }

    /// Why an addition with these values for all names cannot be counted, if that is so.
    pub fn check(&self, values: &[u8], delta: i64) -> Result<(), Refusal> {
        let (mut count, mut bytes) = (self.count, self.bytes);
        for (places, cells) in self.declared.0.rollups.iter().zip(&self.cells) {
            let Some(values) = self.values_at(values, places) else { continue };
            match cells.get(&values) {
                Some(sum) => _ = sum.checked_add(delta).ok_or(Refusal::Overflow)?,
                None => (count, bytes) = (count + 1, bytes + values.len()),
            }
        }
        let is_larger = count > self.count;
        if is_larger && (count > CELLS_MAX || bytes > CELL_BYTES_MAX) {
            Err(Refusal::TooManyCells)
        } else {
            Ok(())
        }
    }

    /// Counts an addition with these values for all names. `None` if it cannot be, see [`check`](Rollups::check).
    pub fn add(&mut self, values: &[u8], delta: i64) -> Option<()> {
        for place in 0..self.cells.len() {
            let values = self.values_at(values, self.declared.0.rollups.get(place)?)?;
            match self.cells[place].add(&values, delta)? {
                Grown::Not => {}
                Grown::ByOne => (self.count, self.bytes) = (self.count + 1, self.bytes + values.len()),
                Grown::LessOne => (self.count, self.bytes) = (self.count - 1, self.bytes - values.len()),
            }
        }
        Some(())
    }

    /// For every name the value from which on cells are kept, if it is time to fold older ones.
    pub fn due(&self, kept: &CellsKept, zone: impl Fn() -> Zone, now_ms: u64) -> Option<Vec<u8>> {
        let step_ms = kept.step_ms()?;
        (now_ms / step_ms != self.folded_at_ms / step_ms).then(|| self.declared.kept_from(kept, zone, now_ms))
    }

    /// Folds what is older than these values: one for each name, empty where everything is kept.
    pub fn fold(&mut self, kept_from: &[u8], now_ms: u64) -> Option<()> {
        let kept_from = pieces(kept_from)?;
        self.folded_at_ms = now_ms;
        for (places, cells) in self.declared.0.rollups.iter().zip(&mut self.cells) {
            let kept_from: Vec<&[u8]> = places
                .iter()
                .map(|place| kept_from.get(usize::from(*place)).copied())
                .collect::<Option<_>>()?;
            cells.fold(&kept_from)?;
        }
        self.measure();
        Some(())
    }

    /// What they cost, roughly.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Rollups>() + self.count * CELL_BYTES + self.bytes
    }

    /// Appends them.
    pub fn put(&self, out: &mut Vec<u8>) {
        self.declared.put(out);
        put_varint(out, self.folded_at_ms);
        for cells in &self.cells {
            put_varint(out, cells.iter().count() as u64);
            for (values, sum) in cells.iter() {
                out.extend_from_slice(values);
                put_zigzag(out, sum);
            }
        }
    }

    /// From all that is left of the bytes.
    pub fn read(bytes: &mut Bytes<'_>) -> Option<Rollups> {
        let declared = Declared::read(bytes)?;
        let folded_at_ms = bytes.varint()?;
        let mut all = Vec::new();
        for places in &declared.0.rollups {
            let mut cells: Vec<(Box<[u8]>, i64)> = Vec::new();
            for _ in 0..bytes.varint()? {
                let mut values = Vec::new();
                for _ in places {
                    let value = bytes.bytes()?;
                    std::str::from_utf8(value).ok()?;
                    put_bytes(&mut values, value);
                }
                cells.push((values.into(), bytes.zigzag().filter(|sum| *sum != 0)?));
            }
            if !cells.is_sorted_by(|(a, _), (b, _)| a < b) {
                return None;
            }
            all.push(Cells(cells.chunks(CHUNK_CELLS).map(|chunk| Arc::new(chunk.to_vec())).collect()));
        }
        let mut rollups = Rollups { declared, cells: all, folded_at_ms, count: 0, bytes: 0 };
        rollups.measure();
        bytes.is_empty().then_some(rollups)
    }
}

fn empty_values(count: usize) -> Vec<u8> {
    vec![0; count]
}

/// Values one by one, each with its length before it.
fn pieces(values: &[u8]) -> Option<Vec<&[u8]>> {
    let mut rest = Bytes::new(values);
    let (mut pieces, mut from) = (Vec::new(), 0);
    while !rest.is_empty() {
        rest.bytes()?;
        let to = values.len() - rest.left();
        pieces.push(&values[from..to]);
        from = to;
    }
    Some(pieces)
}

fn texts(values: &[u8]) -> Option<Vec<&str>> {
    let mut rest = Bytes::new(values);
    let mut texts = Vec::new();
    while !rest.is_empty() {
        texts.push(std::str::from_utf8(rest.bytes()?).ok()?);
    }
    Some(texts)
}

/// Which part of a counter's value is asked for: what has these values. `None` for a value asks for every value by itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slice(Vec<(String, Option<String>)>);

impl Slice {
    /// From names and values, `*` for every value; or what is wrong with them.
    pub fn new(dimensions: impl IntoIterator<Item = (String, String)>) -> Result<Slice, String> {
        let mut all: Vec<(String, Option<String>)> = Vec::new();
        for (name, value) in dimensions {
            let value = Some(value).filter(|value| value != "*");
            let problem =
                name_problem(&name).or_else(|| value.as_ref().and_then(|value| value_problem(&name, value)));
            if let Some(problem) = problem {
                return Err(problem);
            }
            if all.iter().any(|(known, _)| *known == name) {
                return Err(format!("{name} is given twice"));
            }
            all.push((name, value));
        }
        all.sort_unstable();
        match all.len() {
            0 => Err("no dimension is given".to_owned()),
            1..=ROLLUP_NAMES_MAX => Ok(Slice(all)),
            count => Err(format!("at most {ROLLUP_NAMES_MAX} dimensions, not {count}")),
        }
    }

    /// From text: `tenant:a,day:*`. A backslash takes what follows it as it is.
    pub fn parse(text: &str) -> Result<Slice, String> {
        let (mut dimensions, mut word, mut name) = (Vec::new(), String::new(), None);
        let mut letters = text.chars();
        loop {
            match letters.next() {
                Some('\\') => word.extend(letters.next()),
                Some(':') if name.is_none() => name = Some(std::mem::take(&mut word)),
                Some(letter) if letter != ',' => word.push(letter),
                end => {
                    let Some(name) = name.take() else {
                        return Err(format!(
                            "{word:?} has no value; dimensions look like tenant:a,day:*, with \\ before a comma or colon that belongs to a value"
                        ));
                    };
                    dimensions.push((name, std::mem::take(&mut word)));
                    if end.is_none() {
                        return Slice::new(dimensions);
                    }
                }
            }
        }
    }

    /// A look at that part; its bytes go to the batch.
    pub fn action(&self, batch: &mut Batch) -> Action {
        let mut bytes = Vec::new();
        self.put(&mut bytes);
        Action::Slice { slice: batch.intern(&bytes) }
    }

    /// Names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_deref()))
    }

    /// Whether some value is asked for one by one.
    pub fn is_grouped(&self) -> bool {
        self.0.iter().any(|(_, value)| value.is_none())
    }

    /// Appends it.
    pub fn put(&self, out: &mut Vec<u8>) {
        put_varint(out, self.0.len() as u64);
        for (name, value) in &self.0 {
            put_bytes(out, name.as_bytes());
            put_bytes(out, value.as_deref().unwrap_or("*").as_bytes());
        }
    }

    /// Reads what was appended.
    pub fn read(bytes: &[u8]) -> Option<Slice> {
        let mut bytes = Bytes::new(bytes);
        let mut dimensions = Vec::new();
        for _ in 0..bytes.varint()? {
            let mut text = || std::str::from_utf8(bytes.bytes()?).ok().map(str::to_owned);
            dimensions.push((text()?, text()?));
        }
        Slice::new(dimensions).ok().filter(|_| bytes.is_empty())
    }
}

/// A counter of which a slice can be read. Adding up many cells takes its time, so that is done where nobody waits for a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sliceable {
    /// What is asked.
    pub slice: Slice,
    /// What the policy declares.
    pub declared: Declared,
    /// The value of the counter.
    pub value: i64,
    /// Its body.
    pub body: Option<Arc<Body>>,
}

/// What a slice came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sliced {
    /// The sum, as near as 64 bits come to it.
    pub value: i64,
    /// Where values were asked for one by one: those and their sums, in order.
    pub groups: Vec<(Vec<String>, i64)>,
    /// There are more than [`GROUPS_MAX`] of them.
    pub is_partial: bool,
}

impl Sliceable {
    /// Adds up. Nothing where the slice is not declared.
    pub fn add_up(&self) -> Option<Sliced> {
        let names = self.declared.names_at(self.declared.for_slice(&self.slice)?);
        let rollups = self.body.as_ref().and_then(|body| body.rollups.as_ref());
        // Without cells, all there is belongs to the empty values.
        let mut plain = Cells::default();
        let cells = match rollups.and_then(|rollups| rollups.cells_of(&names)) {
            Some(cells) => cells,
            None => {
                plain.add(&empty_values(names.len()), self.value);
                &plain
            }
        };
        let asked: Vec<Option<&Option<String>>> = (names.iter())
            .map(|name| self.slice.0.iter().find(|(asked, _)| asked == name).map(|(_, value)| value))
            .collect();
        let exact: Option<Vec<&str>> =
            asked.iter().map(|asked| asked.and_then(|value| value.as_deref())).collect();
        if let Some(exact) = exact {
            let mut values = Vec::new();
            exact.iter().for_each(|value| put_bytes(&mut values, value.as_bytes()));
            return Some(Sliced { value: cells.get(&values).unwrap_or(0), ..Sliced::default() });
        }
        let (mut sum, mut groups) = (0i128, BTreeMap::<Vec<&str>, i128>::new());
        for (values, amount) in cells.iter() {
            let Some(values) = texts(values) else { continue };
            let is_meant = |(asked, value): (&Option<&Option<String>>, &&str)| {
                asked.and_then(|asked| asked.as_deref()).is_none_or(|asked| asked == *value)
            };
            if !asked.iter().zip(&values).all(is_meant) {
                continue;
            }
            sum += i128::from(amount);
            let grouped = asked.iter().zip(values).filter(|(asked, _)| matches!(asked, Some(None)));
            *groups.entry(grouped.map(|(_, value)| value).collect()).or_default() += i128::from(amount);
        }
        if !self.slice.is_grouped() {
            groups.clear();
        }
        let is_partial = groups.len() > GROUPS_MAX;
        let groups = groups
            .into_iter()
            .take(GROUPS_MAX)
            .map(|(values, sum)| (values.into_iter().map(str::to_owned).collect(), clamp(sum)));
        Some(Sliced { value: clamp(sum), groups: groups.collect(), is_partial })
    }
}

fn clamp(sum: i128) -> i64 {
    sum.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

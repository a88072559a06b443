//! Batches with counters that lie in stripes: what each stripe is asked, and what that comes to.
//!
//! | asked | of the stripes |
//! |---|---|
//! | read | read all, and add up |
//! | add | add to one; its value is shown as the sum of that one and what the others were a moment ago |
//! | set | set the first, reset the others |
//! | reset, delete | all |
//!
//! Everything else is refused: it would have to see the whole value, or all stripes, at one moment.
//!
//! Under an id that may have been used when there were more or fewer stripes, the stripes of that time are asked first: see `striping.rs`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use quipu_counting::{
    Action, Add, Batch, Cell, Condition, Detail, Expiry, Group, GroupKind, Limits, Policies, Refusal, Reply,
    Told,
};

use crate::stripes::Layout;
use crate::units::{Claim, guarded_until};

/// What the stripes of a counter had is good for so long, for who adds to one of them.
const TOTAL_LIFETIME: Duration = Duration::from_millis(250);
/// So many totals are remembered; then all are forgotten.
const TOTALS_MAX: usize = 65_536;

/// Which requests of a batch are for striped counters, by place.
pub(crate) type Layouts = HashMap<usize, Layout>;

/// Why striped counters cannot be asked this.
pub(crate) fn unsupported(batch: &Batch, layouts: &Layouts, policies: &Policies) -> Option<String> {
    let why = |what: &str| {
        Some(format!("{what} is not supported for a counter that lies in stripes, nothing was changed"))
    };
    for group in &batch.groups {
        if (group.start..guarded_until(batch, group)).any(|index| layouts.contains_key(&index)) {
            return why("what belongs together with other requests");
        }
    }
    if !layouts.keys().all(|index| is_plain(batch, *index)) {
        return why(
            "other than to read, add, set, reset and delete it, without bounds, conditions and expiry",
        );
    }
    // Of a policy with stripes that is refused; but there may be one without by now, and stripes of before.
    let is_limited = |index: &usize| {
        let Limits { floor, ceiling, ttl_ms, is_for_whole, .. } = policies.limits(batch.key(*index));
        batch.requests[*index].action.is_write()
            && (is_for_whole || ttl_ms > 0 || (floor, ceiling) != (i64::MIN, i64::MAX))
    };
    if layouts.keys().any(is_limited) {
        return why("a policy with bounds, expiry, or more than plain sums");
    }
    None
}

/// Whether stripes can be asked this.
fn is_plain(batch: &Batch, index: usize) -> bool {
    match batch.requests[index].action {
        Action::Read | Action::Reset(Condition::Always) | Action::Delete(Condition::Always) => true,
        Action::Add(_) | Action::Told { .. } => is_of_one_stripe(batch, index),
        Action::Set(set) | Action::Overwrite(set) => {
            set.condition == Condition::Always && matches!(set.expiry, Expiry::Keep | Expiry::Clear)
        }
        _ => false,
    }
}

/// Whether it is an addition as one stripe can do it.
pub(crate) fn is_of_one_stripe(batch: &Batch, index: usize) -> bool {
    match batch.requests[index].action {
        Action::Add(add) => add == Add::plain(add.delta),
        Action::Told { add, .. } => {
            let told = Told::read(batch.payload(index));
            add == Add::plain(add.delta)
                && told.is_some_and(|told| told.at_ms.is_none() && told.dimensions.is_empty())
        }
        _ => false,
    }
}

/// What the stripe at a distance is asked, where all of them are.
fn action_at(action: Action, distance: u16) -> Action {
    match action {
        Action::Set(_) | Action::Overwrite(_) if distance > 0 => Action::Reset(Condition::Always),
        same => same,
    }
}

/// What is asked of stripes, and which group each request goes to.
#[derive(Default)]
pub(crate) struct Sent {
    pub(crate) batch: Batch,
    pub(crate) groups: Vec<u16>,
    /// Nothing is done, only claimed.
    pub(crate) claim: Option<Claim>,
}

impl Sent {
    fn push(&mut self, asked: &Batch, index: usize, action: Action, group: u16) -> usize {
        self.groups.push(group);
        let key = asked.key(index);
        match asked.requests[index].id {
            Some(id) => self.batch.push_with_id(key, action, asked.bytes(id.span), id.index),
            None => self.batch.push(key, action),
        }
    }

    /// As it was asked, with what is told, by which it is recognized.
    fn push_from(&mut self, asked: &Batch, index: usize, group: u16) -> usize {
        self.groups.push(group);
        self.batch.push_from(asked, index)
    }
}

/// What the stripes have said by which an id may have been used before, of a request that cannot simply be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Nobody can tell now.
    Unknown,
    /// Somebody knows a newer layout than this node.
    Outdated,
    /// It was used at this distance.
    At(u16),
    /// Something else was asked under it.
    Other,
}

/// By the places of requests.
pub(crate) type AllFound = HashMap<usize, Found>;

/// What became of a request.
enum Part {
    /// It is at this place of what was sent.
    Plain(usize),
    /// It was added at a place, to the stripe at a distance; others were looked at.
    Added {
        place: usize,
        distance: u16,
        looks: Vec<(u16, usize)>,
    },
    Summed(Vec<(u16, usize)>),
    /// All of them, the first first.
    All(Vec<usize>),
    /// It was not sent.
    Refused(Refusal),
}

/// A batch whose striped counters are taken apart.
pub(crate) struct Striped {
    pub(crate) asked: Batch,
    layouts: Layouts,
    parts: Vec<Part>,
}

/// What stripes had, by distance.
type Values = HashMap<u16, (i64, u64)>;

/// What the stripes of counters had a moment ago.
#[derive(Default)]
pub(crate) struct TotalsSeen {
    known: Mutex<HashMap<Vec<u8>, (Instant, Values)>>,
}

impl TotalsSeen {
    fn is_fresh(&self, key: &[u8]) -> bool {
        let known = self.known.lock();
        known.get(key).is_some_and(|(seen_at, _)| seen_at.elapsed() < TOTAL_LIFETIME)
    }

    /// All of them were looked at.
    fn put(&self, key: &[u8], values: Values) {
        let mut known = self.known.lock();
        if known.len() >= TOTALS_MAX {
            known.clear();
        }
        known.insert(key.to_vec(), (Instant::now(), values));
    }

    /// All of them are about to be others, or are.
    fn forget(&self, key: &[u8]) {
        self.known.lock().remove(key);
    }

    /// One of them is so now. What all have, and how long ago the others were looked at, if they were.
    fn with(&self, key: &[u8], distance: u16, value: Option<(i64, u64)>) -> (Values, Option<Duration>) {
        let mut known = self.known.lock();
        let Some((seen_at, values)) = known.get_mut(key) else {
            return (value.into_iter().map(|value| (distance, value)).collect(), None);
        };
        values.extend(value.map(|value| (distance, value)));
        (values.clone(), Some(seen_at.elapsed()))
    }
}

impl Striped {
    /// Claims of the ids that may have been used with other numbers of stripes; for which request each of them is, and how far away.
    pub(crate) fn claims(asked: &Batch, layouts: &Layouts) -> (Sent, Vec<(usize, u16)>) {
        let (mut sent, mut of) = (Sent::default(), Vec::new());
        for index in 0..asked.requests.len() {
            let (Some(layout), Some(id)) = (layouts.get(&index), asked.requests[index].id) else { continue };
            if is_of_one_stripe(asked, index) {
                for distance in layout.before_of_id(asked.key(index), asked.bytes(id.span), id.index) {
                    sent.push_from(asked, index, layout.group(distance));
                    of.push((index, distance));
                }
                sent.claim = Some(Claim::Take { edition: layout.edition });
            }
        }
        (sent, of)
    }

    /// Looks at what all stripes know of the ids of requests that are for all of them; for which request each look is. No claim is as
    /// old as what these would take away, so they change nothing.
    pub(crate) fn peeks(asked: &Batch, layouts: &Layouts) -> (Sent, Vec<usize>) {
        let (mut sent, mut of) = (Sent::default(), Vec::new());
        sent.claim = Some(Claim::Open { edition: 0 });
        for (index, request) in asked.requests.iter().enumerate() {
            let Some(layout) = layouts.get(&index).filter(|_| request.id.is_some()) else { continue };
            if request.action.is_write() && !is_of_one_stripe(asked, index) {
                for distance in layout.all() {
                    sent.push(asked, index, action_at(request.action, distance), layout.group(distance));
                    of.push(index);
                }
            }
        }
        (sent, of)
    }

    /// Takes away what others have claimed where these go.
    pub(crate) fn opens(&self, blocked: &[usize]) -> Sent {
        let mut sent = Sent::default();
        for index in blocked {
            let (layout, Part::Added { distance, .. }) = (self.layouts.get(index), &self.parts[*index])
            else {
                continue;
            };
            if let Some(layout) = layout {
                sent.push_from(&self.asked, *index, layout.group(*distance));
                sent.claim = Some(Claim::Open { edition: layout.edition });
            }
        }
        sent
    }

    /// What is sent, once it is known where ids were used before, or why that cannot be known.
    pub(crate) fn taken_apart(
        asked: Batch,
        layouts: Layouts,
        found: &AllFound,
        totals: &TotalsSeen,
        mut draw: impl FnMut() -> u64,
    ) -> (Striped, Sent) {
        let (mut sent, mut parts) = (Sent::default(), Vec::new());
        sent.batch.freshness = asked.freshness;
        let mut places = Vec::with_capacity(asked.requests.len());
        for index in 0..asked.requests.len() {
            places.push(sent.batch.requests.len());
            let Some(layout) = layouts.get(&index) else {
                let group = crate::groups::group(asked.key(index));
                parts.push(Part::Plain(sent.push_from(&asked, index, group)));
                continue;
            };
            parts.push(match asked.requests[index].action {
                Action::Read => {
                    let look =
                        |distance| (distance, sent.push(&asked, index, Action::Read, layout.group(distance)));
                    Part::Summed(layout.all().map(look).collect())
                }
                Action::Add(add) | Action::Told { add, .. } => {
                    let key = asked.key(index);
                    let distance = match (found.get(&index), asked.requests[index].id) {
                        (Some(Found::At(distance)), _) => *distance,
                        (Some(_), _) => {
                            parts.push(Part::Refused(Refusal::NoLeader));
                            continue;
                        }
                        (None, Some(id)) => layout.of_id(key, asked.bytes(id.span), id.index),
                        (None, None) => layout.any(asked.stripe_by(index).unwrap_or_else(&mut draw)),
                    };
                    let group = layout.group(distance);
                    let place = match asked.requests[index].action {
                        Action::Add(_) => sent.push(&asked, index, Action::Add(add), group),
                        _ => sent.push_from(&asked, index, group),
                    };
                    let mut looks = Vec::new();
                    if !totals.is_fresh(key) {
                        for other in layout.all().filter(|other| *other != distance) {
                            // Under no id: only the addition is remembered.
                            sent.groups.push(layout.group(other));
                            looks.push((other, sent.batch.push(key, Action::Read)));
                        }
                    }
                    Part::Added { place, distance, looks }
                }
                action => match found.get(&index) {
                    Some(Found::Other) => Part::Refused(Refusal::IdReused),
                    Some(_) => Part::Refused(Refusal::NoLeader),
                    None => {
                        // What is added behind it looks at them anew.
                        totals.forget(asked.key(index));
                        let ask = |distance| {
                            sent.push(&asked, index, action_at(action, distance), layout.group(distance))
                        };
                        Part::All(layout.all().map(ask).collect())
                    }
                },
            });
        }
        places.push(sent.batch.requests.len());
        for group in &asked.groups {
            let moved = regrouped(&asked, group, &places, &mut sent.batch);
            sent.batch.groups.push(moved);
        }
        (Striped { asked, layouts, parts }, sent)
    }

    /// Requests whose ids are known for something else where they came to: that may be a claim.
    pub(crate) fn blocked(&self, replies: &[Reply], found: &AllFound) -> Vec<usize> {
        let is_refused =
            |place: &usize| replies.get(*place).is_some_and(|reply| reply.refusal == Some(Refusal::IdReused));
        let is_blocked = |index: &usize| {
            matches!(&self.parts[*index], Part::Added { place, .. } if is_refused(place))
                && !found.contains_key(index)
        };
        (0..self.parts.len()).filter(is_blocked).collect()
    }

    /// What the requests are told, by what the stripes have answered; how far behind each may be.
    pub(crate) fn put_together(&self, done: &Batch, totals: &TotalsSeen) -> (Vec<Reply>, Vec<u64>) {
        let replies = &done.replies;
        let behind_ms = |place: &usize| done.staleness_ms(*place);
        let unknown = || Reply { refusal: Some(Refusal::OutcomeUnknown), ..Reply::state(None) };
        let at = |place: usize| replies.get(place).cloned().unwrap_or_else(unknown);
        let told = |(index, part): (usize, &Part)| match part {
            Part::Plain(place) => (at(*place), behind_ms(place)),
            Part::Refused(refusal) => (Reply { refusal: Some(*refusal), ..Reply::state(None) }, 0),
            Part::Summed(places) => {
                let looks: Vec<Reply> = places.iter().map(|(_, place)| at(*place)).collect();
                if let Some(refused) = looks.iter().find(|reply| reply.refusal.is_some()) {
                    return (refused.clone(), 0);
                }
                let stale_ms = places.iter().map(|(_, place)| behind_ms(place)).max().unwrap_or(0);
                if stale_ms == 0 {
                    let distances = places.iter().map(|(distance, _)| *distance);
                    totals.put(self.asked.key(index), values(distances, &looks));
                }
                (summed(&looks), stale_ms)
            }
            Part::Added { place, distance, looks } => {
                let others: Vec<Reply> = looks.iter().map(|(_, place)| at(*place)).collect();
                let is_seen_now = !looks.is_empty() && others.iter().all(|reply| reply.refusal.is_none());
                if is_seen_now {
                    let distances = looks.iter().map(|(distance, _)| *distance);
                    totals.put(self.asked.key(index), values(distances, &others));
                }
                let with = |value| totals.with(self.asked.key(index), *distance, value);
                let (reply, age) = added(at(*place), *distance, with);
                let age = age.filter(|_| !is_seen_now).unwrap_or_default();
                (reply, age.as_micros().div_ceil(1_000) as u64)
            }
            Part::All(places) => {
                // Somebody may have looked while it was done.
                totals.forget(self.asked.key(index));
                let all: Vec<Reply> = places.iter().map(|place| at(*place)).collect();
                (done_to_all(&all), 0)
            }
        };
        self.parts.iter().enumerate().map(told).unzip()
    }
}

fn regrouped(asked: &Batch, group: &Group, places: &[usize], sent: &mut Batch) -> Group {
    let kind = match group.kind {
        GroupKind::Atomic => GroupKind::Atomic,
        GroupKind::Session { producer, epoch, sequence } => {
            GroupKind::Session { producer: sent.intern(asked.bytes(producer)), epoch, sequence }
        }
        GroupKind::Guard { until } => GroupKind::Guard { until: places[until.min(places.len() - 1)] },
    };
    Group { start: places[group.start], end: places[group.end], kind }
}

fn values(distances: impl Iterator<Item = u16>, looks: &[Reply]) -> Values {
    distances.zip(looks).map(|(distance, reply)| (distance, (reply.cell.value, reply.cell.version))).collect()
}

fn clamp(sum: i128) -> i64 {
    sum.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

fn fits(values: impl Iterator<Item = i64>) -> bool {
    i64::try_from(values.map(i128::from).sum::<i128>()).is_ok()
}

/// All stripes as one counter.
pub(crate) fn summed_cell<'a>(cells: impl Iterator<Item = &'a Cell> + Clone) -> Cell {
    let births = cells.clone().map(|cell| cell.birth).filter(|birth| *birth > 0);
    Cell {
        value: clamp(cells.clone().map(|cell| i128::from(cell.value)).sum()),
        version: cells.clone().fold(0, |sum, cell| sum.saturating_add(cell.version)),
        updated_at_ms: cells.map(|cell| cell.updated_at_ms).max().unwrap_or(0),
        birth: births.min().unwrap_or(0),
        ..Cell::ABSENT
    }
}

/// What a reply says of a value that is not all of it: it does not fit 64 bits, or some stripes could not be looked at.
fn inexact(is_exact: bool) -> Option<Arc<Detail>> {
    (!is_exact).then(|| Arc::new(Detail::Seen { is_exact }))
}

fn summed(looks: &[Reply]) -> Reply {
    let there: Vec<&Reply> = looks.iter().filter(|reply| reply.exists).collect();
    if there.is_empty() {
        return Reply::state(None);
    }
    let fits = fits(there.iter().map(|reply| reply.cell.value));
    Reply { detail: inexact(fits), ..Reply::state(Some(summed_cell(there.iter().map(|reply| &reply.cell)))) }
}

/// What an addition to one stripe is told: the value of all of them, as far as it is known, and how long ago the others were looked at.
fn added(
    reply: Reply,
    distance: u16,
    with: impl FnOnce(Option<(i64, u64)>) -> (Values, Option<Duration>),
) -> (Reply, Option<Duration>) {
    let is_shown = matches!(reply.refusal, None | Some(Refusal::Disabled | Refusal::Overflow));
    if !is_shown {
        return (reply, None);
    }
    // The value of a repetition is that of its time.
    let now = (!reply.duplicate).then_some((reply.cell.value, reply.cell.version));
    let (values, age) = with(now);
    let all = values.values().map(|(value, _)| *value);
    let detail = inexact(age.is_some() && fits(all.clone()));
    let sum = clamp(all.map(i128::from).sum());
    // Where the value before does not fit, the one after is as far from the end as was applied.
    let (previous, value) = match sum.checked_sub(reply.applied) {
        Some(previous) => (previous, sum),
        None => (sum, sum.saturating_add(reply.applied)),
    };
    let version = values.values().fold(0u64, |sum, (_, version)| sum.saturating_add(*version));
    let existed = reply.existed || values.iter().any(|(other, seen)| *other != distance && seen.1 > 0);
    (Reply { previous, existed, detail, cell: Cell { value, version, ..reply.cell }, ..reply }, age)
}

/// What was done to every stripe, as one.
fn done_to_all(all: &[Reply]) -> Reply {
    let refused: Vec<Refusal> = all.iter().filter_map(|reply| reply.refusal).collect();
    if let Some(first) = refused.first() {
        // Some of them may be done: whoever asks again under the same id brings it to an end.
        let is_known = refused.len() == all.len() && refused.iter().all(|refusal| refusal == first);
        let refusal = if is_known { *first } else { Refusal::OutcomeUnknown };
        return Reply { refusal: Some(refusal), ..Reply::state(None) };
    }
    let previous = clamp(all.iter().map(|reply| i128::from(reply.previous)).sum());
    let there: Vec<&Reply> = all.iter().filter(|reply| reply.exists).collect();
    let cell = match there.is_empty() {
        true => Cell::ABSENT,
        false => summed_cell(there.iter().map(|reply| &reply.cell)),
    };
    Reply {
        duplicate: all.iter().all(|reply| reply.duplicate),
        existed: all.iter().any(|reply| reply.existed),
        exists: !there.is_empty(),
        previous,
        applied: cell.value.saturating_sub(previous),
        cell,
        detail: inexact(fits(all.iter().map(|reply| reply.previous))),
        ..Reply::state(None)
    }
}

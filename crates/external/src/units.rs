//! A batch in units: what must be decided together, because it is one request, an all-or-none group, or a guard with all it
//! guards. Units go their own ways; whoever asked hears when all of them have been answered.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use quipu_counting::service::Finished;
use quipu_counting::{
    Action, Batch, Freshness, Group, GroupKind, Policies, Refusal, Reply, Request, Unavailable,
};

#[cfg(test)]
use crate::groups::group;
use crate::policies;

/// The most requests of one call: what a master does meanwhile is this and nothing else.
pub(crate) const REQUESTS_PER_CALL_MAX: usize = 1_000;

/// A batch whose units are under way. It is answered when the last of them lets go of it.
pub(crate) struct Member {
    batch: Batch,
    now_ms: u64,
    began: Instant,
    told: Mutex<Told>,
}

struct Told {
    finished: Option<Finished>,
    /// What was not told may have happened or not.
    replies: Vec<Option<Reply>>,
    /// Why some could not be answered at all, and how many.
    unavailable: Option<(Unavailable, usize)>,
    /// Places whose replies may be behind, and how far.
    older: Vec<(usize, u64)>,
}

/// What became of a unit.
pub(crate) enum Answer {
    Replies(Vec<Reply>),
    /// Replies, and how far behind each may be.
    Older(Vec<(Reply, u64)>),
    Refused(Refusal),
    /// Nothing was done.
    Unavailable(Unavailable),
}

/// Some requests of a batch.
pub(crate) struct Unit {
    member: Arc<Member>,
    /// The group that all its keys belong to.
    pub(crate) group: u16,
    range: Range<usize>,
    /// Which of the batch's groups lie in it.
    groups: Range<usize>,
    /// How often it was tried in vain.
    pub(crate) attempts: u32,
    /// Somebody may have done it, and the answer was lost.
    pub(crate) may_be_done: bool,
    /// It is decided here and not in Redis.
    pub(crate) is_for_whole: bool,
    /// Its requests are not done: their ids are claimed.
    pub(crate) claim: Option<Claim>,
    /// Nobody else can answer it, not even with something older.
    pub(crate) is_for_master: bool,
    /// Redis has no memory, and would do this, but not together with others.
    pub(crate) is_apart: bool,
}

/// What is asked about the ids of requests to counters in stripes: see `striping.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Nobody with an older edition of the layout does here what is asked under the id.
    Take { edition: u64 },
    /// A claim of this edition or an older one is taken away.
    Open { edition: u64 },
}

/// Why a batch cannot be taken on.
pub(crate) fn unsupported(batch: &Batch) -> Option<String> {
    let why =
        |what: &str| Some(format!("{what} is not supported by a deployment on Redis, nothing was changed"));
    let is_too_large = |range: &Range<usize>| range.len() > REQUESTS_PER_CALL_MAX;
    if ranges(batch).any(|(range, _)| is_too_large(&range)) {
        return why(&format!("a group of more than {REQUESTS_PER_CALL_MAX} requests"));
    }
    None
}

/// What belongs together, and which groups lie in it.
fn ranges(batch: &Batch) -> impl Iterator<Item = (Range<usize>, Range<usize>)> {
    let (mut index, mut next_group) = (0, 0);
    std::iter::from_fn(move || {
        if index >= batch.requests.len() {
            return None;
        }
        let (start, first_group, mut end) = (index, next_group, index + 1);
        // A guard takes the groups along that it guards.
        while let Some(group) = batch.groups.get(next_group).filter(|group| group.start < end) {
            end = end.max(group.end).max(guarded_until(batch, group));
            next_group += 1;
        }
        index = end;
        Some((start..end, first_group..next_group))
    })
}

/// One past the last request that a group has a say about.
pub(crate) fn guarded_until(batch: &Batch, group: &Group) -> usize {
    match group.kind {
        GroupKind::Guard { until } => until.min(batch.requests.len()).max(group.end),
        GroupKind::Atomic | GroupKind::Session { .. } => group.end,
    }
}

/// Takes a batch apart, whose counters lie where their keys say.
#[cfg(test)]
pub(crate) fn split(batch: Batch, now_ms: u64, finished: Finished) -> Vec<Unit> {
    split_over(batch, now_ms, finished, |batch, index| group(batch.key(index)))
}

/// Takes a batch apart. What cannot be asked is answered at once.
pub(crate) fn split_over(
    batch: Batch,
    now_ms: u64,
    finished: Finished,
    group_of: impl Fn(&Batch, usize) -> u16,
) -> Vec<Unit> {
    let replies = vec![None; batch.requests.len()];
    let told = Mutex::new(Told { finished: Some(finished), replies, unavailable: None, older: Vec::new() });
    let member = Arc::new(Member { batch, now_ms, began: Instant::now(), told });
    let batch = &member.batch;
    let mut units = Vec::new();
    for (range, groups) in ranges(batch) {
        let is_global = |index: usize| batch.requests[index].action.is_global();
        let home = group_of(batch, range.start);
        let unit = Unit {
            member: Arc::clone(&member),
            group: home,
            range: range.clone(),
            groups,
            attempts: 0,
            may_be_done: false,
            is_for_whole: false,
            claim: None,
            is_for_master: false,
            is_apart: false,
        };
        if range.clone().any(|index| is_global(index) || group_of(batch, index) != home) {
            unit.answer(Answer::Refused(Refusal::CrossSlot));
        } else {
            units.push(unit);
        }
    }
    units
}

impl Unit {
    pub(crate) fn batch(&self) -> &Batch {
        &self.member.batch
    }

    pub(crate) fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    pub(crate) fn groups(&self) -> &[Group] {
        &self.member.batch.groups[self.groups.clone()]
    }

    pub(crate) fn began(&self) -> Instant {
        self.member.began
    }

    /// The time by the clock of whoever asked.
    pub(crate) fn time_ms(&self) -> u64 {
        self.member.now_ms.saturating_add(self.member.began.elapsed().as_millis() as u64)
    }

    pub(crate) fn is_of_same_batch(&self, other: &Unit) -> bool {
        Arc::ptr_eq(&self.member, &other.member)
    }

    /// Whether something in it is only for who decides about whole counters, as far as one can tell from here.
    pub(crate) fn asks_for_whole(&self, policies: &Policies, has_body: impl Fn(&[u8]) -> bool) -> bool {
        if self.claim.is_some() {
            return false;
        }
        let batch = self.batch();
        let is_session = |group: &Group| matches!(group.kind, GroupKind::Session { .. });
        self.groups().iter().any(is_session)
            || self.range().any(|index| {
                let is_for_whole = match batch.requests[index].action {
                    // Nobody here keeps why an addition is made.
                    Action::Told { .. } => quipu_counting::Told::read(batch.payload(index))
                        .is_none_or(|told| told.at_ms.is_some() || !told.dimensions.is_empty()),
                    action => action.is_for_whole(),
                };
                let key = batch.key(index);
                is_for_whole || has_body(key) || (!policies.is_empty() && policies.limits(key).is_for_whole)
            })
    }

    /// Whether anything in it may change a counter.
    pub(crate) fn writes(&self) -> bool {
        self.batch().requests[self.range()].iter().any(|request| request.action.is_write())
    }

    /// Whether it takes no memory to speak of: it only looks, or deletes.
    pub(crate) fn is_spare(&self) -> bool {
        let is_spare = |action: &Action| !action.is_write() || matches!(action, Action::Delete(_));
        self.batch().requests[self.range()].iter().all(|request| is_spare(&request.action))
    }

    /// Whether it is, or has in it, what a producer's session asks.
    pub(crate) fn is_of_session(&self) -> bool {
        self.groups().iter().any(|group| matches!(group.kind, GroupKind::Session { .. }))
    }

    /// Whether its counters are to be strong; `None` where some are and some are not.
    pub(crate) fn is_strong(&self, policies: &Policies) -> Option<bool> {
        let is_strong = |index: usize| policies::is_strong(policies, self.batch().key(index));
        let first = is_strong(self.range.start);
        self.range().all(|index| is_strong(index) == first).then_some(first)
    }

    /// Whether something in it may have been done before, and would be recognized.
    pub(crate) fn may_be_known(&self) -> bool {
        self.is_of_session() || self.batch().requests[self.range()].iter().any(|request| request.id.is_some())
    }

    /// Whether it may be asked again when nobody knows what became of it.
    pub(crate) fn can_repeat(&self) -> bool {
        self.batch().can_repeat(self.range())
    }

    /// Whether it only reads counters, and who asks can be told that what it hears is not the newest.
    pub(crate) fn may_be_older(&self) -> bool {
        let reads = |request: &Request| request.action == Action::Read && request.id.is_none();
        !self.is_for_master
            && self.batch().freshness != Freshness::Strong
            && self.groups.is_empty()
            && self.batch().requests[self.range()].iter().all(reads)
    }

    /// Whether what is so far behind is still good enough.
    pub(crate) fn allows_staleness(&self, staleness_ms: u64) -> bool {
        match self.batch().freshness {
            Freshness::Strong => false,
            Freshness::StrongOrStated => true,
            Freshness::Eventual { max_staleness_ms } => {
                max_staleness_ms.is_none_or(|most| staleness_ms <= most)
            }
        }
    }

    pub(crate) fn answer(self, answer: Answer) {
        let refused =
            |refusal| vec![Reply { refusal: Some(refusal), ..Reply::state(None) }; self.range.len()];
        let mut told = self.member.told.lock();
        let replies = match answer {
            Answer::Replies(replies) => replies,
            Answer::Older(replies) => {
                let (replies, stale): (Vec<Reply>, Vec<u64>) = replies.into_iter().unzip();
                told.older.extend(self.range.clone().zip(stale));
                replies
            }
            Answer::Refused(refusal) => refused(refusal),
            Answer::Unavailable(why) => {
                let others = told.unavailable.take().map_or(0, |(_, count)| count);
                told.unavailable = Some((why, others + self.range.len()));
                refused(Refusal::NoLeader)
            }
        };
        for (place, reply) in self.range.clone().zip(replies) {
            told.replies[place] = Some(reply);
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        let mut batch = std::mem::take(&mut self.batch);
        let told = self.told.get_mut();
        let Some(finished) = told.finished.take() else { return };
        match told.unavailable.take() {
            // Where others were answered, each of these says for itself that nothing was done.
            Some((why, count)) if count == batch.requests.len() => finished(batch, Err(why)),
            _ => {
                let unknown = || Reply { refusal: Some(Refusal::OutcomeUnknown), ..Reply::state(None) };
                told.older.drain(..).for_each(|(place, stale_ms)| batch.note_staleness(&[place], stale_ms));
                batch.replies = told.replies.drain(..).map(|reply| reply.unwrap_or_else(unknown)).collect();
                finished(batch, Ok(0));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use quipu_counting::{Add, Condition};

    use super::*;

    type Heard = mpsc::Receiver<(Batch, Result<u64, Unavailable>)>;

    fn taken_apart(fill: impl FnOnce(&mut Batch)) -> (Vec<Unit>, Heard) {
        let mut batch = Batch::default();
        fill(&mut batch);
        let (tell, heard) = mpsc::channel();
        let finished = move |batch, result| tell.send((batch, result)).expect("the test listens");
        (split(batch, 7, Box::new(finished)), heard)
    }

    fn add(batch: &mut Batch, key: &str) {
        batch.push(key.as_bytes(), Action::Add(Add::plain(1)));
    }

    fn refusals(batch: &Batch) -> Vec<Option<Refusal>> {
        batch.replies.iter().map(|reply| reply.refusal).collect()
    }

    #[test]
    fn what_belongs_together_stays_together_or_is_refused() {
        let (split, heard) = taken_apart(|batch| {
            add(batch, "alone");
            add(batch, "a{tag}");
            add(batch, "b{tag}");
            batch.group(1, GroupKind::Atomic);
            add(batch, "likes");
            add(batch, "views");
            batch.group(3, GroupKind::Atomic);
            batch.push(b"c{tag}", Action::Check(Condition::Exists));
            batch.group(5, GroupKind::Guard { until: 8 });
            add(batch, "d{tag}");
            add(batch, "e{tag}");
            batch.group(6, GroupKind::Atomic);
        });
        assert_ne!(group(b"likes"), group(b"views"));
        let ranges: Vec<_> = split.iter().map(|unit| (unit.range(), unit.groups().len())).collect();
        assert_eq!(ranges, [(0..1, 0), (1..3, 1), (5..8, 2)]);
        for unit in split {
            let replies = vec![Reply::state(None); unit.range().len()];
            assert!(heard.try_recv().is_err(), "not all are answered");
            unit.answer(Answer::Replies(replies));
        }
        let (batch, result) = heard.try_recv().expect("all are answered");
        assert_eq!(result, Ok(0));
        let torn = Some(Refusal::CrossSlot);
        assert_eq!(refusals(&batch), [None, None, None, torn, torn, None, None, None]);
    }

    #[test]
    fn nobody_waits_for_what_was_forgotten() {
        let (mut split, heard) = taken_apart(|batch| {
            add(batch, "likes");
            add(batch, "views");
        });
        let second = split.remove(1);
        drop(split);
        second.answer(Answer::Unavailable(Unavailable::NoLeader("why".into())));
        let (batch, result) = heard.try_recv().expect("an answer");
        assert_eq!(result, Ok(0));
        assert_eq!(refusals(&batch), [Some(Refusal::OutcomeUnknown), Some(Refusal::NoLeader)]);
    }

    #[test]
    fn what_cannot_be_answered_at_all_says_why() {
        let (split, heard) = taken_apart(|batch| add(batch, "likes"));
        let why = Unavailable::NoLeader("why".into());
        split.into_iter().for_each(|unit| unit.answer(Answer::Unavailable(why.clone())));
        assert_eq!(heard.try_recv().map(|(_, result)| result), Ok(Err(why)));
    }

    #[test]
    fn what_is_not_supported_is_said_before_anything_is_done() {
        let mut batch = Batch::default();
        add(&mut batch, "likes");
        assert_eq!(unsupported(&batch), None);
        let mut many = Batch::default();
        (0..=REQUESTS_PER_CALL_MAX).for_each(|_| add(&mut many, "likes"));
        assert_eq!(unsupported(&many), None);
        many.group(0, GroupKind::Atomic);
        assert!(unsupported(&many).is_some());
    }
}

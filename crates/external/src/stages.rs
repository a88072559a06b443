//! Batches in which something is about all counters (DBSIZE, FLUSHALL), or in which keys of several groups are deleted as one.
//!
//! What is about all counters is a stage of its own: what stands before it is done before it, and what stands behind it after. All
//! counters are deleted one by one, as if each had been named: whoever flushes hears of each, and ids, producers and policies stay.
//!
//! DEL of several keys is all or none elsewhere. Here keys of several groups are deleted by a call each: what a policy forbids is found out
//! before anything is asked, so only what fails on its way may be done in part, and then the outcome is unknown.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use quipu_counting::service::Finished;
use quipu_counting::{
    Action, Batch, Condition, Counters, Group, GroupKind, Policies, Refusal, Reply, Selector, Unavailable,
};
use tokio::sync::oneshot;

use crate::external::External;
use crate::groups::group as group_of;
use crate::units::{REQUESTS_PER_CALL_MAX, guarded_until};

/// About so many counters are deleted at once.
const CLEAR_STEP: usize = 1_000;

const DELETE: Action = Action::Delete(Condition::Always);

/// Why not all counters can be deleted.
const KEEPS_SOME: &str = "a policy forbids changes of some counters, or keeps them in PostgreSQL, so not all can be deleted at once; \
                          nothing was changed";

/// A part of a batch.
#[derive(Debug, PartialEq, Eq)]
enum Stage {
    Requests(Range<usize>),
    /// One that is about all counters.
    All(usize),
}

/// The parts of a batch, in order.
fn stages(batch: &Batch) -> Vec<Stage> {
    let (mut stages, mut start) = (Vec::new(), 0);
    for index in (0..batch.requests.len()).filter(|index| stands_alone(batch, *index)) {
        if start < index {
            stages.push(Stage::Requests(start..index));
        }
        stages.push(Stage::All(index));
        start = index + 1;
    }
    if start < batch.requests.len() {
        stages.push(Stage::Requests(start..batch.requests.len()));
    }
    stages
}

/// Whether a request is about all counters, and belongs to no others. What does is refused with them.
fn stands_alone(batch: &Batch, index: usize) -> bool {
    let holds = |group: &Group| (group.start..guarded_until(batch, group)).contains(&index);
    batch.requests[index].action.is_global() && !batch.groups.iter().any(holds)
}

/// A batch of its own with these requests. No group reaches across its ends.
fn cut(batch: &Batch, range: &Range<usize>) -> Batch {
    let mut part = Batch::default();
    part.freshness = batch.freshness;
    range.clone().for_each(|index| _ = part.push_from(batch, index));
    for group in batch.groups.iter().filter(|group| range.contains(&group.start)) {
        let kind = match group.kind {
            GroupKind::Atomic => GroupKind::Atomic,
            GroupKind::Session { producer, epoch, sequence } => {
                GroupKind::Session { producer: part.intern(batch.bytes(producer)), epoch, sequence }
            }
            GroupKind::Guard { .. } => GroupKind::Guard { until: guarded_until(batch, group) - range.start },
        };
        part.groups.push(Group { start: group.start - range.start, end: group.end - range.start, kind });
    }
    part
}

fn refused(refusal: Refusal) -> Reply {
    Reply { refusal: Some(refusal), ..Reply::state(None) }
}

/// Whether some of it is about all counters.
pub(crate) fn has_stages(batch: &Batch) -> bool {
    batch.requests.iter().enumerate().any(|(index, request)| {
        // Looking for groups costs more than looking at the action.
        request.action.is_global() && stands_alone(batch, index)
    })
}

/// A batch that was let go of.
pub(crate) struct Loosened {
    /// Deletions that go their own ways.
    ranges: Vec<Range<usize>>,
    /// What belonged together before.
    groups: Vec<Group>,
}

/// Lets go of what holds deletions of several groups together, if there are some.
pub(crate) fn loosen(batch: &mut Batch) -> Option<Loosened> {
    let ranges: Vec<Range<usize>> = (batch.groups.iter())
        .filter(|group| is_loose(batch, group))
        .map(|group| group.start..group.end)
        .collect();
    if ranges.is_empty() {
        return None;
    }
    let groups = batch.groups.clone();
    batch.groups.retain(|group| !ranges.contains(&(group.start..group.end)));
    Some(Loosened { ranges, groups })
}

/// Whether a group only deletes, under no id and unguarded, and no call could do all of it.
fn is_loose(batch: &Batch, group: &Group) -> bool {
    let range = group.start..group.end;
    let deletes = |index: usize| batch.requests[index].action == DELETE && batch.requests[index].id.is_none();
    let is_elsewhere = |index: usize| group_of(batch.key(index)) != group_of(batch.key(range.start));
    let guards = |other: &Group| {
        matches!(other.kind, GroupKind::Guard { .. })
            && (other.start..guarded_until(batch, other)).contains(&range.start)
    };
    matches!(group.kind, GroupKind::Atomic)
        && range.clone().all(deletes)
        && (range.len() > REQUESTS_PER_CALL_MAX || range.clone().any(is_elsewhere))
        && !batch.groups.iter().any(guards)
}

/// What deletions are told that a policy forbids: all of them, because of one.
fn forbidden(batch: &Batch, range: &Range<usize>, policies: &Policies) -> Option<Vec<Reply>> {
    if policies.is_empty() {
        return None;
    }
    let is_disabled = |index: &usize| policies.limits(batch.key(*index)).disabled;
    let first = range.clone().find(is_disabled)?;
    let told = |index| refused(if index == first { Refusal::Disabled } else { Refusal::GroupAborted });
    Some(range.clone().map(told).collect())
}

/// What deletions are told that were done one by one: where some were done, nobody shall hear that nothing was.
fn told_together(replies: &mut [Reply]) {
    if replies.iter().all(|reply| reply.refusal.is_some()) {
        return;
    }
    for reply in replies.iter_mut().filter(|reply| reply.refusal.is_some()) {
        *reply = refused(Refusal::OutcomeUnknown);
    }
}

impl External {
    /// Has a batch done in which something is about all counters.
    pub(crate) fn finish_in_stages(self: Arc<Self>, mut batch: Batch, now_ms: u64, finished: Finished) {
        tokio::spawn(async move {
            let began = Instant::now();
            let (mut replies, mut stale, mut failed) = (Vec::new(), Vec::new(), Vec::new());
            for stage in stages(&batch) {
                let now_ms = now_ms.saturating_add(began.elapsed().as_millis() as u64);
                let (count, told) = match &stage {
                    Stage::Requests(range) => {
                        (range.len(), self.finished(cut(&batch, range), now_ms).await.map(told_of))
                    }
                    Stage::All(index) => {
                        let told = self.about_all(&batch.requests[*index].action, now_ms).await;
                        (1, told.map(|reply| vec![(reply, 0)]))
                    }
                };
                let told = told.unwrap_or_else(|why| {
                    failed.push((why, count));
                    vec![(refused(Refusal::NoLeader), 0); count]
                });
                let (some, behind): (Vec<Reply>, Vec<u64>) = told.into_iter().unzip();
                replies.extend(some);
                stale.extend(behind);
            }
            let unanswered: usize = failed.iter().map(|(_, count)| count).sum();
            match failed.pop() {
                Some((why, _)) if unanswered == batch.requests.len() => finished(batch, Err(why)),
                _ => {
                    stale.iter().enumerate().for_each(|(place, ms)| batch.note_staleness(&[place], *ms));
                    batch.replies = replies;
                    finished(batch, Ok(0));
                }
            }
        });
    }

    /// Has a batch done whose deletions of several groups go their own ways.
    pub(crate) fn finish_loose(
        self: Arc<Self>,
        mut batch: Batch,
        loosened: Loosened,
        now_ms: u64,
        finished: Finished,
    ) {
        let Loosened { ranges, groups } = loosened;
        let policies = Arc::clone(&self.lanes.policies.read());
        let known: Vec<Option<Vec<Reply>>> =
            ranges.iter().map(|range| forbidden(&batch, range, &policies)).collect();
        // What a policy forbids is only looked at.
        for (range, _) in ranges.iter().zip(&known).filter(|(_, known)| known.is_some()) {
            batch.requests[range.clone()].iter_mut().for_each(|request| request.action = Action::Read);
        }
        let together = move |mut batch: Batch, result: Result<u64, Unavailable>| {
            batch.groups = groups;
            for (range, known) in ranges.into_iter().zip(known) {
                batch.requests[range.clone()].iter_mut().for_each(|request| request.action = DELETE);
                match known {
                    _ if result.is_err() => {}
                    Some(known) => _ = batch.replies.splice(range, known),
                    None => told_together(&mut batch.replies[range]),
                }
            }
            finished(batch, result);
        };
        self.finish_apart(batch, now_ms, Box::new(together));
    }

    /// Has a batch done, and waits for it.
    async fn finished(&self, batch: Batch, now_ms: u64) -> Result<Batch, Unavailable> {
        let (tell, told) = oneshot::channel();
        let finished = move |batch: Batch, result: Result<u64, Unavailable>| {
            // Nobody may be left to hear it.
            let _ = tell.send(result.map(|_| batch));
        };
        self.finish(batch, now_ms, Box::new(finished));
        told.await.unwrap_or_else(|_| Err(Unavailable::Unreadable("the node is stopping".into())))
    }

    async fn about_all(&self, action: &Action, now_ms: u64) -> Result<Reply, Unavailable> {
        if *action == Action::Clear {
            return self.clear(now_ms).await;
        }
        let walk = self.walk_over_all(now_ms)?;
        let counted = walk.aggregate(&Selector::new(b"*"), &Policies::default()).await?;
        Ok(counting(counted.totals().count))
    }

    /// Deletes every counter that is there now. What comes meanwhile may stay or go.
    async fn clear(&self, now_ms: u64) -> Result<Reply, Unavailable> {
        let policies = Arc::clone(&self.lanes.policies.read());
        if policies.iter().any(|(_, policy)| policy.disabled || policy.strong) {
            return Err(Unavailable::Unsupported(KEEPS_SOME.into()));
        }
        let (began, mut cursor, mut count) = (Instant::now(), 0, 0);
        loop {
            let now_ms = now_ms.saturating_add(began.elapsed().as_millis() as u64);
            let is_done = |reply: &Reply| reply.refusal.is_none();
            match self.clear_some(cursor, now_ms).await {
                Err(why) if count == 0 => return Err(why),
                Ok((next, replies)) if replies.iter().all(is_done) => {
                    count += replies.iter().filter(|reply| reply.existed).count() as u64;
                    cursor = next;
                }
                // Some are gone.
                _ => return Ok(refused(Refusal::OutcomeUnknown)),
            }
            if cursor == 0 {
                return Ok(counting(count));
            }
        }
    }

    /// Deletes some, and says where to go on.
    async fn clear_some(&self, cursor: u64, now_ms: u64) -> Result<(u64, Vec<Reply>), Unavailable> {
        let page = self.walk_over_all(now_ms)?.scan(cursor, CLEAR_STEP).await?;
        let mut batch = Batch::default();
        page.keys.iter().for_each(|key| _ = batch.push(key, DELETE));
        let done = self.finished(batch, now_ms).await?;
        Ok((page.cursor, done.replies))
    }
}

fn counting(count: u64) -> Reply {
    let mut reply = Reply::state(None);
    reply.cell.value = i64::try_from(count).unwrap_or(i64::MAX);
    reply
}

/// The replies of a batch that is done, and how far behind each may be.
fn told_of(mut done: Batch) -> Vec<(Reply, u64)> {
    let replies = std::mem::take(&mut done.replies);
    replies.into_iter().enumerate().map(|(place, reply)| (reply, done.staleness_ms(place))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(batch: &mut Batch, lines: &[(&str, Action)]) {
        lines.iter().for_each(|(key, action)| _ = batch.push(key.as_bytes(), *action));
    }

    #[test]
    fn what_is_about_all_counters_is_a_stage_of_its_own() {
        let mut batch = Batch::default();
        push(&mut batch, &[("a", Action::Read), ("", Action::Count), ("", Action::Clear), ("b{t}", DELETE)]);
        push(&mut batch, &[("c{t}", DELETE)]);
        batch.group(3, GroupKind::Atomic);
        let expected = [Stage::Requests(0..1), Stage::All(1), Stage::All(2), Stage::Requests(3..5)];
        assert!(has_stages(&batch));
        assert_eq!(stages(&batch), expected);
        let part = cut(&batch, &(3..5));
        assert_eq!((part.key(1), part.groups[0].start, part.groups[0].end), (&b"c{t}"[..], 0, 2));
        // What belongs to others is theirs.
        let mut guarded = Batch::default();
        push(&mut guarded, &[("a", Action::Check(Condition::Absent)), ("", Action::Clear)]);
        guarded.groups.push(Group { start: 0, end: 1, kind: GroupKind::Guard { until: 2 } });
        assert!(!has_stages(&guarded));
    }

    #[test]
    fn only_deletions_that_no_call_could_do_are_let_go_of() {
        let loosened = |keys: &[&str], action: Action| {
            let mut batch = Batch::default();
            keys.iter().for_each(|key| _ = batch.push(key.as_bytes(), action));
            batch.group(0, GroupKind::Atomic);
            loosen(&mut batch)
                .map(|loosened| (loosened.ranges.into_iter().flatten().count(), batch.groups.len()))
        };
        assert_ne!(group_of(b"likes"), group_of(b"views"));
        assert_eq!(loosened(&["likes", "views"], DELETE), Some((2, 0)));
        assert_eq!(loosened(&["a{t}", "b{t}"], DELETE), None);
        assert_eq!(loosened(&["likes", "views"], Action::Reset(Condition::Always)), None);
        assert!(loosened(&["likes"; REQUESTS_PER_CALL_MAX + 1], DELETE).is_some());
    }

    #[test]
    fn nobody_hears_that_nothing_was_done_where_something_was() {
        let told = |replies: &[Option<Refusal>]| {
            let of = |refusal: &Option<Refusal>| Reply { refusal: *refusal, ..Reply::state(None) };
            let mut replies: Vec<Reply> = replies.iter().map(of).collect();
            told_together(&mut replies);
            replies.into_iter().map(|reply| reply.refusal).collect::<Vec<_>>()
        };
        let (down, unknown) = (Some(Refusal::NoLeader), Some(Refusal::OutcomeUnknown));
        assert_eq!(told(&[down, down]), [down, down]);
        assert_eq!(told(&[None, down]), [None, unknown]);
    }
}

//! Batches that come at about the same time are split together: many clients with a few requests for each partition cost
//! hardly more than one client with many. Each is answered when its own requests are, so none waits for a partition that
//! it asked nothing of.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use quipu_counting::{Batch, Freshness, Refusal, Reply};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::node::Node;
use crate::routing::{can_repeat, only_looks};
use crate::split::{Part, Split};
use crate::together::{REQUESTS_TOGETHER_MAX, fits};

/// The most batches that are split together.
const COME_MAX: usize = 1_024;
/// From so many on there will be as many again once these are answered, and it is worth waiting for them.
const MANY: usize = 4;
/// How long others are waited for, at most.
const WAIT_MAX: Duration = Duration::from_millis(3);

/// Called once, with the replies in the batch.
pub type Answered = Box<dyn FnOnce(Batch) + Send>;

/// Where batches come together.
pub(crate) struct Gathering {
    changes: mpsc::UnboundedSender<Member>,
    /// What changes nothing never waits for what does.
    looks: mpsc::UnboundedSender<Member>,
}

/// One of those who came.
struct Member {
    batch: Batch,
    answered: Answered,
}

impl Gathering {
    pub(crate) fn new(node: Weak<Node>) -> Gathering {
        let queue = |node: Weak<Node>| {
            // Bounded by who fills it: a connection has one batch under way, and the fronts bound connections and requests.
            let (queue, come) = mpsc::unbounded_channel();
            tokio::spawn(run(node, come));
            queue
        };
        Gathering { changes: queue(Weak::clone(&node)), looks: queue(node) }
    }

    pub(crate) fn add(&self, batch: Batch, answered: Answered) {
        let queue = if only_looks(&batch) { &self.looks } else { &self.changes };
        if let Err(mpsc::error::SendError(member)) = queue.send(Member { batch, answered }) {
            member.refuse(Refusal::NoLeader);
        }
    }
}

async fn run(node: Weak<Node>, mut queue: mpsc::UnboundedReceiver<Member>) {
    let mut come = Vec::new();
    while queue.recv_many(&mut come, COME_MAX).await > 0 {
        let Some(node) = node.upgrade() else { break };
        let are_many = come.len() >= MANY;
        let mut under_way = JoinSet::new();
        for crowd in crowds(&mut come) {
            let node = Arc::clone(&node);
            under_way.spawn(async move { crowd.go(&node).await });
        }
        drop(node);
        if are_many {
            // Some partitions may hang, which must not hold up others.
            let _ = tokio::time::timeout(WAIT_MAX, async { while under_way.join_next().await.is_some() {} })
                .await;
        }
        under_way.detach_all();
    }
    queue.close();
    for member in come.into_iter().chain(std::iter::from_fn(|| queue.try_recv().ok())) {
        member.refuse(Refusal::NoLeader);
    }
}

/// What is treated alike may go together: what changes nothing must not wait for the log, and what can be repeated must
/// not share the fate of what cannot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Looks,
    Repeatable,
    Once,
    /// With a wish of its own, or about all counters.
    Alone,
}

fn kind(batch: &Batch) -> Kind {
    let is_alone = matches!(batch.freshness, Freshness::Eventual { .. })
        || batch.requests.iter().any(|request| request.action.is_global());
    match () {
        () if is_alone => Kind::Alone,
        () if only_looks(batch) => Kind::Looks,
        () if can_repeat(batch) => Kind::Repeatable,
        () => Kind::Once,
    }
}

/// Those who go together.
struct Crowd {
    kind: Kind,
    all: Batch,
    members: Vec<Member>,
}

/// Puts together who may go together.
fn crowds(come: &mut Vec<Member>) -> Vec<Crowd> {
    let mut crowds: Vec<Crowd> = Vec::new();
    for member in come.drain(..) {
        let kind = kind(&member.batch);
        let joins = |crowd: &&mut Crowd| {
            crowd.kind == kind
                && kind != Kind::Alone
                && fits(&crowd.all, &member.batch, REQUESTS_TOGETHER_MAX)
        };
        let crowd = match crowds.iter_mut().rev().find(joins) {
            Some(crowd) => crowd,
            None => {
                let mut all = Batch::default();
                all.freshness = member.batch.freshness;
                crowds.push(Crowd { kind, all, members: Vec::new() });
                let last = crowds.len() - 1;
                &mut crowds[last]
            }
        };
        crowd.all.append(&member.batch);
        crowd.members.push(member);
    }
    crowds
}

impl Crowd {
    /// Has everything done wherever its counters are, answers each as soon as it is known.
    async fn go(self, node: &Node) {
        let Crowd { kind: _, all, members } = self;
        let mut split = Split::of(&all, node.partitions());
        let parts = std::mem::take(&mut split.parts);
        let mut waiting = Waiting::of(members, &parts);
        waiting.answer_known(&split);
        let do_part = |part: Part| async {
            let done = match all.freshness {
                Freshness::Eventual { max_staleness_ms } if only_looks(&part.batch) => {
                    node.look_anywhere(&part, max_staleness_ms).await
                }
                _ => node.do_part(&part).await.map(|replies| (0, replies)),
            };
            (part.places, done)
        };
        let mut under_way: FuturesUnordered<_> = parts.into_iter().map(do_part).collect();
        while let Some((places, done)) = under_way.next().await {
            let staleness_ms = match done {
                Ok((staleness_ms, replies)) => {
                    split.answer(&places, &replies);
                    staleness_ms
                }
                Err(refusal) => {
                    split.refuse(&places, refusal);
                    0
                }
            };
            waiting.hear(&places, staleness_ms, &split);
        }
    }
}

/// Those of a crowd who have not heard everything.
struct Waiting {
    members: Vec<Option<Member>>,
    /// Where the requests of each begin, and one more: the end.
    starts: Vec<usize>,
    /// Of each request, who asked it.
    whose: Vec<u32>,
    /// How many replies each waits for.
    missing: Vec<usize>,
}

impl Waiting {
    fn of(members: Vec<Member>, parts: &[Part]) -> Waiting {
        let (mut starts, mut whose) = (vec![0], Vec::new());
        for (number, member) in members.iter().enumerate() {
            whose.resize(whose.len() + member.batch.requests.len(), number as u32);
            starts.push(whose.len());
        }
        let mut missing = vec![0; members.len()];
        for place in parts.iter().flat_map(|part| &part.places) {
            missing[whose[*place] as usize] += 1;
        }
        Waiting { members: members.into_iter().map(Some).collect(), starts, whose, missing }
    }

    /// Answers those who wait for nothing at all.
    fn answer_known(&mut self, split: &Split) {
        for number in 0..self.members.len() {
            if self.missing[number] == 0 {
                self.answer(number, split);
            }
        }
    }

    /// These are known now.
    fn hear(&mut self, places: &[usize], staleness_ms: u64, split: &Split) {
        for place in places {
            let number = self.whose[*place] as usize;
            if let Some(member) = &mut self.members[number] {
                member.batch.note_staleness(&[*place - self.starts[number]], staleness_ms);
            }
            self.missing[number] -= 1;
            if self.missing[number] == 0 {
                self.answer(number, split);
            }
        }
    }

    fn answer(&mut self, number: usize, split: &Split) {
        if let Some(mut member) = self.members[number].take() {
            let replies = &split.replies()[self.starts[number]..self.starts[number + 1]];
            member.batch.replies.clear();
            member.batch.replies.extend_from_slice(replies);
            (member.answered)(member.batch);
        }
    }
}

impl Member {
    fn refuse(mut self, refusal: Refusal) {
        let reply = Reply { refusal: Some(refusal), ..Reply::state(None) };
        self.batch.replies = vec![reply; self.batch.requests.len()];
        (self.answered)(self.batch);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc as plain;

    use quipu_counting::slot::{partition, slot};
    use quipu_counting::{Action, Add, GroupKind};

    use super::*;

    const PARTITIONS: u16 = 16;

    fn member(fill: impl FnOnce(&mut Batch)) -> (Member, plain::Receiver<Batch>) {
        let (tell, told) = plain::channel();
        let mut batch = Batch::default();
        fill(&mut batch);
        let answered = Box::new(move |batch| tell.send(batch).expect("the test listens"));
        (Member { batch, answered }, told)
    }

    fn add() -> Action {
        Action::Add(Add::plain(1))
    }

    #[test]
    fn what_is_treated_alike_goes_together() {
        let fills: [fn(&mut Batch); 7] = [
            |batch| _ = batch.push(b"likes", Action::Read),
            |batch| _ = batch.push(b"likes", add()),
            |batch| _ = batch.push_with_id(b"likes", add(), b"id", 0),
            |batch| _ = batch.push(b"views", Action::Read),
            |batch| _ = batch.push(b"views", add()),
            |batch| _ = batch.push_with_id(b"views", add(), b"other", 0),
            |batch| {
                batch.push(b"views", Action::Read);
                batch.freshness = Freshness::Eventual { max_staleness_ms: None };
            },
        ];
        let mut come = fills.map(|fill| member(fill).0).into();
        let sizes: Vec<usize> = crowds(&mut come).iter().map(|crowd| crowd.members.len()).collect();
        assert_eq!(sizes, [2, 2, 2, 1], "looks, once, repeatable, and the one with a wish of its own");
    }

    #[test]
    fn a_crowd_has_an_end() {
        let many = |batch: &mut Batch| (0..5_000).for_each(|_| _ = batch.push(b"likes", add()));
        let mut come = vec![member(many).0, member(many).0];
        assert_eq!(crowds(&mut come).len(), 2);
    }

    #[test]
    fn each_is_answered_when_its_own_requests_are() {
        let of = |key: &[u8]| partition(slot(key), PARTITIONS);
        assert_ne!(of(b"likes"), of(b"views"));
        let (first, first_told) = member(|batch| _ = batch.push(b"likes", add()));
        let (second, second_told) = member(|batch| {
            batch.push(b"views", add());
            batch.push(b"likes", add());
        });
        let (torn, torn_told) = member(|batch| {
            batch.push(b"views", add());
            batch.push(b"likes", add());
            batch.group(0, GroupKind::Atomic);
        });
        let mut crowd = crowds(&mut vec![first, second, torn]).remove(0);
        let mut split = Split::of(&crowd.all, PARTITIONS);
        let parts = std::mem::take(&mut split.parts);
        let mut waiting = Waiting::of(std::mem::take(&mut crowd.members), &parts);
        waiting.answer_known(&split);
        let refusals = |batch: Batch| batch.replies.iter().map(|reply| reply.refusal).collect::<Vec<_>>();
        let refused = vec![Some(Refusal::CrossSlot); 2];
        assert_eq!(torn_told.try_recv().map(refusals), Ok(refused), "nobody needs to be asked");

        let hear = |waiting: &mut Waiting, split: &mut Split, key: &[u8], values: &[i64]| {
            let part = parts.iter().find(|part| part.partition == of(key)).expect("a part");
            let reply = |value: &i64| {
                let mut reply = Reply::state(None);
                reply.cell.value = *value;
                reply
            };
            split.answer(&part.places, &values.iter().map(reply).collect::<Vec<_>>());
            waiting.hear(&part.places, 0, split);
        };
        let values = |batch: Batch| batch.replies.iter().map(|reply| reply.cell.value).collect::<Vec<_>>();
        hear(&mut waiting, &mut split, b"likes", &[1, 2]);
        assert_eq!(first_told.try_recv().map(values), Ok(vec![1]), "it asked nothing else");
        assert!(second_told.try_recv().is_err(), "views are not known");
        hear(&mut waiting, &mut split, b"views", &[7]);
        assert_eq!(second_told.try_recv().map(values), Ok(vec![7, 2]), "in the order in which it asked");
    }
}

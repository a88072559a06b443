//! Has batches done in which there are striped counters: claims first, where there have to be some, then everything, then what was
//! in the way.
//!
//! # Once, wherever it is done
//!
//! An id says a stripe, and which one depends on how many there are. While that changes, nodes know different *editions* of the layout (the version of the
//! policies), retries of one request go to different stripes, and an original may be late on its way to any of them. No two stripes can be
//! changed as one, and still the request must be counted at one of them alone; and whoever keeps asking must get it counted.
//!
//! At every stripe there is, for an id, nothing, a *claim* with an edition, or what was decided. A node that knows edition `e` does this:
//!
//! 1. At all other stripes that any older edition says, for as long as ids of that time are remembered: `Claim::Take(e)`. Where something was
//!    decided, that stays, and the node sends the request there, where it is recognized. A claim of a newer edition stays, and the node
//!    asks for the policies and begins anew. Otherwise the claim is one of `e` now.
//! 2. When all of them have answered: the addition, to the stripe `s(e)` that the edition says. It is done where nothing is, and remembered;
//!    where it was done before, that is answered; where a claim is, it is refused.
//! 3. If it was refused: `Claim::Open(e)` there, which takes a claim away that is not newer than `e`, and 2 again. Where the
//!    claim is newer, policies are asked for, and it begins anew. Where it is not a claim, the id was used for something else, and that is answered.
//!
//! **Not twice.** Suppose that it was done at two stripes, `A` and `B`. Each was done by an edition that says that stripe; let `b`, which says `B`, be the
//! newer of the two. Before `b`'s addition it had claimed `A`, where nothing was done yet, so `A` was done with that claim in the way at first.
//! Look at the newest edition `n` that opened `A` or `B` before it was done there; there is one, for the claim at `A` must have gone. `n` says the one, call it `X`, and
//! before it opened `X` it had claimed the other, `Y`, where nothing was done yet. So that claim, which only grows newer, was opened before `Y` was done,
//! by an edition that is at least `n`, and says `Y` and not `X`: so it is newer than `n`. But `n` was the newest.
//! How late a request or an answer is, and who else asks the same, does not matter to this; only that newer editions know all stripes that older ones say (`Stripes::layout`).
//! A node that never heard of stripes does only 2, at the stripe at distance 0, and opens nothing: it is the oldest edition.
//!
//! **Not refused.** Whoever knows the newest edition is stopped by no claim: at 1 it meets none that is newer, and at 3 it opens. Nobody else's claims at `s(e)` can go on
//! coming, because who makes them knows an older edition, and meets the claims of this one at 1 or 2.
//!
//! **Not lost.** It is acknowledged when a stripe has said that it is done, and stripes that are not written any more are still read.
//!
//! `striping_model.rs` tries this out with whatever may be late, lost, and at the same time.
//!
//! An addition that simply took the place of a claim, whatever the claim's edition, would be counted twice by two nodes that have claimed each other's stripes; one that never did
//! would be refused for good once an addition was lost on its way after the claims, and the number of stripes changed again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use quipu_counting::service::Finished;
use quipu_counting::{Batch, Refusal, Reply, Unavailable};
use tokio::sync::oneshot;

use crate::external::{External, LOOK_INTERVAL, nobody, unreachable};
use crate::policies;
use crate::striped::{AllFound, Found, Layouts, Sent, Striped, is_of_one_stripe, unsupported};
use crate::units::split_over;

/// Before something is asked once more that was in others' way again.
const PAUSE: Duration = Duration::from_millis(10);

impl External {
    /// Which requests are for striped counters. All layouts are of one edition.
    pub(crate) fn layouts(&self, batch: &Batch, now_ms: u64) -> Layouts {
        let (stripes, policies) = {
            let stripes = self.lanes.stripes.read();
            (Arc::clone(&stripes), Arc::clone(&self.lanes.policies.read()))
        };
        let id_window_ms = self.lanes.id_window_ms();
        let layout = |index: usize| {
            let key = batch.key(index);
            if key.is_empty() {
                return None;
            }
            Some((index, stripes.layout(key, &policies, now_ms, id_window_ms)?))
        };
        (0..batch.requests.len()).filter_map(layout).collect()
    }

    /// Readers have to know of stripes before anybody writes to them, so they are noted first, and every node gets the time to hear of
    /// it. Blocks.
    pub(crate) fn note_stripes(
        &self,
        pattern: &[u8],
        before: u16,
        after: u16,
        now_ms: u64,
    ) -> Result<(), Unavailable> {
        let known = Arc::clone(&self.lanes.stripes.read());
        if before == 1 && after == 1 && !known.may_concern(pattern) {
            return Ok(());
        }
        let is_wider = after > known.widest_of(pattern);
        let (links, map, pattern) = (self.links(), self.lanes.map(), pattern.to_vec());
        self.wait(async move {
            let noted = async {
                let address = map.of_policies().ok_or_else(nobody)?;
                let pipeline = policies::stripes_pipeline(&pattern, [before, after], now_ms);
                let mut link = links.get(address).await?;
                pipeline.exec_async(&mut link).await?;
                Ok(())
            };
            noted.await.map_err(|error: redis::RedisError| unreachable(error.into()))?;
            if is_wider {
                tokio::time::sleep(LOOK_INTERVAL * 2).await;
            }
            Ok(())
        })
    }

    pub(crate) fn finish_striped(
        self: Arc<Self>,
        batch: Batch,
        layouts: Layouts,
        now_ms: u64,
        finished: Finished,
    ) {
        let policies = Arc::clone(&self.lanes.policies.read());
        if let Some(why) = unsupported(&batch, &layouts, &policies) {
            finished(batch, Err(Unavailable::Unsupported(why)));
            return;
        }
        tokio::spawn(async move {
            let began = Instant::now();
            let mut asked = self.ask_striped(batch, layouts, now_ms).await;
            self.ask_again(&mut asked, now_ms, began).await;
            asked.finish(finished);
        });
    }

    /// For requests to counters of which this node does not know that they lie in stripes: where others do, an id may be claimed.
    pub(crate) fn minding_late(self: Arc<Self>, now_ms: u64, finished: Finished) -> Finished {
        Box::new(move |mut batch, result| {
            let may_be_claimed = |index: &usize| {
                batch.replies.get(*index).is_some_and(|reply| reply.refusal == Some(Refusal::IdReused))
                    && is_of_one_stripe(&batch, *index)
                    && !batch.groups.iter().any(|group| (group.start..group.end).contains(index))
            };
            let mut again: Vec<usize> = (0..batch.requests.len()).filter(may_be_claimed).collect();
            if again.is_empty() || result.is_err() {
                return finished(batch, result);
            }
            let handle = self.handle.clone();
            handle.spawn(async move {
                let behind_ms = (0..batch.requests.len()).map(|place| batch.staleness_ms(place)).collect();
                let told = Ok((std::mem::take(&mut batch.replies), behind_ms));
                // Where this cannot be known now, it is not known either that the id was used for something else.
                let is_outdated = self.look_at_policies().await.is_err();
                let layouts = self.layouts(&batch, now_ms);
                again.retain(|index| is_outdated || layouts.contains_key(index));
                let mut asked = Asked { batch, told, again, is_outdated };
                self.ask_again(&mut asked, now_ms, Instant::now()).await;
                asked.finish(finished);
            });
        })
    }

    /// Sends requests to the groups that they are for, and waits for what they are told.
    async fn ask(&self, sent: Sent, now_ms: u64) -> Result<Batch, Unavailable> {
        let (tell, told) = oneshot::channel();
        let Sent { batch, groups, claim } = sent;
        let finished = move |batch: Batch, result: Result<u64, Unavailable>| {
            // Nobody may be left to hear it.
            let _ = tell.send(result.map(|_| batch));
        };
        let group_of = |_: &Batch, index: usize| groups[index];
        if claim.is_none() {
            self.send(batch, now_ms, Box::new(finished), group_of);
        } else {
            let mut split = split_over(batch, now_ms, Box::new(finished), group_of);
            split.iter_mut().for_each(|unit| unit.claim = claim);
            self.lanes.add(split);
        }
        told.await.unwrap_or_else(|_| Err(Unavailable::Unreadable("the node is stopping".into())))
    }

    /// The three steps, each at most once; before what is for all stripes, a look at all of them.
    async fn ask_striped(&self, batch: Batch, layouts: Layouts, now_ms: u64) -> Asked {
        let began = Instant::now();
        let later_ms = || now_ms.saturating_add(began.elapsed().as_millis() as u64);
        let (claims, of) = Striped::claims(&batch, &layouts);
        let mut found = AllFound::new();
        if !of.is_empty() {
            match self.ask(claims, now_ms).await {
                Ok(claimed) => of
                    .into_iter()
                    .zip(&claimed.replies)
                    .for_each(|((index, distance), reply)| hear_claim(&mut found, index, distance, reply)),
                Err(why) => return Asked::in_vain(batch, why),
            }
        }
        let (peeks, of) = Striped::peeks(&batch, &layouts);
        if !of.is_empty() {
            match self.ask(peeks, later_ms()).await {
                Ok(peeked) => of
                    .into_iter()
                    .zip(&peeked.replies)
                    .for_each(|(index, reply)| hear_peek(&mut found, index, reply)),
                Err(why) => return Asked::in_vain(batch, why),
            }
        }
        let draw = || self.lanes.draw();
        let (striped, sent) = Striped::taken_apart(batch, layouts, &found, &self.totals, draw);
        let done = match self.ask(sent, later_ms()).await {
            Ok(done) => done,
            Err(why) => return Asked::in_vain(striped.asked, why),
        };
        let (mut replies, staleness_ms) = striped.put_together(&done, &self.totals);
        let outdated = found.iter().filter(|(_, found)| **found == Found::Outdated);
        let mut again: Vec<usize> = outdated.map(|(index, _)| *index).collect();
        let mut is_outdated = !again.is_empty();
        let blocked = striped.blocked(&done.replies, &found);
        if !blocked.is_empty() {
            let opened = self.ask(striped.opens(&blocked), later_ms()).await;
            let opened = opened.map(|opened| opened.replies).unwrap_or_default();
            for (place, index) in blocked.into_iter().enumerate() {
                match opened.get(place).map(heard) {
                    Some(Heard::Free | Heard::Done) => again.push(index),
                    Some(Heard::Outdated) => {
                        again.push(index);
                        is_outdated = true;
                    }
                    Some(Heard::Other) => {}
                    Some(Heard::Nothing) | None => replies[index] = not_done(),
                }
            }
        }
        Asked { batch: striped.asked, told: Ok((replies, staleness_ms)), again, is_outdated }
    }

    /// Begins anew with what was in the way of claims, or had claims in its way, until it is decided or its time is over.
    async fn ask_again(&self, asked: &mut Asked, now_ms: u64, began: Instant) {
        let Ok((replies, staleness_ms)) = &mut asked.told else { return };
        while !asked.again.is_empty() {
            asked.again.iter().for_each(|index| replies[*index] = not_done());
            let is_over = began.elapsed() > self.lanes.options.patience;
            if is_over || asked.is_outdated && self.look_at_policies().await.is_err() {
                return;
            }
            let mut again = Batch::default();
            asked.again.iter().for_each(|index| _ = again.push_from(&asked.batch, *index));
            let now_ms = now_ms.saturating_add(began.elapsed().as_millis() as u64);
            let layouts = self.layouts(&again, now_ms);
            let Asked { told, again, is_outdated, .. } = self.ask_striped(again, layouts, now_ms).await;
            let Ok((told, behind)) = told else { return };
            for ((index, reply), behind_ms) in asked.again.iter().zip(told).zip(behind) {
                replies[*index] = reply;
                staleness_ms[*index] = behind_ms;
            }
            asked.again = again.into_iter().map(|place| asked.again[place]).collect();
            asked.is_outdated = is_outdated;
            if !asked.again.is_empty() {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// A batch, and what its requests are told.
struct Asked {
    batch: Batch,
    told: Result<(Vec<Reply>, Vec<u64>), Unavailable>,
    /// Requests that were not done, because of claims.
    again: Vec<usize>,
    /// Somebody knows a newer layout.
    is_outdated: bool,
}

impl Asked {
    fn in_vain(batch: Batch, why: Unavailable) -> Asked {
        Asked { batch, told: Err(why), again: Vec::new(), is_outdated: false }
    }

    fn finish(self, finished: Finished) {
        let mut batch = self.batch;
        match self.told {
            Ok((replies, staleness_ms)) => {
                batch.replies = replies;
                for (place, staleness_ms) in staleness_ms.into_iter().enumerate() {
                    batch.note_staleness(&[place], staleness_ms);
                }
                finished(batch, Ok(0));
            }
            Err(why) => finished(batch, Err(why)),
        }
    }
}

/// What a stripe says to a claim.
enum Heard {
    /// Nobody else has a say any more.
    Free,
    /// The request was done there.
    Done,
    /// Something else was asked under the id there.
    Other,
    /// There is a newer claim.
    Outdated,
    /// It has not said anything.
    Nothing,
}

fn heard(reply: &Reply) -> Heard {
    match reply.refusal {
        _ if reply.duplicate => Heard::Done,
        None => Heard::Free,
        Some(Refusal::IdReused) => Heard::Other,
        Some(Refusal::ConditionUnmet) => Heard::Outdated,
        Some(_) => Heard::Nothing,
    }
}

fn hear_claim(found: &mut AllFound, index: usize, distance: u16, reply: &Reply) {
    let heard = match heard(reply) {
        Heard::Free => return,
        Heard::Done | Heard::Other => Found::At(distance),
        Heard::Outdated => Found::Outdated,
        Heard::Nothing => Found::Unknown,
    };
    match found.get(&index) {
        Some(Found::At(_)) => {}
        Some(Found::Outdated) if heard == Found::Unknown => {}
        _ => _ = found.insert(index, heard),
    }
}

/// What is for all stripes is done at none of them if one knows its id for something else; a claim is for an addition.
fn hear_peek(found: &mut AllFound, index: usize, reply: &Reply) {
    match heard(reply) {
        Heard::Free | Heard::Done => {}
        Heard::Other | Heard::Outdated => _ = found.insert(index, Found::Other),
        Heard::Nothing => _ = found.entry(index).or_insert(Found::Unknown),
    }
}

/// A claim was in the way, and nothing was done.
fn not_done() -> Reply {
    Reply { refusal: Some(Refusal::NoLeader), ..Reply::state(None) }
}

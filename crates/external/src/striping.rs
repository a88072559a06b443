//! Has batches done in which there are striped counters: claims first, where there have to be some, then everything, then what was late.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use quipu_counting::service::Finished;
use quipu_counting::{Batch, Refusal, Reply, Unavailable};
use tokio::sync::oneshot;

use crate::external::{External, LOOK_INTERVAL, nobody, unreachable};
use crate::policies;
use crate::striped::{Layouts, Sent, Striped, is_of_one_stripe, unsupported};

impl External {
    /// Which requests are for striped counters.
    pub(crate) fn layouts(&self, batch: &Batch, now_ms: u64) -> Layouts {
        let stripes = Arc::clone(&self.lanes.stripes.read());
        let policies = Arc::clone(&self.lanes.policies.read());
        let id_window_ms = self.lanes.options.id_window_ms;
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
    pub(crate) fn note_stripes(&self, pattern: &[u8], stripes: u16, now_ms: u64) -> Result<(), Unavailable> {
        let known = Arc::clone(&self.lanes.stripes.read());
        if stripes == 1 && !known.knows(pattern) {
            return Ok(());
        }
        let is_wider = stripes > known.widest_of(pattern);
        let (links, map, pattern) = (self.links(), self.lanes.map(), pattern.to_vec());
        self.wait(async move {
            let noted = async {
                let address = map.of_policies().ok_or_else(nobody)?;
                let pipeline = policies::stripes_pipeline(&pattern, stripes, now_ms);
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
        if let Some(why) = unsupported(&batch, &layouts) {
            finished(batch, Err(Unavailable::Unsupported(why)));
            return;
        }
        tokio::spawn(async move {
            let began = Instant::now();
            let mut asked = self.ask_striped(batch, layouts, now_ms).await;
            self.ask_late_again(&mut asked, now_ms, began).await;
            let Asked { mut batch, told, .. } = asked;
            match told {
                Ok((replies, staleness_ms)) => {
                    batch.replies = replies;
                    for (place, staleness_ms) in staleness_ms.into_iter().enumerate() {
                        batch.note_staleness(&[place], staleness_ms);
                    }
                    finished(batch, Ok(0));
                }
                Err(why) => finished(batch, Err(why)),
            }
        });
    }

    /// For requests to counters of which this node does not know that they lie in stripes: where others do, an id may be claimed.
    pub(crate) fn minding_late(self: Arc<Self>, now_ms: u64, finished: Finished) -> Finished {
        Box::new(move |mut batch, result| {
            let is_late = |index: &usize| {
                batch.replies.get(*index).is_some_and(|reply| reply.refusal == Some(Refusal::IdReused))
                    && is_of_one_stripe(&batch.requests[*index].action)
                    && !batch.groups.iter().any(|group| (group.start..group.end).contains(index))
            };
            let late: Vec<usize> = (0..batch.requests.len()).filter(is_late).collect();
            if late.is_empty() || result.is_err() {
                return finished(batch, result);
            }
            let handle = self.handle.clone();
            handle.spawn(async move {
                let behind_ms = (0..batch.requests.len()).map(|place| batch.staleness_ms(place)).collect();
                let told = Ok((std::mem::take(&mut batch.replies), behind_ms));
                let mut asked = Asked { batch, layouts: Layouts::default(), told, late };
                self.ask_late_again(&mut asked, now_ms, Instant::now()).await;
                let Asked { mut batch, told, .. } = asked;
                batch.replies = told.map(|(replies, _)| replies).unwrap_or_default();
                finished(batch, result);
            });
        })
    }

    /// Sends requests to the groups that they are for, and waits for what they are told.
    async fn ask(&self, sent: Sent, now_ms: u64) -> Result<Batch, Unavailable> {
        let (tell, told) = oneshot::channel();
        let Sent { batch, groups } = sent;
        let finished = move |batch: Batch, result: Result<u64, Unavailable>| {
            // Nobody may be left to hear it.
            let _ = tell.send(result.map(|_| batch));
        };
        self.send(batch, now_ms, Box::new(finished), |_, index| groups[index]);
        told.await.unwrap_or_else(|_| Err(Unavailable::Unreadable("the node is stopping".into())))
    }

    async fn ask_striped(&self, batch: Batch, layouts: Layouts, now_ms: u64) -> Asked {
        let began = Instant::now();
        let (claims, of) = Striped::claims(&batch, &layouts);
        let mut found: HashMap<usize, Result<u16, Refusal>> = HashMap::new();
        if !of.is_empty() {
            match self.ask(claims, now_ms).await {
                Ok(claimed) => of
                    .into_iter()
                    .zip(claimed.replies)
                    .for_each(|(claim, reply)| hear_claim(&mut found, claim, &reply)),
                Err(why) => return Asked { batch, layouts, told: Err(why), late: Vec::new() },
            }
        }
        let draw = || self.lanes.draw();
        let (striped, sent) = Striped::taken_apart(batch, layouts, &found, &self.totals, draw);
        let now_ms = now_ms.saturating_add(began.elapsed().as_millis() as u64);
        let done = self.ask(sent, now_ms).await;
        let mut late = Vec::new();
        let told = done.map(|done| {
            late = striped.late(&done.replies);
            late.retain(|index| !found.contains_key(index));
            striped.put_together(&done, &self.totals)
        });
        let (batch, layouts) = striped.into_asked();
        Asked { batch, layouts, told, late }
    }

    /// An id that a stripe knows for something else may be claimed there: if the number of stripes is another by now than the one by which it
    /// was asked, it is asked again, and as long as that cannot be known, nobody is told that the id was used before.
    async fn ask_late_again(&self, asked: &mut Asked, now_ms: u64, began: Instant) {
        let Ok((replies, staleness_ms)) = &mut asked.told else { return };
        while !asked.late.is_empty() {
            let is_known = self.look_at_policies().await.is_ok();
            let after = self.layouts(&asked.batch, now_ms);
            let layouts = &asked.layouts;
            asked.late.retain(|index| !is_known || layouts.get(index) != after.get(index));
            for index in &asked.late {
                replies[*index] = Reply { refusal: Some(Refusal::NoLeader), ..Reply::state(None) };
            }
            if !is_known || began.elapsed() > self.lanes.options.patience {
                return;
            }
            let mut again = Batch::default();
            asked.late.iter().for_each(|index| _ = again.push_from(&asked.batch, *index));
            let now_ms = now_ms.saturating_add(began.elapsed().as_millis() as u64);
            let layouts = self.layouts(&again, now_ms);
            let Asked { layouts, told, late, .. } = self.ask_striped(again, layouts, now_ms).await;
            let Ok((told, behind)) = told else {
                for index in &asked.late {
                    replies[*index] = Reply { refusal: Some(Refusal::OutcomeUnknown), ..Reply::state(None) };
                }
                return;
            };
            for ((index, reply), behind_ms) in asked.late.iter().zip(told).zip(behind) {
                replies[*index] = reply;
                staleness_ms[*index] = behind_ms;
            }
            for (place, layout) in layouts {
                asked.layouts.insert(asked.late[place], layout);
            }
            asked.late = late.into_iter().map(|place| asked.late[place]).collect();
        }
    }
}

/// A batch, and what its requests are told.
struct Asked {
    batch: Batch,
    /// By which they were asked.
    layouts: Layouts,
    told: Result<(Vec<Reply>, Vec<u64>), Unavailable>,
    /// Requests whose ids a stripe knew for something else.
    late: Vec<usize>,
}

/// Where an id was used before; or that this cannot be known now, and nothing was done.
fn hear_claim(
    found: &mut HashMap<usize, Result<u16, Refusal>>,
    (index, distance): (usize, u16),
    reply: &Reply,
) {
    match reply.refusal {
        Some(Refusal::IdReused) => _ = found.insert(index, Ok(distance)),
        Some(_) => _ = found.entry(index).or_insert(Err(Refusal::NoLeader)),
        None => {}
    }
}

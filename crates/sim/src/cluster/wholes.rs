//! A client of counters that are more than numbers: what it was told must be there in the end, on every replica.
//!
//! It sees items, sets stock aside and takes or gives it back, and takes of a quota, each under a request id and asked again until
//! there is an answer. So at the end it is known exactly what there must be.

use std::sync::Arc;
use std::time::Duration;

use quipu_counting::body::{State, put_frame};
use quipu_counting::unique::hash;
use quipu_counting::window::Frame;
use quipu_counting::{Acquire, Action, Add, Batch, Body, Detail, Ending, Refusal, Reply};
use rand::Rng;
use rand::rngs::SmallRng;
use tokio::time::sleep;

use super::clients::{ask_once, essence};
use super::world::World;
use crate::violation::{Invariant, Violation};

const SEEN: &[u8] = b"whole:seen";
const STOCK: &[u8] = b"whole:stock";
const QUOTA: &[u8] = b"whole:quota";
/// How much of the stock there is.
const STOCK_MAX: i64 = 15;
/// How often the quota may be taken.
const QUOTA_MAX: i64 = 12;
/// Longer than any world lasts, clocks that are wrong included.
const LONG_MS: u64 = 10 * 365 * 86_400_000;
/// What it asks for.
const REQUESTS: usize = 40;

/// A request with all it takes to ask again.
struct Asked {
    key: &'static [u8],
    action: Action,
    payload: Vec<u8>,
    id: String,
}

impl Asked {
    fn batch(&self) -> Batch {
        let mut batch = Batch::default();
        let payload = batch.intern(&self.payload);
        batch.push_with_id(self.key, self.action.with_payload(payload), self.id.as_bytes(), 0);
        batch
    }
}

/// What it knows.
#[derive(Default)]
struct Known {
    seen: Vec<u64>,
    /// Births and numbers of what is set aside.
    held: Vec<(u64, u64)>,
    taken: i64,
    granted: i64,
    /// What was answered, and would be again.
    answered: Vec<(Asked, Reply)>,
}

/// One such client, from its first request to its last look.
pub async fn run(world: Arc<World>, mut random: SmallRng) -> Result<(), Violation> {
    let mut known = Known::default();
    for request in 0..REQUESTS {
        sleep(Duration::from_millis(random.random_range(0..200))).await;
        let asked = draw(&mut random, &mut known, request);
        let reply = ask(&world, &mut random, &asked).await;
        world.trace(&format!("{:?}: {reply:?}", asked.action));
        learn(&mut known, &asked, &reply)?;
        if reply.refusal.is_none_or(Refusal::is_remembered) {
            known.answered.push((asked, reply));
        }
        if random.random_ratio(1, 4) && !known.answered.is_empty() {
            let (asked, first) = &known.answered[random.random_range(0..known.answered.len())];
            let again = ask(&world, &mut random, asked).await;
            same(asked, first, &again)?;
        }
    }
    for (asked, first) in &known.answered {
        same(asked, first, &ask(&world, &mut random, asked).await)?;
    }
    look(&world, &mut random, &known).await
}

fn draw(random: &mut SmallRng, known: &mut Known, request: usize) -> Asked {
    let id = format!("whole:{request}");
    let ask = |key, action, payload| Asked { key, action, payload, id };
    match random.random_range(0..4) {
        0 => {
            let items: Vec<u64> =
                (0..random.random_range(1..100)).map(|_| hash(&random.random::<[u8; 8]>())).collect();
            let payload = items.iter().flat_map(|item| item.to_le_bytes()).collect();
            ask(SEEN, Action::Observe { items: Default::default(), at_ms: None }, payload)
        }
        1 => {
            let add = Add { max: STOCK_MAX, ..Add::plain(random.random_range(1..4)) };
            ask(STOCK, Action::Reserve(add, LONG_MS), Vec::new())
        }
        2 if !known.held.is_empty() => {
            let (birth, number) = known.held.swap_remove(random.random_range(0..known.held.len()));
            let ending = if random.random_ratio(2, 3) { Ending::Commit(None) } else { Ending::Void };
            ask(STOCK, Action::End { birth, number, ending }, Vec::new())
        }
        _ => {
            let mut payload = Vec::new();
            put_frame(&mut payload, &Frame::Fixed { span_ms: LONG_MS });
            let (limit, frame) = (Some(QUOTA_MAX), Default::default());
            ask(QUOTA, Action::Acquire(Acquire { amount: 1, limit, frame, is_soft: false }), payload)
        }
    }
}

fn learn(known: &mut Known, asked: &Asked, reply: &Reply) -> Result<(), Violation> {
    match (asked.action, reply.refusal, reply.detail.as_deref()) {
        (Action::Observe { .. }, None, Some(Detail::Seen { .. })) => {
            known.seen.extend(quipu_counting::body::read_hashes(&asked.payload));
        }
        (Action::Reserve(..), None, Some(Detail::Hold { number, .. })) => {
            known.held.push((reply.cell.birth, *number));
        }
        (Action::Reserve(..), Some(Refusal::AboveCeiling), _) => {}
        (Action::End { .. }, None, _) => known.taken += reply.applied,
        (Action::Acquire(_), None, Some(Detail::Quota { used, .. })) => {
            known.granted += 1;
            if *used != known.granted {
                return Err(wrong(format!("{used} of the quota are used, {} were granted", known.granted)));
            }
        }
        (Action::Acquire(_), Some(Refusal::OverQuota), _) if known.granted == QUOTA_MAX => {}
        other => return Err(wrong(format!("{other:?}"))),
    }
    Ok(())
}

fn wrong(what: String) -> Violation {
    Violation::new(Invariant::Answers, what)
}

fn same(asked: &Asked, first: &Reply, again: &Reply) -> Result<(), Violation> {
    let hold = |reply: &Reply| match reply.detail.as_deref() {
        Some(Detail::Hold { number, expires_at_ms }) => Some((*number, *expires_at_ms)),
        _ => None,
    };
    if again.duplicate && essence(again) == essence(first) && hold(again) == hold(first) {
        return Ok(());
    }
    let what = format!("{:?} was answered {first:?} and then {again:?}", asked.action);
    Err(Violation::new(Invariant::ExactlyOnce, what))
}

async fn ask(world: &World, random: &mut SmallRng, asked: &Asked) -> Reply {
    loop {
        if let Some(reply) = ask_once(world, random, asked.batch()).await {
            return reply;
        }
        sleep(Duration::from_millis(random.random_range(1..200))).await;
    }
}

/// The body of a counter that was born.
async fn body(world: &World, random: &mut SmallRng, key: &[u8]) -> Option<(i64, Arc<Body>)> {
    loop {
        let mut batch = Batch::default();
        batch.push(key, Action::Read);
        if let Some(reply) = ask_once(world, random, batch).await {
            return match reply.detail.as_deref() {
                Some(Detail::Body(body, _)) => Some((reply.cell.value, Arc::clone(body))),
                _ => None,
            };
        }
        sleep(Duration::from_millis(random.random_range(1..200))).await;
    }
}

/// What must be there in the end.
async fn look(world: &World, random: &mut SmallRng, known: &Known) -> Result<(), Violation> {
    let lost = |what: String| Err(Violation::new(Invariant::Survival, what));
    if let Some((_, body)) = body(world, random, SEEN).await {
        let State::Unique(unique) = &body.state else { return lost(format!("{body:?}")) };
        if let Some(item) = known.seen.iter().find(|item| unique.would_see(**item).is_new) {
            return lost(format!("item {item} was seen, and is not known"));
        }
    } else if !known.seen.is_empty() {
        return lost("all that was seen".into());
    }
    if let Some((value, body)) = body(world, random, STOCK).await {
        let numbers: Vec<u64> = body.holds.iter().map(|(number, _)| number).collect();
        let mut held: Vec<u64> = known.held.iter().map(|(_, number)| *number).collect();
        held.sort_unstable();
        if (value, &numbers) != (known.taken, &held) {
            return lost(format!(
                "{value} taken and {numbers:?} held, expected {} and {held:?}",
                known.taken
            ));
        }
    } else if known.taken != 0 || !known.held.is_empty() {
        return lost("the stock".into());
    }
    let granted = body(world, random, QUOTA).await.map_or(0, |(value, _)| value);
    if granted != known.granted {
        return lost(format!("{granted} of the quota were taken, {} granted", known.granted));
    }
    Ok(())
}

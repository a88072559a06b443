//! Who asks, and asks again until somebody answers.

use std::sync::Arc;
use std::time::Duration;

use quipu_counting::{Action, Add, Batch, Refusal, Reply};
use quipu_history::{Operation, Outcome};
use rand::Rng;
use rand::rngs::SmallRng;
use tokio::time::{sleep, timeout};

use super::world::World;
use crate::violation::{Invariant, Violation};

/// Counters of every world.
pub const KEYS: usize = 6;

/// The counter of those who add without an id.
pub const TALLY: &[u8] = b"tally";

/// What is known of it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub asked: i64,
    pub answered: i64,
}

/// The name of a counter.
pub fn key(number: usize) -> String {
    format!("counter:{number}")
}

/// A change that was asked for, with all it takes to ask again.
#[derive(Clone, Debug)]
pub struct Asked {
    pub key: usize,
    pub delta: i64,
    pub min: Option<i64>,
    pub id: String,
}

impl Asked {
    pub fn batch(&self) -> Batch {
        let add = Add { min: self.min.unwrap_or(i64::MIN), ..Add::plain(self.delta) };
        let mut batch = Batch::default();
        batch.push_with_id(key(self.key).as_bytes(), Action::Add(add), self.id.as_bytes(), 0);
        batch
    }
}

/// What was asked at `asked_us` and is answered now.
fn operation(world: &World, key: usize, client: usize, asked_us: u64, outcome: Outcome) -> Operation {
    let (key, client, answered_us) = (key as u32, client as u32, world.now());
    Operation { key, client, asked_us, answered_us, outcome }
}

/// What of an answer must be the same each time it is given.
pub fn essence(reply: &Reply) -> (Option<Refusal>, i64, i64, u64) {
    (reply.refusal, reply.previous, reply.cell.value, reply.cell.version)
}

fn is_over(reply: &Reply) -> bool {
    !matches!(
        reply.refusal,
        Some(
            Refusal::NoLeader
                | Refusal::NoQuorum
                | Refusal::OutcomeUnknown
                | Refusal::Overloaded
                | Refusal::NotMember
        )
    )
}

/// Asks some node once; `None` when it did not answer, or not for certain.
pub async fn ask_once(world: &World, random: &mut SmallRng, mut batch: Batch) -> Option<Reply> {
    let ids = world.machines.ids();
    let node = world.machines.node(ids[random.random_range(0..ids.len())]);
    let within = Duration::from_millis(random.random_range(50..5_000));
    let done = match node {
        Some(node) => timeout(within, async {
            node.execute(&mut batch).await;
            batch.replies.first().cloned()
        })
        .await
        .ok()
        .flatten(),
        None => None,
    };
    done.filter(is_over)
}

/// Asks until there is an answer.
pub async fn ask(world: &World, random: &mut SmallRng, asked: &Asked) -> Reply {
    loop {
        if let Some(reply) = ask_once(world, random, asked.batch()).await {
            return reply;
        }
        sleep(Duration::from_millis(random.random_range(1..200))).await;
    }
}

/// One client, from its first request to its last.
pub async fn run(
    world: Arc<World>,
    number: usize,
    requests: usize,
    mut random: SmallRng,
) -> Result<(), Violation> {
    for request in 0..requests {
        sleep(Duration::from_millis(random.random_range(0..120))).await;
        if random.random_ratio(1, 5) {
            tally(&world, &mut random).await;
            continue;
        }
        // Most of them want the same few.
        let key = random.random_range(0..KEYS).min(random.random_range(0..KEYS));
        if random.random_ratio(2, 5) {
            read(&world, &mut random, key).await;
            continue;
        }
        let delta = random.random_range(-3..=4);
        let min = random.random_ratio(1, 2).then_some(0);
        let asked = Asked { key, delta, min, id: format!("{number}:{request}") };
        let invoked = world.now();
        let reply = ask(&world, &mut random, &asked).await;
        world.asked.lock().push((asked.clone(), essence(&reply)));
        let (value, version) = (reply.cell.value, reply.cell.version);
        let outcome = match (reply.refusal, min) {
            (None, _) => Outcome::Added { delta, value, version },
            (Some(Refusal::BelowFloor), Some(min)) => Outcome::Refused { delta, min, value, version },
            (Some(refusal), _) => {
                let what = format!("{asked:?} was refused as {refusal:?}");
                return Err(Violation::new(Invariant::Answers, what));
            }
        };
        world.saw(operation(&world, key, number, invoked, outcome));
        if random.random_ratio(1, 6) {
            let again = ask(&world, &mut random, &asked).await;
            same(&asked, essence(&reply), &again)?;
        }
    }
    Ok(())
}

/// Adds one without an id, once: if there is no answer, nobody will ever know.
async fn tally(world: &World, random: &mut SmallRng) {
    let mut batch = Batch::default();
    batch.push(TALLY, Action::Add(Add::plain(1)));
    world.tally.lock().asked += 1;
    let is_done = ask_once(world, random, batch).await.is_some();
    world.tally.lock().answered += i64::from(is_done);
}

/// A repeated request must be answered as the first time.
pub fn same(asked: &Asked, first: (Option<Refusal>, i64, i64, u64), again: &Reply) -> Result<(), Violation> {
    if again.duplicate && essence(again) == first {
        return Ok(());
    }
    let what = format!("{asked:?} was answered {first:?} and then {again:?}");
    Err(Violation::new(Invariant::ExactlyOnce, what))
}

/// The value of the tally.
pub async fn read_tally(world: &World, random: &mut SmallRng) -> i64 {
    loop {
        let mut batch = Batch::default();
        batch.push(TALLY, Action::Read);
        if let Some(reply) = ask_once(world, random, batch).await {
            return reply.cell.value;
        }
        sleep(Duration::from_millis(random.random_range(1..200))).await;
    }
}

/// Reads once and for all; a read that was not answered might as well not have been.
pub async fn read(world: &World, random: &mut SmallRng, number: usize) -> (i64, u64) {
    loop {
        let mut batch = Batch::default();
        batch.push(key(number).as_bytes(), Action::Read);
        let invoked = world.now();
        if let Some(reply) = ask_once(world, random, batch).await {
            let (value, version) = (reply.cell.value, reply.cell.version);
            world.saw(operation(world, number, 0, invoked, Outcome::Read { value, version }));
            return (value, version);
        }
        sleep(Duration::from_millis(random.random_range(1..200))).await;
    }
}

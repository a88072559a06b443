//! The hot tier loses everything, request ids too. PostgreSQL is the standby: values and ids come back from there, and who was
//! acknowledged after the last flush and asks again is counted, because the loss took the count with the id.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use serde_json::json;

use super::ending::Scratch;
use super::load::{Acknowledged, Load, values};
use super::stage::{Postgres, Redis};
use super::talk::{Reply, Talk};
use super::{Difference, Node, Story};

/// Counters, and clients that count on them.
const KEYS: usize = 1_000;
const CLIENTS: usize = 16;
/// How long they count before the loss and after it.
const COUNT: Duration = Duration::from_secs(5);
/// How long one request may be refused.
const PATIENCE: Duration = Duration::from_secs(60);
const RETRY_PAUSE: Duration = Duration::from_millis(50);

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(&self) -> Result<()> {
        let story = Story::new(self.json);
        let folder = Scratch::new()?;
        let (redis, postgres) = (Redis::start(folder.path())?, Postgres::start(folder.path())?);
        let arguments = ["--backend", &redis.url(), "--archive", &postgres.url()];
        let node = Node::start(folder.path(), "node", &arguments)?;
        story.tell("a Redis, a PostgreSQL behind it, and a node of quipu")?;
        let keys: Vec<String> = (0..KEYS).map(|number| format!("drill:{number}")).collect();
        let load = Load::start(&[node.resp], &keys, CLIENTS, "lost");
        thread::sleep(COUNT);
        let before = load.look();
        story.tell(&format!("{} increments acknowledged", before.answered))?;
        Talk::open(redis.address)?.ask(&["FLUSHALL"])?;
        let lost_at = Instant::now();
        story.tell("FLUSHALL: all counters and all request ids are gone from Redis")?;
        // Answers of before are still on their way; who is refused came after.
        let mut was_refused = false;
        loop {
            let seen = load.look();
            if was_refused && seen.answered > 0 {
                break;
            }
            was_refused |= seen.retries > 0;
            ensure!(lost_at.elapsed() < PATIENCE, "it does not come back");
            thread::sleep(Duration::from_millis(10));
        }
        let recovered_ms = lost_at.elapsed().as_millis() as u64;
        story.tell(&format!("counting goes on after {recovered_ms} ms, from what PostgreSQL has"))?;
        thread::sleep(COUNT);
        let acknowledged = load.stop()?;
        let counts = acknowledged.counts();
        let total: i64 = counts.values().sum();
        let gap = Difference::between(&counts, &values(node.resp, counts.keys().cloned())?);
        story.tell(&format!(
            "of {total} acknowledged increments {} are gone: those after the last flush; {} too many",
            gap.missing, gap.too_many
        ))?;
        let duplicates = ask_again(&node, &acknowledged)?;
        story.tell(&format!(
            "all asked again: {duplicates} were known, {} are counted anew",
            total - duplicates
        ))?;
        let healed = Difference::between(&counts, &values(node.resp, counts.keys().cloned())?);
        let text = format!(
            "{total} increments acknowledged, {} of them lost with their ids in a FLUSHALL, none counted twice. After clients \
             asked once more with the same ids: {} missing, {} too many.",
            gap.missing, healed.missing, healed.too_many
        );
        let figures = json!({
            "drill": "dedupe-lost", "acknowledged": total, "recoveredMs": recovered_ms, "gap": gap.missing,
            "duplicates": duplicates, "missing": healed.missing, "tooMany": healed.too_many,
        });
        story.conclude(&text, figures)?;
        ensure!(gap.too_many == 0 && healed == Difference::default(), "not everything was counted once");
        Ok(())
    }
}

/// Sends every request once more; how many of them were known.
fn ask_again(node: &Node, acknowledged: &Acknowledged) -> Result<i64> {
    let mut talk = Talk::open(node.resp)?;
    let mut duplicates = 0;
    let began = Instant::now();
    let requests: Vec<(&str, String)> = acknowledged.requests().collect();
    for some in requests.chunks(256) {
        for (key, id) in some {
            talk.send(&["Q.ADD", key, "1", "ID", id])?;
        }
        for (key, id) in some {
            let mut reply = talk.hear()?;
            while let Reply::Error(why) = reply {
                ensure!(began.elapsed() < PATIENCE, "{key} is refused: {why}");
                thread::sleep(RETRY_PAUSE);
                reply = Talk::open(node.resp)?.ask(&["Q.ADD", key, "1", "ID", id])?;
            }
            let Reply::Array(told) = reply else { bail!("Q.ADD answered {reply:?}") };
            duplicates += i64::from(told.get(3) == Some(&Reply::Integer(1)));
        }
    }
    Ok(duplicates)
}

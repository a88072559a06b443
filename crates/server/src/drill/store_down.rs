//! A master of the hot tier dies: breaker, retries, failover; and what Redis's own replication lost.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use quipu_counting::slot::slot;
use quipu_external::{group, tag};
use serde_json::json;

use super::ending::Scratch;
use super::load::{Load, values};
use super::stage::RedisCluster;
use super::{Difference, Node, Story};

/// Counters on each master, and clients that count on them.
const KEYS: usize = 50;
const CLIENTS: usize = 8;
/// Between lines.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Lines before the failure.
const LOOKS_BEFORE: usize = 4;
/// The slots have recovered when so many looks in a row have shown answers; and how long to wait for that.
const LOOKS_AFTER: usize = 4;
const RECOVER_MAX: Duration = Duration::from_secs(60);
/// Where replicas are waited for, somebody starts the dead one again after this.
const START_AFTER: Duration = Duration::from_secs(5);

#[derive(Debug, clap::Args)]
pub struct Args {
    /// An increment is acknowledged when so many replicas have it
    #[arg(long, default_value_t = 0)]
    wait_replicas: u32,
    /// Print JSON, one object a line
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(&self) -> Result<()> {
        let story = Story::new(self.json);
        let folder = Scratch::new()?;
        let mut cluster = RedisCluster::start(folder.path())?;
        let wait = self.wait_replicas.to_string();
        let backend = ["--backend", &cluster.url()].map(str::to_string);
        let mut arguments: Vec<&str> = backend.iter().map(String::as_str).collect();
        if self.wait_replicas > 0 {
            arguments.extend(["--wait-replicas", &wait]);
        }
        let node = Node::start(folder.path(), "node", &arguments)?;
        story.tell("a Redis Cluster of three masters with a replica each, and a node of quipu on it")?;

        let masters = cluster.slots()?;
        let (victim, ranges) = masters.first().context("no master has any slot")?.clone();
        let is_victims = |key: &String| {
            let home = slot(tag(group(key.as_bytes())).as_bytes());
            ranges.iter().any(|(from, to)| (*from..=*to).contains(&home))
        };
        let all: Vec<String> = (0..20 * KEYS).map(|number| format!("drill:{number}")).collect();
        let (mut down, mut up): (Vec<String>, Vec<String>) = all.into_iter().partition(is_victims);
        down.truncate(KEYS);
        up.truncate(2 * KEYS);
        let loads =
            [("down", &down), ("up", &up)].map(|(name, keys)| Load::start(&[node.resp], keys, CLIENTS, name));
        story.tell("answered each half second, with the longest wait:  slots of one master | all others")?;
        for _ in 0..LOOKS_BEFORE {
            look(&story, &loads)?;
        }
        let place = cluster.servers.iter().position(|server| server.address == victim);
        let place = place.context("a master that was not started here")?;
        cluster.servers[place].process = None;
        let killed = Instant::now();
        story.tell("SIGKILL to that master")?;
        let (mut in_a_row, mut others_waited_ms, mut recovered) = (0, 0, None);
        while in_a_row < LOOKS_AFTER {
            ensure!(killed.elapsed() < RECOVER_MAX, "its slots do not recover");
            let [down, up] = look(&story, &loads)?;
            others_waited_ms = others_waited_ms.max(up.longest_wait_ms);
            if self.wait_replicas > 0
                && cluster.servers[place].process.is_none()
                && killed.elapsed() > START_AFTER
            {
                // Its replica is a master without one now, and nothing would be acknowledged there.
                cluster.servers[place].restart()?;
                story.tell("the dead one is started again, to be the replica")?;
            }
            in_a_row = if down.answered > 0 { in_a_row + 1 } else { 0 };
            recovered = (in_a_row > 0).then(|| recovered.unwrap_or(killed.elapsed()));
        }
        let recovered_ms = recovered.unwrap_or_default().as_millis() as u64;
        story.tell("its replica is the master now")?;
        let mut acknowledged = BTreeMap::new();
        for load in loads {
            acknowledged.extend(load.stop()?.counts());
        }
        let there = values(node.resp, acknowledged.keys().cloned())?;
        let difference = Difference::between(&acknowledged, &there);
        let total: i64 = acknowledged.values().sum();
        let text = format!(
            "{total} increments acknowledged. Slots of the dead master were answered again after {:.1} s; on the others \
             nobody waited longer than {others_waited_ms} ms. Counted twice: {}. Lost by Redis's replication, which \
             acknowledges before its replica has a change: {}{}.",
            recovered_ms as f64 / 1e3,
            difference.too_many,
            difference.missing,
            match (self.wait_replicas, difference.missing) {
                (_, 0) => "",
                (0, _) => "; with --wait-replicas 1 an acknowledged change is on the replica too",
                _ => "; the replica that was elected was not the one that had them",
            }
        );
        let figures = json!({
            "drill": "store-down", "acknowledged": total, "recoveredMs": recovered_ms, "othersLongestWaitMs": others_waited_ms,
            "lost": difference.missing, "doubled": difference.too_many, "waitReplicas": self.wait_replicas,
        });
        story.conclude(&text, figures)?;
        ensure!(difference.too_many == 0, "{} increments were counted twice", difference.too_many);
        Ok(())
    }
}

/// What both have done in a while.
fn look(story: &Story, loads: &[Load; 2]) -> Result<[super::load::Looked; 2]> {
    loads.iter().for_each(|load| {
        load.look();
    });
    thread::sleep(LOOK_INTERVAL);
    let seen = [loads[0].look(), loads[1].look()];
    let shown = seen.map(|seen| {
        format!("{:>7} {:>6} ms {:>4} retries", seen.answered, seen.longest_wait_ms, seen.retries)
    });
    story.tell(&shown.join("  | "))?;
    Ok(seen)
}

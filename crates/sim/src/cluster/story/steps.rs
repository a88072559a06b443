//! What can happen in a story, and what comes of it.
//!
//! | step | |
//! |---|---|
//! | `cluster of 3` | nodes 1 to 3, each with its share |
//! | `add likes 5 id a at node 1 -> 5` | the value, `5 again` if the id was known, or the code of the refusal |
//! | `add likes 1 ids a to 40 at node 1 -> 40` | under the ids a1 to a40, one after the other; the last answer |
//! | `read likes at node 1 -> 5` | |
//! | `expire likes in 30 s at node 1 -> 5` | |
//! | `clear at node 1 -> 2` | FLUSHALL: how many counters there were |
//! | `ask w: add likes 5 id a at node 1`, `answer to w -> 5` | the same, with other steps in between |
//! | `call old the leader of likes` | a name for a node; also `a follower of likes`, `another follower of likes` |
//! | `cut old from nodes 2 3`, `cut old from all`, `heal` | in both directions; what is cut is lost |
//! | `cut old from all for 500 ms, 10 times` | healed as long in between |
//! | `hold what old says`, `release` | what is held arrives once it is released |
//! | `crash old`, `kill old`, `stop old`, `start old` | the power goes, the process, or it ends in order |
//! | `empty the disk of old` | of one that does not run |
//! | `fill the cold store of old`, `free the cold store of old` | there is no room, there is room again |
//! | `fill the log of old`, `free the log of old` | the same of the disk with its log |
//! | `set the clock of old ahead by 60 s` | |
//! | `join node 4`, `remove node 2` | joining is `done` or why not |
//! | `checkpoint old` | of all partitions it holds |
//! | `settle` | waits until all is where it should be, those who should lead do, and who leaves is gone |
//! | `wait 500 ms` | |
//! | `note leaders but of old`, `leaders are as noted` | of every group that another leads: who, and in which term |
//! | `note snapshots`, `old got a snapshot` | since then, within patience |
//! | `for 2 s nobody else leads likes` | of all who answer reads without asking others, the newest leads |
//! | `partitions of node 4 -> 1` | how many it holds |
//! | `all replicas agree` | waits until all have carried out the same, and are the same |

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use quipu_cluster::belonging::NotJoined;
use quipu_cluster::meta::Change;
use quipu_cluster::node::Node;
use quipu_cluster::raft::NodeId;
use quipu_counting::slot::{partition, slot};
use quipu_counting::{Action, Add, Batch, Expire, ExpireWhen, Expiry, Reply};
use rand::SeedableRng;
use rand::rngs::SmallRng;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::DONE;
use crate::cluster::world::{PATIENCE, Planted, World};
use crate::violation::Violation;

/// So many that every node of a few leads and holds some, and not all.
const PARTITIONS: u16 = 8;
/// Between looks.
const PAUSE: Duration = Duration::from_millis(20);

/// What came of a step; an error is something that a story can expect as well.
type Told = Result<String, String>;

/// Where a story is told.
pub struct Stage {
    world: Arc<World>,
    names: BTreeMap<String, NodeId>,
    asked: BTreeMap<String, JoinHandle<Told>>,
    /// By group, who led it in which term. The group of all nodes comes behind the partitions.
    noted: BTreeMap<u16, (NodeId, u64)>,
    snapshots: BTreeMap<NodeId, u64>,
}

impl Stage {
    pub fn new(seed: u64) -> Result<Stage, Violation> {
        let world = World::begin(&mut SmallRng::seed_from_u64(seed), PARTITIONS, Planted::None, false)?;
        Ok(Stage {
            world,
            names: BTreeMap::new(),
            asked: BTreeMap::new(),
            noted: BTreeMap::new(),
            snapshots: BTreeMap::new(),
        })
    }

    pub async fn end(&self) {
        for id in self.world.machines.ids() {
            self.world.machines.stop(id).await;
        }
    }

    /// Does what a line says.
    pub async fn step(&mut self, text: &str) -> Told {
        let spoken = text.replace([',', ':'], " ");
        let words: Vec<&str> =
            spoken.split_whitespace().filter(|word| !["the", "node", "nodes"].contains(word)).collect();
        let machines = &self.world.machines;
        match words[..] {
            ["cluster", "of", count] => {
                self.world.found(number(count)?).await?;
                return self.settle().await;
            }
            ["add", ..] | ["read", ..] | ["clear", ..] | ["expire", ..] => {
                return self.request(&words)?.run().await;
            }
            ["ask", name, ref request @ ..] => {
                let request = self.request(request)?;
                self.asked.insert(name.to_string(), tokio::spawn(async move { request.run().await }));
            }
            ["answer", "to", name] => {
                let asked = self.asked.remove(name).ok_or_else(|| format!("nobody asked {name}"))?;
                return asked.await.map_err(|error| error.to_string())?;
            }
            ["call", name, ref whom @ ..] => {
                let node = self.find(whom)?;
                self.names.insert(name.to_string(), node);
            }
            ["cut", node, "from", ref others @ ..] => return self.cut(node, others).await,
            ["heal"] => machines.net.heal(),
            ["hold", "what", node, "says"] => machines.net.hold(self.id(node)?),
            ["release"] => machines.net.release(),
            ["crash", node] => ran(machines.end(self.id(node)?, true).await)?,
            ["kill", node] => ran(machines.end(self.id(node)?, false).await)?,
            ["stop", node] => machines.stop(self.id(node)?).await,
            ["start", node] => drop(machines.start(self.id(node)?).await?),
            ["empty", "disk", "of", node] => machines.empty_disk(self.id(node)?)?,
            ["fill", "cold", "store", "of", node] => machines.fill_cold(self.id(node)?, true),
            ["free", "cold", "store", "of", node] => machines.fill_cold(self.id(node)?, false),
            ["fill", "log", "of", node] => machines.fill_log(self.id(node)?, true),
            ["free", "log", "of", node] => machines.fill_log(self.id(node)?, false),
            ["set", "clock", "of", node, "ahead", "by", time, unit] => {
                machines.set_skew(self.id(node)?, duration(time, unit)?.as_millis() as i64);
            }
            ["join", node] => return self.join(self.id(node)?).await,
            ["remove", node] => {
                let leaving = self.newest()?.change(Change::Leave(self.id(node)?)).await;
                leaving.map_err(|why| why.to_string())?;
            }
            ["checkpoint", node] => {
                let node = self.node(node)?;
                for partition in (0..PARTITIONS).filter(|partition| node.engine().holds(*partition)) {
                    node.engine().checkpoint(partition).map_err(|error| error.to_string())?;
                }
            }
            ["settle"] => return self.settle().await,
            ["wait", time, unit] => sleep(duration(time, unit)?).await,
            ["note", "leaders", "but", "of", node] => {
                let but = self.id(node)?;
                self.noted = self.leaders();
                self.noted.retain(|_, (leader, _)| *leader != but);
            }
            ["leaders", "are", "as", "noted"] => {
                let mut now = self.leaders();
                now.retain(|group, _| self.noted.contains_key(group));
                return same(&now, &self.noted);
            }
            ["note", "snapshots"] => self.snapshots = self.world.installed(),
            [node, "got", "a", "snapshot"] => {
                let id = self.id(node)?;
                let before = self.snapshots.get(&id).copied().unwrap_or(0);
                let got = || self.world.installed().get(&id).copied().unwrap_or(0);
                return until(|| if got() > before { Ok(()) } else { Err("it got none".into()) }).await;
            }
            ["partitions", "of", node] => {
                let node = self.node(node)?;
                let held = (0..PARTITIONS).filter(|partition| node.engine().holds(*partition)).count();
                return Ok(held.to_string());
            }
            ["for", time, unit, "nobody", "else", "leads", key] => {
                let until = Instant::now() + duration(time, unit)?;
                while Instant::now() < until {
                    self.is_one_leader(partition(slot(key.as_bytes()), PARTITIONS)).await?;
                    sleep(Duration::from_millis(1)).await;
                }
            }
            ["all", "replicas", "agree"] => return until(|| self.agree()).await,
            _ => return Err(format!("nobody knows how to do this: {text}")),
        }
        Ok(DONE.into())
    }

    fn id(&self, name: &str) -> Result<NodeId, String> {
        match self.names.get(name) {
            Some(id) => Ok(*id),
            None => name.parse().map_err(|_| format!("nobody is called {name}")),
        }
    }

    fn node(&self, name: &str) -> Result<Arc<Node>, String> {
        self.world.machines.node(self.id(name)?).ok_or_else(|| "it is down".into())
    }

    /// One that has heard the news of the cluster; who was removed hears none.
    fn newest(&self) -> Result<Arc<Node>, String> {
        let epoch = |node: &Arc<Node>| node.meta(|meta| meta.epoch);
        self.world.machines.running().into_iter().max_by_key(epoch).ok_or_else(|| "all are down".into())
    }

    fn request(&self, words: &[&str]) -> Result<Request, String> {
        let add = |key: &str, delta: &str, ids: Vec<String>, node: &str| {
            let add = Action::Add(Add::plain(number(delta)?));
            let batch = |id: &String| {
                let mut batch = Batch::default();
                batch.push_with_id(key.as_bytes(), add, id.as_bytes(), 0);
                batch
            };
            Ok(Request { node: self.node(node)?, batches: ids.iter().map(batch).collect() })
        };
        match *words {
            ["add", key, delta, "id", id, "at", node] => add(key, delta, vec![id.into()], node),
            ["add", key, delta, "ids", id, "to", last, "at", node] => {
                let ids = (1..=number::<u32>(last)?).map(|number| format!("{id}{number}"));
                add(key, delta, ids.collect(), node)
            }
            ["read", key, "at", node] => {
                let mut batch = Batch::default();
                batch.push(key.as_bytes(), Action::Read);
                Ok(Request { node: self.node(node)?, batches: vec![batch] })
            }
            ["expire", key, "in", time, unit, "at", node] => {
                let expiry = Expiry::In(duration(time, unit)?.as_millis() as u64);
                let mut batch = Batch::default();
                batch.push(key.as_bytes(), Action::Expire(Expire { expiry, when: ExpireWhen::Always }));
                Ok(Request { node: self.node(node)?, batches: vec![batch] })
            }
            ["clear", "at", node] => {
                let mut batch = Batch::default();
                batch.push(b"", Action::Clear);
                Ok(Request { node: self.node(node)?, batches: vec![batch] })
            }
            _ => Err(format!("nobody knows how to ask this: {}", words.join(" "))),
        }
    }

    /// By group, who leads it and in which term, as the leader says itself.
    fn leaders(&self) -> BTreeMap<u16, (NodeId, u64)> {
        let mut leaders = BTreeMap::new();
        for node in self.world.machines.running() {
            let of_partitions =
                (0..PARTITIONS).filter_map(|number| Some((number, node.group(number)?.status())));
            for (group, status) in of_partitions.chain([(PARTITIONS, node.nodes_status())]) {
                // An old leader may not know yet that it is none.
                if status.leader == Some(node.id())
                    && leaders.get(&group).is_none_or(|(_, term)| *term < status.term)
                {
                    leaders.insert(group, (node.id(), status.term));
                }
            }
        }
        leaders
    }

    /// Whether nobody trusts its lease who is not the newest of those who lead.
    async fn is_one_leader(&self, partition: u16) -> Result<(), String> {
        let newest = self.leaders().get(&partition).copied();
        for node in self.world.machines.running() {
            let Some(group) = node.group(partition) else { continue };
            if group.leader() == Some(node.id())
                && newest.is_some_and(|(leader, _)| leader != node.id())
                && group.is_confirmed().await
            {
                return Err(format!("{newest:?} leads, and node {} trusts its lease", node.id()));
            }
        }
        Ok(())
    }

    fn find(&self, whom: &[&str]) -> Result<NodeId, String> {
        let leaders = self.leaders();
        let leader = |key: &str| {
            let led = leaders.get(&partition(slot(key.as_bytes()), PARTITIONS));
            led.map(|(leader, _)| *leader).ok_or_else(|| format!("nobody leads {key}"))
        };
        let holds = |id: &NodeId, key: &str| {
            let partition = partition(slot(key.as_bytes()), PARTITIONS);
            self.world.machines.node(*id).is_some_and(|node| node.engine().holds(partition))
        };
        let ids = self.world.machines.ids();
        let found = match *whom {
            ["leader", "of", key] => Some(leader(key)?),
            ["a", "follower", "of", key] => {
                let leader = leader(key)?;
                ids.into_iter().find(|id| *id != leader && holds(id, key))
            }
            ["another", "follower", "of", key] => {
                let leader = leader(key)?;
                ids.into_iter().rfind(|id| *id != leader && holds(id, key))
            }
            _ => None,
        };
        found.ok_or_else(|| format!("nobody is {}", whom.join(" ")))
    }

    async fn cut(&self, node: &str, others: &[&str]) -> Told {
        let net = &self.world.machines.net;
        let id = self.id(node)?;
        let (others, flaps) = match *others {
            [ref others @ .., "for", time, unit, times, "times"] => {
                (others, Some((duration(time, unit)?, number::<u32>(times)?)))
            }
            _ => (others, None),
        };
        let others = match *others {
            ["all"] => self.world.machines.ids().into_iter().filter(|other| *other != id).collect(),
            _ => others.iter().map(|other| self.id(other)).collect::<Result<Vec<NodeId>, String>>()?,
        };
        let cut = || {
            for other in &others {
                net.cut(id, *other);
                net.cut(*other, id);
            }
        };
        let Some((time, times)) = flaps else {
            cut();
            return Ok(DONE.into());
        };
        for _ in 0..times {
            cut();
            sleep(time).await;
            net.heal();
            sleep(time).await;
        }
        Ok(DONE.into())
    }

    /// Whether all replicas that run have carried out the same, and are the same.
    fn agree(&self) -> Result<(), String> {
        for partition in 0..PARTITIONS {
            let mut replicas = Vec::new();
            for node in self.world.machines.running().iter().filter(|node| node.engine().holds(partition)) {
                let engine = node.engine();
                let digest = engine.digest(partition).map_err(|error| error.to_string())?;
                replicas.push((node.id(), engine.mark(partition), digest));
            }
            let is_same = |pair: &[(NodeId, _, _)]| (&pair[0].1, &pair[0].2) == (&pair[1].1, &pair[1].2);
            if replicas.len() < 2 || !replicas.windows(2).all(is_same) {
                return Err(format!("partition {partition}: {replicas:?}"));
            }
        }
        Ok(())
    }

    /// Starts a new machine, unless it runs already, and lets it join.
    async fn join(&self, id: NodeId) -> Told {
        let machines = &self.world.machines;
        if !machines.ids().contains(&id) {
            machines.add(id);
            machines.start(id).await?;
        }
        let node = machines.node(id).ok_or("it is down")?;
        let through: Vec<NodeId> = machines.ids().into_iter().filter(|other| *other != id).collect();
        let member = machines.member(&node);
        let until = Instant::now() + PATIENCE;
        loop {
            match node.join(&through, &member).await {
                Ok(()) => return Ok(DONE.into()),
                Err(NotJoined::NotYet(_)) if Instant::now() < until => {}
                Err(why) => return Err(why.to_string()),
            }
        }
    }

    /// Until everything is where it should be, and nobody wants to leave.
    async fn settle(&self) -> Told {
        let is_settled = || {
            let newest = self.newest()?;
            let is_over = newest.meta(|meta| {
                meta.plan() == meta.placement && meta.nodes.values().all(|member| !member.is_leaving)
            });
            let leaders = self.leaders();
            let leads = |(number, replicas): (u16, Vec<NodeId>)| {
                leaders.get(&number).map(|(leader, _)| *leader) == replicas.first().copied()
            };
            let placed = newest.meta(|meta| meta.placement.replicas.clone());
            if self.world.is_whole() && is_over && (0..).zip(placed.clone()).all(leads) {
                return Ok(());
            }
            Err(format!("not yet: {placed:?}, led as {leaders:?}"))
        };
        until(is_settled).await
    }
}

/// What is asked of a node.
struct Request {
    node: Arc<Node>,
    batches: Vec<Batch>,
}

impl Request {
    async fn run(self) -> Told {
        let mut last = Err("nothing was asked".into());
        for mut batch in self.batches {
            self.node.execute(&mut batch).await;
            last = batch.replies.first().map(answer).ok_or_else(|| "no answer".into());
        }
        last
    }
}

fn answer(reply: &Reply) -> String {
    match reply.refusal {
        Some(refusal) => refusal.code().to_string(),
        None if reply.duplicate => format!("{} again", reply.cell.value),
        None => reply.cell.value.to_string(),
    }
}

/// Looks until it is so, or says why it is not.
async fn until(mut look: impl FnMut() -> Result<(), String>) -> Told {
    let until = Instant::now() + PATIENCE;
    loop {
        match look() {
            Ok(()) => return Ok(DONE.into()),
            Err(why) if Instant::now() > until => return Err(why),
            Err(_) => sleep(PAUSE).await,
        }
    }
}

fn same<T: PartialEq + std::fmt::Debug>(now: &T, noted: &T) -> Told {
    if now == noted { Ok(DONE.into()) } else { Err(format!("{now:?} instead of {noted:?}")) }
}

fn ran(ran: bool) -> Result<(), String> {
    if ran { Ok(()) } else { Err("it is down".into()) }
}

fn number<T: std::str::FromStr>(word: &str) -> Result<T, String> {
    word.parse().map_err(|_| format!("{word} is no such number"))
}

fn duration(time: &str, unit: &str) -> Result<Duration, String> {
    match unit {
        "ms" => Ok(Duration::from_millis(number(time)?)),
        "s" => Ok(Duration::from_secs(number(time)?)),
        _ => Err(format!("{unit} is no unit of time")),
    }
}

//! One world from its beginning to its end: a cluster is founded, counted with under faults, left alone, and looked at.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use quipu_cluster::meta::Change;
use quipu_cluster::plant::{Plant, plant};
use quipu_cluster::raft::NodeId;
use quipu_cluster::raft::runtime::seed_chances;
use quipu_counting::Refusal;
use quipu_history::{Operation, Outcome, Rule};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::time::{Instant, sleep, timeout};

use super::clients::{self, Asked, KEYS, Tally};
use super::machines::Machines;
use super::network::{Net, Weather};
use super::wholes;
use crate::violation::{Invariant, Violation};

/// Partitions of every seeded world.
const PARTITIONS: u16 = 2;
/// Makes the chances of that client others than those of the world.
const OF_WHOLES: u64 = 0x0077_686f_6c65;
/// How long things may take that need no luck.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Which bug is planted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Planted {
    /// None: everything keeps its promises.
    #[default]
    None,
    /// One of the nodes' own.
    InNodes(Plant),
    /// Whoever installs a snapshot does not get its request ids.
    SnapshotsWithoutIds,
}

/// What happened in a world, to see that worlds do what they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    pub answers: u64,
    pub refusals: u64,
    pub messages: u64,
    pub ends: u64,
    pub power_losses: u64,
    pub cuts: u64,
    pub snapshots: u64,
    pub elections: u64,
    pub joins: u64,
    pub leaves: u64,
    /// Of everything that was answered: two runs of a seed must have the same.
    pub digest: u64,
}

impl Stats {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Stats) -> Stats {
        Stats {
            answers: self.answers + other.answers,
            refusals: self.refusals + other.refusals,
            messages: self.messages + other.messages,
            ends: self.ends + other.ends,
            power_losses: self.power_losses + other.power_losses,
            cuts: self.cuts + other.cuts,
            snapshots: self.snapshots + other.snapshots,
            elections: self.elections + other.elections,
            joins: self.joins + other.joins,
            leaves: self.leaves + other.leaves,
            digest: self.digest ^ other.digest,
        }
    }
}

/// A change that was asked for, and what was answered.
type Answered = (Asked, (Option<Refusal>, i64, i64, u64));

/// See the head of this file.
pub struct World {
    pub machines: Machines,
    pub asked: Mutex<Vec<Answered>>,
    pub tally: Mutex<Tally>,
    operations: Mutex<Vec<Operation>>,
    stats: Mutex<Stats>,
    /// How many snapshots each node was told to install.
    installed: Mutex<BTreeMap<NodeId, u64>>,
    began: Instant,
    is_traced: bool,
}

/// Runs the world of a seed to its end. A panic counts as a violation.
pub fn run(seed: u64, planted: Planted, is_traced: bool) -> Result<Stats, Violation> {
    let outcome = std::panic::catch_unwind(|| {
        seed_chances(seed);
        plant(match planted {
            Planted::InNodes(plant) => Some(plant),
            Planted::None | Planted::SnapshotsWithoutIds => None,
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let runtime = runtime.map_err(|error| progress(format!("no runtime: {error}")))?;
        runtime.block_on(live(seed, planted, is_traced))
    });
    plant(None);
    outcome.unwrap_or_else(|_| Err(progress("a panic, told above")))
}

fn progress(what: impl Into<String>) -> Violation {
    Violation::new(Invariant::Progress, what)
}

async fn live(seed: u64, planted: Planted, is_traced: bool) -> Result<Stats, Violation> {
    let mut random = SmallRng::seed_from_u64(seed);
    let world = World::begin(&mut random, PARTITIONS, planted, is_traced)?;
    let nodes: NodeId = [3, 3, 3, 4, 5][random.random_range(0..5)];
    world.found(nodes).await.map_err(progress)?;
    let count = random.random_range(1..5);
    let mut clients: Vec<_> = (0..count)
        .map(|number| {
            let random = SmallRng::seed_from_u64(random.random());
            tokio::spawn(clients::run(Arc::clone(&world), number, 160 / count, random))
        })
        .collect();
    let of_wholes = SmallRng::seed_from_u64(seed ^ OF_WHOLES);
    clients.push(tokio::spawn(wholes::run(Arc::clone(&world), of_wholes)));
    let faults = tokio::spawn(disturb(Arc::clone(&world), SmallRng::seed_from_u64(random.random())));
    // Faults end after a while, and then whoever still waits must be answered.
    let disturbed = faults.await.map_err(|error| progress(error.to_string()))?;
    disturbed.map_err(progress)?;
    world.trace("faults are over");
    for client in clients {
        let done = timeout(PATIENCE, client).await.map_err(|_| {
            world.trace_nodes();
            progress("a client is not answered")
        })?;
        done.map_err(|error| progress(error.to_string()))??;
    }
    world.finish(random).await
}

impl World {
    pub fn begin(
        random: &mut SmallRng,
        partitions: u16,
        planted: Planted,
        is_traced: bool,
    ) -> Result<Arc<World>, Violation> {
        let of_net = SmallRng::seed_from_u64(random.random());
        let of_machines = SmallRng::seed_from_u64(random.random());
        let world = Arc::new_cyclic(|world: &std::sync::Weak<World>| {
            let world = world.clone();
            let on_install = move |id: NodeId, begins: bool| {
                if let Some(world) = world.upgrade() {
                    world.stats.lock().snapshots += u64::from(begins);
                    *world.installed.lock().entry(id).or_default() += u64::from(begins);
                    if planted == Planted::SnapshotsWithoutIds
                        && let Some(slot) = world.machines.slots.lock().get(&id)
                    {
                        slot.machine.hide_ids(begins);
                    }
                }
            };
            let net = Net::new(of_net, Box::new(on_install));
            World {
                machines: Machines::new(net, partitions, of_machines).expect("a folder for temporary files"),
                asked: Mutex::default(),
                tally: Mutex::default(),
                operations: Mutex::default(),
                stats: Mutex::default(),
                installed: Mutex::default(),
                began: Instant::now(),
                is_traced,
            }
        });
        Ok(world)
    }

    /// The time of the world, in microseconds.
    pub fn now(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    pub fn saw(&self, operation: Operation) {
        self.trace(&format!("{operation:?}"));
        let mut stats = self.stats.lock();
        stats.answers += 1;
        stats.refusals += u64::from(matches!(operation.outcome, Outcome::Refused { .. }));
        self.operations.lock().push(operation);
    }

    /// How many snapshots each node was told to install so far.
    pub fn installed(&self) -> BTreeMap<NodeId, u64> {
        self.installed.lock().clone()
    }

    pub fn trace(&self, what: &str) {
        if self.is_traced {
            eprintln!("{:>12} {what}", self.now());
        }
    }

    /// How things stand, for whoever wants to know why they do not go on.
    fn trace_nodes(&self) {
        for node in self.machines.running() {
            let (epoch, placement) = node.meta(|meta| (meta.epoch, meta.placement.clone()));
            self.trace(&format!("node {}: {epoch} {placement:?} {:?}", node.id(), node.nodes_status()));
            for partition in 0..self.machines.partitions {
                let told = node.group(partition).map(|group| (group.status(), group.voters()));
                self.trace(&format!("  partition {partition}: {told:?}"));
            }
        }
    }

    /// Founds a cluster of so many nodes, and waits until each holds its share.
    pub async fn found(&self, nodes: NodeId) -> Result<(), String> {
        self.machines.add(1);
        let first = self.machines.start(1).await?;
        first.found(0xc1, 3, self.machines.member(&first)).await?;
        for id in 2..=nodes {
            self.join(id).await?;
        }
        let until = Instant::now() + PATIENCE;
        while !self.is_whole() {
            if Instant::now() > until {
                return Err("the cluster does not begin".into());
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    async fn join(&self, id: NodeId) -> Result<(), String> {
        self.machines.add(id);
        let node = self.machines.start(id).await?;
        let member = self.machines.member(&node);
        let until = Instant::now() + PATIENCE;
        while let Err(why) = node.join(&[1], &member).await {
            if Instant::now() > until {
                return Err(why.to_string());
            }
        }
        Ok(())
    }

    /// Whether every partition is led, by somebody who finds the placement carried out.
    pub fn is_whole(&self) -> bool {
        let nodes = self.machines.running();
        (0..self.machines.partitions).all(|partition| {
            nodes.iter().any(|node| {
                let placed = node.meta(|meta| {
                    meta.placement.replicas.get(usize::from(partition)).cloned().unwrap_or_default()
                });
                let wanted = node.meta(|meta| meta.nodes.len().min(3));
                node.group(partition).is_some_and(|group| {
                    group.leader() == Some(node.id())
                        && placed.len() == wanted
                        && group.voters() == placed.into_iter().collect()
                })
            })
        })
    }

    /// Everything runs and is fair; what is found must be what was answered.
    async fn finish(&self, mut random: SmallRng) -> Result<Stats, Violation> {
        let until = Instant::now() + PATIENCE;
        while !self.is_whole() {
            if Instant::now() > until {
                self.trace_nodes();
                return Err(progress("the cluster does not come together again"));
            }
            sleep(Duration::from_millis(20)).await;
        }
        for number in 0..KEYS {
            clients::read(self, &mut random, number).await;
        }
        let operations = self.operations.lock().clone();
        if let Err(violations) = quipu_history::check(&operations) {
            let invariant = match violations[0].rule {
                Rule::Once => Invariant::ExactlyOnce,
                Rule::Values => Invariant::Survival,
                Rule::Time => Invariant::NothingShownIsTakenBack,
            };
            return Err(Violation::new(invariant, violations[0].to_string()));
        }
        let value = clients::read_tally(self, &mut random).await;
        let tally = *self.tally.lock();
        if !(tally.answered..=tally.asked).contains(&value) {
            let what = format!("{value} were counted without an id of {tally:?}");
            return Err(Violation::new(Invariant::Survival, what));
        }
        self.ask_everything_again(&mut random).await?;
        self.compare_replicas().await?;
        let mut stats = *self.stats.lock();
        stats.messages = self.machines.net.messages();
        for node in self.machines.running() {
            let terms = (0..self.machines.partitions)
                .filter_map(|partition| Some(node.group(partition)?.status().term));
            stats.elections = stats.elections.max(terms.sum());
        }
        let mut hasher = DefaultHasher::new();
        (&operations, stats.messages).hash(&mut hasher);
        stats.digest = hasher.finish();
        for id in self.machines.ids() {
            self.machines.stop(id).await;
        }
        Ok(stats)
    }

    /// Whoever leads knows every request id, also one who did not lead when it was used.
    async fn ask_everything_again(&self, random: &mut SmallRng) -> Result<(), Violation> {
        let asked = self.asked.lock().clone();
        for _ in 0..2 {
            for partition in 0..self.machines.partitions {
                for node in self.machines.running() {
                    let Some(group) = node.group(partition).filter(|group| group.leader() == Some(node.id()))
                    else {
                        continue;
                    };
                    let others: Vec<NodeId> =
                        group.voters().into_iter().filter(|id| *id != node.id()).collect();
                    if !others.is_empty() {
                        group.hand_over(others[random.random_range(0..others.len())]).await;
                    }
                }
            }
            sleep(Duration::from_secs(1)).await;
            for (asked, first) in &asked {
                let again = timeout(PATIENCE, clients::ask(self, random, asked)).await;
                let again = again.map_err(|_| progress("a repeated request is not answered"))?;
                clients::same(asked, *first, &again)?;
            }
        }
        Ok(())
    }

    /// Replicas that have carried out the same are the same.
    async fn compare_replicas(&self) -> Result<(), Violation> {
        // Nothing is under way any more, so all of them come to the same place.
        sleep(Duration::from_secs(2)).await;
        for partition in 0..self.machines.partitions {
            let mut first = None;
            for node in self.machines.running().iter().filter(|node| node.engine().holds(partition)) {
                let engine = node.engine();
                let bytes = engine.digest(partition).map_err(|error| progress(error.to_string()))?;
                let mark = engine.mark(partition);
                match &first {
                    None => first = Some((node.id(), mark, bytes)),
                    Some((other, at, expected)) if *at == mark && *expected != bytes => {
                        let what = format!("nodes {other} and {} differ in partition {partition}", node.id());
                        return Err(Violation::new(Invariant::Twins, what));
                    }
                    Some(_) => {}
                }
            }
        }
        Ok(())
    }
}

/// Faults, one after the other and some at the same time; at the end everything runs and is fair.
async fn disturb(world: Arc<World>, mut random: SmallRng) -> Result<(), String> {
    let machines = &world.machines;
    let until = Instant::now() + Duration::from_millis(random.random_range(1_000..12_000));
    let mut left: Vec<NodeId> = Vec::new();
    // Some have no peace at all.
    let pause_ms_max = [800, 800, 100][random.random_range(0..3)];
    while Instant::now() < until {
        sleep(Duration::from_millis(random.random_range(10..pause_ms_max))).await;
        let ids: Vec<NodeId> = machines.ids().into_iter().filter(|id| !left.contains(id)).collect();
        let id = ids[random.random_range(0..ids.len())];
        match random.random_range(0..100) {
            0..22 => {
                let loses_power = random.random_ratio(2, 3);
                world.trace(&format!("node {id} ends, power loss: {loses_power}"));
                if machines.end(id, loses_power).await {
                    let mut stats = world.stats.lock();
                    stats.ends += 1;
                    stats.power_losses += u64::from(loses_power);
                }
            }
            22..27 => {
                world.trace("all nodes lose power");
                for id in machines.ids() {
                    if machines.end(id, true).await {
                        world.stats.lock().power_losses += 1;
                    }
                }
            }
            27..50 => world.restart(&mut random).await?,
            50..62 => {
                world.stats.lock().cuts += 1;
                let others: Vec<NodeId> = ids.iter().copied().filter(|other| *other != id).collect();
                let kind = random.random_range(0..3);
                world.trace(&format!("node {id} is cut off, kind {kind}"));
                match kind {
                    0 => others.iter().for_each(|other| {
                        machines.net.cut(id, *other);
                        machines.net.cut(*other, id);
                    }),
                    1 => others.iter().for_each(|other| machines.net.cut(id, *other)),
                    _ => machines.net.cut(others[random.random_range(0..others.len())], id),
                }
            }
            62..72 => machines.net.heal(),
            72..80 => machines.net.set_weather(Weather {
                delay_ms_max: [3, 20, 150, 600][random.random_range(0..4)],
                lost: [0, 10, 100][random.random_range(0..3)],
                doubled: [0, 100][random.random_range(0..2)],
            }),
            80..85 => machines.set_sync_ms_max(id, [4, 40, 400][random.random_range(0..3)]),
            85..87 => machines.set_skew(id, random.random_range(-5_000..5_000)),
            87..92 => {
                if let Some(node) = machines.node(id) {
                    let partition = random.random_range(0..PARTITIONS);
                    world.trace(&format!("node {id} makes a checkpoint of {partition}"));
                    // A machine that is going down cannot.
                    if node.engine().holds(partition) {
                        let _ = node.engine().checkpoint(partition);
                    }
                }
            }
            92..95 if ids.len() < 6 && left.is_empty() => {
                let new = machines.ids().len() as NodeId + 1;
                world.trace(&format!("node {new} joins"));
                machines.add(new);
                if machines.start(new).await.is_ok() {
                    world.stats.lock().joins += 1;
                    let world = Arc::clone(&world);
                    tokio::spawn(async move { world.keep_joining(new).await });
                }
            }
            95.. if ids.len() > 3 && left.is_empty() && id != 1 => {
                world.trace(&format!("node {id} leaves"));
                if let Some(node) = machines.running().first()
                    && node.change(Change::Leave(id)).await.is_ok()
                {
                    left.push(id);
                    world.stats.lock().leaves += 1;
                }
            }
            _ => {}
        }
    }
    world.trace("everything is mended");
    machines.net.heal();
    machines.net.set_weather(Weather::FAIR);
    for id in machines.ids() {
        machines.set_sync_ms_max(id, 4);
        machines.set_skew(id, 0);
    }
    world.restart_all().await
}

impl World {
    async fn restart(&self, random: &mut SmallRng) -> Result<(), String> {
        let down: Vec<NodeId> =
            self.machines.ids().into_iter().filter(|id| self.machines.node(*id).is_none()).collect();
        if !down.is_empty() {
            let id = down[random.random_range(0..down.len())];
            self.trace(&format!("node {id} starts"));
            self.machines.start(id).await.map_err(|why| format!("node {id} does not start: {why}"))?;
        }
        Ok(())
    }

    async fn restart_all(&self) -> Result<(), String> {
        for id in self.machines.ids() {
            if self.machines.node(id).is_none() {
                self.machines.start(id).await.map_err(|why| format!("node {id} does not start: {why}"))?;
            }
        }
        Ok(())
    }

    /// Joins, however often its machine goes down.
    async fn keep_joining(&self, id: NodeId) {
        loop {
            if let Some(node) = self.machines.node(id) {
                let member = self.machines.member(&node);
                let through = self.machines.ids()[0];
                if node.join(&[through], &member).await.is_ok() {
                    return;
                }
            }
            sleep(Duration::from_millis(200)).await;
        }
    }
}

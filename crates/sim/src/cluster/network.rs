//! What lies between nodes. Every message takes its own time, so they overtake each other; some are lost, some come twice.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use quipu_cluster::node::Node;
use quipu_cluster::raft::NodeId;
use quipu_cluster::transport::{Answering, Transport, Unreached};
use rand::Rng;
use rand::rngs::SmallRng;

/// How the network is at the moment.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    pub delay_ms_max: u64,
    /// Of a thousand messages.
    pub lost: u32,
    /// Of a thousand messages.
    pub doubled: u32,
}

impl Weather {
    pub const FAIR: Weather = Weather { delay_ms_max: 3, lost: 0, doubled: 0 };
}

/// How long a message may take of which nobody waits for the answer.
const LATE_MAX: Duration = Duration::from_secs(5);
/// How often those that are held look whether they may go.
const HELD_PAUSE: Duration = Duration::from_millis(1);

struct State {
    random: SmallRng,
    nodes: BTreeMap<NodeId, Weak<Node>>,
    /// Which life of a node is the present one. Those before it say nothing any more and hear nothing.
    lives: BTreeMap<NodeId, u64>,
    /// From one to another, not the other way.
    cuts: BTreeSet<(NodeId, NodeId)>,
    /// What these say arrives later.
    held: BTreeSet<NodeId>,
    weather: Weather,
    messages: u64,
}

/// Called with the number of a node and whether a snapshot begins or ends to be installed there.
type OnInstall = Box<dyn Fn(NodeId, bool) + Send + Sync>;

/// See the head of this file.
pub struct Net {
    state: Mutex<State>,
    on_install: OnInstall,
}

/// What becomes of a message.
enum Fate {
    Arrives(Duration),
    /// Nobody will ever say that it did not.
    IsLost,
}

impl Net {
    pub fn new(random: SmallRng, on_install: OnInstall) -> Arc<Net> {
        let state = State {
            random,
            nodes: BTreeMap::new(),
            lives: BTreeMap::new(),
            cuts: BTreeSet::new(),
            held: BTreeSet::new(),
            weather: Weather::FAIR,
            messages: 0,
        };
        Arc::new(Net { state: Mutex::new(state), on_install })
    }

    /// A node begins a life; the way from it to others.
    pub fn begin_life(self: &Arc<Net>, node: NodeId) -> Wire {
        let mut state = self.state.lock();
        let life = state.lives.entry(node).or_default();
        *life += 1;
        Wire { from: node, life: *life, net: Arc::clone(self) }
    }

    pub fn connect(&self, id: NodeId, node: &Arc<Node>) {
        self.state.lock().nodes.insert(id, Arc::downgrade(node));
    }

    /// A node's life ends: from now on nothing comes from it or reaches it.
    pub fn end_life(&self, node: NodeId) {
        let mut state = self.state.lock();
        state.nodes.remove(&node);
        *state.lives.entry(node).or_default() += 1;
    }

    pub fn set_weather(&self, weather: Weather) {
        self.state.lock().weather = weather;
    }

    pub fn cut(&self, from: NodeId, to: NodeId) {
        self.state.lock().cuts.insert((from, to));
    }

    pub fn heal(&self) {
        self.state.lock().cuts.clear();
    }

    /// What a node asks others from now on arrives after the release, however little its answer interests anybody then.
    pub fn hold(&self, node: NodeId) {
        self.state.lock().held.insert(node);
    }

    pub fn release(&self) {
        self.state.lock().held.clear();
    }

    fn is_held(&self, node: NodeId) -> bool {
        self.state.lock().held.contains(&node)
    }

    /// Messages so far.
    pub fn messages(&self) -> u64 {
        self.state.lock().messages
    }

    fn is_life(&self, node: NodeId, life: u64) -> bool {
        self.state.lock().lives.get(&node) == Some(&life)
    }

    fn fate(&self, from: NodeId, to: NodeId) -> Fate {
        let mut state = self.state.lock();
        state.messages += 1;
        let weather = state.weather;
        if state.cuts.contains(&(from, to)) || state.random.random_ratio(weather.lost, 1_000) {
            return Fate::IsLost;
        }
        Fate::Arrives(Duration::from_micros(state.random.random_range(50..=weather.delay_ms_max * 1_000)))
    }

    fn is_doubled(&self) -> bool {
        let mut state = self.state.lock();
        let doubled = state.weather.doubled;
        state.random.random_ratio(doubled, 1_000)
    }

    /// Whoever is the node now, with its life.
    fn find(&self, node: NodeId) -> Option<(Arc<Node>, u64)> {
        let state = self.state.lock();
        Some((state.nodes.get(&node)?.upgrade()?, *state.lives.get(&node)?))
    }

    async fn deliver(&self, from: NodeId, to: NodeId, question: Bytes) -> Result<Bytes, Unreached> {
        match self.fate(from, to) {
            Fate::Arrives(after) => tokio::time::sleep(after).await,
            Fate::IsLost => std::future::pending().await,
        }
        let Some((node, life)) = self.find(to) else {
            return Err(Unreached::not_sent(format!("node {to} is down")));
        };
        let installs = question.first() == Some(&6);
        if installs {
            (self.on_install)(to, true);
        }
        let answer = node.receive(from, &question).await;
        drop(node);
        if installs {
            (self.on_install)(to, false);
        }
        if !self.is_life(to, life) {
            return Err(Unreached::lost(format!("node {to} went down")));
        }
        match self.fate(to, from) {
            Fate::Arrives(after) => tokio::time::sleep(after).await,
            Fate::IsLost => std::future::pending().await,
        }
        Ok(answer)
    }
}

/// The way from one life of a node to the others.
pub struct Wire {
    from: NodeId,
    life: u64,
    net: Arc<Net>,
}

impl Transport for Wire {
    fn ask(&self, to: NodeId, question: Bytes) -> Answering {
        let (from, life, net) = (self.from, self.life, Arc::clone(&self.net));
        Box::pin(async move {
            if !net.is_life(from, life) {
                return Err(Unreached::not_sent("this node is down"));
            }
            if net.is_held(from) {
                tokio::spawn(async move {
                    while net.is_held(from) {
                        tokio::time::sleep(HELD_PAUSE).await;
                    }
                    let _ = tokio::time::timeout(LATE_MAX, net.deliver(from, to, question)).await;
                });
                return std::future::pending().await;
            }
            // Not what clients ask: nodes send that once, and the connection they use does not double it.
            if question.first().is_some_and(|kind| *kind < 16) && net.is_doubled() {
                let (net, question) = (Arc::clone(&net), question.clone());
                tokio::spawn(async move {
                    // Whatever is said to the second one, nobody hears it. It does not wait for ever, though.
                    let _ = tokio::time::timeout(LATE_MAX, net.deliver(from, to, question)).await;
                });
            }
            let answer = net.deliver(from, to, question).await;
            if net.is_life(from, life) { answer } else { Err(Unreached::lost("this node is down")) }
        })
    }
}

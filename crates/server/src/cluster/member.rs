//! The running node: opened, founded or joined, stopped.

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use anyhow::Context;
use quipu_cluster::belonging::NotJoined;
use quipu_cluster::meta::{LEVEL, Member, removed, same_address};
use quipu_cluster::node::{Node, Settings};
use quipu_cluster::peers::Peers;
use quipu_cluster::raft::Pace;
use quipu_cluster::transport::Transport;
use quipu_counting::Counters;
use quipu_engine::{Engine, Options};
use quipu_store::Durability;
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};
use tokio::runtime::Runtime;
use tokio::time::Instant;

use super::counters::ClusterCounters;
use super::folder::{ClusterFolder, Identity, Known};
use super::map::{Map, host_and_port};
use crate::clock::wall_ms;

/// How long a request looks for a leader: longer than it takes to elect one.
const PATIENCE: Duration = Duration::from_secs(8);
/// How long nobody tries again who could not join.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// How long others may hear another process with this data folder: longer than they take for dead whom they do not hear.
const TWIN_MAX: Duration = Duration::from_secs(10);
/// How often a node looks whether others have said that it is not wanted.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// How often a node says that it is there.
const STAY_PAUSE: Duration = Duration::from_secs(5);

/// Where clients reach a node; `None` for what they reach at the address on which it listens.
pub struct Reached {
    /// Where it listens for the Redis Cluster protocol.
    pub resp_listen: SocketAddr,
    /// Where clients reach that, if it is elsewhere.
    pub resp: Option<String>,
    /// Where it listens for HTTP.
    pub http_listen: SocketAddr,
}

/// A node that listens on all addresses is reached where other nodes reach it.
fn reached(listen: SocketAddr, address: &str) -> String {
    match host_and_port(address) {
        Some((host, _)) if listen.ip().is_unspecified() && host.contains(':') => {
            format!("[{host}]:{}", listen.port())
        }
        Some((host, _)) if listen.ip().is_unspecified() => format!("{host}:{}", listen.port()),
        _ => listen.to_string(),
    }
}

/// Where other nodes come in.
fn listen(identity: &Identity) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(identity.listen).with_context(|| {
        format!(
            "cannot listen on {} for other nodes; `listen` in cluster/node.toml says where",
            identity.listen
        )
    })?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// How the node counts: much of it is for the cluster to say.
fn options_of(identity: &Identity, options: Options) -> anyhow::Result<Options> {
    let wanted_ms = options.id_window_ms;
    if wanted_ms != identity.id_window_ms && wanted_ms != Options::default().id_window_ms {
        anyhow::bail!(
            "this cluster remembers request ids for {} s, as `quipu cluster init --id-window` said; leave id_window out",
            identity.id_window_ms / 1000
        );
    }
    Ok(Options {
        // An acknowledgement means a majority of disks, whatever single nodes promise.
        durability: Durability::Sync,
        partitions: identity.partitions,
        entropy: Some(identity.entropy()?),
        id_window_ms: identity.id_window_ms,
        ..options
    })
}

/// What others shall know of the node.
fn member(identity: &Identity, node: &Node, place: &Reached) -> Member {
    Member {
        level: LEVEL,
        address: identity.address.clone(),
        zone: identity.zone.clone(),
        folder: node.engine().folder_number(),
        is_leaving: false,
        resp: place.resp.clone().unwrap_or_else(|| reached(place.resp_listen, &identity.address)),
        http: reached(place.http_listen, &identity.address),
    }
}

/// Sees to it that the node belongs to its cluster.
struct Belonging {
    node: Weak<Node>,
    peers: Arc<Peers>,
    /// The secret that the cluster knows itself by, and how many replicas a partition has, for who founds it.
    cluster: u128,
    replicas: u16,
    /// Those who were known when the node was invited, or last ran.
    through: Vec<u64>,
    /// The node whose place it takes, and whether the cluster was told to let that one leave before this one comes.
    replaces: Option<u64>,
    has_first_left: bool,
    member: Member,
    /// Where it writes down who belongs to the cluster.
    folder: ClusterFolder,
    known: Known,
    /// Where it says why the cluster does not want the node.
    refused: Arc<OnceLock<String>>,
    has_joined: bool,
    attempts: usize,
}

impl Belonging {
    /// Again and again: whoever was removed is not told otherwise, and at every start the node may be somewhere else.
    async fn go_on(mut self) {
        while let Some(node) = self.node.upgrade() {
            match self.attempt(&node).await {
                Ok(pause) => {
                    drop(node);
                    self.wait(pause).await;
                }
                Err(why) => {
                    node.cast_out();
                    if why == removed(node.id()) {
                        self.note(self.known.clone().without(node.id()));
                    }
                    let _ = self.refused.set(why);
                    return;
                }
            }
        }
    }

    /// Waits so long, or until somebody says that the node is not wanted: that is asked about at once.
    async fn wait(&self, pause: Duration) {
        let until = Instant::now() + pause;
        let is_cast_out = || self.node.upgrade().is_some_and(|node| node.is_cast_out());
        while Instant::now() < until && !is_cast_out() {
            tokio::time::sleep(LOOK_PAUSE).await;
        }
    }

    /// How long to wait before the next attempt; or why there is none.
    async fn attempt(&mut self, node: &Node) -> Result<Duration, String> {
        if let Some((by, since)) = self.peers.refused_as_twin_by()
            && since > TWIN_MAX
        {
            return Err(format!(
                "node {by} hears from another process with the data folder of node {}: a copy of the folder is running. \
                 Never start a copy; for one more node, `quipu cluster invite`",
                node.id()
            ));
        }
        // Of a cluster that exists anybody will do; the first node of a new one asks itself.
        let mut others: Vec<u64> = node.meta(|meta| {
            let before = self.through.iter().filter(|node| !meta.removed.contains(node));
            before.chain(meta.nodes.keys()).copied().collect()
        });
        // Those who say nothing take all the time of an attempt: each begins with another.
        let first = self.attempts % others.len().max(1);
        others.rotate_left(first);
        self.attempts += 1;
        let belongs = match others.is_empty() {
            true => match self.may_found() {
                Ok(()) => node
                    .found(self.cluster, self.replicas, self.member.clone())
                    .await
                    .map_err(NotJoined::NotYet),
                Err(not_yet) => Err(not_yet),
            },
            false => node.join(&others, &self.member).await,
        };
        match belongs {
            Ok(()) => Ok(self.joined(node).await),
            Err(NotJoined::Refused(why)) => {
                let stands_in_the_way = |lost: &u64| why == same_address(*lost, &self.member.address);
                let Some(lost) = self.replaces.filter(stands_in_the_way) else { return Err(why) };
                tracing::warn!("node {} has the address of node {lost}, which leaves first", node.id());
                if !self.has_first_left {
                    let told = node.let_leave_first(&others, lost).await;
                    self.has_first_left = !matches!(told, Err(NotJoined::NotYet(_)));
                }
                Ok(RETRY_PAUSE)
            }
            // Of those who are there already it is known that the others are not reached: that is no news.
            Err(NotJoined::NotYet(_)) if self.has_joined => Ok(RETRY_PAUSE),
            Err(NotJoined::NotYet(why)) => {
                tracing::warn!("node {} does not yet belong to its cluster: {why}", node.id());
                Ok(RETRY_PAUSE)
            }
        }
    }

    /// A cluster is founded once. Who has lost the data folder that founded it must not do so again, whether it knows of others or
    /// not: they may have joined meanwhile.
    fn may_found(&mut self) -> Result<(), NotJoined> {
        let folder = format!("{:032x}", self.member.folder);
        match &self.known.founded {
            Some(founded) if *founded == folder => return Ok(()),
            Some(_) => {
                return Err(NotJoined::Refused(
                    "another data folder is node 1 and founded this cluster; it is gone. If other nodes have joined, they have what was \
                     counted: replace this one (`quipu cluster replace`). If none has, begin anew (`quipu cluster init` with a new folder)"
                        .into(),
                ));
            }
            None => self.note(self.known.clone().founded_with(Some(folder))),
        }
        match self.known.founded {
            Some(_) => Ok(()),
            None => Err(NotJoined::NotYet("that it founds a cluster cannot be written down".into())),
        }
    }

    /// Writes down who belongs to the cluster, where that is news. Who invites does well without it.
    fn note(&mut self, known: Known) {
        let known = known.founded_with(self.known.founded.clone());
        if known == self.known {
            return;
        }
        match self.folder.learn(&known) {
            Ok(()) => self.known = known,
            Err(error) => tracing::warn!("who belongs to the cluster was not written down: {error:#}"),
        }
    }

    async fn joined(&mut self, node: &Node) -> Duration {
        self.note(node.meta(Known::of));
        if !std::mem::replace(&mut self.has_joined, true) {
            tracing::info!("node {} belongs to its cluster", node.id());
        }
        let Some(replaced) = self.replaces else { return STAY_PAUSE };
        match node.let_leave(replaced).await {
            Ok(_) => STAY_PAUSE,
            Err(why) => {
                tracing::warn!("node {} shall take the place of node {replaced}: {why}", node.id());
                RETRY_PAUSE
            }
        }
    }
}

/// A node of a cluster.
pub struct Running {
    node: Arc<Node>,
    counters: Arc<ClusterCounters>,
    map: Arc<Map>,
    /// Why the cluster does not want this node.
    refused: Arc<OnceLock<String>>,
}

impl Running {
    /// Opens the data folder, and sees to it in the background that the node belongs to its cluster.
    pub fn start(
        runtime: &Runtime,
        folder: &ClusterFolder,
        data: &std::path::Path,
        options: Options,
        place: &Reached,
    ) -> anyhow::Result<Running> {
        let identity = folder.identity()?;
        let peers = Peers::new(identity.node, SmallRng::from_os_rng().random(), Some(folder.tls()?));
        peers.belong_to(identity.cluster()?);
        // Also of the first node: one that has lost its counters, but not this, must not found the same cluster once more.
        let known = folder.known().context("a node that has its data does without this file: remove it")?;
        let through: BTreeMap<u64, String> =
            identity.through().into_iter().chain(known.others(identity.node)).collect();
        peers.learn(&through);
        let listener = listen(&identity)?;
        let settings = Settings {
            id: identity.node,
            path: data.to_path_buf(),
            options: options_of(&identity, options)?,
            wall_clock: Some(Arc::new(wall_ms)),
            pace: Pace::default(),
            patience: PATIENCE,
            storage: None,
        };
        let transport = Arc::new(Arc::clone(&peers));
        let node = runtime.block_on(Node::open(settings, transport)).map_err(anyhow::Error::msg).context(
            "this node does not start. If its data folder is damaged, replace the node (`quipu cluster replace`): the others have what \
             it held. Do NOT restore a backup, whatever is said below, which is for servers without a cluster: an older folder takes \
             back what the node has promised to the others since",
        )?;
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            tokio::spawn(Arc::clone(&peers).serve(listener, Arc::downgrade(&node)));
            std::io::Result::Ok(())
        })?;
        let member = member(&identity, &node, place);
        let counters =
            Arc::new(ClusterCounters { node: Arc::clone(&node), handle: runtime.handle().clone() });
        let map = Arc::new(Map::new(Arc::clone(&counters), member.resp.clone()));
        let refused = Arc::new(OnceLock::new());
        let belonging = Belonging {
            node: Arc::downgrade(&node),
            peers,
            cluster: identity.cluster()?,
            replicas: identity.replicas,
            through: through.into_keys().collect(),
            replaces: identity.replaces,
            has_first_left: false,
            member,
            folder: folder.clone(),
            known,
            refused: Arc::clone(&refused),
            has_joined: false,
            attempts: 0,
        };
        runtime.spawn(belonging.go_on());
        Ok(Running { node, counters, map, refused })
    }

    /// What the fronts ask.
    pub fn counters(&self) -> Arc<dyn Counters> {
        Arc::clone(&self.counters) as Arc<dyn Counters>
    }

    /// What clients of the Redis Cluster protocol are told.
    pub fn map(&self) -> Arc<Map> {
        Arc::clone(&self.map)
    }

    /// Why the cluster does not want this node, once it has said so.
    pub fn refused(&self) -> Option<String> {
        self.refused.get().cloned()
    }

    /// The node.
    pub fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Lets others lead what this node leads, before it ends.
    pub fn step_down(&self, runtime: &Runtime) {
        runtime.block_on(self.node.step_down());
    }

    /// What the node counts with.
    pub fn engine(&self) -> &Arc<Engine> {
        self.node.engine()
    }

    /// Ends everything, durably.
    pub fn stop(&self, runtime: &Runtime) {
        runtime.block_on(self.node.stop());
    }
}

#[cfg(test)]
mod tests {
    use super::reached;

    #[test]
    fn who_listens_everywhere_is_reached_where_nodes_reach_it() {
        for (listen, address, expected) in [
            ("127.0.0.1:7073", "node-1:7072", "127.0.0.1:7073"),
            ("0.0.0.0:7073", "node-1:7072", "node-1:7073"),
            ("[::]:7073", "[fe80::1]:7072", "[fe80::1]:7073"),
        ] {
            assert_eq!(reached(listen.parse().unwrap(), address), expected);
        }
    }
}

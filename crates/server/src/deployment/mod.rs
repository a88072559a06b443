//! What stands behind the fronts: a data folder of this process alone, a node of a cluster, or Redis.
//!
//! | file | what it says |
//! |---|---|
//! | `mod` | which one it is, and what the rest of the server wants from each |
//! | `external` | counters in Redis, with PostgreSQL behind it |

mod external;

use std::net::SocketAddr;
use std::sync::Arc;

use quipu_counting::Counters;
use quipu_engine::{Engine, Options};
use quipu_external::External;
use quipu_store::Durability;
use tokio::runtime::Runtime;

use crate::clock::Clock;
use crate::cluster::folder::ClusterFolder;
use crate::cluster::{self, Reached};
use crate::config::Config;
use crate::open_files::Shares;
pub use external::Backed;

/// What a configuration asks for, before anything is opened.
pub enum Plan {
    /// A data folder of this process alone.
    Embedded,
    /// A node of a cluster, whose data folder says which.
    Member(ClusterFolder),
    /// Redis.
    Backed,
}

impl Plan {
    /// What this configuration means. Of a data folder only a look is taken, and none where there is no need of one.
    pub fn of(config: &Config) -> anyhow::Result<Plan> {
        if config.backend.is_some() {
            return Ok(Plan::Backed);
        }
        ClusterFolder::refuse_half_made(&config.data)?;
        Ok(match ClusterFolder::find(&config.data) {
            Some(folder) => Plan::Member(folder),
            None => Plan::Embedded,
        })
    }

    /// Whether it speaks the Redis Cluster protocol as well.
    pub fn is_of_cluster(&self) -> bool {
        matches!(self, Plan::Member(_))
    }
}

/// Where the fronts listen.
#[derive(Clone, Copy, Debug)]
pub struct Addresses {
    /// HTTP.
    pub http: SocketAddr,
    /// RESP.
    pub resp: SocketAddr,
    /// The Redis Cluster protocol, at a node of a cluster.
    pub resp_cluster: Option<SocketAddr>,
}

/// What counts.
pub enum Deployment {
    /// A data folder of this process alone.
    Embedded(Arc<Engine>),
    /// A node of a cluster.
    Member(cluster::Running),
    /// Counters in Redis.
    Backed(Backed),
}

/// Why a deployment cannot go on.
pub enum Ended {
    /// The log cannot be written any more.
    Failed(String),
    /// The cluster does not want this node.
    Refused(String),
}

impl Deployment {
    /// Opens it. A data folder may take a while to recover.
    pub fn open(
        plan: &Plan,
        config: &Config,
        files: &Shares,
        clock: &Arc<Clock>,
        runtime: &Runtime,
        addresses: &Addresses,
    ) -> anyhow::Result<Deployment> {
        let options = || options(config, files, clock);
        let deployment = match (plan, addresses.resp_cluster) {
            (Plan::Backed, _) => return Ok(Deployment::Backed(Backed::open(runtime, config)?)),
            (Plan::Member(folder), Some(resp_listen)) => {
                let resp = config.resp_cluster_address.clone();
                let place = Reached { resp_listen, resp, http_listen: addresses.http };
                let member = cluster::Running::start(runtime, folder, &config.data, options(), &place)?;
                Deployment::Member(member)
            }
            _ => Deployment::Embedded(Engine::open(&config.data, options())?),
        };
        if let Some(engine) = deployment.engine() {
            clock.begin_after(engine.newest_time_ms());
        }
        Ok(deployment)
    }

    /// The engine of this process, where counters lie in its own data folder.
    pub fn engine(&self) -> Option<&Arc<Engine>> {
        match self {
            Deployment::Embedded(engine) => Some(engine),
            Deployment::Member(member) => Some(member.engine()),
            Deployment::Backed(_) => None,
        }
    }

    /// What the fronts ask.
    pub fn counters(&self) -> Arc<dyn Counters> {
        match self {
            Deployment::Embedded(engine) => Arc::clone(engine) as Arc<dyn Counters>,
            Deployment::Member(member) => member.counters(),
            Deployment::Backed(backed) => Arc::clone(backed.external()) as Arc<dyn Counters>,
        }
    }

    /// The node of a cluster, where it is one.
    pub fn member(&self) -> Option<&cluster::Running> {
        match self {
            Deployment::Member(member) => Some(member),
            Deployment::Embedded(_) | Deployment::Backed(_) => None,
        }
    }

    /// The counters in Redis, where they are there.
    pub fn external(&self) -> Option<&Arc<External>> {
        match self {
            Deployment::Backed(backed) => Some(backed.external()),
            Deployment::Embedded(_) | Deployment::Member(_) => None,
        }
    }

    /// Why it cannot go on, if it cannot. What Redis cannot do at the moment passes.
    pub fn ended(&self) -> Option<Ended> {
        match self {
            Deployment::Embedded(engine) => engine.failed().map(Ended::Failed),
            Deployment::Member(member) => match member.refused() {
                Some(why) => Some(Ended::Refused(why)),
                None => member.node().failed().map(Ended::Failed),
            },
            Deployment::Backed(_) => None,
        }
    }

    /// Lets others do what this one does, while it still answers.
    pub fn step_aside(&self, runtime: &Runtime) {
        if let Deployment::Member(member) = self {
            member.step_down(runtime);
        }
    }

    /// Ends everything, durably, once nobody asks any more.
    pub fn close(self, runtime: &Runtime) -> anyhow::Result<()> {
        if let Deployment::Member(member) = &self {
            member.stop(runtime);
        }
        if let Some(engine) = self.engine() {
            engine.close()?;
        }
        if let Deployment::Backed(backed) = self {
            backed.stop(runtime);
        }
        Ok(())
    }

    /// Where the counters lie and when a change is acknowledged, for the line that says that it serves.
    pub fn described(&self, config: &Config) -> String {
        match self {
            Deployment::Backed(backed) => backed.described(),
            Deployment::Embedded(_) => {
                format!("data {}, durability {}", config.data.display(), config.durability)
            }
            Deployment::Member(_) => {
                format!("data {}, durability {} on a majority", config.data.display(), Durability::Sync)
            }
        }
    }

    /// When a change is acknowledged, in the word that INFO says.
    pub fn durability(&self, config: &Config) -> String {
        match self {
            Deployment::Backed(_) => external::DURABILITY.to_owned(),
            Deployment::Embedded(_) => config.durability.to_string(),
            // Whatever single nodes are told: an acknowledgement means a majority of disks.
            Deployment::Member(_) => Durability::Sync.to_string(),
        }
    }
}

/// What holds for acknowledged changes after the log has failed.
pub fn promise(durability: Durability) -> &'static str {
    match durability {
        Durability::Sync => "Everything acknowledged is safe",
        Durability::Interval { .. } | Durability::None => {
            "What was acknowledged before the last sync is safe, what came after it may be lost"
        }
    }
}

/// One clock for the fronts and the keeper: a jump that is refused must not expire anything either.
fn options(config: &Config, files: &Shares, clock: &Arc<Clock>) -> Options {
    let clock = Arc::clone(clock);
    Options {
        durability: config.durability,
        memory_bytes: config.memory_bytes,
        partitions: config.partitions,
        id_window_ms: config.id_window_ms,
        pending_requests_max: config.queue_requests_max,
        pending_wait_ms: config.queue_wait_ms,
        open_tables_max: files.open_tables_max,
        finds_hot_keys: config.finds_hot_keys,
        clock: Arc::new(move || clock.now_ms()),
        ..Options::default()
    }
}

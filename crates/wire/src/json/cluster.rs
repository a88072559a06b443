//! Bodies about the cluster that the server sends: its nodes, who holds what, and that somebody leaves.

use serde::Serialize;
use utoipa::ToSchema;

/// The cluster as one of its nodes knows it.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Cluster)]
pub struct ClusterBody {
    /// The number of the node that answers.
    pub node: u64,
    /// The number of the cluster, in hexadecimal.
    pub cluster: String,
    /// What all its nodes know: programs that know less cannot join.
    pub feature_level: u64,
    /// Raised with every change of nodes or placement.
    pub epoch: u64,
    /// Who leads the group of all nodes, and has been heard of in the last seconds.
    pub leader: Option<u64>,
    /// Why the node that answers cannot do what it should: it reaches too few others, say, or its disk is full.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub problem: Option<String>,
    /// Everybody.
    pub nodes: Vec<ClusterNode>,
    /// Who holds what.
    pub partitions: Vec<ClusterPartition>,
}

/// A node of the cluster.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterNode {
    /// Its number.
    pub node: u64,
    /// Where other nodes reach it.
    pub address: String,
    /// Where clients that speak HTTP reach it.
    pub http: String,
    /// Where clients that speak the Redis Cluster protocol reach it.
    pub resp: String,
    /// What it shares the fate of.
    pub zone: Option<String>,
    /// Whether it is giving up what it holds.
    pub leaving: bool,
    /// Whether it answers the node that says all this.
    pub reached: bool,
}

/// A partition of the cluster.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterPartition {
    /// Its number.
    pub partition: u16,
    /// Who leads it, as far as is known.
    pub leader: Option<u64>,
    /// Who holds it, or shall.
    pub replicas: Vec<u64>,
    /// The last entry of its log, where the node that answers holds it.
    pub last: Option<u64>,
    /// The last entry that was carried out there.
    pub applied: Option<u64>,
    /// Whether exactly those hold it who shall; `null` while nobody who leads it answers.
    pub settled: Option<bool>,
    /// How far behind the replica of the node that answers may be at most, where it holds one and knows.
    pub staleness_ms: Option<u64>,
    /// How many entries the other replicas are behind, where the node that answers leads it.
    pub behind: Vec<ClusterLag>,
}

/// How far a replica is behind.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ClusterLag {
    /// The node.
    pub node: u64,
    /// Entries; `null` while nothing has been heard of it.
    pub entries: Option<u64>,
}

/// The answer to the removal of a node.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct NodeLeaving {
    /// Its number.
    pub node: u64,
    /// It gives up what it holds, and is gone when it holds nothing any more.
    pub leaving: bool,
}

//! The cluster: who belongs to it, who holds what, and nodes that shall leave.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use quipu_cluster::belonging::NotChanged;
use quipu_cluster::node::Node;
use quipu_wire::json::cluster::{ClusterBody, ClusterLag, ClusterNode, ClusterPartition, NodeLeaving};
use quipu_wire::json::problem::Problem;
use quipu_wire::json::request::NoFields;

use super::App;
use super::answer::{self, Answer, Refused};
use super::extract::{Body, NoQuery};
use crate::cluster::not_agreed;

fn node(app: &App) -> Result<&Arc<Node>, Refused> {
    let what = "this server is not a node of a cluster; `quipu cluster init` makes its data folder one";
    app.cluster.as_ref().ok_or_else(|| Problem::new(404, "no-cluster", what).into())
}

pub async fn read(State(app): State<Arc<App>>, NoQuery: NoQuery) -> Answer {
    let node = node(&app)?;
    let (reached, placed) = tokio::join!(node.reached(), node.placed());
    Ok(answer::json(StatusCode::OK, &describe(node, &reached, &placed)))
}

fn describe(node: &Node, reached: &BTreeSet<u64>, placed: &BTreeMap<u16, bool>) -> ClusterBody {
    let meta = node.meta(Clone::clone);
    let nodes = meta.nodes.iter().map(|(id, member)| ClusterNode {
        node: *id,
        address: member.address.clone(),
        http: member.http.clone(),
        resp: member.resp.clone(),
        zone: member.zone.clone(),
        leaving: member.is_leaving,
        reached: reached.contains(id),
    });
    let partitions = meta.placement.replicas.iter().zip(0u16..).map(|(replicas, partition)| {
        let group = node.group(partition);
        let status = group.as_ref().map(|group| group.status()).unwrap_or_default();
        let led = group.filter(|_| status.leader == Some(node.id()));
        let behind = led.iter().flat_map(|group| {
            let others = group.members().into_iter().filter(|other| *other != node.id());
            others.map(|other| ClusterLag { node: other, entries: group.lag(other) })
        });
        let behind = behind.collect();
        ClusterPartition {
            partition,
            leader: node.leader_heard_of(partition),
            replicas: replicas.clone(),
            last: status.last,
            applied: status.applied,
            settled: placed.get(&partition).copied(),
            staleness_ms: node.staleness_ms(partition),
            behind,
        }
    });
    ClusterBody {
        node: node.id(),
        cluster: format!("{:032x}", meta.cluster),
        feature_level: meta.level,
        epoch: meta.epoch,
        leader: node.leader_of_nodes(),
        problem: node.problem(),
        nodes: nodes.collect(),
        partitions: partitions.collect(),
    }
}

pub async fn remove(State(app): State<Arc<App>>, uri: Uri, NoQuery: NoQuery, body: Body) -> Answer {
    body.parse_or_default::<NoFields>()?;
    let node = node(&app)?;
    let no_such =
        || Refused::from(Problem::new(404, "no-such-node", "the cluster has no node of this number"));
    let id: u64 = uri.path().rsplit('/').next().and_then(|id| id.parse().ok()).ok_or_else(no_such)?;
    if node.meta(|meta| !meta.nodes.contains_key(&id)) {
        return Err(no_such());
    }
    node.let_leave(id).await.map_err(|why| match why {
        NotChanged::Refused(why) => Problem::new(409, "node-stays", why),
        NotChanged::NotDone(why) => Problem::unavailable(&not_agreed(why)),
    })?;
    Ok(answer::json(StatusCode::OK, &NodeLeaving { node: id, leaving: true }))
}

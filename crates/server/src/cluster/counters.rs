//! The cluster as the fronts see it.

use std::sync::Arc;

use quipu_cluster::belonging::NotChanged;
use quipu_cluster::meta::LEVEL_OF_WHOLE;
use quipu_cluster::node::Node;
use quipu_cluster::raft::NotDone;
use quipu_cluster::walks::Scope;
use quipu_counting::service::{Finished, ScanPage};
use quipu_counting::{
    Aggregate, AuditPage, AuditQuery, Batch, Changes, Counters, Execution, HotKeys, Interest, ListPage,
    Listing, Policies, Policy, Selector, Unavailable,
};
use tokio::runtime::Handle;

/// Counters that are wherever their partitions are.
pub struct ClusterCounters {
    pub node: Arc<Node>,
    pub handle: Handle,
}

impl ClusterCounters {
    /// Waits for what other nodes may have to be asked about. Never called by a thread that serves others.
    fn wait<T: Send + 'static>(
        &self,
        asked: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Unavailable> {
        let (tell, told) = std::sync::mpsc::channel();
        self.handle.spawn(async move {
            // Nobody may be left to hear it.
            let _ = tell.send(asked.await);
        });
        told.recv().map_err(|_| Unavailable::Unreadable("the node is stopping".into()))
    }

    /// About so many keys of a walk over these partitions.
    pub fn scan_in(&self, scope: Scope, cursor: u64, count: usize) -> Result<ScanPage, Unavailable> {
        let node = Arc::clone(&self.node);
        self.wait(async move { node.scan(cursor, count, scope).await })?.map_err(unavailable)
    }

    /// Any key of these partitions.
    pub fn random_key_in(&self, scope: Scope, draw: u64) -> Result<Option<Vec<u8>>, Unavailable> {
        let node = Arc::clone(&self.node);
        self.wait(async move { node.random_key(draw, scope).await })?.map_err(unavailable)
    }

    /// How many counters are in the partitions that this node leads.
    pub fn count_led(&self) -> Result<u64, Unavailable> {
        let node = Arc::clone(&self.node);
        self.wait(async move { node.count_led().await })?.map_err(unavailable)
    }
}

/// Why a walk over counters did not get on.
fn unavailable(why: NotDone) -> Unavailable {
    match why {
        NotDone::Stopped(why) => Unavailable::Unreadable(why),
        NotDone::Busy => Unavailable::Busy(why.to_string()),
        NotDone::NotMember => Unavailable::NotMember(why.to_string()),
        NotDone::NotLeader(_) => {
            Unavailable::NoLeader("nobody leads one of the partitions at the moment".into())
        }
        other => Unavailable::NoLeader(other.to_string()),
    }
}

/// Why all nodes could not agree on something.
pub fn not_agreed(why: NotDone) -> Unavailable {
    match why {
        NotDone::NotLeader(_) | NotDone::NoQuorum => {
            Unavailable::NoLeader(NotChanged::NotDone(why).to_string())
        }
        NotDone::Unknown => Unavailable::Unknown(why.to_string()),
        other => unavailable(other),
    }
}

impl Counters for ClusterCounters {
    fn execute(&self, batch: &mut Batch, _now_ms: u64) -> Result<Execution, Unavailable> {
        self.node.check(batch).map_err(Unavailable::Unsupported)?;
        Ok(Execution::Pending)
    }

    fn finish(&self, mut batch: Batch, _now_ms: u64, finished: Finished) {
        batch.wants_whole &= self.node.meta(|meta| meta.level >= LEVEL_OF_WHOLE);
        self.node.begin(batch, Box::new(move |batch| finished(batch, Ok(0))));
    }

    /// What was answered is on a majority of disks.
    fn settle(&self, _offset: u64) -> Result<(), Unavailable> {
        Ok(())
    }

    fn is_settled(&self, _offset: u64) -> bool {
        true
    }

    fn when_settled(&self, _offset: u64, settled: Box<dyn FnOnce(Result<(), Unavailable>) + Send>) {
        settled(Ok(()));
    }

    fn policies(&self) -> Result<Policies, Unavailable> {
        let node = Arc::clone(&self.node);
        self.wait(async move { node.policies().await })?.map_err(not_agreed)
    }

    fn set_policy(&self, pattern: &[u8], policy: Option<Policy>, _now_ms: u64) -> Result<bool, Unavailable> {
        if policy.as_ref().is_some_and(Policy::is_striped) {
            return Err(Unavailable::Unsupported(quipu_counting::policy::NOT_STRIPED_HERE.into()));
        }
        let (node, pattern) = (Arc::clone(&self.node), pattern.to_vec());
        let set = async move { node.set_policy(&pattern, policy).await };
        self.wait(set)?.map_err(|why| match why {
            NotChanged::Refused(why) => Unavailable::Unsupported(why),
            NotChanged::NotDone(why) => not_agreed(why),
        })
    }

    fn scan(&self, cursor: u64, count: usize, _now_ms: u64) -> Result<ScanPage, Unavailable> {
        self.scan_in(Scope::All, cursor, count)
    }

    fn list(&self, listing: &Listing, _now_ms: u64) -> Result<ListPage, Unavailable> {
        let (node, listing) = (Arc::clone(&self.node), listing.clone());
        self.wait(async move { node.list(&listing).await })?.map_err(unavailable)
    }

    fn aggregate(&self, selector: &Selector, _now_ms: u64) -> Result<Aggregate, Unavailable> {
        let (node, selector) = (Arc::clone(&self.node), selector.clone());
        self.wait(async move { node.aggregate(&selector).await })
    }

    fn audits(&self) -> bool {
        self.node.meta(|meta| meta.policies.longest_audit_ms().is_some())
    }

    fn audit(&self, query: &AuditQuery, _now_ms: u64) -> Result<AuditPage, Unavailable> {
        let (node, query) = (Arc::clone(&self.node), query.clone());
        self.wait(async move { node.audit(&query).await })?.map_err(unavailable)
    }

    fn random_key(&self, draw: u64, _now_ms: u64) -> Result<Option<Vec<u8>>, Unavailable> {
        self.random_key_in(Scope::All, draw)
    }

    fn watch(&self, interest: Interest, watched: Box<dyn FnOnce() + Send>) {
        let _inside = self.handle.enter();
        self.node.watch(interest, watched);
    }

    fn changes(&self) -> Changes {
        self.node.changes()
    }

    fn hot(&self, n: usize, _now_ms: u64) -> Result<HotKeys, Unavailable> {
        let node = Arc::clone(&self.node);
        self.wait(async move { node.hot(n).await })
    }

    fn facts(&self) -> Vec<(&'static str, u64)> {
        let mut facts = self.node.engine().facts();
        let (nodes, epoch, partitions) =
            self.node.meta(|meta| (meta.nodes.len() as u64, meta.epoch, meta.partitions));
        let groups = (0..partitions).filter_map(|partition| self.node.group(partition));
        let (mut held, mut led) = (0, 0);
        for group in groups {
            held += 1;
            led += u64::from(group.leader() == Some(self.node.id()));
        }
        let settled =
            (0..partitions).filter(|partition| self.node.is_placed(*partition) == Some(true)).count();
        facts.extend([
            ("cluster_node", self.node.id()),
            ("cluster_nodes", nodes),
            ("cluster_epoch", epoch),
            ("cluster_partitions_held", held),
            ("cluster_partitions_led", led),
            ("cluster_partitions_settled", settled as u64),
        ]);
        facts
    }
}

//! The cluster as the fronts see it.

use std::sync::Arc;

use quipu_cluster::node::Node;
use quipu_counting::service::{Finished, ScanPage};
use quipu_counting::{Batch, Counters, Execution, ListPage, Listing, Policies, Policy, Unavailable};
use tokio::runtime::Handle;

/// Counters that are wherever their partitions are.
pub struct ClusterCounters {
    pub node: Arc<Node>,
    pub handle: Handle,
}

impl ClusterCounters {
    /// What is asked of all counters is asked here, so all of them must be here.
    fn whole(&self) -> Result<&dyn Counters, Unavailable> {
        let engine = self.node.engine();
        let partitions = self.node.meta(|meta| meta.partitions);
        if partitions > 0 && (0..partitions).all(|partition| engine.holds(partition)) {
            Ok(&**engine)
        } else {
            let what = "this node does not hold all partitions, and cannot walk over all counters yet";
            Err(Unavailable::Unsupported(what.into()))
        }
    }
}

impl Counters for ClusterCounters {
    fn execute(&self, _batch: &mut Batch, _now_ms: u64) -> Result<Execution, Unavailable> {
        Ok(Execution::Pending)
    }

    fn finish(&self, mut batch: Batch, _now_ms: u64, finished: Finished) {
        let node = Arc::clone(&self.node);
        self.handle.spawn(async move {
            node.execute(&mut batch).await;
            finished(batch, Ok(0));
        });
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
        Ok(self.node.meta(|meta| meta.policies.clone()))
    }

    fn set_policy(&self, pattern: &[u8], policy: Option<Policy>, _now_ms: u64) -> Result<bool, Unavailable> {
        let (node, pattern) = (Arc::clone(&self.node), pattern.to_vec());
        let (tell, told) = std::sync::mpsc::channel();
        self.handle.spawn(async move {
            let _ = tell.send(node.set_policy(&pattern, policy).await);
        });
        match told.recv() {
            Ok(done) => done.map_err(Unavailable::Unreadable),
            Err(_) => Err(Unavailable::Unreadable("the node is stopping".into())),
        }
    }

    fn scan(&self, cursor: u64, count: usize, now_ms: u64) -> Result<ScanPage, Unavailable> {
        self.whole()?.scan(cursor, count, now_ms)
    }

    fn list(&self, listing: &Listing, now_ms: u64) -> Result<ListPage, Unavailable> {
        self.whole()?.list(listing, now_ms)
    }

    fn random_key(&self, draw: u64, now_ms: u64) -> Result<Option<Vec<u8>>, Unavailable> {
        self.whole()?.random_key(draw, now_ms)
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
            (0..partitions).filter(|partition| self.node.is_settled(*partition) == Some(true)).count();
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

//! What the data folder of a node holds, partition by partition, as numbers that replicas share.

use std::path::Path;
use std::sync::Arc;

use quipu_engine::{Digest, Engine, Options};

use crate::node::open_engine;
use crate::raft::Machine;

/// The digests of the partitions that a folder holds, by their numbers. Everything in its log is carried out first, in memory,
/// as if all of it had been agreed on: so replicas can be compared whose nodes were stopped while nobody counted.
pub fn digests(path: &Path) -> Result<Vec<(u16, Digest)>, String> {
    let found = Engine::look(path).map_err(|error| error.to_string())?;
    let Some(found) = found.filter(|found| found.is_replicated) else {
        return Err(format!("{} is not the data folder of a node that has been started", path.display()));
    };
    let options = Options { partitions: found.partitions, ..Options::default() };
    let (engine, journal) =
        open_engine(path.to_path_buf(), &options, None).map_err(|error| error.to_string())?;
    let mut digests = Vec::new();
    for partition in (0..found.partitions).filter(|partition| engine.holds(*partition)) {
        let failed = |error: &dyn std::fmt::Display| format!("partition {partition}: {error}");
        let machine = Machine::new(Arc::clone(&engine), partition, Arc::default());
        let mut machine = machine.map_err(|error| failed(&error))?;
        for entry in journal.entries(usize::from(partition)) {
            machine.take(entry, false).map_err(|error| failed(&error))?;
        }
        digests.push((partition, engine.digest(partition).map_err(|error| failed(&error))?));
    }
    Ok(digests)
}

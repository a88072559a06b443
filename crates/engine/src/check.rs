//! Verifying a data folder: every counter is read and the sums are compared with the ledgers.

use std::ops::{Bound, ControlFlow};
use std::path::Path;

use quipu_counting::{Body, Cell, Whole};
use quipu_store::cold::ColdError;

use crate::engine::Engine;
use crate::fetch::decode_whole;
use crate::options::{OpenError, Options};
use crate::record::Flags;
use crate::recover::Records;
use crate::rows;

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Partitions looked at.
    pub partitions: u16,
    /// Counters found.
    pub counters: u64,
    /// Sum of all values.
    pub sum: i128,
    /// Request ids known, recent ones and on disk.
    pub request_ids: u64,
    /// Producer sessions.
    pub producers: u64,
    /// Rows of trails.
    pub trail_rows: u64,
    /// Where sums or numbers do not agree with the ledger, in words. Empty when all is well.
    pub problems: Vec<String>,
}

/// How often whoever watches a check is told how far it is: after so many counters.
const TELL_EVERY: u64 = 4096;

/// How far a check is: counters looked at, and how many there should be.
pub type OnProgress<'w> = &'w mut dyn FnMut(u64, u64);

/// Opens the folder as a server would (the log is read and its checksums verified, a torn tail is cut), reads
/// every counter and compares. Refuses a folder that is in use. Once it is open, `tell` learns how far the check is.
pub fn check(path: impl AsRef<Path>, tell: OnProgress<'_>) -> Result<CheckReport, OpenError> {
    let path = path.as_ref();
    if !path.join("quipu.meta").is_file() {
        return Err(OpenError::Options(format!(
            "{} is not a data folder of quipu: it has no quipu.meta",
            path.display()
        )));
    }
    let mut ignore = |_: u64, _: &[u8]| Ok(());
    // Of a node of a cluster, what its last checkpoints say: what was agreed on since is checked when it is carried out.
    let records = match Engine::look(path)?.is_some_and(|found| found.is_replicated) {
        true => Records::Entries(&mut ignore),
        false => Records::Effects,
    };
    let engine = Engine::open_still(path, Options::default(), records)?;
    Ok(engine.verify_watched(tell)?)
}

impl Engine {
    /// Compares the sum of all cells with the ledger, partition by partition.
    pub fn verify(&self) -> Result<CheckReport, ColdError> {
        self.verify_watched(&mut |_, _| {})
    }

    fn verify_watched(&self, tell: OnProgress<'_>) -> Result<CheckReport, ColdError> {
        let mut report = CheckReport { partitions: self.partitions.len() as u16, ..CheckReport::default() };
        let total = self.partitions.iter().map(|partition| partition.lock().count).sum();
        tell(0, total);
        for index in 0..self.partitions.len() {
            self.verify_partition(index, &mut report, &mut |counters| tell(counters, total))?;
            tell(report.counters, total);
        }
        Ok(report)
    }

    /// The partition is locked meanwhile: the check is exact, and meant for a folder that does not serve.
    fn verify_partition(
        &self,
        index: usize,
        report: &mut CheckReport,
        tell: &mut dyn FnMut(u64),
    ) -> Result<(), ColdError> {
        let held = self.partitions[index].lock();
        let (mut sum, mut count, mut uneven) = (0i128, 0u64, 0u64);
        let mut add = |cell: Cell, body: Option<&Body>| {
            sum += i128::from(cell.value);
            count += 1;
            let rollups = body.and_then(|body| body.rollups.as_ref());
            uneven += u64::from(rollups.is_some_and(|rollups| !rollups.adds_up_to(cell.value)));
            if count.is_multiple_of(TELL_EVERY) {
                tell(report.counters + count);
            }
        };
        for chunk in 0..held.table.chunk_count() {
            for number in held.table.chunk_records(chunk) {
                if let Some(cell) = held.table.cell(number) {
                    let has_body = held.table.flags(number).any(Flags::BODY);
                    let body = has_body.then(|| held.bodies.get(held.table.key(number))).flatten();
                    add(cell, body.map(|body| &**body));
                }
            }
        }
        let space = rows::partition_space(held.index, held.generation);
        let mut damage = Ok(());
        self.cold.scan(
            &space,
            Bound::Included(rows::CELL_PREFIX),
            Bound::Excluded(b"D"),
            &mut |row, value| {
                let key = row.get(rows::CELL_PREFIX.len()..).unwrap_or_default();
                if held.table.find(held.hash(key), key).is_none() {
                    match decode_whole(value) {
                        Ok(Whole { cell, body }) => {
                            cell.into_iter().for_each(|cell| add(cell, body.as_deref()));
                        }
                        Err(error) => damage = Err(ColdError::Damaged(format!("space {space}: {error}"))),
                    }
                }
                ControlFlow::Continue(())
            },
        )?;
        damage?;
        if sum != held.ledger {
            report.problems.push(format!(
                "partition {index}: counters add up to {sum}, the ledger says {}",
                held.ledger
            ));
        }
        if count != held.count {
            report
                .problems
                .push(format!("partition {index}: {count} counters, the ledger says {}", held.count));
        }
        if uneven > 0 {
            report.problems.push(format!(
                "partition {index}: roll-ups of {uneven} counters do not add up to their values"
            ));
        }
        let trail = self.verify_trail(&held)?;
        report.trail_rows += trail.rows;
        report.problems.extend(trail.problem.map(|problem| format!("partition {index}: {problem}")));
        let (recent, on_disk) = held.ids.counts();
        report.sum += sum;
        report.counters += count;
        report.request_ids += (recent + on_disk) as u64;
        report.producers += held.sessions.len() as u64;
        Ok(())
    }
}

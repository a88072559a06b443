//! All counters, then all rows of the table: what a sweep finds is written as it is, so a row that should not be there goes, and one that
//! should be there comes, whatever went wrong before.

use std::collections::BTreeSet;
use std::sync::Arc;

use quipu_counting::{Counters, ListOrder, ListPlace, Listing};
use quipu_external::mirror::MirrorTable;

use super::{Failed, ROWS_PER_TURN};

/// A sweep on its way.
pub struct Sweep {
    /// Whose counters and rows are meant.
    pub partitions: BTreeSet<u16>,
    /// Something is known to be missing; otherwise it is a sweep to be on the safe side.
    pub is_repair: bool,
    /// Counters that were compared.
    pub done: u64,
    stage: Stage,
}

enum Stage {
    Counters { after: Option<ListPlace> },
    Rows { after: Vec<u8> },
    Over,
}

impl Sweep {
    pub fn new(partitions: BTreeSet<u16>, is_repair: bool) -> Sweep {
        Sweep { partitions, is_repair, done: 0, stage: Stage::Counters { after: None } }
    }

    /// Some keys, also of other partitions; `None` behind the last.
    pub async fn next(
        &mut self,
        table: &MirrorTable,
        counters: &Arc<dyn Counters>,
        now_ms: u64,
    ) -> Result<Option<Vec<Vec<u8>>>, Failed> {
        match &mut self.stage {
            Stage::Counters { after } => {
                let order = ListOrder::Storage;
                let listing =
                    Listing { prefix: Vec::new(), order, after: after.take(), limit: ROWS_PER_TURN };
                let counters = Arc::clone(counters);
                let (before, listing) = (listing.after.clone(), listing);
                let listed = tokio::task::spawn_blocking(move || counters.list(&listing, now_ms)).await;
                let page = match listed {
                    Ok(Ok(page)) => page,
                    failed => {
                        // The next try goes on where this one stopped.
                        self.stage = Stage::Counters { after: before };
                        let why = match failed {
                            Ok(Err(why)) => why.to_string(),
                            _ => "the list broke off".to_owned(),
                        };
                        return Err(Failed::Counters(why));
                    }
                };
                self.stage = match page.next() {
                    Some(place) => Stage::Counters { after: Some(place) },
                    None => Stage::Rows { after: Vec::new() },
                };
                Ok(Some(page.counters.into_iter().map(|listed| listed.key).collect()))
            }
            Stage::Rows { after } => {
                let keys = table.keys_after(after, ROWS_PER_TURN).await?;
                match keys.last() {
                    Some(last) if keys.len() == ROWS_PER_TURN => after.clone_from(last),
                    _ => self.stage = Stage::Over,
                }
                Ok(Some(keys))
            }
            Stage::Over => Ok(None),
        }
    }
}

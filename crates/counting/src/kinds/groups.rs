//! All or none of several.

use super::*;

/// One item of an all-or-none group of whole counters.
#[derive(Clone, Copy, Debug)]
pub struct WholeItem<'a> {
    /// Index into the group's counters; two items may share one.
    pub counter: usize,
    /// What is asked.
    pub asked: Asked<'a>,
    /// What holds for the key.
    pub ruled: Ruled<'a>,
    /// The sequence this item's change would take.
    pub sequence: u64,
    /// Entry time of the item's partition.
    pub now_ms: u64,
}

/// What was decided about each item, and what becomes of each counter in the end; or which item was refused, and what all are told.
pub type DecidedGroup = Result<(Vec<Decided>, Vec<Whole>), (usize, Vec<Reply>)>;

/// As [`decide_group`](crate::decide_group), for counters with all they have. Bodies are changed in place from item to item.
pub fn decide_whole_group(items: &[WholeItem<'_>], counters: &[Whole]) -> DecidedGroup {
    let mut staged = counters.to_vec();
    let mut all = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        let whole = &mut staged[item.counter];
        let decided = decide_whole(whole, item.asked, item.ruled, item.now_ms, item.sequence);
        let Some(refusal) = decided.reply.refusal else {
            all.push(decided);
            continue;
        };
        let unchanged = |(other, item): (usize, &WholeItem<'_>)| {
            let live = counters[item.counter].cell.filter(|cell| cell.is_live(item.now_ms));
            let body = counters[item.counter].body.as_ref().filter(|_| live.is_some());
            let state = Reply { kind: body.map_or(Kind::Sum, |body| body.kind()), ..Reply::state(live) };
            match other == index {
                true => Reply { refusal: Some(refusal), detail: decided.reply.detail.clone(), ..state },
                false => Reply { refusal: Some(Refusal::GroupAborted), ..state },
            }
        };
        return Err((index, items.iter().enumerate().map(unchanged).collect()));
    }
    Ok((all, staged))
}

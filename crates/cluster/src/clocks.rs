//! Whether a node's clock may be trusted with the time of entries.
//!
//! The leader of a partition says what time it is, and time never goes back: one entry from a machine that came up years ahead would end
//! every counter that expires, and have all request ids forgotten. So nodes ask each other for the time, and one that is far ahead of most
//! who answer leads nothing until its clock is right and it was started again: the time of a running server never goes back. One that is
//! far behind does no harm: time stands still while it leads.

use std::time::Duration;

use tokio::time::Instant;

use crate::node::{LOST_AFTER, Node};
use crate::questions::{HEAR_PAUSE, kind};
use crate::raft::{NodeId, NotDone};

/// As much as a running server takes for a mistake when its own clock jumps.
const AHEAD_MS_MAX: u64 = 3_600_000;
/// How often clocks are compared.
const COMPARE_PAUSE: Duration = Duration::from_secs(1);

/// What comparing has shown.
#[derive(Debug, Default)]
pub(crate) struct Clocks {
    standing: Standing,
    compared_at: Option<Instant>,
    /// Since when nobody answers, if nobody ever did.
    unanswered_since: Option<Instant>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Standing {
    /// Nobody has answered yet. It leads only where nobody else has a say, and not at once: see `keeps_time_alone`.
    #[default]
    Unknown,
    Fine,
    Ahead,
}

/// How a clock stands beside those of the nodes that answered; one that does not know the question says nothing. Nothing if nobody did.
fn judge(own_ms: u64, is_alone: bool, answers: &[Option<u64>]) -> Option<Standing> {
    let mut times: Vec<u64> = answers.iter().copied().flatten().collect();
    times.sort_unstable();
    match times.get(times.len() / 2) {
        Some(time_ms) if own_ms > time_ms.saturating_add(AHEAD_MS_MAX) => Some(Standing::Ahead),
        Some(_) => Some(Standing::Fine),
        None => (is_alone || !answers.is_empty()).then_some(Standing::Fine),
    }
}

impl Node {
    /// Whether this node may say what time it is.
    pub(crate) fn keeps_time(&self) -> bool {
        self.clocks.lock().standing == Standing::Fine
    }

    /// The same of a partition that nobody else holds: if all others are away, there is nobody to compare with, and nobody else to lead.
    pub(crate) fn keeps_time_alone(&self) -> bool {
        let clocks = self.clocks.lock();
        clocks.standing == Standing::Fine
            || clocks
                .unanswered_since
                .is_some_and(|since| clocks.standing == Standing::Unknown && since.elapsed() > LOST_AFTER)
    }

    /// Whether its clock is known to be wrong.
    pub(crate) fn is_ahead(&self) -> bool {
        self.clocks.lock().standing == Standing::Ahead
    }

    pub(crate) async fn compare_clocks(&self) {
        if self.clocks.lock().compared_at.is_some_and(|at| at.elapsed() < COMPARE_PAUSE) {
            return;
        }
        let nodes: Vec<NodeId> = self.meta.read(|meta| meta.nodes.keys().copied().collect());
        // Who was just started may not know yet who belongs to the cluster: that is not being alone.
        let is_alone = nodes == [self.id];
        let others: Vec<NodeId> = nodes.into_iter().filter(|node| *node != self.id).collect();
        let asked =
            others.iter().map(|node| self.ask(*node, vec![kind::TIME], HEAR_PAUSE, |reader| reader.varint()));
        let answers: Vec<Option<u64>> = futures_util::future::join_all(asked)
            .await
            .into_iter()
            .filter_map(|answer| match answer {
                Ok(time_ms) => Some(Some(time_ms)),
                Err(NotDone::Stopped(_)) => Some(None),
                Err(_) => None,
            })
            .collect();
        let mut clocks = self.clocks.lock();
        if let Some(standing) = judge((self.clock)(), is_alone, &answers) {
            if standing == Standing::Ahead && clocks.standing != standing {
                tracing::error!(
                    "the clock of this node is more than an hour ahead of most others: it leads nothing; set the clock right and restart the node"
                );
            }
            clocks.standing = standing;
            clocks.compared_at = Some(Instant::now());
        } else {
            clocks.unanswered_since.get_or_insert_with(Instant::now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_far_ahead_of_most_who_answer_is_wrong() {
        let (now, hour) = (1_790_000_000_000, AHEAD_MS_MAX);
        for (own, is_alone, answers, expected) in [
            (now, true, vec![], Some(Standing::Fine)),
            (now, false, vec![], None),
            (now, false, vec![None], Some(Standing::Fine)),
            (now + hour, false, vec![Some(now)], Some(Standing::Fine)),
            (now + hour + 1, false, vec![Some(now), None], Some(Standing::Ahead)),
            (now + hour + 1, false, vec![Some(0), Some(now + 1)], Some(Standing::Fine)),
            (0, false, vec![Some(now)], Some(Standing::Fine)),
            // Two of five are as wrong.
            (
                now + 2 * hour,
                false,
                vec![Some(now), Some(now + 2 * hour), Some(now), Some(now)],
                Some(Standing::Ahead),
            ),
            (
                now,
                false,
                vec![Some(now + 2 * hour), Some(now), Some(now + 2 * hour), Some(now)],
                Some(Standing::Fine),
            ),
        ] {
            assert_eq!(judge(own, is_alone, &answers), expected, "{own} {answers:?}");
        }
    }
}

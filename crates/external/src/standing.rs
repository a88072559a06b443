//! What Redis says of itself: which epoch the hash of policies and the marker of each group name. Where one is missing or
//! another, data is lost.

use redis::{Pipeline, RedisResult, Value};

use crate::archive::wall_ms;
use crate::groups::{self, GROUPS, POLICIES};
use crate::masters::{Links, Map};

/// The epoch that something names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    Epoch(String),
    /// It is not there.
    Nothing,
    /// Nobody could be asked.
    Unknown,
}

impl Named {
    fn of(answer: Option<Value>) -> Named {
        match answer {
            Some(Value::BulkString(epoch)) => Named::Epoch(String::from_utf8_lossy(&epoch).into_owned()),
            Some(Value::SimpleString(epoch)) => Named::Epoch(epoch),
            Some(Value::Nil) => Named::Nothing,
            _ => Named::Unknown,
        }
    }

    pub(crate) fn is(&self, epoch: &str) -> bool {
        matches!(self, Named::Epoch(named) if named == epoch)
    }

    /// Whether it certainly names another epoch, or none.
    fn is_other_than(&self, epoch: &str) -> bool {
        *self != Named::Unknown && !self.is(epoch)
    }
}

/// One look at everything.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    pub(crate) policies: Named,
    /// By group.
    pub(crate) markers: Vec<Named>,
    /// When that was at the latest, by the clocks of the masters. Entries of streams have their time too: nodes may have others.
    pub(crate) time_ms: i64,
    /// By how much those clocks are ahead of this node's, at most; nothing where nobody answered.
    pub(crate) ahead_ms: Option<i64>,
}

impl Standing {
    /// Asks every master once. Who does not answer is unknown.
    pub(crate) async fn look(links: &Links, map: &Map) -> Standing {
        let (mut policies, mut markers) = (Named::Unknown, vec![Named::Unknown; usize::from(GROUPS)]);
        let (mut time_ms, mut ahead_ms) = (None, None);
        for address in map.masters() {
            let here: Vec<u16> = map.groups_of(&address).collect();
            let has_policies = map.of_policies() == Some(&address);
            let mut pipeline = Pipeline::with_capacity(here.len() + 2);
            here.iter().for_each(|group| _ = pipeline.cmd("HGET").arg(groups::marker(*group)).arg("epoch"));
            if has_policies {
                pipeline.cmd("HGET").arg(POLICIES).arg("epoch");
            }
            pipeline.cmd("TIME");
            let count = here.len() + usize::from(has_policies) + 1;
            let asked_at_ms = wall_ms();
            let Ok(answers) = links.ask_all(&address, &pipeline, count).await else { continue };
            let mut answers = answers.into_iter();
            for group in here {
                markers[usize::from(group)] = Named::of(answers.next());
            }
            if has_policies {
                policies = Named::of(answers.next());
            }
            let time = answers.next().and_then(|time| to_ms(time).ok());
            time_ms = time_ms.max(time);
            ahead_ms = ahead_ms.max(time.map(|time| time - asked_at_ms));
        }
        Standing { policies, markers, time_ms: time_ms.unwrap_or_else(wall_ms), ahead_ms }
    }

    /// The masters that have answered.
    pub(crate) fn answering(&self, map: &Map) -> Vec<String> {
        let has_answered = |group: u16| self.markers[usize::from(group)] != Named::Unknown;
        map.masters().into_iter().filter(|address| map.groups_of(address).any(has_answered)).collect()
    }

    /// Whether nobody at all could be asked.
    pub(crate) fn is_unreached(&self) -> bool {
        self.policies == Named::Unknown && self.markers.iter().all(|marker| *marker == Named::Unknown)
    }

    /// Whether somebody could not be asked.
    pub(crate) fn is_partly_unknown(&self) -> bool {
        self.policies == Named::Unknown || self.markers.contains(&Named::Unknown)
    }

    /// Whether nothing at all is left: neither policies nor the marker of any group.
    pub(crate) fn names_nothing(&self) -> bool {
        self.markers.iter().chain([&self.policies]).all(|named| *named == Named::Nothing)
    }

    /// Whether something is lost.
    pub(crate) fn has_lost(&self, epoch: &str) -> bool {
        self.policies.is_other_than(epoch) || !self.lost_groups(epoch).is_empty()
    }

    /// The same, a bit for each.
    pub(crate) fn lost_mask(&self, epoch: &str) -> u64 {
        const { assert!(GROUPS <= 64) };
        self.lost_groups(epoch).into_iter().fold(0, |mask, group| mask | 1 << group)
    }

    /// The groups that have lost what they had in this epoch.
    pub(crate) fn lost_groups(&self, epoch: &str) -> Vec<u16> {
        (0..GROUPS).filter(|group| self.markers[usize::from(*group)].is_other_than(epoch)).collect()
    }

    /// What is wrong, for who should serve this epoch; nothing if nothing is.
    pub(crate) fn problem(&self, epoch: &str) -> Option<String> {
        if self.is_unreached() {
            return Some("no server of Redis answers".into());
        }
        let lost = self.lost_groups(epoch);
        match (self.policies.is_other_than(epoch), lost.len()) {
            (false, 0) => None,
            (true, 0) => Some(format!("Redis has lost the policies of epoch {epoch}")),
            (_, 64..) => Some(format!("Redis has lost all counters of epoch {epoch}")),
            (_, count) => {
                Some(format!("Redis has lost {count} of {GROUPS} groups of counters of epoch {epoch}"))
            }
        }
    }
}

/// The answer to TIME.
pub(crate) fn to_ms(time: Value) -> RedisResult<i64> {
    let (seconds, micros): (i64, i64) = redis::from_redis_value(time.extract_error()?)?;
    Ok(seconds.saturating_mul(1000).saturating_add(micros / 1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_or_another_is_lost_and_what_is_unknown_is_not() {
        let ours = || Named::Epoch("ours".into());
        let whole = Standing {
            policies: ours(),
            markers: vec![ours(); usize::from(GROUPS)],
            time_ms: 0,
            ahead_ms: None,
        };
        assert_eq!(whole.problem("ours"), None);
        assert!(whole.problem("other").is_some_and(|problem| problem.contains("all counters")));
        let mut silent = whole.clone();
        silent.markers[7] = Named::Unknown;
        assert_eq!((silent.problem("ours"), silent.lost_groups("ours")), (None, vec![]));
        let mut torn = whole.clone();
        torn.markers[7] = Named::Nothing;
        torn.markers[9] = Named::Epoch("older".into());
        assert_eq!(torn.lost_groups("ours"), [7, 9]);
        assert!(torn.problem("ours").is_some_and(|problem| problem.contains("2 of 64 groups")));
        let without = Standing { policies: Named::Nothing, ..whole.clone() };
        assert!(without.problem("ours").is_some_and(|problem| problem.contains("policies")));
        let nobody = Standing {
            policies: Named::Unknown,
            markers: vec![Named::Unknown; usize::from(GROUPS)],
            ..whole
        };
        assert!(nobody.problem("ours").is_some_and(|problem| problem.contains("no server")));
    }
}

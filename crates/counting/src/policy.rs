//! Policies: limits by key pattern. They are data, changed at run time; the most specific pattern wins.
//!
//! A pattern is a key in which `*` stands for any bytes and `?` for one byte. More specific means: no wildcard
//! at all, else more literal bytes, else fewer `*`, else the smaller pattern, so that the order is total and
//! the same everywhere.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use crate::body::{Keeping, Kind};
use crate::rollup::{CellsKept, Declared, Slice};
use crate::series::Retention;
use crate::window::{Frame, Zone};

/// What holds for the counters a pattern matches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// No change may bring the value below this.
    pub min: Option<i64>,
    /// No change may bring the value above this.
    pub max: Option<i64>,
    /// Additions take what the bounds leave, without asking for it in each call.
    pub saturate: bool,
    /// A counter born under this policy expires so long after its birth, unless the call says otherwise.
    pub ttl_ms: Option<u64>,
    /// Writes are refused, reads are served.
    pub disabled: bool,
    /// What counters are born as; sums where it is not said, and what the first request makes of them.
    pub kind: Option<Kind>,
    /// How windows, and uniques by time, cut it.
    pub window: Option<Keeping>,
    /// The limit of `acquire`, where the call gives none.
    pub limit: Option<i64>,
    /// `acquire` counts also beyond the limit.
    pub soft: bool,
    /// How long what the value was stays known.
    pub history: Option<Retention>,
    /// How long ago something may have happened that is counted for its time; as long as buckets are kept where it is not said.
    pub lateness_ms: Option<u64>,
    /// How long it stays known who changed a counter, when and why.
    pub audit_ms: Option<u64>,
    /// By which dimensions the value is rolled up.
    pub rollups: Option<Declared>,
    /// How long what is rolled up by time is kept by it.
    pub rollups_kept: CellsKept,
    /// Of a deployment in which counters are not strong by themselves: these are.
    pub strong: bool,
    /// Over how many places a counter is spread, where the deployment can do that: a power of two up to [`STRIPES_MAX`].
    pub stripes: Option<u16>,
}

/// What who asks for stripes is told where there are none.
pub const NOT_STRIPED_HERE: &str =
    "striped counters need a deployment on Redis (--backend); nothing was changed, leave `stripes` out";
/// The most stripes of a counter.
pub const STRIPES_MAX: u16 = 64;

impl Policy {
    /// Whether counters are spread over several places.
    pub fn is_striped(&self) -> bool {
        self.stripes.is_some_and(|stripes| stripes > 1)
    }

    /// What is wrong with its stripes, if anything: what needs the whole value for a decision does not go with them.
    pub fn stripes_problem(&self) -> Option<&'static str> {
        let stripes = self.stripes?;
        match () {
            () if !stripes.is_power_of_two() || stripes > STRIPES_MAX => {
                Some("is a power of two from 1 to 64")
            }
            () if stripes == 1 => None,
            () if self.min.is_some() || self.max.is_some() => {
                Some("does not go with `min` or `max`: nobody sees the whole value when something is added")
            }
            () if self.strong => Some("does not go with `consistency`: strong counters lie in one row"),
            () if self.ttl_ms.is_some() => {
                Some("does not go with `ttlMs`: stripes are born at different times")
            }
            () if Limits::from(self).is_for_whole || self.limit.is_some() => {
                Some("is for plain sums, without history, audit, roll-ups and limits")
            }
            () => None,
        }
    }

    /// Whose days and hours are meant where nothing else is said.
    pub fn zone(&self) -> Zone {
        match self.window.as_ref().map(|keeping| &keeping.frame) {
            Some(Frame::Calendar { zone, .. }) => zone.clone(),
            _ => Zone::utc(),
        }
    }
}

/// The most bytes that the log says of a calendar by which time is cut anew: a name of 64 bytes and eight offsets of up to 15 bytes, and little else.
const CALENDAR_BYTES_MAX: usize = 256;

impl Policy {
    /// The most bytes that the log says of a counter whose time is cut anew by it, where that is more than a few.
    pub fn recut_bytes_max(&self) -> usize {
        match self.window.as_ref().map(|keeping| &keeping.frame) {
            Some(Frame::Calendar { .. }) => CALENDAR_BYTES_MAX,
            _ => 0,
        }
    }
}

/// A policy in the form the rules use: no options left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Lowest value, `i64::MIN` for none.
    pub floor: i64,
    /// Highest value, `i64::MAX` for none.
    pub ceiling: i64,
    /// See [`Policy::saturate`].
    pub saturate: bool,
    /// See [`Policy::ttl_ms`]; 0 for none.
    pub ttl_ms: u64,
    /// See [`Policy::disabled`].
    pub disabled: bool,
    /// Whether the policy says what `kinds` has to know.
    pub is_for_whole: bool,
    /// See [`Policy::audit_ms`]; 0 for none. Where it is not, `is_for_whole` is set too: what has a trail takes that way.
    pub audit_ms: u64,
}

impl Limits {
    /// What holds where no policy matches.
    pub const NONE: Limits = Limits {
        floor: i64::MIN,
        ceiling: i64::MAX,
        saturate: false,
        ttl_ms: 0,
        disabled: false,
        is_for_whole: false,
        audit_ms: 0,
    };
}

impl From<&Policy> for Limits {
    fn from(policy: &Policy) -> Limits {
        Limits {
            floor: policy.min.unwrap_or(i64::MIN),
            ceiling: policy.max.unwrap_or(i64::MAX),
            saturate: policy.saturate,
            ttl_ms: policy.ttl_ms.unwrap_or(0),
            disabled: policy.disabled,
            is_for_whole: policy.kind.is_some_and(|kind| kind != Kind::Sum)
                || policy.history.is_some()
                || policy.audit_ms.is_some()
                || policy.rollups.is_some(),
            audit_ms: policy.audit_ms.unwrap_or(0),
        }
    }
}

/// All policies, ready to be asked for a key. Cheap to share, replaced as a whole when one changes.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    by_pattern: BTreeMap<Vec<u8>, Policy>,
    /// Most specific first; what `limits` walks.
    ranked: Arc<Vec<(Vec<u8>, Limits)>>,
    /// The longest time that any of them has a trail kept; 0 for none.
    audit_ms: u64,
}

/// The most policies one node keeps. Every write under policies walks this list, so it is short.
pub const POLICIES_MAX: usize = 1024;

impl Policies {
    /// Whether there is none, the common case that costs nothing per request.
    pub fn is_empty(&self) -> bool {
        self.by_pattern.is_empty()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_pattern.len()
    }

    /// What holds for `key`.
    pub fn limits(&self, key: &[u8]) -> Limits {
        match self.ranked.iter().find(|(pattern, _)| matches(pattern, key)) {
            Some((_, limits)) => *limits,
            None => Limits::NONE,
        }
    }

    /// The longest time that any of them has a trail kept, if one does.
    pub fn longest_audit_ms(&self) -> Option<u64> {
        Some(self.audit_ms).filter(|ms| *ms > 0)
    }

    /// The policy that holds for `key`.
    pub fn policy_for(&self, key: &[u8]) -> Option<&Policy> {
        let (pattern, _) = self.ranked.iter().find(|(pattern, _)| matches(pattern, key))?;
        self.by_pattern.get(pattern)
    }

    /// Whether some of them want their counters to be strong.
    pub fn want_strong(&self) -> bool {
        self.by_pattern.values().any(|policy| policy.strong)
    }

    /// Whether some of them have the log say more of a change than what became of the counter.
    pub fn say_more(&self) -> bool {
        let says_more = |policy: &Policy| {
            policy.audit_ms.is_some() || policy.rollups.is_some() || policy.recut_bytes_max() > 0
        };
        self.by_pattern.values().any(says_more)
    }

    /// The most bytes that the log says of an addition because of roll-ups, whatever policy holds for it.
    pub fn rollup_bytes_max(&self) -> usize {
        let declared = self.by_pattern.values().filter_map(|policy| policy.rollups.as_ref());
        declared.map(Declared::event_bytes_max).max().unwrap_or(0)
    }

    /// Whether some policy declares what a slice asks for; else what is declared.
    pub fn check_slice(&self, slice: &Slice) -> Result<(), String> {
        let all = || self.by_pattern.values().filter_map(|policy| policy.rollups.as_ref());
        if all().any(|declared| declared.tells(slice)) {
            return Ok(());
        }
        let mut shown: Vec<String> = all().map(Declared::to_string).collect();
        shown.sort_unstable();
        shown.dedup();
        Err(match shown.is_empty() {
            true => "no policy declares roll-ups".to_owned(),
            false => format!(
                "no policy declares a roll-up with all of these dimensions; declared are {}",
                shown.join(", ")
            ),
        })
    }

    /// The policy stored for exactly this pattern.
    pub fn get(&self, pattern: &[u8]) -> Option<&Policy> {
        self.by_pattern.get(pattern)
    }

    /// All of them in the order of their patterns.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], &Policy)> {
        self.by_pattern.iter().map(|(pattern, policy)| (pattern.as_slice(), policy))
    }

    /// Stores a policy for a pattern, or removes it. Returns whether anything was there before.
    pub fn set(&mut self, pattern: &[u8], policy: Option<Policy>) -> bool {
        let before = match policy {
            Some(policy) => self.by_pattern.insert(pattern.to_vec(), policy),
            None => self.by_pattern.remove(pattern),
        };
        let mut ranked: Vec<(Vec<u8>, Limits)> =
            self.by_pattern.iter().map(|(pattern, policy)| (pattern.clone(), Limits::from(policy))).collect();
        ranked.sort_by_cached_key(|(pattern, _)| specificity(pattern));
        self.audit_ms = ranked.iter().map(|(_, limits)| limits.audit_ms).max().unwrap_or(0);
        self.ranked = Arc::new(ranked);
        before.is_some()
    }
}

fn specificity(pattern: &[u8]) -> (bool, Reverse<usize>, usize, Vec<u8>) {
    let stars = pattern.iter().filter(|byte| **byte == b'*').count();
    let any = pattern.iter().filter(|byte| **byte == b'?').count();
    (stars + any > 0, Reverse(pattern.len() - stars - any), stars, pattern.to_vec())
}

/// Whether `key` matches `pattern`. Goes back to the last `*` only, so the time is at most the product of the
/// two lengths, whatever the pattern.
pub fn matches(pattern: &[u8], key: &[u8]) -> bool {
    let (mut p, mut k) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while k < key.len() {
        match pattern.get(p) {
            Some(b'*') => {
                retry = Some((p + 1, k));
                p += 1;
            }
            Some(byte) if *byte == b'?' || *byte == key[k] => {
                p += 1;
                k += 1;
            }
            _ => match retry {
                Some((after_star, from)) => {
                    retry = Some((after_star, from + 1));
                    (p, k) = (after_star, from + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::{Limits, Policies, Policy, matches};

    #[test]
    fn patterns() {
        for (pattern, key, expected) in [
            ("", "", true),
            ("a", "a", true),
            ("a", "b", false),
            ("*", "", true),
            ("*", "anything", true),
            ("a*", "a", true),
            ("a*c", "abbbc", true),
            ("a*c", "abbb", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*:like:*", "post:7:like:2026", true),
            ("a*b*c*d", "axxbyyczzd", true),
            ("a*b*c*d", "axxbyyczz", false),
            ("**", "x", true),
            ("*a*a*a*a*a*a*a*b", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), key.as_bytes()), expected, "{pattern} on {key}");
        }
    }

    #[test]
    fn the_most_specific_wins() {
        let mut policies = Policies::default();
        let capped = |max| Some(Policy { max: Some(max), ..Policy::default() });
        assert_eq!(policies.limits(b"stock:7"), Limits::NONE);
        for (pattern, max) in
            [("*", 1), ("stock:*", 2), ("stock:7", 3), ("stock:??", 4), ("*:7", 5), ("s*k:*", 6)]
        {
            assert!(!policies.set(pattern.as_bytes(), capped(max)));
        }
        for (key, max) in
            [("other", 1), ("stock:777", 2), ("stock:7", 3), ("stock:77", 4), ("view:7", 5), ("sk:", 6)]
        {
            assert_eq!(policies.limits(key.as_bytes()).ceiling, max, "{key}");
        }
        assert!(policies.set(b"stock:7", None));
        assert_eq!(policies.limits(b"stock:7").ceiling, 2);
    }
}

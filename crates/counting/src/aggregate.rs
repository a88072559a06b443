//! Totals over all counters that a pattern selects.
//!
//! Every partition adds up its own counters, and totals of partitions are put together in any order: nothing that is
//! passed on grows with the number of counters. A pattern is one of a policy: `*` stands for any bytes, `?` for one.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::body::{Body, Kind};
use crate::policy::{Policies, matches};
use crate::rollup::{GROUPS_MAX, Slice, Sliceable, Sliced};
use crate::service::Unavailable;
use crate::slot::{partition, slot, tag};

/// Some counters added up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Totals {
    /// Sum of their values. The largest number of counters with the largest values still fits.
    pub sum: i128,
    /// How many they are.
    pub count: u64,
    /// The smallest value; above [`Totals::max`] where there is no counter.
    pub min: i64,
    /// The largest value.
    pub max: i64,
    /// Where values of dimensions were asked for one by one: their sums, the first [`GROUPS_MAX`] in order. As many of some counters
    /// are enough for as many of all of them.
    pub groups: BTreeMap<Vec<String>, i128>,
    /// There are more.
    pub has_more_groups: bool,
}

impl Default for Totals {
    fn default() -> Totals {
        Totals::NOTHING
    }
}

impl Totals {
    /// Of no counters.
    pub const NOTHING: Totals = Totals {
        sum: 0,
        count: 0,
        min: i64::MAX,
        max: i64::MIN,
        groups: BTreeMap::new(),
        has_more_groups: false,
    };

    /// With one more counter.
    pub fn add(&mut self, value: i64) {
        let (sum, count) = (i128::from(value), 1);
        self.merge(&Totals { sum, count, min: value, max: value, ..Totals::NOTHING });
    }

    /// With a part of one more counter.
    fn add_part(&mut self, part: &Sliced) {
        self.add(part.value);
        self.has_more_groups |= part.is_partial;
        part.groups.iter().for_each(|(values, sum)| self.add_group(values, i128::from(*sum)));
    }

    fn add_group(&mut self, values: &[String], sum: i128) {
        let known = self.groups.entry(values.to_vec()).or_default();
        *known = known.saturating_add(sum);
        if self.groups.len() > GROUPS_MAX {
            self.groups.pop_last();
            self.has_more_groups = true;
        }
    }

    /// With all of those, none of which may be among these.
    pub fn merge(&mut self, other: &Totals) {
        self.sum = self.sum.saturating_add(other.sum);
        self.count = self.count.saturating_add(other.count);
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.has_more_groups |= other.has_more_groups;
        other.groups.iter().for_each(|(values, sum)| self.add_group(values, *sum));
    }

    /// The smallest and the largest value, if there is any.
    pub fn range(&self) -> Option<(i64, i64)> {
        (self.count > 0).then_some((self.min, self.max))
    }
}

/// The totals of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its number.
    pub partition: u16,
    /// The node that added up, in a cluster.
    pub node: Option<u64>,
    /// What it came to.
    pub totals: Totals,
}

/// A partition that nobody could be asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Its number.
    pub partition: u16,
    /// What was tried in vain.
    pub why: String,
}

/// The answer to a pattern. Each counter is in it at most once, with a value it had while the answer was made; one that
/// existed all that time is in it, unless its partition is missing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Aggregate {
    /// Partitions with counters that match, in order.
    pub parts: Vec<Part>,
    /// Partitions of which nothing is known, in order.
    pub missing: Vec<Missing>,
}

impl Aggregate {
    /// All parts together.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::NOTHING;
        self.parts.iter().for_each(|part| totals.merge(&part.totals));
        totals
    }

    /// Whether counters may be missing.
    pub fn is_partial(&self) -> bool {
        !self.missing.is_empty()
    }

    /// The same for who wants all or nothing.
    pub fn whole(self) -> Result<Aggregate, Unavailable> {
        let Some(first) = self.missing.first() else { return Ok(self) };
        let others = match self.missing.len() - 1 {
            0 => String::new(),
            others => format!(", and {others} more are missing"),
        };
        Err(Unavailable::NoLeader(format!("partition {}: {}{others}", first.partition, first.why)))
    }
}

/// A pattern, taken apart for finding what it selects; and which part of the values counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    pattern: Vec<u8>,
    /// So many bytes before the first wildcard.
    literal: usize,
    slice: Option<Slice>,
}

impl Selector {
    /// Of a pattern.
    pub fn new(pattern: &[u8]) -> Selector {
        let is_wildcard = |byte: &u8| matches!(byte, b'*' | b'?');
        let literal = pattern.iter().position(is_wildcard).unwrap_or(pattern.len());
        Selector { pattern: pattern.to_vec(), literal, slice: None }
    }

    /// The same counters; of each value this part counts. Those of which nobody declares it do not.
    pub fn of_part(self, slice: Option<Slice>) -> Selector {
        Selector { slice, ..self }
    }

    /// The pattern.
    pub fn pattern(&self) -> &[u8] {
        &self.pattern
    }

    /// Which part of the values counts, if not all.
    pub fn slice(&self) -> Option<&Slice> {
        self.slice.as_ref()
    }

    /// Adds what counts of a counter.
    pub fn add(
        &self,
        totals: &mut Totals,
        (key, value): (&[u8], i64),
        body: Option<&Arc<Body>>,
        policies: &Policies,
    ) {
        let Some(slice) = &self.slice else { return totals.add(value) };
        let declared = policies.policy_for(key).and_then(|policy| policy.rollups.clone());
        if let (Some(declared), false) = (declared, body.is_some_and(|body| body.kind() == Kind::Unique)) {
            let sliceable = Sliceable { slice: slice.clone(), declared, value, body: body.cloned() };
            sliceable.add_up().iter().for_each(|part| totals.add_part(part));
        }
    }

    /// What all selected keys begin with.
    pub fn prefix(&self) -> &[u8] {
        &self.pattern[..self.literal]
    }

    /// Whether there is no wildcard, so that the pattern is the one key it selects.
    pub fn is_one_key(&self) -> bool {
        self.literal == self.pattern.len()
    }

    /// Whether a key that begins with the prefix is selected.
    pub fn selects(&self, key: &[u8]) -> bool {
        &self.pattern[self.literal..] == b"*" || matches(&self.pattern, key)
    }

    /// The partition that all selected keys are in, if the pattern says enough of them: it is one key, or begins with
    /// a whole `{tag}`.
    pub fn only_partition(&self, partitions: u16) -> Option<u16> {
        let prefix = self.prefix();
        // A tag is shorter than what it stands in.
        let has_tag = tag(prefix).len() < prefix.len();
        (self.is_one_key() || has_tag).then(|| partition(slot(prefix), partitions))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Aggregate, GROUPS_MAX, Missing, Part, Selector, Sliced, Totals};
    use crate::policy::matches;
    use crate::slot::{partition, slot};

    fn totals(values: &[i64]) -> Totals {
        let mut totals = Totals::NOTHING;
        values.iter().for_each(|value| totals.add(*value));
        totals
    }

    proptest! {
        #[test]
        fn however_counters_are_divided_the_totals_are_the_same(
            values in prop::collection::vec((any::<i64>(), 0_u16..4), 0..50),
        ) {
            let all: Vec<i64> = values.iter().map(|(value, _)| *value).collect();
            let expected = totals(&all);
            prop_assert_eq!(expected.sum, all.iter().map(|value| i128::from(*value)).sum::<i128>());
            prop_assert_eq!(expected.count, all.len() as u64);
            let range = all.iter().min().copied().zip(all.iter().max().copied());
            prop_assert_eq!(expected.range(), range);
            let part = |partition| {
                let of_it = values.iter().filter(|(_, of)| *of == partition).map(|(value, _)| *value);
                Part { partition, node: None, totals: totals(&of_it.collect::<Vec<_>>()) }
            };
            let aggregate = Aggregate { parts: (0..4).rev().map(part).collect(), missing: Vec::new() };
            prop_assert_eq!(aggregate.totals(), expected);
        }

        #[test]
        fn a_selector_selects_what_its_pattern_matches(
            pattern in "[ab{}*?]{0,8}",
            key in "[ab{}]{1,8}",
        ) {
            let selector = Selector::new(pattern.as_bytes());
            let selected = key.as_bytes().starts_with(selector.prefix()) && selector.selects(key.as_bytes());
            prop_assert_eq!(selected, matches(pattern.as_bytes(), key.as_bytes()));
            if let (true, Some(only)) = (selected, selector.only_partition(16)) {
                prop_assert_eq!(only, partition(slot(key.as_bytes()), 16));
            }
        }
    }

    #[test]
    fn the_largest_totals_fit() {
        let one = totals(&[i64::MIN]);
        let most = Totals { sum: one.sum * i128::from(u64::MAX), count: u64::MAX, ..one.clone() };
        let mut both = most;
        both.merge(&one);
        assert_eq!((both.sum, both.count), (i128::MIN, u64::MAX));
    }

    /// The first groups of all are found among the first of each.
    #[test]
    fn groups_are_bounded_and_exact() {
        let part = |from: usize, step: usize| {
            let group = |number: usize| (vec![format!("{:05}", from + number * step)], 1);
            let groups = (0..GROUPS_MAX).map(group).collect();
            Sliced { value: 0, groups, is_partial: false }
        };
        let (mut some, mut others) = (Totals::NOTHING, Totals::NOTHING);
        some.add_part(&part(0, 2));
        some.add_part(&part(0, 3));
        others.add_part(&part(1, 2));
        assert!(some.has_more_groups && !others.has_more_groups);
        some.merge(&others);
        assert_eq!(some.groups.len(), GROUPS_MAX);
        for (number, (values, sum)) in some.groups.iter().enumerate() {
            assert_eq!((values, *sum), (&vec![format!("{number:05}")], if number % 3 == 0 { 2 } else { 1 }));
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let missing = |partition| Missing { partition, why: "nobody leads it".to_owned() };
        for (partitions, said) in [
            (&[][..], None),
            (&[3], Some("partition 3: nobody leads it; nothing was changed, retry")),
            (
                &[3, 5, 9],
                Some("partition 3: nobody leads it, and 2 more are missing; nothing was changed, retry"),
            ),
        ] {
            let missing = partitions.iter().map(|partition| missing(*partition)).collect();
            let refused = Aggregate { parts: Vec::new(), missing }.whole().err();
            assert_eq!(refused.map(|why| why.to_string()).as_deref(), said);
        }
    }

    #[test]
    fn prefixes_and_partitions() {
        for (pattern, prefix, has_one_partition) in [
            ("likes:post:7", "likes:post:7", true),
            ("likes:*", "likes:", false),
            ("*", "", false),
            ("?a*", "", false),
            ("", "", true),
            ("{user:7}:*", "{user:7}:", true),
            ("{user:*}", "{user:", false),
            ("{}*", "{}", false),
        ] {
            let selector = Selector::new(pattern.as_bytes());
            assert_eq!(selector.prefix(), prefix.as_bytes(), "{pattern}");
            assert_eq!(selector.only_partition(16).is_some(), has_one_partition, "{pattern}");
        }
    }
}

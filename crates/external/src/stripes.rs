//! Counters that are written too often for one place are spread over several: *stripes*.
//!
//! A stripe of a counter is a cell of its own under the counter's own name, in another group: the stripe at distance `d` lies in the group `d`
//! behind the counter's own, of 64. A counter of 16 stripes has those at distances 0, 4, 8 and so on; so the stripes of fewer are among those of more, and a
//! counter that is not striped is the stripe at distance 0. When a counter gets more stripes nothing moves. When it gets fewer, the others are not
//! written any more, and still read: the value is the sum of all stripes that ever were.
//!
//! A request with an id goes to the stripe that the id says, and is remembered there. When the number of stripes changes, the same id may
//! say another stripe. So every number that a pattern ever had is kept, with the time when it was last known to hold, in the hash of policies; and
//! for as long as ids from before are remembered, the stripe of that time is asked first (`striping.rs`). What holds for a counter may also
//! change because a more specific pattern comes or goes, so that is noted too, where it may concern counters that ever lay in stripes.

use quipu_counting::policy::matches;
use quipu_counting::{IdentityKey, Policies};

use crate::groups::{GROUPS, group};

/// How many stripes a pattern has had, each with the time when that was last set or last replaced.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stripes {
    /// The version of the policies that they were read with.
    pub(crate) edition: u64,
    patterns: Vec<Pattern>,
}

#[derive(Clone, Debug)]
struct Pattern {
    pattern: Vec<u8>,
    /// By time.
    versions: Vec<(u64, u16)>,
}

/// How a counter is spread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The group of the counter itself.
    home: u16,
    /// Over how many stripes what is written goes.
    pub(crate) stripes: u16,
    /// Over how many it ever went.
    pub(crate) widest: u16,
    /// Other numbers by which ids that are still remembered may have been placed.
    before: Vec<u16>,
    /// Of two layouts of a counter the one with the larger number is the newer; those with the same are the same.
    pub(crate) edition: u64,
}

impl Stripes {
    /// Whether nothing was ever striped.
    pub(crate) fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Whether a counter may match this pattern that ever lay in stripes: of two patterns that have a key in common one begins as the
    /// other does, up to the first wildcard.
    pub(crate) fn may_concern(&self, pattern: &[u8]) -> bool {
        let literal = |pattern: &[u8]| -> Vec<u8> {
            pattern.iter().copied().take_while(|byte| !matches!(byte, b'*' | b'?')).collect()
        };
        let begin = literal(pattern);
        let is_striped = |known: &&Pattern| known.versions.iter().any(|(_, stripes)| *stripes > 1);
        self.patterns.iter().filter(is_striped).any(|known| {
            let other = literal(&known.pattern);
            begin.starts_with(&other) || other.starts_with(&begin)
        })
    }

    /// The most that a pattern ever had.
    pub(crate) fn widest_of(&self, pattern: &[u8]) -> u16 {
        let known = self.patterns.iter().find(|known| known.pattern == pattern);
        known.map_or(1, |known| known.versions.iter().map(|(_, stripes)| *stripes).max().unwrap_or(1))
    }

    /// Notes that a pattern had so many then.
    pub(crate) fn note(&mut self, pattern: &[u8], stripes: u16, noted_at_ms: u64) {
        let known = self.patterns.iter().position(|known| known.pattern == pattern);
        let place = known.unwrap_or_else(|| {
            self.patterns.push(Pattern { pattern: pattern.to_vec(), versions: Vec::new() });
            self.patterns.len() - 1
        });
        let versions = &mut self.patterns[place].versions;
        versions.push((noted_at_ms, stripes));
        versions.sort_unstable();
    }

    /// The most stripes that a counter ever had.
    pub(crate) fn widest(&self, key: &[u8]) -> u16 {
        let all = self.matching(key).flat_map(|pattern| &pattern.versions);
        all.map(|(_, stripes)| *stripes).max().unwrap_or(1)
    }

    fn matching(&self, key: &[u8]) -> impl Iterator<Item = &Pattern> {
        self.patterns.iter().filter(move |pattern| matches(&pattern.pattern, key))
    }

    /// How a counter is spread, if it ever was and is not in a row of PostgreSQL now. Ids are remembered for `id_window_ms`.
    pub(crate) fn layout(
        &self,
        key: &[u8],
        policies: &Policies,
        now_ms: u64,
        id_window_ms: u64,
    ) -> Option<Layout> {
        let widest = self.widest(key);
        let policy = policies.policy_for(key);
        if widest == 1 || policy.is_some_and(|policy| policy.strong) {
            return None;
        }
        let stripes = policy.and_then(|policy| policy.stripes).unwrap_or(1);
        let remembered_ms = id_window_ms.saturating_add(LATE_MS);
        let mut before: Vec<u16> = Vec::new();
        let mut add = |number: u16| {
            if number != stripes && !before.contains(&number) {
                before.push(number);
            }
        };
        for pattern in self.matching(key) {
            // Before the first time it was not striped.
            let mut versions = vec![(0, 1)];
            versions.extend(&pattern.versions);
            for (place, (noted_at_ms, number)) in versions.iter().enumerate() {
                let ended_ms = versions.get(place + 1).map_or(*noted_at_ms, |(next_ms, _)| *next_ms);
                if now_ms.saturating_sub(ended_ms) < remembered_ms {
                    add(*number);
                }
            }
        }
        // What has less say than another pattern has it again once that is gone, and nobody notes when.
        let other = policies.iter().filter(|(pattern, policy)| policy.is_striped() && matches(pattern, key));
        other.for_each(|(_, policy)| add(policy.stripes.unwrap_or(1)));
        Some(Layout { home: group(key), stripes, widest: widest.max(stripes), before, edition: self.edition })
    }
}

/// Some nodes hear of a change later than others, and clocks differ.
const LATE_MS: u64 = 60_000;

/// The distance of the stripe, of so many, that a number says.
fn distance(number: u128, stripes: u16) -> u16 {
    let place = (number % u128::from(GROUPS)) as u16;
    let step = GROUPS / stripes.clamp(1, GROUPS);
    place - place % step
}

impl Layout {
    /// The group of the stripe at a distance.
    pub(crate) fn group(&self, distance: u16) -> u16 {
        (self.home + distance) % GROUPS
    }

    /// The distances of all stripes that may have something.
    pub(crate) fn all(&self) -> impl Iterator<Item = u16> + use<> {
        (0..GROUPS).step_by(usize::from(GROUPS / self.widest.clamp(1, GROUPS)))
    }

    /// The stripe that a request under an id goes to.
    pub(crate) fn of_id(&self, key: &[u8], id: &[u8], index: u32) -> u16 {
        distance(number_of_id(key, id, index), self.stripes)
    }

    /// Where else what is remembered under it may lie.
    pub(crate) fn before_of_id(&self, key: &[u8], id: &[u8], index: u32) -> Vec<u16> {
        let (number, now) = (number_of_id(key, id, index), self.of_id(key, id, index));
        let mut found: Vec<u16> = Vec::new();
        for stripes in &self.before {
            let other = distance(number, *stripes);
            if other != now && !found.contains(&other) {
                found.push(other);
            }
        }
        found
    }

    /// Any stripe, by chance.
    pub(crate) fn any(&self, draw: u64) -> u16 {
        distance(u128::from(draw), self.stripes)
    }
}

/// What an id says. Stored with counters, in a way: must not change.
fn number_of_id(key: &[u8], id: &[u8], index: u32) -> u128 {
    IdentityKey([0; 16]).identity(0, key, id, index)
}

/// The group that a stripe lies in, by its number in the archive.
pub(crate) fn group_of_stripe(key: &[u8], stripe: i32) -> u16 {
    (group(key) + u16::try_from(stripe).unwrap_or(0) % GROUPS) % GROUPS
}

/// Which stripe of its counter a cell is that lies in this group.
pub(crate) fn stripe_in(key: &[u8], found_in: u16) -> u16 {
    (found_in + GROUPS - group(key)) % GROUPS
}

#[cfg(test)]
mod tests {
    use quipu_counting::Policy;

    use super::*;

    const WINDOW_MS: u64 = 1_000_000;

    fn policies(stripes: u16) -> Policies {
        let mut policies = Policies::default();
        policies.set(b"hot:*", Some(Policy { stripes: Some(stripes), ..Policy::default() }));
        policies
    }

    #[test]
    fn stripes_of_fewer_are_among_those_of_more() {
        for (fewer, more) in [(1, 2), (2, 16), (16, 64), (1, 64)] {
            for number in 0..1_000_u128 {
                let found = distance(number, more);
                assert_eq!(found - found % (GROUPS / fewer), distance(number, fewer));
            }
            let mut seen: Vec<u16> = (0..64).map(|number| distance(number, more)).collect();
            seen.dedup();
            assert_eq!(seen.len(), usize::from(more));
        }
    }

    #[test]
    fn what_was_striped_once_is_read_as_a_whole_for_ever() {
        let mut stripes = Stripes::default();
        assert_eq!(stripes.layout(b"hot:1", &policies(16), 5, WINDOW_MS), None);
        stripes.note(b"hot:*", 16, 1_000);
        let first = stripes.layout(b"hot:1", &policies(16), 2_000, WINDOW_MS).expect("a layout");
        assert_eq!((first.stripes, first.widest, &first.before[..]), (16, 16, &[1][..]));
        assert_eq!(first.all().collect::<Vec<_>>(), (0..16).map(|stripe| stripe * 4).collect::<Vec<_>>());
        assert_eq!(stripes.layout(b"cold:1", &policies(16), 2_000, WINDOW_MS), None);
        stripes.note(b"hot:*", 64, 500_000);
        stripes.note(b"hot:*", 1, 900_000);
        let last = stripes.layout(b"hot:1", &Policies::default(), 900_001, WINDOW_MS).expect("a layout");
        assert_eq!((last.stripes, last.widest, &last.before[..]), (1, 64, &[16, 64][..]));
        let much_later = 900_000 + WINDOW_MS + LATE_MS;
        let last = stripes.layout(b"hot:1", &Policies::default(), much_later, WINDOW_MS).expect("a layout");
        assert_eq!((last.widest, &last.before[..]), (64, &[][..]), "older ids are forgotten");
    }

    #[test]
    fn what_a_more_specific_pattern_had_counts_too() {
        let (mut stripes, mut held) = (Stripes::default(), policies(16));
        let much_later = 3 * WINDOW_MS;
        stripes.note(b"hot:*", 16, 1_000);
        assert!(stripes.may_concern(b"hot:a*") && stripes.may_concern(b"h?t") && stripes.may_concern(b"*"));
        assert!(!stripes.may_concern(b"hat:*") && !stripes.may_concern(b"cold"));
        // One that is not striped comes, and goes again.
        held.set(b"hot:a*", Some(Policy::default()));
        stripes.note(b"hot:a*", 1, much_later);
        let inside = stripes.layout(b"hot:ab", &held, 2 * much_later, WINDOW_MS).expect("a layout");
        assert_eq!((inside.stripes, inside.widest, &inside.before[..]), (1, 16, &[16][..]));
        held.set(b"hot:a*", None);
        stripes.note(b"hot:a*", 1, 2 * much_later);
        let after = stripes.layout(b"hot:ab", &held, 2 * much_later + 5, WINDOW_MS).expect("a layout");
        assert_eq!((after.stripes, &after.before[..]), (16, &[1][..]), "ids lie where it said");
        let other = stripes.layout(b"hot:b", &held, 2 * much_later + 5, WINDOW_MS).expect("a layout");
        assert_eq!((other.stripes, &other.before[..]), (16, &[][..]), "it said nothing of others");
        held.set(b"hot:a*", Some(Policy { strong: true, ..Policy::default() }));
        assert_eq!(stripes.layout(b"hot:ab", &held, 9 * much_later, WINDOW_MS), None, "it lies in a row");
    }

    #[test]
    fn an_id_is_found_where_it_was_before() {
        let mut stripes = Stripes::default();
        stripes.note(b"hot:*", 16, 1_000);
        let before = stripes.layout(b"hot:1", &policies(16), 2_000, WINDOW_MS).expect("a layout");
        stripes.note(b"hot:*", 64, 3_000);
        let after = stripes.layout(b"hot:1", &policies(64), 4_000, WINDOW_MS).expect("a layout");
        for number in 0..200 {
            let id = format!("id {number}");
            let (was, is) =
                (before.of_id(b"hot:1", id.as_bytes(), 0), after.of_id(b"hot:1", id.as_bytes(), 0));
            assert!(was == is || after.before_of_id(b"hot:1", id.as_bytes(), 0).contains(&was));
            assert_eq!(stripe_in(b"hot:1", after.group(is)), is);
            assert_eq!(group_of_stripe(b"hot:1", i32::from(is)), after.group(is));
        }
    }
}

//! Which counters somebody watches, and what is noted of their changes.
//!
//! Only that a counter changed is noted, not how: whoever is told reads it, and so has the newest state however often it changed.

use std::collections::BTreeSet;

/// Which counters are watched: some by name, others by how their names begin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    keys: BTreeSet<Vec<u8>>,
    /// In ascending order; none begins with another, so at most the last that is not above a key can be its beginning.
    prefixes: Vec<Vec<u8>>,
}

impl Interest {
    /// In these counters, and in all whose keys begin with one of these.
    pub fn new(
        keys: impl IntoIterator<Item = Vec<u8>>,
        prefixes: impl IntoIterator<Item = Vec<u8>>,
    ) -> Interest {
        let mut sorted: Vec<Vec<u8>> = prefixes.into_iter().collect();
        sorted.sort_unstable();
        let mut prefixes: Vec<Vec<u8>> = Vec::with_capacity(sorted.len());
        for prefix in sorted {
            if !prefixes.last().is_some_and(|shorter| prefix.starts_with(shorter)) {
                prefixes.push(prefix);
            }
        }
        Interest { keys: keys.into_iter().collect(), prefixes }
    }

    /// Whether nothing is watched.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.prefixes.is_empty()
    }

    /// The counters that are watched by name, in ascending order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = &[u8]> {
        self.keys.iter().map(Vec::as_slice)
    }

    /// The beginnings of names, in ascending order; none begins with another.
    pub fn prefixes(&self) -> &[Vec<u8>] {
        &self.prefixes
    }

    /// Whether this counter is watched.
    pub fn covers(&self, key: &[u8]) -> bool {
        self.covers_by_prefix(key) || self.keys.contains(key)
    }

    /// Whether it is because of how its name begins.
    pub fn covers_by_prefix(&self, key: &[u8]) -> bool {
        let behind = self.prefixes.partition_point(|prefix| prefix.as_slice() <= key);
        behind > 0 && key.starts_with(&self.prefixes[behind - 1])
    }
}

/// What became of watched counters since somebody asked before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// First, all counters there were have been deleted.
    pub cleared: bool,
    /// Counters that may have changed, then. One may stand here more than once.
    pub keys: Vec<Vec<u8>>,
    /// More has changed than could be noted: any watched counter may have.
    pub lost: bool,
}

impl Changes {
    /// Whether nothing happened.
    pub fn is_empty(&self) -> bool {
        !self.cleared && !self.lost && self.keys.is_empty()
    }

    /// Adds what happened after.
    pub fn then(&mut self, later: Changes) {
        if later.cleared {
            self.keys.clear();
            self.cleared = true;
        }
        self.lost |= later.lost;
        self.keys.extend(later.keys);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interest(keys: &[&str], prefixes: &[&str]) -> Interest {
        let bytes = |names: &[&str]| names.iter().map(|name| name.as_bytes().to_vec()).collect::<Vec<_>>();
        Interest::new(bytes(keys), bytes(prefixes))
    }

    #[test]
    fn what_is_watched_is_told_from_the_rest() {
        for (keys, prefixes, watched, others) in [
            (&[][..], &[][..], &[][..], &["", "a"][..]),
            (&["a", "b"], &[], &["a", "b"], &["", "aa", "c"]),
            (&[], &[""], &["", "a", "\u{ff}"], &[]),
            (&[], &["a:", "b"], &["a:", "a:1", "b", "bz"], &["a", "a;", "c", ""]),
            (&[], &["a", "ab", "abc", "b"], &["a", "ab", "abd", "ac", "b"], &["c", ""]),
            (&["x"], &["ab", "a:z"], &["abc", "a:z9", "x"], &["a:y", "aa", "xx"]),
        ] {
            let interest = interest(keys, prefixes);
            assert_eq!(interest.is_empty(), keys.is_empty() && prefixes.is_empty());
            for key in watched {
                assert!(interest.covers(key.as_bytes()), "{key:?} of {interest:?}");
            }
            for key in others {
                assert!(!interest.covers(key.as_bytes()), "{key:?} of {interest:?}");
            }
        }
        assert_eq!(interest(&[], &["b", "ab", "a", "abc"]).prefixes(), [b"a".to_vec(), b"b".to_vec()]);
    }

    #[test]
    fn what_came_before_a_deletion_of_all_is_forgotten() {
        let keys = |names: &[&str]| names.iter().map(|name| name.as_bytes().to_vec()).collect::<Vec<_>>();
        let mut changes = Changes { keys: keys(&["a"]), ..Changes::default() };
        changes.then(Changes { keys: keys(&["b"]), ..Changes::default() });
        assert_eq!(changes, Changes { keys: keys(&["a", "b"]), ..Changes::default() });
        changes.then(Changes { cleared: true, keys: keys(&["c"]), lost: true });
        assert_eq!(changes, Changes { cleared: true, keys: keys(&["c"]), lost: true });
        changes.then(Changes::default());
        assert!(changes.cleared && changes.lost && !changes.is_empty() && Changes::default().is_empty());
    }
}

//! Which policy holds for a key, said a second time.

use std::collections::BTreeMap;

use quipu_counting::Policy;

/// The policy of the most specific pattern that matches; an empty one where none does.
pub fn policy_of(policies: &BTreeMap<Vec<u8>, Policy>, key: &[u8]) -> Policy {
    let matching = policies.iter().filter(|(pattern, _)| matches(pattern, key));
    // No wildcard beats any; then more literal bytes; then fewer stars; then the smaller pattern.
    let best = matching.min_by_key(|(pattern, _)| {
        let stars = pattern.iter().filter(|byte| **byte == b'*').count();
        let wildcards = pattern.iter().filter(|byte| b"*?".contains(byte)).count();
        (wildcards > 0, usize::MAX - (pattern.len() - wildcards), stars, pattern.to_vec())
    });
    best.map(|(_, policy)| policy.clone()).unwrap_or_default()
}

fn matches(pattern: &[u8], key: &[u8]) -> bool {
    match (pattern.split_first(), key.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), None) => matches(rest, key),
        (Some((b'*', rest)), Some((_, tail))) => matches(rest, key) || matches(pattern, tail),
        (Some((b'?', rest)), Some((_, tail))) => matches(rest, tail),
        (Some((byte, rest)), Some((head, tail))) => byte == head && matches(rest, tail),
        (None, Some(_)) | (Some(_), None) => false,
    }
}

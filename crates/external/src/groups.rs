//! Groups of keys that share a slot in Redis, and what lies in them.
//!
//! ```text
//! {tag}:c:<key>                                 a cell: value version updated birth expires [body]
//! {tag}:i:<key length>:<key>:<index>:<id>       what is remembered under a request id
//! {tag}:s                                       the stream of changes
//! {tag}:m                                       the marker: epoch, births
//! {tag}:p                                       producers: epoch sequence refusal
//! {q-policies}:p                                epoch, version, policies
//! ```
//!
//! A group has 256 slots, and its own tag is the first `q<n>` whose slot is one of them: groups spread over the masters of a
//! cluster as slots do. Every fourth is the home of keys, those whose slot lies there or in the three groups behind it, so keys with
//! a common `{tag}` share a group; in the others there are only stripes of counters that have 32 or 64. What meets in a group travels as one call: more homes
//! would be emptier calls, fewer could not use the masters of a large cluster.

use std::sync::LazyLock;

use quipu_counting::slot::{partition, slot};

/// How many groups there are. Part of what lies in Redis: must not change.
pub const GROUPS: u16 = 64;

/// How many of them are homes of keys. The same holds for it.
const HOMES: u16 = 16;

/// Where policies lie, and the epoch that all markers must name.
pub(crate) const POLICIES: &str = "{q-policies}:p";

static TAGS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let mut tags = vec![String::new(); usize::from(GROUPS)];
    let mut missing = tags.len();
    for number in 0u32.. {
        if missing == 0 {
            break;
        }
        let name = format!("q{number}");
        let tag = &mut tags[usize::from(group_of_name(name.as_bytes()))];
        if tag.is_empty() {
            *tag = name;
            missing -= 1;
        }
    }
    tags
});

/// The group of a key.
pub fn group(key: &[u8]) -> u16 {
    partition(slot(key), HOMES) * (GROUPS / HOMES)
}

/// Which of the homes a group is, or lies behind.
pub(crate) fn number_of_home(group: u16) -> u16 {
    group / (GROUPS / HOMES)
}

/// The group of something that lies in Redis.
pub(crate) fn group_of_name(name: &[u8]) -> u16 {
    partition(slot(name), GROUPS)
}

/// The hash tag of a group.
pub fn tag(group: u16) -> &'static str {
    &TAGS[usize::from(group)]
}

/// The slot in which everything of a group lies.
pub(crate) fn home(group: u16) -> u16 {
    slot(tag(group).as_bytes())
}

pub(crate) fn marker(group: u16) -> String {
    format!("{{{}}}:m", tag(group))
}

pub(crate) fn stream(group: u16) -> String {
    format!("{{{}}}:s", tag(group))
}

pub(crate) fn producers(group: u16) -> String {
    format!("{{{}}}:p", tag(group))
}

pub(crate) fn cell(group: u16, key: &[u8]) -> Vec<u8> {
    [b"{", tag(group).as_bytes(), b"}:c:", key].concat()
}

pub(crate) fn id(group: u16, key: &[u8], index: u32, id: &[u8]) -> Vec<u8> {
    let length = key.len().to_string();
    let index = index.to_string();
    [b"{", tag(group).as_bytes(), b"}:i:", length.as_bytes(), b":", key, b":", index.as_bytes(), b":", id]
        .concat()
}

/// The group that a cell lies in and its key, from its name in Redis.
pub(crate) fn place_of_cell(name: &[u8]) -> Option<(u16, &[u8])> {
    let rest = name.strip_prefix(b"{")?;
    let close = rest.iter().position(|byte| *byte == b'}')?;
    let found = group_of_name(&rest[..close]);
    let key = rest[close..].strip_prefix(b"}:c:")?;
    (rest[..close] == *tag(found).as_bytes()).then_some((found, key))
}

/// What a key in Redis is.
pub(crate) enum Name<'a> {
    Counter(u16, &'a [u8]),
    Id { group: u16, key: &'a [u8], index: u32, id: &'a [u8] },
}

impl Name<'_> {
    pub(crate) fn of(name: &[u8]) -> Option<Name<'_>> {
        if let Some((group, key)) = place_of_cell(name) {
            return Some(Name::Counter(group, key));
        }
        let group = group_of_name(name);
        let rest = name.strip_prefix(b"{")?.strip_prefix(tag(group).as_bytes())?.strip_prefix(b"}:i:")?;
        let (length, rest) = number_before_colon(rest)?;
        let (key, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
        let (index, id) = number_before_colon(rest.strip_prefix(b":")?)?;
        Some(Name::Id { group, key, index, id })
    }

    pub(crate) fn group(&self) -> u16 {
        match self {
            Name::Counter(group, _) | Name::Id { group, .. } => *group,
        }
    }
}

fn number_before_colon(text: &[u8]) -> Option<(u32, &[u8])> {
    let colon = text.iter().position(|byte| *byte == b':')?;
    Some((std::str::from_utf8(&text[..colon]).ok()?.parse().ok()?, &text[colon + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_has_a_tag_of_its_own_slots() {
        for number in 0..GROUPS {
            assert_eq!(group_of_name(tag(number).as_bytes()), number);
            assert_eq!(home(number) / 256, number);
            for name in [marker(number).into_bytes(), stream(number).into_bytes(), cell(number, b"a{b}c")] {
                assert_eq!(slot(&name), home(number));
            }
            assert_eq!(slot(&id(number, b"}{", 0, b"{x}")), home(number));
        }
        assert_eq!(tag(group_of_name(b"q0")), "q0", "the smallest number");
        assert_eq!((group(b"q0") % 4, group(b"q0") / 4), (0, group_of_name(b"q0") / 4));
    }

    #[test]
    fn names_tell_keys_and_ids_apart() {
        assert_eq!(place_of_cell(&cell(7, b"}:c:{x}")), Some((7, &b"}:c:{x}"[..])));
        assert_eq!(place_of_cell(b"{other}:c:x"), None, "it is somebody else's");
        assert_eq!(place_of_cell(stream(7).as_bytes()), None);
        assert_eq!(place_of_cell(&id(7, b"a", 0, b"b")), None);
        assert_ne!(id(7, b"a", 0, b"b:c"), id(7, b"a:0:b", 0, b"c"));
        assert_ne!(id(7, b"a", 1, b"0:b"), id(7, b"a", 10, b"b"));
    }

    #[test]
    fn names_say_what_they_are() {
        let (cell, id) = (cell(7, b"a:b"), id(7, b"a:3:b", 4, b"x:1"));
        assert!(matches!(Name::of(&cell), Some(Name::Counter(7, b"a:b"))));
        let found = Name::of(&id);
        assert!(matches!(found, Some(Name::Id { group: 7, key: b"a:3:b", index: 4, id: b"x:1" })));
        for other in [stream(7).as_bytes(), b"{other}:i:1:a:0:x", b"{q7}:i:9:a:0:x", b"{q7}:i:a"] {
            assert!(Name::of(other).is_none());
        }
    }
}

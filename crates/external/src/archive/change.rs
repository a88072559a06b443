//! A change, as the streams tell it: see `tell` and `run_of_additions` in `library.lua`.
//!
//! ```text
//! field                value
//! key                  kind difference value version updated birth expires [fingerprint index:id]
//! name of a cell       +difference value version updated birth n                     by a run of additions
//! name of an id        fingerprint +difference value version updated birth n         the same, under that id
//! ```

use quipu_counting::Cell;

use crate::call::stored_cell;
use crate::groups::{Name, place_of_cell};
use crate::wholes::EventKind;

/// What became of one counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) key: Vec<u8>,
    /// By how much the value changed: from one end of the range to the other is more than 64 bits.
    pub(crate) difference: i128,
    /// The counter after; of one that ended only time and birth mean something.
    pub(crate) cell: Cell,
    pub(crate) kind: EventKind,
    /// The request that asked for it, if it had an id.
    pub(crate) request: Option<Asked>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) fingerprint: u64,
    pub(crate) index: u32,
    pub(crate) id: Vec<u8>,
}

/// The counter that a field of an entry is about.
pub(crate) fn key_of<'a>(field: &'a [u8], told: &[u8]) -> Option<&'a [u8]> {
    match told.first()? {
        b'+' => place_of_cell(field).map(|(_, key)| key),
        b'0'..=b'9' => match Name::of(field)? {
            Name::Id { key, .. } => Some(key),
            Name::Counter(..) => None,
        },
        _ => Some(field),
    }
}

impl Change {
    /// Whether the counter is gone.
    pub(crate) fn has_ended(&self) -> bool {
        self.kind == EventKind::End
    }

    /// From a field of an entry and its value.
    pub(crate) fn of(field: &[u8], told: &[u8]) -> Option<Change> {
        match told.first()? {
            b'+' => Change::added(place_of_cell(field)?.1, told, None),
            b'0'..=b'9' => {
                let Name::Id { key, index, id, .. } = Name::of(field)? else { return None };
                let space = told.iter().position(|byte| *byte == b' ')?;
                let fingerprint = std::str::from_utf8(&told[..space]).ok()?.parse().ok()?;
                Change::added(key, &told[space + 1..], Some(Asked { fingerprint, index, id: id.to_vec() }))
            }
            _ => Change::in_full(field, told),
        }
    }

    /// What runs of additions tell: how much was added, and the counter after.
    fn added(key: &[u8], told: &[u8], request: Option<Asked>) -> Option<Change> {
        let told = std::str::from_utf8(told).ok()?;
        let (delta, cell) = told.strip_prefix('+')?.split_once(' ')?;
        let (difference, cell) = (delta.parse().ok()?, stored_cell(cell)?);
        Some(Change { key: key.to_vec(), difference, cell, kind: EventKind::Plain, request })
    }

    fn in_full(key: &[u8], told: &[u8]) -> Option<Change> {
        // Eight words, then the id, which may hold anything.
        let mut words = told.splitn(9, |byte| *byte == b' ');
        let mut word = || words.next().and_then(|word| std::str::from_utf8(word).ok());
        let (kind, difference) = (word()?, word()?.parse().ok()?);
        let numbers = [word()?, word()?, word()?, word()?, word()?].join(" ");
        let cell = stored_cell(&numbers)?;
        let request = match word() {
            None => None,
            Some(fingerprint) => {
                let under = words.next()?;
                let colon = under.iter().position(|byte| *byte == b':')?;
                let index = std::str::from_utf8(&under[..colon]).ok()?.parse().ok()?;
                Some(Asked { fingerprint: fingerprint.parse().ok()?, index, id: under[colon + 1..].to_vec() })
            }
        };
        Some(Change { key: key.to_vec(), difference, cell, kind: EventKind::of(kind), request })
    }
}

#[cfg(test)]
mod tests {
    use quipu_counting::NEVER;

    use super::*;
    use crate::groups;

    #[test]
    fn changes_are_read_as_they_are_told() {
        let cell = Cell { value: 7, version: 3, updated_at_ms: 1000, birth: 9, expires_at_ms: NEVER };
        let plain = Change::of(b"likes", b"a 5 7 3 1000 9 n").expect("a change");
        let expected =
            Change { key: b"likes".to_vec(), difference: 5, cell, kind: EventKind::Plain, request: None };
        assert_eq!(plain, expected);
        let asked = Asked { fingerprint: 77, index: 2, id: b"an id: \xff".to_vec() };
        let under =
            Change::of(b"likes", b"s -18446744073709551615 7 3 1000 9 n 77 2:an id: \xff").expect("a change");
        assert_eq!((under.difference, under.request), (-18_446_744_073_709_551_615, Some(asked.clone())));
        for (told, kind) in [("d -7 0 0 1000 9 n", EventKind::End), ("b 1 2 3 1000 9 n", EventKind::Body)] {
            assert_eq!(Change::of(b"likes", told.as_bytes()).expect("a change").kind, kind);
        }
        let (name, by_id) = (groups::cell(7, b"likes"), groups::id(7, b"likes", 2, b"an id: \xff"));
        assert_eq!(Change::of(&name, b"+5 7 3 1000 9 n"), Some(plain));
        let of_run = Change::of(&by_id, b"77 +5 7 3 1000 9 n").expect("a change");
        assert_eq!(
            (of_run.key, of_run.difference, of_run.request),
            (b"likes".to_vec(), 5, Some(asked.clone()))
        );
        assert_eq!(key_of(&by_id, b"77 +5 7 3 1000 9 n"), Some(&b"likes"[..]));
        assert_eq!(key_of(&name, b"+5 7 3 1000 9 n"), Some(&b"likes"[..]));
        assert_eq!(key_of(&name, b"a 5 7 3 1000 9 n"), Some(&name[..]), "a counter may be called so");
        assert_eq!(Change::of(b"likes", b"+5 7 3 1000 9 n"), None);
        assert_eq!(Change::of(&name, b"77 +5 7 3 1000 9 n"), None);
        for broken in [
            &b""[..],
            b"a",
            b"a x 7 3 1000 9 n",
            b"a 5 7 3 1000 9",
            b"a 5 7 3 1000 9 n 77",
            b"a 5 7 3 1000 9 n 77 x",
        ] {
            assert_eq!(Change::of(b"likes", broken), None);
        }
    }
}

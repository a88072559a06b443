//! A change, as the streams tell it: see `tell` in `library.lua`.

use quipu_counting::Cell;

use crate::call::stored_cell;
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

impl Change {
    /// Whether the counter is gone.
    pub(crate) fn has_ended(&self) -> bool {
        self.kind == EventKind::End
    }

    /// From a field of an entry and its value.
    pub(crate) fn of(key: &[u8], told: &[u8]) -> Option<Change> {
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
        assert_eq!((under.difference, under.request), (-18_446_744_073_709_551_615, Some(asked)));
        for (told, kind) in [("d -7 0 0 1000 9 n", EventKind::End), ("b 1 2 3 1000 9 n", EventKind::Body)] {
            assert_eq!(Change::of(b"likes", told.as_bytes()).expect("a change").kind, kind);
        }
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

//! The buffer a checkpoint is gathered in: keys and values end to end in one allocation.
//!
//! ```text
//! bytes  | key 0 | value 0 | key 1 | key 2 | value 2 | ...      (row 1 is a deletion)
//! spans  | start u64, value length u32, key length u16 | ...    16 bytes each; only these are sorted
//! ```
//! A million rows cost two growing vectors and no allocation of their own.

use super::{ColdError, KEY_BYTES_MAX, VALUE_BYTES_MAX};

/// Rows to be written together: each a key with the value it shall have, or `None` to delete it.
#[derive(Debug, Default, Clone)]
pub struct Rows {
    bytes: Vec<u8>,
    spans: Vec<Span>,
    /// Whether some key is not above the one pushed before it.
    unordered: bool,
}

#[derive(Debug, Clone, Copy)]
struct Span {
    start: u64,
    /// [`DELETION`] for none.
    value_length: u32,
    key_length: u16,
}

const DELETION: u32 = u32::MAX;
const _: () = assert!(size_of::<Span>() == 16 && VALUE_BYTES_MAX < DELETION as usize);

impl Rows {
    /// An empty buffer.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty buffer with room for so many rows of so many bytes in all: growing would clear and copy all of it again
    /// and again.
    pub fn with_capacity(rows: usize, bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), spans: Vec::with_capacity(rows), unordered: false }
    }

    /// Adds a row. When a key is pushed twice, the later row counts.
    pub fn push(&mut self, key: &[u8], value: Option<&[u8]>) -> Result<(), ColdError> {
        let key_length = match u16::try_from(key.len()) {
            Ok(length) if length > 0 => length,
            _ => {
                return Err(ColdError::Refused(format!(
                    "a key of {} bytes, not 1 to {KEY_BYTES_MAX}",
                    key.len()
                )));
            }
        };
        let value_length = match value {
            None => DELETION,
            Some(value) if value.len() <= VALUE_BYTES_MAX => value.len() as u32,
            Some(value) => {
                let length = value.len();
                return Err(ColdError::Refused(format!(
                    "a value of {length} bytes, above {VALUE_BYTES_MAX}"
                )));
            }
        };
        self.unordered |= self.spans.last().is_some_and(|last| key <= last.key(&self.bytes));
        self.spans.push(Span { start: self.bytes.len() as u64, value_length, key_length });
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value.unwrap_or_default());
        Ok(())
    }

    /// Puts the rows in ascending order of keys and keeps the latest of each key. Costs nothing when they
    /// were pushed in order.
    pub fn sort(&mut self) {
        if !self.unordered {
            return;
        }
        let bytes = &self.bytes;
        // Keys share a prefix (record type, namespace, often more). Comparing the eight bytes behind it, kept
        // beside the span, settles most comparisons without a look into the buffer.
        let skip = self.shared_prefix_length();
        let mut decorated: Vec<(u64, Span)> =
            self.spans.iter().map(|span| (head(&span.key(bytes)[skip..]), *span)).collect();
        decorated.sort_unstable_by(|(head_a, a), (head_b, b)| {
            head_a
                .cmp(head_b)
                .then_with(|| a.key(bytes)[skip..].cmp(&b.key(bytes)[skip..]))
                // Latest first, so that the duplicates to drop follow the row to keep.
                .then_with(|| b.start.cmp(&a.start))
        });
        decorated.dedup_by(|(_, later), (_, kept)| later.key(bytes) == kept.key(bytes));
        self.spans.clear();
        self.spans.extend(decorated.iter().map(|(_, span)| span));
        self.unordered = false;
    }

    /// Whether the keys ascend, none twice: what a store demands.
    pub fn is_sorted(&self) -> bool {
        !self.unordered
    }

    /// The rows in their present order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], Option<&[u8]>)> {
        self.spans.iter().map(|span| (span.key(&self.bytes), span.value(&self.bytes)))
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// What both stores demand of the rows they are given.
    pub(super) fn check_sorted(&self) -> Result<(), ColdError> {
        if self.is_sorted() { Ok(()) } else { Err(ColdError::Refused("rows that are not sorted".into())) }
    }

    fn shared_prefix_length(&self) -> usize {
        let Some(first) = self.spans.first() else { return 0 };
        let first = first.key(&self.bytes);
        self.spans.iter().fold(first.len(), |shared, span| {
            first[..shared].iter().zip(span.key(&self.bytes)).take_while(|(a, b)| a == b).count()
        })
    }
}

impl Span {
    fn key<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        let start = self.start as usize;
        &bytes[start..start + usize::from(self.key_length)]
    }

    fn value<'a>(&self, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let start = self.start as usize + usize::from(self.key_length);
        (self.value_length != DELETION).then(|| &bytes[start..start + self.value_length as usize])
    }
}

/// The first eight bytes as a number that orders as they do; a shorter key is filled with zeros, so equal
/// numbers decide nothing.
fn head(key: &[u8]) -> u64 {
    let mut first = [0; 8];
    let length = key.len().min(8);
    first[..length].copy_from_slice(&key[..length]);
    u64::from_be_bytes(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Sorting is what a map does with the same insertions: ascending, the last one of a key wins.
        #[test]
        fn sorts_as_a_map_does(
            pushed in prop::collection::vec(
                (prop::collection::vec(0u8..4, 1..12), prop::option::of(prop::collection::vec(any::<u8>(), 0..4))),
                0..60,
            ),
            prefix in prop::collection::vec(any::<u8>(), 0..10),
        ) {
            let mut rows = Rows::new();
            let mut map = BTreeMap::new();
            for (key, value) in &pushed {
                let key = [prefix.as_slice(), key].concat();
                rows.push(&key, value.as_deref()).unwrap();
                map.insert(key, value.clone());
            }
            rows.sort();
            prop_assert!(rows.is_sorted());
            let sorted: Vec<_> = rows.iter().map(|(key, value)| (key.to_vec(), value.map(<[u8]>::to_vec))).collect();
            prop_assert_eq!(sorted, map.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn order_is_noticed_as_rows_are_pushed() {
        for (keys, sorted) in [
            (&[][..], true),
            (&["a"], true),
            (&["a", "b", "ba"], true),
            (&["b", "a"], false),
            (&["a", "a"], false),
            (&["a", "c", "b"], false),
        ] {
            let mut rows = Rows::new();
            for key in keys {
                rows.push(key.as_bytes(), None).unwrap();
            }
            assert_eq!(rows.is_sorted(), sorted, "{keys:?}");
        }
    }

    #[test]
    fn lengths_out_of_range_are_refused() {
        let key = vec![b'k'; KEY_BYTES_MAX + 1];
        let value = vec![b'v'; VALUE_BYTES_MAX + 1];
        let mut rows = Rows::new();
        assert!(rows.push(b"", None).is_err());
        assert!(rows.push(&key, None).is_err());
        assert!(rows.push(b"k", Some(&value)).is_err());
        assert!(rows.is_empty());
        rows.push(&key[..KEY_BYTES_MAX], Some(&value[..VALUE_BYTES_MAX])).unwrap();
        rows.push(b"k", Some(b"")).unwrap();
        rows.sort();
        let lengths: Vec<_> = rows.iter().map(|(key, value)| (key.len(), value.map(<[u8]>::len))).collect();
        assert_eq!(lengths, [(1, Some(0)), (KEY_BYTES_MAX, Some(VALUE_BYTES_MAX))]);
    }
}

//! What a caller tells of an addition beyond the amount: when it happened, what it belongs to, and why it is made.

use crate::bytes::{Bytes, put_bytes, put_varint};

/// The most dimensions one addition may name.
pub const DIMENSIONS_MAX: usize = 8;
/// The longest name of a dimension.
pub const DIMENSION_NAME_BYTES_MAX: usize = 64;
/// The longest value of a dimension.
pub const DIMENSION_VALUE_BYTES_MAX: usize = 128;
/// The longest reason: a sentence with a reference, which a trail shows in a line.
pub const REASON_BYTES_MAX: usize = 512;

/// What is told of an addition. Travels as the payload of [`Action::Told`](crate::Action::Told).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Told<'a> {
    /// When it happened, if not now.
    pub at_ms: Option<u64>,
    /// What it belongs to: names and values, in the order of the names, each name once.
    pub dimensions: Vec<(&'a str, &'a str)>,
    /// Why it is made.
    pub reason: Option<&'a str>,
}

impl<'a> Told<'a> {
    /// Appends it.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.at_ms.is_some()) | u8::from(self.reason.is_some()) << 1);
        if let Some(at_ms) = self.at_ms {
            put_varint(out, at_ms);
        }
        if let Some(reason) = self.reason {
            put_bytes(out, reason.as_bytes());
        }
        put_varint(out, self.dimensions.len() as u64);
        for (name, value) in &self.dimensions {
            put_bytes(out, name.as_bytes());
            put_bytes(out, value.as_bytes());
        }
    }

    /// Reads what was appended; `None` where something else stands, or more than may be told.
    pub fn read(bytes: &'a [u8]) -> Option<Told<'a>> {
        let mut bytes = Bytes::new(bytes);
        let flags = bytes.byte().filter(|flags| *flags < 4)?;
        let at_ms = if flags & 1 != 0 { Some(bytes.varint()?) } else { None };
        let reason = if flags & 2 != 0 { Some(text(bytes.bytes()?, REASON_BYTES_MAX)?) } else { None };
        let count = usize::try_from(bytes.varint()?).ok().filter(|count| *count <= DIMENSIONS_MAX)?;
        let mut dimensions: Vec<(&str, &str)> = Vec::with_capacity(count);
        for _ in 0..count {
            let name = text(bytes.bytes()?, DIMENSION_NAME_BYTES_MAX)?;
            let value = text(bytes.bytes()?, DIMENSION_VALUE_BYTES_MAX)?;
            if name.is_empty() || dimensions.last().is_some_and(|(last, _)| *last >= name) {
                return None;
            }
            dimensions.push((name, value));
        }
        bytes.is_empty().then_some(Told { at_ms, dimensions, reason })
    }
}

fn text(bytes: &[u8], longest: usize) -> Option<&str> {
    std::str::from_utf8(bytes).ok().filter(|text| text.len() <= longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_is_read_again() {
        let told = Told {
            at_ms: Some(1_700_000_000_000),
            dimensions: vec![("day", "2026-02-23"), ("tenant", "a")],
            reason: Some("reconcile-fix"),
        };
        let mut bytes = Vec::new();
        told.put(&mut bytes);
        assert_eq!(Told::read(&bytes), Some(told));
        for shorter in 0..bytes.len() {
            assert_eq!(Told::read(&bytes[..shorter]), None);
        }
    }

    #[test]
    fn names_are_in_order_and_come_once() {
        for dimensions in [vec![("b", "1"), ("a", "1")], vec![("a", "1"), ("a", "2")], vec![("", "1")]] {
            let mut bytes = Vec::new();
            Told { dimensions, ..Told::default() }.put(&mut bytes);
            assert_eq!(Told::read(&bytes), None);
        }
    }
}

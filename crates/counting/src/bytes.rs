//! What counters keep beside their cell, as bytes: numbers (see `varint`), and bytes behind their length.

use crate::varint;
pub(crate) use crate::varint::{put as put_varint, put_signed as put_zigzag};

/// Appends bytes behind their length.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Reads what was appended; `None` where something else stands.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    /// From the start.
    pub fn new(bytes: &'a [u8]) -> Bytes<'a> {
        Bytes(bytes)
    }

    /// Whether everything is read.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many bytes are left to read.
    pub(crate) fn left(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|byte| byte[0])
    }

    pub(crate) fn varint(&mut self) -> Option<u64> {
        varint::read(&mut self.0)
    }

    pub(crate) fn zigzag(&mut self) -> Option<i64> {
        varint::read_signed(&mut self.0)
    }

    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.varint()?).ok()?;
        self.take(length)
    }
}

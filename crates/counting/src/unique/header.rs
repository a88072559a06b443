//! The layout of a HyperLogLog value in Redis.
//!
//! ```text
//! 0        4          5         8                          16
//! | "HYLL" | encoding | 0, 0, 0 | count, the lowest byte first | body
//! ```
//!
//! Encoding 0 is dense: the body is 16384 registers of six bits, 12288 bytes. Encoding 1 is sparse: the body is runs
//! of registers (see `sparse`). The highest bit of the count says that it is of an earlier time; Redis brings it up
//! to date when somebody asks.

use super::NotASketch;

/// How many bytes stand before the body.
pub(super) const HEADER_BYTES: usize = 16;
/// Four registers of six bits each, three bytes.
pub(super) type Quartet = [u8; 3];
/// How many quartets a dense body has.
pub(super) const QUARTETS: usize = super::REGISTERS / 4;

const MAGIC: &[u8; 4] = b"HYLL";
const DENSE: u8 = 0;
const SPARSE: u8 = 1;
const STALE: u64 = 1 << 63;

/// What a sketch keeps of its header: the count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    count: u64,
}

/// What stands behind the header.
pub(super) enum Body<'a> {
    Sparse(&'a [u8]),
    Dense(&'a [Quartet; QUARTETS]),
}

impl Header {
    /// Of a new sketch.
    pub(super) fn new() -> Header {
        Header { count: STALE }
    }

    /// The count, if it is up to date.
    pub(super) fn count(&self) -> Option<u64> {
        (self.count & STALE == 0).then_some(self.count)
    }

    /// A register has changed.
    pub(super) fn mark_stale(&mut self) {
        self.count |= STALE;
    }
}

/// Takes a value apart. Of the body nothing is known but its encoding and, where that is dense, its length.
pub(super) fn split(bytes: &[u8]) -> Result<(Header, Body<'_>), NotASketch> {
    let (start, body) = bytes.split_first_chunk::<HEADER_BYTES>().ok_or(NotASketch::Header)?;
    let [m0, m1, m2, m3, encoding, 0, 0, 0, count @ ..] = start else { return Err(NotASketch::Header) };
    if [*m0, *m1, *m2, *m3] != *MAGIC {
        return Err(NotASketch::Header);
    }
    let body = match *encoding {
        SPARSE => Body::Sparse(body),
        DENSE => match body.as_chunks() {
            (quartets, []) => Body::Dense(quartets.try_into().map_err(|_| NotASketch::Length(bytes.len()))?),
            _ => return Err(NotASketch::Length(bytes.len())),
        },
        _ => return Err(NotASketch::Header),
    };
    Ok((Header { count: u64::from_le_bytes(*count) }, body))
}

/// Puts a value together.
pub(super) fn join(header: &Header, body: Body<'_>) -> Vec<u8> {
    let (encoding, body) = match body {
        Body::Sparse(runs) => (SPARSE, runs),
        Body::Dense(quartets) => (DENSE, quartets.as_flattened()),
    };
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    bytes.extend(MAGIC);
    bytes.extend([encoding, 0, 0, 0]);
    bytes.extend(header.count.to_le_bytes());
    bytes.extend(body);
    bytes
}

//! How the engine's state lies in the cold store.
//!
//! ```text
//! space p<partition 3>-<generation>         one per partition and life of it
//!   'C' namespace:4be kind:1 key    -> cell [body]       kind 0: counters
//!   'E' expires_at_ms:8be key       -> (empty)           index of what expires when
//!   'M'                             -> cut
//!   'P'                             -> count:v (pattern policy)*      in partition 0, or in each where replicated
//!   'R'                             -> mark                           where replicated
//!   'S' producer                    -> session
//! space ids-<start ms 13>-<end ms 13>       request ids of one slice of time, a run per checkpoint
//!   number:8be partition:2be 0x00 bin:4be -> remembered*
//!   number:8be partition:2be 0x01            -> bin bits:1, then tags, 4 bytes each, little-endian
//! space audit-<start ms 13>-<end ms 13>-<keep ms>     trails, of one slice of time and one time of keeping
//!   partition:2be length:2be key (all ones - number):8be -> change     a counter's newest first; no key: of every counter
//! cut := format:1 sequence:v time_ms:v offset:v count:v ledger:16
//! ```
//!
//! Cells, keys and numbers are coded as in the log (see `quipu_wire::entry`).

use quipu_counting::Policies;
use quipu_wire::entry::{self, Malformed, Reader};

use crate::execute::NAMESPACE;

/// Format of the cut row.
const CUT_FORMAT: u8 = 1;
const KIND_SUM: u8 = 0;

/// The row of the cut.
pub const CUT_KEY: &[u8] = b"M";
/// The row of all policies.
pub const POLICIES_KEY: &[u8] = b"P";
/// The row of a replicated partition's mark.
pub const MARK_KEY: &[u8] = b"R";
/// What every row of a cell begins with.
pub const CELL_PREFIX: &[u8] = b"C\0\0\0\0\0";
/// What every row of a session begins with.
pub const SESSION_PREFIX: &[u8] = b"S";

/// What a checkpoint says about the partition as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The last change in it.
    pub sequence: u64,
    /// Entry time of that change.
    pub time_ms: u64,
    /// Every record of the partition after the cut ends after this offset.
    pub offset: u64,
    /// Counters that exist.
    pub count: u64,
    /// Sum of their values.
    pub ledger: i128,
}

impl Cut {
    /// The row's value.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![CUT_FORMAT];
        for number in [self.sequence, self.time_ms, self.offset, self.count] {
            entry::put_varint(&mut out, number);
        }
        out.extend_from_slice(&self.ledger.to_le_bytes());
        out
    }

    /// From the row's value.
    pub fn decode(value: &[u8]) -> Result<Cut, Malformed> {
        let mut reader = Reader::new(value);
        if reader.byte()? != CUT_FORMAT {
            return Err(Malformed("checkpoint of another format; written by a newer version?"));
        }
        Ok(Cut {
            sequence: reader.varint()?,
            time_ms: reader.varint()?,
            offset: reader.varint()?,
            count: reader.varint()?,
            ledger: i128::from_le_bytes(reader.array()?),
        })
    }
}

/// The space of a partition.
pub fn partition_space(partition: u16, generation: u32) -> String {
    format!("p{partition:03}-{generation}")
}

/// The partition and generation of a space.
pub fn parse_partition_space(space: &str) -> Option<(u16, u32)> {
    let (partition, generation) = space.strip_prefix('p')?.split_once('-')?;
    Some((partition.parse().ok()?, generation.parse().ok()?))
}

/// The row of a cell.
pub fn cell_key(key: &[u8]) -> Vec<u8> {
    let mut row = Vec::with_capacity(6 + key.len());
    put_cell_key(&mut row, key);
    row
}

/// Appends the row of a cell.
pub fn put_cell_key(out: &mut Vec<u8>, key: &[u8]) {
    out.push(b'C');
    out.extend_from_slice(&NAMESPACE.to_be_bytes());
    out.push(KIND_SUM);
    out.extend_from_slice(key);
}

/// The row of the expiry index.
pub fn expiry_key(expires_at_ms: u64, key: &[u8]) -> Vec<u8> {
    let mut row = Vec::with_capacity(9 + key.len());
    row.push(b'E');
    row.extend_from_slice(&expires_at_ms.to_be_bytes());
    row.extend_from_slice(key);
    row
}

/// The time and the key of a row of the expiry index.
pub fn parse_expiry_key(row: &[u8]) -> (u64, &[u8]) {
    match row.split_first().and_then(|(_, rest)| rest.split_first_chunk::<8>()) {
        Some((expires_at_ms, key)) => (u64::from_be_bytes(*expires_at_ms), key),
        None => (0, &[]),
    }
}

/// The row of a session.
pub fn session_key(producer: &[u8]) -> Vec<u8> {
    [SESSION_PREFIX, producer].concat()
}

/// What all rows of a run of request ids begin with. The numbers of runs ascend (they are offsets of the log, or sequences where
/// replicated), so the rows of a run come after those of all earlier ones, and the cold store has nothing to merge.
fn run_prefix(partition: u16, number: u64, kind: u8) -> Vec<u8> {
    let mut row = number.to_be_bytes().to_vec();
    row.extend_from_slice(&partition.to_be_bytes());
    row.push(kind);
    row
}

/// The row of one bin of a run.
pub fn bin_key(partition: u16, number: u64, bin: u32) -> Vec<u8> {
    let mut row = run_prefix(partition, number, 0);
    row.extend_from_slice(&bin.to_be_bytes());
    row
}

/// The row that describes a run: behind its bins, because it is known when they are written.
pub fn run_key(partition: u16, number: u64) -> Vec<u8> {
    run_prefix(partition, number, 1)
}

/// Where the rows behind a run begin.
pub fn after_run(partition: u16, number: u64) -> Vec<u8> {
    run_prefix(partition, number, 2)
}

/// The partition and the number of the run that a row belongs to.
pub fn parse_run(row: &[u8]) -> Option<(u16, u64)> {
    let (number, rest) = row.split_first_chunk::<8>()?;
    let partition = rest.first_chunk::<2>()?;
    Some((u16::from_be_bytes(*partition), u64::from_be_bytes(*number)))
}

/// The row of a change of a trail. A length before the key keeps the rows of one counter together.
pub fn audit_key(partition: u16, key: &[u8], number: u64) -> Vec<u8> {
    let mut row = Vec::with_capacity(12 + key.len());
    row.extend_from_slice(&partition.to_be_bytes());
    row.extend_from_slice(&(key.len() as u16).to_be_bytes());
    row.extend_from_slice(key);
    row.extend_from_slice(&(!number).to_be_bytes());
    row
}

/// The counter of such a row.
pub fn audit_trail(row: &[u8]) -> Option<&[u8]> {
    let (length, rest) = row.get(2..)?.split_first_chunk::<2>()?;
    rest.split_last_chunk::<8>()
        .map(|(key, _)| key)
        .filter(|key| key.len() == usize::from(u16::from_be_bytes(*length)))
}

/// The number of such a row.
pub fn audit_number(row: &[u8]) -> Option<u64> {
    row.last_chunk::<8>().map(|number| !u64::from_be_bytes(*number))
}

/// Where the rows of a partition begin, and where those of the next do.
pub fn audit_rows(partition: u16) -> ([u8; 2], [u8; 2]) {
    (partition.to_be_bytes(), (partition + 1).to_be_bytes())
}

/// All policies in one row.
pub fn encode_policies(policies: &Policies) -> Vec<u8> {
    let mut out = Vec::new();
    entry::put_varint(&mut out, policies.len() as u64);
    for (pattern, policy) in policies.iter() {
        entry::put_bytes(&mut out, pattern);
        entry::put_policy_value(&mut out, policy);
    }
    out
}

/// From that row.
pub fn decode_policies(value: &[u8]) -> Result<Policies, Malformed> {
    let mut reader = Reader::new(value);
    let mut policies = Policies::default();
    for _ in 0..reader.varint()? {
        let pattern = reader.bytes()?;
        policies.set(pattern, Some(reader.policy()?));
    }
    Ok(policies)
}

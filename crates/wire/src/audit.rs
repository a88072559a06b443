//! The codec of trails.
//!
//! ```text
//! change := number:v at_ms:v deed:1 applied:z value:z version:v flags:1 [request id] [reason] [origin] [held:z]
//!           (flags: 1 request id, 2 reason, 4 origin, 8 held)
//! origin := name address
//! request id, reason, name, address := length:v bytes
//! ```
//! Numbers are coded as in [`crate::entry`].

use quipu_counting::audit::{ACTOR_BYTES_MAX, ADDRESS_BYTES_MAX};
use quipu_counting::told::REASON_BYTES_MAX;
use quipu_counting::{AuditChange, Deed, ID_BYTES_MAX, Origin};

use crate::entry::{Malformed, Reader, put_bytes, put_varint, put_zigzag};

/// The most bytes a change takes in the log, beside the bytes of its key, its request id and its reason.
pub const CHANGE_BYTES_MAX: usize =
    (1 + 2 + 10 + 2) + (6 * 10 + 2) + (2 + 2) + (2 + ACTOR_BYTES_MAX) + (1 + ADDRESS_BYTES_MAX);

/// Appends a change.
pub fn put_change(out: &mut Vec<u8>, change: &AuditChange) {
    put_varint(out, change.number);
    put_varint(out, change.at_ms);
    out.push(change.deed as u8);
    put_zigzag(out, change.applied);
    put_zigzag(out, change.value);
    put_varint(out, change.version);
    let bit = |condition: bool, bit: u8| if condition { bit } else { 0 };
    out.push(
        bit(change.request_id.is_some(), 1)
            | bit(change.reason.is_some(), 2)
            | bit(change.by.is_some(), 4)
            | bit(change.held != 0, 8),
    );
    if let Some(id) = &change.request_id {
        put_bytes(out, id);
    }
    if let Some(reason) = &change.reason {
        put_bytes(out, reason.as_bytes());
    }
    if let Some(origin) = &change.by {
        put_origin(out, origin);
    }
    if change.held != 0 {
        put_zigzag(out, change.held);
    }
}

/// Reads a change.
pub fn read_change(reader: &mut Reader<'_>) -> Result<AuditChange, Malformed> {
    let (number, at_ms) = (reader.varint()?, reader.varint()?);
    let Some((deed, _)) = Deed::ALL.get(usize::from(reader.byte()?)) else {
        return Err(Malformed("unknown deed; written by a newer version?"));
    };
    let (applied, value, version) = (reader.zigzag()?, reader.zigzag()?, reader.varint()?);
    let flags = reader.byte()?;
    if flags > 15 {
        return Err(Malformed("unknown flags of a change; written by a newer version?"));
    }
    let request_id = if flags & 1 != 0 { Some(reader.bytes_up_to(ID_BYTES_MAX)?.to_vec()) } else { None };
    let reason = if flags & 2 != 0 { Some(text(reader, REASON_BYTES_MAX)?) } else { None };
    let by = if flags & 4 != 0 { Some(read_origin(reader)?) } else { None };
    let held = if flags & 8 != 0 { reader.zigzag()? } else { 0 };
    Ok(AuditChange { number, at_ms, deed: *deed, applied, held, value, version, request_id, reason, by })
}

/// Appends who asks.
pub fn put_origin(out: &mut Vec<u8>, origin: &Origin) {
    put_bytes(out, origin.name.as_bytes());
    put_bytes(out, origin.address.as_bytes());
}

/// Reads who asks.
pub fn read_origin(reader: &mut Reader<'_>) -> Result<Origin, Malformed> {
    Ok(Origin { name: text(reader, ACTOR_BYTES_MAX)?, address: text(reader, ADDRESS_BYTES_MAX)? })
}

fn text(reader: &mut Reader<'_>, longest: usize) -> Result<String, Malformed> {
    let bytes = reader.bytes_up_to(longest)?;
    std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| Malformed("text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_read_as_written() {
        let bare = AuditChange {
            number: 7,
            at_ms: 1_790_000_000_000,
            deed: Deed::Delete,
            applied: i64::MIN,
            held: 0,
            value: -1,
            version: u64::MAX,
            request_id: None,
            reason: None,
            by: None,
        };
        let full = AuditChange {
            deed: Deed::Adjust,
            held: -3,
            request_id: Some(b"order-4711".to_vec()),
            reason: Some("counted twice".to_owned()),
            by: Some(Origin::new(b"billing", "10.0.0.7:52044")),
            ..bare.clone()
        };
        for change in [bare, full] {
            let mut bytes = Vec::new();
            put_change(&mut bytes, &change);
            let mut reader = Reader::new(&bytes);
            assert_eq!(read_change(&mut reader), Ok(change));
            assert!(reader.is_empty());
            for length in 0..bytes.len() {
                assert!(read_change(&mut Reader::new(&bytes[..length])).is_err(), "{length}");
            }
        }
    }
}

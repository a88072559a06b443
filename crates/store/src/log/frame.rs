//! Frames: what one write puts on disk. All numbers are little-endian.
//!
//! ```text
//!            0             4             8                            16            20            24
//!   header   | payload_len | payload_crc | durable_offset             | header_crc  | reserved 0  |
//!   payload  | record_len  | record ...  | record_len | record ...    | ...    zeros up to 8 bytes |
//!
//!   header_crc  = crc32(segment number u64, offset of the header u64,  header without header_crc)
//!   payload_crc = crc32(segment number u64, offset of the payload u64, payload without padding)
//! ```
//! The checksums are seeded with the place, so bytes of an older life of a recycled file are never a frame.
//! `durable_offset` is what the log knew to be durable when it wrote the frame: it testifies, after a crash,
//! which bytes before it must be readable. Header and payload have checksums of their own, so the testimony
//! counts even where the payload is torn.

use crc32fast::Hasher;

pub(super) const FRAME_HEADER_BYTES: usize = 24;

/// Frames begin at multiples of this, which keeps the search for them after a crash short.
pub(super) const FRAME_ALIGN_BYTES: usize = 8;

/// Each record begins with its length.
pub(super) const RECORD_PREFIX_BYTES: usize = 4;

/// Nothing sensible is larger; a bound for what a reader believes.
pub const RECORD_BYTES_MAX: usize = 32 << 20;

/// A frame is closed before it grows beyond this (a larger record has its own), so that a torn write of a
/// large buffer loses only the frames that are torn.
pub(super) const FRAME_SPLIT_BYTES: usize = 1 << 20;

/// The largest payload: one largest record alone.
pub(super) const FRAME_PAYLOAD_BYTES_MAX: usize = RECORD_PREFIX_BYTES + RECORD_BYTES_MAX;

/// What a record may cost beyond its own bytes: its length, a frame of its own, the padding of that frame.
pub const RECORD_OVERHEAD_BYTES_MAX: usize =
    RECORD_PREFIX_BYTES + FRAME_HEADER_BYTES + (FRAME_ALIGN_BYTES - 1);

const _: () = assert!(FRAME_HEADER_BYTES.is_multiple_of(FRAME_ALIGN_BYTES));
const _: () = assert!(FRAME_SPLIT_BYTES <= FRAME_PAYLOAD_BYTES_MAX);
const _: () = assert!(FRAME_PAYLOAD_BYTES_MAX < u32::MAX as usize);

/// The next place where a frame may begin.
pub(super) const fn align(offset: u64) -> u64 {
    offset.next_multiple_of(FRAME_ALIGN_BYTES as u64)
}

fn seeded(number: u64, offset: u64) -> Hasher {
    let mut hasher = Hasher::new();
    hasher.update(&number.to_le_bytes());
    hasher.update(&offset.to_le_bytes());
    hasher
}

fn header_checksum(number: u64, offset: u64, header: &[u8]) -> u32 {
    let mut hasher = seeded(number, offset);
    hasher.update(&header[..16]);
    hasher.update(&header[20..FRAME_HEADER_BYTES]);
    hasher.finalize()
}

fn payload_checksum(number: u64, offset: u64, payload: &[u8]) -> u32 {
    let mut hasher = seeded(number, offset);
    hasher.update(payload);
    hasher.finalize()
}

fn u32_at(bytes: &[u8], position: usize) -> u32 {
    bytes[position..].first_chunk().map_or(0, |chunk| u32::from_le_bytes(*chunk))
}

fn u64_at(bytes: &[u8], position: usize) -> u64 {
    bytes[position..].first_chunk().map_or(0, |chunk| u64::from_le_bytes(*chunk))
}

/// Sets the length of the frame whose header is at `position`: it ends where `buffer` ends, and is padded.
pub(super) fn close(buffer: &mut Vec<u8>, position: usize) {
    let payload_len = (buffer.len() - position - FRAME_HEADER_BYTES) as u32;
    buffer[position..position + 4].copy_from_slice(&payload_len.to_le_bytes());
    buffer.resize(buffer.len().next_multiple_of(FRAME_ALIGN_BYTES), 0);
}

/// Fills in the testimony and the checksums of all closed frames in `buffer`, which begins at `offset`.
pub(super) fn seal(buffer: &mut [u8], number: u64, mut offset: u64, durable: u64) {
    let mut rest = buffer;
    while !rest.is_empty() {
        let payload_len = u32_at(rest, 0) as usize;
        let frame_len = (FRAME_HEADER_BYTES + payload_len).next_multiple_of(FRAME_ALIGN_BYTES);
        let (frame, behind) = rest.split_at_mut(frame_len);
        let (header, body) = frame.split_at_mut(FRAME_HEADER_BYTES);
        let payload_crc = payload_checksum(number, offset + FRAME_HEADER_BYTES as u64, &body[..payload_len]);
        header[4..8].copy_from_slice(&payload_crc.to_le_bytes());
        header[8..16].copy_from_slice(&durable.to_le_bytes());
        let header_crc = header_checksum(number, offset, header);
        header[16..20].copy_from_slice(&header_crc.to_le_bytes());
        offset += frame_len as u64;
        rest = behind;
    }
}

/// A segment's bytes, for reading: the whole file, with what its checksums are seeded with.
#[derive(Clone, Copy)]
pub(super) struct SegmentBytes<'a> {
    pub(super) number: u64,
    pub(super) base: u64,
    pub(super) bytes: &'a [u8],
}

/// A frame header that proved itself by its checksum.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    payload_len: usize,
    payload_crc: u32,
    pub(super) durable: u64,
}

/// A whole and valid frame.
#[derive(Debug)]
pub(super) struct Frame<'a> {
    /// Where the payload begins in the file.
    pub(super) payload_at: usize,
    pub(super) payload: &'a [u8],
    pub(super) durable: u64,
    /// Where the next frame begins in the file.
    pub(super) next: usize,
}

impl<'a> SegmentBytes<'a> {
    /// The frame at `position`, or why there is none.
    pub(super) fn frame(&self, position: usize) -> Result<Frame<'a>, &'static str> {
        let Some(header) = self.header(position) else {
            let rest = self.bytes.get(position..).unwrap_or_default();
            let blank = rest.iter().take(FRAME_HEADER_BYTES).all(|byte| *byte == 0);
            return Err(if blank { "no frame, only zeros" } else { "no valid frame header" });
        };
        let payload_at = position + FRAME_HEADER_BYTES;
        let payload = &self.bytes[payload_at..payload_at + header.payload_len];
        if payload_checksum(self.number, self.base + payload_at as u64, payload) != header.payload_crc {
            return Err("the payload does not match its checksum");
        }
        let next = (payload_at + header.payload_len).next_multiple_of(FRAME_ALIGN_BYTES);
        Ok(Frame { payload_at, payload, durable: header.durable, next })
    }

    /// The first valid frame header at or after `position`, at whatever aligned place.
    pub(super) fn find_header(&self, position: usize) -> Option<(usize, Header)> {
        let aligned = position.next_multiple_of(FRAME_ALIGN_BYTES);
        (aligned..self.bytes.len())
            .step_by(FRAME_ALIGN_BYTES)
            .find_map(|position| Some((position, self.header(position)?)))
    }

    fn header(&self, position: usize) -> Option<Header> {
        let header = self.bytes.get(position..position + FRAME_HEADER_BYTES)?;
        let offset = self.base + position as u64;
        let payload_len = u32_at(header, 0) as usize;
        let room = self.bytes.len() - position - FRAME_HEADER_BYTES;
        let durable = u64_at(header, 8);
        // Cheap conditions first; together with them a checksum of 32 bits leaves nothing to luck even when
        // millions of places are tried.
        let too_long =
            payload_len > FRAME_PAYLOAD_BYTES_MAX || payload_len.next_multiple_of(FRAME_ALIGN_BYTES) > room;
        if too_long || durable > offset || u32_at(header, 20) != 0 {
            return None;
        }
        let genuine = header_checksum(self.number, offset, header) == u32_at(header, 16);
        genuine.then(|| Header { payload_len, payload_crc: u32_at(header, 4), durable })
    }
}

/// The records of a payload in order, each with the position of its length prefix in the payload; `None` when
/// they do not fill it exactly.
pub(super) fn records(payload: &[u8]) -> impl Iterator<Item = Option<(usize, &[u8])>> {
    let mut position = 0;
    std::iter::from_fn(move || {
        if position == payload.len() {
            return None;
        }
        let start = position;
        let record = payload[start..]
            .split_first_chunk()
            .and_then(|(prefix, rest)| rest.get(..u32::from_le_bytes(*prefix) as usize));
        position = record.map_or(payload.len(), |record| start + RECORD_PREFIX_BYTES + record.len());
        Some(record.map(|record| (start, record)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUMBER: u64 = 3;
    const BASE: u64 = 1000;

    fn frame_with(record: &[u8]) -> Vec<u8> {
        let mut buffer = vec![0; FRAME_HEADER_BYTES];
        buffer.extend_from_slice(&(record.len() as u32).to_le_bytes());
        buffer.extend_from_slice(record);
        close(&mut buffer, 0);
        seal(&mut buffer, NUMBER, BASE, 77);
        buffer
    }

    #[test]
    fn the_bytes_of_a_frame_are_as_drawn() {
        let bytes = frame_with(b"knot");
        let expected = [
            &8u32.to_le_bytes()[..],
            &payload_checksum(NUMBER, BASE + 24, b"\x04\0\0\0knot").to_le_bytes(),
            &77u64.to_le_bytes(),
            &header_checksum(NUMBER, BASE, &bytes[..24]).to_le_bytes(),
            &[0; 4],
            b"\x04\0\0\0knot",
        ]
        .concat();
        assert_eq!(bytes, expected);
    }

    #[test]
    fn every_flipped_bit_and_every_other_place_makes_a_frame_invalid() {
        let bytes = frame_with(b"a record of thirty-two bytes ...");
        let read = |number, base, bytes: &[u8]| SegmentBytes { number, base, bytes }.frame(0).is_ok();
        assert!(read(NUMBER, BASE, &bytes));
        assert!(!read(NUMBER + 1, BASE, &bytes));
        assert!(!read(NUMBER, BASE + 8, &bytes));
        for bit in 0..(FRAME_HEADER_BYTES + 4 + 32) * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(!read(NUMBER, BASE, &flipped), "bit {bit}");
        }
        for length in 0..bytes.len() {
            assert!(!read(NUMBER, BASE, &bytes[..length]), "cut to {length}");
        }
    }

    #[test]
    fn a_header_is_found_behind_anything() {
        let mut bytes = vec![0xaa; 40];
        let mut frame = frame_with(b"x");
        seal(&mut frame, NUMBER, BASE + 40, 77);
        bytes.extend_from_slice(&frame);
        let segment = SegmentBytes { number: NUMBER, base: BASE, bytes: &bytes };
        let (position, header) = segment.find_header(0).unwrap();
        assert_eq!((position, header.durable), (40, 77));
        assert!(segment.find_header(41).is_none());
    }

    #[test]
    fn records_fill_their_payload_exactly() {
        let read = |payload: &[u8]| -> Option<Vec<Vec<u8>>> {
            records(payload).map(|record| record.map(|(_, bytes)| bytes.to_vec())).collect()
        };
        assert_eq!(read(b""), Some(vec![]));
        assert_eq!(read(b"\x01\0\0\0a\0\0\0\0"), Some(vec![b"a".to_vec(), vec![]]));
        for payload in [&b"\x01"[..], b"\x02\0\0\0a", b"\x01\0\0\0ab", b"\xff\xff\xff\xffa"] {
            assert_eq!(read(payload), None, "{payload:?}");
        }
    }
}

//! Segment files: their names, their header, a handle. All numbers are little-endian.
//!
//! ```text
//!   0          8         12         16         24         32         40       60    64
//!   | QUIPULOG | version | features | number   | base     | capacity | zeros  | crc | frames ...
//! ```
//! `base` is the global offset of the file's first byte: the byte at position p of the file has offset
//! base + p, and the next segment's base is where the frames of this one end. `capacity` is the length that the file
//! had when it came into use, and has ever since: one that is shorter was cut. The checksum covers the 60
//! bytes before it; magic, version and checksum stay where they are in every future version.
//!
//! ```text
//!   000000000007.log     in use, or made ready: then its header is not (yet) that of number 7
//!   000000000003.spare   was in use, free to become the next segment
//!   000000000008.new     being filled with zeros; worthless after a crash
//!   000000000007.newest  empty: segments up to this number were made, so that a missing last one is noticed
//!   lock                 held by the process that has the log open
//! ```

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::LogError;
use super::frame::FRAME_ALIGN_BYTES;
use crate::disk::DiskFile;

pub(super) const SEGMENT_HEADER_BYTES: usize = 64;
const CHECKSUM_AT: usize = SEGMENT_HEADER_BYTES - 4;
const MAGIC: &[u8; 8] = b"QUIPULOG";
const VERSION: u32 = 1;

/// Bits of optional features a reader has to know; none exist yet.
const FEATURES: u32 = 0;

/// Numbers of the files have this many digits, so that names sort like numbers.
const NUMBER_DIGITS: usize = 12;

const _: () = assert!(SEGMENT_HEADER_BYTES.is_multiple_of(FRAME_ALIGN_BYTES));

/// What a file in the folder of the log is, by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Log,
    Spare,
    New,
    /// No segment, a marker.
    Newest,
}

impl Role {
    fn extension(self) -> &'static str {
        match self {
            Role::Log => "log",
            Role::Spare => "spare",
            Role::New => "new",
            Role::Newest => "newest",
        }
    }
}

pub(super) fn file_path(dir: &Path, number: u64, role: Role) -> PathBuf {
    dir.join(format!("{number:0width$}.{}", role.extension(), width = NUMBER_DIGITS))
}

/// The number and role a file name tells, when it is one of ours.
pub(super) fn parse_name(name: &str) -> Option<(u64, Role)> {
    let (digits, extension) = name.split_once('.')?;
    let roles = [Role::Log, Role::Spare, Role::New, Role::Newest];
    let role = roles.into_iter().find(|role| role.extension() == extension)?;
    let numeric = digits.len() >= NUMBER_DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    numeric.then(|| digits.parse().ok()).flatten().map(|number| (number, role))
}

/// A segment file that is open.
pub(super) struct Segment {
    pub(super) number: u64,
    pub(super) path: PathBuf,
    pub(super) file: Arc<dyn DiskFile>,
    /// Bytes allocated for it.
    pub(super) capacity: u64,
}

pub(super) fn encode_header(number: u64, base: u64, capacity: u64) -> [u8; SEGMENT_HEADER_BYTES] {
    let mut header = [0; SEGMENT_HEADER_BYTES];
    header[..8].copy_from_slice(MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[12..16].copy_from_slice(&FEATURES.to_le_bytes());
    header[16..24].copy_from_slice(&number.to_le_bytes());
    header[24..32].copy_from_slice(&base.to_le_bytes());
    header[32..40].copy_from_slice(&capacity.to_le_bytes());
    let checksum = crc32fast::hash(&header[..CHECKSUM_AT]);
    header[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
    header
}

/// What the first bytes of a `.log` file say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeaderState {
    /// In use: where it begins, and how long its file is.
    Live { base: u64, capacity: u64 },
    /// Not the header of this number: a segment made ready, a header that was torn, or damage. The neighbours
    /// and the frames tell which.
    Blank,
}

/// Reads a header; refuses a genuine one of an unknown format.
pub(super) fn decode_header(bytes: &[u8], number: u64, path: &Path) -> Result<HeaderState, LogError> {
    let Some((header, _)) = bytes.split_first_chunk::<SEGMENT_HEADER_BYTES>() else {
        return Ok(HeaderState::Blank);
    };
    let u32_at = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
    if &header[..8] != MAGIC || crc32fast::hash(&header[..CHECKSUM_AT]) != u32_at(CHECKSUM_AT) {
        return Ok(HeaderState::Blank);
    }
    let (version, features) = (u32_at(8), u32_at(12));
    if version != VERSION || features & !FEATURES != 0 {
        return Err(LogError::Version {
            file: path.to_path_buf(),
            found: format!("version {version} with features {features:#x}"),
            supported: format!("version {VERSION} with features {FEATURES:#x}"),
        });
    }
    if u64_at(16) != number {
        return Ok(HeaderState::Blank);
    }
    Ok(HeaderState::Live { base: u64_at(24), capacity: u64_at(32) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let dir = Path::new("");
        for (number, role, name) in [
            (7, Role::Log, "000000000007.log"),
            (3, Role::Spare, "000000000003.spare"),
            (8, Role::New, "000000000008.new"),
            (8, Role::Newest, "000000000008.newest"),
            (1_234_567_890_123, Role::Log, "1234567890123.log"),
        ] {
            assert_eq!(file_path(dir, number, role), Path::new(name));
            assert_eq!(parse_name(name), Some((number, role)));
        }
        for name in ["lock", "7.log", "00000000000x.log", "000000000007.txt", "000000000007", ".log"] {
            assert_eq!(parse_name(name), None, "{name}");
        }
    }

    #[test]
    fn a_header_is_live_only_whole_and_under_its_own_number() {
        let path = Path::new("file");
        let header = encode_header(5, 4096, 1 << 40);
        let live = HeaderState::Live { base: 4096, capacity: 1 << 40 };
        assert_eq!(decode_header(&header, 5, path).unwrap(), live);
        assert_eq!(decode_header(&header, 6, path).unwrap(), HeaderState::Blank);
        assert_eq!(decode_header(&header[..63], 5, path).unwrap(), HeaderState::Blank);
        for bit in 0..SEGMENT_HEADER_BYTES * 8 {
            let mut flipped = header;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode_header(&flipped, 5, path).unwrap(), HeaderState::Blank, "bit {bit}");
        }
    }

    #[test]
    fn an_unknown_format_is_refused_with_a_way_out() {
        for (at, found) in [(8, "version 2 with features 0x0"), (12, "version 1 with features 0x1")] {
            let mut header = encode_header(5, 4096, 1 << 20);
            header[at] = if at == 8 { 2 } else { 1 };
            let checksum = crc32fast::hash(&header[..CHECKSUM_AT]);
            header[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
            let message = decode_header(&header, 5, Path::new("000000000005.log")).unwrap_err().to_string();
            assert!(message.contains(found) && message.contains("export there and import here"), "{message}");
        }
    }
}

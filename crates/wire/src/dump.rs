//! The payload of `DUMP` and `RESTORE`: a value as Redis writes it into its RDB files, with version and checksum.
//!
//! ```text
//!   offset  bytes
//!   0       1     type; 0 is a string, and integers are strings
//!   1       n     the string, see below
//!   1 + n   2     version of the format, little-endian
//!   3 + n   8     CRC-64 (Jones) of everything before, little-endian
//!
//!   string  00llllll                 length of 6 bits, then the bytes
//!           01llllll l8              length of 14 bits, big-endian, then the bytes
//!           10000000 l32             length of 32 bits, big-endian, then the bytes
//!           10000001 l64             length of 64 bits, big-endian, then the bytes
//!           11000000 i8              integer of 8 bits
//!           11000001 i16             integer of 16 bits, little-endian
//!           11000010 i32             integer of 32 bits, little-endian
//!           11000011 n m bytes       compressed by LZF: n bytes, of a string of m; n and m as lengths above
//! ```
//!
//! Redis writes an integer in the shortest of the three integer forms, and as text where it does not fit 32 bits. The sketch of a counter of
//! uniques is a string, which Redis compresses where that pays, and we do not.
//!
//! Type 0xf0 is our own: a counter that is more than a number, with all it has ([`quipu_counting::kinds::put_restored`]) in place of the
//! string.

/// The version that is written: that of Redis 7.0, which later ones read.
const VERSION: u16 = 10;
/// The newest version that is read, that of Redis 7.4: strings have had the same form in all of them.
const VERSION_MAX: u16 = 12;
/// Version and checksum.
const FOOTER_BYTES: usize = 10;
/// The type of strings.
const STRING: u8 = 0;
/// Our own type, which Redis does not know.
const WHOLE: u8 = 0xf0;
/// The longest payload that is looked at, and the longest string in one: a sketch is far shorter.
const PAYLOAD_BYTES_MAX: usize = 64 * 1024;
/// The same of a whole counter.
const WHOLE_BYTES_MAX: usize = 8 << 20;

/// Why a payload was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DumpError {
    /// Its version is newer than this, or its checksum is wrong.
    Footer,
    /// It is whole, but not the value of a counter.
    NotAString,
    /// It is whole and yet no value at all.
    Malformed,
}

/// Appends the payload of an integer.
pub fn write_integer(out: &mut Vec<u8>, value: i64) {
    let start = out.len();
    out.push(STRING);
    if let Ok(value) = i8::try_from(value) {
        out.push(0xc0);
        out.extend(value.to_le_bytes());
    } else if let Ok(value) = i16::try_from(value) {
        out.push(0xc1);
        out.extend(value.to_le_bytes());
    } else if let Ok(value) = i32::try_from(value) {
        out.push(0xc2);
        out.extend(value.to_le_bytes());
    } else {
        let mut buffer = itoa::Buffer::new();
        let digits = buffer.format(value).as_bytes();
        // At most 20 digits and sign: a length of 6 bits.
        out.push(digits.len() as u8);
        out.extend_from_slice(digits);
    }
    seal(out, start);
}

/// Appends the payload of a string.
pub fn write_string(out: &mut Vec<u8>, text: &[u8]) {
    let start = out.len();
    out.push(STRING);
    match text.len() {
        length @ 0..0x40 => out.push(length as u8),
        length @ 0x40..0x4000 => out.extend([0x40 | (length >> 8) as u8, length as u8]),
        length => {
            out.push(0x80);
            out.extend((length as u32).to_be_bytes());
        }
    }
    out.extend_from_slice(text);
    seal(out, start);
}

/// Appends the payload of a counter with all it has.
pub fn write_whole(out: &mut Vec<u8>, whole: &[u8]) {
    let start = out.len();
    out.push(WHOLE);
    out.extend_from_slice(whole);
    seal(out, start);
}

fn seal(out: &mut Vec<u8>, start: usize) {
    out.extend(VERSION.to_le_bytes());
    out.extend(crc64(&out[start..]).to_le_bytes());
}

/// What a payload holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// An integer in one of its forms.
    Integer(i64),
    /// Text, which may be an integer or a sketch.
    Text(Vec<u8>),
    /// A counter with all it has.
    Whole(Vec<u8>),
}

/// The value in a payload.
pub fn read_value(payload: &[u8]) -> Result<Value, DumpError> {
    let footer = payload.len().checked_sub(FOOTER_BYTES).ok_or(DumpError::Footer)?;
    let is_whole = payload.first() == Some(&WHOLE);
    if payload.len() > if is_whole { WHOLE_BYTES_MAX } else { PAYLOAD_BYTES_MAX } {
        return Err(DumpError::NotAString);
    }
    let (value, footer) = payload.split_at(footer);
    let (version, checksum) = footer.split_at(2);
    let is_known = version.try_into().is_ok_and(|version| u16::from_le_bytes(version) <= VERSION_MAX);
    if !is_known || checksum != crc64(&payload[..payload.len() - 8]).to_le_bytes() {
        return Err(DumpError::Footer);
    }
    match value {
        [STRING, string @ ..] => read_string(string),
        [WHOLE, whole @ ..] => Ok(Value::Whole(whole.to_vec())),
        [] => Err(DumpError::Malformed),
        _ => Err(DumpError::NotAString),
    }
}

/// What comes behind the string is ignored, as Redis does.
fn read_string(string: &[u8]) -> Result<Value, DumpError> {
    Ok(match *string {
        [0xc0, value, ..] => Value::Integer(i64::from(value as i8)),
        [0xc1, a, b, ..] => Value::Integer(i16::from_le_bytes([a, b]).into()),
        [0xc2, a, b, c, d, ..] => Value::Integer(i32::from_le_bytes([a, b, c, d]).into()),
        [0xc3, ref rest @ ..] => {
            let (packed, rest) = read_length(rest)?;
            let (length, rest) = read_length(rest)?;
            if length > PAYLOAD_BYTES_MAX {
                return Err(DumpError::NotAString);
            }
            let packed = rest.get(..packed).ok_or(DumpError::Malformed)?;
            Value::Text(unpack(packed, length).ok_or(DumpError::Malformed)?)
        }
        _ => {
            let (length, rest) = read_length(string)?;
            Value::Text(rest.get(..length).ok_or(DumpError::Malformed)?.to_vec())
        }
    })
}

fn read_length(bytes: &[u8]) -> Result<(usize, &[u8]), DumpError> {
    let (length, rest) = match *bytes {
        [first @ 0..0x40, ref rest @ ..] => (u64::from(first), rest),
        [first @ 0x40..0x80, second, ref rest @ ..] => {
            (u64::from(first & 0x3f) << 8 | u64::from(second), rest)
        }
        [0x80, a, b, c, d, ref rest @ ..] => (u32::from_be_bytes([a, b, c, d]).into(), rest),
        [0x81, a, b, c, d, e, f, g, h, ref rest @ ..] => (u64::from_be_bytes([a, b, c, d, e, f, g, h]), rest),
        _ => return Err(DumpError::Malformed),
    };
    Ok((usize::try_from(length).map_err(|_| DumpError::Malformed)?, rest))
}

/// What LZF packed: runs of bytes as they are, and repetitions of what came before.
fn unpack(packed: &[u8], length: usize) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(length);
    let mut bytes = packed.iter().copied();
    while let Some(control) = bytes.next() {
        let (kind, low) = (usize::from(control >> 5), usize::from(control & 0x1f));
        if kind == 0 {
            for _ in 0..=low {
                out.push(bytes.next()?);
            }
        } else {
            let more = if kind == 7 { usize::from(bytes.next()?) } else { 0 };
            let back = (low << 8) + usize::from(bytes.next()?) + 1;
            let from = out.len().checked_sub(back)?;
            for at in from..from + kind + more + 2 {
                out.push(out[at]);
            }
        }
        if out.len() > length {
            return None;
        }
    }
    (out.len() == length).then_some(out)
}

/// The polynomial of Jones, its bits reversed.
const POLYNOMIAL: u64 = 0x95ac_9329_ac4b_c9b5;

static TABLE: [u64; 256] = table();

const fn table() -> [u64; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u64;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
}

fn crc64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |crc, byte| TABLE[usize::from(crc as u8 ^ byte)] ^ crc >> 8)
}

#[cfg(test)]
mod tests {
    use super::{DumpError, Value, crc64, read_value, write_integer, write_string, write_whole};
    use crate::number::parse_i64;
    use proptest::prelude::*;

    fn dump(value: i64) -> Vec<u8> {
        let mut payload = Vec::new();
        write_integer(&mut payload, value);
        payload
    }

    fn read_integer(payload: &[u8]) -> Result<i64, DumpError> {
        match read_value(payload)? {
            Value::Integer(value) => Ok(value),
            Value::Text(text) => parse_i64(&text).ok_or(DumpError::NotAString),
            Value::Whole(_) => Err(DumpError::NotAString),
        }
    }

    /// A payload with this content, whole.
    fn sealed(content: &[u8], version: u16) -> Vec<u8> {
        let mut payload = [content, &version.to_le_bytes()].concat();
        payload.extend(crc64(&payload).to_le_bytes());
        payload
    }

    #[test]
    fn the_checksum_is_that_of_jones() {
        assert_eq!(crc64(b"123456789"), 0xe9c6_d914_c4b8_d9ca);
    }

    #[test]
    fn every_form_is_read() {
        use DumpError::{Malformed, NotAString};
        let cases: &[(&[u8], Result<i64, DumpError>)] = &[
            (b"\0\xc0\x05", Ok(5)),
            (b"\0\xc0\xff", Ok(-1)),
            (b"\0\xc1\x00\x80", Ok(-32768)),
            (b"\0\xc2\x00\x00\x00\x80", Ok(-2_147_483_648)),
            (b"\0\x03123", Ok(123)),
            (b"\0\x40\x03123", Ok(123)),
            (b"\0\x80\0\0\0\x03123", Ok(123)),
            (b"\0\x81\0\0\0\0\0\0\0\x03123", Ok(123)),
            (b"\0\x03123 and more", Ok(123)),
            (b"\0\x03abc", Err(NotAString)),
            (b"\0\x0301 ", Err(NotAString)),
            (b"\0\x00", Err(NotAString)),
            (b"\0\xc3\x03\x02\x0177", Ok(77)),
            (b"\0\xc3\x05\x07\x001\x60\x00\x00", Err(Malformed)),
            (b"\0\xc3\x04\x06\x001\x60\x00", Ok(111_111)),
            (b"\0\xc3\x02\x20\x20\x00", Err(Malformed)),
            (b"\0\xc3\x05\x20abcde", Err(Malformed)),
            (b"\x02\x01\x01a", Err(NotAString)),
            (b"", Err(Malformed)),
            (b"\0", Err(Malformed)),
            (b"\0\x04123", Err(Malformed)),
            (b"\0\x81\xff\xff\xff\xff\xff\xff\xff\xff1", Err(Malformed)),
            (b"\0\xc2\x00\x00", Err(Malformed)),
            (b"\0\x90\x00\x00", Err(Malformed)),
        ];
        for (content, expected) in cases {
            assert_eq!(read_integer(&sealed(content, 10)), *expected, "{}", content.escape_ascii());
            assert_eq!(read_integer(&sealed(content, 12)), *expected, "{}", content.escape_ascii());
            assert_eq!(read_integer(&sealed(content, 13)), Err(DumpError::Footer));
        }
    }

    #[test]
    fn damage_is_noticed() {
        let whole = dump(-7_000_000_000);
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            assert_eq!(read_integer(&damaged), Err(DumpError::Footer), "at {at}");
            assert!(read_integer(&whole[..at]).is_err(), "cut at {at}");
        }
    }

    proptest! {
        #[test]
        fn what_was_written_reads_back(value: i64, shift in 0..64u32) {
            for value in [value, value >> shift] {
                prop_assert_eq!(read_integer(&dump(value)), Ok(value));
            }
        }

        #[test]
        fn text_reads_back(text: Vec<u8>, times in 1..400usize) {
            let text = text.repeat(times);
            let mut payload = Vec::new();
            write_string(&mut payload, &text);
            if payload.len() <= super::PAYLOAD_BYTES_MAX {
                prop_assert_eq!(read_value(&payload), Ok(Value::Text(text)));
            }
        }

        #[test]
        fn whole_counters_read_back(whole: Vec<u8>) {
            let mut payload = Vec::new();
            write_whole(&mut payload, &whole);
            prop_assert_eq!(read_value(&payload), Ok(Value::Whole(whole)));
        }

        #[test]
        fn anything_may_come(payload: Vec<u8>) {
            let _ = read_integer(&payload);
            let _ = read_integer(&sealed(&payload, 10));
        }
    }
}

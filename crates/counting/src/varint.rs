//! Integers of one to ten bytes, seven bits each, the low ones first (LEB128), for what counters keep beside
//! their cell. Every number has one form only: what is read and written again is the same bytes.

/// Appends `number`.
pub(crate) fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Appends a number that may be negative; those near zero are short.
pub(crate) fn put_signed(out: &mut Vec<u8>, number: i64) {
    put(out, (number << 1 ^ number >> 63) as u64);
}

/// Takes a number off the front; nothing if none in its one form stands there.
pub(crate) fn read(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            return None;
        }
        number |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(number).filter(|_| *byte != 0 || shift == 0);
        }
    }
    None
}

/// Takes a number off the front that [`put_signed`] wrote.
pub(crate) fn read_signed(bytes: &mut &[u8]) -> Option<i64> {
    read(bytes).map(|number| (number >> 1) as i64 ^ -((number & 1) as i64))
}

#[cfg(test)]
mod tests {
    use super::{put, put_signed, read, read_signed};

    #[test]
    fn numbers_come_back() {
        for number in (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, u64::MAX >> bit]) {
            let mut bytes = Vec::new();
            put(&mut bytes, number);
            put_signed(&mut bytes, number as i64);
            put_signed(&mut bytes, (number as i64).wrapping_neg());
            let mut left = &bytes[..];
            assert_eq!(read(&mut left), Some(number));
            assert_eq!(read_signed(&mut left), Some(number as i64));
            assert_eq!(read_signed(&mut left), Some((number as i64).wrapping_neg()));
            assert!(left.is_empty());
        }
    }

    #[test]
    fn other_forms_are_refused() {
        for bytes in [
            &[][..],
            &[0x80],
            &[0x80, 0],
            &[0xff, 0x80, 0],
            &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2],
            &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x81, 0],
        ] {
            assert_eq!(read(&mut { bytes }), None, "{bytes:?}");
        }
    }
}

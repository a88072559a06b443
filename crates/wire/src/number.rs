//! Integers written as text, read as strictly as Redis reads them.
//!
//! One number has exactly one spelling: no sign `+`, no leading zero, no `-0`, no blanks. A counter therefore prints
//! back byte for byte what a client stored, and a length on the wire cannot be written in two ways.

/// The most digits an `i64` can have. Nineteen digits always fit a `u64`, so the loop below cannot overflow.
const MAX_DIGITS: usize = 19;

/// Reads the one canonical spelling of an `i64`; anything else is `None`.
#[inline]
pub fn parse_i64(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        digits => (false, digits),
    };
    match digits {
        [b'0'] if !negative => return Some(0),
        [b'1'..=b'9', ..] if digits.len() <= MAX_DIGITS => {}
        _ => return None,
    }
    let mut magnitude: u64 = 0;
    for byte in digits {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        magnitude = magnitude * 10 + u64::from(digit);
    }
    if negative { 0i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() }
}

#[cfg(test)]
mod tests {
    use super::parse_i64;
    use proptest::prelude::*;

    #[test]
    fn one_spelling_for_each_number() {
        let cases: &[(&str, Option<i64>)] = &[
            ("0", Some(0)),
            ("7", Some(7)),
            ("-1", Some(-1)),
            ("10", Some(10)),
            ("9223372036854775807", Some(i64::MAX)),
            ("-9223372036854775808", Some(i64::MIN)),
            ("9223372036854775808", None),
            ("-9223372036854775809", None),
            ("9999999999999999999", None),
            ("-9999999999999999999", None),
            ("10000000000000000000", None),
            ("18446744073709551617", None),
            ("", None),
            ("-", None),
            ("-0", None),
            ("00", None),
            ("01", None),
            ("-01", None),
            ("+1", None),
            ("--1", None),
            (" 1", None),
            ("1 ", None),
            ("1\n", None),
            ("1.0", None),
            ("1e3", None),
            ("0x10", None),
            ("1\0", None),
            ("\u{661}", None),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_i64(text.as_bytes()), *expected, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn every_number_reads_back(number: i64) {
            prop_assert_eq!(parse_i64(number.to_string().as_bytes()), Some(number));
        }

        #[test]
        fn what_reads_prints_back(text in "[-+0-9 ]{0,21}") {
            if let Some(number) = parse_i64(text.as_bytes()) {
                prop_assert_eq!(number.to_string(), text);
            }
        }
    }
}

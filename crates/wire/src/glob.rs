//! Patterns over keys, with the meaning Redis gives them in `KEYS`, `SCAN MATCH` and `CONFIG GET`.
//!
//! ```text
//!   *        any run of bytes, also none
//!   ?        any one byte
//!   [a-z_]   one byte of the class; [^...] one byte outside it; \] inside a class is a plain ]
//!   \x       the byte x itself
//! ```
//!
//! A pattern comes from outside, so its cost must not: only the last `*` is ever retried. That is enough, because every
//! other element takes exactly one byte, and it bounds the work by `pattern length * text length`; the recursive matcher
//! is exponential in the number of stars.
//!
//! Two corners differ from Redis on purpose: classes compare unsigned bytes (`[\x7f-\xff]` means what it says), and
//! a pattern of stars matches the empty text.

/// Whether the whole of `text` matches `pattern`, byte for byte.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    Matcher { pattern, fold_case: false }.matches(text)
}

/// As [`matches()`], with ASCII letters compared without regard to case (names of parameters in `CONFIG GET`).
pub fn matches_ignoring_case(pattern: &[u8], text: &[u8]) -> bool {
    Matcher { pattern, fold_case: true }.matches(text)
}

/// Whether the pattern contains anything but plain bytes. One that does not names a single key and needs no scan.
pub fn is_pattern(pattern: &[u8]) -> bool {
    pattern.iter().any(|byte| matches!(byte, b'*' | b'?' | b'[' | b'\\'))
}

struct Matcher<'a> {
    pattern: &'a [u8],
    fold_case: bool,
}

impl Matcher<'_> {
    fn matches(&self, text: &[u8]) -> bool {
        let (mut at, mut read) = (0, 0);
        // Where to resume when an element fails: the element after the last star, and the text that star has not taken.
        let mut retry: Option<(usize, usize)> = None;
        loop {
            if self.pattern.get(at) == Some(&b'*') {
                at += 1;
                if at == self.pattern.len() {
                    return true;
                }
                retry = Some((at, read));
                continue;
            }
            match (at < self.pattern.len(), text.get(read)) {
                (false, None) => return true,
                (true, Some(&byte)) => {
                    if let Some(next) = self.element(at, byte) {
                        at = next;
                        read += 1;
                        continue;
                    }
                }
                // Text ran out before the pattern: a longer run for the star leaves even less text.
                (true, None) => return false,
                (false, Some(_)) => {}
            }
            let Some((after_star, taken)) = retry else { return false };
            retry = Some((after_star, taken + 1));
            (at, read) = (after_star, taken + 1);
        }
    }

    /// Tries the element at `at`, which is not a star, on one byte: the place of the next element if it matches.
    fn element(&self, at: usize, byte: u8) -> Option<usize> {
        match self.pattern[at] {
            b'?' => Some(at + 1),
            b'[' => {
                let (inside, next) = self.class(at + 1, byte);
                inside.then_some(next)
            }
            b'\\' if at + 1 < self.pattern.len() => self.same(self.pattern[at + 1], byte).then_some(at + 2),
            literal => self.same(literal, byte).then_some(at + 1),
        }
    }

    /// Reads the class whose first byte is at `at`: whether it admits `byte`, and the place after its `]`.
    /// A class that is never closed ends with the pattern, as in Redis.
    fn class(&self, mut at: usize, byte: u8) -> (bool, usize) {
        let negated = self.pattern.get(at) == Some(&b'^');
        at += usize::from(negated);
        let mut found = false;
        loop {
            match self.pattern.get(at..).unwrap_or_default() {
                [] => return (found != negated, at),
                [b'\\', escaped, ..] => {
                    found |= *escaped == byte;
                    at += 2;
                }
                [b']', ..] => return (found != negated, at + 1),
                [first, b'-', last, ..] => {
                    found |= self.in_range(*first, *last, byte);
                    at += 3;
                }
                [single, ..] => {
                    found |= self.same(*single, byte);
                    at += 1;
                }
            }
        }
    }

    fn in_range(&self, first: u8, last: u8, byte: u8) -> bool {
        let (low, high) = (first.min(last), first.max(last));
        (self.fold(low)..=self.fold(high)).contains(&self.fold(byte))
    }

    fn same(&self, left: u8, right: u8) -> bool {
        self.fold(left) == self.fold(right)
    }

    fn fold(&self, byte: u8) -> u8 {
        if self.fold_case { byte.to_ascii_lowercase() } else { byte }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn table() {
        let cases: &[(&str, &str, bool)] = &[
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*", "abc", true),
            ("a", "a", true),
            ("a", "b", false),
            ("a", "ab", false),
            ("ab", "a", false),
            ("a*", "a", true),
            ("a**", "a", true),
            ("*a", "bca", true),
            ("*a", "bcab", false),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("?", "", false),
            ("a*b*c", "a__b__b__c", true),
            ("a*b*c", "a__c__b", false),
            ("*ab*ab", "abab", true),
            ("*ab*ab", "ab", false),
            ("h[ae]llo", "hallo", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("h[a-c]llo", "hdllo", false),
            ("[]", "a", false),
            ("[]a", "a", false),
            ("[^]", "a", true),
            ("[\\]]", "]", true),
            ("[a-]", "-", false), // a range up to `]`, and so never closed
            ("[a-]", "_", true),
            ("[a-", "a", true),
            ("[a-", "-", true),
            ("[abc", "b", true),
            ("[", "[", false),
            ("[^", "a", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("\\", "\\", true),
            ("a\\", "a\\", true),
            ("[\\", "\\", true),
            ("*[0-9]", "user:7", true),
            ("user:*:total", "user::total", true),
            ("user:*:total", "user:total", false),
        ];
        for (pattern, text, expected) in cases {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), *expected, "{pattern:?} on {text:?}");
        }
    }

    #[test]
    fn case_is_folded_only_when_asked() {
        for (pattern, text) in [("MAX*", "maxmemory"), ("[A-C]x", "bX"), ("[q]", "Q"), ("\\A", "a")] {
            assert!(matches_ignoring_case(pattern.as_bytes(), text.as_bytes()), "{pattern} on {text}");
            assert!(!matches(pattern.as_bytes(), text.as_bytes()), "{pattern} on {text}");
        }
    }

    #[test]
    fn a_plain_key_is_no_pattern() {
        for (pattern, expected) in [
            ("", false),
            ("abc", false),
            ("a*c", true),
            ("*", true),
            ("a\\*", true),
            ("u:[ab]", true),
            ("a?", true),
        ] {
            assert_eq!(is_pattern(pattern.as_bytes()), expected, "{pattern}");
        }
    }

    /// The recursive matcher needs about 512 choose 32 steps for this one: the test would never end.
    #[test]
    fn many_stars_stay_cheap() {
        let pattern = [b"*a".repeat(32), b"*b".to_vec()].concat();
        assert!(!matches(&pattern, &[b'a'; 512]));
    }

    /// The meaning itself, written without care for time.
    fn naive(pattern: &[u8], text: &[u8]) -> bool {
        match (pattern, text) {
            ([], []) => true,
            ([b'*', rest @ ..], _) => (0..=text.len()).any(|taken| naive(rest, &text[taken..])),
            ([b'?', rest @ ..], [_, tail @ ..]) => naive(rest, tail),
            ([literal, rest @ ..], [byte, tail @ ..]) => literal == byte && naive(rest, tail),
            _ => false,
        }
    }

    proptest! {
        #[test]
        fn agrees_with_the_naive_meaning(pattern in "[ab?*]{0,8}", text in "[ab]{0,10}") {
            prop_assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), naive(pattern.as_bytes(), text.as_bytes()));
        }

        #[test]
        fn no_bytes_are_too_strange(pattern: Vec<u8>, text: Vec<u8>) {
            matches(&pattern, &text);
            matches_ignoring_case(&pattern, &text);
        }
    }
}

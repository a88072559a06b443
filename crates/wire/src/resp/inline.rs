//! Commands typed by hand, one a line: `SET greeting "hello \x21\n"`.
//!
//! The quoting is Redis's:
//!
//! ```text
//!   blank-separated words     GET a
//!   "..."  \n \r \t \b \a, \xHH, and \ before any other byte gives that byte
//!   '...'  only \' is special
//!   a quote may open inside a word (a"b c" is one word), but a closing quote must end the word
//! ```
//!
//! Unquoting never makes a word longer, so it is done in place and every argument stays a span of the buffer.

use std::ops::Range;

/// A quote was opened and not closed, or something follows a closing quote.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct UnbalancedQuotes;

/// Splits `line` (without its end) into words, unquoting them in place; `found` is told where each word lies.
pub(super) fn split(line: &mut [u8], mut found: impl FnMut(Range<usize>)) -> Result<(), UnbalancedQuotes> {
    let mut read = 0;
    loop {
        while line.get(read).copied().is_some_and(is_blank) {
            read += 1;
        }
        if read == line.len() {
            return Ok(());
        }
        let (word, next) = unquote_word(line, read)?;
        found(word);
        read = next;
    }
}

#[derive(Clone, Copy)]
enum Quote {
    None,
    Single,
    Double,
}

/// Rewrites the word that begins at `start`: where it now lies, and where reading goes on.
fn unquote_word(line: &mut [u8], start: usize) -> Result<(Range<usize>, usize), UnbalancedQuotes> {
    let (mut read, mut write) = (start, start);
    let mut quote = Quote::None;
    loop {
        let rest = &line[read..];
        let (byte, taken) = match (quote, rest) {
            (Quote::None, [] | [b' ' | b'\n' | b'\r' | b'\t', ..]) => return Ok((start..write, read)),
            (Quote::None, [b'"', ..]) => {
                quote = Quote::Double;
                read += 1;
                continue;
            }
            (Quote::None, [b'\'', ..]) => {
                quote = Quote::Single;
                read += 1;
                continue;
            }
            (Quote::Single | Quote::Double, []) => return Err(UnbalancedQuotes),
            (Quote::Single, [b'\'', after @ ..]) | (Quote::Double, [b'"', after @ ..]) => {
                let ends_word = after.first().copied().is_none_or(is_blank);
                return if ends_word { Ok((start..write, read + 1)) } else { Err(UnbalancedQuotes) };
            }
            (Quote::Single, [b'\\', b'\'', ..]) => (b'\'', 2),
            (Quote::Double, [b'\\', escape @ ..]) if !escape.is_empty() => unescape(escape),
            (_, [byte, ..]) => (*byte, 1),
        };
        line[write] = byte;
        write += 1;
        read += taken;
    }
}

/// The byte meant by what follows a backslash, and how many bytes that took, the backslash included.
fn unescape(escape: &[u8]) -> (u8, usize) {
    if let [b'x', high, low, ..] = escape
        && let (Some(high), Some(low)) = (hex_digit(*high), hex_digit(*low))
    {
        return (high << 4 | low, 4);
    }
    let byte = match escape[0] {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 0x08,
        b'a' => 0x07,
        other => other,
    };
    (byte, 2)
}

fn hex_digit(byte: u8) -> Option<u8> {
    match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    }
}

/// C's `isspace`. Wider than what ends an unquoted word, as in Redis: a vertical tab separates nothing by itself.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

#[cfg(test)]
mod tests {
    use super::*;

    type Words = &'static [&'static [u8]];

    #[test]
    fn words() {
        let cases: &[(&[u8], Result<Words, UnbalancedQuotes>)] = &[
            (b"", Ok(&[])),
            (b" \t \x0b ", Ok(&[])),
            (b"PING", Ok(&[b"PING"])),
            (b"  GET\ta  ", Ok(&[b"GET", b"a"])),
            (b"ECHO \"\"", Ok(&[b"ECHO", b""])),
            (b"ECHO '' b", Ok(&[b"ECHO", b"", b"b"])),
            (b"a\"b c\"", Ok(&[b"ab c"])),
            (b"\"\\x41\\x4g\\n\\r\\t\\b\\a\\q\\\\\\\"\"", Ok(&[b"Ax4g\n\r\t\x08\x07q\\\""])),
            (b"'a\\'b\\n\"'", Ok(&[b"a'b\\n\""])),
            (b"a\x0bb", Ok(&[b"a\x0bb"])),
            (b"\x0ba \x0c b", Ok(&[b"a", b"b"])),
            (b"a\rb", Ok(&[b"a", b"b"])),
            (b"\\x41", Ok(&[b"\\x41"])),
            (b"\xff\x00", Ok(&[b"\xff\x00"])),
            (b"\"a\"\x0bb", Ok(&[b"a", b"b"])),
            (b"\"a", Err(UnbalancedQuotes)),
            (b"\"a\\", Err(UnbalancedQuotes)),
            (b"\"a\\\"", Err(UnbalancedQuotes)),
            (b"'a", Err(UnbalancedQuotes)),
            (b"\"a\"b", Err(UnbalancedQuotes)),
            (b"'a'b", Err(UnbalancedQuotes)),
            (b"'a''b'", Err(UnbalancedQuotes)),
        ];
        for (line, expected) in cases {
            let mut buffer = line.to_vec();
            let mut spans = Vec::new();
            let outcome = split(&mut buffer, |span| spans.push(span));
            let words: Vec<&[u8]> = spans.into_iter().map(|span| &buffer[span]).collect();
            let shown = line.escape_ascii();
            match expected {
                Ok(expected) => assert_eq!((outcome, words.as_slice()), (Ok(()), *expected), "{shown}"),
                Err(error) => assert_eq!(outcome.as_ref(), Err(error), "{shown}"),
            }
        }
    }
}

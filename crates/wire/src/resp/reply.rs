//! Replies read back, in both protocols: for our command line, the load generator and tests.
//!
//! Reading has two steps. [`ReplyScanner`] finds where a reply ends and remembers how far it got, so a large reply
//! in small pieces is looked at once; it keeps one counter of values still to come and cannot be made to recurse. Only
//! a reply that is all there is turned into a [`Value`]. A load generator that needs no values stops at the first step.

use super::decode::MAX_LINE_BYTES;
use crate::number::parse_i64;

/// Bytes of one reply. Redis's own limit for one string.
pub const MAX_REPLY_BYTES: usize = 512 * 1024 * 1024;

/// Levels of nesting that become a [`Value`]; building one recurses. The deepest reply of Redis has seven.
pub const MAX_DEPTH: usize = 32;

/// Elements reserved at once. Larger arrays grow as they are read: a count is only a claim.
const MAX_RESERVED_ELEMENTS: usize = 1024;

/// Bytes that are no reply. The stream cannot be read further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// No type begins with this byte.
    #[error("a reply cannot begin with byte {0:#04x}")]
    UnknownType(u8),
    /// A length or number that is none.
    #[error("a reply holds a malformed number or length")]
    InvalidNumber,
    /// Something else where `\r\n` should be.
    #[error("a reply lacks a line end")]
    MissingLineEnd,
    /// Longer than any reply we expect.
    #[error("a reply is longer than {MAX_REPLY_BYTES} bytes")]
    TooLong,
    /// Nested deeper than any reply we expect.
    #[error("a reply is nested deeper than {MAX_DEPTH} levels")]
    TooDeep,
}

/// One reply.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `+OK`
    Simple(Vec<u8>),
    /// `-ERR ...`, and the long form `!` of RESP3.
    Error(Vec<u8>),
    /// `:7`
    Integer(i64),
    /// `$3 abc`
    Bulk(Vec<u8>),
    /// `$-1`, `*-1` and `_`
    Null,
    /// `*2 ...`
    Array(Vec<Value>),
    /// `%2 ...`, in the order sent.
    Map(Vec<(Value, Value)>),
    /// `~2 ...`
    Set(Vec<Value>),
    /// `>2 ...`: a message nobody asked for; the awaited reply comes after it.
    Push(Vec<Value>),
    /// `,1.5`
    Double(f64),
    /// `#t`
    Boolean(bool),
    /// `(123...`: its digits.
    BigNumber(Vec<u8>),
    /// `=8 txt:text`
    Verbatim {
        /// `txt` or `mkd`.
        format: [u8; 3],
        /// What follows the colon.
        text: Vec<u8>,
    },
}

impl Value {
    /// The number this is or spells.
    pub fn as_integer(&self) -> Option<i64> {
        match self {
            Value::Integer(number) => Some(*number),
            Value::Simple(text) | Value::Bulk(text) | Value::BigNumber(text) => parse_i64(text),
            _ => None,
        }
    }

    /// The bytes of a text of any kind, errors apart.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Value::Simple(text)
            | Value::Bulk(text)
            | Value::BigNumber(text)
            | Value::Verbatim { text, .. } => Some(text),
            _ => None,
        }
    }

    /// The elements of a list of any kind, maps apart.
    pub fn as_elements(&self) -> Option<&[Value]> {
        match self {
            Value::Array(elements) | Value::Set(elements) | Value::Push(elements) => Some(elements),
            _ => None,
        }
    }

    /// The text of an error.
    pub fn as_error(&self) -> Option<&[u8]> {
        match self {
            Value::Error(text) => Some(text),
            _ => None,
        }
    }
}

/// The length of the reply at the head of `buffer`, or `None` while it is incomplete.
#[inline]
pub fn skip_reply(buffer: &[u8]) -> Result<Option<usize>, ReplyError> {
    ReplyScanner::default().scan(buffer)
}

/// Finds the end of a reply that may arrive in pieces.
#[derive(Debug, Default)]
pub struct ReplyScanner {
    /// Bytes understood so far.
    position: usize,
    /// Bytes after `position` known to hold no line end.
    searched: usize,
    /// Values still to come, less the one every reply begins with: 0 at the start.
    pending: usize,
}

impl ReplyScanner {
    /// The length of the reply at the head of `buffer`, or `None` while it is incomplete; then the next call must be
    /// given the same bytes and more.
    #[inline]
    pub fn scan(&mut self, buffer: &[u8]) -> Result<Option<usize>, ReplyError> {
        while let Some((line, body)) = self.line(buffer)? {
            let (text_bytes, elements) = extent(line)?;
            let end = match text_bytes {
                None => body,
                Some(length) => {
                    let end = body.checked_add(length + 2).filter(|end| *end <= MAX_REPLY_BYTES);
                    let end = end.ok_or(ReplyError::TooLong)?;
                    match buffer.get(end - 2..end) {
                        None => return Ok(None),
                        Some(b"\r\n") => end,
                        Some(_) => return Err(ReplyError::MissingLineEnd),
                    }
                }
            };
            // Every value takes three bytes or more, so a larger claim can never come true.
            self.pending += elements;
            if self.pending > MAX_REPLY_BYTES / 3 {
                return Err(ReplyError::TooLong);
            }
            if self.pending == 0 {
                *self = ReplyScanner::default();
                return Ok(Some(end));
            }
            self.pending -= 1;
            (self.position, self.searched) = (end, 0);
        }
        Ok(None)
    }

    /// The line at `position` and the place after it.
    #[inline]
    fn line<'b>(&mut self, buffer: &'b [u8]) -> Result<Option<(&'b [u8], usize)>, ReplyError> {
        let rest = buffer.get(self.position..).unwrap_or_default();
        let from = self.searched.min(rest.len());
        let Some(found) = memchr::memchr(b'\n', &rest[from..]) else {
            self.searched = rest.len();
            let too_long = rest.len() > MAX_LINE_BYTES || self.position > MAX_REPLY_BYTES;
            return if too_long { Err(ReplyError::TooLong) } else { Ok(None) };
        };
        let line = rest[..from + found].strip_suffix(b"\r").ok_or(ReplyError::MissingLineEnd)?;
        self.searched = from + found;
        Ok(Some((line, self.position + from + found + 1)))
    }
}

/// What follows a value's first line: bytes of text, if any, and how many more values.
#[inline]
fn extent(line: &[u8]) -> Result<(Option<usize>, usize), ReplyError> {
    let [mark, number @ ..] = line else { return Err(ReplyError::MissingLineEnd) };
    match mark {
        b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => Ok((None, 0)),
        b'$' | b'!' | b'=' => Ok((length(number)?, 0)),
        b'*' | b'~' | b'>' => Ok((None, length(number)?.unwrap_or(0))),
        b'%' => Ok((None, length(number)?.unwrap_or(0) * 2)),
        // Attributes stand before the value they describe, so that value is still to come.
        b'|' => Ok((None, length(number)?.unwrap_or(0) * 2 + 1)),
        other => Err(ReplyError::UnknownType(*other)),
    }
}

/// A length; `None` is the -1 that RESP2 writes for null.
#[inline]
fn length(text: &[u8]) -> Result<Option<usize>, ReplyError> {
    match parse_i64(text) {
        Some(-1) => Ok(None),
        Some(length @ 0..) if length <= MAX_REPLY_BYTES as i64 => Ok(Some(length as usize)),
        Some(0..) => Err(ReplyError::TooLong),
        _ => Err(ReplyError::InvalidNumber),
    }
}

/// Turns the bytes of one connection into values.
#[derive(Debug, Default)]
pub struct ReplyDecoder {
    scanner: ReplyScanner,
}

impl ReplyDecoder {
    /// A decoder for a new connection.
    pub fn new() -> ReplyDecoder {
        ReplyDecoder::default()
    }

    /// The reply at the head of `buffer` and its length, or `None` while it is incomplete; then the next call must be
    /// given the same bytes and more.
    pub fn decode(&mut self, buffer: &[u8]) -> Result<Option<(Value, usize)>, ReplyError> {
        let Some(length) = self.scanner.scan(buffer)? else { return Ok(None) };
        let value = Builder { rest: &buffer[..length] }.value(MAX_DEPTH)?;
        Ok(Some((value, length)))
    }
}

/// Builds the value of a reply known to be complete.
struct Builder<'b> {
    rest: &'b [u8],
}

impl<'b> Builder<'b> {
    fn value(&mut self, depth: usize) -> Result<Value, ReplyError> {
        let depth = depth.checked_sub(1).ok_or(ReplyError::TooDeep)?;
        let mut line = self.line()?;
        while let [b'|', count @ ..] = line {
            self.elements(length(count)?.unwrap_or(0) * 2, depth)?;
            line = self.line()?;
        }
        let [mark, text @ ..] = line else { return Err(ReplyError::MissingLineEnd) };
        Ok(match mark {
            b'+' => Value::Simple(text.to_vec()),
            b'-' => Value::Error(text.to_vec()),
            b':' => Value::Integer(parse_i64(text).ok_or(ReplyError::InvalidNumber)?),
            b'_' => Value::Null,
            b',' => Value::Double(parse_double(text).ok_or(ReplyError::InvalidNumber)?),
            b'#' => match text {
                b"t" => Value::Boolean(true),
                b"f" => Value::Boolean(false),
                _ => return Err(ReplyError::InvalidNumber),
            },
            b'(' => Value::BigNumber(text.to_vec()),
            b'$' => self.text(text)?.map_or(Value::Null, |text| Value::Bulk(text.to_vec())),
            b'!' => self.text(text)?.map_or(Value::Null, |text| Value::Error(text.to_vec())),
            b'=' => match self.text(text)? {
                Some([a, b, c, b':', text @ ..]) => {
                    Value::Verbatim { format: [*a, *b, *c], text: text.to_vec() }
                }
                _ => return Err(ReplyError::InvalidNumber),
            },
            b'*' => match length(text)? {
                None => Value::Null,
                Some(count) => Value::Array(self.elements(count, depth)?),
            },
            b'~' => Value::Set(self.elements(length(text)?.unwrap_or(0), depth)?),
            b'>' => Value::Push(self.elements(length(text)?.unwrap_or(0), depth)?),
            b'%' => self.map(length(text)?.unwrap_or(0), depth)?,
            other => return Err(ReplyError::UnknownType(*other)),
        })
    }

    fn elements(&mut self, count: usize, depth: usize) -> Result<Vec<Value>, ReplyError> {
        let mut elements = Vec::with_capacity(count.min(MAX_RESERVED_ELEMENTS));
        for _ in 0..count {
            elements.push(self.value(depth)?);
        }
        Ok(elements)
    }

    fn map(&mut self, count: usize, depth: usize) -> Result<Value, ReplyError> {
        let mut pairs = Vec::with_capacity(count.min(MAX_RESERVED_ELEMENTS));
        for _ in 0..count {
            pairs.push((self.value(depth)?, self.value(depth)?));
        }
        Ok(Value::Map(pairs))
    }

    fn line(&mut self) -> Result<&'b [u8], ReplyError> {
        let end = memchr::memchr(b'\n', self.rest).ok_or(ReplyError::MissingLineEnd)?;
        let line = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        line.strip_suffix(b"\r").ok_or(ReplyError::MissingLineEnd)
    }

    /// The text announced by a header; `None` for null.
    fn text(&mut self, header: &[u8]) -> Result<Option<&'b [u8]>, ReplyError> {
        let Some(length) = length(header)? else { return Ok(None) };
        let (text, rest) = self.rest.split_at_checked(length).ok_or(ReplyError::MissingLineEnd)?;
        self.rest = rest.strip_prefix(b"\r\n").ok_or(ReplyError::MissingLineEnd)?;
        Ok(Some(text))
    }
}

fn parse_double(text: &[u8]) -> Option<f64> {
    // Rust reads `inf`, `-inf` and `nan` as Redis spells them.
    std::str::from_utf8(text).ok()?.parse().ok()
}

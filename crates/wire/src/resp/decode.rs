//! The commands a client sends, found in a byte buffer without copying them and without allocating for each.
//!
//! ```text
//!   *2 \r\n  $4 \r\n INCR \r\n  $14 \r\n counter:123456 \r\n      an array of bulk strings: what libraries send
//!   INCR counter:123456 \r\n                                      a line: what people type (see `inline`)
//! ```
//!
//! [`Decoder`] belongs to a connection and remembers how far an unfinished command was read, so a large one
//! that arrives in small pieces is still read once. [`Pipeline`] holds what one call found, as places in the buffer;
//! one serves all connections of a thread. Lengths from the wire are compared with what has arrived, never
//! allocated.
//!
//! What is accepted and refused is what Redis 7.0 accepts and refuses, down to the text, with two exceptions: our
//! limits are lower ([`Limits`]), and a verdict never depends on how the bytes were split into reads.

use super::inline;
use super::pipeline::{Pipeline, Span};
use crate::number::parse_i64;

/// The longest line, be it a hand-typed command or the digits of a length. Redis's own limit.
pub const MAX_LINE_BYTES: usize = 64 * 1024;

/// Arguments of a command before login, as in Redis: enough for `AUTH` and `HELLO`, too few to fill memory.
pub const MAX_ARGUMENTS_BEFORE_LOGIN: u32 = 10;

/// Bytes of an argument before login, as in Redis.
pub const MAX_ARGUMENT_BYTES_BEFORE_LOGIN: u32 = 16 * 1024;

/// Digits read on the fast path: enough for every length within the default limits, too few to overflow 32 bits.
const MAX_SHORT_DIGITS: usize = 8;

/// `\r\n`.
const LINE_END_BYTES: usize = 2;

/// How much of one buffer a call looks at. Places are kept in 32 bits; far more than any one read gives.
const MAX_BUFFER_BYTES: usize = 1 << 31;

/// Places kept allocated by an idle connection, of which there may be many.
const RETAINED_PARTIAL_SPANS: usize = 16;

const _: () = assert!((Limits::DEFAULT.frame_bytes as usize) < MAX_BUFFER_BYTES / 2);
const _: () = assert!(Limits::DEFAULT.argument_bytes < Limits::DEFAULT.frame_bytes);

/// What one command may be made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Arguments of one command, its name included.
    pub arguments: u32,
    /// Bytes of one argument.
    pub argument_bytes: u32,
    /// Bytes of one whole command: what a connection may make the server hold before it can act.
    pub frame_bytes: u32,
}

impl Limits {
    /// A million arguments is what Redis allowed before 7.0. Keys have at most 512 bytes and numbers 20; 8 MiB is more than what any
    /// counter is restored from. 64 MiB is a full `MSET` of half a million counters with long names.
    pub const DEFAULT: Limits =
        Limits { arguments: 1024 * 1024, argument_bytes: 8 * 1024 * 1024, frame_bytes: 64 * 1024 * 1024 };
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::DEFAULT
    }
}

/// Bytes that are no command. The connection is answered with this text and closed: where the next command begins is
/// not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the texts say it")]
pub enum ProtocolError {
    #[error("Protocol error: invalid multibulk length")]
    InvalidMultibulkLength,
    #[error("Protocol error: unauthenticated multibulk length")]
    UnauthenticatedMultibulkLength,
    #[error("Protocol error: too big mbulk count string")]
    MultibulkCountTooLong,
    #[error("Protocol error: expected '$', got '{}'", char::from(*found))]
    ExpectedBulk { found: u8 },
    #[error("Protocol error: invalid bulk length")]
    InvalidBulkLength,
    #[error("Protocol error: unauthenticated bulk length")]
    UnauthenticatedBulkLength,
    #[error("Protocol error: too big bulk count string")]
    BulkCountTooLong,
    #[error("Protocol error: too big inline request")]
    InlineTooLong,
    #[error("Protocol error: unbalanced quotes in request")]
    UnbalancedQuotes,
    /// Ours: Redis closes such a connection without a word.
    #[error("Protocol error: too big request")]
    FrameTooBig,
}

/// How far an unfinished command has been read. All zero between commands.
#[derive(Debug, Default)]
struct Progress {
    /// The first byte not yet used, counted from the start of the command.
    position: usize,
    /// Bytes from `position` on that are known to hold no line end.
    searched: usize,
    /// Arguments still to come; 0 while the count has not been read.
    missing: u32,
}

/// Finds commands in the bytes of one connection.
#[derive(Debug, Default)]
pub struct Decoder {
    limits: Limits,
    /// Whether the tighter limits hold that protect memory from strangers.
    login_required: bool,
    progress: Progress,
    /// Arguments found of an unfinished command, counted from its start.
    partial: Vec<Span>,
}

impl Decoder {
    /// A decoder for a new connection.
    pub fn new(limits: Limits) -> Decoder {
        Decoder { limits, ..Decoder::default() }
    }

    /// Holds the connection to the limits before login, or lifts them. While a login is awaited, decode one command at a
    /// time: the one behind a pipelined `AUTH` has the rights that `AUTH` gives.
    pub fn require_login(&mut self, required: bool) {
        self.login_required = required;
    }

    /// Whether part of a command has arrived: at the end of a stream it was cut short.
    pub fn is_mid_command(&self) -> bool {
        self.progress.position > 0 || self.progress.searched > 0
    }

    /// Replaces the content of `pipeline` with the complete commands at the head of `buffer`, at most `max_commands`,
    /// and tells how many bytes they took.
    ///
    /// The next call must be given a buffer that begins with the first byte not taken. Words of hand-typed lines are
    /// unquoted where they stand, hence `&mut`. After an error `pipeline` holds the commands before it; they are
    /// answered first.
    pub fn decode(
        &mut self,
        buffer: &mut [u8],
        pipeline: &mut Pipeline,
        max_commands: usize,
    ) -> Result<usize, ProtocolError> {
        pipeline.clear();
        let visible = buffer.len().min(MAX_BUFFER_BYTES);
        let buffer = &mut buffer[..visible];
        let mut taken = 0;
        while taken < buffer.len() && pipeline.len() < max_commands {
            let found = if self.is_mid_command() {
                self.resume(&mut buffer[taken..], pipeline)
            } else {
                self.begin(&mut buffer[taken..], taken, pipeline)
            };
            match found? {
                Some(length) => taken += length,
                None => break,
            }
        }
        Ok(taken)
    }

    /// Reads a command from its first byte. Its arguments go straight into the pipeline, and move to `partial` in
    /// the one case that it is cut short.
    #[inline]
    fn begin(
        &mut self,
        frame: &mut [u8],
        offset: usize,
        pipeline: &mut Pipeline,
    ) -> Result<Option<usize>, ProtocolError> {
        let first_span = pipeline.spans.len();
        let found = self.scan(frame, offset, &mut pipeline.spans);
        if let Ok(Some(_)) = found {
            self.progress = Progress::default();
            pipeline.finish_command();
        } else {
            self.partial.extend(pipeline.spans.drain(first_span..).map(|span| span.counted_from(offset)));
        }
        found
    }

    /// Reads on in the command that an earlier call left unfinished; it is at the head of the buffer.
    #[cold]
    fn resume(&mut self, frame: &mut [u8], pipeline: &mut Pipeline) -> Result<Option<usize>, ProtocolError> {
        let mut partial = std::mem::take(&mut self.partial);
        let found = self.scan(frame, 0, &mut partial);
        if let Ok(Some(_)) = found {
            self.progress = Progress::default();
            pipeline.spans.append(&mut partial);
            pipeline.finish_command();
            partial.shrink_to(RETAINED_PARTIAL_SPANS);
        }
        self.partial = partial;
        found
    }

    /// Reads one command as far as it is there; `Some` is its length. Places are counted from `offset` bytes
    /// before the frame.
    #[inline]
    fn scan(
        &mut self,
        frame: &mut [u8],
        offset: usize,
        spans: &mut Vec<Span>,
    ) -> Result<Option<usize>, ProtocolError> {
        match frame.first() {
            Some(b'*') => self.scan_multibulk(frame, offset, spans),
            Some(_) => self.scan_line(frame, offset, spans),
            None => Ok(None),
        }
    }

    #[inline]
    fn scan_multibulk(
        &mut self,
        frame: &[u8],
        offset: usize,
        spans: &mut Vec<Span>,
    ) -> Result<Option<usize>, ProtocolError> {
        let Progress { mut position, mut missing, .. } = self.progress;
        if missing == 0 {
            let Some((count, next)) = self.argument_count(frame)? else { return Ok(None) };
            (position, missing) = (next, count);
            self.progress.searched = 0;
        }
        while missing > 0 {
            // Nothing of an argument is remembered before all of it is there: its header is short and read again.
            let Some((start, end)) = self.argument(frame, position)? else {
                self.progress.position = position;
                self.progress.missing = missing;
                return Ok(None);
            };
            spans.push(Span::new(offset + start, offset + end));
            self.progress.searched = 0;
            missing -= 1;
            position = end + LINE_END_BYTES;
        }
        Ok(Some(position))
    }

    /// Reads `*<count>\r\n` at the head of the frame: the count and the place after it.
    #[inline]
    fn argument_count(&mut self, frame: &[u8]) -> Result<Option<(u32, usize)>, ProtocolError> {
        let (count, next) = match short_length(frame, 0, b'*') {
            Some(found) => found,
            None => {
                let Some((line, next)) = self.line(frame, 0, ProtocolError::MultibulkCountTooLong)? else {
                    return Ok(None);
                };
                let count = parse_i64(&line[1..]).ok_or(ProtocolError::InvalidMultibulkLength)?;
                (u32::try_from(count.max(0)).unwrap_or(u32::MAX), next)
            }
        };
        if count > self.limits.arguments {
            return Err(ProtocolError::InvalidMultibulkLength);
        }
        if self.login_required && count > MAX_ARGUMENTS_BEFORE_LOGIN {
            return Err(ProtocolError::UnauthenticatedMultibulkLength);
        }
        Ok(Some((count, next)))
    }

    /// Reads `$<length>\r\n<argument>\r\n` at `position`: where the argument lies, if all of it is there. The last two
    /// bytes are counted but, as in Redis, not looked at.
    #[inline]
    fn argument(&mut self, frame: &[u8], position: usize) -> Result<Option<(usize, usize)>, ProtocolError> {
        let (length, start) = match short_length(frame, position, b'$') {
            Some(found) => found,
            None => match self.odd_length(frame, position)? {
                Some(found) => found,
                None => return Ok(None),
            },
        };
        if length > self.limits.argument_bytes {
            return Err(ProtocolError::InvalidBulkLength);
        }
        if self.login_required && length > MAX_ARGUMENT_BYTES_BEFORE_LOGIN {
            return Err(ProtocolError::UnauthenticatedBulkLength);
        }
        let end = start + length as usize;
        if end + LINE_END_BYTES > self.limits.frame_bytes as usize {
            return Err(ProtocolError::FrameTooBig);
        }
        Ok((end + LINE_END_BYTES <= frame.len()).then_some((start, end)))
    }

    /// The header of an argument when it is incomplete, wrong, or written in a way that only just passes.
    #[cold]
    fn odd_length(&mut self, frame: &[u8], position: usize) -> Result<Option<(u32, usize)>, ProtocolError> {
        let Some((line, next)) = self.line(frame, position, ProtocolError::BulkCountTooLong)? else {
            return Ok(None);
        };
        let [b'$', digits @ ..] = line else {
            return Err(ProtocolError::ExpectedBulk { found: frame[position] });
        };
        let length = parse_i64(digits).and_then(|length| u32::try_from(length).ok());
        Ok(Some((length.ok_or(ProtocolError::InvalidBulkLength)?, next)))
    }

    /// The line at `position` up to its `\r`, and the place after the byte that follows.
    #[cold]
    fn line<'f>(
        &mut self,
        frame: &'f [u8],
        position: usize,
        too_long: ProtocolError,
    ) -> Result<Option<(&'f [u8], usize)>, ProtocolError> {
        let rest = frame.get(position..).unwrap_or_default();
        let Some(length) = self.find_line_end(b'\r', rest, too_long)? else { return Ok(None) };
        Ok((length + LINE_END_BYTES <= rest.len())
            .then(|| (&rest[..length], position + length + LINE_END_BYTES)))
    }

    #[cold]
    fn scan_line(
        &mut self,
        frame: &mut [u8],
        offset: usize,
        spans: &mut Vec<Span>,
    ) -> Result<Option<usize>, ProtocolError> {
        let Some(end) = self.find_line_end(b'\n', frame, ProtocolError::InlineTooLong)? else {
            return Ok(None);
        };
        let line = &mut frame[..end];
        let length = line.strip_suffix(b"\r").map_or(end, <[u8]>::len);
        inline::split(&mut line[..length], |word| {
            spans.push(Span::new(offset + word.start, offset + word.end))
        })
        .map_err(|inline::UnbalancedQuotes| ProtocolError::UnbalancedQuotes)?;
        Ok(Some(end + 1))
    }

    /// Looks for `mark` where no earlier call has looked. A line that is too long is refused when its first byte too
    /// many is there, whether or not its end is there as well.
    fn find_line_end(
        &mut self,
        mark: u8,
        rest: &[u8],
        too_long: ProtocolError,
    ) -> Result<Option<usize>, ProtocolError> {
        let visible = &rest[..rest.len().min(MAX_LINE_BYTES + 1)];
        let from = self.progress.searched.min(visible.len());
        if let Some(found) = memchr::memchr(mark, &visible[from..]) {
            self.progress.searched = from + found;
            return Ok(Some(from + found));
        }
        self.progress.searched = visible.len();
        if visible.len() > MAX_LINE_BYTES { Err(too_long) } else { Ok(None) }
    }
}

/// Reads `<mark><digits>\r\n` at `position` in its usual form: the number and the place after it. `None` says nothing
/// about the line; the slow path judges it.
#[inline(always)]
fn short_length(frame: &[u8], position: usize, mark: u8) -> Option<(u32, usize)> {
    let [first, digits @ ..] = frame.get(position..)? else { return None };
    if *first != mark {
        return None;
    }
    let mut number = 0;
    for (count, &byte) in digits.iter().take(MAX_SHORT_DIGITS + 1).enumerate() {
        let digit = byte.wrapping_sub(b'0');
        if digit <= 9 {
            number = number * 10 + u32::from(digit);
            continue;
        }
        let is_canonical = count == 1 || (count > 1 && digits[0] != b'0');
        let is_line = byte == b'\r' && count + 1 < digits.len();
        return (is_canonical && is_line).then_some((number, position + 1 + count + LINE_END_BYTES));
    }
    None
}

/// Feeds arbitrary bytes, whole and in small pieces. For fuzzing: it must never panic, so all ways must agree.
pub fn fuzz_decode(data: &[u8]) {
    let limits = Limits { arguments: 64, argument_bytes: 256, frame_bytes: 1024 };
    let whole = decode_in_pieces(data, limits, data.len().max(1));
    for piece_bytes in [1, 2, 3, 5] {
        let pieces = decode_in_pieces(data, limits, piece_bytes);
        assert_eq!(whole, pieces, "pieces of {piece_bytes} bytes changed the meaning");
    }
}

/// Every command of `data` when it arrives in pieces of `piece_bytes`, and the error that ended them.
fn decode_in_pieces(
    data: &[u8],
    limits: Limits,
    piece_bytes: usize,
) -> (Vec<Vec<Vec<u8>>>, Option<ProtocolError>) {
    let mut decoder = Decoder::new(limits);
    let (mut pipeline, mut buffer, mut commands) = (Pipeline::new(), Vec::new(), Vec::new());
    for piece in data.chunks(piece_bytes) {
        buffer.extend_from_slice(piece);
        let taken = decoder.decode(&mut buffer, &mut pipeline, usize::MAX);
        for arguments in pipeline.commands(&buffer) {
            commands.push(arguments.iter().map(<[u8]>::to_vec).collect());
        }
        match taken {
            Ok(taken) => drop(buffer.drain(..taken)),
            Err(error) => return (commands, Some(error)),
        }
    }
    (commands, None)
}

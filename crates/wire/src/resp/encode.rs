//! Replies, appended to an output buffer in the protocol the connection speaks; and commands, as a client writes them.
//!
//! ```text
//!   what       RESP2               RESP3
//!   simple     +OK\r\n             the same        error   -ERR text\r\n      the same
//!   integer    :7\r\n              the same        bulk    $3\r\nabc\r\n      the same
//!   array      *2\r\n ...          the same
//!   null       $-1\r\n or *-1\r\n  _\r\n
//!   map        *4\r\n k v k v      %2\r\n k v k v
//!   set, push  *2\r\n ...          ~2\r\n ...      >2\r\n ...
//!   double     $3\r\n1.5\r\n       ,1.5\r\n
//!   boolean    :1\r\n              #t\r\n
//!   verbatim   $4\r\ntext\r\n      =8\r\ntxt:text\r\n
//! ```
//!
//! Headers of arrays and maps are written before their elements; the caller writes as many as it announced.

use super::{Protocol, ProtocolError};

/// Writes replies to `out`.
#[derive(Debug)]
pub struct Encoder<'a> {
    /// Where replies are appended.
    pub out: &'a mut Vec<u8>,
    /// What the connection has agreed to understand.
    pub protocol: Protocol,
}

impl<'a> Encoder<'a> {
    /// An encoder that appends to `out`.
    #[inline]
    pub fn new(out: &'a mut Vec<u8>, protocol: Protocol) -> Encoder<'a> {
        Encoder { out, protocol }
    }

    /// `+OK`.
    #[inline]
    pub fn ok(&mut self) {
        self.out.extend_from_slice(b"+OK\r\n");
    }

    /// A short text of ours. Line ends, which would break the frame, become blanks.
    pub fn simple(&mut self, text: impl AsRef<[u8]>) {
        self.text_line(b'+', text.as_ref());
    }

    /// An error; `text` begins with its code, as in `ERR syntax error`. Line ends become blanks.
    pub fn error(&mut self, text: impl AsRef<[u8]>) {
        self.text_line(b'-', text.as_ref());
    }

    /// The error a connection hears before it is closed.
    pub fn protocol_error(&mut self, error: ProtocolError) {
        match error {
            // The byte as it is, which need not be text.
            ProtocolError::ExpectedBulk { found } => {
                self.error([b"ERR Protocol error: expected '$', got '", &[found][..], b"'"].concat());
            }
            error => self.error(format!("ERR {error}")),
        }
    }

    /// A number.
    #[inline]
    pub fn integer(&mut self, number: i64) {
        self.number_line(b':', number);
    }

    /// Bytes of any kind.
    #[inline]
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.header(b'$', bytes.len());
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    /// A number as text, as `GET` gives it.
    #[inline]
    pub fn bulk_integer(&mut self, number: i64) {
        self.bulk(itoa::Buffer::new().format(number).as_bytes());
    }

    /// Nothing, where a value was asked for.
    #[inline]
    pub fn null(&mut self) {
        self.out.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// Nothing, where a list was asked for; `EXEC` of a transaction that was not run.
    pub fn null_array(&mut self) {
        self.out.extend_from_slice(match self.protocol {
            Protocol::Resp2 => b"*-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// Announces `count` elements.
    #[inline]
    pub fn array(&mut self, count: usize) {
        self.header(b'*', count);
    }

    /// Announces `count` pairs: twice as many elements.
    pub fn map(&mut self, count: usize) {
        match self.protocol {
            Protocol::Resp2 => self.header(b'*', count * 2),
            Protocol::Resp3 => self.header(b'%', count),
        }
    }

    /// Announces `count` elements without order.
    pub fn set(&mut self, count: usize) {
        self.header(if self.protocol == Protocol::Resp3 { b'~' } else { b'*' }, count);
    }

    /// Announces `count` elements of a message nobody asked for.
    pub fn push(&mut self, count: usize) {
        self.header(if self.protocol == Protocol::Resp3 { b'>' } else { b'*' }, count);
    }

    /// A real number, in the shortest spelling that reads back the same.
    pub fn double(&mut self, number: f64) {
        let text = spell_double(number);
        match self.protocol {
            Protocol::Resp2 => self.bulk(text.as_bytes()),
            Protocol::Resp3 => self.text_line(b',', text.as_bytes()),
        }
    }

    /// Yes or no.
    pub fn boolean(&mut self, value: bool) {
        self.out.extend_from_slice(match (self.protocol, value) {
            (Protocol::Resp2, false) => b":0\r\n",
            (Protocol::Resp2, true) => b":1\r\n",
            (Protocol::Resp3, false) => b"#f\r\n",
            (Protocol::Resp3, true) => b"#t\r\n",
        });
    }

    /// An integer that may exceed 64 bits, as sums over many counters do.
    pub fn big_number(&mut self, number: i128) {
        let mut buffer = itoa::Buffer::new();
        let digits = buffer.format(number).as_bytes();
        match self.protocol {
            Protocol::Resp2 => self.bulk(digits),
            Protocol::Resp3 => self.text_line(b'(', digits),
        }
    }

    /// Text for people, to be shown as it stands: `INFO`. The format is `txt` or `mkd`.
    pub fn verbatim(&mut self, format: &[u8; 3], text: &[u8]) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(text),
            Protocol::Resp3 => {
                self.header(b'=', format.len() + 1 + text.len());
                self.out.extend_from_slice(format);
                self.out.push(b':');
                self.out.extend_from_slice(text);
                self.out.extend_from_slice(b"\r\n");
            }
        }
    }

    #[inline]
    fn header(&mut self, mark: u8, count: usize) {
        write_header(self.out, mark, count);
    }

    #[inline]
    fn number_line(&mut self, mark: u8, number: i64) {
        self.out.push(mark);
        self.out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
        self.out.extend_from_slice(b"\r\n");
    }

    fn text_line(&mut self, mark: u8, text: &[u8]) {
        self.out.push(mark);
        let start = self.out.len();
        self.out.extend_from_slice(text);
        for byte in &mut self.out[start..] {
            if matches!(byte, b'\r' | b'\n') {
                *byte = b' ';
            }
        }
        self.out.extend_from_slice(b"\r\n");
    }
}

/// Appends one command as clients send it: an array of bulk strings.
pub fn encode_command(out: &mut Vec<u8>, arguments: &[&[u8]]) {
    write_header(out, b'*', arguments.len());
    for argument in arguments {
        write_header(out, b'$', argument.len());
        out.extend_from_slice(argument);
        out.extend_from_slice(b"\r\n");
    }
}

#[inline]
fn write_header(out: &mut Vec<u8>, mark: u8, count: usize) {
    out.push(mark);
    out.extend_from_slice(itoa::Buffer::new().format(count).as_bytes());
    out.extend_from_slice(b"\r\n");
}

fn spell_double(number: f64) -> String {
    let magnitude = number.abs();
    if number.is_nan() {
        "nan".into()
    } else if number.is_infinite() {
        if number > 0.0 { "inf".into() } else { "-inf".into() }
    } else if magnitude != 0.0 && !(1e-5..1e17).contains(&magnitude) {
        format!("{number:e}")
    } else {
        format!("{number}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Write = fn(&mut Encoder<'_>);

    #[test]
    fn every_reply_in_both_protocols() {
        let cases: &[(Write, &str, &str)] = &[
            (|e| e.ok(), "+OK\r\n", "+OK\r\n"),
            (|e| e.simple("PONG"), "+PONG\r\n", "+PONG\r\n"),
            (|e| e.simple(b"a\r\nb"), "+a  b\r\n", "+a  b\r\n"),
            (|e| e.error("ERR a\nb"), "-ERR a b\r\n", "-ERR a b\r\n"),
            (|e| e.integer(0), ":0\r\n", ":0\r\n"),
            (|e| e.integer(i64::MIN), ":-9223372036854775808\r\n", ":-9223372036854775808\r\n"),
            (|e| e.bulk(b""), "$0\r\n\r\n", "$0\r\n\r\n"),
            (|e| e.bulk(b"a\r\nb"), "$4\r\na\r\nb\r\n", "$4\r\na\r\nb\r\n"),
            (|e| e.bulk_integer(-12), "$3\r\n-12\r\n", "$3\r\n-12\r\n"),
            (|e| e.null(), "$-1\r\n", "_\r\n"),
            (|e| e.null_array(), "*-1\r\n", "_\r\n"),
            (|e| e.array(0), "*0\r\n", "*0\r\n"),
            (|e| e.array(12), "*12\r\n", "*12\r\n"),
            (|e| e.map(2), "*4\r\n", "%2\r\n"),
            (|e| e.set(2), "*2\r\n", "~2\r\n"),
            (|e| e.push(3), "*3\r\n", ">3\r\n"),
            (|e| e.double(1.5), "$3\r\n1.5\r\n", ",1.5\r\n"),
            (|e| e.double(0.0), "$1\r\n0\r\n", ",0\r\n"),
            (|e| e.double(1e300), "$5\r\n1e300\r\n", ",1e300\r\n"),
            (|e| e.double(-f64::INFINITY), "$4\r\n-inf\r\n", ",-inf\r\n"),
            (|e| e.boolean(true), ":1\r\n", "#t\r\n"),
            (|e| e.boolean(false), ":0\r\n", "#f\r\n"),
            (|e| e.big_number(1 << 70), "$22\r\n1180591620717411303424\r\n", "(1180591620717411303424\r\n"),
            (|e| e.verbatim(b"txt", b"hi\r\n"), "$4\r\nhi\r\n\r\n", "=8\r\ntxt:hi\r\n\r\n"),
            (
                |e| e.protocol_error(ProtocolError::ExpectedBulk { found: b'\r' }),
                "-ERR Protocol error: expected '$', got ' '\r\n",
                "-ERR Protocol error: expected '$', got ' '\r\n",
            ),
        ];
        for (index, (write, resp2, resp3)) in cases.iter().enumerate() {
            for (protocol, expected) in [(Protocol::Resp2, resp2), (Protocol::Resp3, resp3)] {
                let mut out = b"before".to_vec();
                write(&mut Encoder::new(&mut out, protocol));
                assert_eq!(
                    String::from_utf8_lossy(&out),
                    format!("before{expected}"),
                    "case {index} {protocol:?}"
                );
            }
        }
    }

    #[test]
    fn commands() {
        let mut out = Vec::new();
        encode_command(&mut out, &[b"INCRBY", b"a b", b""]);
        assert_eq!(out, b"*3\r\n$6\r\nINCRBY\r\n$3\r\na b\r\n$0\r\n\r\n");
    }
}

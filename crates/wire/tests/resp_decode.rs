//! Commands from bytes: literal frames, every way to split them, and the limits.

#![allow(clippy::unwrap_used, reason = "what a test cannot go on without")]

use proptest::prelude::*;
use quipu_wire::resp::decode::{MAX_LINE_BYTES, fuzz_decode};
use quipu_wire::resp::{Decoder, Limits, Pipeline, ProtocolError, encode_command};

type Command = Vec<Vec<u8>>;

/// What becomes of bytes that arrive in the given pieces: commands, the error that ended them, and bytes left over.
fn decode<'p>(
    decoder: &mut Decoder,
    pieces: impl IntoIterator<Item = &'p [u8]>,
) -> (Vec<Command>, Option<ProtocolError>, usize) {
    let (mut pipeline, mut buffer, mut commands) = (Pipeline::new(), Vec::new(), Vec::new());
    for piece in pieces {
        buffer.extend_from_slice(piece);
        let taken = decoder.decode(&mut buffer, &mut pipeline, usize::MAX);
        for arguments in pipeline.commands(&buffer) {
            commands.push(arguments.iter().map(<[u8]>::to_vec).collect());
        }
        match taken {
            Ok(taken) => drop(buffer.drain(..taken)),
            Err(error) => return (commands, Some(error), buffer.len()),
        }
    }
    (commands, None, buffer.len())
}

fn command(words: &[&str]) -> Command {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

/// Bytes sent at once, the commands in them, the error after those, and how many bytes are left over.
type Case = (&'static [u8], &'static [&'static [&'static str]], Option<ProtocolError>, usize);

#[test]
fn literal_bytes() {
    use ProtocolError::*;
    let cases: &[Case] = &[
        (b"", &[], None, 0),
        (b"*1\r\n$4\r\nPING\r\n", &[&["PING"]], None, 0),
        (b"*2\r\n$4\r\nINCR\r\n$14\r\ncounter:123456\r\n", &[&["INCR", "counter:123456"]], None, 0),
        (b"*2\r\n$0\r\n\r\n$4\r\n\r\n\r\n\r\n", &[&["", "\r\n\r\n"]], None, 0),
        (b"PING\r\n", &[&["PING"]], None, 0),
        (b"PING\nPING\n", &[&["PING"], &["PING"]], None, 0),
        (b"set a \"b c\\x21\"\r\n", &[&["set", "a", "b c!"]], None, 0),
        (b"echo ''\r\n*1\r\n$1\r\na\r\nb\r\n", &[&["echo", ""], &["a"], &["b"]], None, 0),
        // Nothing is skipped silently, and then the next command is found.
        (b"*0\r\n*-1\r\n*-7\r\n\r\n\n \t\r\nPING\r\n", &[&["PING"]], None, 0),
        // Incomplete: all bytes of the unfinished command stay.
        (b"*", &[], None, 1),
        (b"*1\r\n$4\r\nPING\r", &[], None, 13),
        (b"PING\r\n*1\r\n$4\r\nPI", &[&["PING"]], None, 10),
        (b"PING", &[], None, 4),
        // Redis does not look at the byte after \r, nor at the two after an argument.
        (b"*1\rX$4\rXPINGxxPING\r\n", &[&["PING"], &["PING"]], None, 0),
        (b"*1\n$4\nPING\n", &[], None, 11),
        // Commands before an error are kept.
        (b"PING\r\n*x\r\n", &[&["PING"]], Some(InvalidMultibulkLength), 10),
        (b"*\r\n", &[], Some(InvalidMultibulkLength), 3),
        (b"*01\r\n", &[], Some(InvalidMultibulkLength), 5),
        (b"*+1\r\n", &[], Some(InvalidMultibulkLength), 5),
        (b"*-0\r\n", &[], Some(InvalidMultibulkLength), 5),
        (b"*1048577\r\n", &[], Some(InvalidMultibulkLength), 10),
        (b"*4294967297\r\n", &[], Some(InvalidMultibulkLength), 13),
        (b"*9223372036854775807\r\n", &[], Some(InvalidMultibulkLength), 22),
        (b"*99999999999999999999\r\n", &[], Some(InvalidMultibulkLength), 23),
        (b"*1\r\nx4\r\n", &[], Some(ExpectedBulk { found: b'x' }), 8),
        (b"*1\r\n\r\n", &[], Some(ExpectedBulk { found: b'\r' }), 6),
        (b"*2\r\n$1\r\na\r\n:1\r\n", &[], Some(ExpectedBulk { found: b':' }), 15),
        (b"*1\r\nx", &[], None, 5),
        // A line shorter than the one before it, whose end is not where the search for that one stopped.
        (b"*2\r\n$10\r\n0123456789\r\nx\r\n", &[], Some(ExpectedBulk { found: b'x' }), 24),
        (b"*1\r\n$-1\r\n", &[], Some(InvalidBulkLength), 9),
        (b"*1\r\n$\r\n", &[], Some(InvalidBulkLength), 7),
        (b"*1\r\n$04\r\n", &[], Some(InvalidBulkLength), 9),
        (b"*1\r\n$8388609\r\n", &[], Some(InvalidBulkLength), 14),
        (b"*1\r\n$4294967296\r\n", &[], Some(InvalidBulkLength), 17),
        (b"*1\r\n$9223372036854775807\r\n", &[], Some(InvalidBulkLength), 26),
        (b"a \"b\r\n", &[], Some(UnbalancedQuotes), 6),
    ];
    for (bytes, commands, error, left) in cases {
        let expected = (commands.iter().map(|words| command(words)).collect(), *error, *left);
        let found = decode(&mut Decoder::default(), [*bytes]);
        assert_eq!(found, expected, "{}", bytes.escape_ascii());
        for split in 0..bytes.len() {
            let (commands, error, _) = decode(&mut Decoder::default(), [&bytes[..split], &bytes[split..]]);
            assert_eq!(
                (&commands, error),
                (&expected.0, expected.1),
                "{} split at {split}",
                bytes.escape_ascii()
            );
        }
        fuzz_decode(bytes);
    }
}

#[test]
fn every_split_of_a_pipeline() {
    let bytes: &[u8] = b"*2\r\n$4\r\nINCR\r\n$14\r\ncounter:123456\r\n*0\r\nset a \"b\\n\"\r\n\r\n*1\rX$4\r\nPING\r\nget k\n";
    let whole = decode(&mut Decoder::default(), [bytes]);
    assert_eq!(whole.0.len(), 4);
    assert_eq!(whole.2, 0);
    for first in 0..=bytes.len() {
        for second in first..=bytes.len() {
            let pieces = [&bytes[..first], &bytes[first..second], &bytes[second..]];
            assert_eq!(decode(&mut Decoder::default(), pieces), whole, "split at {first} and {second}");
        }
    }
    assert_eq!(decode(&mut Decoder::default(), bytes.chunks(1)), whole);
}

#[test]
fn lines_are_limited_wherever_their_end_is() {
    use ProtocolError::*;
    let long = |start: &[u8], filler: u8, length: usize, end: &[u8]| {
        let mut bytes = start.to_vec();
        bytes.resize(start.len() + length, filler);
        bytes.extend_from_slice(end);
        bytes
    };
    let cases = [
        (long(b"", b'a', MAX_LINE_BYTES, b"\n"), None),
        (long(b"", b'a', MAX_LINE_BYTES, b""), None),
        (long(b"", b'a', MAX_LINE_BYTES + 1, b""), Some(InlineTooLong)),
        (long(b"", b'a', MAX_LINE_BYTES + 1, b"\n"), Some(InlineTooLong)),
        (long(b"*", b'1', MAX_LINE_BYTES - 1, b""), None),
        (long(b"*", b'1', MAX_LINE_BYTES - 1, b"\r\n"), Some(InvalidMultibulkLength)),
        (long(b"*", b'1', MAX_LINE_BYTES, b""), Some(MultibulkCountTooLong)),
        (long(b"*", b'1', MAX_LINE_BYTES, b"\r\n"), Some(MultibulkCountTooLong)),
        (long(b"*1\r\n$", b'1', MAX_LINE_BYTES - 1, b""), None),
        (long(b"*1\r\n$", b'1', MAX_LINE_BYTES, b"\r\n"), Some(BulkCountTooLong)),
        (long(b"*1\r\n", b'x', MAX_LINE_BYTES + 1, b""), Some(BulkCountTooLong)),
    ];
    for (bytes, expected) in cases {
        for piece_bytes in [bytes.len(), 4096, 1] {
            let (_, error, _) = decode(&mut Decoder::default(), bytes.chunks(piece_bytes));
            assert_eq!(error, expected, "{} bytes in pieces of {piece_bytes}", bytes.len());
        }
    }
}

#[test]
fn a_frame_is_limited_as_a_whole() {
    let limits = Limits { arguments: 8, argument_bytes: 10, frame_bytes: 40 };
    let cases: &[(&[u8], Option<ProtocolError>)] = &[
        (b"*2\r\n$10\r\n0123456789\r\n$9\r\n012345678\r\n", None),
        (b"*2\r\n$10\r\n0123456789\r\n$10\r\n0123456789\r\n", None), // 38 bytes
        (b"*3\r\n$10\r\n0123456789\r\n$5\r\n01234\r\n$5\r\n", Some(ProtocolError::FrameTooBig)),
        (b"*1\r\n$11\r\n", Some(ProtocolError::InvalidBulkLength)),
        (b"*9\r\n", Some(ProtocolError::InvalidMultibulkLength)),
    ];
    for (bytes, expected) in cases {
        let (_, error, _) = decode(&mut Decoder::new(limits), [*bytes]);
        assert_eq!(error, *expected, "{}", bytes.escape_ascii());
    }
}

#[test]
fn strangers_get_less_until_they_log_in() {
    use ProtocolError::*;
    let cases: &[(&[u8], Option<ProtocolError>)] = &[
        (b"*10\r\n", None),
        (b"*11\r\n", Some(UnauthenticatedMultibulkLength)),
        (b"*1\r\n$16384\r\n", None),
        (b"*1\r\n$16385\r\n", Some(UnauthenticatedBulkLength)),
    ];
    for (bytes, expected) in cases {
        let mut decoder = Decoder::default();
        decoder.require_login(true);
        assert_eq!(decode(&mut decoder, [*bytes]).1, *expected, "{}", bytes.escape_ascii());
        assert_eq!(decode(&mut Decoder::default(), [*bytes]).1, None, "{}", bytes.escape_ascii());
    }
}

/// One at a time, the limits can change between two commands of one read.
#[test]
fn at_most_so_many_commands() {
    let mut buffer = b"AUTH secret\r\n*11\r\n".to_vec();
    (0..11).for_each(|_| buffer.extend_from_slice(b"$1\r\na\r\n"));
    let (mut decoder, mut pipeline) = (Decoder::default(), Pipeline::new());
    decoder.require_login(true);
    assert_eq!(decoder.decode(&mut buffer, &mut pipeline, 1), Ok(13));
    assert_eq!(pipeline.len(), 1);
    decoder.require_login(false);
    let rest = buffer.len() - 13;
    assert_eq!(decoder.decode(&mut buffer[13..], &mut pipeline, 1), Ok(rest));
    assert_eq!(pipeline.commands(&buffer[13..]).next().map(|arguments| arguments.len()), Some(11));
    assert_eq!(decoder.decode(&mut buffer, &mut pipeline, 0), Ok(0));
    assert!(pipeline.is_empty());
}

#[test]
fn arguments_are_taken_apart() {
    let mut buffer = b"Q.ADD key 5 ID x\r\n".to_vec();
    let (mut decoder, mut pipeline) = (Decoder::default(), Pipeline::new());
    decoder.decode(&mut buffer, &mut pipeline, 9).unwrap();
    let arguments = pipeline.commands(&buffer).next().unwrap();
    assert_eq!(arguments.name(), b"Q.ADD");
    assert_eq!(arguments.first(), Some([&b"Q.ADD"[..], b"key", b"5"]));
    assert_eq!(arguments.first::<6>(), None);
    assert_eq!(arguments.get(4), Some(&b"x"[..]));
    assert_eq!(arguments.get(5), None);
    assert_eq!(arguments.tail(3).iter().collect::<Vec<_>>(), [b"ID".as_slice(), b"x"]);
    assert!(arguments.tail(9).is_empty());
}

/// Four million calls on one growing command. Were each to begin at its start, this would take days.
#[test]
fn a_large_command_byte_by_byte_is_read_once() {
    let keys: Vec<String> = (0..100_000).map(|number| format!("counter:{number:08}:requests")).collect();
    let mut arguments: Vec<&[u8]> = vec![b"MSET"];
    arguments.extend(keys.iter().flat_map(|key| [key.as_bytes(), b"1"]));
    let mut bytes = Vec::new();
    encode_command(&mut bytes, &arguments);
    let (mut decoder, mut pipeline) = (Decoder::default(), Pipeline::new());
    for length in 1..bytes.len() {
        assert_eq!(decoder.decode(&mut bytes[..length], &mut pipeline, 1), Ok(0));
        assert!(pipeline.is_empty() && decoder.is_mid_command());
    }
    let length = bytes.len();
    assert_eq!(decoder.decode(&mut bytes, &mut pipeline, 1), Ok(length));
    assert!(!decoder.is_mid_command());
    assert!(pipeline.commands(&bytes).next().unwrap().iter().eq(arguments));
}

fn any_commands() -> impl Strategy<Value = Vec<Command>> {
    let argument = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..24),
        "[*$0-9\r\n]{0,12}".prop_map(String::into_bytes),
        prop::collection::vec(any::<u8>(), 900..1100),
    ];
    prop::collection::vec(prop::collection::vec(argument, 1..6), 0..8)
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(commands in any_commands(), cuts in prop::collection::vec(1usize..80, 1..40)) {
        let mut bytes = Vec::new();
        for command in &commands {
            let arguments: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
            encode_command(&mut bytes, &arguments);
        }
        let (mut rest, mut pieces) = (bytes.as_slice(), Vec::new());
        for cut in cuts.iter().cycle() {
            let (piece, after) = rest.split_at(rest.len().min(*cut));
            pieces.push(piece);
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(decode(&mut Decoder::default(), pieces), (commands, None, 0));
    }

    #[test]
    fn bytes_that_look_like_the_protocol(text in "([*$]-?[0-3]{0,2}|\r\n|\n|PING|[ab '\"\\\\x]){0,40}") {
        fuzz_decode(text.as_bytes());
    }

    #[test]
    fn bytes_of_any_kind(bytes: Vec<u8>) {
        fuzz_decode(&bytes);
    }
}

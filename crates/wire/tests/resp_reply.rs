//! Replies read back from literal bytes, from every split, and from what our own encoder writes.

#![allow(clippy::unwrap_used, reason = "what a test cannot go on without")]

use proptest::prelude::*;
use quipu_wire::resp::reply::{MAX_DEPTH, ReplyScanner};
use quipu_wire::resp::{Encoder, Protocol, ReplyDecoder, ReplyError, Value, skip_reply};

fn bulk(text: &str) -> Value {
    Value::Bulk(text.into())
}

#[test]
fn literal_bytes() {
    use Value::*;
    let cases: &[(&[u8], Value)] = &[
        (b"+OK\r\n", Simple(b"OK".into())),
        (b"+\r\n", Simple(b"".into())),
        (b"-ERR no\r\n", Error(b"ERR no".into())),
        (b"!6\r\nERR\r\nx\r\n", Error(b"ERR\r\nx".into())),
        (b":-7\r\n", Integer(-7)),
        (b"$5\r\na\r\nbc\r\n", bulk("a\r\nbc")),
        (b"$0\r\n\r\n", bulk("")),
        (b"$-1\r\n", Null),
        (b"*-1\r\n", Null),
        (b"_\r\n", Null),
        (b"*0\r\n", Array(vec![])),
        (b"*2\r\n:1\r\n*1\r\n$1\r\na\r\n", Array(vec![Integer(1), Array(vec![bulk("a")])])),
        (b"*2\r\n*0\r\n$-1\r\n", Array(vec![Array(vec![]), Null])),
        (b"%1\r\n+a\r\n:1\r\n", Map(vec![(Simple(b"a".into()), Integer(1))])),
        (b"~1\r\n#t\r\n", Set(vec![Boolean(true)])),
        (b">2\r\n+x\r\n#f\r\n", Push(vec![Simple(b"x".into()), Boolean(false)])),
        (b",1.5\r\n", Double(1.5)),
        (b",-inf\r\n", Double(f64::NEG_INFINITY)),
        (b",1e300\r\n", Double(1e300)),
        (b"(1180591620717411303424\r\n", BigNumber(b"1180591620717411303424".into())),
        (b"=8\r\ntxt:a\r\nb\r\n", Verbatim { format: *b"txt", text: b"a\r\nb".into() }),
        // Attributes describe the value after them and are dropped.
        (b"|1\r\n+ttl\r\n:9\r\n:5\r\n", Integer(5)),
        (b"*2\r\n|1\r\n+ttl\r\n*1\r\n:9\r\n:5\r\n:6\r\n", Array(vec![Integer(5), Integer(6)])),
    ];
    for (bytes, expected) in cases {
        let shown = bytes.escape_ascii();
        let followed = [*bytes, b"+NEXT\r\n"].concat();
        assert_eq!(skip_reply(&followed), Ok(Some(bytes.len())), "{shown}");
        let (mut decoder, mut scanner) = (ReplyDecoder::new(), ReplyScanner::default());
        for length in 0..bytes.len() {
            assert_eq!(skip_reply(&bytes[..length]), Ok(None), "{shown} up to {length}");
            assert_eq!(scanner.scan(&bytes[..length]), Ok(None), "{shown} up to {length}");
            assert_eq!(decoder.decode(&bytes[..length]), Ok(None), "{shown} up to {length}");
        }
        assert_eq!(scanner.scan(&followed), Ok(Some(bytes.len())), "{shown}");
        assert_eq!(decoder.decode(&followed), Ok(Some((expected.clone(), bytes.len()))), "{shown}");
        // Both are ready for the next reply.
        assert_eq!(scanner.scan(&followed[bytes.len()..]), Ok(Some(7)), "{shown}");
        assert_eq!(decoder.decode(b":1\r\n"), Ok(Some((Integer(1), 4))), "{shown}");
    }
}

#[test]
fn malformed() {
    use ReplyError::*;
    let deep = |levels: usize| [b"*1\r\n".repeat(levels), b":1\r\n".to_vec()].concat();
    let cases: Vec<(Vec<u8>, ReplyError)> = vec![
        (b"x\r\n".to_vec(), UnknownType(b'x')),
        (b"\r\n".to_vec(), MissingLineEnd),
        (b"+a\n".to_vec(), MissingLineEnd),
        (b"$1\r\nab\r\n".to_vec(), MissingLineEnd),
        (b"$x\r\n".to_vec(), InvalidNumber),
        (b"$-2\r\n".to_vec(), InvalidNumber),
        (b"*01\r\n".to_vec(), InvalidNumber),
        (b":1x\r\n".to_vec(), InvalidNumber),
        (b"#x\r\n".to_vec(), InvalidNumber),
        (b",one\r\n".to_vec(), InvalidNumber),
        (b"=2\r\nab\r\n".to_vec(), InvalidNumber),
        (b"$?\r\n".to_vec(), InvalidNumber),
        (b"$536870913\r\n".to_vec(), TooLong),
        (b"*9223372036854775807\r\n".to_vec(), TooLong),
        (b"*500000000\r\n".to_vec(), TooLong),
        (b"*100000000\r\n*100000000\r\n".to_vec(), TooLong),
        (vec![b'+'; 70_000], TooLong),
        (deep(MAX_DEPTH), TooDeep),
        (deep(1_000_000), TooDeep),
    ];
    for (bytes, expected) in cases {
        let shown = bytes[..bytes.len().min(40)].escape_ascii().to_string();
        assert_eq!(ReplyDecoder::new().decode(&bytes), Err(expected), "{shown}");
    }
    assert!(matches!(ReplyDecoder::new().decode(&deep(MAX_DEPTH - 1)), Ok(Some(_))));
}

fn encode(value: &Value, encoder: &mut Encoder<'_>) {
    match value {
        Value::Simple(text) => encoder.simple(text),
        Value::Error(text) => encoder.error(text),
        Value::Integer(number) => encoder.integer(*number),
        Value::Bulk(bytes) => encoder.bulk(bytes),
        Value::Null => encoder.null(),
        Value::Array(elements) => {
            encoder.array(elements.len());
            elements.iter().for_each(|element| encode(element, encoder));
        }
        Value::Set(elements) => {
            encoder.set(elements.len());
            elements.iter().for_each(|element| encode(element, encoder));
        }
        Value::Push(elements) => {
            encoder.push(elements.len());
            elements.iter().for_each(|element| encode(element, encoder));
        }
        Value::Map(pairs) => {
            encoder.map(pairs.len());
            pairs.iter().for_each(|(key, value)| {
                encode(key, encoder);
                encode(value, encoder);
            });
        }
        Value::Double(number) => encoder.double(*number),
        Value::Boolean(value) => encoder.boolean(*value),
        Value::BigNumber(digits) => encoder.big_number(std::str::from_utf8(digits).unwrap().parse().unwrap()),
        Value::Verbatim { format, text } => encoder.verbatim(format, text),
    }
}

fn any_value() -> impl Strategy<Value = Value> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..12);
    let leaf = prop_oneof![
        "[ -~]{0,12}".prop_map(|text| Value::Simple(text.into_bytes())),
        "[A-Z]{3} [ -~]{0,12}".prop_map(|text| Value::Error(text.into_bytes())),
        any::<i64>().prop_map(Value::Integer),
        bytes().prop_map(Value::Bulk),
        Just(Value::Null),
        prop::num::f64::NORMAL.prop_map(Value::Double),
        any::<bool>().prop_map(Value::Boolean),
        any::<i128>().prop_map(|number| Value::BigNumber(number.to_string().into_bytes())),
        bytes().prop_map(|text| Value::Verbatim { format: *b"txt", text }),
    ];
    leaf.prop_recursive(4, 24, 5, |inner| {
        let elements = prop::collection::vec(inner.clone(), 0..5);
        prop_oneof![
            elements.clone().prop_map(Value::Array),
            elements.clone().prop_map(Value::Set),
            elements.prop_map(Value::Push),
            prop::collection::vec((inner.clone(), inner), 0..4).prop_map(Value::Map),
        ]
    })
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(value in any_value()) {
        let mut bytes = Vec::new();
        encode(&value, &mut Encoder::new(&mut bytes, Protocol::Resp3));
        let mut scanner = ReplyScanner::default();
        for length in 0..bytes.len() {
            prop_assert_eq!(scanner.scan(&bytes[..length]), Ok(None));
        }
        prop_assert_eq!(scanner.scan(&bytes), Ok(Some(bytes.len())));
        prop_assert_eq!(ReplyDecoder::new().decode(&bytes), Ok(Some((value, bytes.len()))));
    }

    #[test]
    fn bytes_that_look_like_the_protocol(text in "([-+:$*%~>|=!_,#(]-?[0-4]{0,2}|\r\n|a|t){0,40}") {
        let _ = ReplyDecoder::new().decode(text.as_bytes());
        let mut scanner = ReplyScanner::default();
        let piecewise = (0..=text.len()).map(|length| scanner.scan(&text.as_bytes()[..length]));
        let first = piecewise.into_iter().find(|outcome| *outcome != Ok(None)).unwrap_or(Ok(None));
        prop_assert_eq!(first, skip_reply(text.as_bytes()));
    }
}

//! Bodies as people write them, right and wrong.

use super::*;

fn add(body: &str) -> Result<Add, String> {
    let parsed: AddBody = parse_or_default(body.as_bytes()).map_err(|error| error.to_string())?;
    parsed.to_add(Direction::Up, Condition::Always).map_err(|error| error.to_string())
}

#[test]
fn additions_say_what_they_belong_to() {
    let told = |body: &str| {
        let parsed: AddBody = parse_or_default(body.as_bytes()).unwrap();
        parsed.told().map(|told| format!("{:?}", told.dimensions)).map_err(|error| error.to_string())
    };
    assert_eq!(told(""), Ok("[]".to_owned()));
    assert_eq!(
        told(r#"{"dims":{"tenant":"a","day":""}}"#),
        Ok(r#"[("day", ""), ("tenant", "a")]"#.to_owned())
    );
    let many: Vec<String> = (0..9).map(|number| format!(r#""n{number}":"v""#)).collect();
    for (dims, named) in [
        (r#""a b":"x""#.to_owned(), "`dims`: the name of a dimension has no blanks"),
        (r#""":"x""#.to_owned(), "`dims`: the name of a dimension has 1 to 64 bytes, not 0"),
        (format!(r#""a":"{}""#, "x".repeat(129)), "`dims`: the value of a has at most 128 bytes, not 129"),
        (many.join(","), "`dims`: an addition has at most 8 dimensions, not 9"),
    ] {
        let refused = told(&format!(r#"{{"dims":{{{dims}}}}}"#)).expect_err(&dims);
        assert!(refused.starts_with(named), "{refused}");
    }
}

#[test]
fn additions() {
    for (body, expected) in [
        ("", Add::plain(1)),
        ("{}", Add::plain(1)),
        (r#"{"delta":-5}"#, Add::plain(-5)),
        (r#"{"delta":"9223372036854775807"}"#, Add::plain(i64::MAX)),
        (r#"{"delta":-9223372036854775808}"#, Add::plain(i64::MIN)),
        (r#"{"delta":null,"min":null}"#, Add::plain(1)),
        (r#"{"delta":1e3}"#, Add::plain(1000)),
        (r#"{"delta":-9007199254740991.0}"#, Add::plain(1 - (1 << 53))),
        (r#"{"ttlMs":60000.0}"#, Add { expiry: Expiry::In(60_000), ..Add::plain(1) }),
        (
            r#"{"delta":2,"min":0,"max":100,"saturate":true,"ttlMs":60000}"#,
            Add { min: 0, max: 100, saturate: true, expiry: Expiry::In(60_000), ..Add::plain(2) },
        ),
        // Halfway between doubles that a fast reader of numbers takes for each other.
        (r#"{"delta":3859835173323234.0}"#, Add::plain(3_859_835_173_323_234)),
        (r#"{"ttlMs":5,"ttlIfNone":true}"#, Add { expiry: Expiry::InIfNone(5), ..Add::plain(1) }),
    ] {
        assert_eq!(add(body), Ok(expected), "{body}");
    }
}

#[test]
fn refused_bodies_name_the_field() {
    for (body, named) in [
        (r#"{"delta":1,"maximum":5}"#, "unknown field `maximum`"),
        (r#"{"delta":1.5}"#, "`delta`: "),
        (r#"{"delta":1e30}"#, "`delta`: a number beyond 2^53 must be written without fraction"),
        (r#"{"delta":9007199254740993.0}"#, "`delta`: a number beyond 2^53"),
        (r#"{"delta":-9.007199254740993e15}"#, "`delta`: a number beyond 2^53"),
        (r#"{"ttlMs":0.5}"#, "`ttlMs`: invalid value: floating point `0.5`, expected a whole number from 1"),
        (r#"{"ttlMs":-1.0}"#, "`ttlMs`: "),
        (r#"{"ttlMs":"5"}"#, "`ttlMs`: "),
        (r#"{"ttlMs":18446744073709551616}"#, "`ttlMs`: "),
        (r#"{"delta":9223372036854775808}"#, "`delta`: "),
        (r#"{"delta":-9223372036854775809}"#, "`delta`: "),
        (r#"{"delta":"1 "}"#, "`delta`: "),
        (r#"{"delta":true}"#, "`delta`: "),
        (r#"{"delta":1,"delta":2}"#, "duplicate field `delta`"),
        (r#"{"ttlMs":0}"#, "`ttlMs`: "),
        (r#"{"ttlMs":-1}"#, "`ttlMs`: "),
        (r#"{"ttlIfNone":true}"#, "`ttlIfNone`: "),
        (r#"{"min":2,"max":1}"#, "`min`: 2 is above `max` 1"),
        (r#"{"saturate":1}"#, "`saturate`: "),
        (r#"{"dims":["tenant"]}"#, "`dims`: invalid type"),
        (r#"{"dims":{"tenant":7}}"#, "`dims.tenant`: invalid type"),
        (r#"{"stripeBy":7}"#, "`stripeBy`: invalid type"),
        (r#"{"at":"yesterday"}"#, "`at`: invalid value: string \"yesterday\", expected a time like"),
        (r#"{"at":-1}"#, "`at`: "),
        (r#"{"at":"1969-12-31T23:59:59Z"}"#, "`at`: "),
        (r#"{"key":"a"}"#, "`key`: the path names the counter"),
        (r#"{"requestId":"a"}"#, "`requestId`: send it as the header Idempotency-Key"),
        (r#"{"delta":1} x"#, "trailing characters"),
        (r#"{"delta":1"#, "the body is not JSON: EOF"),
        ("{", "the body is not JSON: EOF"),
        (r#"{"delta":}"#, "the body is not JSON: expected value"),
        ("[]", "expected"),
        ("7", "expected"),
    ] {
        let refused = add(body).expect_err(body);
        assert!(refused.contains(named), "{body} is refused with {refused:?}, which does not say {named:?}");
    }
}

#[test]
fn times() {
    for (at, expected) in [
        ("1771834530250", Some(1_771_834_530_250)),
        ("1.77183453025e12", Some(1_771_834_530_250)),
        (r#""1771834530250""#, Some(1_771_834_530_250)),
        (r#""2026-02-23T08:15:30.250Z""#, Some(1_771_834_530_250)),
        (r#""2026-02-23T09:15:30.25+01:00""#, Some(1_771_834_530_250)),
        ("null", None),
    ] {
        let body: AddBody = parse(format!(r#"{{"at":{at}}}"#).as_bytes()).unwrap();
        assert_eq!(body.told().unwrap(), Told { at_ms: expected, ..Told::default() }, "{at}");
    }
}

#[test]
fn a_decrement_negates() {
    let down =
        |body: &str| parse::<AddBody>(body.as_bytes()).unwrap().to_add(Direction::Down, Condition::Always);
    assert_eq!(down(r#"{"delta":3}"#), Ok(Add::plain(-3)));
    assert_eq!(down(r#"{"delta":-3}"#), Ok(Add::plain(3)));
    assert!(down(r#"{"delta":-9223372036854775808}"#).is_err());
}

#[test]
fn batches() {
    let body: BatchAddBody =
        parse(br#"{"items":[{"key":"a","delta":2,"requestId":"r"},{"keyBase64":"/w=="}],"atomic":true}"#)
            .unwrap();
    assert!(body.atomic);
    assert_eq!(body.items[0].0.to_item(0), Ok((b"a".to_vec(), Add::plain(2))));
    assert_eq!(body.items[1].0.to_item(1), Ok((vec![0xff], Add::plain(1))));
    let versioned: AddBody = parse(br#"{"key":"a","ifVersion":7}"#).unwrap();
    let expected = Add { condition: Condition::Version(7), ..Add::plain(1) };
    assert_eq!(versioned.to_item(0), Ok((b"a".to_vec(), expected)));
    for (item, named) in [
        ("{}", "items[3]: `key`: is missing"),
        (r#"{"key":""}"#, "items[3]: `key`: a key has 1 to 512 bytes, not 0"),
        (r#"{"key":"a","keyBase64":"YQ=="}"#, "contradicts"),
        (r#"{"keyBase64":"%"}"#, "items[3]: `keyBase64`"),
        (r#"{"key":"a","requestId":""}"#, "items[3]: `requestId`"),
    ] {
        let refused = parse::<AddBody>(item.as_bytes()).unwrap().to_item(3).expect_err(item).to_string();
        assert!(refused.contains(named), "{item} is refused with {refused:?}");
    }
    let nested = parse::<BatchAddBody>(br#"{"items":[{"key":"a"},{"key":"b","delta":"x"}]}"#).unwrap_err();
    assert!(nested.0.starts_with("`items[1].delta`: "), "{nested}");
    for array in [&br#"{"items":[["a"]]}"#[..], br#"{"items":[{"key":"a"},["b",null,null,2]]}"#] {
        let refused = parse::<BatchAddBody>(array).unwrap_err();
        assert!(refused.0.contains("sequence, expected an object"), "{refused}");
    }
}

#[test]
fn keys_of_a_batch_get() {
    let body: BatchGetBody = parse(br#"{"keys":["a",{"keyBase64":"/w=="}]}"#).unwrap();
    assert_eq!(body.keys[0].to_key(0), Ok(b"a".to_vec()));
    assert_eq!(body.keys[1].to_key(1), Ok(vec![0xff]));
    for (body, named) in [
        (r#"{"keys":[7]}"#, "expected a key"),
        (r#"{"keys":["a",["/w=="]]}"#, "`keys[1]`: invalid type: sequence, expected a key"),
        (r#"{"keys":[{"key":"a"}]}"#, "unknown field `key`, expected `keyBase64`"),
        (r#"{"keys":[{}]}"#, "missing field `keyBase64`"),
        (r#"{"keys":"a"}"#, "`keys`: invalid type: string"),
        (r#"[["a"]]"#, "a JSON object"),
    ] {
        let refused = parse::<BatchGetBody>(body.as_bytes()).unwrap_err();
        assert!(refused.0.contains(named), "{body} is refused with {refused:?}");
    }
}

#[test]
fn policies() {
    let policy = |body: &str| {
        parse::<PolicyBody>(body.as_bytes())
            .and_then(|body| body.to_policy())
            .map_err(|error| error.to_string())
    };
    assert_eq!(
        policy(r#"{"min":0,"max":"10","ttlMs":5,"saturate":true,"disabled":true}"#),
        Ok(Policy {
            min: Some(0),
            max: Some(10),
            saturate: true,
            ttl_ms: Some(5),
            disabled: true,
            ..Policy::default()
        })
    );
    let windowed = policy(
        r#"{"kind":"window","window":{"spanMs":6e4,"bucketMs":1000.0},"history":{"daysMs":0.0,"hoursMs":3600000}}"#,
    );
    let frame = windowed.unwrap().window.unwrap().frame;
    assert_eq!(frame, quipu_counting::window::Frame::Sliding { span_ms: 60_000, bucket_ms: 1_000 });
    for (lateness, expected) in [("600000", 600_000), (r#""10m""#, 600_000), ("0", 0), (r#""0s""#, 0)] {
        let late = policy(&format!(r#"{{"kind":"window","lateness":{lateness}}}"#));
        assert_eq!(late.unwrap().lateness_ms, Some(expected));
    }
    assert_eq!(policy(r#"{"stripes":16}"#).unwrap().stripes, Some(16));
    // Durations are numbers of milliseconds, or texts; a window may be one.
    for body in [
        r#"{"kind":"window","window":"1h"}"#,
        r#"{"kind":"window","window":3600000}"#,
        r#"{"kind":"window","window":{"spanMs":"1h","bucketMs":"1m","keepMs":"2h"}}"#,
    ] {
        assert_eq!(policy(body), policy(r#"{"kind":"window"}"#), "{body}");
    }
    for (texts, numbers) in [
        (r#"{"ttlMs":"5s"}"#, r#"{"ttlMs":5000}"#),
        (r#"{"audit":"30d"}"#, r#"{"audit":2592000000}"#),
        (r#"{"history":{"minutesMs":"1d"}}"#, r#"{"history":{"minutesMs":86400000}}"#),
    ] {
        assert_eq!(policy(texts).unwrap(), policy(numbers).unwrap());
    }
    // What means something: calls give bounds and limits too, and a sum may have a limit without a window.
    for body in [r#"{"soft":true}"#, r#"{"saturate":true}"#, r#"{"kind":"sum","limit":10}"#] {
        assert!(policy(body).is_ok(), "{body}");
    }
    for (body, named) in [
        (r#"{"kind":"unique","min":0}"#, "`min`: is for sums and windows, not for `kind` unique"),
        (r#"{"kind":"unique","max":0}"#, "`max`: is for sums and windows"),
        (r#"{"kind":"unique","saturate":true}"#, "`saturate`: is for sums and windows"),
        (r#"{"kind":"unique","limit":5}"#, "`limit`: is for sums and windows"),
        (r#"{"kind":"unique","soft":true}"#, "`soft`: is for sums and windows"),
        (r#"{"ttlMs":0}"#, "`ttlMs`: is at least a millisecond"),
        (
            r#"{"kind":"window","window":{"spanMs":60000,"keepMs":59999}}"#,
            "`window.keepMs`: is shorter than the window itself, 60000 ms, which is kept in any case",
        ),
        (r#"{"stripes":0}"#, "`stripes`: is a power of two from 1 to 64"),
        (r#"{"stripes":65552}"#, "`stripes`: is a power of two from 1 to 64"),
        (r#"{"stripes":48}"#, "`stripes`: is a power of two from 1 to 64"),
        (r#"{"stripes":2,"max":5}"#, "`stripes`: does not go with `min` or `max`"),
        (r#"{"stripes":2,"ttlMs":5}"#, "`stripes`: does not go with `ttlMs`"),
        (r#"{"stripes":2,"kind":"unique"}"#, "`stripes`: is for plain sums"),
        (
            r#"{"kind":"window","lateness":"10"}"#,
            "`lateness`: invalid value: string \"10\", expected a duration",
        ),
        (
            r#"{"kind":"window","lateness":"3h"}"#,
            "`lateness`: is longer than past windows are kept: 7200000 ms",
        ),
        (r#"{"kind":"unique","lateness":"1h"}"#, "`lateness`: is for counters with a `window`"),
        (
            r#"{"kind":"window","window":["fixed",5]}"#,
            "`window`: invalid type: sequence, expected a duration",
        ),
        (r#"{"history":[5]}"#, "`history`: invalid type: sequence, expected an object"),
        (r#"{"kind":"window","window":{"spanMs":0}}"#, "`window.spanMs`: "),
        (
            r#"{"kind":"window","window":{"type":"calendar","unit":"week","anchor":300}}"#,
            "`window.anchor`: a day is 1 to 31",
        ),
        (
            r#"{"kind":"window","window":{"type":"calendar","unit":"week","anchor":8}}"#,
            "a week begins on a day from 1",
        ),
    ] {
        let refused = policy(body).unwrap_err();
        assert!(refused.contains(named), "{body}: {refused:?}");
    }
    let kept = policy(r#"{"rollups":[["day","tenant"]],"rollupKeep":{"day":"90d"}}"#).unwrap().rollups_kept;
    assert_eq!(kept.iter().collect::<Vec<_>>(), [("day", 90 * 86_400_000)]);
    for (body, named) in [
        (r#"{"rollups":[["day"]],"rollupKeep":{"hour":"1d"}}"#, "`rollupKeep`: no roll-up is by hour"),
        (r#"{"rollupKeep":{"day":"9d"}}"#, "`rollupKeep`: no roll-up is by day"),
        (
            r#"{"rollups":[["day"]],"rollupKeep":{"day":"1h"}}"#,
            "`rollupKeep`: a cell by day is kept for at least",
        ),
        (
            r#"{"rollups":[["tenant"]],"rollupKeep":{"tenant":"1d"}}"#,
            "does not come from the time of an addition",
        ),
    ] {
        let refused = policy(body).unwrap_err();
        assert!(refused.contains(named), "{body}: {refused:?}");
    }
    assert_eq!(policy("{}"), Ok(Policy::default()));
    assert!(policy(r#"{"min":2,"max":1}"#).is_err());
    assert!(policy(r#"{"mode":"eventual"}"#).unwrap_err().contains("unknown field `mode`"));
}

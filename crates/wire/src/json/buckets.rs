//! What a counter counted when: the body of a window.

use std::ops::Range;

use quipu_counting::body::{Keeping, State};
use quipu_counting::kinds::visitors;
use quipu_counting::unique::STANDARD_ERROR;
use quipu_counting::visitors::VISITOR_BUCKETS_MAX;
use quipu_counting::window::{Frame, Past};
use quipu_counting::{Body, Kind, Unique};
use serde::Serialize;
use utoipa::ToSchema;

use super::reply::KeyName;
use super::schema::SumSchema;
use super::text_if_large;
use super::timestamp::rfc3339;
use super::window::KindName;

/// What was counted in a span of time. Of sums there is `sum`, of uniques `estimate` and `exact`.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = WindowOfCounter)]
pub struct SpanBody {
    #[serde(flatten)]
    key: KeyName,
    /// Whether the counter exists.
    exists: bool,
    /// What is counted.
    kind: KindName,
    /// Where the first bucket that belongs to it begins, full or empty.
    #[schema(format = DateTime, example = "2026-02-23T09:00:00.000Z")]
    from: String,
    /// Where the last one ends.
    #[schema(format = DateTime, example = "2026-02-23T10:01:00.000Z")]
    to: String,
    #[serde(flatten)]
    counted: CountedBody,
    /// Whether that is all there was. Not so where the time asked for begins before `since`.
    #[schema(example = true)]
    complete: bool,
    /// Since when everything that was counted is kept by its time. It is left out while nothing was dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime, example = "2026-02-23T08:00:00.000Z")]
    since: Option<String>,
    /// Those in which something was counted, the oldest first.
    buckets: Vec<BucketBody>,
    /// How far behind it may be at most: everything acknowledged before that is in it.
    #[schema(example = 0)]
    staleness_ms: u64,
}

/// What was counted in one bucket.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Bucket)]
pub struct BucketBody {
    /// Where it begins.
    #[schema(format = DateTime, example = "2026-02-23T10:00:00.000Z")]
    start: String,
    /// Where the next one begins.
    #[schema(format = DateTime, example = "2026-02-23T10:01:00.000Z")]
    end: String,
    #[serde(flatten)]
    counted: CountedBody,
}

/// A sum, or a number of different items.
#[derive(Clone, Debug, Default, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Counted)]
pub struct CountedBody {
    /// What was added, all together.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<SumSchema>)]
    sum: Option<i128>,
    /// The same as text, where it is beyond 2^53.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    sum_text: Option<String>,
    /// How many different items there were.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    estimate: Option<u64>,
    /// Whether that is the very number.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    exact: Option<bool>,
    /// The standard error of an estimate, as a part of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    standard_error: Option<f64>,
}

impl CountedBody {
    fn sum(sum: i128) -> CountedBody {
        CountedBody { sum: Some(sum), sum_text: text_if_large(sum), ..CountedBody::default() }
    }

    fn different(unique: &Unique) -> CountedBody {
        let exact = unique.is_exact();
        CountedBody {
            estimate: Some(unique.count()),
            exact: Some(exact),
            standard_error: (!exact).then_some(STANDARD_ERROR),
            ..CountedBody::default()
        }
    }
}

/// Since when a counter knows everything that it counted by its time; nothing where it never dropped anything.
fn kept_since_ms(body: &Body, frame: &Frame, now_ms: u64) -> Option<u64> {
    match &body.state {
        State::Window(_, buckets) => buckets.past().and_then(Past::end_ms),
        // What they drop is not noted, so that they may have dropped something is all there is to say.
        State::Visitors(own, sketches) => {
            let kept_from_ms = Keeping { frame: frame.clone(), keep_ms: own.keep_ms }.from_ms(now_ms);
            // Where there are as many as there can be, some may have had to go before their time.
            let first = sketches.iter().next().filter(|_| sketches.iter().len() >= VISITOR_BUCKETS_MAX);
            Some(first.map_or(kept_from_ms, |(start_ms, _)| kept_from_ms.max(*start_ms)))
        }
        State::Sum | State::Unique(_) => None,
    }
}

impl SpanBody {
    /// What `body` counted in the buckets that begin in this range, cut by `frame`, as it is at `now_ms`. Nothing if it does not count by time.
    pub fn of(key: &[u8], body: &Body, frame: &Frame, range: Range<u64>, now_ms: u64) -> Option<SpanBody> {
        let bucket = |start_ms: u64, counted: CountedBody| BucketBody {
            start: rfc3339(start_ms),
            end: rfc3339(frame.bucket(start_ms).end),
            counted,
        };
        let (counted, buckets) = match &body.state {
            State::Window(_, buckets) => (
                CountedBody::sum(buckets.sum(range.clone())),
                buckets
                    .iter(range.clone())
                    .map(|(start, sum)| bucket(start, CountedBody::sum(sum.into())))
                    .collect(),
            ),
            State::Visitors(_, sketches) => {
                let within = sketches.iter().filter(|(start, _)| range.contains(start));
                let buckets =
                    within.map(|(start, unique)| bucket(*start, CountedBody::different(unique))).collect();
                (CountedBody::different(&visitors(body, &range)), buckets)
            }
            State::Sum | State::Unique(_) => return None,
        };
        let since_ms = kept_since_ms(body, frame, now_ms);
        let complete = since_ms.is_none_or(|since_ms| since_ms <= range.start);
        let since = since_ms.map(rfc3339);
        let empty = SpanBody::empty(key, body.kind(), range);
        Some(SpanBody { counted, buckets, complete, since, exists: true, ..empty })
    }

    /// How many buckets it has.
    pub fn len(&self) -> usize {
        self.buckets.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    /// Of a counter that does not exist.
    pub fn empty(key: &[u8], kind: Kind, range: Range<u64>) -> SpanBody {
        let counted = match kind {
            Kind::Unique => CountedBody::different(&Unique::new()),
            Kind::Sum | Kind::Window => CountedBody::sum(0),
        };
        SpanBody {
            key: KeyName::of(key),
            exists: false,
            kind: KindName::of(kind),
            from: rfc3339(range.start),
            to: rfc3339(range.end),
            counted,
            complete: true,
            since: None,
            buckets: Vec::new(),
            staleness_ms: 0,
        }
    }

    /// The same of a replica that may be behind.
    pub fn behind(self, staleness_ms: u64) -> SpanBody {
        SpanBody { staleness_ms, ..self }
    }
}

#[cfg(test)]
mod tests {
    use quipu_counting::body::{Event, Shape};

    use super::*;

    /// Nothing is left out in silence.
    #[test]
    fn a_span_says_whether_it_is_all_there_was() {
        let frame = Frame::Sliding { span_ms: 1_000, bucket_ms: 100 };
        let keeping = Keeping { frame: frame.clone(), keep_ms: 2_000 };
        let mut window = Body::new(Shape::Window(keeping.clone()));
        window.apply(Event::Remember { end_ms: 0, sum: 0 }, 0).unwrap();
        let shown = |body: &Body, from_ms: u64| {
            let span = SpanBody::of(b"a", body, &frame, from_ms..10_000, 9_950).unwrap();
            serde_json::to_value(span).unwrap()
        };
        assert_eq!(shown(&window, 0)["complete"], true);
        assert_eq!(shown(&window, 0).get("since"), None);
        for start_ms in [5_000, 9_900] {
            window.apply(Event::Count { start_ms, from_ms: start_ms - 2_000, delta: 3 }, start_ms).unwrap();
        }
        // The first was dropped when the second came. It was over at 5.1 seconds.
        for (from_ms, is_complete) in [(0, false), (5_000, false), (5_100, true), (9_000, true)] {
            let shown = shown(&window, from_ms);
            assert_eq!(shown["complete"], is_complete, "{shown}");
            assert_eq!((&shown["since"], &shown["sum"]), (&"1970-01-01T00:00:05.100Z".into(), &3.into()));
        }
        let visitors = Body::new(Shape::Visitors(keeping));
        assert_eq!(shown(&visitors, 7_900)["complete"], true);
        assert_eq!(shown(&visitors, 7_800)["complete"], false);
    }
}

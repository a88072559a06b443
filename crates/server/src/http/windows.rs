//! What a counter counted when.

use std::ops::Range;
use std::sync::Arc;

use axum::extract::State;
use axum::http::Uri;
use quipu_counting::window::Frame;
use quipu_counting::{Detail, Kind, Refusal, Reply};
use quipu_wire::duration::{DURATION, duration_ms};
use quipu_wire::json::buckets::SpanBody;
use quipu_wire::json::problem::Problem;
use quipu_wire::json::timestamp::{MOMENT, time_ms};
use quipu_wire::json::window::sliding;

use super::App;
use super::answer::{self, Answer, Refused};
use super::counters::{FRESHNESS, freshness_of, look};
use super::extract::Name;
use super::parameters::Parameters;
use super::policies::waiting;
use super::uniques::refusal_of;

/// The window of a counter that does not exist and that no policy has one for.
const SPAN_MS: u64 = 3_600_000;
/// About what one bucket takes in a reply.
const BUCKET_BYTES: usize = 96;

pub async fn read(State(app): State<Arc<App>>, Name(key): Name, uri: Uri) -> Answer {
    let [consistency, max_staleness] = FRESHNESS;
    let parameters = Parameters::parse(uri.query(), &["last", "from", "to", consistency, max_staleness])?;
    let span = Span::of(&parameters)?;
    let (reply, staleness_ms) = look(&app, &key, freshness_of(&parameters)?).await?;
    let now_ms = reply.as_of_ms(app.clock.now_ms());
    let body = match reply.detail.as_deref() {
        Some(Detail::Body(body, Some(frame))) => {
            SpanBody::of(&key, body, frame, span.range(frame, now_ms), now_ms)
        }
        _ if !reply.exists => {
            let (kind, frame) = to_be_born(&app, &key).await?;
            Some(SpanBody::empty(&key, kind, span.range(&frame, now_ms)))
        }
        _ => None,
    };
    let Some(body) = body else { return Err(without_window(&key, &reply)) };
    let bytes = (body.len() + 4) * BUCKET_BYTES;
    Ok(answer::json_in(app.load.reserve(bytes)?, bytes, &body.behind(staleness_ms)))
}

/// What a counter would be, and how time would be cut for it.
async fn to_be_born(app: &Arc<App>, key: &[u8]) -> Result<(Kind, Frame), Refused> {
    let policies = waiting(app, |app| app.counters.policies()).await?;
    let policy = policies.policy_for(key);
    let frame = policy.and_then(|policy| policy.window.as_ref()).map(|keeping| keeping.frame.clone());
    let kind = policy.and_then(|policy| policy.kind).unwrap_or(Kind::Sum);
    Ok((kind, frame.unwrap_or_else(|| sliding(SPAN_MS))))
}

fn without_window(key: &[u8], reply: &Reply) -> Refused {
    let detail = "this counter does not count by time; counters do that are born under a policy with a window (`kind` window or \
                  unique), or by an acquire with a window";
    Problem::refused(key, &refusal_of(reply), Refusal::WrongKind).explained(detail).into()
}

/// Which time was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Span {
    /// The counter's own window.
    Own,
    /// The last so many milliseconds.
    Last(u64),
    /// From here on, up to and without there.
    Between(u64, Option<u64>),
}

impl Span {
    fn of(parameters: &Parameters) -> Result<Span, Refused> {
        let last = parameters.read("last", DURATION, |text| duration_ms(text).ok())?;
        let from = parameters.read("from", MOMENT, time_ms)?;
        let to = parameters.read("to", MOMENT, time_ms)?;
        match (last, from, to) {
            (Some(_), Some(_), _) | (Some(_), _, Some(_)) => {
                Err(Problem::malformed("the query parameter last excludes from and to").into())
            }
            (_, from, Some(to)) if from.unwrap_or(0) >= to => {
                Err(Problem::malformed("the query parameter to must be later than from").into())
            }
            (Some(span_ms), None, None) => Ok(Span::Last(span_ms)),
            (None, None, None) => Ok(Span::Own),
            (None, from, to) => Ok(Span::Between(from.unwrap_or(0), to)),
        }
    }

    /// The buckets of which any part lies in it.
    fn range(self, frame: &Frame, now_ms: u64) -> Range<u64> {
        match self {
            Span::Own => frame.window(now_ms),
            Span::Last(span_ms) => frame.last(span_ms, now_ms),
            Span::Between(from_ms, to_ms) => {
                let last_ms = to_ms.map_or(now_ms.max(from_ms), |to_ms| to_ms.saturating_sub(1));
                frame.bucket(from_ms).start..frame.bucket(last_ms).end
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Parameters, Span, sliding};

    #[test]
    fn spans() {
        let minutes = sliding(3_600_000);
        let now_ms = 7_230_000;
        for (query, expected) in [
            ("", Some(3_600_000..7_260_000)),
            ("last=1m", Some(7_140_000..7_260_000)),
            ("last=30s", Some(7_200_000..7_260_000)),
            ("from=60000&to=120000", Some(60_000..120_000)),
            ("from=60001&to=120001", Some(60_000..180_000)),
            ("from=1970-01-01T00:01:00Z&to=1970-01-01T01:02:00%2B01:00", Some(60_000..120_000)),
            ("from=60000", Some(60_000..7_260_000)),
            ("to=1", Some(0..60_000)),
            ("from=18446744073709551615", Some(18_446_744_073_709_500_000..u64::MAX)),
            ("last=1h&to=5", None),
            ("from=5&to=5", None),
            ("last=1", None),
            ("last=0s", None),
            ("from=yesterday", None),
            ("from=1969-01-01T00:00:00Z", None),
        ] {
            let parameters = Parameters::parse(Some(query), &["last", "from", "to"]).unwrap();
            let range = Span::of(&parameters).ok().map(|span| span.range(&minutes, now_ms));
            assert_eq!(range, expected, "{query}");
        }
    }
}

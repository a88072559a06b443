//! Time in bodies of policies: how it is cut into windows, and how long history is kept.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use quipu_counting::Kind;
use quipu_counting::body::Keeping;
use quipu_counting::kinds::keep_for;
use quipu_counting::series::{POINTS_MAX, Retention, Step};
use quipu_counting::visitors::VISITOR_BUCKETS_MAX;
use quipu_counting::window::{BUCKETS_MAX, Frame, Unit, Zone};
use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::request::{BodyError, Lasting, Ms, Unsigned};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = Kind)]
pub enum KindName {
    /// Sums.
    Sum,
    /// Different items.
    Unique,
    /// Sums by time.
    Window,
}

impl KindName {
    /// The kind.
    pub fn kind(self) -> Kind {
        match self {
            KindName::Sum => Kind::Sum,
            KindName::Unique => Kind::Unique,
            KindName::Window => Kind::Window,
        }
    }

    /// Of a kind.
    pub fn of(kind: Kind) -> KindName {
        match kind {
            Kind::Sum => KindName::Sum,
            Kind::Unique => KindName::Unique,
            Kind::Window => KindName::Window,
        }
    }
}

/// How windows lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum WindowType {
    /// The last so many milliseconds, in buckets.
    #[default]
    Sliding,
    /// One behind the other, from 1970 on.
    Fixed,
    /// Days, weeks or months of a place.
    Calendar,
}

/// A unit of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum CalendarUnit {
    /// From midnight to midnight.
    Day,
    /// Seven days.
    Week,
    /// From a day of the month to the same day of the next.
    Month,
}

/// How time is cut.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = Window)]
pub struct WindowBody {
    /// How windows lie.
    #[serde(rename = "type", default)]
    pub cut: WindowType,
    /// How long a window is: sliding and fixed ones; an hour where it is not said.
    #[serde(default, deserialize_with = "lasting", skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 1)]
    pub span_ms: Option<u64>,
    /// How long a bucket of a sliding window is; a sixtieth of the window where it is not said.
    #[serde(default, deserialize_with = "lasting", skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 1)]
    pub bucket_ms: Option<u64>,
    /// The unit of the calendar.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub unit: Option<CalendarUnit>,
    /// The time zone of the calendar, like Europe/Berlin; UTC where it is not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = "Europe/Berlin")]
    pub zone: Option<String>,
    /// The day on which a month (1 to 31) or a week (1 Monday to 7) begins; the first where it is not said.
    #[serde(default, deserialize_with = "day", skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 1, maximum = 31)]
    pub anchor: Option<u8>,
    /// How long what is past stays readable, if it is longer ago than the window: twice the window where it is not said, 64 days for windows
    /// of the calendar; of uniques no more than 400 buckets are kept.
    #[serde(default, deserialize_with = "lasting", skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, minimum = 1)]
    pub keep_ms: Option<u64>,
}

// Whole numbers as elsewhere: 1.0 is one too.
fn at_least_one<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    Ok(Option::<Unsigned<1>>::deserialize(deserializer)?.map(|number| number.0))
}

// Milliseconds, or a duration as people write it.
fn lasting<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    match Option::<Ms<Lasting>>::deserialize(deserializer)?.map(|ms| ms.0) {
        Some(0) => Err(de::Error::custom("it lasts at least a millisecond")),
        ms => Ok(ms),
    }
}

fn any<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    Ok(Ms::<Lasting>::deserialize(deserializer)?.0)
}

fn day<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u8>, D::Error> {
    let number = at_least_one(deserializer)?;
    let day = number.map(u8::try_from).transpose();
    day.map_err(|_| de::Error::custom("a day is 1 to 31"))
}

/// How long a window is unless it is said.
const SPAN_MS: u64 = 3_600_000;
/// Buckets of a sliding window unless it is said.
const BUCKETS: u64 = 60;
/// The offsets of a zone are written down up to here: 2100-01-01.
const ZONE_UNTIL_MS: i64 = 4_102_444_800_000;

/// A sliding window of this length in the usual number of buckets.
pub fn sliding(span_ms: u64) -> Frame {
    Frame::Sliding { span_ms, bucket_ms: span_ms.div_ceil(BUCKETS).max(1) }
}

impl WindowBody {
    /// What it says, if it makes sense.
    pub fn to_keeping(&self) -> Result<Keeping, BodyError> {
        self.check_fields()?;
        let span_ms = self.span_ms.unwrap_or(SPAN_MS);
        let frame = match self.cut {
            WindowType::Sliding => match self.bucket_ms {
                Some(bucket_ms) => Frame::Sliding { span_ms, bucket_ms },
                None => sliding(span_ms),
            },
            WindowType::Fixed => Frame::Fixed { span_ms },
            WindowType::Calendar => {
                let unit = match self.unit {
                    Some(CalendarUnit::Day) => Unit::Day,
                    Some(CalendarUnit::Week) => Unit::Week,
                    Some(CalendarUnit::Month) => Unit::Month,
                    None => return Err(BodyError::field("window.unit", "is missing: day, week or month")),
                };
                let anchor = if unit == Unit::Day { 0 } else { self.anchor.unwrap_or(1) };
                Frame::Calendar { unit, anchor, zone: self.to_zone()? }
            }
        };
        if let Some(problem) = frame.problem() {
            return Err(BodyError::field("window", problem));
        }
        let keep_ms = self.keep_ms.unwrap_or_else(|| keep_for(&frame));
        if let (Frame::Sliding { span_ms, .. } | Frame::Fixed { span_ms }, true) =
            (&frame, self.keep_ms.is_some())
            && keep_ms < *span_ms
        {
            return Err(BodyError::field(
                "window.keepMs",
                format_args!(
                    "is shorter than the window itself, {span_ms} ms, which is kept in any case; keep more, or leave it out"
                ),
            ));
        }
        let bucket = frame.bucket(ZONE_UNTIL_MS as u64 / 2);
        if keep_ms / (bucket.end - bucket.start).max(1) >= BUCKETS_MAX as u64 {
            return Err(BodyError::field(
                "window.keepMs",
                format_args!("would keep more than {BUCKETS_MAX} buckets; keep less, or use larger ones"),
            ));
        }
        Ok(Keeping { frame, keep_ms })
    }

    /// The same for uniques: there are fewer buckets, because each is a sketch.
    pub fn to_keeping_of_sketches(&self) -> Result<Keeping, BodyError> {
        let mut keeping = self.to_keeping()?;
        let some_ms = ZONE_UNTIL_MS as u64 / 2;
        let (window, bucket) = (keeping.frame.window(some_ms), keeping.frame.bucket(some_ms));
        let bucket_ms = (bucket.end - bucket.start).max(1);
        let most_ms = bucket_ms * (VISITOR_BUCKETS_MAX as u64 - 1);
        let too_many = |field| {
            let problem = format_args!(
                "is longer than {VISITOR_BUCKETS_MAX} buckets of {bucket_ms} ms, the most there are of uniques; use larger ones"
            )
            .to_string();
            BodyError::field(field, problem)
        };
        if window.end - window.start > most_ms {
            return Err(too_many("window"));
        }
        if self.keep_ms.is_some() && keeping.keep_ms > most_ms {
            return Err(too_many("window.keepMs"));
        }
        keeping.keep_ms = keeping.keep_ms.min(most_ms);
        Ok(keeping)
    }

    /// A field that means nothing here is a mistake.
    fn check_fields(&self) -> Result<(), BodyError> {
        let of =
            |field: &str, kinds: &str| Err(BodyError::field(field, format_args!("is for {kinds} windows")));
        match self.cut {
            WindowType::Calendar if self.span_ms.is_some() => of("window.spanMs", "sliding and fixed"),
            WindowType::Calendar | WindowType::Fixed if self.bucket_ms.is_some() => {
                of("window.bucketMs", "sliding")
            }
            WindowType::Sliding | WindowType::Fixed if self.unit.is_some() => of("window.unit", "calendar"),
            WindowType::Sliding | WindowType::Fixed if self.zone.is_some() => of("window.zone", "calendar"),
            WindowType::Sliding | WindowType::Fixed if self.anchor.is_some() => {
                of("window.anchor", "calendar")
            }
            WindowType::Calendar if self.unit == Some(CalendarUnit::Day) && self.anchor.is_some() => {
                of("window.anchor", "weekly and monthly")
            }
            _ => Ok(()),
        }
    }

    /// The zone with its offsets written down, so that all who count by it count alike.
    fn to_zone(&self) -> Result<Zone, BodyError> {
        let Some(name) = self.zone.as_deref().filter(|name| *name != "UTC") else { return Ok(Zone::utc()) };
        let unknown = || {
            BodyError::field(
                "window.zone",
                format_args!("{name:?} is not a time zone; use a name like Europe/Berlin"),
            )
        };
        let zone = TimeZone::get(name).map_err(|_| unknown())?;
        let until = Timestamp::from_millisecond(ZONE_UNTIL_MS).map_err(|_| unknown())?;
        let first = zone.to_offset(Timestamp::UNIX_EPOCH).seconds();
        let mut offsets = vec![(0, first)];
        for transition in zone.following(Timestamp::UNIX_EPOCH) {
            if transition.timestamp() >= until {
                break;
            }
            let offset = transition.offset().seconds();
            if offsets.last().is_none_or(|(_, last)| *last != offset) {
                offsets.push((transition.timestamp().as_millisecond(), offset));
            }
        }
        Zone::new(name, offsets).ok_or_else(unknown)
    }

    /// Of what a policy says.
    pub fn of(keeping: &Keeping) -> WindowBody {
        let keep_ms = Some(keeping.keep_ms);
        match &keeping.frame {
            Frame::Sliding { span_ms, bucket_ms } => WindowBody {
                cut: WindowType::Sliding,
                span_ms: Some(*span_ms),
                bucket_ms: Some(*bucket_ms),
                keep_ms,
                ..WindowBody::default()
            },
            Frame::Fixed { span_ms } => WindowBody {
                cut: WindowType::Fixed,
                span_ms: Some(*span_ms),
                keep_ms,
                ..WindowBody::default()
            },
            Frame::Calendar { unit, anchor, zone } => WindowBody {
                cut: WindowType::Calendar,
                unit: Some(match unit {
                    Unit::Day => CalendarUnit::Day,
                    Unit::Week => CalendarUnit::Week,
                    Unit::Month => CalendarUnit::Month,
                }),
                zone: Some(zone.name().to_owned()),
                anchor: Some(*anchor).filter(|_| *unit != Unit::Day),
                keep_ms,
                ..WindowBody::default()
            },
        }
    }
}

/// How long what a value was stays known, by how finely.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = HistorySettings)]
pub struct HistoryBody {
    /// At full minutes.
    #[serde(default, deserialize_with = "any")]
    pub minutes_ms: u64,
    /// At full hours.
    #[serde(default, deserialize_with = "any")]
    pub hours_ms: u64,
    /// At midnights, UTC.
    #[serde(default, deserialize_with = "any")]
    pub days_ms: u64,
}

impl HistoryBody {
    /// What it says, if it makes sense.
    pub fn to_retention(self) -> Result<Retention, BodyError> {
        let fields = [("minutesMs", self.minutes_ms), ("hoursMs", self.hours_ms), ("daysMs", self.days_ms)];
        for ((field, keep_ms), step) in fields.into_iter().zip(Step::ALL) {
            if keep_ms / step.ms() >= POINTS_MAX as u64 {
                let problem =
                    format_args!("would keep more than {POINTS_MAX} points; keep less, or coarser ones");
                return Err(BodyError::field(format_args!("history.{field}"), problem));
            }
        }
        if fields.iter().all(|(_, keep_ms)| *keep_ms == 0) {
            return Err(BodyError::field("history", "keeps nothing: give minutesMs, hoursMs or daysMs"));
        }
        Ok(Retention { minutes_ms: self.minutes_ms, hours_ms: self.hours_ms, days_ms: self.days_ms })
    }

    /// Of what a policy says.
    pub fn of(retention: Retention) -> HistoryBody {
        HistoryBody {
            minutes_ms: retention.minutes_ms,
            hours_ms: retention.hours_ms,
            days_ms: retention.days_ms,
        }
    }
}

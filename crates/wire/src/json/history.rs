//! What a counter's value was.

use quipu_counting::series::{POINTS_MAX, Series, Step};
use quipu_counting::{Cell, Detail, Reply};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::reply::{KeyName, is_not};
use super::text_if_large;
use super::timestamp::rfc3339;

/// How far back a history goes unless it is said: so many steps.
const STEPS: u64 = 60;

/// How far points lie apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[schema(as = HistoryStep)]
pub enum StepName {
    /// At full minutes.
    Minute,
    /// At full hours.
    Hour,
    /// At midnights, UTC.
    Day,
}

impl StepName {
    /// The step.
    pub fn step(self) -> Step {
        match self {
            StepName::Minute => Step::Minute,
            StepName::Hour => Step::Hour,
            StepName::Day => Step::Day,
        }
    }

    /// The step of a word.
    pub fn parse(text: &str) -> Option<StepName> {
        match text {
            "minute" => Some(StepName::Minute),
            "hour" => Some(StepName::Hour),
            "day" => Some(StepName::Day),
            _ => None,
        }
    }
}

/// What was asked of the past.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Past {
    /// The value as of a time.
    At(u64),
    /// The values at all boundaries in a span.
    Points {
        /// How far apart.
        step: StepName,
        /// From here on.
        from_ms: u64,
        /// Up to and with there.
        to_ms: u64,
    },
}

impl Past {
    /// The values at boundaries: of the last sixty steps, unless it is said from when and to when. Nobody knows the future: what lies
    /// there is asked of the present. Nothing where the end lies before the beginning.
    pub fn points(step: StepName, from: Option<u64>, to: Option<u64>, now_ms: u64) -> Option<Past> {
        let to_ms = to.unwrap_or(now_ms).min(now_ms);
        let from_ms = from.unwrap_or_else(|| to_ms.saturating_sub(STEPS * step.step().ms()));
        match to {
            Some(to) if from_ms > to => None,
            _ => Some(Past::Points { step, from_ms, to_ms }),
        }
    }
}

/// What a counter that was read knows of its past: times and values, the oldest first.
pub fn known(reply: &Reply, past: Past) -> Vec<(u64, i64)> {
    let none = Series::default();
    let series = match reply.detail.as_deref() {
        Some(Detail::Body(body, _)) => &body.series,
        _ => &none,
    };
    let Cell { value, updated_at_ms, .. } = reply.cell;
    match past {
        _ if !reply.exists => Vec::new(),
        Past::At(at_ms) => {
            let point = series.at(at_ms, value, updated_at_ms);
            point.into_iter().map(|point| (point.exact_to_ms, point.value)).collect()
        }
        Past::Points { step, from_ms, to_ms } => {
            series.points(step.step(), from_ms, to_ms, value, updated_at_ms, 0)
        }
    }
}

/// The value of a counter over time.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = History)]
pub struct HistoryReply {
    #[serde(flatten)]
    key: KeyName,
    /// Whether the counter exists.
    exists: bool,
    /// The value at the times that are known, the oldest first.
    points: Vec<PointBody>,
    /// `true` where there are more, up to `to`: ask again from behind the last one.
    #[serde(skip_serializing_if = "is_not")]
    #[schema(value_type = Option<bool>, nullable = false)]
    partial: bool,
    /// How far behind it may be at most: everything acknowledged before that is in it.
    #[schema(example = 0)]
    staleness_ms: u64,
}

/// The value at a time.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = HistoryPoint)]
pub struct PointBody {
    /// When.
    #[schema(format = DateTime, example = "2026-02-23T10:00:00.000Z")]
    at: String,
    /// The value.
    value: i64,
    /// The same as text, where it is beyond 2^53.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    value_text: Option<String>,
}

impl HistoryReply {
    /// What a counter that was read knows of its past.
    pub fn of(key: &[u8], reply: &Reply, past: Past) -> HistoryReply {
        let points = known(reply, past);
        let partial = match past {
            Past::Points { step, to_ms, .. } if points.len() >= POINTS_MAX => {
                points.last().is_some_and(|(at_ms, _)| at_ms.saturating_add(step.step().ms()) <= to_ms)
            }
            _ => false,
        };
        let points = points.into_iter().map(|(at_ms, value)| PointBody {
            at: rfc3339(at_ms),
            value,
            value_text: text_if_large(value),
        });
        HistoryReply {
            key: KeyName::of(key),
            exists: reply.exists,
            points: points.collect(),
            partial,
            staleness_ms: 0,
        }
    }

    /// The same of a replica that may be behind.
    pub fn behind(self, staleness_ms: u64) -> HistoryReply {
        HistoryReply { staleness_ms, ..self }
    }

    /// How many points there are.
    pub fn len(&self) -> usize {
        self.points.len()
    }

    /// Whether nothing is known.
    pub fn is_empty(&self) -> bool {
        self.points.is_empty()
    }
}

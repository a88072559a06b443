//! Bodies that the server sends when the answer is not an error.
//!
//! ```text
//! a read     {"counterKey","value","version","updatedAt","kind","mode","exact","stalenessMs","exists"}, and
//!            {"standardError"} of an estimate, {"held","holds"} where something is set aside,
//!            {"dims","groups","partial"} of a part of the value
//! a change   the same and {"accepted","existed","applied","duplicate"}
//! a list     {"counters":[...],"cursor"}: reads
//! totals     {"pattern","sum","count","min","max","partial","parts":[{"partition","sum","count"}]}
//! a batch    {"results":[...]}: changes, or refused items with "accepted":false, "reason", "status"
//! ```

use std::borrow::Cow;
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use quipu_counting::aggregate::{Aggregate, Missing, Part};
use quipu_counting::kinds::seen_by;
use quipu_counting::unique::{EXACT_MAX, STANDARD_ERROR};
use quipu_counting::{
    Detail, Kind, ListOrder, ListPage, Listed, NEVER, Refusal, Reply, Slice, Sliced, Unique,
};
use serde::Serialize;
use utoipa::ToSchema;

use super::schema::{DifferenceSchema, KeyBase64Schema, KeySchema, SumSchema};
use super::timestamp::{LAST_MS, rfc3339};
use super::window::KindName;
use super::{cursor, text_if_large};
use crate::refusal::{Presentation, of_refusal, text};

/// A counter's name in a reply.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum KeyName {
    /// The key, where it is UTF-8.
    #[schema(value_type = KeySchema)]
    CounterKey(String),
    /// The key in standard base64, where it is not UTF-8.
    #[schema(value_type = KeyBase64Schema)]
    KeyBase64(String),
}

impl KeyName {
    /// How to show `key`.
    pub fn of(key: &[u8]) -> KeyName {
        match std::str::from_utf8(key) {
            Ok(text) => KeyName::CounterKey(text.to_owned()),
            Err(_) => KeyName::KeyBase64(STANDARD.encode(key)),
        }
    }
}

/// A counter as a read shows it.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Counter)]
pub struct CounterBody {
    #[serde(flatten)]
    key: KeyName,
    /// The value; 0 for a counter that does not exist.
    #[schema(example = 7)]
    value: i64,
    /// The value as text, where it is beyond 2^53 and a reader with doubles would lose digits.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = "9007199254740993")]
    value_text: Option<String>,
    /// How many changes made the counter what it is; 0 for one that does not exist.
    #[schema(example = 7)]
    version: u64,
    /// When it last changed; `null` for a counter that does not exist and for a refusal that is told again.
    #[schema(required = true, format = DateTime, example = "2026-02-23T10:00:00.000Z")]
    updated_at: Option<String>,
    /// When it will cease to exist, if it will. A time beyond the year 9999 is shown as its last millisecond, with
    /// `expiresAtMs` beside it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime, example = "2026-02-23T11:00:00.000Z")]
    expires_at: Option<String>,
    /// The same in milliseconds since 1970, where it is beyond the year 9999 and `expiresAt` cannot say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    expires_at_ms: Option<u64>,
    /// Whether the counter exists.
    exists: bool,
    /// What it counts.
    kind: KindName,
    // The same for every counter of this version, and said because clients decide by it.
    /// How it is kept.
    #[schema(example = "strong")]
    mode: &'static str,
    /// Whether the value is exact: a sum always is, a number of different items while they are few.
    exact: bool,
    /// The standard error of a value that is not exact, as a part of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = 0.0081)]
    standard_error: Option<f64>,
    /// The sum of the amounts that are set aside, where any are; not part of the value.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, value_type = Option<SumSchema>)]
    held: Option<i128>,
    /// How many holds set them aside.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = 1)]
    holds: Option<usize>,
    /// In lists: it has more than its numbers (items that were seen, sums by time, holds, history), and `bodies` of batch-get gives it.
    #[serde(skip_serializing_if = "is_not")]
    #[schema(value_type = Option<bool>, nullable = false)]
    has_body: bool,
    /// What it has beyond its numbers, in base64, where `bodies` was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    body: Option<String>,
    /// Where a part of the value was asked for: which.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    dims: Option<BTreeMap<String, String>>,
    /// Where every value of a dimension was asked for: the parts, in order; `value` is their sum.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    groups: Option<Vec<GroupBody>>,
    /// `true` where there are more than 1,000 groups: only the first are shown.
    #[serde(skip_serializing_if = "is_not")]
    partial: bool,
    /// How far behind the value may be at most: everything acknowledged before that is in it.
    #[schema(example = 0)]
    staleness_ms: u64,
}

impl CounterBody {
    /// The counter `key` as `reply` knows it.
    pub fn of(key: &[u8], reply: &Reply) -> CounterBody {
        let cell = &reply.cell;
        CounterBody {
            key: KeyName::of(key),
            value: cell.value,
            value_text: text_if_large(cell.value),
            version: cell.version,
            updated_at: (cell.updated_at_ms > 0).then(|| rfc3339(cell.updated_at_ms)),
            expires_at: (cell.expires_at_ms != NEVER).then(|| rfc3339(cell.expires_at_ms)),
            expires_at_ms: Some(cell.expires_at_ms).filter(|at_ms| *at_ms != NEVER && *at_ms > LAST_MS),
            exists: reply.exists,
            kind: KindName::of(reply.kind),
            mode: "strong",
            exact: !matches!(reply.detail.as_deref(), Some(Detail::Seen { is_exact: false })),
            standard_error: None,
            held: None,
            holds: None,
            has_body: false,
            body: None,
            dims: None,
            groups: None,
            partial: false,
            staleness_ms: 0,
        }
    }

    /// The same of a counter in a list. What is set aside is for a read to say, and how many uniques by time there are in their window.
    pub fn listed(listed: &Listed) -> CounterBody {
        let (kind, value) = (listed.kind(), listed.cell.value);
        let exact = kind != Kind::Unique || value <= EXACT_MAX as i64;
        CounterBody {
            exact,
            standard_error: (!exact).then_some(STANDARD_ERROR),
            has_body: listed.body.is_some(),
            ..CounterBody::of(&listed.key, &Reply { kind, ..Reply::state(Some(listed.cell)) })
        }
    }

    /// The same of a part of the value.
    pub fn of_slice(key: &[u8], reply: &Reply, slice: &Slice, sliced: &Sliced) -> CounterBody {
        let names = grouped_names(slice);
        let group = |(values, sum): &(Vec<String>, i64)| GroupBody {
            dims: dims_of_group(&names, values),
            value: *sum,
            value_text: text_if_large(*sum),
        };
        CounterBody {
            value: sliced.value,
            value_text: text_if_large(sliced.value),
            dims: Some(dims_of(slice)),
            groups: slice.is_grouped().then(|| sliced.groups.iter().map(group).collect()),
            partial: sliced.is_partial,
            ..CounterBody::of(key, reply)
        }
    }

    /// The same of the reply to a read, which knows all that the counter has.
    pub fn of_read(key: &[u8], reply: &Reply, now_ms: u64) -> CounterBody {
        let counter = CounterBody::of(key, reply);
        let Some(Detail::Body(body, frame)) = reply.detail.as_deref() else { return counter };
        let kind = body.kind();
        let seen = (kind == Kind::Unique).then(|| seen_by(body, frame.as_ref(), reply.as_of_ms(now_ms)));
        let exact = seen.as_ref().is_none_or(Unique::is_exact);
        let value = match (&seen, reply.exists) {
            (Some(seen), true) => i64::try_from(seen.count()).unwrap_or(i64::MAX),
            _ => counter.value,
        };
        let outstanding = body.holds.outstanding(now_ms);
        let has_holds = outstanding.count > 0;
        CounterBody {
            value,
            value_text: text_if_large(value),
            kind: KindName::of(kind),
            exact,
            standard_error: (!exact).then_some(STANDARD_ERROR),
            held: has_holds.then_some(outstanding.up + outstanding.down),
            holds: has_holds.then_some(outstanding.count),
            ..counter
        }
    }

    /// The same with all that the counter has.
    pub fn with_body(self, reply: &Reply) -> CounterBody {
        let Some(Detail::Body(body, _)) = reply.detail.as_deref() else { return self };
        let mut bytes = Vec::new();
        body.put(&mut bytes);
        CounterBody { body: Some(STANDARD.encode(bytes)), ..self }
    }

    /// How long that is.
    pub fn body_bytes(&self) -> usize {
        self.body.as_ref().map_or(0, String::len)
    }

    /// The same of a replica that may be behind.
    pub fn behind(self, staleness_ms: u64) -> CounterBody {
        CounterBody { staleness_ms, ..self }
    }
}

/// One part of a value.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Group)]
pub struct GroupBody {
    /// What it belongs to.
    dims: BTreeMap<String, String>,
    /// How much it is.
    #[schema(example = 3)]
    value: i64,
    /// The same as text, where it is beyond 2^53.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    value_text: Option<String>,
}

/// A part of many values.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SumGroup {
    /// What it belongs to.
    dims: BTreeMap<String, String>,
    /// How much it is.
    #[schema(value_type = SumSchema, example = 42)]
    sum: i128,
    /// The same as text, where it is beyond 2^53.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    sum_text: Option<String>,
}

/// The dimensions whose values are asked for one by one.
fn grouped_names(slice: &Slice) -> Vec<&str> {
    slice.iter().filter(|(_, value)| value.is_none()).map(|(name, _)| name).collect()
}

fn dims_of_group(names: &[&str], values: &[String]) -> BTreeMap<String, String> {
    names.iter().map(|name| (*name).to_owned()).zip(values.iter().cloned()).collect()
}

fn dims_of(slice: &Slice) -> BTreeMap<String, String> {
    slice.iter().map(|(name, value)| (name.to_owned(), value.unwrap_or("*").to_owned())).collect()
}

/// A counter after a change, and what the change was.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Change)]
pub struct ChangeBody {
    #[serde(flatten)]
    counter: CounterBody,
    /// Whether the change was made.
    accepted: bool,
    /// Whether the counter existed before.
    existed: bool,
    /// By how much the value changed: up to 2^64 - 1 either way.
    #[schema(value_type = DifferenceSchema, example = 1)]
    applied: i128,
    /// The same as text, where it is beyond 2^53.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    applied_text: Option<String>,
    /// Whether this is the first outcome of the same request again.
    duplicate: bool,
}

impl ChangeBody {
    /// What `reply` did to the counter `key`.
    pub fn of(key: &[u8], reply: &Reply) -> ChangeBody {
        ChangeBody {
            counter: CounterBody::of(key, reply),
            accepted: reply.refusal.is_none(),
            existed: reply.existed,
            applied: reply.difference(),
            applied_text: text_if_large(reply.difference()),
            duplicate: reply.duplicate,
        }
    }

    /// The same with a value that may be behind.
    pub fn behind(self, staleness_ms: u64) -> ChangeBody {
        ChangeBody { counter: self.counter.behind(staleness_ms), ..self }
    }
}

/// One item of a batch that was refused: a change that was not accepted, and why.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = RefusedChange)]
pub struct RefusedItem {
    #[serde(flatten)]
    change: ChangeBody,
    /// A stable word for programs.
    #[schema(example = "above-ceiling")]
    reason: &'static str,
    /// What happened and what to do, in one sentence.
    #[schema(value_type = String)]
    detail: Cow<'static, str>,
    /// The status a call of its own would have had.
    #[schema(example = 409)]
    status: u16,
}

impl RefusedItem {
    /// What `refusal` means for the counter `key`.
    pub fn of(key: &[u8], reply: &Reply, refusal: Refusal) -> RefusedItem {
        let Presentation { status, .. } = of_refusal(refusal);
        RefusedItem {
            change: ChangeBody::of(key, reply),
            reason: refusal.code(),
            detail: text(refusal, reply),
            status: *status,
        }
    }
}

/// One item of a batch of which nothing is known but why: nobody could be asked, or nobody has answered.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = UnansweredChange)]
pub struct UnansweredItem {
    #[serde(flatten)]
    key: KeyName,
    /// A stable word for programs.
    #[schema(example = "no-leader")]
    reason: &'static str,
    /// What happened and what to do, in one sentence.
    detail: &'static str,
    /// The status a call of its own would have had.
    #[schema(example = 503)]
    status: u16,
}

impl UnansweredItem {
    /// What `refusal` means for the counter `key`.
    fn of(key: &[u8], refusal: Refusal) -> UnansweredItem {
        let Presentation { status, text, .. } = of_refusal(refusal);
        UnansweredItem { key: KeyName::of(key), reason: refusal.code(), detail: text, status: *status }
    }
}

/// The outcome of one item of a batch of changes.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(untagged)]
#[schema(as = BatchResult)]
pub enum ItemBody {
    /// A change.
    Change(ChangeBody),
    /// A change that was refused.
    Refused(RefusedItem),
    /// A change of which nothing is known.
    Unanswered(UnansweredItem),
}

impl ItemBody {
    /// The outcome of a change.
    pub fn of_change(key: &[u8], reply: &Reply) -> ItemBody {
        match reply.refusal {
            None => ItemBody::Change(ChangeBody::of(key, reply)),
            Some(refusal) if refusal.knows_counter() => {
                ItemBody::Refused(RefusedItem::of(key, reply, refusal))
            }
            Some(refusal) => ItemBody::Unanswered(UnansweredItem::of(key, refusal)),
        }
    }

    /// The same with a value that may be behind.
    pub fn behind(self, staleness_ms: u64) -> ItemBody {
        match self {
            ItemBody::Change(change) => ItemBody::Change(change.behind(staleness_ms)),
            other => other,
        }
    }
}

/// The outcomes of a batch, in the order of its items.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ResultsBody<T> {
    /// One for each item.
    pub results: Vec<T>,
}

/// One page of a list of counters.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = CounterList)]
pub struct ListBody {
    /// In the order asked for.
    pub counters: Vec<CounterBody>,
    /// Where the next page goes on; `null` where there is none.
    #[schema(required = true)]
    pub cursor: Option<String>,
}

impl ListBody {
    /// The page.
    pub fn of(order: ListOrder, page: &ListPage) -> ListBody {
        ListBody {
            counters: page.counters.iter().map(CounterBody::listed).collect(),
            cursor: page.next().map(|place| cursor::encode(order, &place)),
        }
    }
}

/// The totals of all counters that a pattern selects.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Aggregate)]
pub struct AggregateBody {
    #[serde(flatten)]
    pattern: PatternName,
    /// Where a part of each value was asked for: which.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    dims: Option<BTreeMap<String, String>>,
    /// Sum of the values: up to 127 bits either way.
    #[schema(value_type = SumSchema, example = 42)]
    sum: i128,
    /// The same as text, where it is beyond 2^53.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    sum_text: Option<String>,
    /// How many counters match.
    #[schema(example = 3)]
    count: u64,
    /// The smallest value; `null` where no counter matches.
    #[schema(required = true, example = 7)]
    min: Option<i64>,
    /// The same as text, where it is beyond 2^53.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    min_text: Option<String>,
    /// The largest value; `null` where no counter matches.
    #[schema(required = true, example = 20)]
    max: Option<i64>,
    /// The same as text, where it is beyond 2^53.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    max_text: Option<String>,
    /// Where every value of a dimension was asked for: the sums, in order.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    groups: Option<Vec<SumGroup>>,
    /// Whether counters of some partitions are missing, or there are more than 1,000 groups.
    partial: bool,
    /// Where the numbers come from: partitions that have counters that match.
    parts: Vec<AggregatePart>,
    /// Which partitions are missing, and why; only where some are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing: Vec<AggregateMissing>,
}

/// What one partition has.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AggregatePart {
    /// Its number.
    partition: u16,
    /// The node that leads it and has added up, in a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    node: Option<u64>,
    /// Sum of the values.
    #[schema(value_type = SumSchema, example = 42)]
    sum: i128,
    /// The same as text, where it is beyond 2^53.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    sum_text: Option<String>,
    /// How many counters match.
    #[schema(example = 3)]
    count: u64,
}

/// A partition that nobody could be asked about.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct AggregateMissing {
    /// Its number.
    partition: u16,
    /// What was tried in vain.
    #[schema(example = "nobody leads it at the moment")]
    detail: String,
}

impl AggregateBody {
    /// The answer to `pattern`, of all of the values or a part of each.
    pub fn of(pattern: &[u8], slice: Option<&Slice>, aggregate: Aggregate) -> AggregateBody {
        let totals = aggregate.totals();
        let partial = aggregate.is_partial() || totals.has_more_groups;
        let names = slice.map(grouped_names).unwrap_or_default();
        let group = |(values, sum): (&Vec<String>, &i128)| SumGroup {
            dims: dims_of_group(&names, values),
            sum: *sum,
            sum_text: text_if_large(*sum),
        };
        let groups = (!names.is_empty()).then(|| totals.groups.iter().map(group).collect());
        let (min, max) = totals.range().unzip();
        let part = |part: &Part| AggregatePart {
            partition: part.partition,
            node: part.node,
            sum: part.totals.sum,
            sum_text: text_if_large(part.totals.sum),
            count: part.totals.count,
        };
        let missing =
            |missing: Missing| AggregateMissing { partition: missing.partition, detail: missing.why };
        AggregateBody {
            pattern: PatternName::of(pattern),
            dims: slice.map(dims_of),
            sum: totals.sum,
            sum_text: text_if_large(totals.sum),
            count: totals.count,
            min,
            min_text: min.and_then(text_if_large),
            max,
            max_text: max.and_then(text_if_large),
            groups,
            partial,
            parts: aggregate.parts.iter().map(part).collect(),
            missing: aggregate.missing.into_iter().map(missing).collect(),
        }
    }
}

pub(super) fn is_not(flag: &bool) -> bool {
    !flag
}

/// A pattern in a reply.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum PatternName {
    /// The pattern, where it is UTF-8.
    #[schema(value_type = KeySchema)]
    Pattern(String),
    /// The pattern in standard base64, where it is not UTF-8.
    #[schema(value_type = KeyBase64Schema)]
    PatternBase64(String),
}

impl PatternName {
    /// How to show `pattern`.
    pub fn of(pattern: &[u8]) -> PatternName {
        match std::str::from_utf8(pattern) {
            Ok(text) => PatternName::Pattern(text.to_owned()),
            Err(_) => PatternName::PatternBase64(STANDARD.encode(pattern)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{AggregateBody, ChangeBody, CounterBody, ItemBody, LAST_MS};
    use quipu_counting::aggregate::{Aggregate, Missing, Part, Totals};
    use quipu_counting::{Cell, NEVER, Refusal, Reply};
    use serde_json::{Value, json};

    fn cell(value: i64) -> Cell {
        Cell { value, version: 7, updated_at_ms: 1_771_834_530_250, birth: 3, expires_at_ms: NEVER }
    }

    fn object(body: impl serde::Serialize) -> Value {
        serde_json::to_value(body).unwrap()
    }

    #[test]
    fn a_counter() {
        assert_eq!(
            object(CounterBody::of(b"a", &Reply::state(Some(cell(7))))),
            json!({"counterKey": "a", "value": 7, "version": 7, "updatedAt": "2026-02-23T08:15:30.250Z",
                   "exists": true, "kind": "sum", "mode": "strong", "exact": true, "stalenessMs": 0})
        );
        let absent = object(CounterBody::of(b"a", &Reply::state(None)));
        assert_eq!(
            (&absent["value"], &absent["exists"], &absent["updatedAt"]),
            (&json!(0), &json!(false), &Value::Null)
        );
    }

    #[test]
    fn totals() {
        let nothing = Aggregate::default();
        assert_eq!(
            object(AggregateBody::of(b"likes:*", None, nothing)),
            json!({"pattern": "likes:*", "sum": 0, "count": 0, "min": null, "max": null, "partial": false, "parts": []})
        );
        let of = |value| {
            let mut totals = Totals::NOTHING;
            totals.add(value);
            totals
        };
        let parts = vec![
            Part { partition: 2, node: None, totals: of(-3) },
            Part { partition: 9, node: Some(4), totals: of((1 << 53) + 5) },
        ];
        let missing = vec![Missing { partition: 7, why: "nobody leads it".to_owned() }];
        assert_eq!(
            object(AggregateBody::of(b"*", None, Aggregate { parts, missing })),
            json!({"pattern": "*", "sum": 9_007_199_254_740_994_i64, "sumText": "9007199254740994", "count": 2,
                   "min": -3, "max": 9_007_199_254_740_997_i64, "maxText": "9007199254740997", "partial": true,
                   "parts": [
                       {"partition": 2, "sum": -3, "count": 1},
                       {"partition": 9, "node": 4, "sum": 9_007_199_254_740_997_i64, "sumText": "9007199254740997",
                        "count": 1}],
                   "missing": [{"partition": 7, "detail": "nobody leads it"}]})
        );
        // Sums have more digits than a value of JSON in memory; bytes have room for them.
        let large = Part { partition: 0, node: None, totals: Totals { sum: i128::MIN, ..of(1) } };
        let large = AggregateBody::of(b"*", None, Aggregate { parts: vec![large], missing: Vec::new() });
        let bytes = serde_json::to_string(&large).unwrap();
        assert!(bytes.contains(&format!("\"sum\":{0},\"sumText\":\"{0}\"", i128::MIN)), "{bytes}");
    }

    #[test]
    fn what_json_would_lose_is_also_text() {
        for (value, text) in [
            (1 << 53, Value::Null),
            ((1 << 53) + 1, json!("9007199254740993")),
            (-(1 << 53) - 1, json!("-9007199254740993")),
            (i64::MIN, json!("-9223372036854775808")),
        ] {
            let body = object(CounterBody::of(b"a", &Reply::state(Some(cell(value)))));
            assert_eq!((&body["value"], &body["valueText"]), (&json!(value), &text));
        }
        for (expires_at_ms, text, number) in [
            (LAST_MS, json!("9999-12-31T23:59:59.999Z"), Value::Null),
            (LAST_MS + 1, json!("9999-12-31T23:59:59.999Z"), json!(LAST_MS + 1)),
            (NEVER, Value::Null, Value::Null),
        ] {
            let body = object(CounterBody::of(b"a", &Reply::state(Some(Cell { expires_at_ms, ..cell(1) }))));
            assert_eq!((&body["expiresAt"], &body["expiresAtMs"]), (&text, &number), "{expires_at_ms}");
        }
        let body = object(CounterBody::of(&[0xff, 0x00], &Reply::state(None)));
        assert_eq!((&body["keyBase64"], &body["counterKey"]), (&json!("/wA="), &Value::Null));
    }

    #[test]
    fn changes_and_refusals() {
        let changed = Reply { previous: 7, applied: 2, duplicate: true, ..Reply::state(Some(cell(9))) };
        let body = object(ChangeBody::of(b"a", &changed));
        for (field, expected) in [
            ("accepted", json!(true)),
            ("applied", json!(2)),
            ("value", json!(9)),
            ("duplicate", json!(true)),
        ] {
            assert_eq!(body[field], expected, "{field}");
        }
        let refused = Reply { refusal: Some(Refusal::AboveCeiling), ..Reply::state(Some(cell(9))) };
        let body = object(ItemBody::of_change(b"a", &refused));
        for (field, expected) in [
            ("accepted", json!(false)),
            ("applied", json!(0)),
            ("value", json!(9)),
            ("reason", json!("above-ceiling")),
            ("status", json!(409)),
        ] {
            assert_eq!(body[field], expected, "{field}");
        }
    }
}

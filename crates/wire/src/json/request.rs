//! Bodies that clients send. Read strictly: what is not understood is refused by name, never ignored, because a
//! misspelled `max` that is skipped sells more than there is in stock.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use quipu_counting::rollup::{CellsKept, Declared, dimensions_problem};
use quipu_counting::{Add, Condition, Expiry, ID_BYTES_MAX, KEY_BYTES_MAX, Kind, Policy, Set, Told};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, DeserializeOwned, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::EXACT_INTEGER_MAX;
use super::audit::Kept;
use super::quota::WindowArgument;
use super::schema::{
    AuditKeptSchema, CountSchema, DurationSchema, IntegerSchema, KeyBase64Schema, KeyOrBase64Schema,
    KeySchema, MomentSchema, RequestIdSchema, TtlSchema, VersionSchema,
};
use super::timestamp::{MOMENT, time_ms};
use super::window::{HistoryBody, KindName, WindowBody};
use crate::duration::any_duration_ms;
use crate::number::parse_i64;

/// The most items of one batch. With the limit on the body this bounds what one request can make the server hold.
pub const BATCH_ITEMS_MAX: usize = 10_000;

/// The most counters of one call that are given with all they have: some megabytes each, at worst.
pub const BODIES_MAX: usize = 10;

/// Why a body was refused: one sentence for a person, beginning with the field.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BodyError(pub String);

impl BodyError {
    pub(super) fn field(path: impl fmt::Display, problem: impl fmt::Display) -> BodyError {
        BodyError(format!("`{path}`: {problem}"))
    }
}

/// Reads a body that must be there.
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, BodyError> {
    if body.is_empty() {
        return Err(BodyError("the body is empty; a JSON object is expected".to_owned()));
    }
    // serde would also read an array, field by position: nobody means that.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(BodyError("the body is not what was expected: a JSON object".to_owned()));
    }
    // Keeping track of the path costs as much as reading; it is needed only to say what is wrong.
    serde_json::from_slice(body).map_err(|error| explain::<T>(body, &error))
}

fn explain<T: DeserializeOwned>(body: &[u8], error: &serde_json::Error) -> BodyError {
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    match serde_path_to_error::deserialize::<_, T>(&mut deserializer) {
        // What follows the object is at fault.
        Ok(_) => BodyError(error.to_string()),
        // Where the text breaks off or is no JSON, the path to a field would only distract.
        Err(error) if !error.inner().is_data() => {
            BodyError(format!("the body is not JSON: {}", error.inner()))
        }
        // The path is "." where the object itself is at fault; the inner message then says all.
        Err(error) => match error.path().to_string().as_str() {
            "." => BodyError(error.inner().to_string()),
            path => BodyError::field(path, error.inner()),
        },
    }
}

/// A JSON object within a body. By itself serde reads an array too.
#[derive(Debug)]
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Object<T>, D::Error> {
        struct ObjectVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
            type Value = Object<T>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(Object)
            }
        }
        deserializer.deserialize_map(ObjectVisitor(PhantomData))
    }
}

/// Reads a body whose fields are all optional, and which may itself be absent.
pub fn parse_or_default<T: DeserializeOwned + Default>(body: &[u8]) -> Result<T, BodyError> {
    if body.is_empty() { Ok(T::default()) } else { parse(body) }
}

/// An `i64` as a JSON number or as text, for senders whose numbers are doubles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Integer(pub i64);

impl<'de> Deserialize<'de> for Integer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Integer, D::Error> {
        struct IntegerVisitor;
        impl Visitor<'_> for IntegerVisitor {
            type Value = Integer;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a whole number from -2^63 to 2^63-1, plain or as a string")
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Integer, E> {
                Ok(Integer(number))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Integer, E> {
                let integer = i64::try_from(number);
                integer.map(Integer).map_err(|_| E::invalid_value(de::Unexpected::Unsigned(number), &self))
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Integer, E> {
                whole(number, &self).map(Integer)
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Integer, E> {
                let integer = parse_i64(text.as_bytes());
                integer.map(Integer).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(IntegerVisitor)
    }
}

/// A number that was written with a fraction or an exponent: 1.0 and 1e3 are whole, and many languages write them so.
/// Beyond 2^53 such a number has lost digits on its way.
fn whole<E: de::Error>(number: f64, expected: &dyn de::Expected) -> Result<i64, E> {
    if number.fract() != 0.0 {
        return Err(E::invalid_value(de::Unexpected::Float(number), expected));
    }
    // 2^53 + 1 has become 2^53 by now.
    if number.abs() >= EXACT_INTEGER_MAX as f64 {
        return Err(E::custom(
            "a number beyond 2^53 must be written without fraction and exponent, or as a string",
        ));
    }
    Ok(number as i64)
}

/// A whole number from 0 on, at least `LEAST`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsigned<const LEAST: u64>(pub u64);

impl<'de, const LEAST: u64> Deserialize<'de> for Unsigned<LEAST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Unsigned<LEAST>, D::Error> {
        struct UnsignedVisitor<const LEAST: u64>;
        impl<const LEAST: u64> Visitor<'_> for UnsignedVisitor<LEAST> {
            type Value = Unsigned<LEAST>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, "a whole number from {LEAST} to 2^64-1")
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Unsigned<LEAST>, E> {
                let is_enough = number >= LEAST;
                is_enough
                    .then_some(Unsigned(number))
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Unsigned(number), &self))
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Unsigned<LEAST>, E> {
                match u64::try_from(whole(number, &self)?) {
                    Ok(number) => self.visit_u64(number),
                    Err(_) => Err(E::invalid_value(de::Unexpected::Float(number), &self)),
                }
            }
        }
        deserializer.deserialize_any(UnsignedVisitor)
    }
}

/// Milliseconds as a number, or as the text that [`Written`] knows.
#[derive(Debug)]
pub struct Ms<W>(pub u64, PhantomData<W>);

/// How people write milliseconds of a kind.
pub trait Written {
    /// What is expected.
    const EXPECTED: &'static str;
    /// What a text says.
    fn read(text: &str) -> Option<u64>;
}

/// A time: since 1970.
#[derive(Debug)]
pub struct Moment;

impl Written for Moment {
    const EXPECTED: &'static str = MOMENT;

    fn read(text: &str) -> Option<u64> {
        time_ms(text)
    }
}

/// How long something lasts.
#[derive(Debug)]
pub struct Lasting;

impl Written for Lasting {
    const EXPECTED: &'static str = "a duration like 500ms, 90s, 15m, 24h or 7d, or a number of milliseconds";

    fn read(text: &str) -> Option<u64> {
        any_duration_ms(text).ok()
    }
}

impl<'de, W: Written> Deserialize<'de> for Ms<W> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Ms<W>, D::Error> {
        struct MsVisitor<W>(PhantomData<W>);
        impl<W: Written> Visitor<'_> for MsVisitor<W> {
            type Value = Ms<W>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(W::EXPECTED)
            }

            fn visit_u64<E: de::Error>(self, ms: u64) -> Result<Ms<W>, E> {
                Ok(Ms(ms, PhantomData))
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Ms<W>, E> {
                match u64::try_from(whole(number, &self)?) {
                    Ok(ms) => self.visit_u64(ms),
                    Err(_) => Err(E::invalid_value(de::Unexpected::Float(number), &self)),
                }
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Ms<W>, E> {
                let ms = W::read(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))?;
                Ok(Ms(ms, PhantomData))
            }
        }
        deserializer.deserialize_any(MsVisitor(PhantomData))
    }
}

/// Milliseconds; no time at all would be the end at once.
type Ttl = Unsigned<1>;

/// The body of a call that takes no fields. `{}` and nothing at all are both right.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Nothing)]
pub struct NoFields {}

/// What may be said about an addition: the body of increment and decrement, and one item of a batch.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = Addition)]
#[allow(clippy::manual_non_exhaustive)] // the last field is there to be refused
pub struct AddBody {
    /// The counter.
    #[schema(value_type = Option<KeySchema>)]
    pub key: Option<String>,
    /// The counter in base64, where its name is not UTF-8.
    #[schema(value_type = Option<KeyBase64Schema>)]
    pub key_base64: Option<String>,
    /// The id under which a retry of this item is recognized.
    #[schema(value_type = Option<RequestIdSchema>)]
    pub request_id: Option<String>,
    /// What to add (or, in a decrement, to take away); 1 where nothing is said.
    #[schema(value_type = Option<IntegerSchema>)]
    pub delta: Option<Integer>,
    /// The result must not be below this.
    #[schema(value_type = Option<IntegerSchema>)]
    pub min: Option<Integer>,
    /// The result must not be above this.
    #[schema(value_type = Option<IntegerSchema>)]
    pub max: Option<Integer>,
    /// Take what the bounds leave instead of refusing.
    #[serde(default)]
    pub saturate: bool,
    /// Expire so many milliseconds after this change.
    #[schema(value_type = Option<TtlSchema>)]
    pub ttl_ms: Option<Ttl>,
    /// `ttlMs` counts only where the counter has no expiry yet.
    #[serde(default)]
    pub ttl_if_none: bool,
    /// The counter must have this version; 0 means that it must not exist.
    #[schema(value_type = Option<VersionSchema>)]
    pub if_version: Option<Unsigned<0>>,
    /// When it happened, if not now: counted for that time, by counters with a window, as far back as their policy allows.
    #[schema(value_type = Option<MomentSchema>)]
    pub at: Option<Ms<Moment>>,
    /// What it belongs to: names of dimensions that a policy declares, and values.
    #[schema(example = json!({"tenant": "a"}))]
    pub dims: Option<BTreeMap<String, String>>,
    /// Anything that stays the same, as who it is for: of a counter that lies in stripes, additions with the same go to the same
    /// stripe. Under a request id, the id says which.
    #[schema(value_type = Option<RequestIdSchema>, example = "user-7")]
    pub stripe_by: Option<String>,
}

/// Which way an addition counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// `delta` is added.
    Up,
    /// `delta` is taken away.
    Down,
}

impl AddBody {
    /// The addition of a call whose path names the counter. `condition` is what the call demands in all: the caller
    /// makes it of the headers and of [`AddBody::if_version`].
    pub fn to_add(&self, direction: Direction, condition: Condition) -> Result<Add, BodyError> {
        let in_batches = [("key", self.key.is_some()), ("keyBase64", self.key_base64.is_some())];
        if let Some((field, _)) = in_batches.iter().find(|(_, given)| *given) {
            return Err(BodyError::field(field, "the path names the counter; leave the field out"));
        }
        if self.request_id.is_some() {
            return Err(BodyError::field("requestId", "send it as the header Idempotency-Key"));
        }
        self.addition(direction, condition)
    }

    /// The key and the addition of item `index` of a batch.
    pub fn to_item(&self, index: usize) -> Result<(Vec<u8>, Add), BodyError> {
        let at = |error: BodyError| BodyError(format!("items[{index}]: {error}"));
        let key = key_bytes(self.key.as_deref(), self.key_base64.as_deref()).map_err(at)?;
        if self.request_id.as_ref().is_some_and(|id| id.is_empty() || id.len() > ID_BYTES_MAX) {
            return Err(at(BodyError::field(
                "requestId",
                format_args!("must have 1 to {ID_BYTES_MAX} bytes"),
            )));
        }
        let condition = self.if_version.map_or(Condition::Always, |version| Condition::Version(version.0));
        Ok((key, self.addition(Direction::Up, condition).map_err(at)?))
    }

    /// What is told of it beyond the amount.
    pub fn told(&self) -> Result<Told<'_>, BodyError> {
        let at_ms = self.at.as_ref().map(|at| at.0);
        Ok(Told { at_ms, dimensions: dimensions(self.dims.as_ref())?, reason: None })
    }

    fn addition(&self, direction: Direction, condition: Condition) -> Result<Add, BodyError> {
        if self.stripe_by.as_ref().is_some_and(|value| value.is_empty() || value.len() > ID_BYTES_MAX) {
            return Err(BodyError::field("stripeBy", format_args!("must have 1 to {ID_BYTES_MAX} bytes")));
        }
        let delta = self.delta.map_or(1, |delta| delta.0);
        let delta = match direction {
            Direction::Up => delta,
            Direction::Down => delta.checked_neg().ok_or_else(|| {
                BodyError::field("delta", "the smallest number cannot be taken away; add it instead")
            })?,
        };
        let min = self.min.map_or(i64::MIN, |min| min.0);
        let max = self.max.map_or(i64::MAX, |max| max.0);
        if min > max {
            return Err(BodyError::field("min", format_args!("{min} is above `max` {max}")));
        }
        let expiry = match (self.ttl_ms, self.ttl_if_none) {
            (None, false) => Expiry::Keep,
            (Some(ttl), false) => Expiry::In(ttl.0),
            (Some(ttl), true) => Expiry::InIfNone(ttl.0),
            (None, true) => return Err(BodyError::field("ttlIfNone", "needs `ttlMs`")),
        };
        Ok(Add { delta, min, max, saturate: self.saturate, expiry, condition })
    }
}

/// The dimensions of an addition.
pub(super) fn dimensions(dims: Option<&BTreeMap<String, String>>) -> Result<Vec<(&str, &str)>, BodyError> {
    let all = || dims.into_iter().flatten().map(|(name, value)| (name.as_str(), value.as_str()));
    match dimensions_problem(all()) {
        Some(problem) => Err(BodyError::field("dims", problem)),
        None => Ok(all().collect()),
    }
}

/// A replacement of the value: the body of PUT on a counter.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = Replacement)]
pub struct SetBody {
    /// The new value.
    #[schema(value_type = IntegerSchema)]
    pub value: Integer,
    /// Expire so many milliseconds after this change. Without it the expiry stays as it is.
    #[schema(value_type = Option<TtlSchema>)]
    pub ttl_ms: Option<Ttl>,
    /// The counter no longer expires.
    #[serde(default)]
    pub persist: bool,
    /// The counter must have this version; 0 means that it must not exist.
    #[schema(value_type = Option<VersionSchema>)]
    pub if_version: Option<Unsigned<0>>,
}

impl SetBody {
    /// The replacement; `condition` is what the call demands in all, as in [`AddBody::to_add`].
    pub fn to_set(&self, condition: Condition) -> Result<Set, BodyError> {
        let expiry = match (self.ttl_ms, self.persist) {
            (None, false) => Expiry::Keep,
            (None, true) => Expiry::Clear,
            (Some(ttl), false) => Expiry::In(ttl.0),
            (Some(_), true) => return Err(BodyError::field("persist", "contradicts `ttlMs`")),
        };
        Ok(Set { value: self.value.0, expiry, condition })
    }
}

/// Many additions in one call.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = BatchIncrement)]
pub struct BatchAddBody {
    /// The additions, in order.
    #[schema(value_type = Vec<AddBody>, min_items = 1)]
    pub items: Vec<Object<AddBody>>,
    /// All or none; otherwise each item stands alone.
    #[serde(default)]
    pub atomic: bool,
}

/// Many reads in one call.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BatchGet)]
pub struct BatchGetBody {
    /// The counters, in order.
    #[schema(value_type = Vec<KeyOrBase64Schema>, min_items = 1)]
    pub keys: Vec<KeyBody>,
    /// Say also what each has beyond its numbers, as `body`; at most 10 counters then.
    #[serde(default)]
    pub bodies: bool,
}

/// A key within a body.
#[derive(Debug)]
pub enum KeyBody {
    /// A key that is UTF-8.
    Text(String),
    /// Any key, in standard base64.
    Base64(String),
}

impl<'de> Deserialize<'de> for KeyBody {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<KeyBody, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        struct Encoded {
            key_base64: String,
        }
        struct KeyVisitor;
        impl<'de> Visitor<'de> for KeyVisitor {
            type Value = KeyBody;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a key as a string, or {\"keyBase64\": \"...\"}")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<KeyBody, E> {
                Ok(KeyBody::Text(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<KeyBody, A::Error> {
                let encoded = Encoded::deserialize(MapAccessDeserializer::new(map))?;
                Ok(KeyBody::Base64(encoded.key_base64))
            }
        }
        deserializer.deserialize_any(KeyVisitor)
    }
}

impl KeyBody {
    /// The key's bytes.
    pub fn to_key(&self, index: usize) -> Result<Vec<u8>, BodyError> {
        self.to_key_of("keys", index)
    }

    /// The same of another list of keys.
    pub fn to_key_of(&self, list: &str, index: usize) -> Result<Vec<u8>, BodyError> {
        let bytes = match self {
            KeyBody::Text(text) => key_bytes(Some(text), None),
            KeyBody::Base64(base64) => key_bytes(None, Some(base64)),
        };
        bytes.map_err(|error| BodyError(format!("{list}[{index}]: {error}")))
    }
}

pub(super) fn key_bytes(text: Option<&str>, base64: Option<&str>) -> Result<Vec<u8>, BodyError> {
    let (field, bytes) = match (text, base64) {
        (Some(text), None) => ("key", text.as_bytes().to_vec()),
        (None, Some(base64)) => {
            ("keyBase64", STANDARD.decode(base64).map_err(|error| BodyError::field("keyBase64", error))?)
        }
        (Some(_), Some(_)) => {
            return Err(BodyError::field("keyBase64", "contradicts `key`; send one of them"));
        }
        (None, None) => return Err(BodyError::field("key", "is missing")),
    };
    if bytes.is_empty() || bytes.len() > KEY_BYTES_MAX {
        return Err(BodyError::field(
            field,
            format_args!("a key has 1 to {KEY_BYTES_MAX} bytes, not {}", bytes.len()),
        ));
    }
    Ok(bytes)
}

/// A policy: the body of PUT on a pattern.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schema(as = PolicySettings)]
pub struct PolicyBody {
    /// No change may bring the value below this.
    #[schema(value_type = Option<IntegerSchema>)]
    pub min: Option<Integer>,
    /// No change may bring the value above this.
    #[schema(value_type = Option<IntegerSchema>)]
    pub max: Option<Integer>,
    /// Additions take what the bounds leave: those of the policy, and those that a call gives.
    #[serde(default)]
    pub saturate: bool,
    /// Counters born under this policy expire so many milliseconds after their birth; a duration like `1h` says it too.
    #[schema(value_type = Option<TtlSchema>)]
    pub ttl_ms: Option<Ms<Lasting>>,
    /// Writes are refused, reads are served.
    #[serde(default)]
    pub disabled: bool,
    /// What counters are born as.
    pub kind: Option<KindName>,
    /// How time is cut, for windows, and for uniques by time. A duration alone is a sliding window in sixty buckets.
    #[schema(value_type = Option<WindowBody>)]
    pub window: Option<WindowArgument>,
    /// The limit of `acquire`, where a call gives none. Of counters without a window it is one of the value. Plain additions do not ask for it.
    #[schema(value_type = Option<CountSchema>)]
    pub limit: Option<Integer>,
    /// `acquire` counts also beyond the limit, and says so: that of the policy, or one that a call gives.
    #[serde(default)]
    pub soft: bool,
    /// How long what the value was stays known.
    #[schema(value_type = Option<HistoryBody>)]
    pub history: Option<Object<HistoryBody>>,
    /// How long ago something may have happened that is counted for its time (`at`); as long as past windows are kept where it is not said.
    #[schema(value_type = Option<DurationSchema>)]
    pub lateness: Option<Ms<Lasting>>,
    /// How long it stays known who changed a counter, when and why, like `30d`.
    #[schema(value_type = Option<AuditKeptSchema>)]
    pub audit: Option<Kept>,
    /// By which dimensions values are rolled up: for each roll-up the names of its dimensions.
    #[schema(example = json!([["tenant"], ["day"], ["tenant", "day"]]))]
    pub rollups: Option<Vec<Vec<String>>>,
    /// How long what is rolled up by `minute`, `hour`, `day`, `week`, `month` or `year` is told apart by it; for ever where it is not said.
    /// What is older has the empty value there.
    #[schema(value_type = Option<BTreeMap<String, DurationSchema>>, example = json!({"day": "365d"}))]
    pub rollup_keep: Option<BTreeMap<String, Ms<Lasting>>>,
    /// `strong`: of a deployment on Redis with an archive, counters in rows of PostgreSQL. Elsewhere every counter is strong.
    pub consistency: Option<ConsistencyName>,
    /// Over how many places a counter is spread, for counters that are written too often for one: a power of two. Only for plain sums, and
    /// only where counters lie in Redis.
    #[schema(value_type = Option<u16>, minimum = 1, maximum = 64)]
    pub stripes: Option<Integer>,
}

/// How a counter is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Consistency)]
pub enum ConsistencyName {
    /// In one order, as durable as it can be.
    Strong,
}

impl PolicyBody {
    /// The policy, if it makes sense.
    pub fn to_policy(&self) -> Result<Policy, BodyError> {
        let (min, max) = (self.min.map(|min| min.0), self.max.map(|max| max.0));
        if let (Some(min), Some(max)) = (min, max)
            && min > max
        {
            return Err(BodyError::field("min", format_args!("{min} is above `max` {max}")));
        }
        let kind = self.kind.map(KindName::kind);
        let window = match (&self.window, kind) {
            (Some(_), None | Some(Kind::Sum)) => {
                return Err(BodyError::field("window", "is for `kind` window or unique"));
            }
            (None, Some(Kind::Window)) => Some(WindowBody::default().to_keeping()?),
            (Some(window), Some(Kind::Unique)) => Some(window.to_body().to_keeping_of_sketches()?),
            (window, _) => window.as_ref().map(|window| window.to_body().to_keeping()).transpose()?,
        };
        let lateness_ms = self.lateness.as_ref().map(|lateness| lateness.0);
        match (lateness_ms, &window) {
            (Some(late_ms), Some(keeping)) if late_ms > keeping.keep_ms => {
                let problem = format_args!("is longer than past windows are kept: {} ms", keeping.keep_ms);
                return Err(BodyError::field("lateness", problem));
            }
            (None, _) | (Some(_), Some(_)) => {}
            (Some(_), None) => return Err(BodyError::field("lateness", "is for counters with a `window`")),
        }
        if kind == Some(Kind::Unique) {
            self.check_unique()?;
        }
        let ttl_ms = self.ttl_ms.as_ref().map(|ttl| ttl.0);
        if ttl_ms == Some(0) {
            return Err(BodyError::field("ttlMs", "is at least a millisecond"));
        }
        let limit = self.limit.map(|limit| limit.0);
        if limit.is_some_and(|limit| limit < 0) {
            return Err(BodyError::field("limit", "is at least 0"));
        }
        let rollups = Declared::new(self.rollups.as_deref().unwrap_or_default())
            .map_err(|problem| BodyError::field("rollups", problem))?;
        if rollups.is_some() && kind == Some(Kind::Unique) {
            return Err(BodyError::field("rollups", "are for sums and windows, not for `kind` unique"));
        }
        let rollups_kept = self.rollups_kept(rollups.as_ref())?;
        let policy = Policy {
            min,
            max,
            saturate: self.saturate,
            ttl_ms,
            disabled: self.disabled,
            kind,
            window,
            limit,
            soft: self.soft,
            history: self.history.as_ref().map(|history| history.0.to_retention()).transpose()?,
            lateness_ms,
            audit_ms: self.audit.map(Kept::to_ms).transpose()?,
            rollups,
            rollups_kept,
            strong: self.consistency.is_some(),
            // What is no number of stripes is none that is allowed either.
            stripes: self.stripes.map(|stripes| u16::try_from(stripes.0).unwrap_or(0)),
        };
        match policy.stripes_problem() {
            Some(problem) => Err(BodyError::field("stripes", problem)),
            None => Ok(policy),
        }
    }

    /// What is decided by a value has no meaning where items are counted, and would be kept and never looked at.
    fn check_unique(&self) -> Result<(), BodyError> {
        let fields = [
            ("min", self.min.is_some()),
            ("max", self.max.is_some()),
            ("saturate", self.saturate),
            ("limit", self.limit.is_some()),
            ("soft", self.soft),
        ];
        match fields.iter().find(|(_, is_given)| *is_given) {
            Some((field, _)) => {
                Err(BodyError::field(field, "is for sums and windows, not for `kind` unique; leave it out"))
            }
            None => Ok(()),
        }
    }

    fn rollups_kept(&self, rollups: Option<&Declared>) -> Result<CellsKept, BodyError> {
        let kept = || self.rollup_keep.iter().flatten().map(|(name, ms)| (name.as_str(), ms.0));
        let is_by =
            |name| rollups.is_some_and(|declared| declared.rollups().any(|names| names.contains(&name)));
        let parsed = CellsKept::new(kept()).map_err(|problem| BodyError::field("rollupKeep", problem))?;
        match kept().find(|(name, _)| !is_by(name)) {
            Some((name, _)) => Err(BodyError::field("rollupKeep", format_args!("no roll-up is by {name}"))),
            None => Ok(parsed),
        }
    }
}

#[cfg(test)]
mod tests {
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
            (
                format!(r#""a":"{}""#, "x".repeat(129)),
                "`dims`: the value of a has at most 128 bytes, not 129",
            ),
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
            (
                r#"{"ttlMs":0.5}"#,
                "`ttlMs`: invalid value: floating point `0.5`, expected a whole number from 1",
            ),
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
            assert!(
                refused.contains(named),
                "{body} is refused with {refused:?}, which does not say {named:?}"
            );
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
        let down = |body: &str| {
            parse::<AddBody>(body.as_bytes()).unwrap().to_add(Direction::Down, Condition::Always)
        };
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
        let nested =
            parse::<BatchAddBody>(br#"{"items":[{"key":"a"},{"key":"b","delta":"x"}]}"#).unwrap_err();
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
        let kept =
            policy(r#"{"rollups":[["day","tenant"]],"rollupKeep":{"day":"90d"}}"#).unwrap().rollups_kept;
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
}

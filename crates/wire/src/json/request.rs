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

/// The most counters of one call that are given with all they have: some megabytes each, at worst, and 32 MiB for what one node answers another.
pub const BODIES_MAX: usize = 3;

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
mod tests;

//! Bodies of counters of uniques: what was seen, and how many different items that makes.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use quipu_counting::unique::{STANDARD_ERROR, hash};
use quipu_counting::{Detail, Reply};
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::reply::KeyName;
use super::request::{BodyError, KeyBody, Moment, Ms};
use super::schema::{ItemSchema, KeyOrBase64Schema, MomentSchema};

/// The most items of one call: their hashes are one record of the log, 80 KB.
pub const ITEMS_MAX: usize = 10_000;
/// The most counters that are merged by one call: as sketches they take up to 12 KB each while they are.
pub const SOURCES_MAX: usize = 1_000;

/// What was seen.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Observation)]
pub struct ObserveBody {
    /// Anything that can be told apart: names of users, addresses, ids of sessions.
    #[schema(value_type = Vec<ItemSchema>, min_items = 1, max_items = 10_000)]
    pub items: Vec<Item>,
    /// When they were seen, if not now: counted for that time, by uniques by time, as far back as their policy allows.
    #[schema(value_type = Option<MomentSchema>)]
    pub at: Option<Ms<Moment>>,
}

/// An item, as it is counted: by its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item(pub u64);

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Item, D::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Encoded {
            base64: String,
        }
        struct ItemVisitor;
        impl<'de> Visitor<'de> for ItemVisitor {
            type Value = Item;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("an item as a string, or {\"base64\": \"...\"}")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Item, E> {
                Ok(Item(hash(text.as_bytes())))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Item, A::Error> {
                let encoded = Encoded::deserialize(MapAccessDeserializer::new(map))?;
                let bytes = STANDARD.decode(encoded.base64).map_err(de::Error::custom)?;
                Ok(Item(hash(&bytes)))
            }
        }
        deserializer.deserialize_any(ItemVisitor)
    }
}

impl ObserveBody {
    /// The hashes as they travel, see [`quipu_counting::Action::Observe`].
    pub fn to_payload(&self) -> Result<Vec<u8>, BodyError> {
        check_length("items", self.items.len(), ITEMS_MAX)?;
        Ok(self.items.iter().flat_map(|item| item.0.to_le_bytes()).collect())
    }
}

/// Which counters are merged.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Merge)]
pub struct MergeBody {
    /// Counters of uniques; one that does not exist has seen nothing.
    #[schema(value_type = Vec<KeyOrBase64Schema>, min_items = 1, max_items = 1_000)]
    pub sources: Vec<KeyBody>,
}

impl MergeBody {
    /// Their keys.
    pub fn to_keys(&self) -> Result<Vec<Vec<u8>>, BodyError> {
        check_length("sources", self.sources.len(), SOURCES_MAX)?;
        self.sources.iter().enumerate().map(|(index, source)| source.to_key_of("sources", index)).collect()
    }
}

fn check_length(field: &str, length: usize, most: usize) -> Result<(), BodyError> {
    if (1..=most).contains(&length) {
        return Ok(());
    }
    Err(BodyError::field(field, format_args!("must have 1 to {most} entries, not {length}")))
}

/// What a counter of uniques came to.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Seen)]
pub struct SeenBody {
    #[serde(flatten)]
    key: KeyName,
    /// Whether any of it was new to the counter.
    changed: bool,
    /// How many different items there were, as a read says it; of a counter by time, in its window.
    #[schema(example = 2)]
    estimate: i64,
    /// Whether that is the very number.
    exact: bool,
    /// The standard error of an estimate, as a part of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, example = 0.0081)]
    standard_error: Option<f64>,
    /// How many changes made the counter what it is.
    #[schema(example = 1)]
    version: u64,
    /// Whether this is the first outcome of the same request again.
    duplicate: bool,
}

impl SeenBody {
    /// What `reply` says of the counter `key`.
    pub fn of(key: &[u8], reply: &Reply) -> SeenBody {
        let exact = !matches!(reply.detail.as_deref(), Some(Detail::Seen { is_exact: false }));
        SeenBody {
            key: KeyName::of(key),
            changed: reply.applied != 0,
            estimate: reply.cell.value,
            exact,
            standard_error: (!exact).then_some(STANDARD_ERROR),
            version: reply.cell.version,
            duplicate: reply.duplicate,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{ITEMS_MAX, MergeBody, ObserveBody};
    use crate::json::request::parse;
    use quipu_counting::unique::hash;

    #[test]
    fn items() {
        let observed = |body: &str| {
            parse::<ObserveBody>(body.as_bytes()).and_then(|body| body.to_payload()).map_err(|error| error.0)
        };
        let hashes = [hash(b"u1"), hash(b""), hash(&[0xff])];
        assert_eq!(
            observed(r#"{"items":["u1","",{"base64":"/w=="}]}"#),
            Ok(hashes.iter().flat_map(|hash| hash.to_le_bytes()).collect())
        );
        let many = format!(r#"{{"items":["a"{}]}}"#, r#","a""#.repeat(ITEMS_MAX));
        for (body, named) in [
            (r#"{"items":[]}"#, "`items`: must have 1 to 10000 entries, not 0"),
            (&many, "`items`: must have 1 to 10000 entries, not 10001"),
            (r#"{"items":["a",7]}"#, "`items[1]`: invalid type: integer `7`, expected an item as a string"),
            (r#"{"items":[{"base64":"/"}]}"#, "`items[0]`: "),
            (r#"{"items":[{"keyBase64":"/w=="}]}"#, "unknown field `keyBase64`"),
            (r#"{"items":"a"}"#, "`items`: invalid type: string"),
            ("{}", "missing field `items`"),
            ("", "the body is empty"),
        ] {
            let refused = observed(body).expect_err(body);
            assert!(refused.contains(named), "{refused:?} does not say {named:?}");
        }
    }

    #[test]
    fn sources() {
        let keys = |body: &str| {
            parse::<MergeBody>(body.as_bytes()).and_then(|body| body.to_keys()).map_err(|error| error.0)
        };
        assert_eq!(keys(r#"{"sources":["a",{"keyBase64":"/w=="}]}"#), Ok(vec![b"a".to_vec(), vec![0xff]]));
        for (body, named) in [
            (r#"{"sources":[]}"#, "`sources`: must have 1 to 1000 entries"),
            (r#"{"sources":["a",""]}"#, "sources[1]: `key`: a key has 1 to 512 bytes, not 0"),
        ] {
            let refused = keys(body).expect_err(body);
            assert!(refused.contains(named), "{refused:?}");
        }
    }
}

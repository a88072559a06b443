//! The keys that are asked for most, as the server tells them.
//!
//! ```text
//! {"keys":[{"key","ratePerSec","share"}],"skew","ratePerSec","windowMs","partitions":[{"partition","ratePerSec"}],"partial"}
//! ```

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use quipu_counting::{HotKey, HotKeys};
use serde::Serialize;
use utoipa::ToSchema;

use super::schema::{KeyBase64Schema, KeySchema};

/// What was asked for in the last seconds.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = HotKeys)]
pub struct HotBody {
    /// The most asked for first.
    keys: Vec<HotKeyBody>,
    /// How many times its even share the busiest partition has: 1 where all have the same.
    #[schema(example = 1.25)]
    skew: f64,
    /// All requests of a second, of any key.
    #[schema(example = 8000.0)]
    rate_per_sec: f64,
    /// The time over which rates are: the last ten seconds and the one under way, or less where there were no requests before.
    #[schema(example = 10_500)]
    window_ms: u64,
    /// Those that were asked for anything.
    partitions: Vec<HotPartition>,
    /// Whether a node of the cluster did not answer, so that what it has counted is missing.
    partial: bool,
}

/// A key, and how often it is asked for.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = HotKey)]
pub struct HotKeyBody {
    #[serde(flatten)]
    key: HotKeyName,
    /// Requests of a second: changes and reads, also those that were refused.
    #[schema(example = 2000.0)]
    rate_per_sec: f64,
    /// Of all requests, from 0 to 1.
    #[schema(example = 0.25)]
    share: f64,
}

/// The name of a key.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub enum HotKeyName {
    /// The key, where it is UTF-8.
    #[schema(value_type = KeySchema)]
    Key(String),
    /// The key in standard base64, where it is not UTF-8.
    #[schema(value_type = KeyBase64Schema)]
    KeyBase64(String),
}

/// A partition, and how often its keys are asked for.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = HotPartition)]
pub struct HotPartition {
    /// Its number.
    #[schema(example = 3)]
    partition: u16,
    /// Requests of a second.
    #[schema(example = 4000.0)]
    rate_per_sec: f64,
}

impl HotBody {
    /// What is told.
    pub fn of(told: &HotKeys) -> HotBody {
        let key = |HotKey { key, requests }: &HotKey| HotKeyBody {
            key: match std::str::from_utf8(key) {
                Ok(text) => HotKeyName::Key(text.to_owned()),
                Err(_) => HotKeyName::KeyBase64(STANDARD.encode(key)),
            },
            rate_per_sec: rounded(told.per_second(*requests), 1e3),
            share: rounded(told.share(*requests), 1e6),
        };
        let busy = told.partitions.iter().zip(0..).filter(|(requests, _)| **requests > 0);
        let partitions = busy.map(|(requests, partition)| HotPartition {
            partition,
            rate_per_sec: rounded(told.per_second(*requests), 1e3),
        });
        HotBody {
            keys: told.keys.iter().map(key).collect(),
            skew: rounded(told.skew(), 1e3),
            rate_per_sec: rounded(told.per_second(told.requests()), 1e3),
            window_ms: told.window_ms,
            partitions: partitions.collect(),
            partial: told.is_partial,
        }
    }
}

/// To as many digits as mean something.
pub fn rounded(number: f64, unit: f64) -> f64 {
    (number * unit).round() / unit
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn as_it_is_told() {
        let keys = [(&b"likes"[..], 30_001), (b"\xff", 3)];
        let told = HotKeys {
            keys: keys.map(|(key, requests)| HotKey { key: key.to_vec(), requests }).to_vec(),
            partitions: vec![30_003, 0, 9_997, 0],
            window_ms: 10_500,
            is_partial: true,
        };
        let expected = json!({
            "keys": [
                {"key": "likes", "ratePerSec": 2857.238, "share": 0.750_025},
                {"keyBase64": "/w==", "ratePerSec": 0.286, "share": 0.000_075},
            ],
            "skew": 3.0,
            "ratePerSec": 3809.524,
            "windowMs": 10_500,
            "partitions": [{"partition": 0, "ratePerSec": 2857.429}, {"partition": 2, "ratePerSec": 952.095}],
            "partial": true,
        });
        assert_eq!(serde_json::to_value(HotBody::of(&told)).unwrap(), expected);
    }
}

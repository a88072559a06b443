//! How the table in PostgreSQL is doing that mirrors the counters.
//!
//! ```text
//! {"target","ok","asOf","lagMs","pending","sweep":{"counters"},"sweptAt","rowsWritten","rowsRemoved","errors","problem"}
//! ```

use serde::Serialize;
use utoipa::ToSchema;

/// A mirror.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Mirror)]
pub struct MirrorBody {
    /// Where it is, without credentials.
    #[schema(example = "postgres://db:5432/shop")]
    pub target: String,
    /// Whether it can be written.
    pub ok: bool,
    /// What was acknowledged before this is in the table; `null` before that was ever so. Of a cluster: of what this node leads.
    #[schema(example = "2026-02-23T10:00:00.000Z")]
    pub as_of: Option<String>,
    /// How long ago that is.
    #[schema(example = 740)]
    pub lag_ms: u64,
    /// Counters that wait to be written.
    #[schema(example = 12)]
    pub pending: u64,
    /// A comparison of all counters with all rows, while there is one.
    pub sweep: Option<MirrorSweep>,
    /// When the last one ended.
    #[schema(example = "2026-02-23T09:30:00.000Z")]
    pub swept_at: Option<String>,
    /// Rows that this server has written since it started.
    #[schema(example = 123_456)]
    pub rows_written: u64,
    /// Rows that it has removed, because their counters were deleted or expired.
    #[schema(example = 78)]
    pub rows_removed: u64,
    /// How often something failed.
    #[schema(example = 0)]
    pub errors: u64,
    /// What fails, while it does.
    #[schema(example = json!(null))]
    pub problem: Option<String>,
}

/// How far a comparison has come.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = MirrorSweep)]
pub struct MirrorSweep {
    /// Counters and rows that were compared.
    #[schema(example = 250_000)]
    pub counters: u64,
}

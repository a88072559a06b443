//! A Redis that keeps the counters, and the archive behind it, as a node sees them.

use serde::Serialize;
use utoipa::ToSchema;

/// Where the counters lie, and how that goes.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
#[schema(as = Backend)]
pub struct BackendBody {
    /// Of the counters; a new one after each recovery.
    #[schema(example = "4f1c88a02be1d7c3.1")]
    pub epoch: String,
    /// Whether everything can be counted.
    pub ready: bool,
    /// Why not, if not.
    pub problem: Option<String>,
    /// What is wrong with how Redis is set, though everything can be counted. Absent where nothing is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    /// Who holds the counters.
    pub masters: Vec<BackendMaster>,
    /// Absent without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub archive: Option<BackendArchive>,
}

/// A server that holds counters.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackendMaster {
    /// Where it is.
    #[schema(example = "10.0.0.7:6379")]
    pub address: String,
    /// How many of the 64 groups of slots it has.
    #[schema(example = 21)]
    pub groups: usize,
}

/// The PostgreSQL behind it.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackendArchive {
    /// Whether this node's last attempt to flush went well.
    pub up: bool,
    /// How long ago the oldest change was that is not in the tables yet.
    #[schema(example = 180)]
    pub lag_ms: u64,
    /// Entries that wait in the streams, of all groups.
    #[schema(example = 12)]
    pub stream_entries: u64,
    /// Changes that this node has flushed.
    #[schema(example = 4711)]
    pub flushed_events: u64,
    /// Of 64 groups those of which the archive has not got everything yet: they could not be rebuilt from it.
    #[schema(example = 0)]
    pub unseeded_groups: u64,
    /// Why changes wait, if they do.
    pub problem: Option<String>,
    /// The last times that Redis was rebuilt, the newest first.
    pub recoveries: Vec<BackendRecovery>,
}

/// Redis had lost counters, and was rebuilt from the archive.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackendRecovery {
    /// The epoch that was lost.
    pub epoch_before: String,
    /// The one that it came back as.
    pub epoch_after: String,
    /// When the loss was noticed.
    #[schema(format = DateTime)]
    pub detected_at: String,
    /// When everything was there again.
    #[schema(format = DateTime)]
    pub finished_at: String,
    /// Of 64 groups of slots.
    pub groups_lost: i32,
    /// Counters that came back.
    pub counters: i64,
    /// Request ids that came back.
    pub request_ids: i64,
    /// Changes that only the streams still had.
    pub replayed: i64,
    /// What is missing; `null` if nothing is.
    pub gap: Option<BackendGap>,
    /// The last entry of the streams that the archive had, of the group that was furthest behind.
    pub watermark: String,
}

/// What was acknowledged in this time, and was not in the archive yet, is gone.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackendGap {
    /// Everything before is there.
    #[schema(format = DateTime)]
    pub from: String,
    /// Nothing was acknowledged after it, until Redis was rebuilt.
    #[schema(format = DateTime)]
    pub to: String,
    /// The time between.
    pub length_ms: i64,
}

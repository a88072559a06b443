//! Rows of the tables as what they were in Redis.

use tokio_postgres::Row;

use crate::groups;
use crate::stripes::group_of_stripe;

/// Redis removes by its own clock, which is not ours: it gets some time more. As in `library.lua`.
const GRACE_MS: i64 = 60_000;
/// Later than this there is nothing to be removed. As in `library.lua`.
const EXPIRY_MAX: i64 = 9_000_000_000_000_000;

/// All counters after one, in order, with what they have beyond their numbers: a body comes with the numbers of its own moment, which
/// is not before that of the others. One of another life is of a later life, unless it was last changed before: that one has expired,
/// which no stream tells, so the row of its body has stayed.
pub(super) const COUNTERS: &str = "SELECT plain.counter_key, plain.shard_id,
        coalesce(whole.value, plain.value), coalesce(whole.version, plain.version), coalesce(whole.birth, plain.birth),
        coalesce(whole.changed_at_ms, (extract(epoch FROM plain.updated_at) * 1000)::bigint),
        CASE WHEN whole.counter_key IS NULL THEN plain.expires_at_ms ELSE whole.expires_at_ms END::text,
        whole.body
    FROM counter_shard_snapshot plain LEFT JOIN counter_body_snapshot whole
        ON whole.counter_key = plain.counter_key AND plain.shard_id = 0
            AND CASE WHEN whole.birth = plain.birth THEN whole.version >= plain.version
                ELSE whole.changed_at_ms >= (extract(epoch FROM plain.updated_at) * 1000)::bigint END
    WHERE (plain.counter_key, plain.shard_id) > ($1, $2) ORDER BY plain.counter_key, plain.shard_id LIMIT $3";

/// What was decided under ids after one, in order, and not before that time.
pub(super) const REQUEST_IDS: &str = "SELECT id, counter_key, request_id, request_index, fingerprint::text, delta::text,
        value, version, birth, (extract(epoch FROM created_at) * 1000)::bigint, shard_id
    FROM counter_idempotency WHERE id > $1 AND created_at >= to_timestamp($2::bigint / 1000.0) ORDER BY id LIMIT $3";

/// No birth in any group is newer.
pub(super) const NEWEST_BIRTH: &str = "SELECT greatest(
        (SELECT coalesce(max(birth), 0) FROM counter_shard_snapshot),
        (SELECT coalesce(max(birth), 0) FROM counter_idempotency))";

/// A key that comes back.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Restored {
    pub(super) group: u16,
    pub(super) name: Vec<u8>,
    pub(super) text: Vec<u8>,
    /// When Redis removes it; `n` for never, `d` for a key that shall be gone.
    pub(super) removal: String,
}

impl Restored {
    /// Whatever is there goes.
    pub(super) fn gone(name: Vec<u8>) -> Restored {
        Restored { group: groups::group_of_name(&name), name, text: Vec::new(), removal: "d".into() }
    }
}

fn removal(at_ms: Option<i64>) -> String {
    match at_ms {
        Some(at_ms) if at_ms < EXPIRY_MAX => at_ms.saturating_add(GRACE_MS).to_string(),
        _ => "n".into(),
    }
}

/// From a row of [`COUNTERS`]: as `to_store` in `call.rs` writes it.
pub(super) fn counter(row: &Row) -> Restored {
    let key: Vec<u8> = row.get(0);
    let (value, version, birth): (i64, i64, i64) = (row.get(2), row.get(3), row.get(4));
    let updated_ms: i64 = row.get(5);
    let expires: Option<String> = row.get(6);
    let group = group_of_stripe(&key, row.get(1));
    // Versions are stored as the signed number of the same bits.
    let version = version as u64;
    let last = expires.as_deref().unwrap_or("n");
    let mut text = format!("{value} {version} {updated_ms} {birth} {last}").into_bytes();
    if let Some(body) = row.get::<_, Option<&[u8]>>(7) {
        text.push(b' ');
        text.extend_from_slice(body);
    }
    let removal = removal(expires.as_deref().and_then(|expires| expires.parse().ok()));
    Restored { group, name: groups::cell(group, &key), text, removal }
}

/// From a row of [`REQUEST_IDS`]: as `remember` in `library.lua` writes it. Of a change that ended its counter the tables have
/// no version.
pub(super) fn request_id(row: &Row, window_ms: i64) -> Restored {
    let (key, id): (Vec<u8>, Vec<u8>) = (row.get(1), row.get(2));
    let index = u32::try_from(row.get::<_, i64>(3)).unwrap_or(0);
    let (fingerprint, delta): (String, String) = (row.get(4), row.get(5));
    let (value, version, birth): (i64, i64, i64) = (row.get(6), row.get(7), row.get(8));
    let at_ms: i64 = row.get(9);
    let outcome = outcome(value, delta.parse().unwrap_or(0), version as u64, birth);
    let group = group_of_stripe(&key, row.get(10));
    Restored {
        group,
        name: groups::id(group, &key, index, &id),
        text: format!("{fingerprint} {at_ms} {outcome}").into_bytes(),
        removal: removal(Some(at_ms.saturating_add(window_ms))),
    }
}

/// refusal existed exists value previous version birth
fn outcome(value: i64, delta: i128, version: u64, birth: i64) -> String {
    let previous = i128::from(value) - delta;
    match version {
        0 => format!("0 1 0 0 {previous} 0 0"),
        // The first change of a counter is its birth.
        1 => format!("0 0 1 {value} {previous} 1 {birth}"),
        _ => format!("0 1 1 {value} {previous} {version} {birth}"),
    }
}

#[cfg(test)]
mod tests {
    use super::{outcome, removal};

    #[test]
    fn outcomes_are_what_was_answered() {
        assert_eq!(outcome(5, 5, 1, 9), "0 0 1 5 0 1 9", "born");
        assert_eq!(outcome(7, -2, 4, 9), "0 1 1 7 9 4 9", "changed");
        assert_eq!(outcome(0, -7, 0, 9), "0 1 0 0 7 0 0", "deleted");
        let all = i128::from(i64::MIN) - i128::from(i64::MAX);
        assert_eq!(outcome(i64::MIN, all, 2, 9), "0 1 1 -9223372036854775808 9223372036854775807 2 9");
    }

    #[test]
    fn redis_removes_what_is_over_some_time_later() {
        assert_eq!(removal(None), "n");
        assert_eq!(removal(Some(1_000)), "61000");
        assert_eq!(removal(Some(i64::MAX)), "n");
    }
}

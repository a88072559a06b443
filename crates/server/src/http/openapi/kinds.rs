//! The calls of counters that are more than a sum: uniques, windows, quotas, holds.

use super::operations::{Body, JSON, Operation, Outcome, PLAIN};

/// What every call that changes such a counter may be given in headers.
const NAMED: &[&str] = &["Key", "IdempotencyKey", "RequestId", "Actor"];
const PROBLEMS: &[u16] = &[400, 403, 406, 408, 409, 413, 415, 422, 431, 503, 504];
const QUOTA_PROBLEMS: &[u16] = &[400, 403, 406, 408, 409, 413, 415, 422, 429, 431, 503, 504];
const HOLD_PROBLEMS: &[u16] = &[400, 403, 404, 406, 408, 409, 413, 415, 431, 503, 504];
/// The headers of quotas.
pub const RATE_LIMIT: &[&str] =
    &["RateLimit-Policy", "RateLimit", "RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset"];

const SEEN: &str = r#"{"counterKey":"visitors:2026-02-23","changed":true,"estimate":2,"exact":true,"version":1,"duplicate":false}"#;
const WINDOW: &str = r#"{"counterKey":"calls:user:7","exists":true,"kind":"window","from":"2026-02-23T09:00:00.000Z","to":"2026-02-23T10:01:00.000Z","sum":58,"buckets":[{"start":"2026-02-23T10:00:00.000Z","end":"2026-02-23T10:01:00.000Z","sum":58}],"stalenessMs":0}"#;
const HISTORY: &str = r#"{"counterKey":"likes:post:7","exists":true,"points":[{"at":"2026-02-23T10:00:00.000Z","value":41},{"at":"2026-02-23T10:01:00.000Z","value":42}],"stalenessMs":0}"#;
const AUDIT: &str = r#"{"counterKey":"balance:7","changes":[{"at":"2026-02-23T10:00:00.000Z","action":"adjust","applied":-120,"value":7,"version":8,"requestId":"ticket-88","reason":"counted twice","by":{"name":"anna","address":"10.0.0.7:52044"}}],"cursor":null,"since":"2026-01-24T10:00:00.000Z"}"#;
const GRANT: &str = r#"{"counterKey":"calls:user:7","allowed":true,"limit":100,"used":58,"remaining":42,"resetMs":3599000,"overLimit":false,"value":58,"version":58,"duplicate":false}"#;
const GRANTS: &str = r#"{"allowed":true,"results":[{"counterKey":"calls:user:7","allowed":true,"limit":100,"used":59,"remaining":41,"resetMs":3599000,"overLimit":false,"value":59,"version":59,"duplicate":false}]}"#;
const HOLD: &str = r#"{"counterKey":"stock:shirt","holdId":"AQcDc3RvY2s6c2hpcnQ","amount":3,"expiresAt":"2026-02-23T10:00:30.000Z","value":7,"version":8,"duplicate":false}"#;
const HOLD_END: &str = r#"{"counterKey":"stock:shirt","holdId":"AQcDc3RvY2s6c2hpcnQ","value":9,"version":9,"updatedAt":"2026-02-23T10:00:10.000Z","exists":true,"kind":"sum","mode":"strong","exact":true,"stalenessMs":0,"accepted":true,"existed":true,"applied":2,"duplicate":false}"#;
const ADJUSTED: &str = r#"{"counterKey":"likes:post:7","reason":"reconcile-fix","value":7,"version":8,"updatedAt":"2026-02-23T10:00:00.000Z","exists":true,"kind":"sum","mode":"strong","exact":true,"stalenessMs":0,"accepted":true,"existed":true,"applied":-120,"duplicate":false}"#;

const fn done(
    description: &'static str,
    schema: &'static str,
    example: &'static str,
    headers: &'static [&'static str],
) -> Outcome {
    Outcome { status: 200, description, media_type: JSON, schema, example, headers }
}

const REPLAYED: &[&str] = &["ETag", "Idempotent-Replayed"];
const GRANTED: &[&str] = &[
    "ETag",
    "Idempotent-Replayed",
    "RateLimit-Policy",
    "RateLimit",
    "RateLimit-Limit",
    "RateLimit-Remaining",
    "RateLimit-Reset",
];
const ALL_GRANTED: &[&str] = &[
    "Idempotent-Replayed",
    "RateLimit-Policy",
    "RateLimit",
    "RateLimit-Limit",
    "RateLimit-Remaining",
    "RateLimit-Reset",
];

/// All of them, in the order in which the documentation shows them.
pub const OPERATIONS: &[Operation] = &[
    Operation {
        id: "adjustCounter",
        tag: "counters",
        method: "post",
        path: "/api/v1/counters/{key}/adjust",
        summary: "Correct a counter",
        description: "Adds `delta` as an increment does, and says why: the reason is required. Counters of uniques cannot be \
            corrected (409).",
        parameters: &["Key", "IdempotencyKey", "RequestId", "Actor", "IfMatch", "IfNoneMatch"],
        body: Some(Body {
            schema: "Adjustment",
            is_required: true,
            example: r#"{"delta":-120,"reason":"reconcile-fix"}"#,
        }),
        outcomes: &[done("The correction was made.", "Adjusted", ADJUSTED, REPLAYED)],
        problems: PROBLEMS,
    },
    Operation {
        id: "observe",
        tag: "uniques",
        method: "post",
        path: "/api/v1/counters/{key}/observe",
        summary: "Note what was seen",
        description: "How many different items there were: the very number up to 256, then an estimate with a standard error of \
            0.81 %. A counter that does not exist becomes one of uniques; others refuse (409). Up to 10,000 items a call.",
        parameters: &["UniqueKey", "IdempotencyKey", "RequestId", "Actor"],
        body: Some(Body { schema: "Observation", is_required: true, example: r#"{"items":["u1","u2"]}"# }),
        outcomes: &[done("The items are known.", "Seen", SEEN, REPLAYED)],
        problems: PROBLEMS,
    },
    Operation {
        id: "mergeCounters",
        tag: "uniques",
        method: "post",
        path: "/api/v1/counters/{key}/merge",
        summary: "Make several counters of uniques one",
        description: "The counter has then seen all that the sources have seen, each item once. Sources that do not exist have seen \
            nothing; those that count by time give what is in their window. A retry under the same id, with the same sources in any order, is told the first outcome, whatever \
            they have seen meanwhile.",
        parameters: &["UniqueKey", "IdempotencyKey", "RequestId"],
        body: Some(Body {
            schema: "Merge",
            is_required: true,
            example: r#"{"sources":["visitors:2026-02-22","visitors:2026-02-23"]}"#,
        }),
        outcomes: &[done("They are merged.", "Seen", SEEN, REPLAYED)],
        problems: PROBLEMS,
    },
    Operation {
        id: "acquire",
        tag: "windows",
        method: "post",
        path: "/api/v1/counters/{key}/acquire",
        summary: "Count within a limit",
        description: "Checks and counts in one step: `amount` is counted if what was counted in the window, with what is set \
            aside, stays within `limit`; else nothing is (429). With `soft` it is counted in any case, and `overLimit` says so. Limit and window \
            may stand in a policy. The first call with a window makes a counter by time; sliding windows of other lengths may then \
            be asked of the same counter. Of a window of other kind, `type` says which: around the boundary of fixed and calendar windows \
            twice the limit can pass, a sliding one never lets more pass in any span of its length.",
        parameters: &["WindowKey", "IdempotencyKey", "RequestId", "Actor"],
        body: Some(Body {
            schema: "Acquisition",
            is_required: false,
            example: r#"{"amount":1,"limit":100,"window":"1h","soft":false}"#,
        }),
        outcomes: &[done("It was counted.", "Grant", GRANT, GRANTED)],
        problems: QUOTA_PROBLEMS,
    },
    Operation {
        id: "acquireAll",
        tag: "windows",
        method: "post",
        path: "/api/v1/acquire",
        summary: "Count within several limits",
        description: "All of them leave room, and each item is counted, or nothing is (429, with the item that refused). In a cluster the \
            keys must share a slot: `calls:{user-7}:minute` and `calls:{user-7}:month` do.",
        parameters: &["IdempotencyKey", "RequestId", "Actor"],
        body: Some(Body {
            schema: "AcquireAll",
            is_required: true,
            example: r#"{"items":[{"key":"calls:{user-7}:minute","limit":10,"window":"1m"},{"key":"calls:{user-7}:month","limit":10000,"window":{"type":"calendar","unit":"month"}}]}"#,
        }),
        outcomes: &[done("All was counted.", "Grants", GRANTS, ALL_GRANTED)],
        problems: QUOTA_PROBLEMS,
    },
    Operation {
        id: "getWindow",
        tag: "windows",
        path: "/api/v1/counters/{key}/window",
        summary: "What was counted when",
        description: "The sum over the counter's window, or over what `last` or `from` and `to` name, and its buckets: those only in \
            which something was counted. Of uniques by time `estimate` and `exact` stand in place of `sum`: an item that is in several \
            buckets counts once. A bucket counts in full if any part of it is asked for; what is older than the counter \
            keeps is gone. A counter that does not count by time refuses (409).",
        parameters: &["WindowKey", "Last", "From", "To", "Consistency", "MaxStaleness"],
        outcomes: &[done("What was counted.", "WindowOfCounter", WINDOW, &[])],
        problems: &[400, 406, 409, 431, 503, 504],
        ..PLAIN
    },
    Operation {
        id: "getHistory",
        tag: "windows",
        path: "/api/v1/counters/{key}/history",
        summary: "What the value was",
        description: "At every full minute, hour or midnight (UTC) of a span at which it is known, or as of a time (`at`), as near to it as is \
            known: then the one point says which time that is. A policy with `history` says how long it is kept, and how finely; \
            without one only what came after the last change is known.",
        parameters: &["Key", "Step", "From", "To", "At", "Consistency", "MaxStaleness"],
        outcomes: &[done("The points.", "History", HISTORY, &[])],
        problems: &[400, 406, 431, 503, 504],
        ..PLAIN
    },
    Operation {
        id: "getAudit",
        tag: "counters",
        path: "/api/v1/counters/{key}/audit",
        summary: "Who changed it, when and why",
        description: "Every accepted change, the newest first, with who asked for it (the header `X-Quipu-Actor`, or the name of a RESP \
            connection, and the address), why (the reason of an adjustment) and under which request id. A policy with `audit` says \
            for how long that is kept; deleting a counter leaves its trail alone. Where no policy has one kept, and there is none from \
            before, the call is refused (400).",
        parameters: &["AuditKey", "From", "To", "AuditLimit", "AuditCursor"],
        outcomes: &[done("A page of changes.", "Audit", AUDIT, &[])],
        problems: &[400, 406, 431, 503, 504],
        ..PLAIN
    },
    Operation {
        id: "reserve",
        tag: "holds",
        method: "post",
        path: "/api/v1/counters/{key}/reserve",
        summary: "Set an amount aside",
        description: "Bounds, and the `limit` of a policy, are checked as if the amount, and all that is set aside already, were added. It \
            is not part of the value until it is committed, and comes back by itself when its time is over. A negative amount is set \
            aside for a decrement.",
        parameters: NAMED,
        body: Some(Body {
            schema: "Reservation",
            is_required: true,
            example: r#"{"amount":3,"ttlMs":30000,"max":100}"#,
        }),
        outcomes: &[done("It is set aside.", "Hold", HOLD, REPLAYED)],
        problems: QUOTA_PROBLEMS,
    },
    Operation {
        id: "commitHold",
        tag: "holds",
        method: "post",
        path: "/api/v1/holds/{id}/commit",
        summary: "Count what was set aside",
        description: "All of it, or the `amount` that it came to, which must not be more; the rest is free again. A repeat is told the \
            first outcome; a hold that ended otherwise refuses (409).",
        parameters: &["HoldId"],
        body: Some(Body { schema: "Commit", is_required: false, example: r#"{"amount":2}"# }),
        outcomes: &[done("It was counted.", "HoldEnd", HOLD_END, REPLAYED)],
        problems: HOLD_PROBLEMS,
    },
    Operation {
        id: "voidHold",
        tag: "holds",
        method: "post",
        path: "/api/v1/holds/{id}/void",
        summary: "Give back what was set aside",
        description: "Nothing is counted. A repeat is told the first outcome; a hold that ended otherwise refuses (409).",
        parameters: &["HoldId"],
        outcomes: &[done("It is free again.", "HoldEnd", "", REPLAYED)],
        problems: HOLD_PROBLEMS,
        ..PLAIN
    },
];

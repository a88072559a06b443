//! What calls share: parameters, headers of replies, and problems.

use quipu_counting::audit::{ACTOR_BYTES_MAX, AUDIT_PAGE_MAX};
use quipu_counting::hot::{HOT_KEYS_DEFAULT, HOT_KEYS_MAX};
use quipu_counting::{ID_BYTES_MAX, KEY_BYTES_MAX};
use quipu_wire::json::schema::DURATION_PATTERN;
use serde_json::{Map, Value, json};

use super::kinds::RATE_LIMIT;
use super::{PROBLEM_JSON, reference};
use crate::http::audit;
use crate::http::list::{LIMIT_DEFAULT, LIMIT_MAX};
use crate::http::watch;

/// What a request id in a header may look like: no blanks at its ends, no control characters.
const ID_PATTERN: &str = "^[!-~\\u0080-\\u00ff]([\\t -~\\u0080-\\u00ff]*[!-~\\u0080-\\u00ff])?$";
/// `*`, or a list of tags.
const TAGS_PATTERN: &str = "^(\\*|(W/)?\"[!#-~]*\"([ \\t]*,[ \\t]*(W/)?\"[!#-~]*\")*)$";

/// By the names under which `operations` refers to them.
pub fn parameters() -> Value {
    let id = json!({"type": "string", "minLength": 1, "maxLength": ID_BYTES_MAX, "pattern": ID_PATTERN});
    let tags = json!({"type": "string", "pattern": TAGS_PATTERN});
    let moment = json!({"anyOf": [{"type": "integer", "minimum": 0, "maximum": u64::MAX}, {"type": "string", "format": "date-time"}]});
    let name = json!({"type": "string", "minLength": 1, "maxLength": KEY_BYTES_MAX});
    json!({
        "Key": {
            "name": "key", "in": "path", "required": true, "schema": name, "example": "likes:post:7",
            "description": format!("The counter: 1 to {KEY_BYTES_MAX} bytes, percent-encoded (`/` as `%2F`)."),
        },
        "UniqueKey": {
            "name": "key", "in": "path", "required": true, "schema": name, "example": "visitors:2026-02-23",
            "description": "The counter, which counts different items.",
        },
        "WindowKey": {
            "name": "key", "in": "path", "required": true, "schema": name, "example": "calls:user:7",
            "description": "The counter.",
        },
        "AuditKey": {
            "name": "key", "in": "path", "required": true, "schema": name, "example": "balance:7",
            "description": "The counter.",
        },
        "HoldId": {
            "name": "id", "in": "path", "required": true, "example": "AQcDc3RvY2s6c2hpcnQ",
            "schema": {"type": "string", "pattern": "^[A-Za-z0-9_-]+$"},
            "description": "The `holdId` that `reserve` answered with.",
        },
        "Last": {
            "name": "last", "in": "query", "example": "1h", "schema": {"type": "string", "pattern": DURATION_PATTERN},
            "description": "The last so long: a whole number and `ms`, `s`, `m`, `h` or `d`.",
        },
        "From": {
            "name": "from", "in": "query", "schema": moment,
            "description": "From here on: RFC 3339, or milliseconds since 1970.",
        },
        "To": {
            "name": "to", "in": "query", "schema": moment,
            "description": "Up to here, and now where nothing is said.",
        },
        "Step": {
            "name": "step", "in": "query",
            "schema": {"type": "string", "enum": ["minute", "hour", "day"], "default": "minute"},
            "description": "How far points lie apart.",
        },
        "At": {
            "name": "at", "in": "query", "schema": moment,
            "description": "As of this time. Excludes the other parameters of time.",
        },
        "Pattern": {
            "name": "pattern", "in": "path", "required": true, "schema": name, "example": "stock:*",
            "description": format!("A key in which `*` stands for any bytes and `?` for one: 1 to {KEY_BYTES_MAX} bytes, percent-encoded."),
        },
        "Node": {
            "name": "node", "in": "path", "required": true, "schema": {"type": "integer", "minimum": 1}, "example": 3,
            "description": "The number of a node.",
        },
        "IdempotencyKey": {
            "name": "Idempotency-Key", "in": "header", "schema": id, "example": "order-4711",
            "description": "A name for this change. Sent again, the first outcome comes back; with another request, 422.",
        },
        "RequestId": {
            "name": "X-Request-Id", "in": "header", "schema": id, "example": "8f14e45f",
            "description": "Stands in for `Idempotency-Key` where that is absent, unless the server is told to ignore it \
                (`http.x_request_id = \"ignore\"`). Every reply repeats it.",
        },
        "Actor": {
            "name": "X-Quipu-Actor", "in": "header", "example": "billing",
            "schema": {"type": "string"},
            "description": format!("Who asks, in at most {ACTOR_BYTES_MAX} bytes, for the trail of the counter, where a policy has one kept."),
        },
        "IfMatch": {
            "name": "If-Match", "in": "header", "schema": tags, "example": "\"12-7\"",
            "description": "Only if the counter has one of these `ETag`s; `*`: only if it exists.",
        },
        "IfNoneMatch": {
            "name": "If-None-Match", "in": "header", "schema": tags, "example": "*",
            "description": "Only if the counter has none of these `ETag`s; `*`: only if it does not exist.",
        },
        "Prefix": {
            "name": "prefix", "in": "query", "schema": {"type": "string"}, "example": "likes:",
            "description": "Only keys that begin with this (bytes, percent-encoded).",
        },
        "Cursor": {
            "name": "cursor", "in": "query", "schema": {"type": "string", "pattern": "^[A-Za-z0-9_-]*$"},
            "description": "The `cursor` of the page before; leave it out, or empty, for the first.",
        },
        "Limit": {
            "name": "limit", "in": "query", "example": 100,
            "schema": {"type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_DEFAULT},
            "description": "The most counters of a page.",
        },
        "AuditLimit": {
            "name": "limit", "in": "query", "example": 100,
            "schema": {"type": "integer", "minimum": 1, "maximum": AUDIT_PAGE_MAX, "default": audit::LIMIT_DEFAULT},
            "description": "The most changes of a page.",
        },
        "AuditCursor": {
            "name": "cursor", "in": "query",
            "schema": {"type": "string", "pattern": "^([A-Za-z0-9_-]{10}[AEIMQUYcgkosw048])?$"},
            "description": "The `cursor` of the page before; leave it out, or empty, for the newest changes.",
        },
        "Number": {
            "name": "n", "in": "query", "example": 20,
            "schema": {"type": "integer", "minimum": 1, "maximum": HOT_KEYS_MAX, "default": HOT_KEYS_DEFAULT},
            "description": "How many keys.",
        },
        "Order": {
            "name": "order", "in": "query", "schema": {"type": "string", "enum": ["key", "value"]}, "example": "value",
            "description": "`key`: by key, byte by byte. `value`: the largest first, which reads everything, or everything with \
                the prefix, for each page. \
                Left out: in the order of storage, which is the cheapest way through all of them.",
        },
        "Dims": {
            "name": "dims", "in": "query", "schema": {"type": "string"}, "example": "tenant:a,day:2026-02-23",
            "description": "Names and values of dimensions. `*` for a value asks for every value by itself; a \
                backslash before a comma takes it for a part of the value.",
        },
        "Partial": {
            "name": "partial", "in": "query", "schema": {"type": "boolean", "default": true},
            "description": "`false`: where a part of the counters cannot be asked, 503 instead of what the others have.",
        },
        "WatchKey": {
            "name": "key", "in": "query", "example": ["likes:post:7"],
            "schema": {"type": "array", "maxItems": watch::KEYS_PER_CLIENT_MAX, "items": {"type": "string", "minLength": 1}},
            "description": format!("A counter (bytes, percent-encoded); up to {} times.", watch::KEYS_PER_CLIENT_MAX),
        },
        "WatchPrefix": {
            "name": "prefix", "in": "query", "example": ["likes:"],
            "schema": {"type": "array", "maxItems": watch::PREFIXES_PER_CLIENT_MAX, "items": {"type": "string"}},
            "description": format!(
                "All counters whose keys begin with this (bytes, percent-encoded; empty for all); up to {} times.",
                watch::PREFIXES_PER_CLIENT_MAX
            ),
        },
        "IntervalMs": {
            "name": "intervalMs", "in": "query", "example": 1000,
            "schema": {
                "type": "integer", "minimum": watch::INTERVAL_MIN_MS, "maximum": watch::INTERVAL_MAX_MS,
                "default": watch::INTERVAL_DEFAULT_MS,
            },
            "description": "How long after an event of a counter the next one of the same comes, at the soonest.",
        },
        "Initial": {
            "name": "initial", "in": "query", "schema": {"type": "boolean", "default": false},
            "description": "Whether to begin with the counters of the prefixes as they are.",
        },
        "LastEventId": {
            "name": "Last-Event-ID", "in": "header", "schema": {"type": "string"},
            "description": "The `id` of the last event that was heard; browsers send it by themselves.",
        },
        "Consistency": {
            "name": "consistency", "in": "query", "schema": {"type": "string", "enum": ["strong", "eventual"]},
            "description": "`strong`, which holds where nothing is said: everything acknowledged before is seen. `eventual`: any node \
                that holds the counter may answer, without asking the leader, and `stalenessMs` says how far behind it may be.",
        },
        "MaxStaleness": {
            "name": "maxStalenessMs", "in": "query", "schema": {"type": "integer", "minimum": 0, "maximum": u64::MAX},
            "description": "How far behind an eventual read may be. What cannot be answered so is read from the leader.",
        },
    })
}

/// Headers of replies.
pub fn headers() -> Value {
    json!({
        "X-Request-Id": {
            "description": "The request's name: the client's own, or one of the server's.",
            "required": true, "schema": {"type": "string"}, "example": "8f14e45f",
        },
        "ETag": {
            "description": "The state of the counter, for `If-Match` and `If-None-Match`. Absent for one that does not exist.",
            "schema": {"type": "string"}, "example": "\"12-7\"",
        },
        "Idempotent-Replayed": {
            "description": "`true` where this is the first outcome of the same request again.",
            "schema": {"type": "string", "enum": ["true"]},
        },
        "Cache-Control": {"description": "Always `no-cache`.", "schema": {"type": "string"}},
        "RateLimit-Policy": {
            "description": "The limits that were asked for: `q` is the limit, `w` the window in seconds, where its length is always the \
                same and the call says it.",
            "schema": {"type": "string"}, "example": "\"default\";q=100;w=3600",
        },
        "RateLimit": {
            "description": "What is left of them: `r` is how much, `t` after how many seconds more is.",
            "schema": {"type": "string"}, "example": "\"default\";r=42;t=60",
        },
        "RateLimit-Limit": {"description": "The limit that leaves least.", "schema": {"type": "integer"}, "example": 100},
        "RateLimit-Remaining": {"description": "What it leaves.", "schema": {"type": "integer"}, "example": 42},
        "RateLimit-Reset": {
            "description": "After how many seconds more is left; 0 where nothing comes back by itself.",
            "schema": {"type": "integer"}, "example": 60,
        },
        "Retry-After": {
            "description": "Seconds after which to come again.", "required": true, "schema": {"type": "integer"}, "example": 1,
        },
    })
}

/// References to headers, as a response has them.
pub fn header_references<'a>(names: impl Iterator<Item = &'a str>) -> Value {
    Value::Object(names.map(|name| (name.to_owned(), reference("headers", name))).collect())
}

/// Status, schema, description.
const PROBLEMS: &[(u16, &str, &str)] = &[
    (400, "Problem", "The request cannot be understood; `detail` names the part. Nothing was changed."),
    (403, "Problem", "A web page of another origin may not change counters."),
    (404, "Problem", "There is no such policy, hold or node."),
    (406, "Problem", "The header `Accept` excludes JSON."),
    (408, "Problem", "The body did not arrive in time. Nothing was changed."),
    (
        409,
        "Refusal",
        "A bound, a condition or a policy refused the change. The counter is shown as it stands.",
    ),
    (412, "Problem", "The counter is not in a state that `If-Match` names."),
    (413, "Problem", "The body is too large."),
    (415, "Problem", "The body is not JSON, or is packed in a manner that is not understood."),
    (
        422,
        "Problem",
        "The id was used for another request. Nothing was changed; how the counter stands is not said.",
    ),
    (
        429,
        "OverQuota",
        "A limit leaves no room. Nothing was counted; `resetMs`, and `Retry-After` in seconds, say when more is free, if something \
        comes back by itself.",
    ),
    (431, "Problem", "The head of the request is too large."),
    (
        503,
        "Problem",
        "Too much at the moment, the disk is full, or a counter on disk cannot be read; of a cluster also: nobody leads the counter's \
        partition (`no-leader`), too few replicas are reached (`no-quorum`), or this node was removed (`not-a-member`: ask another). \
        Nothing was changed; send the same request later. How the counter stands is not known, and not said.",
    ),
    (
        504,
        "Problem",
        "The outcome is unknown; repeat the request under the same id. How the counter stands is not said either.",
    ),
];

/// The name of a problem's response.
pub fn problem_name(status: u16) -> String {
    format!("Problem{status}")
}

/// The same of a batch, where it is another.
pub fn batch_problem_name(status: u16) -> String {
    format!("BatchProblem{status}")
}

/// The same of a hold, of whose counter is not always known how it stands.
pub fn hold_problem_name(status: u16) -> String {
    format!("HoldProblem{status}")
}

/// The responses of problems, by name.
pub fn problems() -> Value {
    let mut all = PROBLEMS.iter().map(response).collect::<Map<_, _>>();
    for status in [409, 422] {
        let mut batch = all[&problem_name(status)].clone();
        batch["content"] = json!({PROBLEM_JSON: {"schema": reference("schemas", "BatchRefusal")}});
        batch["description"] =
            json!("The batch is atomic and one of its items was refused. Nothing was changed.");
        all.insert(batch_problem_name(status), batch);
    }
    let mut hold = all[&problem_name(409)].clone();
    hold["content"][PROBLEM_JSON]["schema"] = reference("schemas", "Problem");
    hold["description"] = json!(
        "The hold has ended, or a bound or a policy refuses its end. Nothing was changed; the counter is shown where it is known how it stands."
    );
    all.insert(hold_problem_name(409), hold);
    Value::Object(all)
}

fn response((status, schema, description): &(u16, &str, &str)) -> (String, Value) {
    let retry: &[&str] = match status {
        503 | 504 => &["Retry-After"],
        _ => &[],
    };
    let limits: &[&str] = if *status == 429 { RATE_LIMIT } else { &[] };
    let response = json!({
        "description": description,
        "headers": header_references(["X-Request-Id"].iter().chain(retry).chain(limits).copied()),
        "content": {PROBLEM_JSON: {"schema": reference("schemas", schema), "example": example(*status)}},
    });
    (problem_name(*status), response)
}

fn example(status: u16) -> Value {
    let (title, reason, detail) = match status {
        400 => ("Bad Request", "malformed", "unknown field `detla`, expected one of `delta`, `min`, `max`"),
        403 => ("Forbidden", "cross-origin", "a web page of another origin may not change counters"),
        404 => ("Not Found", "no-such-policy", "there is no policy for the pattern stock:*"),
        406 => (
            "Not Acceptable",
            "not-acceptable",
            "replies are application/json, which the header Accept excludes",
        ),
        408 => ("Request Timeout", "too-slow", "the body did not arrive in time; nothing was changed"),
        409 => ("Conflict", "above-ceiling", "the result would be above the ceiling, nothing was changed"),
        412 => {
            ("Precondition Failed", "condition-unmet", "the counter is not in a state that If-Match names")
        }
        413 => {
            ("Content Too Large", "too-large", "the body has more than 1048576 bytes; send smaller batches")
        }
        415 => {
            ("Unsupported Media Type", "unsupported-media-type", "the body is text/csv; send JSON in UTF-8")
        }
        422 => (
            "Unprocessable Content",
            "id-reused",
            "this request id was used for another request, nothing was changed",
        ),
        429 => (
            "Too Many Requests",
            "over-quota",
            "the limit 100 leaves room for 0, not for 1; nothing was counted",
        ),
        431 => (
            "Request Header Fields Too Large",
            "too-large",
            "the head of the request has too many headers, or too large ones",
        ),
        503 => ("Service Unavailable", "busy", "too many requests are in flight; retry later"),
        _ => (
            "Gateway Timeout",
            "outcome-unknown",
            "no answer in time from where the counters lie, the outcome is unknown; \
            retry with the same Idempotency-Key",
        ),
    };
    let mut problem = json!({
        "type": format!("urn:quipu:problem:{reason}"), "title": title, "status": status, "detail": detail,
        "reason": reason, "requestId": "8f14e45f",
    });
    if status == 503 {
        problem["retryAfterMs"] = json!(1000);
    }
    if status == 429 {
        problem["retryAfterMs"] = json!(60000);
        let quota = json!({
            "allowed": false, "limit": 100, "used": 100, "remaining": 0, "resetMs": 60000, "overLimit": false,
        });
        if let (Some(problem), Value::Object(quota)) = (problem.as_object_mut(), quota) {
            problem.extend(quota);
        }
    }
    if status == 422 {
        problem["counterKey"] = json!("stock:shirt");
        problem["accepted"] = json!(false);
    }
    if matches!(status, 409 | 429) {
        let counter = json!({
            "counterKey": "stock:shirt", "value": 100, "version": 7, "updatedAt": "2026-02-23T10:00:00.000Z",
            "exists": true, "kind": "sum", "mode": "strong", "exact": true, "stalenessMs": 0,
            "accepted": false, "existed": true, "applied": 0, "duplicate": false,
        });
        if let (Some(problem), Value::Object(counter)) = (problem.as_object_mut(), counter) {
            problem.extend(counter);
        }
    }
    problem
}

//! What calls share: parameters, headers of replies, and problems.

use quipu_counting::{ID_BYTES_MAX, KEY_BYTES_MAX};
use serde_json::{Map, Value, json};

use super::{PROBLEM_JSON, reference};
use crate::http::list::{LIMIT_DEFAULT, LIMIT_MAX};

/// What a request id in a header may look like: no blanks at its ends, no control characters.
const ID_PATTERN: &str = "^[!-~\\u0080-\\u00ff]([\\t -~\\u0080-\\u00ff]*[!-~\\u0080-\\u00ff])?$";
/// `*`, or a list of tags.
const TAGS_PATTERN: &str = "^(\\*|(W/)?\"[!#-~]*\"([ \\t]*,[ \\t]*(W/)?\"[!#-~]*\")*)$";

/// By the names under which `operations` refers to them.
pub fn parameters() -> Value {
    let id = json!({"type": "string", "minLength": 1, "maxLength": ID_BYTES_MAX, "pattern": ID_PATTERN});
    let tags = json!({"type": "string", "pattern": TAGS_PATTERN});
    let name = json!({"type": "string", "minLength": 1, "maxLength": KEY_BYTES_MAX});
    json!({
        "Key": {
            "name": "key", "in": "path", "required": true, "schema": name, "example": "likes:post:7",
            "description": format!("The counter: 1 to {KEY_BYTES_MAX} bytes, percent-encoded (`/` as `%2F`)."),
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
        "Order": {
            "name": "order", "in": "query", "schema": {"type": "string", "enum": ["key", "value"]}, "example": "value",
            "description": "`key`: by key, byte by byte. `value`: the largest first, which reads everything for each page. \
                Left out: in the order of storage, which is the cheapest way through all of them.",
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
    (404, "Problem", "There is no such policy."),
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
    (422, "Refusal", "The id was used for another request. Nothing was changed."),
    (431, "Problem", "The head of the request is too large."),
    (
        503,
        "Problem",
        "Too much at the moment, the disk is full, or a counter on disk cannot be read. Nothing was changed; \
        send the same request later.",
    ),
    (504, "Problem", "The outcome is unknown; repeat the request under the same id."),
];

/// The name of a problem's response.
pub fn problem_name(status: u16) -> String {
    format!("Problem{status}")
}

/// The same of a batch, where it is another.
pub fn batch_problem_name(status: u16) -> String {
    format!("BatchProblem{status}")
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
    Value::Object(all)
}

fn response((status, schema, description): &(u16, &str, &str)) -> (String, Value) {
    let retry = matches!(status, 503 | 504).then_some("Retry-After");
    let response = json!({
        "description": description,
        "headers": header_references(["X-Request-Id"].into_iter().chain(retry)),
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
        431 => (
            "Request Header Fields Too Large",
            "too-large",
            "the head of the request has too many headers, or too large ones",
        ),
        503 => ("Service Unavailable", "busy", "too many requests are in flight; retry later"),
        _ => (
            "Gateway Timeout",
            "outcome-unknown",
            "neither the disk nor a majority of nodes answered in time, the outcome is unknown; \
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
    if matches!(status, 409 | 422) {
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

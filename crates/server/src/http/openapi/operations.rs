//! The table of calls; those of other counters than sums stand in `kinds`. What a call takes and how it may end stands here once; the document and the tests read it.

/// One call.
pub struct Operation {
    /// Its name.
    pub id: &'static str,
    /// What it belongs to.
    pub tag: &'static str,
    /// In lower case.
    pub method: &'static str,
    /// With its parameters in braces.
    pub path: &'static str,
    /// In a few words.
    pub summary: &'static str,
    /// In a few sentences.
    pub description: &'static str,
    /// By their names in `parts`.
    pub parameters: &'static [&'static str],
    /// What is sent.
    pub body: Option<Body>,
    /// How it ends well.
    pub outcomes: &'static [Outcome],
    /// The statuses of problems it may end with; what they mean stands in `parts`.
    pub problems: &'static [u16],
}

/// What is sent.
pub struct Body {
    /// By its name.
    pub schema: &'static str,
    /// Whether it must be there.
    pub is_required: bool,
    /// As JSON.
    pub example: &'static str,
}

/// How a call ends well.
pub struct Outcome {
    /// The status.
    pub status: u16,
    /// What it means.
    pub description: &'static str,
    /// Of the body; empty where there is none.
    pub media_type: &'static str,
    /// By its name; `text` for a body that is none of ours, empty for any object.
    pub schema: &'static str,
    /// As JSON, or as it is.
    pub example: &'static str,
    /// Beside `X-Request-Id`.
    pub headers: &'static [&'static str],
}

pub(super) const JSON: &str = "application/json";
const TEXT: &str = "text/plain; charset=utf-8";

/// What every change may be given in headers.
const CHANGE: &[&str] = &["Key", "IdempotencyKey", "RequestId", "Actor", "IfMatch", "IfNoneMatch"];
/// How a change with a body may end badly.
const CHANGE_PROBLEMS: &[u16] = &[400, 403, 406, 408, 409, 413, 415, 422, 431, 503, 504];
const READ_PROBLEMS: &[u16] = &[400, 406, 431, 503, 504];
const POLICY_PROBLEMS: &[u16] = &[400, 403, 406, 408, 413, 415, 431, 503, 504];

const COUNTER: &str = r#"{"counterKey":"likes:post:7","value":7,"version":7,"updatedAt":"2026-02-23T10:00:00.000Z","exists":true,"kind":"sum","mode":"strong","exact":true,"stalenessMs":0}"#;
const CHANGED: &str = r#"{"counterKey":"likes:post:7","value":7,"version":7,"updatedAt":"2026-02-23T10:00:00.000Z","exists":true,"kind":"sum","mode":"strong","exact":true,"stalenessMs":0,"accepted":true,"existed":true,"applied":1,"duplicate":false}"#;
const RESET: &str = r#"{"counterKey":"likes:post:7","value":0,"version":8,"updatedAt":"2026-02-23T10:00:00.000Z","exists":true,"kind":"sum","mode":"strong","exact":true,"stalenessMs":0,"accepted":true,"existed":true,"applied":-7,"duplicate":false}"#;
const DELETED: &str = r#"{"counterKey":"likes:post:7","value":0,"version":0,"updatedAt":null,"exists":false,"kind":"sum","mode":"strong","exact":true,"stalenessMs":0,"accepted":true,"existed":true,"applied":-7,"duplicate":false}"#;
const EVENTS: &str = concat!(
    "retry: 1000\n\nevent: ready\nid: 5d0c1f2ab3948e67-41\n",
    r#"data: {"counters":0,"complete":true,"resumed":false}"#,
    "\n\nevent: change\nid: 5d0c1f2ab3948e67-42\n",
    r#"data: {"counterKey":"likes:post:7","value":7,"version":7,"updatedAt":"2026-02-23T10:00:00.000Z","exists":true,"kind":"sum","mode":"strong","exact":true,"stalenessMs":0}"#,
    "\n\n",
);
const POLICY: &str =
    r#"{"pattern":"stock:*","min":0,"max":100,"saturate":false,"ttlMs":null,"disabled":false}"#;

const AGGREGATE: &str = r#"{"pattern":"likes:*","sum":42,"count":3,"min":7,"max":20,"partial":false,"parts":[{"partition":4,"sum":22,"count":2},{"partition":11,"sum":20,"count":1}]}"#;
const HOT: &str = r#"{"keys":[{"key":"likes:post:7","ratePerSec":2000.0,"share":0.25}],"skew":8.0,"ratePerSec":8000.0,"windowMs":10500,"partitions":[{"partition":3,"ratePerSec":4000.0},{"partition":9,"ratePerSec":4000.0}],"partial":false}"#;

const fn changed(example: &'static str) -> Outcome {
    Outcome {
        status: 200,
        description: "The change was made, or is the first outcome of the same request again.",
        media_type: JSON,
        schema: "Change",
        example,
        headers: &["ETag", "Idempotent-Replayed"],
    }
}

const fn reply(description: &'static str, schema: &'static str, example: &'static str) -> Outcome {
    Outcome { status: 200, description, media_type: JSON, schema, example, headers: &[] }
}

const fn page(description: &'static str, media_type: &'static str, example: &'static str) -> Outcome {
    Outcome { status: 200, description, media_type, schema: "text", example, headers: &[] }
}

/// A call of which all is default but what it is.
pub(super) const PLAIN: Operation = Operation {
    id: "",
    tag: "",
    method: "get",
    path: "",
    summary: "",
    description: "",
    parameters: &[],
    body: None,
    outcomes: &[],
    problems: &[400, 431, 503],
};

/// All of them, in the order in which the documentation shows them.
pub(super) const OPERATIONS: &[Operation] = &[
    Operation {
        id: "incrementCounter",
        tag: "counters",
        method: "post",
        path: "/api/v1/counters/{key}/increment",
        summary: "Add to a counter",
        description: "Adds `delta`, 1 where nothing is said. A counter that does not exist is born with 0 before. With `min` \
            or `max` a change whose result is outside is refused (409), or, with `saturate`, made as far as the bound. With `at` a counter with \
            a window counts it for that time, if it is no further back than its policy's `lateness` and at most a minute ahead; else it is \
            refused (409, `out-of-time`) with `earliest` and `latest`. \
            `dims` says what it belongs to, where the counter's policy declares `rollups`: one addition counts in all of them, or in none.",
        parameters: CHANGE,
        body: Some(Body { schema: "Addition", is_required: false, example: r#"{"delta":1,"max":100}"# }),
        outcomes: &[changed(CHANGED)],
        problems: CHANGE_PROBLEMS,
    },
    Operation {
        id: "decrementCounter",
        tag: "counters",
        method: "post",
        path: "/api/v1/counters/{key}/decrement",
        summary: "Take from a counter",
        description: "Takes `delta` away, 1 where nothing is said; all else is as in an increment.",
        parameters: CHANGE,
        body: Some(Body { schema: "Addition", is_required: false, example: r#"{"delta":1,"min":0}"# }),
        outcomes: &[changed(CHANGED)],
        problems: CHANGE_PROBLEMS,
    },
    Operation {
        id: "getCounter",
        tag: "counters",
        path: "/api/v1/counters/{key}",
        summary: "Read a counter",
        description: "A counter that does not exist reads as 0, with `\"exists\":false`. With `dims` the part of the value that belongs \
            to these dimensions, from the smallest roll-up of the counter's policy that has them all; 400 if none has.",
        parameters: &["Key", "Dims", "Consistency", "MaxStaleness", "IfMatch", "IfNoneMatch"],
        outcomes: &[
            Outcome {
                status: 200,
                description: "The counter.",
                media_type: JSON,
                schema: "Counter",
                example: COUNTER,
                headers: &["ETag", "Cache-Control"],
            },
            Outcome {
                status: 304,
                description: "The counter is in a state that `If-None-Match` names.",
                media_type: "",
                schema: "",
                example: "",
                headers: &["ETag", "Cache-Control"],
            },
        ],
        problems: &[400, 406, 412, 431, 503, 504],
        ..PLAIN
    },
    Operation {
        id: "setCounter",
        tag: "counters",
        method: "put",
        path: "/api/v1/counters/{key}",
        summary: "Set a counter",
        description: "Replaces the value. The expiry stays as it is, unless `ttlMs` or `persist` says otherwise.",
        parameters: CHANGE,
        body: Some(Body { schema: "Replacement", is_required: true, example: r#"{"value":5}"# }),
        outcomes: &[changed(CHANGED)],
        problems: CHANGE_PROBLEMS,
    },
    Operation {
        id: "resetCounter",
        tag: "counters",
        method: "post",
        path: "/api/v1/counters/{key}/reset",
        summary: "Set a counter to zero",
        description: "The counter stays, with the value 0. One that does not exist stays absent.",
        parameters: CHANGE,
        outcomes: &[changed(RESET)],
        problems: CHANGE_PROBLEMS,
        ..PLAIN
    },
    Operation {
        id: "deleteCounter",
        tag: "counters",
        method: "delete",
        path: "/api/v1/counters/{key}",
        summary: "Delete a counter",
        description: "The counter ceases to exist. Deleting one that does not exist is done already.",
        parameters: CHANGE,
        outcomes: &[changed(DELETED)],
        problems: CHANGE_PROBLEMS,
        ..PLAIN
    },
    Operation {
        id: "batchIncrement",
        tag: "many",
        method: "post",
        path: "/api/v1/counters/batch-increment",
        summary: "Add to many counters",
        description: "Results come in the order of the items. Independent items succeed or fail alone, each with its own \
            `requestId`, or all under one `Idempotency-Key`. With `atomic` all are made or none (409).",
        parameters: &["IdempotencyKey", "RequestId", "Actor"],
        body: Some(Body {
            schema: "BatchIncrement",
            is_required: true,
            example: r#"{"items":[{"key":"likes:post:7","delta":1},{"key":"stock:shirt","delta":-1,"min":0,"requestId":"order-4711"}]}"#,
        }),
        outcomes: &[Outcome {
            status: 200,
            description: "What became of each item.",
            media_type: JSON,
            schema: "BatchIncrementReply",
            example: "",
            headers: &["Idempotent-Replayed"],
        }],
        problems: CHANGE_PROBLEMS,
    },
    Operation {
        id: "batchGet",
        tag: "many",
        method: "post",
        path: "/api/v1/counters/batch-get",
        summary: "Read many counters",
        description: "Results come in the order of the keys; of a single server all as of one moment, of a cluster those of each \
            partition. With `bodies`, of up to 3 keys, each comes with all it has beyond its numbers, as `quipu export` writes it.",
        parameters: &["Consistency", "MaxStaleness"],
        body: Some(Body {
            schema: "BatchGet",
            is_required: true,
            example: r#"{"keys":["likes:post:7",{"keyBase64":"/wA="}]}"#,
        }),
        outcomes: &[reply("The counters.", "BatchGetReply", "")],
        problems: &[400, 403, 406, 408, 413, 415, 431, 503, 504],
    },
    Operation {
        id: "listCounters",
        tag: "many",
        path: "/api/v1/counters",
        summary: "List counters",
        description: "Page by page: send the `cursor` of a page to get the next, until it is `null`. By key and without an \
            order, a counter that exists all the time is on exactly one page, whatever is written meanwhile. The value of a counter of uniques by \
            time is that of its newest bucket here; a read says how many there are in its window.",
        parameters: &["Prefix", "Order", "Limit", "Cursor"],
        outcomes: &[reply("One page.", "CounterList", "")],
        problems: READ_PROBLEMS,
        ..PLAIN
    },
    Operation {
        id: "aggregateCounters",
        tag: "many",
        path: "/api/v1/counters/{pattern}/aggregate",
        summary: "Add counters up",
        description: "Sum, count, smallest and largest value of all counters whose keys match. Each is counted once, with a value \
            it had meanwhile. A pattern that begins with what keys begin with (`likes:*`) reads those alone, any other all \
            counters. In a cluster `partial` says whether some could not be asked, and `missing` which. With `dims` that \
            part of each value counts; counters whose policies do not declare it are left out, and 400 if no policy does.",
        parameters: &["Pattern", "Dims", "Partial"],
        outcomes: &[reply("The totals.", "Aggregate", AGGREGATE)],
        problems: READ_PROBLEMS,
        ..PLAIN
    },
    Operation {
        id: "hotKeys",
        tag: "many",
        path: "/api/v1/hot",
        summary: "The keys asked for most",
        description: "In the last ten seconds, by everybody, in the whole cluster: rates are counted, not estimated, for every key \
            that has a noticeable share of the requests. Keys that were quiet for that long are not shown.",
        parameters: &["Number"],
        outcomes: &[reply("The keys.", "HotKeys", HOT)],
        problems: READ_PROBLEMS,
        ..PLAIN
    },
    Operation {
        id: "watchCounters",
        tag: "many",
        path: "/api/v1/watch",
        summary: "Follow counters while they change",
        description: "A stream of server-sent events that does not end, for counters by `key`, by `prefix`, or both. It begins with \
            the counters watched by key (with `initial`, also with those of prefixes, 1,000 at most) and the event `ready`. \
            `change`: a counter as a read shows it; deleted and expired ones with `\"exists\":false`. `clear`: all counters were \
            deleted. Of each counter the newest state is sent, at most once an interval, the last one always. Nothing is sent \
            that a crash could take back. A client that comes back with `Last-Event-ID` within a minute hears what it has missed; \
            else, and if it is too slow for all that changes, it hears `reset` and what there is.",
        parameters: &["WatchKey", "WatchPrefix", "IntervalMs", "Initial", "LastEventId"],
        outcomes: &[Outcome {
            headers: &["Cache-Control"],
            ..page("The stream.", "text/event-stream", EVENTS)
        }],
        problems: &[400, 406, 431, 503],
        ..PLAIN
    },
    Operation {
        id: "readMirror",
        tag: "many",
        path: "/api/v1/mirror",
        summary: "How the mirror is doing",
        description: "The table in PostgreSQL that `quipu serve --mirror` writes every counter to: how far it is behind, and whether it \
            can be written. Of a cluster: what the node that is asked writes.",
        outcomes: &[reply("The mirror.", "Mirror", "")],
        problems: &[400, 404, 406, 431, 503],
        ..PLAIN
    },
    Operation {
        id: "listPolicies",
        tag: "policies",
        path: "/api/v1/policies",
        summary: "List policies",
        description: "All of them, in the order of their patterns.",
        outcomes: &[reply("The policies.", "PolicyList", "")],
        problems: READ_PROBLEMS,
        ..PLAIN
    },
    Operation {
        id: "getPolicy",
        tag: "policies",
        path: "/api/v1/policies/{pattern}",
        summary: "Read a policy",
        description: "The policy stored for exactly this pattern.",
        parameters: &["Pattern"],
        outcomes: &[reply("The policy.", "Policy", POLICY)],
        problems: &[400, 404, 406, 431, 503, 504],
        ..PLAIN
    },
    Operation {
        id: "setPolicy",
        tag: "policies",
        method: "put",
        path: "/api/v1/policies/{pattern}",
        summary: "Store a policy",
        description: "In force and durable when the reply comes. Of several patterns that fit a key the most precise holds.",
        parameters: &["Pattern"],
        body: Some(Body { schema: "PolicySettings", is_required: true, example: r#"{"min":0,"max":100}"# }),
        outcomes: &[
            reply("The policy replaces one that was there.", "Policy", POLICY),
            Outcome { status: 201, ..reply("The policy is new.", "Policy", POLICY) },
        ],
        problems: POLICY_PROBLEMS,
    },
    Operation {
        id: "deletePolicy",
        tag: "policies",
        method: "delete",
        path: "/api/v1/policies/{pattern}",
        summary: "Remove a policy",
        description: "Removing one that is not there is done already.",
        parameters: &["Pattern"],
        outcomes: &[reply(
            "It is not there any more.",
            "PolicyRemoved",
            r#"{"pattern":"stock:*","existed":true}"#,
        )],
        problems: POLICY_PROBLEMS,
        ..PLAIN
    },
    Operation {
        id: "getCluster",
        tag: "cluster",
        path: "/api/v1/cluster",
        summary: "The cluster",
        description: "Who belongs to it and who holds what, as the node that answers knows it. 404 on a server that is not a \
            node of one.",
        outcomes: &[reply("The cluster.", "Cluster", "")],
        problems: &[400, 404, 406, 431, 503, 504],
        ..PLAIN
    },
    Operation {
        id: "getBackend",
        tag: "cluster",
        path: "/api/v1/backend",
        summary: "The Redis that keeps the counters",
        description: "On a node with `--backend`: whether everything can be counted, how far behind the archive is, and what was \
            lost and brought back. 404 on a server with a data folder.",
        outcomes: &[reply("The backend.", "Backend", "")],
        problems: &[400, 404, 406, 431, 503, 504],
        ..PLAIN
    },
    Operation {
        id: "removeNode",
        tag: "cluster",
        method: "delete",
        path: "/api/v1/cluster/nodes/{node}",
        summary: "Let a node leave",
        description: "Others take over what it holds, then it is no longer one of the cluster; `GET /api/v1/cluster` shows how \
            far that is. The node may be lost already. It cannot come back: invite another.",
        parameters: &["Node"],
        outcomes: &[reply("It is leaving.", "NodeLeaving", r#"{"node":3,"leaving":true}"#)],
        problems: &[400, 404, 406, 408, 409, 413, 415, 431, 503, 504],
        ..PLAIN
    },
    Operation {
        id: "health",
        tag: "service",
        path: "/healthz",
        summary: "Is the process alive?",
        description: "Says nothing about whether it can count.",
        outcomes: &[page("It is.", TEXT, "ok\n")],
        ..PLAIN
    },
    Operation {
        id: "readiness",
        tag: "service",
        path: "/readyz",
        summary: "Will requests be served?",
        description: "503 while the server drains, or when its data folder has failed.",
        outcomes: &[page("They will.", TEXT, "ready\n")],
        ..PLAIN
    },
    Operation {
        id: "metrics",
        tag: "service",
        path: "/metrics",
        summary: "Metrics",
        description: "In the OpenMetrics text format, for Prometheus and others.",
        outcomes: &[page("All metrics.", "application/openmetrics-text; version=1.0.0; charset=utf-8", "")],
        problems: &[400, 431, 503],
        ..PLAIN
    },
    Operation {
        id: "openapi",
        tag: "service",
        path: "/openapi.json",
        summary: "This document",
        description: "OpenAPI 3.1.",
        outcomes: &[Outcome { headers: &["Cache-Control"], ..reply("The document.", "", "") }],
        ..PLAIN
    },
    Operation {
        id: "docs",
        tag: "service",
        path: "/docs",
        summary: "This page",
        description: "The same for people.",
        outcomes: &[page("The page.", "text/html; charset=utf-8", "")],
        ..PLAIN
    },
];

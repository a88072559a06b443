//! Errors as RFC 9457 problem details: four fields for people and logs, and those a program acts on.

use quipu_counting::{Detail, Refusal, Reply, Unavailable};
use serde::Serialize;
use utoipa::ToSchema;

use super::quota::QuotaBody;
use super::reply::{ChangeBody, ItemBody, KeyName};
use super::timestamp::rfc3339;
use crate::refusal::{of_refusal, of_unavailable, text};

/// The media type of a problem.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// How long a client does well to wait before it retries a request that was shed.
pub const RETRY_AFTER_MS: u64 = 1000;

/// Why a request was not done.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Problem {
    /// A name for the kind of problem; the last part is `reason`.
    #[serde(rename = "type")]
    #[schema(example = "urn:quipu:problem:above-ceiling")]
    kind: String,
    /// What `status` is called.
    #[schema(example = "Conflict")]
    pub title: &'static str,
    /// The HTTP status, here too, because a body travels further than its status line.
    #[schema(example = 409)]
    pub status: u16,
    /// What happened and what to do, in one sentence.
    pub detail: String,
    /// A stable word for programs.
    #[schema(example = "above-ceiling")]
    pub reason: &'static str,
    /// When to come again, where coming again helps.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub retry_after_ms: Option<u64>,
    /// The request's name, as the header `X-Request-Id` of the reply gives it too: what to look for in logs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub request_id: Option<String>,
    /// The counter as it stands, `accepted: false` and `applied: 0`, where a rule of counting refused.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    change: Option<Box<ChangeBody>>,
    /// `false` where nothing was changed and nothing is known of the counter as it stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    accepted: Option<bool>,
    /// The name of a counter of which nothing else is known.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    key: Option<KeyName>,
    /// What is used of the limit that left no room.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    quota: Option<Box<QuotaBody>>,
    /// The earliest time for which something can still be counted, where `at` was too early.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    earliest: Option<String>,
    /// The latest one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false, format = DateTime)]
    latest: Option<String>,
    /// Which item of several was refused, from 0 on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    item: Option<usize>,
    /// The items of an all-or-none batch that was refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(ignore)]
    results: Option<Vec<ItemBody>>,
}

impl Problem {
    /// Any problem.
    pub fn new(status: u16, reason: &'static str, detail: impl Into<String>) -> Problem {
        Problem {
            kind: format!("urn:quipu:problem:{reason}"),
            title: title(status),
            status,
            detail: detail.into(),
            reason,
            retry_after_ms: matches!(status, 503 | 504).then_some(RETRY_AFTER_MS),
            request_id: None,
            change: None,
            accepted: None,
            key: None,
            quota: None,
            earliest: None,
            latest: None,
            item: None,
            results: None,
        }
    }

    /// The request cannot be understood.
    pub fn malformed(detail: impl Into<String>) -> Problem {
        Problem::new(400, "malformed", detail)
    }

    /// A look at a counter was refused: the service cannot answer at the moment.
    pub fn unread(refusal: Refusal) -> Problem {
        let shown = of_refusal(refusal);
        Problem::new(shown.status, refusal.code(), shown.text)
    }

    /// A look at a part of a counter was refused: mostly because nobody declared it.
    pub fn unsliced(refusal: Refusal, reply: &Reply) -> Problem {
        match refusal {
            Refusal::UndeclaredDimension => Problem::undeclared(text(refusal, reply)),
            Refusal::WrongKind => Problem::new(400, refusal.code(), of_refusal(refusal).text),
            _ => Problem::unread(refusal),
        }
    }

    /// What is asked for is declared nowhere.
    pub fn undeclared(detail: impl Into<String>) -> Problem {
        Problem::new(400, Refusal::UndeclaredDimension.code(), detail)
    }

    /// A change of the counter `key` was refused, by a rule of counting, or because nobody can say anything about the counter.
    pub fn refused(key: &[u8], reply: &Reply, refusal: Refusal) -> Problem {
        let shown = of_refusal(refusal);
        let bound = match reply.detail.as_deref() {
            Some(Detail::Bound { earliest_ms, latest_ms }) => Some((*earliest_ms, *latest_ms)),
            _ => None,
        };
        Problem {
            change: refusal.knows_counter().then(|| Box::new(ChangeBody::of(key, reply))),
            accepted: (refusal == Refusal::IdReused).then_some(false),
            key: (!refusal.knows_counter()).then(|| KeyName::of(key)),
            earliest: bound.map(|(earliest_ms, _)| rfc3339(earliest_ms)),
            latest: bound.map(|(_, latest_ms)| rfc3339(latest_ms)),
            ..Problem::new(shown.status, refusal.code(), text(refusal, reply))
        }
    }

    /// The same of a counter of which is known how it was some time ago, but not how it stands.
    pub fn without_state(self, key: &[u8]) -> Problem {
        Problem { change: None, accepted: Some(false), key: Some(KeyName::of(key)), ..self }
    }

    /// A rule of counting refused item `index` of several that are done together or not at all.
    pub fn item_refused(index: usize, key: &[u8], reply: &Reply, refusal: Refusal) -> Problem {
        let refused = Problem::refused(key, reply, refusal);
        let detail = format!("items[{index}]: {}; no item was counted", refused.detail);
        Problem { item: Some(index), detail, ..refused }
    }

    /// The same, and what is used of the limit. When to come again is known where something comes back by itself, and so much ever fits.
    pub fn with_quota(self, quota: QuotaBody, amount: i64) -> Problem {
        let retry_after_ms =
            Some(quota.reset_ms()).filter(|reset_ms| *reset_ms > 0 && amount <= quota.limit());
        Problem { quota: Some(Box::new(quota)), retry_after_ms, ..self }
    }

    /// The same in other words.
    pub fn explained(self, detail: impl Into<String>) -> Problem {
        Problem { detail: detail.into(), ..self }
    }

    /// An all-or-none batch was refused because of its item `index`.
    pub fn batch_refused(index: usize, reply: &Reply, refusal: Refusal, results: Vec<ItemBody>) -> Problem {
        let shown = of_refusal(refusal);
        let detail = format!("items[{index}]: {}; no item was applied", text(refusal, reply));
        Problem { results: Some(results), ..Problem::new(shown.status, refusal.code(), detail) }
    }

    /// The service cannot answer.
    pub fn unavailable(reason: &Unavailable) -> Problem {
        Problem::new(of_unavailable(reason).status, unavailable_code(reason), reason.to_string())
    }
}

/// The stable word for a service that cannot answer.
pub const fn unavailable_code(reason: &Unavailable) -> &'static str {
    match reason {
        Unavailable::Full(_) => "disk-full",
        Unavailable::Failed(_) | Unavailable::Unknown(_) => OUTCOME_UNKNOWN,
        Unavailable::Unreadable(_) => UNAVAILABLE,
        Unavailable::Busy(_) => "busy",
        Unavailable::NoLeader(_) => "no-leader",
        Unavailable::NotMember(_) => "not-a-member",
        Unavailable::Unsupported(_) => "unsupported",
    }
}

/// The stable word for counters that cannot be read.
pub const UNAVAILABLE: &str = "unavailable";

/// The stable word for a request that may or may not have been done.
pub const OUTCOME_UNKNOWN: &str = "outcome-unknown";

fn title(status: u16) -> &'static str {
    match status {
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        406 => "Not Acceptable",
        408 => "Request Timeout",
        409 => "Conflict",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        414 => "URI Too Long",
        415 => "Unsupported Media Type",
        422 => "Unprocessable Content",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        501 => "Not Implemented",
        505 => "HTTP Version Not Supported",
        _ => "Error",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{ItemBody, Problem};
    use quipu_counting::{Cell, Refusal, Reply, Unavailable};
    use serde_json::{Value, json};

    #[test]
    fn a_refusal_carries_the_counter() {
        let cell = Cell { value: 100, version: 3, birth: 1, ..Cell::ABSENT };
        let reply = Reply { refusal: Some(Refusal::AboveCeiling), ..Reply::state(Some(cell)) };
        let body = serde_json::to_value(Problem::refused(b"stock", &reply, Refusal::AboveCeiling)).unwrap();
        for (field, expected) in [
            ("type", json!("urn:quipu:problem:above-ceiling")),
            ("title", json!("Conflict")),
            ("status", json!(409)),
            ("reason", json!("above-ceiling")),
            ("counterKey", json!("stock")),
            ("accepted", json!(false)),
            ("value", json!(100)),
            ("applied", json!(0)),
            ("retryAfterMs", Value::Null),
        ] {
            assert_eq!(body[field], expected, "{field}");
        }
    }

    #[test]
    fn who_knows_nothing_of_a_counter_says_nothing_about_it() {
        let fields = |body: Value| -> BTreeSet<String> {
            body.as_object().unwrap().keys().filter(|field| *field != "retryAfterMs").cloned().collect()
        };
        for refusal in Refusal::ALL.into_iter().filter(|refusal| !refusal.knows_counter()) {
            let reply = Reply { refusal: Some(refusal), ..Reply::state(None) };
            let problem = serde_json::to_value(Problem::refused(b"stock", &reply, refusal)).unwrap();
            let known = ["counterKey", "detail", "reason", "status", "title", "type"].map(String::from);
            let of_service = |field: &String| refusal == Refusal::IdReused && field == "accepted";
            let told: BTreeSet<String> =
                fields(problem).into_iter().filter(|field| !of_service(field)).collect();
            assert_eq!(told, BTreeSet::from(known), "{refusal:?}");
            let item = serde_json::to_value(ItemBody::of_change(b"stock", &reply)).unwrap();
            let known = ["counterKey", "detail", "reason", "status"].map(String::from);
            assert_eq!(fields(item), BTreeSet::from(known), "{refusal:?}");
        }
    }

    #[test]
    fn every_problem_has_a_title() {
        let refused = Refusal::ALL.map(|refusal| Problem::refused(b"k", &Reply::state(None), refusal));
        let unavailable = [
            Unavailable::Full("x".into()),
            Unavailable::Failed("x".into()),
            Unavailable::Unknown("x".into()),
            Unavailable::Unreadable("x".into()),
            Unavailable::Busy("x".into()),
            Unavailable::NoLeader("x".into()),
            Unavailable::NotMember("x".into()),
            Unavailable::Unsupported("x".into()),
        ];
        for problem in refused.into_iter().chain(unavailable.iter().map(Problem::unavailable)) {
            assert_ne!(problem.title, "Error", "{problem:?}");
            assert_eq!(problem.retry_after_ms.is_some(), matches!(problem.status, 503 | 504), "{problem:?}");
        }
    }
}

//! What went wrong, in a sentence that says what to do next, and as an exit code a script can act on.

use std::fmt;

use quipu_counting::{Refusal, Unavailable};
use quipu_wire::json::problem::unavailable_code;
use quipu_wire::refusal::{of_refusal, of_unavailable};
use serde_json::Value;

/// No connection, or an error that is none of the others.
const GENERAL: u8 = 1;
/// The command line, a setting or the request is malformed.
const USAGE: u8 = 2;

/// Why a command did not succeed.
#[derive(Debug)]
pub struct Failure {
    message: String,
    /// The exit code; the table is that of [`quipu_wire::refusal`].
    pub exit_code: u8,
}

impl Failure {
    /// Any failure that has no exit code of its own.
    pub fn general(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), exit_code: GENERAL }
    }

    /// What was asked makes no sense.
    pub fn usage(error: impl Into<anyhow::Error>) -> Failure {
        Failure { message: describe(&error.into()), exit_code: USAGE }
    }

    /// The request may or may not have been done.
    pub fn unknown_outcome(message: impl Into<String>) -> Failure {
        let exit_code = of_unavailable(&Unavailable::Failed(String::new())).exit_code;
        Failure { message: message.into(), exit_code }
    }

    /// The server answered with a problem.
    pub fn from_problem(status: u16, problem: &Value) -> Failure {
        let detail = problem["detail"].as_str().unwrap_or("the server gave no reason");
        let value = match &problem["value"] {
            Value::Number(value) => format!("; the value is {value}"),
            _ => String::new(),
        };
        let reason = problem["reason"].as_str().unwrap_or_default();
        Failure { message: format!("{detail}{value}"), exit_code: exit_code(status, reason) }
    }
}

fn exit_code(status: u16, reason: &str) -> u8 {
    let unavailable = [
        Unavailable::Full,
        Unavailable::Failed,
        Unavailable::Unreadable,
        Unavailable::Busy,
        Unavailable::Unsupported,
    ]
    .map(|kind| kind(String::new()));
    let refused = Refusal::ALL.iter().find(|refusal| refusal.code() == reason);
    let not_answered = unavailable.iter().find(|kind| unavailable_code(kind) == reason);
    match (refused, not_answered) {
        (Some(refusal), _) => of_refusal(*refusal).exit_code,
        (None, Some(kind)) => of_unavailable(kind).exit_code,
        (None, None) if (400..500).contains(&status) => USAGE,
        (None, None) => GENERAL,
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.message)
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        Failure::general(describe(&error))
    }
}

/// An error with what led to it, as far as it does not say that itself.
fn describe(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |said, cause| match cause.to_string() {
        cause if said.is_empty() => cause,
        cause if said.contains(&cause) => said,
        cause => format!("{said}: {cause}"),
    })
}

#[cfg(test)]
mod tests {
    use super::{Failure, exit_code};
    use serde_json::json;

    #[test]
    fn exit_codes() {
        for (status, reason, expected) in [
            (409, "above-ceiling", 3),
            (409, "condition-unmet", 4),
            (409, "disabled", 5),
            (422, "id-reused", 6),
            (503, "busy", 8),
            (503, "disk-full", 9),
            (504, "outcome-unknown", 10),
            (503, "unavailable", 11),
            (400, "malformed", 2),
            (404, "no-such-policy", 2),
            (500, "", 1),
        ] {
            assert_eq!(exit_code(status, reason), expected, "{status} {reason}");
        }
    }

    #[test]
    fn a_problem_is_a_sentence() {
        let problem = json!({"detail": "too much", "value": 7, "reason": "above-ceiling"});
        assert_eq!(Failure::from_problem(409, &problem).to_string(), "too much; the value is 7");
    }
}

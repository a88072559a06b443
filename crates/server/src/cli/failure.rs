//! What went wrong, in a sentence that says what to do next, and as an exit code a script can act on.

use std::fmt;
use std::time::Duration;

use quipu_counting::{Refusal, Unavailable};
use quipu_wire::json::problem::unavailable_code;
use quipu_wire::refusal::{of_refusal, of_unavailable};
use serde_json::Value;

/// How long to try to get on when nobody answers in the middle of long work: a restart of the server takes less.
pub const RETRY_TIME: Duration = Duration::from_secs(60);
/// How long to wait between two tries.
pub const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// An error that is none of the others.
const GENERAL: u8 = 1;
/// The command line, a setting, a file or the request is malformed.
const USAGE: u8 = 2;
/// What was expected to exist does not.
const ABSENT: u8 = 4;
/// Nobody answered as quipu does, and nothing was done.
const UNREACHABLE: u8 = 12;
/// Some rows were done, others not.
const PARTIAL: u8 = 13;
/// A data folder does not agree with itself.
const DAMAGED: u8 = 14;
/// Counters are not what a source of truth says.
const DRIFT: u8 = 16;

/// Every exit code and its meaning, for the documentation. Refusals stand in [`quipu_wire::refusal`].
pub const EXIT_CODES: &[(u8, &str)] = &[
    (0, "done"),
    (GENERAL, "an error that is none of the below"),
    (USAGE, "the command line, a setting, a file or the request is malformed; nothing was done"),
    (3, "refused by a bound of the call or of a policy, or by the range of 64 bits"),
    (ABSENT, "a condition does not hold: another version, or what was asked for does not exist"),
    (5, "refused: a policy disables writes"),
    (6, "refused: the request id was used for another request"),
    (7, "refused: the producer is fenced"),
    (8, "too much at the moment: try again later"),
    (9, "the server's disk is full"),
    (10, "outcome unknown: try again with the same request id"),
    (11, "counters on the server's disk cannot be read; nothing was changed"),
    (UNREACHABLE, "no quipu server there; nothing was done"),
    (PARTIAL, "partly done: the message says how far"),
    (DAMAGED, "`check` found damage"),
    (15, "over quota: nothing was counted, more is free later"),
    (DRIFT, "`reconcile` found counters that differ from the source, and left them so"),
    (130, "interrupted (Ctrl-C)"),
    (141, "the reader of the output went away, as in `quipu list | head`"),
];

/// Why a command did not succeed.
#[derive(Debug)]
pub struct Failure {
    message: String,
    /// One of [`EXIT_CODES`].
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

    /// The same, from a sentence.
    pub fn malformed(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), exit_code: USAGE }
    }

    /// The request may or may not have been done.
    pub fn unknown_outcome(message: impl Into<String>) -> Failure {
        let exit_code = of_unavailable(&Unavailable::Failed(String::new())).exit_code;
        Failure { message: message.into(), exit_code }
    }

    /// There is no server, or something that is none of ours; nothing was done.
    pub fn unreachable(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), exit_code: UNREACHABLE }
    }

    /// Some of it was done.
    pub fn partial(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), exit_code: PARTIAL }
    }

    /// Data do not agree with themselves.
    pub fn damaged(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), exit_code: DAMAGED }
    }

    /// Counters differ from what they should be.
    pub fn drift(message: impl Into<String>) -> Failure {
        Failure { message: message.into(), exit_code: DRIFT }
    }

    /// Whether a read may succeed when it is tried again: nobody was there, or not able to answer now.
    pub fn is_passing(&self) -> bool {
        [UNREACHABLE, 8, 10, 11].contains(&self.exit_code)
    }

    /// The same failure in other words.
    pub fn with(self, message: String) -> Failure {
        Failure { message, ..self }
    }

    /// A server of the Redis protocol answered with an error that is not about what was asked.
    pub fn from_error_reply(text: &str) -> Failure {
        let exit_code = match text.split(' ').next() {
            Some("FULL") => of_unavailable(&Unavailable::Full(String::new())).exit_code,
            _ => GENERAL,
        };
        Failure { message: format!("the server answers: {text}"), exit_code }
    }

    /// The server answered with a problem.
    pub fn from_problem(status: u16, problem: &Value) -> Failure {
        let detail = problem["detail"].as_str().unwrap_or("the server gave no reason");
        let value = match &problem["value"] {
            // Of a window the value is not what a limit is about.
            Value::Number(value) if status != 429 => format!("; the value is {value}"),
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
        Unavailable::Unknown,
        Unavailable::Unreadable,
        Unavailable::Busy,
        Unavailable::NoLeader,
        Unavailable::NotMember,
        Unavailable::Unsupported,
    ]
    .map(|kind| kind(String::new()));
    let refused = Refusal::ALL.iter().find(|refusal| refusal.code() == reason);
    let not_answered = unavailable.iter().find(|kind| unavailable_code(kind) == reason);
    match (refused, not_answered) {
        (Some(refusal), _) => of_refusal(*refusal).exit_code,
        (None, Some(kind)) => of_unavailable(kind).exit_code,
        (None, None) if status == 404 && reason != "no-such-route" => ABSENT,
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
pub fn describe(error: &anyhow::Error) -> String {
    error.chain().fold(String::new(), |said, cause| match cause.to_string() {
        cause if said.is_empty() => cause,
        cause if said.contains(&cause) => said,
        cause => format!("{said}: {cause}"),
    })
}

/// The system's words for a failed call, without the number it adds: `Connection refused`.
pub fn system_words(error: &std::io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::{EXIT_CODES, Failure, exit_code};
    use quipu_counting::Refusal;
    use quipu_wire::refusal::of_refusal;
    use serde_json::json;

    #[test]
    fn exit_codes() {
        for (status, reason, expected) in [
            (409, "above-ceiling", 3),
            (409, "condition-unmet", 4),
            (409, "disabled", 5),
            (422, "id-reused", 6),
            (503, "busy", 8),
            (503, "not-a-member", 8),
            (503, "disk-full", 9),
            (504, "outcome-unknown", 10),
            (503, "unavailable", 11),
            (400, "malformed", 2),
            (404, "no-such-policy", 4),
            (404, "no-such-route", 2),
            (500, "", 1),
        ] {
            assert_eq!(exit_code(status, reason), expected, "{status} {reason}");
        }
    }

    #[test]
    fn every_exit_code_is_documented_once() {
        assert!(EXIT_CODES.is_sorted_by(|(one, _), (next, _)| one < next));
        for refusal in Refusal::ALL {
            let code = of_refusal(refusal).exit_code;
            assert!(EXIT_CODES.iter().any(|(documented, _)| *documented == code), "{refusal:?}");
        }
    }

    #[test]
    fn a_problem_is_a_sentence() {
        let problem = json!({"detail": "too much", "value": 7, "reason": "above-ceiling"});
        assert_eq!(Failure::from_problem(409, &problem).to_string(), "too much; the value is 7");
    }

    #[test]
    fn the_system_speaks_without_numbers() {
        let error = std::io::Error::from_raw_os_error(111);
        assert_eq!(super::system_words(&error), "Connection refused");
    }
}

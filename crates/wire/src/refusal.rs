//! How "no" looks to the caller: one table for every protocol.
//!
//! Counting decides *that* something is refused and why ([`Refusal`]); a deployment says that it cannot answer at all
//! ([`Unavailable`]). What the caller then sees stands here and nowhere else: the first word of a RESP error, the status
//! of an HTTP reply, the exit code of the command line, and whether trying the same again can help.
//!
//! The command line has exit codes beyond these, for what no server says (`server/src/cli/failure.rs`).
//!
//! | exit code | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | an error that is none of the others |
//! | 2 | the command line or the request is malformed |
//! | 3 | a bound of the call or of the policy, or the range of 64 bits |
//! | 4 | the condition (existence, version) does not hold |
//! | 5 | writes are disabled by a policy |
//! | 6 | the request id was used for another request |
//! | 7 | the producer is fenced |
//! | 8 | too much at the moment: retry later |
//! | 9 | the disk is full |
//! | 10 | outcome unknown: retry with the same request id |
//! | 11 | counters on disk cannot be read: nothing was changed, retry later |
//! | 15 | over quota: nothing was counted, more is free later |

use std::borrow::Cow;

use quipu_counting::{Detail, Refusal, Reply, Unavailable};

use crate::json::timestamp::rfc3339;

/// What a refusal is on every protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Presentation {
    /// First word of a RESP error.
    pub prefix: &'static str,
    /// What the caller reads, without the prefix. Empty where the reason carries its own text.
    pub text: &'static str,
    /// Whether the value as it stands belongs behind the text.
    pub shows_value: bool,
    /// HTTP status.
    pub status: u16,
    /// Exit code of the command line.
    pub exit_code: u8,
    /// Whether the same request may succeed later without anyone changing it.
    pub retryable: bool,
}

/// How a refusal is shown.
pub const fn of_refusal(refusal: Refusal) -> &'static Presentation {
    match refusal {
        Refusal::Overflow => &OVERFLOW,
        Refusal::BelowFloor => &BELOW_FLOOR,
        Refusal::AboveCeiling => &ABOVE_CEILING,
        Refusal::ConditionUnmet => &CONDITION_UNMET,
        Refusal::Disabled => &DISABLED,
        Refusal::GroupAborted => &GROUP_ABORTED,
        Refusal::IdReused => &ID_REUSED,
        Refusal::Fenced => &FENCED,
        Refusal::TooManyProducers => &TOO_MANY_PRODUCERS,
        Refusal::CrossSlot => &CROSS_SLOT,
        Refusal::NoLeader => &NO_LEADER,
        Refusal::NoQuorum => &NO_QUORUM,
        Refusal::OutcomeUnknown => &OUTCOME_UNKNOWN,
        Refusal::WrongKind => &WRONG_KIND,
        Refusal::OverQuota => &OVER_QUOTA,
        Refusal::NoLimit => &NO_LIMIT,
        Refusal::HoldEnded => &HOLD_ENDED,
        Refusal::BeyondHold => &BEYOND_HOLD,
        Refusal::TooManyHolds => &TOO_MANY_HOLDS,
        Refusal::TooLarge => &TOO_LARGE,
        Refusal::OutOfTime => &OUT_OF_TIME,
        Refusal::Timeless => &TIMELESS,
        Refusal::UndeclaredDimension => &UNDECLARED_DIMENSION,
        Refusal::TooManyCells => &TOO_MANY_CELLS,
        Refusal::Overloaded => &OVERLOADED,
        Refusal::NotMember => &NOT_MEMBER,
        Refusal::NoHold => &NO_HOLD,
    }
}

/// How a service that cannot answer is shown; the text is that of the reason itself.
pub const fn of_unavailable(reason: &Unavailable) -> &'static Presentation {
    match reason {
        Unavailable::Full(_) => &FULL,
        Unavailable::Failed(_) | Unavailable::Unknown(_) => &FAILED,
        Unavailable::Unreadable(_) => &UNREADABLE,
        Unavailable::Busy(_) => &BUSY,
        Unavailable::NoLeader(_) => &LEADERLESS,
        Unavailable::NotMember(_) => &OUTSIDE,
        Unavailable::Unsupported(_) => &UNSUPPORTED,
    }
}

/// What who asks for a limit in a window hears, where the counter cannot tell what was counted in it.
pub const NO_SUCH_WINDOW: &str = "the counter keeps no such window: it counts without time, counts uniques, cuts time in another way, or in \
                                  buckets too small for so long a window, which a policy with that window changes; nothing was counted";

/// What the caller reads of a refusal, without the prefix, with what the reply knows beyond it.
pub fn text(refusal: Refusal, reply: &Reply) -> Cow<'static, str> {
    let text = of_refusal(refusal).text;
    match reply.detail.as_deref() {
        Some(Detail::Bound { earliest_ms, latest_ms }) => {
            let (earliest, latest) = (rfc3339(*earliest_ms), rfc3339(*latest_ms));
            format!("{text}; times from {earliest} to {latest} are taken").into()
        }
        // Clients of Redis Cluster know its words; others need advice.
        _ if refusal == Refusal::CrossSlot => Cow::Borrowed(CROSS_SLOT_ADVICE),
        Some(Detail::Declared(declared)) => Cow::Owned(format!("{text}; declared are {declared}")),
        _ => Cow::Borrowed(text),
    }
}

/// The RESP error line of a reply that says no, without `-` and line end.
pub fn refusal_line(refusal: Refusal, reply: &Reply) -> String {
    match text(refusal, reply) {
        Cow::Borrowed(_) => error_line(refusal, reply.cell.value),
        Cow::Owned(text) => format!("{} {text}", of_refusal(refusal).prefix),
    }
}

/// The RESP error line of a refusal, without `-` and line end.
pub fn error_line(refusal: Refusal, value: i64) -> String {
    let shown = of_refusal(refusal);
    if shown.shows_value {
        format!("{} {}; the value is {value}", shown.prefix, shown.text)
    } else {
        format!("{} {}", shown.prefix, shown.text)
    }
}

/// The RESP error line of a service that cannot answer, without `-` and line end. Line ends inside the reason (a
/// message of the operating system may have them) become blanks, because they would end the reply.
pub fn unavailable_line(reason: &Unavailable) -> String {
    format!("{} {reason}", of_unavailable(reason).prefix).replace(['\r', '\n'], " ")
}

const fn row(
    prefix: &'static str,
    text: &'static str,
    shows_value: bool,
    status: u16,
    exit_code: u8,
    retryable: bool,
) -> Presentation {
    Presentation { prefix, text, shows_value, status, exit_code, retryable }
}

// Redis's own words where Redis has them.
static OVERFLOW: Presentation = row("ERR", "increment or decrement would overflow", false, 409, 3, false);
static BELOW_FLOOR: Presentation =
    row("LIMIT", "the result would be below the floor, nothing was changed", true, 409, 3, false);
static ABOVE_CEILING: Presentation =
    row("LIMIT", "the result would be above the ceiling, nothing was changed", true, 409, 3, false);
static CONDITION_UNMET: Presentation = row(
    "VERSION",
    "the condition on existence or version does not hold, nothing was changed",
    true,
    409,
    4,
    false,
);
static DISABLED: Presentation =
    row("DISABLED", "a policy disables writes to this counter", false, 409, 5, false);
static GROUP_ABORTED: Presentation = row(
    "ABORTED",
    "another item of the same all-or-none request was refused, nothing was changed",
    false,
    409,
    3,
    false,
);
static ID_REUSED: Presentation = row(
    "IDREUSED",
    "this request id was used for another request, nothing was changed",
    false,
    422,
    6,
    false,
);
static FENCED: Presentation =
    row("FENCED", "a newer epoch of this producer has taken over, nothing was changed", false, 409, 7, false);
static TOO_MANY_PRODUCERS: Presentation =
    row("BUSY", "there is no room for another producer, nothing was changed", false, 503, 8, true);
const CROSS_SLOT_ADVICE: &str = "Keys in request don't hash to the same slot; what is done together in a cluster needs keys with the same \
     {tag}, like calls:{user-7}:minute and calls:{user-7}:month";
static CROSS_SLOT: Presentation =
    row("CROSSSLOT", "Keys in request don't hash to the same slot", false, 400, 2, false);
static NO_LEADER: Presentation = row(
    "CLUSTERDOWN",
    "nobody leads the partition of this counter at the moment, nothing was changed; retry",
    false,
    503,
    8,
    true,
);
static NO_QUORUM: Presentation = row(
    "CLUSTERDOWN",
    "too few replicas of this counter can be reached, nothing was changed; retry",
    false,
    503,
    8,
    true,
);
static OVERLOADED: Presentation = row(
    "BUSY",
    "the node that leads the partition of this counter has too much to do, nothing was changed; retry later",
    false,
    503,
    8,
    true,
);
static NOT_MEMBER: Presentation = row(
    // The word that clients of Redis Cluster know: they look for other nodes and ask again. What is meant is in the text.
    "CLUSTERDOWN",
    "this node was removed from the cluster, or a copy of it runs in its place, nothing was changed; ask another node",
    false,
    503,
    8,
    true,
);
static OUTCOME_UNKNOWN: Presentation = row(
    "UNAVAILABLE",
    "outcome unknown, retry with the same request id; without one look first, or it may count twice",
    false,
    504,
    10,
    true,
);

static WRONG_KIND: Presentation = row(
    "WRONGTYPE",
    "the counter counts something else (sums, uniques, or either of them by time), nothing was changed",
    false,
    409,
    3,
    false,
);
static OVER_QUOTA: Presentation =
    row("QUOTA", "the limit leaves no room for it, nothing was counted", false, 429, 15, false);
static NO_LIMIT: Presentation =
    row("ERR", "no limit: give one, or store it in a policy, nothing was counted", false, 400, 2, false);
static HOLD_ENDED: Presentation =
    row("HOLD", "the hold was committed, voided or has expired, nothing was changed", false, 409, 4, false);
static NO_HOLD: Presentation = row(
    "NOHOLD",
    "there is no such hold, nothing was changed; it is named by what was answered when it was made",
    false,
    404,
    4,
    false,
);
static BEYOND_HOLD: Presentation =
    row("HOLD", "that is more than the hold has set aside, nothing was changed", false, 409, 3, false);
static TOO_MANY_HOLDS: Presentation = row(
    "HOLD",
    "the counter has as many holds as it can have; commit or void some, nothing was changed",
    false,
    409,
    3,
    false,
);
static TOO_LARGE: Presentation = row(
    "ERR",
    "what these counters have is too large for one answer, ask for fewer at once",
    false,
    413,
    2,
    false,
);

static OUT_OF_TIME: Presentation = row(
    "TIME",
    "it happened too long ago to be counted for its time, or lies in the future, nothing was counted",
    false,
    409,
    3,
    false,
);
static TIMELESS: Presentation = row(
    "WRONGTYPE",
    "the counter does not count by time, so nothing can be counted for another time than now; \
     a policy with a window makes it do so from its birth on, nothing was counted",
    false,
    409,
    3,
    false,
);

static UNDECLARED_DIMENSION: Presentation = row(
    "DIMENSION",
    "no roll-up of the counter's policy has all of these dimensions, nothing was changed; declare it with `rollups` in the policy",
    false,
    409,
    3,
    false,
);
static TOO_MANY_CELLS: Presentation = row(
    "DIMENSION",
    "the counter has as many cells of roll-ups as it can have, nothing was changed; leave out a dimension with many values, \
    or give it counters of its own",
    false,
    409,
    3,
    false,
);

static FULL: Presentation = row("FULL", "", false, 503, 9, true);
static FAILED: Presentation = row("UNAVAILABLE", "", false, 504, 10, true);
static UNREADABLE: Presentation = row("UNAVAILABLE", "", false, 503, 11, true);
static BUSY: Presentation = row("BUSY", "", false, 503, 8, true);
static LEADERLESS: Presentation = row("CLUSTERDOWN", "", false, 503, 8, true);
static OUTSIDE: Presentation = row("CLUSTERDOWN", "", false, 503, 8, true);
static UNSUPPORTED: Presentation = row("ERR", "", false, 400, 2, false);

#[cfg(test)]
mod tests {
    use super::{error_line, of_refusal, of_unavailable, unavailable_line};
    use quipu_counting::{Refusal, Unavailable};

    #[test]
    fn error_lines() {
        for (refusal, line) in [
            (Refusal::Overflow, "ERR increment or decrement would overflow"),
            (
                Refusal::BelowFloor,
                "LIMIT the result would be below the floor, nothing was changed; the value is -7",
            ),
            (Refusal::Disabled, "DISABLED a policy disables writes to this counter"),
        ] {
            assert_eq!(error_line(refusal, -7), line);
        }
        let reason = Unavailable::Busy("the queue\r\nis full".into());
        assert_eq!(
            unavailable_line(&reason),
            "BUSY overloaded, nothing was changed: the queue  is full; retry later"
        );
    }

    /// Programs dispatch on the first word and on the codes, so every row must be usable on every protocol.
    #[test]
    fn every_row_is_complete() {
        for refusal in Refusal::ALL {
            let shown = of_refusal(refusal);
            assert!(shown.prefix.bytes().all(|byte| byte.is_ascii_uppercase()), "{refusal:?}");
            assert!(!shown.text.is_empty() && !shown.text.contains(['\r', '\n']), "{refusal:?}");
            assert!((400..600).contains(&shown.status) && shown.exit_code > 1, "{refusal:?}");
            assert_eq!(shown.retryable, shown.status >= 500, "{refusal:?}");
        }
        for reason in [
            Unavailable::Full("x".into()),
            Unavailable::Failed("x".into()),
            Unavailable::Unknown("x".into()),
            Unavailable::Unreadable("x".into()),
            Unavailable::Busy("x".into()),
            Unavailable::NoLeader("x".into()),
            Unavailable::NotMember("x".into()),
            Unavailable::Unsupported("x".into()),
        ] {
            assert_eq!(
                of_unavailable(&reason).retryable,
                of_unavailable(&reason).status >= 500,
                "{reason:?}"
            );
        }
    }
}

//! Corrections. Each is an addition under a request id that is made of what was judged: the counter's last change, how many there were,
//! and by how much it differed. Whoever finds the same again, because a run was killed or two run at once, sends the same
//! request, and it counts once. A counter that is missing says nothing of itself, and may be missing again tomorrow: the id has the
//! number of the mark instead, and that it is made once is up to the condition that it is not there.

use std::thread;
use std::time::Instant;

use serde_json::json;

use super::Args;
use super::compare::{STEADY_LOOKS, spool_failure};
use super::findings::{Finding, Kind, Spooled};
use super::report::Report;
use crate::cli::client::{Call, encode};
use crate::cli::counter::Counter;
use crate::cli::failure::{Failure, RETRY_PAUSE, RETRY_TIME};
use crate::cli::interrupt::{Interrupt, end_by};
use crate::cli::terminal::print_note;

/// Corrections under way at once: one sync of the server's disk serves several.
const AT_ONCE: usize = 8;
/// Findings that are taken from the spool together.
const CHUNK: usize = 256;
/// The exit code of an id that was used for another request: the same correction for another reason.
const ID_REUSED: u8 = 6;

/// What became of a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Correction {
    /// Nobody wanted it corrected.
    None,
    Applied,
    /// The same was corrected before.
    Before,
    Refused(String),
}

impl Args {
    /// Tells about every finding, and corrects it first where that is wanted.
    pub(super) fn correct(
        &self,
        mut findings: Spooled,
        report: &mut Report<'_>,
        interrupt: &Interrupt,
    ) -> Result<(), Failure> {
        loop {
            let some = findings.next(CHUNK).map_err(|error| spool_failure(&error))?;
            if some.is_empty() {
                return Ok(());
            }
            let corrections = self.correct_some(&some);
            for (finding, correction) in some.iter().zip(corrections) {
                report.tell(finding, &correction)?;
            }
            if let Some(signal) = interrupt.received() {
                report.flush()?;
                if self.apply {
                    print_note("interrupted; what was corrected stays, and the same command goes on");
                }
                end_by(signal);
            }
        }
    }

    fn correct_some(&self, findings: &[Finding]) -> Vec<Correction> {
        let share = findings.len().div_ceil(AT_ONCE).max(1);
        thread::scope(|threads| {
            let workers: Vec<_> = findings
                .chunks(share)
                .map(|some| {
                    threads.spawn(|| some.iter().map(|finding| self.correct_one(finding)).collect::<Vec<_>>())
                })
                .collect();
            let lost = |_| vec![Correction::Refused("the correction failed".to_owned()); share];
            workers.into_iter().flat_map(|worker| worker.join().unwrap_or_else(lost)).collect()
        })
    }

    fn is_wanted(&self, finding: &Finding) -> bool {
        self.apply
            && match finding.kind {
                Kind::Drift => true,
                Kind::Missing => self.create_missing,
                Kind::Unlisted => self.zero_unlisted,
                Kind::Busy => self.steady && finding.is_steady && finding.looks >= STEADY_LOOKS,
            }
    }

    fn correct_one(&self, finding: &Finding) -> Correction {
        if !self.is_wanted(finding) {
            return Correction::None;
        }
        let Ok(delta) = i64::try_from(finding.drift()) else {
            let why = "the difference is more than an addition can say; use `quipu set`";
            return Correction::Refused(why.to_owned());
        };
        let id = request_id(finding, delta);
        let reason = self.reason.clone().unwrap_or_else(|| reason(finding));
        let mut body = json!({ "delta": delta, "reason": reason });
        if finding.kind == Kind::Missing {
            // Whoever was counted meanwhile is not to be counted on top of what counts him too.
            body["ifVersion"] = json!(0);
        }
        let path = format!("counters/{}/adjust", encode(&finding.key));
        let call = Call { method: "POST", path, id: Some(&id), body: Some(body) };
        let give_up = Instant::now() + RETRY_TIME;
        loop {
            match self.client.fetch::<Counter>(&call) {
                Ok(counter) if counter.duplicate => return Correction::Before,
                Ok(_) => return Correction::Applied,
                Err(failure) if failure.exit_code == ID_REUSED => return Correction::Before,
                Err(failure) if failure.is_passing() && Instant::now() < give_up => {
                    thread::sleep(RETRY_PAUSE)
                }
                Err(failure) => return Correction::Refused(failure.to_string()),
            }
        }
    }
}

/// The same for the same finding, and for no other.
fn request_id(finding: &Finding, delta: i64) -> String {
    if finding.kind == Kind::Missing {
        return format!("reconcile:missing:{:016x}:{delta}", finding.mark);
    }
    // Of a busy counter the state is not known that goes with the truth; that it is corrected once is then up to the rounds.
    format!("reconcile:{}:{}:{delta}", finding.updated_at_ms, finding.version)
}

fn reason(finding: &Finding) -> String {
    match finding.truth {
        Some(truth) => format!("reconcile: the source has {truth}, the counter had {}", finding.value),
        None => format!("reconcile: the source has nothing, the counter had {}", finding.value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_finding_is_the_same_request() {
        let finding = Finding {
            key: b"k".to_vec(),
            kind: Kind::Drift,
            truth: Some(12),
            value: 10,
            version: 7,
            updated_at_ms: 1000,
            mark: 77,
            looks: 1,
            is_steady: true,
        };
        let later = Finding { looks: 4, is_steady: false, mark: 78, ..finding.clone() };
        assert_eq!(request_id(&finding, 2), request_id(&later, 2));
        let corrected = Finding { version: 8, updated_at_ms: 2000, ..finding.clone() };
        for other in [request_id(&corrected, 2), request_id(&finding, 3)] {
            assert_ne!(request_id(&finding, 2), other);
        }
        assert_eq!(reason(&finding), "reconcile: the source has 12, the counter had 10");
        // What is missing again in another run was deleted in between.
        let missing = Finding { kind: Kind::Missing, value: 0, version: 0, updated_at_ms: 0, ..finding };
        let again = Finding { mark: 78, ..missing.clone() };
        assert_eq!(request_id(&missing, 12), request_id(&missing.clone(), 12));
        assert_ne!(request_id(&missing, 12), request_id(&again, 12));
    }
}

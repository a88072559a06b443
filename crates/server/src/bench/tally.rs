//! What came back, counted as it comes.

use std::collections::BTreeMap;

use anyhow::Result;
use hdrhistogram::Histogram;

/// Latencies are kept up to a minute with three digits.
const LATENCY_NS_MAX: u64 = 60_000_000_000;

/// Kinds of errors told apart; the rest is counted as `other`, so that a server that invents codes fills no memory.
const ERROR_CODES_MAX: usize = 32;

/// What came back, over all connections of a thread.
pub struct Tally {
    /// Replies, errors included.
    pub replies: u64,
    /// Bytes of all replies.
    pub reply_bytes: u64,
    /// Error replies by their code: the first word of a RESP error, the status over HTTP.
    pub errors: BTreeMap<String, u64>,
    /// Text of the first error reply.
    pub first_error: Option<String>,
    /// Nanoseconds from the intended start of a batch to each of its replies that is no error.
    pub latency_ns: Histogram<u64>,
    /// The same for error replies.
    pub error_latency_ns: Histogram<u64>,
    /// Open loop: nanoseconds from the intended start of a batch to when it was sent. Large values mean that the
    /// generator was the bottleneck, or the connection's window was full.
    pub send_delay_ns: Histogram<u64>,
    /// Open loop with `--skip-late`: operations that were due and not sent.
    pub skipped: u64,
    /// Operations sent on a connection that the server closed before it answered.
    pub unanswered: u64,
    /// Connections that the server closed.
    pub closed_connections: u64,
}

impl Tally {
    /// Nothing yet.
    pub fn new() -> Result<Tally> {
        let histogram = || Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3);
        Ok(Tally {
            replies: 0,
            reply_bytes: 0,
            errors: BTreeMap::new(),
            first_error: None,
            latency_ns: histogram()?,
            error_latency_ns: histogram()?,
            send_delay_ns: histogram()?,
            skipped: 0,
            unanswered: 0,
            closed_connections: 0,
        })
    }

    /// `count` replies took so long.
    pub fn note_replies(&mut self, count: u64, latency_ns: u64, are_errors: bool) {
        self.replies += count;
        let histogram = if are_errors { &mut self.error_latency_ns } else { &mut self.latency_ns };
        histogram.saturating_record_n(latency_ns, count);
    }

    /// One reply was an error.
    pub fn note_error(&mut self, code: &str, text: &str) {
        if self.first_error.is_none() {
            self.first_error = Some(text.to_string());
        }
        let is_new = !self.errors.contains_key(code);
        let code = if is_new && self.errors.len() >= ERROR_CODES_MAX { "other" } else { code };
        match self.errors.get_mut(code) {
            Some(count) => *count += 1,
            None => drop(self.errors.insert(code.to_string(), 1)),
        }
    }

    /// Replies that were errors.
    pub fn error_count(&self) -> u64 {
        self.errors.values().sum()
    }

    /// Adds what another thread counted.
    pub fn add(&mut self, other: Tally) -> Result<()> {
        self.replies += other.replies;
        self.reply_bytes += other.reply_bytes;
        for (code, count) in other.errors {
            *self.errors.entry(code).or_default() += count;
        }
        self.first_error = self.first_error.take().or(other.first_error);
        self.latency_ns.add(&other.latency_ns)?;
        self.error_latency_ns.add(&other.error_latency_ns)?;
        self.send_delay_ns.add(&other.send_delay_ns)?;
        self.skipped += other.skipped;
        self.unanswered += other.unanswered;
        self.closed_connections += other.closed_connections;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_counted_by_code_up_to_a_number_of_codes() {
        let mut tally = Tally::new().unwrap();
        for number in 0..ERROR_CODES_MAX + 10 {
            tally.note_error(&format!("CODE{number}"), &format!("CODE{number} happened"));
        }
        tally.note_error("CODE0", "CODE0 again");
        assert_eq!(tally.first_error.as_deref(), Some("CODE0 happened"));
        assert_eq!((tally.errors["CODE0"], tally.errors["other"]), (2, 10));
        assert_eq!(tally.error_count(), ERROR_CODES_MAX as u64 + 11);
    }

    #[test]
    fn threads_are_added_up() {
        let [mut one, mut two] = [Tally::new().unwrap(), Tally::new().unwrap()];
        one.note_replies(3, 1_000, false);
        two.note_replies(4, 2_000, true);
        two.note_error("BUSY", "BUSY now");
        two.skipped = 5;
        one.add(two).unwrap();
        assert_eq!((one.replies, one.latency_ns.len(), one.error_latency_ns.len()), (7, 3, 4));
        assert_eq!((one.errors["BUSY"], one.skipped), (1, 5));
        assert_eq!(one.first_error.as_deref(), Some("BUSY now"));
    }
}

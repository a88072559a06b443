//! A counter as a server describes it, and as it is shown.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::civil::date;
use jiff::fmt::temporal::Pieces;
use serde::Deserialize;

use super::terminal::{self, Screen};

/// What a read or a change answers.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counter {
    /// The name, where it is UTF-8.
    pub counter_key: Option<String>,
    /// The name otherwise.
    pub key_base64: Option<String>,
    /// How much was counted.
    pub value: i64,
    /// How many changes there were.
    #[serde(default)]
    pub version: u64,
    /// When the last one was.
    pub updated_at: Option<String>,
    /// When it ceases to exist, if ever.
    pub expires_at: Option<String>,
    /// The same in milliseconds, where a year of four digits cannot say it.
    pub expires_at_ms: Option<u64>,
    /// An unknown key reads as 0 and does not exist.
    #[serde(default = "yes")]
    pub exists: bool,
    /// By how much the value grew, where this is the answer to a change.
    pub applied: Option<i128>,
    /// Whether it existed before, where this is the answer to a change.
    #[serde(default = "yes")]
    pub existed: bool,
    /// Whether this is the remembered outcome of an earlier request.
    #[serde(default)]
    pub duplicate: bool,
    /// What it counts.
    #[serde(default)]
    pub kind: Option<String>,
    /// Whether it has more than its numbers, where this is one of a list.
    #[serde(default)]
    pub has_body: bool,
    /// That, in base64, where it was asked for.
    pub body: Option<String>,
    /// The parts of the value, where every value of a dimension was asked for.
    pub groups: Option<Vec<Group>>,
    /// There are more of them.
    #[serde(default)]
    pub partial: bool,
}

/// A part of a value.
#[derive(Debug, Deserialize)]
pub struct Group {
    /// What it belongs to.
    pub dims: BTreeMap<String, String>,
    /// How much it is.
    pub value: i64,
}

fn yes() -> bool {
    true
}

/// Several counters, in the order they were asked for.
#[derive(Debug, Deserialize)]
pub struct Results {
    /// One for each key.
    pub results: Vec<Counter>,
}

/// The columns of [`Counter::row`]; see [`Screen::table`].
pub const COLUMNS: &[&str] = &["KEY", "VALUE ", "VERSION ", "CHANGED", "EXPIRES"];

impl Counter {
    /// The same after it was deleted.
    pub fn gone(&self) -> Counter {
        Counter {
            counter_key: self.counter_key.clone(),
            key_base64: self.key_base64.clone(),
            value: 0,
            version: 0,
            updated_at: None,
            expires_at: None,
            expires_at_ms: None,
            exists: false,
            applied: None,
            existed: true,
            duplicate: false,
            kind: None,
            has_body: false,
            body: None,
            groups: None,
            partial: false,
        }
    }

    /// When it ceases to exist, if ever, as a file can say it: a time, or milliseconds where no time can.
    pub fn expiry(&self) -> Option<String> {
        self.expires_at_ms.map(|at_ms| at_ms.to_string()).or_else(|| self.expires_at.clone())
    }

    /// The name's bytes.
    pub fn key(&self) -> Vec<u8> {
        match (&self.counter_key, &self.key_base64) {
            (Some(text), _) => text.clone().into_bytes(),
            (None, Some(text)) => STANDARD.decode(text).unwrap_or_default(),
            (None, None) => Vec::new(),
        }
    }

    /// A line of a table for people.
    pub fn row(&self, screen: &Screen) -> Vec<String> {
        let (changed, expires) = self.times();
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let version = if self.exists { screen.number(self.version) } else { "-".to_owned() };
        let key = terminal::key(&self.key());
        vec![key, screen.number(self.value), version, or_dash(changed), or_dash(expires)]
    }

    /// `version 7, changed 3m 20s ago, expires in 1h`
    pub fn details(&self, screen: &Screen) -> String {
        if !self.exists {
            return "does not exist".to_owned();
        }
        let (changed, expires) = self.times();
        let mut details = format!("version {}", screen.number(self.version));
        for (name, time) in [("changed", changed), ("expires", expires)] {
            if let Some(time) = time {
                details.push_str(&format!(", {name} {time}"));
            }
        }
        details
    }

    fn times(&self) -> (Option<String>, Option<String>) {
        let now_ms = now_ms();
        let changed = self.updated_at.as_deref().and_then(time_ms).map(|at_ms| relative(at_ms, now_ms));
        let expires_at_ms = self.expires_at_ms.or_else(|| self.expires_at.as_deref().and_then(time_ms));
        let expires = expires_at_ms.map(|at_ms| relative(at_ms, now_ms));
        (changed, expires)
    }
}

/// `3m 20s ago`, `now` or `in 1h`.
fn relative(at_ms: u64, now_ms: u64) -> String {
    match at_ms.abs_diff(now_ms) {
        0..1_000 => "now".to_owned(),
        passed if at_ms < now_ms => format!("{} ago", terminal::duration(passed)),
        left => format!("in {}", terminal::duration(left)),
    }
}

/// The wall clock.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// RFC 3339 with any offset, as UTC milliseconds. Taken apart here, because an instant of the library ends a day before the
/// year 9999 does, so that it can be shown in every time zone.
pub fn time_ms(text: &str) -> Option<u64> {
    let pieces = Pieces::parse(text).ok()?;
    let since_1970 =
        pieces.date().to_datetime(pieces.time()?).duration_since(date(1970, 1, 1).at(0, 0, 0, 0));
    let utc_ms = since_1970.as_millis() - i128::from(pieces.to_numeric_offset()?.seconds()) * 1000;
    u64::try_from(utc_ms).ok()
}

#[cfg(test)]
mod tests {
    use super::{relative, time_ms};

    #[test]
    fn times() {
        for (text, expected) in [
            ("2026-02-23T08:15:30.250Z", Some(1_771_834_530_250)),
            ("2026-02-23T09:15:30.25+01:00", Some(1_771_834_530_250)),
            ("1970-01-01T00:00:00Z", Some(0)),
            ("9999-12-30T23:59:59.999Z", Some(253_402_214_399_999)),
            ("9999-12-31T23:59:59.999Z", Some(253_402_300_799_999)),
            ("9999-12-31T23:59:59.999-01:00", Some(253_402_304_399_999)),
            ("10000-01-01T00:00:00Z", None),
            ("1969-12-31T23:59:59Z", None),
            ("2026-02-23", None),
            ("2026-02-30T08:15:30Z", None),
            ("2026-02-23T08:15:30", None),
            ("tomorrow", None),
        ] {
            assert_eq!(time_ms(text), expected, "{text}");
        }
        for (at_ms, shown) in [(799_000, "3m 21s ago"), (1_000_500, "now"), (4_600_000, "in 1h")] {
            assert_eq!(relative(at_ms, 1_000_000), shown);
        }
    }
}

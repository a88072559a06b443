//! Days, weeks and months as people live them: local dates, time zones, daylight saving.
//!
//! Every local date begins at the first instant at which local clocks show its midnight or later. That holds
//! where they skip midnight, or a whole date, and where they show midnight twice.

use std::ops::Range;
use std::sync::Arc;

/// The most changes of offset one zone carries. Two a year for the hundred years before 2000 and the two hundred
/// after are 600.
pub const OFFSETS_MAX: usize = 1024;
/// The longest name of a zone, in bytes. The longest in the IANA database has 32.
pub const ZONE_NAME_BYTES_MAX: usize = 64;
/// No clock on earth is further from UTC than this; the databases allow 24:59:59.
const OFFSET_S_MAX: i32 = 25 * 3600;
/// How many changes of offset are told of a zone where only what is recent counts: four years of two a year.
const OFFSETS_AROUND: usize = 8;
const DAY_MS: i128 = 86_400_000;

/// How long a calendar window is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// From midnight to midnight: 23, 24 or 25 hours.
    Day,
    /// Seven days.
    Week,
    /// From one day of a month to the same of the next.
    Month,
}

/// A time zone: its name, for people, and what its clocks show, for us. The offsets travel as data so that all
/// replicas decide alike, whatever time zone database their machines have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    name: Arc<str>,
    /// From when on (UTC milliseconds) clocks are so many seconds ahead of UTC; the first also before that.
    offsets: Arc<[(i64, i32)]>,
}

impl Zone {
    /// The zone without offsets.
    pub fn utc() -> Zone {
        Zone { name: Arc::from("UTC"), offsets: Arc::from([(0, 0)]) }
    }

    /// A zone: from each of these times on (UTC milliseconds, ascending) its clocks are so many seconds ahead of
    /// UTC. The first offset holds before its time too, the last for ever. Nothing if that is not so, if there
    /// is none, if there are too many, or if an offset is larger than 25 hours.
    pub fn new(name: impl Into<Arc<str>>, offsets: impl Into<Arc<[(i64, i32)]>>) -> Option<Zone> {
        let (name, offsets) = (name.into(), offsets.into());
        let is_named = (1..=ZONE_NAME_BYTES_MAX).contains(&name.len());
        let is_ordered = offsets.is_sorted_by(|(a_ms, _), (b_ms, _)| a_ms < b_ms);
        let is_earthly = offsets.iter().all(|(_, offset_s)| offset_s.unsigned_abs() <= OFFSET_S_MAX as u32);
        let fits = (1..=OFFSETS_MAX).contains(&offsets.len());
        (is_named && is_ordered && is_earthly && fits).then_some(Zone { name, offsets })
    }

    /// Its name alone, for who has to know whether it is still the same.
    pub fn name_only(&self) -> Zone {
        Zone { name: Arc::clone(&self.name), ..Zone::utc() }
    }

    /// The zone as it is at `at_ms`, up to its next change of offset, and was in the years before.
    pub fn around(&self, at_ms: u64) -> Zone {
        let later = self.offsets.partition_point(|(from_ms, _)| i128::from(*from_ms) <= i128::from(at_ms));
        let end = (later + 1).min(self.offsets.len());
        let offsets = &self.offsets[end.saturating_sub(OFFSETS_AROUND)..end];
        Zone { name: Arc::clone(&self.name), offsets: Arc::from(offsets) }
    }

    /// What people call it, as in "Europe/Berlin".
    pub fn name(&self) -> &str {
        &self.name
    }

    /// From when on its clocks are so many seconds ahead of UTC.
    pub fn offsets(&self) -> &[(i64, i32)] {
        &self.offsets
    }

    /// What local clocks show at `at_ms`, in milliseconds since they showed 1970.
    fn local_ms(&self, at_ms: u64) -> i128 {
        let at_ms = i128::from(at_ms);
        let place = self.offsets.partition_point(|(from_ms, _)| i128::from(*from_ms) <= at_ms);
        at_ms + i128::from(self.offsets[place.saturating_sub(1)].1) * 1000
    }

    /// The date that local clocks show at `at_ms`, in days since 1970.
    fn date(&self, at_ms: u64) -> i64 {
        self.local_ms(at_ms).div_euclid(DAY_MS) as i64
    }

    /// What people call the `minute`, `hour`, `day`, `week`, `month` or `year` of `at_ms`, as ISO 8601 writes it.
    pub fn name_of(&self, unit: &str, at_ms: u64) -> Option<String> {
        let date = self.date(at_ms);
        let (month, year) = (month_of(date), month_of(date).div_euclid(12));
        let month_text = format!("{year:04}-{:02}", month.rem_euclid(12) + 1);
        let day_text = format!("{month_text}-{:02}", date - month_start(month) + 1);
        let minutes = self.local_ms(at_ms).rem_euclid(DAY_MS) / 60_000;
        Some(match unit {
            "minute" => format!("{day_text}T{:02}:{:02}", minutes / 60, minutes % 60),
            "hour" => format!("{day_text}T{:02}", minutes / 60),
            "day" => day_text,
            "week" => {
                // A week belongs to the year in which its Thursday lies; 1970 began with one.
                let thursday = date.div_euclid(7) * 7 + if date.rem_euclid(7) >= 4 { 7 } else { 0 };
                let year = month_of(thursday).div_euclid(12);
                format!("{year:04}-W{:02}", (thursday - month_start(year * 12)) / 7 + 1)
            }
            "month" => month_text,
            "year" => format!("{year:04}"),
            _ => return None,
        })
    }

    /// The first instant at which local clocks show midnight of `date` (days since 1970) or later. Never earlier
    /// for a later date, whatever the offsets are.
    fn begin(&self, date: i64) -> i128 {
        let midnight_ms = i128::from(date) * DAY_MS;
        // Before this, no clock shows so late a time.
        let earliest_ms = midnight_ms - i128::from(OFFSET_S_MAX) * 1000;
        let later = self.offsets.partition_point(|(from_ms, _)| i128::from(*from_ms) <= earliest_ms);
        let mut from_ms = earliest_ms;
        let mut offset_s = self.offsets[later.saturating_sub(1)].1;
        for (next_ms, next_offset_s) in &self.offsets[later..] {
            let begin_ms = from_ms.max(midnight_ms - i128::from(offset_s) * 1000);
            if begin_ms < i128::from(*next_ms) {
                return begin_ms;
            }
            (from_ms, offset_s) = (i128::from(*next_ms), *next_offset_s);
        }
        from_ms.max(midnight_ms - i128::from(offset_s) * 1000)
    }
}

/// The day, week or month in which `at_ms` lies.
pub(super) fn period(unit: Unit, anchor: u8, zone: &Zone, at_ms: u64) -> Range<u64> {
    let begin = |period| zone.begin(first_date(unit, anchor, period));
    let at = i128::from(at_ms);
    let mut period = period_of(unit, anchor, zone.date(at_ms));
    let mut start = begin(period);
    let mut end = begin(period + 1);
    // Clocks that were put back over midnight show the old date again, when the new one has begun already.
    while end <= at {
        period += 1;
        (start, end) = (end, begin(period + 1));
    }
    let clamp = |ms: i128| u64::try_from(ms.max(0)).unwrap_or(u64::MAX);
    clamp(start)..clamp(end)
}

/// The number of the day, week or month in which a date lies.
fn period_of(unit: Unit, anchor: u8, date: i64) -> i64 {
    match unit {
        Unit::Day => date,
        Unit::Week => (date - week_shift(anchor)).div_euclid(7),
        Unit::Month => {
            let month = month_of(date);
            if date < first_date(unit, anchor, month) { month - 1 } else { month }
        }
    }
}

/// The first date of the day, week or month with this number.
fn first_date(unit: Unit, anchor: u8, period: i64) -> i64 {
    match unit {
        Unit::Day => period,
        Unit::Week => period * 7 + week_shift(anchor),
        Unit::Month => {
            let (first, next) = (month_start(period), month_start(period + 1));
            (first + i64::from(anchor.max(1)) - 1).min(next - 1)
        }
    }
}

/// The date around 1970-01-01, a Thursday, on which a week with this anchor begins.
fn week_shift(anchor: u8) -> i64 {
    i64::from(anchor.clamp(1, 7)) - 4
}

/// The first date of a month, counted from January of the year 0.
///
/// Years are taken to begin in March, as in Hinnant's "chrono-compatible low-level date algorithms": leap days
/// come last, and the months before follow one line.
fn month_start(month: i64) -> i64 {
    let since_march = month - 2;
    let (year, month) = (since_march.div_euclid(12), since_march.rem_euclid(12));
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    year * 365 + leap_days + (153 * month + 2) / 5 - 719_468
}

/// The month of a date, counted from January of the year 0.
fn month_of(date: i64) -> i64 {
    // At most one off: the guess is the mean length of a month.
    let guess = (date + 719_528) * 4800 / 146_097;
    let guess = if month_start(guess + 1) <= date { guess + 1 } else { guess };
    if date < month_start(guess) { guess - 1 } else { guess }
}

#[cfg(test)]
mod tests {
    use super::{Zone, month_of, month_start};

    /// All dates of 400 years, after which the calendar begins anew, and some far beyond.
    #[test]
    fn dates_lie_in_their_month() {
        for date in (-2..146_097).chain(213_503_982_000..213_503_983_000) {
            let month = month_of(date);
            assert!((month_start(month)..month_start(month + 1)).contains(&date), "{date} in {month}");
        }
        assert_eq!(month_of(0), 1970 * 12);
        assert_eq!(month_start(1970 * 12), 0);
    }

    /// Against `date -u -d @... +%G-W%V` and its kin.
    #[test]
    fn times_have_names() {
        let berlin = Zone::new("Europe/Berlin", [(0, 3600), (1_774_746_000_000, 7200)]).unwrap();
        for (zone, at_ms, minute, week) in [
            (Zone::utc(), 0, "1970-01-01T00:00", "1970-W01"),
            (Zone::utc(), 1_771_841_100_000, "2026-02-23T10:05", "2026-W09"),
            (berlin.clone(), 1_771_887_599_999, "2026-02-23T23:59", "2026-W09"),
            (berlin.clone(), 1_771_887_600_000, "2026-02-24T00:00", "2026-W09"),
            (berlin, 1_774_746_000_000, "2026-03-29T03:00", "2026-W13"),
            (Zone::utc(), 1_798_761_600_000, "2027-01-01T00:00", "2026-W53"),
            (Zone::utc(), 1_735_603_200_000, "2024-12-31T00:00", "2025-W01"),
        ] {
            let name = |unit| zone.name_of(unit, at_ms).unwrap();
            assert_eq!((name("minute").as_str(), name("week").as_str()), (minute, week));
            for (unit, length) in [("year", 4), ("month", 7), ("day", 10), ("hour", 13)] {
                assert_eq!(name(unit), minute[..length]);
            }
            assert_eq!(zone.name_of("tenant", at_ms), None);
        }
    }
}

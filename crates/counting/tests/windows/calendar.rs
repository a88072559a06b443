//! Calendar windows against jiff, which has the world's time zones.

use jiff::civil::Date;
use jiff::tz::{TimeZone, db};
use jiff::{Timestamp, ToSpan};
use proptest::prelude::*;
use quipu_counting::window::{Frame, OFFSETS_MAX, Unit, ZONE_NAME_BYTES_MAX, Zone};

const DAY_MS: i64 = 86_400_000;

/// Zones with something about them: daylight saving in either half of the year, of half an hour, in winter;
/// a quarter of an hour beside the others; a date left out; clocks that change at midnight.
const ZONES: [&str; 12] = [
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Asia/Kathmandu",
    "Australia/Lord_Howe",
    "Africa/Casablanca",
    "Europe/Dublin",
    "Pacific/Apia",
    "America/Sao_Paulo",
    "America/Havana",
    "Asia/Beirut",
    "America/Scoresbysund",
];

/// The zone of that name, as jiff knows it from 1900 to 2100.
pub fn zone(name: &str) -> Zone {
    let jiff = TimeZone::get(name).unwrap();
    let (first, last) = (timestamp("1900-01-01T00:00Z"), timestamp("2100-01-01T00:00Z"));
    let mut offsets = vec![(first.as_millisecond(), jiff.to_offset(first).seconds())];
    for change in jiff.following(first).take_while(|change| change.timestamp() < last) {
        offsets.push((change.timestamp().as_millisecond(), change.offset().seconds()));
    }
    Zone::new(name, offsets).unwrap()
}

fn timestamp(text: &str) -> Timestamp {
    text.parse().unwrap()
}

fn years_1990_to_2090() -> std::ops::Range<i64> {
    timestamp("1990-01-01T00:00Z").as_millisecond()..timestamp("2090-01-01T00:00Z").as_millisecond()
}

fn begins(unit: Unit, anchor: u8, date: Date) -> bool {
    match unit {
        Unit::Day => true,
        Unit::Week => date.weekday().to_monday_one_offset() == anchor as i8,
        Unit::Month => date.day() == (anchor as i8).min(date.days_in_month()),
    }
}

/// The window around a time, found by trying all dates around it.
fn expected(unit: Unit, anchor: u8, zone: &TimeZone, at_ms: i64) -> (i64, i64) {
    let date = Timestamp::from_millisecond(at_ms).unwrap().to_zoned(zone.clone()).date();
    let reach = match unit {
        Unit::Day => 3,
        Unit::Week => 9,
        Unit::Month => 33,
    };
    let begins_ms: Vec<i64> = (-reach..=reach)
        .map(|days| date.checked_add(days.days()).unwrap())
        .filter(|date| begins(unit, anchor, *date))
        .map(|date| date.to_zoned(zone.clone()).unwrap().start_of_day().unwrap().timestamp().as_millisecond())
        .collect();
    let start_ms = begins_ms.iter().rfind(|begin_ms| **begin_ms <= at_ms).unwrap();
    let end_ms = begins_ms.iter().find(|begin_ms| **begin_ms > at_ms).unwrap();
    (*start_ms, *end_ms)
}

fn check(unit: Unit, anchor: u8, zone: &Zone, jiff: &TimeZone, at_ms: i64) {
    let (start_ms, end_ms) = expected(unit, anchor, jiff, at_ms);
    let frame = Frame::Calendar { unit, anchor, zone: zone.clone() };
    let at = Timestamp::from_millisecond(at_ms).unwrap();
    assert_eq!(
        frame.bucket(at_ms as u64),
        start_ms as u64..end_ms as u64,
        "{unit:?} {anchor} at {at} in {}",
        zone.name()
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 5_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn windows_are_those_of_the_calendar(at_ms in years_1990_to_2090(), place in 0..ZONES.len(), anchor in 1..=31u8) {
        let (zone, jiff) = (zone(ZONES[place]), TimeZone::get(ZONES[place]).unwrap());
        check(Unit::Day, 0, &zone, &jiff, at_ms);
        check(Unit::Week, (anchor - 1) % 7 + 1, &zone, &jiff, at_ms);
        check(Unit::Month, anchor, &zone, &jiff, at_ms);
    }
}

/// Every change of clocks in the world: the moments around it, and all windows that begin on the day of it.
#[test]
fn windows_are_those_of_the_calendar_when_clocks_change() {
    let range_ms = years_1990_to_2090();
    let mut changes = 0;
    for name in db().available() {
        let (zone, jiff) = (zone(name.as_str()), TimeZone::get(name.as_str()).unwrap());
        let within = zone.offsets().iter().filter(|(from_ms, _)| range_ms.contains(from_ms));
        for (change_ms, _) in within {
            changes += 1;
            let change = Timestamp::from_millisecond(*change_ms).unwrap().to_zoned(jiff.clone());
            // At the change, and half an hour, an hour, an hour and a half around it.
            for half_hours in [-3, -2, -1, 0, 1, 2, 3] {
                for ms in [-1, 0] {
                    check(Unit::Day, 0, &zone, &jiff, change_ms + half_hours * 1_800_000 + ms);
                }
            }
            for at_ms in [change_ms - DAY_MS, *change_ms, change_ms + DAY_MS] {
                check(Unit::Week, change.weekday().to_monday_one_offset() as u8, &zone, &jiff, at_ms);
                check(Unit::Month, change.day() as u8, &zone, &jiff, at_ms);
            }
        }
    }
    assert!(changes > 10_000, "only {changes}: where are the time zones?");
}

/// Every day of a hundred years, leap years and the one that is none, for every anchor.
#[test]
fn months_begin_on_their_anchor_or_their_last_day() {
    let frame = |anchor| Frame::Calendar { unit: Unit::Month, anchor, zone: Zone::utc() };
    let first = Date::constant(2040, 1, 1);
    for anchor in 1..=31u8 {
        let frame = frame(anchor);
        let mut months = 0;
        for date in first.series(1.day()).take_while(|date| date.year() < 2140) {
            let noon =
                date.at(12, 0, 0, 0).to_zoned(TimeZone::UTC).unwrap().timestamp().as_millisecond() as u64;
            let window = frame.bucket(noon);
            let is_first = window.start + DAY_MS as u64 / 2 == noon;
            assert_eq!(is_first, begins(Unit::Month, anchor, date), "{date} anchor {anchor}");
            months += u32::from(is_first);
        }
        assert_eq!(months, 1_200);
    }
}

/// What people will look up when a window seems wrong.
#[test]
fn days_that_are_known() {
    for (name, unit, anchor, at, start, end) in [
        // 23 and 25 hours.
        ("Europe/Berlin", Unit::Day, 0, "2026-03-29T12:00Z", "2026-03-28T23:00Z", "2026-03-29T22:00Z"),
        ("Europe/Berlin", Unit::Day, 0, "2026-10-25T12:00Z", "2026-10-24T22:00Z", "2026-10-25T23:00Z"),
        // Midnight does not exist: clocks go from 23:59:59 to 01:00.
        ("America/Sao_Paulo", Unit::Day, 0, "2018-11-04T12:00Z", "2018-11-04T03:00Z", "2018-11-05T02:00Z"),
        // Midnight exists twice: clocks go from 00:59:59 to 00:00.
        ("America/Havana", Unit::Day, 0, "2026-11-01T12:00Z", "2026-11-01T04:00Z", "2026-11-02T05:00Z"),
        ("America/Havana", Unit::Day, 0, "2026-11-01T05:30Z", "2026-11-01T04:00Z", "2026-11-02T05:00Z"),
        // The 30th of December 2011 does not exist.
        ("Pacific/Apia", Unit::Day, 0, "2011-12-30T09:59Z", "2011-12-29T10:00Z", "2011-12-30T10:00Z"),
        ("Pacific/Apia", Unit::Day, 0, "2011-12-30T10:00Z", "2011-12-30T10:00Z", "2011-12-31T10:00Z"),
        ("Pacific/Apia", Unit::Month, 30, "2011-12-30T10:00Z", "2011-12-30T10:00Z", "2012-01-29T10:00Z"),
        // Billing months.
        ("UTC", Unit::Month, 31, "2028-02-28T12:00Z", "2028-01-31T00:00Z", "2028-02-29T00:00Z"),
        ("UTC", Unit::Month, 31, "2028-02-29T12:00Z", "2028-02-29T00:00Z", "2028-03-31T00:00Z"),
        ("UTC", Unit::Month, 29, "2027-02-28T00:00Z", "2027-02-28T00:00Z", "2027-03-29T00:00Z"),
        ("Asia/Kathmandu", Unit::Month, 15, "2026-06-14T18:14Z", "2026-05-14T18:15Z", "2026-06-14T18:15Z"),
        // Weeks from Monday and from Sunday.
        ("UTC", Unit::Week, 1, "2026-11-16T10:00Z", "2026-11-16T00:00Z", "2026-11-23T00:00Z"),
        ("America/New_York", Unit::Week, 7, "2026-11-01T12:00Z", "2026-11-01T04:00Z", "2026-11-08T05:00Z"),
    ] {
        let frame = Frame::Calendar { unit, anchor, zone: zone(name) };
        let ms = |text| timestamp(text).as_millisecond() as u64;
        assert_eq!(frame.bucket(ms(at)), ms(start)..ms(end), "{unit:?} {anchor} at {at} in {name}");
    }
}

#[test]
fn zones_that_are_none() {
    let long = "x".repeat(ZONE_NAME_BYTES_MAX + 1);
    let many: Vec<(i64, i32)> = (0..=OFFSETS_MAX as i64).map(|n| (n, 0)).collect();
    for (name, offsets) in [
        ("", &[(0, 0)][..]),
        (&*long, &[(0, 0)]),
        ("a", &[]),
        ("a", &[(1, 0), (0, 0)]),
        ("a", &[(0, 0), (0, 3600)]),
        ("a", &[(0, 90_001)]),
        ("a", &[(0, i32::MIN)]),
        ("a", &many),
    ] {
        assert_eq!(Zone::new(name, offsets), None, "{name} {} offsets", offsets.len());
    }
    let berlin = zone("Europe/Berlin");
    assert_eq!(Zone::new(berlin.name(), berlin.offsets()), Some(berlin));
}

//! The value by dimensions: scripts, and random lives against recounting all that was added.

use std::collections::BTreeMap;

use proptest::prelude::*;
use quipu_counting::rollup::{CELLS_MAX, CellsKept, Declared, GROUPS_MAX};
use quipu_counting::{Refusal, Slice, Told};

use super::*;

fn declared(rollups: &[&[&str]]) -> Option<Declared> {
    let names = |names: &&[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    Declared::new(&rollups.iter().map(names).collect::<Vec<_>>()).unwrap()
}

fn by(rollups: &[&[&str]]) -> Policy {
    Policy { rollups: declared(rollups), ..Policy::default() }
}

fn told_add(add: Add, dimensions: &[(&str, &str)]) -> Ask {
    let mut bytes = Vec::new();
    Told { dimensions: dimensions.to_vec(), ..Told::default() }.put(&mut bytes);
    Ask(Action::Told { add, told: Default::default() }, bytes)
}

fn add_for(delta: i64, dimensions: &[(&str, &str)]) -> Ask {
    told_add(Add::plain(delta), dimensions)
}

fn part(text: &str) -> Ask {
    let mut bytes = Vec::new();
    Slice::parse(text).unwrap().put(&mut bytes);
    Ask(Action::Slice { slice: Default::default() }, bytes)
}

#[test]
fn an_addition_counts_in_all_roll_ups() {
    let counter = script(
        Counter::under(by(&[&["tenant"], &["day"], &["tenant", "day"]])),
        &[
            (0, part("tenant:a"), "part 0"),
            (0, add_for(3, &[("tenant", "a")]), "3"),
            (0, add_for(4, &[("tenant", "b")]), "7"),
            (0, add(1), "8"),
            (DAY_MS, add_for(10, &[("tenant", "a")]), "18"),
            (DAY_MS, add_for(20, &[("day", "2020-01-01"), ("tenant", "a")]), "38"),
            (DAY_MS, part("tenant:a"), "part 33"),
            (DAY_MS, part("tenant:"), "part 1"),
            (DAY_MS, part("tenant:z"), "part 0"),
            (DAY_MS, part("day:2026-03-28"), "part 8"),
            (DAY_MS, part("day:2026-03-29,tenant:a"), "part 10"),
            (DAY_MS, part("tenant:*"), "part 38 =1 a=33 b=4"),
            (DAY_MS, part("tenant:a,day:*"), "part 33 2020-01-01=20 2026-03-28=3 2026-03-29=10"),
            (
                DAY_MS,
                part("tenant:*,day:*"),
                "part 38 2020-01-01/a=20 2026-03-28/=1 2026-03-28/a=3 2026-03-28/b=4 2026-03-29/a=10",
            ),
        ],
    );
    assert_eq!(counter.body().rollups.as_ref().unwrap().len(), 3 + 3 + 5);
}

#[test]
fn what_is_old_is_no_longer_told_apart_by_time() {
    let policy = Policy {
        rollups_kept: CellsKept::new([("day", 3 * DAY_MS)]).unwrap(),
        ..by(&[&["day"], &["campaign", "day"], &["tenant"]])
    };
    let of = |delta, campaign| add_for(delta, &[("campaign", campaign), ("tenant", "a")]);
    let counter = script(
        Counter::under(policy),
        &[
            (0, of(1, "x"), "1"),
            (DAY_MS, of(2, "x"), "3"),
            (DAY_MS, of(4, "y"), "7"),
            (3 * DAY_MS, of(8, "x"), "15"),
            (3 * DAY_MS, part("day:*"), "part 15 2026-03-28=1 2026-03-29=6 2026-03-31=8"),
            // Who looks changes nothing.
            (9 * DAY_MS, part("day:*"), "part 15 2026-03-28=1 2026-03-29=6 2026-03-31=8"),
            (4 * DAY_MS, of(16, "y"), "31"),
            (4 * DAY_MS, part("day:*"), "part 31 =1 2026-03-29=6 2026-03-31=8 2026-04-01=16"),
            (4 * DAY_MS, part("campaign:x,day:*"), "part 11 =1 2026-03-29=2 2026-03-31=8"),
            (4 * DAY_MS, part("campaign:*"), "part 31 x=11 y=20"),
            (4 * DAY_MS, part("tenant:*"), "part 31 a=31"),
            // What is said to be so old stays until the next day.
            (4 * DAY_MS, add_for(32, &[("day", "1999-12-31")]), "63"),
            (4 * DAY_MS, part("day:1999-12-31"), "part 32"),
            (30 * DAY_MS, of(-1, "z"), "62"),
            (30 * DAY_MS, part("day:*"), "part 62 =63 2026-04-27=-1"),
            (30 * DAY_MS, part("campaign:*,day:*"), "part 62 /=32 x/=11 y/=20 z/2026-04-27=-1"),
        ],
    );
    assert_eq!(counter.body().rollups.as_ref().unwrap().len(), 2 + 4 + 2);
}

#[test]
fn times_for_which_cells_can_be_kept() {
    assert!(CellsKept::new([("minute", 60_000), ("year", 1 << 40)]).is_ok());
    let refused = |name, ms| CellsKept::new([(name, ms)]).unwrap_err();
    assert!(refused("tenant", DAY_MS).contains("minute, hour, day"));
    assert_eq!(refused("day", DAY_MS - 1), "a cell by day is kept for at least 86400000 ms");
}

#[test]
fn folding_makes_room() {
    let mut counter = Counter::under(Policy {
        rollups_kept: CellsKept::new([("minute", HOUR_MS)]).unwrap(),
        ..by(&[&["minute"]])
    });
    // As long as minutes are, so that they sort as those do.
    counter.fill("minute", |number| format!("2026-01-01T{number:05}"));
    let counter = script(
        counter,
        &[(0, add(1), "no too-many-cells"), (MINUTE_MS, add(1), &(CELLS_MAX + 1).to_string())],
    );
    assert_eq!(counter.body().rollups.as_ref().unwrap().len(), 2);
}

#[test]
fn what_is_not_declared_is_refused_and_says_what_is() {
    script(
        Counter::default(),
        &[
            (0, add_for(1, &[("tenant", "a")]), "no undeclared-dimension"),
            (0, add_for(1, &[]), "1"),
            (0, part("tenant:a"), "no undeclared-dimension"),
        ],
    );
    script(
        Counter::under(by(&[&["tenant"], &["plan", "region"]])),
        &[
            (0, add_for(1, &[("zone", "a")]), "no undeclared-dimension declared [tenant], [plan, region]"),
            (0, add_for(1, &[("plan", "a"), ("tenant", "a")]), "1"),
            (0, part("region:"), "part 1"),
            (0, part("tenant:a,plan:a"), "no undeclared-dimension declared [tenant], [plan, region]"),
        ],
    );
}

#[test]
fn only_what_was_really_added_counts() {
    let bounded =
        |delta, max, saturate| told_add(Add { max, saturate, ..Add::plain(delta) }, &[("tenant", "a")]);
    script(
        Counter::under(by(&[&["tenant"]])),
        &[
            (0, bounded(8, 10, false), "8"),
            (0, bounded(8, 10, false), "no above-ceiling"),
            (0, part("tenant:a"), "part 8"),
            (0, bounded(8, 10, true), "10"),
            (0, part("tenant:a"), "part 10"),
            (0, bounded(8, 10, true), "10"),
            (0, part("tenant:*"), "part 10 a=10"),
        ],
    );
}

#[test]
fn what_was_counted_before_has_the_empty_values() {
    let mut counter = script(Counter::default(), &[(0, add(5), "5")]);
    counter.policy = Some(by(&[&["tenant"]]));
    let mut counter = script(
        counter,
        &[
            (0, part("tenant:"), "part 5"),
            (0, add_for(2, &[("tenant", "a")]), "7"),
            (0, part("tenant:*"), "part 7 =5 a=2"),
        ],
    );
    counter.policy = Some(by(&[&["tenant"], &["plan"]]));
    let mut counter = script(
        counter,
        &[
            (0, part("plan:*"), "part 7 =7"),
            (0, add_for(1, &[("plan", "p")]), "8"),
            (0, part("plan:*"), "part 8 =7 p=1"),
            (0, part("tenant:*"), "part 8 =6 a=2"),
        ],
    );
    counter.policy = Some(by(&[&["plan"]]));
    let mut counter = script(counter, &[(0, add(1), "9"), (0, part("plan:*"), "part 9 =8 p=1")]);
    counter.policy = Some(by(&[&["plan"], &["tenant"]]));
    let mut counter = script(counter, &[(0, part("tenant:*"), "part 9 =9")]);
    counter.policy = None;
    let counter = script(counter, &[(0, add(1), "10")]);
    assert_eq!(counter.body().rollups, None);
}

#[test]
fn other_changes() {
    script(
        Counter::under(by(&[&["tenant"]])),
        &[
            (0, add_for(5, &[("tenant", "a")]), "5"),
            (0, set(9), "9"),
            (0, part("tenant:*"), "part 9 =9"),
            (0, add_for(5, &[("tenant", "a")]), "14"),
            (0, part("tenant:*"), "part 14 =9 a=5"),
            (0, reset(), "0"),
            (0, part("tenant:*"), "part 0"),
            (0, add_for(-2, &[("tenant", "a")]), "-2"),
            (0, reserve(3, 1_000), "-2 hold 6 until 1000"),
            (0, part("tenant:*"), "part -2 a=-2"),
            (0, commit(6), "1"),
            (0, acquire(2, 10), "3 used 3/10 reset 0"),
            (0, part("tenant:*"), "part 3 =5 a=-2"),
            (0, add_for(2, &[("tenant", "a")]), "5"),
            (0, part("tenant:*"), "part 5 =5"),
            (0, delete(), "none"),
            (0, part("tenant:*"), "part 0"),
            (0, observe(&["x"]), "1 exactly applied 3"),
            (0, part("tenant:*"), "no wrong-kind"),
            (0, overwrite(4), "4"),
            (0, part("tenant:*"), "part 4 =4"),
        ],
    );
}

#[test]
fn a_cell_that_would_overflow_refuses_all() {
    script(
        Counter::under(by(&[&["tenant"]])),
        &[
            (0, add_for(i64::MAX, &[("tenant", "a")]), &i64::MAX.to_string()),
            (0, add_for(-5, &[("tenant", "b")]), &(i64::MAX - 5).to_string()),
            (0, add_for(5, &[("tenant", "a")]), "no overflow"),
            (0, part("tenant:*"), &format!("part {} a={} b=-5", i64::MAX - 5, i64::MAX)),
        ],
    );
}

#[test]
fn windows_have_roll_ups_in_their_time_zone() {
    let zone = quipu_counting::window::Zone::new("Far/East", [(0, 13 * 3600)]).unwrap();
    let frame = Frame::Calendar { unit: quipu_counting::window::Unit::Day, anchor: 0, zone };
    let policy = Policy { rollups: declared(&[&["day"]]), ..kind(Kind::Window, Some(frame), DAY_MS) };
    script(Counter::under(policy), &[(0, add(2), "2"), (0, part("day:*"), "part 2 2026-03-29=2")]);
}

impl Counter {
    /// Adds one for each of as many values as there can be, without looking at everything each time.
    fn fill(&mut self, name: &str, value: impl Fn(usize) -> String) {
        let policy = self.policy.clone().unwrap();
        let ruled = Ruled { limits: Limits::from(&policy), policy: Some(&policy), rules: RULES };
        for number in 0..CELLS_MAX {
            let Ask(action, payload) = add_for(1, &[(name, &value(number))]);
            let asked = Asked { action: &action, payload: &payload };
            let decided = decide_whole(&mut self.whole, asked, ruled, START_MS, number as u64 + 1);
            assert_eq!(decided.reply.refusal, None);
            let a_few = if number == 0 { 64 } else { 32 };
            assert!(decided.events.len() < a_few, "the log says little of it: {}", decided.events.len());
        }
        self.sequence = CELLS_MAX as u64;
    }
}

#[test]
fn cells_and_groups_are_bounded() {
    let mut counter = Counter::under(by(&[&["user"]]));
    assert_eq!(counter.ask(START_MS, &reserve(5, HOUR_MS)).refusal, None);
    counter.fill("user", |number| number.to_string());
    // Who gives back what was set aside needs no room, and who was promised some has it.
    assert_eq!(counter.ask(START_MS, &void(1)).refusal, None);
    let number = counter.ask(START_MS, &reserve(5, HOUR_MS)).cell.version;
    assert_eq!(counter.ask(START_MS, &commit(number)).refusal, None);
    assert_eq!(counter.ask(START_MS, &add(-5)).refusal, None, "of no dimension");
    assert_eq!(
        counter.ask(START_MS, &add_for(1, &[("user", "one more")])).refusal,
        Some(Refusal::TooManyCells)
    );
    assert_eq!(counter.ask(START_MS, &add_for(1, &[("user", "7")])).cell.value, CELLS_MAX as i64 + 1);
    let reply = counter.ask(START_MS, &part("user:*"));
    let sliced = reply.detail.as_ref().unwrap().sliced().unwrap().into_owned();
    assert_eq!((sliced.value, sliced.groups.len()), (CELLS_MAX as i64 + 1, GROUPS_MAX));
    assert!(sliced.is_partial);
}

#[test]
fn declarations_say_what_is_wrong() {
    let names = |text: &str| -> Vec<Vec<String>> {
        text.split(' ').map(|rollup| rollup.split('/').map(str::to_owned).collect()).collect()
    };
    let many: Vec<String> = (0..17).map(|number| format!("n{number}")).collect();
    for (rollups, problem) in [
        (names("a/b/c/d/e"), "a roll-up has 1 to 4 names, not 5"),
        (names("a/a"), "a name or a roll-up comes twice: a/a"),
        (names("a/b b/a"), "a name or a roll-up comes twice: b/a"),
        (names("a:b"), "the name of a dimension has no blanks and none of : , = * in it, but \"a:b\" does"),
        (names(""), "the name of a dimension has 1 to 64 bytes, not 0"),
        (many.iter().map(|name| vec![name.clone()]).collect(), "at most 16 roll-ups, not 17"),
        (many.chunks(4).map(<[String]>::to_vec).collect(), "at most 16 different names, not 17"),
    ] {
        assert_eq!(Declared::new(&rollups).unwrap_err().replace(',', "/"), problem.replace(',', "/"));
    }
    assert_eq!(Declared::new(&[]), Ok(None));
}

#[test]
fn slices_are_read_from_text() {
    for (text, shown) in [
        ("tenant:a", "tenant a"),
        ("tenant:a,day:*", "day each, tenant a"),
        ("minute:2026-02-23T10:05", "minute 2026-02-23T10:05"),
        (r"tenant:a\,b\\", r"tenant a,b\"),
        ("tenant:", "tenant "),
    ] {
        let slice = Slice::parse(text).unwrap();
        let shown_so: Vec<String> =
            slice.iter().map(|(name, value)| format!("{name} {}", value.unwrap_or("each"))).collect();
        assert_eq!(shown_so.join(", "), shown);
        let mut bytes = Vec::new();
        slice.put(&mut bytes);
        assert_eq!(Slice::read(&bytes), Some(slice));
    }
    for text in ["", "tenant", ":a", "a:1,a:2", "a:1,", "a:1,b:2,c:3,d:4,e:5", "a b:1"] {
        assert!(Slice::parse(text).is_err(), "{text}");
    }
}

/// All that was added, and to what it belongs.
type Added = Vec<(BTreeMap<String, String>, i64)>;

fn recount(added: &Added, names: &[&str]) -> BTreeMap<Vec<String>, i64> {
    let mut cells = BTreeMap::new();
    for (dimensions, delta) in added {
        let values = names.iter().map(|name| dimensions.get(*name).cloned().unwrap_or_default());
        *cells.entry(values.collect::<Vec<_>>()).or_default() += delta;
    }
    cells.retain(|_, sum| *sum != 0);
    cells
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Roll-ups are what one counts anew from a list of all that was added. [`Counter::ask`] takes each step through the log and through
    /// the bytes of the body.
    #[test]
    fn roll_ups_against_recounting(
        steps in prop::collection::vec((0..10u8, -20..20i64, "[abc]?", "[xy]?", 0..3u8), 1..120),
    ) {
        let layouts: [&[&[&str]]; 3] =
            [&[&["tenant"], &["tenant", "hour"], &["plan", "hour", "tenant"]], &[&["tenant"], &["plan"]], &[&["hour"]]];
        let mut counter = Counter::default();
        let mut added: Vec<Added> = Vec::new();
        let mut known: Vec<Vec<String>> = Vec::new();
        let (mut layout, mut value) = (0, 0i64);
        for (step, (what, amount, tenant, plan, other)) in steps.into_iter().enumerate() {
            let now_ms = START_MS + step as u64 * 1_000_000;
            if what == 9 {
                layout = usize::from(other);
            }
            let policy = Policy { max: Some(60), ..by(layouts[layout]) };
            let names: Vec<Vec<String>> = (policy.rollups.as_ref().unwrap().rollups())
                .map(|names| names.into_iter().map(str::to_owned).collect())
                .collect();
            counter.policy = Some(policy);
            let mut given: Vec<(&str, &str)> = Vec::new();
            if names.iter().flatten().any(|name| name == "plan") && !plan.is_empty() {
                given.push(("plan", &plan));
            }
            if names.iter().flatten().any(|name| name == "tenant") {
                given.push(("tenant", &tenant));
            }
            let ask = match what {
                0..=5 => add_for(amount, &given),
                6 => told_add(Add { max: 40, saturate: true, ..Add::plain(amount.abs()) }, &given),
                7 if amount < -10 => set(amount),
                7 if amount < 0 => reset(),
                8 if amount < -10 => delete(),
                _ => add(amount),
            };
            let reply = counter.ask(now_ms, &ask);
            let is_addition = matches!(ask.0, Action::Add(_) | Action::Told { .. });
            if reply.refusal.is_none() {
                if is_addition {
                    let beginning = |value| if value == 0 { vec![] } else { vec![(BTreeMap::new(), value)] };
                    added = names.iter().map(|names| match known.iter().position(|known| known == names) {
                        Some(place) => added[place].clone(),
                        None => beginning(value),
                    }).collect();
                    known = names;
                    let mut dimensions: BTreeMap<String, String> = BTreeMap::new();
                    if matches!(ask.0, Action::Told { .. }) {
                        dimensions.extend(given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
                    }
                    let hour = quipu_counting::window::Zone::utc().name_of("hour", now_ms).unwrap();
                    dimensions.insert("hour".to_owned(), hour);
                    added.iter_mut().for_each(|added| added.push((dimensions.clone(), reply.cell.value - value)));
                } else {
                    (added, known) = (Vec::new(), Vec::new());
                }
                value = if reply.exists { reply.cell.value } else { 0 };
            }
            let rollups = counter.whole.body.as_ref().and_then(|body| body.rollups.as_ref());
            let found: Vec<(Vec<&str>, BTreeMap<_, _>)> = rollups.iter().flat_map(|rollups| rollups.iter())
                .map(|(names, cells)| (names, cells.into_iter()
                    .map(|(values, sum)| (values.into_iter().map(str::to_owned).collect(), sum)).collect()))
                .collect();
            prop_assert_eq!(found.len(), known.len());
            for ((names, cells), added) in found.iter().zip(&added) {
                prop_assert_eq!(cells, &recount(added, names));
                prop_assert_eq!(cells.values().sum::<i64>(), value);
            }
        }
    }
}

//! Commands about policies: limits by key pattern.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use quipu_wire::duration::duration_text;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::client::{Call, Client, encode};
use super::counters::{insert, key_parser};
use super::failure::Failure;
use super::terminal::{self, Screen};
use crate::config::units;

/// policy set, get, list, del
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Store a policy for a pattern, in place of what was there
    #[command(
        after_help = "Examples:\n  quipu policy set 'stock:*' --min 0 --max 1000000\n  quipu policy set 'calls:*' --window 1h --limit 100\n  quipu policy set 'spent:*' --calendar month --zone Europe/Berlin --limit 500 --soft"
    )]
    Set(Box<Set>),
    /// Show the policy of a pattern
    #[command(after_help = "Example:\n  quipu policy get 'stock:*'")]
    Get(One),
    /// Show all policies
    #[command(after_help = "Example:\n  quipu policy list --json")]
    List {
        #[command(flatten)]
        client: Client,
    },
    /// Remove the policy of a pattern
    #[command(after_help = "Example:\n  quipu policy del 'stock:*'")]
    Del(Del),
}

/// A pattern.
#[derive(Debug, clap::Args)]
pub struct One {
    /// A key in which * stands for any bytes and ? for one
    #[arg(value_parser = key_parser())]
    pattern: OsString,
    #[command(flatten)]
    client: Client,
}

/// A pattern and what shall hold for it.
#[derive(Debug, clap::Args)]
pub struct Set {
    #[command(flatten)]
    one: One,
    /// No change may bring a value below this
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    min: Option<i64>,
    /// No change may bring a value above this
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    max: Option<i64>,
    /// Additions take what the bounds leave instead of being refused
    #[arg(long)]
    saturate: bool,
    /// Counters born under this policy expire so long after their birth, like 24h
    #[arg(long, value_name = "DURATION", value_parser = units::duration_ms)]
    ttl: Option<u64>,
    /// Refuse writes, serve reads
    #[arg(long)]
    disabled: bool,
    #[command(flatten)]
    time: Time,
    /// The limit of `acquire`, where a call gives none
    #[arg(long, value_name = "N")]
    limit: Option<i64>,
    /// `acquire` counts also beyond the limit
    #[arg(long)]
    soft: bool,
    #[command(flatten)]
    history: History,
    /// Keep who changed a counter, when and why, for so long, like 30d
    #[arg(long, value_name = "DURATION", value_parser = units::duration_ms)]
    audit: Option<u64>,
    /// Roll values up by these dimensions, like tenant or tenant,day; as often as there are roll-ups
    #[arg(long = "rollup", value_name = "NAMES")]
    rollups: Vec<String>,
    /// Tell what is rolled up by day, or another time, apart for so long, like day=365d; for ever where nothing is said
    #[arg(long = "rollup-keep", value_name = "NAME=DURATION", value_parser = kept)]
    rollup_keep: Vec<(String, u64)>,
    /// On Redis with an archive: keep these counters in rows of PostgreSQL; elsewhere every counter is strong
    #[arg(long)]
    strong: bool,
    /// Spread counters over so many places in Redis: 1 to 64, a power of two; for plain sums
    #[arg(long, value_name = "N")]
    stripes: Option<u16>,
    /// Print nothing; the exit code says how it went
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
}

impl Set {
    fn rollup_keep(&self) -> Option<Map<String, Value>> {
        let kept: Map<String, Value> =
            self.rollup_keep.iter().map(|(name, ms)| (name.clone(), json!(ms))).collect();
        (!kept.is_empty()).then_some(kept)
    }

    fn rollups(&self) -> Vec<Vec<&str>> {
        self.rollups.iter().map(|names| names.split(',').collect()).collect()
    }
}

/// How long cells by a time are kept, as an argument.
fn kept(text: &str) -> Result<(String, u64), String> {
    let (name, duration) = text.split_once('=').ok_or("it looks like day=365d")?;
    Ok((name.to_owned(), units::duration_ms(duration).map_err(|error| error.to_string())?))
}

/// How long what a value was stays known.
#[derive(Debug, clap::Args)]
struct History {
    /// Keep the values at full minutes for so long, like 1d
    #[arg(long, value_name = "DURATION", value_parser = units::duration_ms)]
    history_minutes: Option<u64>,
    /// Keep the values at full hours for so long, like 30d
    #[arg(long, value_name = "DURATION", value_parser = units::duration_ms)]
    history_hours: Option<u64>,
    /// Keep the values at midnights (UTC) for so long, like 730d
    #[arg(long, value_name = "DURATION", value_parser = units::duration_ms)]
    history_days: Option<u64>,
}

impl History {
    fn body(&self) -> Option<Value> {
        let mut body = Map::new();
        insert(&mut body, "minutesMs", self.history_minutes);
        insert(&mut body, "hoursMs", self.history_hours);
        insert(&mut body, "daysMs", self.history_days);
        (!body.is_empty()).then_some(Value::Object(body))
    }
}

/// What is counted, and how time is cut for it.
#[derive(Debug, clap::Args)]
struct Time {
    /// What counters are born as: sum, unique or window
    #[arg(long, value_name = "KIND", value_parser = ["sum", "unique", "window"])]
    kind: Option<String>,
    /// How long a window is, like 1h
    #[arg(long, value_name = "DURATION", value_parser = units::duration_ms)]
    window: Option<u64>,
    /// How long a bucket of a sliding window is, like 1m; a sixtieth of the window where nothing is said
    #[arg(long, value_name = "DURATION", value_parser = units::duration_ms, conflicts_with_all = ["fixed", "calendar"])]
    bucket: Option<u64>,
    /// Windows one behind the other instead of the last so long
    #[arg(long, conflicts_with = "calendar")]
    fixed: bool,
    /// Windows of the calendar: day, week or month
    #[arg(long, value_name = "UNIT", value_parser = ["day", "week", "month"], conflicts_with = "window")]
    calendar: Option<String>,
    /// Time zone of the calendar, like Europe/Berlin; UTC where nothing is said
    #[arg(long, value_name = "ZONE", requires = "calendar")]
    zone: Option<String>,
    /// Day on which a month (1 to 31) or a week (1 Monday to 7) begins
    #[arg(long, value_name = "DAY", requires = "calendar")]
    anchor: Option<u8>,
    /// How long what is past stays readable; as long as two windows where nothing is said, 64 days for those of the calendar
    #[arg(long, value_name = "DURATION", value_parser = units::duration_ms)]
    keep: Option<u64>,
    /// How long ago something may have happened that is counted for its time (--at); as long as --keep where nothing is said
    #[arg(long, value_name = "DURATION", value_parser = units::duration_ms)]
    lateness: Option<u64>,
}

impl Time {
    /// Who cuts time and does not say what is counted means sums.
    fn kind(&self) -> Option<String> {
        self.kind.clone().or_else(|| self.window().map(|_| "window".to_owned()))
    }

    fn window(&self) -> Option<Value> {
        let kind = match (self.fixed, &self.calendar) {
            (true, _) => "fixed",
            (false, Some(_)) => "calendar",
            (false, None) if self.window.or(self.bucket).or(self.keep).is_none() => return None,
            (false, None) => "sliding",
        };
        let mut window = Map::from_iter([("type".to_owned(), json!(kind))]);
        insert(&mut window, "spanMs", self.window);
        insert(&mut window, "bucketMs", self.bucket);
        insert(&mut window, "unit", self.calendar.clone());
        insert(&mut window, "zone", self.zone.clone());
        insert(&mut window, "anchor", self.anchor);
        insert(&mut window, "keepMs", self.keep);
        Some(Value::Object(window))
    }
}

/// A pattern whose policy goes.
#[derive(Debug, clap::Args)]
pub struct Del {
    #[command(flatten)]
    one: One,
    /// Print nothing; the exit code says how it went
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
}

impl Command {
    /// Runs the command.
    pub fn run(&self) -> Result<(), Failure> {
        match self {
            Command::Set(set) => {
                let body = json!({
                    "min": set.min, "max": set.max, "saturate": set.saturate, "ttlMs": set.ttl, "disabled": set.disabled,
                    "kind": set.time.kind(), "window": set.time.window(), "limit": set.limit, "soft": set.soft,
                    "history": set.history.body(), "lateness": set.time.lateness, "audit": set.audit.map(duration_text),
                    "rollups": set.rollups(), "rollupKeep": set.rollup_keep(),
                    "consistency": set.strong.then_some("strong"),
                    "stripes": set.stripes,
                });
                print(&Vec::from_iter(set.one.call::<Policy>("PUT", Some(body))?.filter(|_| !set.quiet)))
            }
            Command::Get(one) => print(&Vec::from_iter(one.call::<Policy>("GET", None)?)),
            Command::List { client } => {
                let found: Option<Policies> = client.call(&Call::get("policies"))?;
                print(&found.map_or_else(Vec::new, |found| found.policies))
            }
            Command::Del(del) => {
                let removed = del.one.call::<Removed>("DELETE", None)?.filter(|_| !del.quiet);
                let Some(Removed { existed }) = removed else { return Ok(()) };
                terminal::print(if existed { "removed" } else { "there was none" })
            }
        }
    }
}

impl One {
    fn call<T: DeserializeOwned>(
        &self,
        method: &'static str,
        body: Option<Value>,
    ) -> Result<Option<T>, Failure> {
        let path = format!("policies/{}", encode(self.pattern.as_bytes()));
        self.client.call(&Call { method, path, id: None, body })
    }
}

/// A policy as a server describes it.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Policy {
    pattern: Option<String>,
    pattern_base64: Option<String>,
    min: Option<i64>,
    max: Option<i64>,
    saturate: bool,
    ttl_ms: Option<u64>,
    disabled: bool,
    kind: Option<String>,
    window: Option<Window>,
    limit: Option<i64>,
    #[serde(default)]
    soft: bool,
    history: Option<Kept>,
    lateness: Option<u64>,
    audit: Option<String>,
    #[serde(default)]
    rollups: Vec<Vec<String>>,
    #[serde(default)]
    rollup_keep: BTreeMap<String, String>,
    consistency: Option<String>,
    stripes: Option<u16>,
}

/// How long what a value was stays known.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kept {
    minutes_ms: u64,
    hours_ms: u64,
    days_ms: u64,
}

impl Kept {
    /// `minutes 1d, days 1y`
    fn text(&self) -> String {
        let kept = [("minutes", self.minutes_ms), ("hours", self.hours_ms), ("days", self.days_ms)];
        let kept = kept.into_iter().filter(|(_, ms)| *ms > 0);
        kept.map(|(name, ms)| format!("{name} {}", terminal::duration(ms))).collect::<Vec<_>>().join(", ")
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Window {
    #[serde(rename = "type")]
    cut: String,
    span_ms: Option<u64>,
    bucket_ms: Option<u64>,
    unit: Option<String>,
    zone: Option<String>,
    anchor: Option<u8>,
    keep_ms: Option<u64>,
}

impl Window {
    /// `sliding 1h in 1m`, `fixed 1h`, `month from 15 Europe/Berlin`
    fn text(&self) -> String {
        let mut text = self.unit.clone().unwrap_or_else(|| self.cut.clone());
        text.extend(self.span_ms.map(|ms| format!(" {}", terminal::duration(ms))));
        text.extend(self.bucket_ms.map(|ms| format!(" in {}", terminal::duration(ms))));
        text.extend(self.anchor.map(|day| format!(" from {day}")));
        text.extend(self.zone.as_ref().map(|zone| format!(" {zone}")));
        text
    }
}

#[derive(Debug, Deserialize)]
struct Policies {
    policies: Vec<Policy>,
}

#[derive(Debug, Deserialize)]
struct Removed {
    existed: bool,
}

impl Policy {
    fn pattern(&self) -> String {
        match (&self.pattern, &self.pattern_base64) {
            (Some(text), _) => terminal::key(text.as_bytes()),
            (None, Some(text)) => terminal::key(&STANDARD.decode(text).unwrap_or_default()),
            (None, None) => String::new(),
        }
    }

    /// For a person.
    fn row(&self, screen: &Screen) -> Vec<String> {
        let number =
            |number: Option<i64>| number.map_or_else(|| "-".to_owned(), |number| screen.number(number));
        let ttl = self.ttl_ms.map_or_else(|| "-".to_owned(), terminal::duration);
        let above = if self.saturate { "take what is left" } else { "refuse" };
        let writes = if self.disabled { "disabled" } else { "allowed" };
        let (min, max) = (number(self.min), number(self.max));
        let window = self.window.as_ref().map(Window::text).filter(|_| self.kind.is_some());
        let kind = self.kind.as_deref().unwrap_or("sum");
        let counts = window.map_or_else(|| kind.to_owned(), |window| format!("{kind}, {window}"));
        let rollups = self.rollups.iter().map(|names| names.join(","));
        let counts = rollups.fold(counts, |counts, names| format!("{counts} by {names}"));
        let counts = self.consistency.iter().fold(counts, |counts, strong| format!("{counts}, {strong}"));
        let counts = match self.stripes {
            Some(stripes) => format!("{counts} in {stripes} stripes"),
            None => counts,
        };
        let soft = if self.soft { " soft" } else { "" };
        let limit = format!("{}{soft}", number(self.limit));
        vec![self.pattern(), min, max, above.to_owned(), ttl, writes.to_owned(), counts, limit]
    }

    /// For a program: `stock:*  min 0  max 1000`, the pattern and what was set.
    fn line(&self) -> String {
        let mut line = self.pattern();
        let numbers = [("min", self.min.map(i128::from)), ("max", self.max.map(i128::from))];
        for (name, number) in numbers.into_iter().chain([("ttlMs", self.ttl_ms.map(i128::from))]) {
            if let Some(number) = number {
                line.push_str(&format!("  {name} {number}"));
            }
        }
        for (name, text) in [("kind", self.kind.clone()), ("window", self.window.as_ref().map(Window::text))]
        {
            line.extend(text.map(|text| format!("  {name} {text}")));
        }
        line.extend(
            (self.window.as_ref().and_then(|window| window.keep_ms))
                .map(|ms| format!("  keep {}", duration_text(ms))),
        );
        line.extend(self.lateness.map(|ms| format!("  lateness {}", duration_text(ms))));
        line.extend(self.limit.map(|limit| format!("  limit {limit}")));
        line.extend(self.history.as_ref().map(|kept| format!("  history {}", kept.text())));
        line.extend(self.audit.as_ref().map(|kept| format!("  audit {kept}")));
        line.extend(self.rollups.iter().map(|names| format!("  rollup {}", names.join(","))));
        line.extend(self.rollup_keep.iter().map(|(name, kept)| format!("  rollup-keep {name}={kept}")));
        line.extend(self.consistency.as_ref().map(|strong| format!("  {strong}")));
        line.extend(self.stripes.map(|stripes| format!("  stripes {stripes}")));
        for (name, is_set) in [("saturate", self.saturate), ("disabled", self.disabled), ("soft", self.soft)]
        {
            if is_set {
                line.push_str(&format!("  {name}"));
            }
        }
        line
    }
}

fn print(policies: &[Policy]) -> Result<(), Failure> {
    let screen = Screen::stdout();
    if policies.is_empty() {
        return Ok(());
    }
    if screen.is_terminal {
        let columns = ["PATTERN", "MIN ", "MAX ", "BEYOND", "TTL", "WRITES", "COUNTS", "LIMIT"];
        return terminal::print(screen.table(&columns, policies.iter().map(|policy| policy.row(&screen))));
    }
    terminal::print(policies.iter().map(Policy::line).collect::<Vec<_>>().join("\n"))
}

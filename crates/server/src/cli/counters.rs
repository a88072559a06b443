//! Commands about counters: incr, decr, add, set, reset, del, get, mget.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::builder::{OsStringValueParser, TypedValueParser};
use quipu_counting::KEY_BYTES_MAX;
use quipu_counting::rollup::name_problem;
use serde_json::{Map, Value, json};

use super::client::{Call, Client, encode};
use super::counter::{COLUMNS, Counter, Results};
use super::failure::Failure;
use super::terminal::{self, Screen, print_note};
use crate::config::units;

/// Which way a step counts.
#[derive(Clone, Copy, Debug)]
pub enum Direction {
    /// `incr`
    Up,
    /// `decr`
    Down,
}

/// The counter, the id of the request, and whether to say how it went.
#[derive(Debug, clap::Args)]
pub struct Target {
    /// The counter, 1 to 512 bytes
    #[arg(value_parser = key_parser())]
    pub key: OsString,
    /// Request id: repeating the command under the same id counts once
    #[arg(long, value_name = "ID")]
    pub id: Option<String>,
    /// Print nothing; the exit code says how it went
    #[arg(short, long, conflicts_with = "json")]
    pub quiet: bool,
}

/// What guards an addition.
#[derive(Debug, clap::Args)]
struct Guards {
    /// Refuse if the result would be below this
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    min: Option<i64>,
    /// Refuse if the result would be above this
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    max: Option<i64>,
    /// Take what the bounds leave instead of refusing
    #[arg(long)]
    saturate: bool,
    /// Expire so long after this change, like 60s or 24h
    #[arg(long, value_name = "DURATION", value_parser = units::duration_ms)]
    ttl: Option<u64>,
    /// Refuse unless the counter has this version; 0: unless it does not exist
    #[arg(long, value_name = "VERSION")]
    if_version: Option<u64>,
    /// When it happened, if not now: a time like 2026-02-23T10:00:00Z, or milliseconds since 1970; for counters with a window
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    /// What it belongs to, as name=value; as often as there are dimensions
    #[arg(long = "dim", value_name = "NAME=VALUE", value_parser = dimension)]
    dimensions: Vec<(String, String)>,
}

/// A dimension as an argument.
pub fn dimension(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("a dimension looks like tenant=a")?;
    match name_problem(name) {
        Some(problem) => Err(problem),
        None => Ok((name.to_owned(), value.to_owned())),
    }
}

/// Which part of a value is asked for.
#[derive(Debug, clap::Args)]
pub struct Part {
    /// Only the part that belongs to this, as name=value; as often as there are dimensions
    #[arg(long = "dim", value_name = "NAME=VALUE", value_parser = dimension)]
    dimensions: Vec<(String, String)>,
}

impl Part {
    /// As a parameter of a call, with what stands before it; nothing where all is asked for.
    pub fn parameter(&self, before: char) -> String {
        // A value that is a star asks for every value; inside of one it is a letter like others.
        let escaped = |(name, value): &(String, String)| {
            format!("{name}:{}", value.replace('\\', "\\\\").replace(',', "\\,"))
        };
        match self.dimensions.iter().map(escaped).collect::<Vec<_>>().join(",") {
            none if none.is_empty() => none,
            all => format!("{before}dims={}", encode(all.as_bytes())),
        }
    }
}

/// incr, decr
#[derive(Debug, clap::Args)]
pub struct Step {
    #[command(flatten)]
    target: Target,
    /// By how much
    #[arg(default_value_t = 1, allow_negative_numbers = true)]
    by: i64,
    #[command(flatten)]
    guards: Guards,
    #[command(flatten)]
    client: Client,
}

/// add
#[derive(Debug, clap::Args)]
pub struct Add {
    #[command(flatten)]
    target: Target,
    /// What to add
    #[arg(allow_negative_numbers = true)]
    delta: i64,
    #[command(flatten)]
    guards: Guards,
    #[command(flatten)]
    client: Client,
}

/// set
#[derive(Debug, clap::Args)]
pub struct Set {
    #[command(flatten)]
    target: Target,
    /// The new value
    #[arg(allow_negative_numbers = true)]
    value: i64,
    /// Expire so long after this change, like 60s or 24h; without it the expiry stays
    #[arg(long, value_name = "DURATION", value_parser = units::duration_ms)]
    ttl: Option<u64>,
    /// The counter no longer expires
    #[arg(long, conflicts_with = "ttl")]
    persist: bool,
    /// Refuse unless the counter has this version; 0: unless it does not exist
    #[arg(long, value_name = "VERSION")]
    if_version: Option<u64>,
    #[command(flatten)]
    client: Client,
}

/// reset, del
#[derive(Debug, clap::Args)]
pub struct Change {
    #[command(flatten)]
    target: Target,
    #[command(flatten)]
    client: Client,
}

/// get
#[derive(Debug, clap::Args)]
pub struct Get {
    /// The counter
    #[arg(value_parser = key_parser())]
    key: OsString,
    #[command(flatten)]
    part: Part,
    #[command(flatten)]
    client: Client,
}

/// mget
#[derive(Debug, clap::Args)]
pub struct GetMany {
    /// The counters
    #[arg(required = true, value_name = "KEY", value_parser = key_parser())]
    keys: Vec<OsString>,
    #[command(flatten)]
    client: Client,
}

/// A key as an argument: any bytes, but not too few or too many.
pub fn key_parser() -> impl TypedValueParser<Value = OsString> {
    OsStringValueParser::new().try_map(|key| match key.len() {
        1..=KEY_BYTES_MAX => Ok(key),
        length => Err(format!("a key has 1 to {KEY_BYTES_MAX} bytes, not {length}")),
    })
}

impl Step {
    /// Adds or takes away.
    pub fn run(&self, direction: Direction) -> Result<(), Failure> {
        let verb = match direction {
            Direction::Up => "/increment",
            Direction::Down => "/decrement",
        };
        let reply = self.target.change(&self.client, "POST", verb, Some(self.guards.body(self.by)))?;
        note_part(reply, self.by);
        Ok(())
    }
}

impl Add {
    /// Adds.
    pub fn run(&self) -> Result<(), Failure> {
        let body = self.guards.body(self.delta);
        let reply = self.target.change(&self.client, "POST", "/increment", Some(body))?;
        note_part(reply, self.delta);
        Ok(())
    }
}

impl Set {
    /// Sets.
    pub fn run(&self) -> Result<(), Failure> {
        let mut body = Map::from_iter([("value".to_owned(), json!(self.value))]);
        insert(&mut body, "ttlMs", self.ttl);
        insert(&mut body, "ifVersion", self.if_version);
        insert(&mut body, "persist", self.persist.then_some(true));
        self.target.change(&self.client, "PUT", "", Some(Value::Object(body))).map(drop)
    }
}

impl Change {
    /// Back to zero.
    pub fn reset(&self) -> Result<(), Failure> {
        self.target.change(&self.client, "POST", "/reset", None).map(drop)
    }

    /// Ceases to exist. Prints what it was.
    pub fn delete(&self) -> Result<(), Failure> {
        let call = self.target.call("DELETE", "", None);
        if let Some(reply) = self.client.call::<Counter>(&call)?.filter(|_| !self.target.quiet) {
            let removed = reply.applied.map_or(0, |applied| -applied);
            terminal::print(match reply.existed {
                true => format!("gone, it was {}", Screen::stdout().number(removed)),
                false => "there was none".to_owned(),
            })?;
            note_replay(reply.duplicate);
        }
        Ok(())
    }
}

impl Get {
    /// Prints the value; for a person also what else is known.
    pub fn run(&self) -> Result<(), Failure> {
        let path = format!("counters/{}{}", encode(self.key.as_bytes()), self.part.parameter('?'));
        if let Some(counter) = self.client.call::<Counter>(&Call::get(path))? {
            let screen = Screen::stdout();
            if let Some(groups) = &counter.groups {
                let groups = groups.iter().map(|group| (&group.dims, group.value.into()));
                return print_groups(&screen, groups, counter.partial);
            }
            let value = screen.number(counter.value);
            let details = screen.dim(&format!("({})", counter.details(&screen)));
            terminal::print(if screen.is_terminal { format!("{value}  {details}") } else { value })?;
        }
        Ok(())
    }
}

/// A table for a person; `value<tab>sum` lines for a program.
pub fn print_groups<'a>(
    screen: &Screen,
    groups: impl Iterator<Item = (&'a BTreeMap<String, String>, i128)>,
    is_partial: bool,
) -> Result<(), Failure> {
    if is_partial {
        print_note("there are more of them than are shown; ask for one by its value");
    }
    let (mut names, mut rows) = (Vec::new(), Vec::new());
    for (dims, sum) in groups {
        names = dims.keys().map(|name| name.to_uppercase()).collect();
        let values = dims.values().map(|value| terminal::key(value.as_bytes()));
        rows.push(values.chain([screen.number(sum)]).collect::<Vec<String>>());
    }
    if rows.is_empty() {
        return Ok(());
    }
    if screen.is_terminal {
        let columns: Vec<&str> = names.iter().map(String::as_str).chain(["VALUE "]).collect();
        return terminal::print(screen.table(&columns, rows));
    }
    terminal::print(rows.iter().map(|row| row.join("\t")).collect::<Vec<_>>().join("\n"))
}

impl GetMany {
    /// Prints one line for each key.
    pub fn run(&self) -> Result<(), Failure> {
        let keys: Vec<Value> = self.keys.iter().map(|key| key_body(key.as_bytes())).collect();
        if let Some(Results { results }) = self.client.call(&batch_get(&keys))? {
            print_counters(&results)?;
        }
        Ok(())
    }
}

/// A read of many counters; see [`key_body`].
pub fn batch_get(keys: &[Value]) -> Call<'static> {
    let path = "counters/batch-get".to_owned();
    Call { method: "POST", path, id: None, body: Some(json!({ "keys": keys })) }
}

/// The same, rather not at all than older than now.
pub fn batch_get_strong(keys: &[Value]) -> Call<'static> {
    Call { path: "counters/batch-get?consistency=strong".to_owned(), ..batch_get(keys) }
}

/// The same with all they have, of [`BODIES_MAX`](quipu_wire::json::request::BODIES_MAX) at most.
pub fn batch_get_whole(keys: &[Value]) -> Call<'static> {
    Call { body: Some(json!({ "keys": keys, "bodies": true })), ..batch_get(&[]) }
}

/// A key within a body.
pub fn key_body(key: &[u8]) -> Value {
    match std::str::from_utf8(key) {
        Ok(text) => json!(text),
        Err(_) => json!({ "keyBase64": STANDARD.encode(key) }),
    }
}

/// A table for a person; `key<tab>value` lines for a program.
fn print_counters(counters: &[Counter]) -> Result<(), Failure> {
    let screen = Screen::stdout();
    if screen.is_terminal {
        return terminal::print(screen.table(COLUMNS, counters.iter().map(|counter| counter.row(&screen))));
    }
    let line = |counter: &Counter| format!("{}\t{}", terminal::key(&counter.key()), counter.value);
    terminal::print(counters.iter().map(line).collect::<Vec<_>>().join("\n"))
}

impl Target {
    /// A call about the counter.
    pub fn call(&self, method: &'static str, verb: &str, body: Option<Value>) -> Call<'_> {
        let path = format!("counters/{}{verb}", encode(self.key.as_bytes()));
        Call { method, path, id: self.id.as_deref(), body }
    }

    /// Makes the change and prints the value it led to. Returns what else may have to be said.
    pub fn change(
        &self,
        client: &Client,
        method: &'static str,
        verb: &str,
        body: Option<Value>,
    ) -> Result<Option<Counter>, Failure> {
        let reply: Option<Counter> = client.call(&self.call(method, verb, body))?;
        let reply = reply.filter(|_| !self.quiet);
        if let Some(reply) = &reply {
            terminal::print(Screen::stdout().number(reply.value))?;
            note_replay(reply.duplicate);
        }
        Ok(reply)
    }
}

/// Bounds that saturate may have left room for a part only.
fn note_part(reply: Option<Counter>, asked: i64) {
    let applied = reply.and_then(|reply| reply.applied);
    if let Some(applied) =
        applied.filter(|applied| applied.unsigned_abs() != u128::from(asked.unsigned_abs()))
    {
        print_note(&format!(
            "the bounds left room for {} of {}",
            applied.unsigned_abs(),
            asked.unsigned_abs()
        ));
    }
}

/// Says that nothing new was done, if that is so.
pub fn note_replay(duplicate: bool) {
    if duplicate {
        print_note("this id was used before; shown is the first outcome, nothing was counted again");
    }
}

impl Guards {
    fn body(&self, delta: i64) -> Value {
        let mut body = Map::from_iter([("delta".to_owned(), json!(delta))]);
        insert(&mut body, "min", self.min);
        insert(&mut body, "max", self.max);
        insert(&mut body, "ttlMs", self.ttl);
        insert(&mut body, "ifVersion", self.if_version);
        insert(&mut body, "saturate", self.saturate.then_some(true));
        insert(&mut body, "at", self.at.clone());
        let dims: Map<String, Value> =
            self.dimensions.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
        insert(&mut body, "dims", (!dims.is_empty()).then_some(Value::Object(dims)));
        Value::Object(body)
    }
}

/// A field of a body, where it has a value.
pub fn insert(body: &mut Map<String, Value>, name: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        body.insert(name.to_owned(), value.into());
    }
}

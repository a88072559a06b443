//! Commands about counters: incr, decr, add, set, reset, del, get, mget.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::client::{Call, Client, encode};
use super::failure::Failure;
use crate::config::units;

/// Which way a step counts.
#[derive(Clone, Copy, Debug)]
pub enum Direction {
    /// `incr`
    Up,
    /// `decr`
    Down,
}

/// The counter, and the id of the request.
#[derive(Debug, clap::Args)]
struct Target {
    /// The counter, 1 to 512 bytes
    key: OsString,
    /// Request id: repeating the command under the same id counts once
    #[arg(long, value_name = "ID")]
    id: Option<String>,
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
    key: OsString,
    #[command(flatten)]
    client: Client,
}

/// mget
#[derive(Debug, clap::Args)]
pub struct GetMany {
    /// The counters
    #[arg(required = true)]
    keys: Vec<OsString>,
    #[command(flatten)]
    client: Client,
}

impl Step {
    /// Adds or takes away.
    pub fn run(&self, direction: Direction) -> Result<(), Failure> {
        let verb = match direction {
            Direction::Up => "/increment",
            Direction::Down => "/decrement",
        };
        print_value(&self.client, &self.target.call("POST", verb, Some(self.guards.body(self.by))))
    }
}

impl Add {
    /// Adds.
    pub fn run(&self) -> Result<(), Failure> {
        print_value(&self.client, &self.target.call("POST", "/increment", Some(self.guards.body(self.delta))))
    }
}

impl Set {
    /// Sets.
    pub fn run(&self) -> Result<(), Failure> {
        let mut body = Map::from_iter([("value".to_owned(), json!(self.value))]);
        insert(&mut body, "ttlMs", self.ttl);
        insert(&mut body, "ifVersion", self.if_version);
        insert(&mut body, "persist", self.persist.then_some(true));
        print_value(&self.client, &self.target.call("PUT", "", Some(Value::Object(body))))
    }
}

impl Change {
    /// Back to zero.
    pub fn reset(&self) -> Result<(), Failure> {
        print_value(&self.client, &self.target.call("POST", "/reset", None))
    }

    /// Ceases to exist. Prints what it was.
    pub fn delete(&self) -> Result<(), Failure> {
        if let Some(reply) = self.client.call(&self.target.call("DELETE", "", None))? {
            let removed = reply["applied"].as_i64().map_or(0, |applied| applied.wrapping_neg());
            println!("gone, it was {removed}");
        }
        Ok(())
    }
}

impl Get {
    /// Prints the bare value.
    pub fn run(&self) -> Result<(), Failure> {
        let path = format!("counters/{}", encode(self.key.as_bytes()));
        print_value(&self.client, &Call { method: "GET", path, id: None, body: None })
    }
}

impl GetMany {
    /// Prints one line for each key.
    pub fn run(&self) -> Result<(), Failure> {
        let keys: Vec<Value> = self.keys.iter().map(key_body).collect();
        let call = Call {
            method: "POST",
            path: "counters/batch-get".to_owned(),
            id: None,
            body: Some(json!({ "keys": keys })),
        };
        if let Some(reply) = self.client.call(&call)? {
            let values = reply["results"].as_array().map(Vec::as_slice).unwrap_or_default();
            for (key, counter) in self.keys.iter().zip(values) {
                println!("{}\t{}", key.display(), counter["value"]);
            }
        }
        Ok(())
    }
}

impl Target {
    fn call(&self, method: &'static str, verb: &str, body: Option<Value>) -> Call<'_> {
        let path = format!("counters/{}{verb}", encode(self.key.as_bytes()));
        Call { method, path, id: self.id.as_deref(), body }
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
        Value::Object(body)
    }
}

fn insert(body: &mut Map<String, Value>, name: &str, value: Option<impl Into<Value>>) {
    if let Some(value) = value {
        body.insert(name.to_owned(), value.into());
    }
}

fn key_body(key: &OsString) -> Value {
    match key.to_str() {
        Some(text) => json!(text),
        None => json!({ "keyBase64": STANDARD.encode(key.as_bytes()) }),
    }
}

fn print_value(client: &Client, call: &Call<'_>) -> Result<(), Failure> {
    if let Some(reply) = client.call(call)? {
        println!("{}", reply["value"]);
        if reply["duplicate"] == json!(true) {
            eprintln!(
                "quipu: this id was used before; shown is the first outcome, nothing was counted again"
            );
        }
    }
    Ok(())
}

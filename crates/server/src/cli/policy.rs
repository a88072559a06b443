//! Commands about policies: limits by key pattern.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::client::{Call, Client, encode};
use super::counters::key_parser;
use super::failure::Failure;
use super::terminal::{self, Screen};
use crate::config::units;

/// policy set, get, list, del
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Store a policy for a pattern, in place of what was there
    #[command(after_help = "Example:\n  quipu policy set 'stock:*' --min 0 --max 1000000")]
    Set(Set),
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
    /// Print nothing; the exit code says how it went
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
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
                    "min": set.min, "max": set.max, "saturate": set.saturate, "ttlMs": set.ttl, "disabled": set.disabled
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
        vec![self.pattern(), min, max, above.to_owned(), ttl, writes.to_owned()]
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
        for (name, is_set) in [("saturate", self.saturate), ("disabled", self.disabled)] {
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
        let columns = ["PATTERN", "MIN ", "MAX ", "BEYOND", "TTL", "WRITES"];
        return terminal::print(screen.table(&columns, policies.iter().map(|policy| policy.row(&screen))));
    }
    terminal::print(policies.iter().map(Policy::line).collect::<Vec<_>>().join("\n"))
}

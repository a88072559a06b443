//! Commands about policies: limits by key pattern.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use serde_json::{Value, json};

use super::client::{Call, Client, encode};
use super::failure::Failure;
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
    Del(One),
}

/// A pattern.
#[derive(Debug, clap::Args)]
pub struct One {
    /// A key in which * stands for any bytes and ? for one
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
}

impl Command {
    /// Runs the command.
    pub fn run(&self) -> Result<(), Failure> {
        match self {
            Command::Set(set) => {
                let body = json!({
                    "min": set.min, "max": set.max, "saturate": set.saturate, "ttlMs": set.ttl, "disabled": set.disabled
                });
                show(set.one.call("PUT", Some(body))?.as_ref());
            }
            Command::Get(one) => show(one.call("GET", None)?.as_ref()),
            Command::List { client } => {
                let call = Call { method: "GET", path: "policies".to_owned(), id: None, body: None };
                let reply = client.call(&call)?;
                let policies = reply.as_ref().and_then(|reply| reply["policies"].as_array());
                policies.into_iter().flatten().for_each(|policy| show(Some(policy)));
            }
            Command::Del(one) => {
                if let Some(reply) = one.call("DELETE", None)? {
                    println!(
                        "{}",
                        if reply["existed"] == json!(true) { "removed" } else { "there was none" }
                    );
                }
            }
        }
        Ok(())
    }
}

impl One {
    fn call(&self, method: &'static str, body: Option<Value>) -> Result<Option<Value>, Failure> {
        let path = format!("policies/{}", encode(self.pattern.as_bytes()));
        self.client.call(&Call { method, path, id: None, body })
    }
}

/// `stock:*  min 0  max 1000`: the pattern and what was set.
fn show(policy: Option<&Value>) {
    let Some(policy) = policy else { return };
    let pattern = policy["pattern"].as_str().or(policy["patternBase64"].as_str()).unwrap_or_default();
    let mut line = pattern.to_owned();
    for (field, name) in [("min", "min"), ("max", "max"), ("ttlMs", "ttl ms")] {
        if policy[field].is_number() {
            line.push_str(&format!("  {name} {}", policy[field]));
        }
    }
    for field in ["saturate", "disabled"] {
        if policy[field] == json!(true) {
            line.push_str(&format!("  {field}"));
        }
    }
    println!("{line}");
}

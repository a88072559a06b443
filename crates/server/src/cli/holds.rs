//! Commands about amounts set aside, and about corrections: hold, adjust.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::client::{Call, Client, encode};
use super::counter::Counter;
use super::counters::{Target, dimension, insert, key_parser, note_replay};
use super::failure::Failure;
use super::terminal::{self, Screen};
use crate::config::units;

/// hold
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Hold {
    #[command(subcommand)]
    end: Option<End>,
    /// The counter, 1 to 512 bytes
    #[arg(required = true, value_parser = key_parser())]
    key: Option<OsString>,
    /// How much; negative to set aside for a decrement
    #[arg(default_value_t = 1, allow_negative_numbers = true)]
    amount: i64,
    /// After so long it comes back by itself, like 30s or 15m
    #[arg(long, required = true, value_name = "DURATION", value_parser = units::duration_ms)]
    ttl: Option<u64>,
    /// Refuse if the value, with all that is set aside, could come below this
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    min: Option<i64>,
    /// Refuse if the value, with all that is set aside, could come above this
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    max: Option<i64>,
    /// Request id: repeating the command under the same id sets aside once
    #[arg(long, value_name = "ID")]
    id: Option<String>,
    #[command(flatten)]
    client: Client,
}

/// hold commit, hold void
#[derive(Debug, clap::Subcommand)]
pub enum End {
    /// Count what was set aside, or the part of it that it came to
    #[command(after_help = "Examples:\n  quipu hold commit AQcDc3RvY2s\n  quipu hold commit AQcDc3RvY2s 2")]
    Commit {
        /// What `quipu hold` printed
        #[arg(value_name = "HOLD")]
        hold: String,
        /// How much of it; all of it where nothing is said
        #[arg(allow_negative_numbers = true)]
        amount: Option<i64>,
        #[command(flatten)]
        client: Client,
    },
    /// Give back what was set aside
    #[command(after_help = "Example:\n  quipu hold void AQcDc3RvY2s")]
    Void {
        /// What `quipu hold` printed
        #[arg(value_name = "HOLD")]
        hold: String,
        #[command(flatten)]
        client: Client,
    },
}

/// adjust
#[derive(Debug, clap::Args)]
pub struct Adjust {
    #[command(flatten)]
    target: Target,
    /// What to add
    #[arg(allow_negative_numbers = true)]
    delta: i64,
    /// Why
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// What it belongs to, as name=value; as often as there are dimensions
    #[arg(long = "dim", value_name = "NAME=VALUE", value_parser = dimension)]
    dimensions: Vec<(String, String)>,
    #[command(flatten)]
    client: Client,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Held {
    hold_id: String,
    expires_at: String,
    #[serde(default)]
    duplicate: bool,
}

impl Hold {
    /// Sets aside and prints the name of the hold; or ends one.
    pub fn run(&self) -> Result<(), Failure> {
        match (&self.end, &self.key) {
            (Some(end), _) => end.run(),
            (None, Some(key)) => self.place(key),
            // The library asks for the counter where there is no subcommand.
            (None, None) => Err(Failure::malformed("which counter? quipu hold KEY AMOUNT --ttl 30s")),
        }
    }

    fn place(&self, key: &OsString) -> Result<(), Failure> {
        let mut body = Map::from_iter([("amount".to_owned(), json!(self.amount))]);
        insert(&mut body, "ttlMs", self.ttl);
        insert(&mut body, "min", self.min);
        insert(&mut body, "max", self.max);
        let path = format!("counters/{}/reserve", encode(key.as_bytes()));
        let call = Call { method: "POST", path, id: self.id.as_deref(), body: Some(Value::Object(body)) };
        if let Some(held) = self.client.call::<Held>(&call)? {
            let screen = Screen::stdout();
            let details = screen.dim(&format!("(until {})", held.expires_at));
            terminal::print(match screen.is_terminal {
                true => format!("{}  {details}", held.hold_id),
                false => held.hold_id,
            })?;
            note_replay(held.duplicate);
        }
        Ok(())
    }
}

impl End {
    /// Prints the value that the counter then has.
    fn run(&self) -> Result<(), Failure> {
        let (verb, hold, amount, client) = match self {
            End::Commit { hold, amount, client } => ("commit", hold, *amount, client),
            End::Void { hold, client } => ("void", hold, None, client),
        };
        let path = format!("holds/{}/{verb}", encode(hold.as_bytes()));
        let body = amount.map(|amount| json!({ "amount": amount }));
        if let Some(counter) = client.call::<Counter>(&Call { method: "POST", path, id: None, body })? {
            terminal::print(Screen::stdout().number(counter.value))?;
            if counter.duplicate {
                terminal::print_note("this hold had ended so before; shown is the first outcome");
            }
        }
        Ok(())
    }
}

impl Adjust {
    /// Adds, and says why.
    pub fn run(&self) -> Result<(), Failure> {
        let mut body = json!({ "delta": self.delta, "reason": self.reason });
        for (name, value) in &self.dimensions {
            body["dims"][name] = json!(value);
        }
        self.target.change(&self.client, "POST", "/adjust", Some(body)).map(drop)
    }
}

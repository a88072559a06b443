//! history: what a counter's value was.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use serde::Deserialize;

use super::client::{Call, Client, encode};
use super::counters::key_parser;
use super::failure::Failure;
use super::terminal::{self, Screen, print_note};

/// What who asks for what is not known is told to do.
const NOT_KNOWN: &str = "nothing is known of that time: what a value was is kept from when a policy asks for it, for as long as it says, \
                         like `quipu policy set 'score:*' --history-minutes 1d --history-days 365d`";

/// history
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The counter
    #[arg(value_parser = key_parser())]
    key: OsString,
    /// How far points lie apart
    #[arg(long, value_parser = ["minute", "hour", "day"], conflicts_with = "at")]
    step: Option<String>,
    /// From this time on: RFC 3339, or milliseconds since 1970; the last 60 steps where nothing is said
    #[arg(long, value_name = "TIME", conflicts_with = "at")]
    from: Option<String>,
    /// Up to this time
    #[arg(long, value_name = "TIME", conflicts_with = "at")]
    to: Option<String>,
    /// The value as of this time, as near to it as is known
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
    #[command(flatten)]
    client: Client,
}

#[derive(Debug, Deserialize)]
struct History {
    exists: bool,
    points: Vec<Point>,
}

#[derive(Debug, Deserialize)]
struct Point {
    at: String,
    value: i64,
}

impl Args {
    /// Prints times and values.
    pub fn run(&self) -> Result<(), Failure> {
        let mut path = format!("counters/{}/history", encode(self.key.as_bytes()));
        let parameters = [("step", &self.step), ("from", &self.from), ("to", &self.to), ("at", &self.at)];
        for (name, value) in parameters {
            if let Some(value) = value {
                let sign = if path.contains('?') { '&' } else { '?' };
                path.push_str(&format!("{sign}{name}={}", encode(value.as_bytes())));
            }
        }
        let Some(History { exists, points }) = self.client.call(&Call::get(path))? else { return Ok(()) };
        if points.is_empty() {
            print_note(match exists {
                true => NOT_KNOWN,
                false => "there is no such counter",
            });
            return Ok(());
        }
        let screen = Screen::stdout();
        if screen.is_terminal {
            let row = |point: &Point| vec![point.at.clone(), screen.number(point.value)];
            return terminal::print(screen.table(&["TIME", "VALUE "], points.iter().map(row)));
        }
        let line = |point: &Point| format!("{}\t{}", point.at, point.value);
        terminal::print(points.iter().map(line).collect::<Vec<_>>().join("\n"))
    }
}

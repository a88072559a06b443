//! mirror: the table in PostgreSQL that a server writes its counters to.

use clap::Subcommand;
use serde::Deserialize;

use super::client::{Call, Client};
use super::failure::Failure;
use super::terminal::{self, Screen};

/// mirror
#[derive(Debug, Subcommand)]
pub enum Command {
    /// How far the table is behind, and whether it can be written
    #[command(after_help = "Examples:
  quipu mirror status
  quipu mirror status --json | jq .lagMs

The exit code is 4 if the server has no mirror, and 1 if it cannot be written at the moment.")]
    Status {
        #[command(flatten)]
        client: Client,
    },
}

/// What a server answers.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mirror {
    target: String,
    as_of: Option<String>,
    lag_ms: u64,
    pending: u64,
    sweep: Option<Sweep>,
    swept_at: Option<String>,
    rows_written: u64,
    rows_removed: u64,
    errors: u64,
    problem: Option<String>,
}

#[derive(Debug, Deserialize)]
struct Sweep {
    counters: u64,
}

impl Command {
    /// Runs the command.
    pub fn run(&self) -> Result<(), Failure> {
        let Command::Status { client } = self;
        let call = Call::get("mirror");
        if client.json {
            // Printed as it is; the exit code is the same.
            client.call::<Mirror>(&call)?;
        }
        let mirror: Mirror = client.fetch(&call)?;
        if !client.json {
            mirror.print()?;
        }
        match mirror.problem {
            Some(problem) => Err(Failure::general(format!("the mirror cannot be written: {problem}"))),
            None => Ok(()),
        }
    }
}

impl Mirror {
    fn print(&self) -> Result<(), Failure> {
        let screen = Screen::stdout();
        let lag = match screen.is_terminal {
            true => terminal::duration(self.lag_ms),
            false => self.lag_ms.to_string(),
        };
        let never = || "never".to_owned();
        let sweep = match (&self.sweep, &self.swept_at) {
            (Some(sweep), _) => format!("{} counters so far", screen.number(sweep.counters)),
            (None, swept_at) => swept_at.clone().unwrap_or_else(never),
        };
        let rows = [
            ("target", self.target.clone()),
            ("lag", lag),
            ("complete as of", self.as_of.clone().unwrap_or_else(never)),
            ("pending", screen.number(self.pending)),
            ("rows written", screen.number(self.rows_written)),
            ("rows removed", screen.number(self.rows_removed)),
            ("swept", sweep),
            ("errors", screen.number(self.errors)),
        ];
        if screen.is_terminal {
            let rows = rows.map(|(name, value)| vec![name.to_owned(), value]);
            return terminal::print(screen.table(&["MIRROR", ""], rows));
        }
        terminal::print(rows.map(|(name, value)| format!("{name}\t{value}")).join("\n"))
    }
}

//! hot: the keys that are asked for most.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use quipu_counting::hot::{HOT_KEYS_DEFAULT, HOT_KEYS_MAX};
use serde::Deserialize;

use super::client::{Call, Client};
use super::failure::Failure;
use super::terminal::{self, Screen, print_aside, print_note};

/// hot
#[derive(Debug, clap::Args)]
pub struct Args {
    /// How many keys
    #[arg(short = 'n', long, value_name = "NUMBER", default_value_t = HOT_KEYS_DEFAULT as u64,
        value_parser = clap::value_parser!(u64).range(1..=HOT_KEYS_MAX as u64))]
    limit: u64,
    #[command(flatten)]
    client: Client,
}

/// What a server answers.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Hot {
    keys: Vec<HotKey>,
    skew: f64,
    rate_per_sec: f64,
    window_ms: u64,
    partial: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct HotKey {
    key: Option<String>,
    key_base64: Option<String>,
    rate_per_sec: f64,
    share: f64,
}

/// See [`Screen::table`].
const COLUMNS: &[&str] = &["KEY", "RATE ", "SHARE "];

impl Args {
    /// Prints the keys, the hottest first.
    pub fn run(&self) -> Result<(), Failure> {
        let call = Call::get(format!("hot?n={}", self.limit));
        let Some(hot) = self.client.call::<Hot>(&call)? else { return Ok(()) };
        if hot.partial {
            print_note("a node of the cluster did not answer; what it was asked for is missing");
        }
        let screen = Screen::stdout();
        if !screen.is_terminal {
            let lines = hot.keys.iter().map(HotKey::line).collect::<Vec<_>>().join("\n");
            return if lines.is_empty() { Ok(()) } else { terminal::print(lines) };
        }
        if hot.keys.is_empty() {
            print_note("nothing was asked for in the last ten seconds");
            return Ok(());
        }
        terminal::print(screen.table(COLUMNS, hot.keys.iter().map(|key| key.row(&screen))))?;
        print_aside(&screen.dim(&hot.summary(&screen)));
        Ok(())
    }
}

impl Hot {
    fn summary(&self, screen: &Screen) -> String {
        format!(
            "{}/s in all, over {}; the busiest partition has {:.2} times its share",
            rate(self.rate_per_sec, screen),
            terminal::duration(self.window_ms),
            self.skew
        )
    }
}

impl HotKey {
    fn name(&self) -> String {
        let key = match (&self.key, &self.key_base64) {
            (Some(text), _) => text.clone().into_bytes(),
            (None, Some(text)) => STANDARD.decode(text).unwrap_or_default(),
            (None, None) => Vec::new(),
        };
        terminal::key(&key)
    }

    /// For people.
    fn row(&self, screen: &Screen) -> Vec<String> {
        let rate = format!("{}/s", rate(self.rate_per_sec, screen));
        vec![self.name(), rate, format!("{:.2} %", self.share * 100.0)]
    }

    /// For programs.
    fn line(&self) -> String {
        format!("{}\t{}\t{}", self.name(), self.rate_per_sec, self.share)
    }
}

/// `12,345`, or `1.5` where there are few.
fn rate(per_second: f64, screen: &Screen) -> String {
    match per_second {
        0.0..100.0 => format!("{per_second:.1}"),
        _ => screen.number(per_second.round() as i128),
    }
}

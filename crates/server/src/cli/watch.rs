//! `quipu watch`: counters while they change. On a terminal a table that is redrawn in place, behind a pipe a line
//! for every change.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::client::Client;
use super::counter::{Counter, Results, now_ms};
use super::counters::{batch_get, key_body, key_parser};
use super::failure::Failure;
use super::interrupt::{Interrupt, end_by};
use super::terminal::{self, Screen, print_note};
use crate::config::units;

/// Rates a sparkline shows: what fits beside the numbers on a narrow terminal.
const SPARKS: usize = 20;
/// The shapes of a sparkline, from nothing to the largest rate shown.
const SHAPES: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Lines of the table beside the counters: the header, and what is said below.
const OTHER_LINES: usize = 3;
/// Lines where the terminal does not tell how many it has.
const LINES_DEFAULT: usize = 24;

/// Without a cursor, and lines that are too long end at the edge instead of going on in the next.
const BEGIN: &str = "\x1b[?25l\x1b[?7l";
const END: &str = "\x1b[?7h\x1b[?25h";
const CLEAR_BELOW: &str = "\x1b[J";

/// watch
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The counters
    #[arg(required = true, value_name = "KEY", value_parser = key_parser())]
    keys: Vec<OsString>,
    /// How often to look
    #[arg(short, long, value_name = "DURATION", default_value = "1s", value_parser = units::duration_ms)]
    interval: u64,
    /// End after so many looks
    #[arg(short = 'n', long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    #[command(flatten)]
    client: Client,
}

/// What is known of one counter.
#[derive(Default)]
struct Track {
    value: Option<i64>,
    rate: f64,
    /// The newest at the back.
    rates: VecDeque<f64>,
}

impl Args {
    /// Watches until Ctrl-C.
    pub fn run(&self) -> Result<(), Failure> {
        let interrupt = Interrupt::watch().map_err(|error| Failure::general(error.to_string()))?;
        let screen = Screen::stdout();
        let keys: Vec<Value> = self.keys.iter().map(|key| key_body(key.as_bytes())).collect();
        let mut tracks: Vec<Track> = self.keys.iter().map(|_| Track::default()).collect();
        let mut drawing = (screen.is_terminal && !self.client.json).then(Drawing::begin);
        let (mut lost, mut looked_at): (bool, Option<Instant>) = (false, None);
        let mut looks_left = self.count.unwrap_or(u64::MAX);
        loop {
            let looked = self.client.fetch::<Results>(&batch_get(&keys));
            let now = Instant::now();
            match looked {
                Ok(Results { results }) => {
                    if lost {
                        print_note_beside(&mut drawing, &format!("{} answers again", self.client.server));
                        lost = false;
                    }
                    let passed = looked_at.replace(now).map(|before| now - before);
                    let changed = update(&mut tracks, &results, passed);
                    match &mut drawing {
                        Some(drawing) => drawing.draw(&table(&screen, &results, &tracks)),
                        None => self.print_changes(&results, &tracks, &changed)?,
                    }
                }
                // Nobody was ever there: more likely a wrong address than a restart.
                Err(failure) if looked_at.is_none() || !failure.is_passing() => {
                    drop(drawing);
                    return Err(failure);
                }
                Err(_) if !lost => {
                    let note = format!("{} does not answer; waiting for it", self.client.server);
                    print_note_beside(&mut drawing, &note);
                    lost = true;
                }
                Err(_) => {}
            }
            looks_left -= 1;
            if looks_left == 0 {
                return Ok(());
            }
            if let Some(signal) = interrupt.wait(Duration::from_millis(self.interval)) {
                drop(drawing);
                end_by(signal);
            }
        }
    }

    fn print_changes(&self, counters: &[Counter], tracks: &[Track], changed: &[bool]) -> Result<(), Failure> {
        let at_ms = now_ms();
        for ((counter, track), _) in counters.iter().zip(tracks).zip(changed).filter(|(_, changed)| **changed)
        {
            if !self.client.json {
                let key = terminal::key(&counter.key());
                terminal::print(format!("{key}\t{}\t{:.1}", counter.value, track.rate))?;
                continue;
            }
            let mut line = json!({
                "atMs": at_ms, "value": counter.value, "version": counter.version, "exists": counter.exists,
                "ratePerSec": track.rate,
            });
            for (field, name) in [("counterKey", &counter.counter_key), ("keyBase64", &counter.key_base64)] {
                if let Some(name) = name {
                    line[field] = json!(name);
                }
            }
            terminal::print(line)?;
        }
        Ok(())
    }
}

/// Notes what was seen; says which counters are new or have another value than before.
fn update(tracks: &mut [Track], counters: &[Counter], passed: Option<Duration>) -> Vec<bool> {
    let changed = tracks.iter_mut().zip(counters).map(|(track, counter)| {
        let before = track.value.replace(counter.value);
        if let (Some(before), Some(passed)) = (before, passed) {
            let grown = i128::from(counter.value) - i128::from(before);
            track.rate = grown as f64 / passed.as_secs_f64().max(f64::MIN_POSITIVE);
            track.rates.push_back(track.rate);
            if track.rates.len() > SPARKS {
                track.rates.pop_front();
            }
        }
        before != Some(counter.value)
    });
    changed.collect()
}

fn table(screen: &Screen, counters: &[Counter], tracks: &[Track]) -> String {
    let room = screen_lines().saturating_sub(OTHER_LINES).max(1);
    let rows = counters.iter().zip(tracks).take(room).map(|(counter, track)| {
        let value = screen.number(counter.value);
        vec![terminal::key(&counter.key()), value, rate(track.rate), sparkline(&track.rates)]
    });
    let mut text = screen.table(&["KEY", "VALUE ", "PER SECOND ", ""], rows);
    if counters.len() > room {
        text.push_str(&format!("\n... and {} more", counters.len() - room));
    }
    text
}

/// `+1,234`, with a digit behind the point where that says something.
fn rate(per_second: f64) -> String {
    let sign = if per_second > 0.0 { "+" } else { "" };
    match per_second.abs() {
        0.0 => "0".to_owned(),
        size if size < 100.0 => format!("{sign}{per_second:.1}"),
        _ => format!("{sign}{}", terminal::grouped(per_second.round() as i128)),
    }
}

/// The sizes of the rates; that some were negative is told by the number.
fn sparkline(rates: &VecDeque<f64>) -> String {
    let largest = rates.iter().fold(0.0, |largest: f64, rate| largest.max(rate.abs()));
    let steps = (SHAPES.len() - 1) as f64;
    let shape = |rate: &f64| if largest > 0.0 { (rate.abs() / largest * steps).ceil() as usize } else { 0 };
    rates.iter().map(|rate| SHAPES[shape(rate).min(SHAPES.len() - 1)]).collect()
}

fn screen_lines() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stdout());
    size.ok().map(|size| usize::from(size.ws_row)).filter(|lines| *lines > 0).unwrap_or(LINES_DEFAULT)
}

/// Above what is drawn, so that it stays.
fn print_note_beside(drawing: &mut Option<Drawing>, note: &str) {
    if let Some(drawing) = drawing {
        drawing.erase();
    }
    print_note(note);
}

/// Text on the terminal that replaces itself. The terminal is as before at the end.
struct Drawing {
    lines: usize,
}

impl Drawing {
    fn begin() -> Drawing {
        write_out(BEGIN);
        Drawing { lines: 0 }
    }

    fn draw(&mut self, text: &str) {
        self.erase();
        write_out(&format!("{text}\n"));
        self.lines = text.lines().count();
    }

    fn erase(&mut self) {
        if self.lines > 0 {
            write_out(&format!("\x1b[{}A\r{CLEAR_BELOW}", self.lines));
        }
        self.lines = 0;
    }
}

impl Drop for Drawing {
    fn drop(&mut self) {
        write_out(END);
    }
}

/// A terminal that cannot be written to has nobody before it.
fn write_out(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}

#[cfg(test)]
mod tests {
    use super::{rate, sparkline};
    use std::collections::VecDeque;

    #[test]
    fn rates() {
        for (per_second, shown) in [
            (0.0, "0"),
            (0.5, "+0.5"),
            (-3.25, "-3.2"),
            (99.95, "+100.0"),
            (1234.4, "+1,234"),
            (-1e6, "-1,000,000"),
        ] {
            assert_eq!(rate(per_second), shown);
        }
    }

    #[test]
    fn sparklines() {
        for (rates, shown) in
            [(&[][..], ""), (&[0.0, 0.0], "▁▁"), (&[0.0, 1.0, 50.0, 100.0], "▁▂▅█"), (&[-100.0, 10.0], "█▂")]
        {
            assert_eq!(sparkline(&VecDeque::from_iter(rates.iter().copied())), shown);
        }
    }
}

//! `quipu watch`: counters while they change. On a terminal a table that is redrawn in place, behind a pipe a line
//! for every change.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use serde_json::json;

use super::client::Client;
use super::counter::{Counter, now_ms};
use super::counters::key_parser;
use super::failure::Failure;
use super::follow::{Heard, NEWS_MAX, News, follow};
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

/// How often to look whether there was a signal.
const LOOK_AROUND: Duration = Duration::from_millis(100);
/// What a server takes as an interval, in milliseconds.
const INTERVALS_MS: (u64, u64) = (10, 60_000);
/// Counters of a prefix that are remembered, for their rates.
const TRACKS_MAX: usize = 10_000;

/// watch
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The counters
    #[arg(required_unless_present = "prefix", value_name = "KEY", value_parser = key_parser())]
    keys: Vec<OsString>,
    /// All counters whose key begins with this
    #[arg(short, long, value_name = "PREFIX")]
    prefix: Option<OsString>,
    /// How often to show the same counter
    #[arg(short, long, value_name = "DURATION", default_value = "1s", value_parser = units::duration_ms)]
    interval: u64,
    /// End after so many intervals, the first one when everything was shown once
    #[arg(short = 'n', long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    #[command(flatten)]
    client: Client,
}

/// What is known of one counter.
struct Track {
    counter: Counter,
    /// When it came.
    at: Instant,
    /// The value the last rate was made from.
    value: i64,
    rate: f64,
    /// The newest at the back.
    rates: VecDeque<f64>,
    /// Which stream told of it, and whether it has since it began anew.
    stream: usize,
    is_seen: bool,
}

/// All that is watched.
struct Watch<'a> {
    args: &'a Args,
    screen: Screen,
    drawing: Option<Drawing>,
    /// By key.
    tracks: BTreeMap<Vec<u8>, Track>,
    looked_at: Option<Instant>,
    /// Streams that have not said yet what there is.
    unready: BTreeSet<usize>,
    /// Streams that are gone.
    lost: BTreeSet<usize>,
    /// Whether a server has ever said anything.
    was_there: bool,
}

impl Args {
    /// Watches until Ctrl-C.
    pub fn run(&self) -> Result<(), Failure> {
        let interrupt = Interrupt::watch().map_err(|error| Failure::general(error.to_string()))?;
        let screen = Screen::stdout();
        let keys: Vec<&[u8]> = self.keys.iter().map(|key| key.as_bytes()).collect();
        let prefix = self.prefix.as_ref().map(|prefix| prefix.as_bytes());
        let interval_ms = self.interval.clamp(INTERVALS_MS.0, INTERVALS_MS.1);
        let (streams, news) = follow(&self.client, &keys, prefix, interval_ms);
        let mut watch = Watch {
            args: self,
            drawing: (screen.is_terminal && !self.client.json).then(Drawing::begin),
            screen,
            tracks: BTreeMap::new(),
            looked_at: None,
            unready: (0..streams).collect(),
            lost: BTreeSet::new(),
            was_there: false,
        };
        let mut looks_left = self.count.unwrap_or(u64::MAX);
        while looks_left > 0 {
            if let Some(signal) = watch.listen(&news, &interrupt)? {
                drop(watch);
                end_by(signal);
            }
            watch.look();
            looks_left -= 1;
        }
        Ok(())
    }
}

impl Watch<'_> {
    /// Hears what there is to hear until the next look is due, or until a signal.
    fn listen(&mut self, news: &Receiver<Heard>, interrupt: &Interrupt) -> Result<Option<i32>, Failure> {
        let interval = Duration::from_millis(self.args.interval);
        loop {
            if let Some(signal) = interrupt.received() {
                return Ok(Some(signal));
            }
            let left = match self.looked_at {
                Some(before) => (before + interval).saturating_duration_since(Instant::now()),
                None if self.unready.is_empty() => return Ok(None),
                None => LOOK_AROUND,
            };
            match news.recv_timeout(left.min(LOOK_AROUND)) {
                Ok((stream, news)) => self.hear(stream, news)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Failure::general("nobody follows any more"));
                }
            }
            if left.is_zero() {
                // What has come by now is shown now.
                return news
                    .try_iter()
                    .take(NEWS_MAX)
                    .try_for_each(|(stream, news)| self.hear(stream, news))
                    .map(|()| None);
            }
        }
    }

    fn hear(&mut self, stream: usize, news: News) -> Result<(), Failure> {
        self.was_there |= !matches!(news, News::Lost(_));
        match news {
            News::Change(counter) => self.change(stream, *counter),
            // Other streams hear of it by themselves, each in its own order.
            News::Clear => self.remove(|track| track.stream == stream),
            News::Reset => {
                let of_it = self.tracks.values_mut().filter(|track| track.stream == stream);
                of_it.for_each(|track| track.is_seen = false);
                Ok(())
            }
            News::Ready(is_complete) => {
                self.unready.remove(&stream);
                if self.lost.remove(&stream) && self.lost.is_empty() {
                    self.note(&format!("{} answers again", self.args.client.server));
                }
                if is_complete {
                    self.remove(|track| track.stream == stream && !track.is_seen)
                } else {
                    Ok(())
                }
            }
            // Nobody was ever there: more likely a wrong address than a restart.
            News::Lost(failure) if !self.was_there || !failure.is_passing() => {
                self.drawing = None;
                Err(failure)
            }
            News::Lost(_) => {
                if self.lost.is_empty() {
                    self.note(&format!("{} does not answer; waiting for it", self.args.client.server));
                }
                self.lost.insert(stream);
                Ok(())
            }
        }
    }

    /// A counter is so now.
    fn change(&mut self, stream: usize, counter: Counter) -> Result<(), Failure> {
        let (key, now) = (counter.key(), Instant::now());
        let is_full = self.tracks.len() >= TRACKS_MAX;
        let Some(track) = self.tracks.get_mut(&key) else {
            if self.drawing.is_none() {
                self.print(&counter, 0.0)?;
            }
            if !is_full {
                let value = counter.value;
                let (rate, rates) = (0.0, VecDeque::new());
                self.tracks
                    .insert(key, Track { counter, at: now, value, rate, rates, stream, is_seen: true });
            }
            return Ok(());
        };
        (track.stream, track.is_seen) = (stream, true);
        let (before, passed) = (std::mem::replace(&mut track.counter, counter), now - track.at);
        if before.value == track.counter.value && before.exists == track.counter.exists {
            return Ok(());
        }
        track.at = now;
        if self.drawing.is_some() {
            return Ok(());
        }
        let rate = per_second(before.value, track.counter.value, passed);
        self.print(&self.tracks[&key].counter, rate)
    }

    /// These counters do not exist any more.
    fn remove(&mut self, is_gone: impl Fn(&Track) -> bool) -> Result<(), Failure> {
        let gone = self.tracks.values().filter(|track| is_gone(track) && track.counter.exists);
        let gone: Vec<(usize, Counter)> = gone.map(|track| (track.stream, track.counter.gone())).collect();
        gone.into_iter().try_for_each(|(stream, counter)| self.change(stream, counter))
    }

    fn print(&self, counter: &Counter, rate: f64) -> Result<(), Failure> {
        if !self.args.client.json {
            let key = terminal::key(&counter.key());
            return terminal::print(format!("{key}\t{}\t{rate:.1}", counter.value));
        }
        let mut line = json!({
            "atMs": now_ms(), "value": counter.value, "version": counter.version, "exists": counter.exists,
            "ratePerSec": rate,
        });
        for (field, name) in [("counterKey", &counter.counter_key), ("keyBase64", &counter.key_base64)] {
            if let Some(name) = name {
                line[field] = json!(name);
            }
        }
        terminal::print(line)
    }

    /// An interval is over: what a person sees is drawn anew.
    fn look(&mut self) {
        let now = Instant::now();
        let passed = self.looked_at.replace(now).map(|before| now - before);
        let Some(passed) = passed.or(Some(Duration::ZERO)).filter(|_| self.drawing.is_some()) else { return };
        for track in self.tracks.values_mut() {
            let before = std::mem::replace(&mut track.value, track.counter.value);
            if !passed.is_zero() {
                track.rate = per_second(before, track.value, passed);
                track.rates.push_back(track.rate);
            }
            if track.rates.len() > SPARKS {
                track.rates.pop_front();
            }
        }
        let text = self.table();
        if let Some(drawing) = &mut self.drawing {
            drawing.draw(&text);
        }
    }

    fn table(&self) -> String {
        let room = screen_lines().saturating_sub(OTHER_LINES).max(1);
        let shown: Vec<&Track> = match self.args.prefix {
            Some(_) => self.tracks.values().collect(),
            // In the order in which they were asked for.
            None => self.args.keys.iter().filter_map(|key| self.tracks.get(key.as_bytes())).collect(),
        };
        let rows = shown.iter().take(room).map(|track| {
            let value = self.screen.number(track.counter.value);
            vec![terminal::key(&track.counter.key()), value, rate(track.rate), sparkline(&track.rates)]
        });
        let mut text = self.screen.table(&["KEY", "VALUE ", "PER SECOND ", ""], rows);
        if shown.len() > room {
            text.push_str(&format!("\n... and {} more", shown.len() - room));
        }
        text
    }

    /// Above what is drawn, so that it stays.
    fn note(&mut self, note: &str) {
        if let Some(drawing) = &mut self.drawing {
            drawing.erase();
        }
        print_note(note);
    }
}

fn per_second(before: i64, after: i64, passed: Duration) -> f64 {
    let grown = i128::from(after) - i128::from(before);
    grown as f64 / passed.as_secs_f64().max(f64::MIN_POSITIVE)
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

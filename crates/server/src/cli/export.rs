//! `quipu export`: all counters, or those of a prefix, as CSV or NDJSON.
//!
//! A file appears whole or not at all: it is written beside its place under another name, and moved there at the end.
//! Counters that change meanwhile are exported as they were at some moment of the export, each for itself.
//!
//! Of counters that are more than a number, NDJSON has all in a field `body`; CSV has their numbers alone, and that is said.

mod output;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::ValueEnum;
use indicatif::ProgressBar;
use quipu_wire::json::request::BODIES_MAX;
use serde_json::{Map, Value, json};

use self::output::Output;

use super::client::Client;
use super::counter::{Counter, Results};
use super::counters::{batch_get_whole, key_body};
use super::failure::{Failure, system_words};
use super::interrupt::{Interrupt, end_by};
use super::list::{PAGE_MAX, Pages, Selection, patiently};
use super::progress;
use super::terminal::{self, Screen, print_note};

/// The columns of a CSV file. Import reads the first four and passes over the others.
pub const COLUMNS: [&str; 6] = ["key", "keyBase64", "value", "expiresAt", "version", "updatedAt"];

/// Integers beyond this are given as text too, because JavaScript cannot hold them.
const SAFE_INTEGER_MAX: u64 = 1 << 53;

/// How rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Comma-separated values under a header
    Csv,
    /// A JSON object a line
    #[value(alias = "jsonl")]
    Ndjson,
}

impl Format {
    /// By the ending of a file's name; a `.gz` behind it does not count.
    pub fn of_name(path: &Path) -> Option<Format> {
        let name = path.file_name()?.to_str()?.to_ascii_lowercase();
        match name.strip_suffix(".gz").unwrap_or(&name).rsplit_once('.')?.1 {
            "csv" => Some(Format::Csv),
            "ndjson" | "jsonl" | "json" => Some(Format::Ndjson),
            _ => None,
        }
    }

    /// As it is called on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Format::Csv => "csv",
            Format::Ndjson => "ndjson",
        }
    }
}

/// export
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    selection: Selection,
    /// How to write; csv has numbers alone, of counters that are more than that too [default: by the name of the file, else csv]
    #[arg(short, long, value_enum)]
    format: Option<Format>,
    /// Write to this file, which appears whole or not at all; a name in .gz is compressed [default: stdout]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Draw no progress and print no summary
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
    #[command(flatten)]
    client: Client,
}

impl Args {
    /// Exports.
    pub fn run(&self) -> Result<(), Failure> {
        let interrupt = Interrupt::watch().map_err(|error| Failure::general(error.to_string()))?;
        let started = Instant::now();
        let format = self.format();
        // Where rows appear on the terminal, they show how far it is.
        let rows_are_seen = self.output.is_none() && Screen::stdout().is_terminal;
        let bar = progress::spinner("exporting: ", self.quiet || rows_are_seen);
        let mut pages = Pages::new(&self.client, &self.selection, None, PAGE_MAX);
        // Whoever cannot be reached leaves no file behind, not even for a moment.
        let mut page = pages.next::<Counter>()?;
        let place = self.output.as_deref();
        let failed = |error: std::io::Error| {
            let place = place.map_or("stdout".to_owned(), |path| path.display().to_string());
            Failure::general(format!("cannot write {place}: {}", system_words(&error)))
        };
        let mut output = Output::create(place).map_err(failed)?;
        let (mut text, mut count, mut cut_short) = (Vec::new(), 0, 0_u64);
        if format == Format::Csv {
            text.extend_from_slice(format!("{}\n", COLUMNS.join(",")).as_bytes());
        }
        while let Some(mut counters) = page {
            match format {
                Format::Csv => cut_short += counters.iter().filter(|counter| counter.has_body).count() as u64,
                Format::Ndjson => self.complete(&mut counters, &interrupt, &bar)?,
            }
            counters.iter().for_each(|counter| format.write(counter, &mut text));
            output.write_all(&text).map_err(failed)?;
            text.clear();
            count += counters.len() as u64;
            bar.set_message(format!("{} counters", terminal::grouped(count.into())));
            if let Some(signal) = interrupt.received() {
                // The file that was begun goes with it.
                drop(output);
                bar.finish_and_clear();
                end_by(signal);
            }
            page = match pages.next_patiently(&interrupt, &bar) {
                Err(_) if interrupt.received().is_some() => Some(Vec::new()),
                page => page?,
            };
        }
        let bytes = output.finish().map_err(failed)?;
        bar.finish_and_clear();
        if cut_short > 0 {
            let cut_short = terminal::grouped(cut_short.into());
            print_note(&format!(
                "{cut_short} counters are more than a number (uniques, windows, holds, history), and CSV has their numbers alone; \
                 --format ndjson has all of them"
            ));
        }
        self.summarize(format, count, bytes, started)
    }

    /// Reads those of a page again that are more than a number, with all they have. What is gone by now is gone.
    fn complete(
        &self,
        counters: &mut Vec<Counter>,
        interrupt: &Interrupt,
        bar: &ProgressBar,
    ) -> Result<(), Failure> {
        let places: Vec<usize> = (0..counters.len()).filter(|place| counters[*place].has_body).collect();
        for places in places.chunks(BODIES_MAX) {
            let keys: Vec<Value> = places.iter().map(|place| key_body(&counters[*place].key())).collect();
            let call = batch_get_whole(&keys);
            let read = patiently(&self.client, interrupt, bar, || self.client.fetch::<Results>(&call));
            let Results { results } = match read {
                // The page is thrown away with the file.
                Err(_) if interrupt.received().is_some() => return Ok(()),
                read => read?,
            };
            for (place, counter) in places.iter().zip(results) {
                counters[*place] = counter;
            }
        }
        counters.retain(|counter| counter.exists);
        Ok(())
    }

    fn format(&self) -> Format {
        let by_name = || self.output.as_deref().and_then(Format::of_name);
        let by_wish = || (self.client.json && self.output.is_none()).then_some(Format::Ndjson);
        self.format.or_else(by_name).or_else(by_wish).unwrap_or(Format::Csv)
    }

    fn summarize(&self, format: Format, count: u64, bytes: u64, started: Instant) -> Result<(), Failure> {
        let Some(path) = &self.output else { return Ok(()) };
        let (elapsed, file) = (started.elapsed(), path.display().to_string());
        if self.client.json {
            let seconds = elapsed.as_secs_f64();
            return terminal::print(json!({
                "counters": count, "bytes": bytes, "format": format.name(), "file": file, "seconds": seconds
            }));
        }
        if !self.quiet {
            let per_second = (count as f64 / elapsed.as_secs_f64().max(f64::MIN_POSITIVE)) as i128;
            terminal::print_aside(&format!(
                "exported {} counters to {file}: {} in {} ({} per second)",
                terminal::grouped(count.into()),
                terminal::bytes(bytes),
                terminal::duration(elapsed.as_millis() as u64),
                terminal::grouped(per_second),
            ));
        }
        Ok(())
    }
}

impl Format {
    fn write(self, counter: &Counter, out: &mut Vec<u8>) {
        match self {
            Format::Csv => write_csv(counter, out),
            Format::Ndjson => write_json(counter, out),
        }
    }
}

fn write_csv(counter: &Counter, out: &mut Vec<u8>) {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let key = counter.counter_key.as_deref().unwrap_or_default();
    if key.contains([',', '"', '\n', '\r']) || key.starts_with([' ', '#', '\u{feff}']) || key.ends_with(' ') {
        out.extend_from_slice(format!("\"{}\"", key.replace('"', "\"\"")).as_bytes());
    } else {
        out.extend_from_slice(key.as_bytes());
    }
    let (base64, expires_at, updated_at) =
        (text(&counter.key_base64), text(&counter.expiry()), text(&counter.updated_at));
    let rest = format!(",{base64},{},{expires_at},{},{updated_at}\n", counter.value, counter.version);
    out.extend_from_slice(rest.as_bytes());
}

fn write_json(counter: &Counter, out: &mut Vec<u8>) {
    let mut row = Map::new();
    let mut put =
        |name: &str, value: Option<Value>| value.and_then(|value| row.insert(name.to_owned(), value));
    put("key", counter.counter_key.clone().map(Value::from));
    put("keyBase64", counter.key_base64.clone().map(Value::from));
    put("value", Some(counter.value.into()));
    let is_large = counter.value.unsigned_abs() > SAFE_INTEGER_MAX;
    put("valueText", is_large.then(|| counter.value.to_string().into()));
    put("expiresAt", counter.expiry().map(Value::from));
    put("version", Some(counter.version.into()));
    put("updatedAt", counter.updated_at.clone().map(Value::from));
    if counter.body.is_some() {
        put("kind", counter.kind.clone().map(Value::from));
        put("body", counter.body.clone().map(Value::from));
    }
    out.extend_from_slice(Value::Object(row).to_string().as_bytes());
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::Format;
    use crate::cli::counter::Counter;
    use std::path::Path;

    fn counter(json: &str) -> Counter {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn rows() {
        for (json, csv, ndjson) in [
            (
                r#"{"counterKey":"a","value":5,"version":2,"updatedAt":"t"}"#,
                "a,,5,,2,t\n",
                "{\"key\":\"a\",\"value\":5,\"version\":2,\"updatedAt\":\"t\"}\n",
            ),
            (
                r#"{"keyBase64":"/w==","value":-9007199254740993,"version":1,"expiresAt":"e"}"#,
                ",/w==,-9007199254740993,e,1,\n",
                "{\"keyBase64\":\"/w==\",\"value\":-9007199254740993,\
                  \"valueText\":\"-9007199254740993\",\"expiresAt\":\"e\",\"version\":1}\n",
            ),
            (
                r#"{"counterKey":"a,\"b\"\n","value":0}"#,
                "\"a,\"\"b\"\"\n\",,0,,0,\n",
                "{\"key\":\"a,\\\"b\\\"\\n\",\"value\":0,\"version\":0}\n",
            ),
            (
                r#"{"counterKey":"u","value":2,"version":1,"kind":"unique","body":"AQE="}"#,
                "u,,2,,1,\n",
                "{\"key\":\"u\",\"value\":2,\"version\":1,\"kind\":\"unique\",\"body\":\"AQE=\"}\n",
            ),
        ] {
            for (format, expected) in [(Format::Csv, csv), (Format::Ndjson, ndjson)] {
                let mut out = Vec::new();
                format.write(&counter(json), &mut out);
                assert_eq!(String::from_utf8(out).unwrap(), expected);
            }
        }
    }

    #[test]
    fn formats_by_name() {
        for (name, format) in [
            ("a.csv", Some(Format::Csv)),
            ("dir.csv/a.ndjson.gz", Some(Format::Ndjson)),
            ("a.JSONL", Some(Format::Ndjson)),
            ("csv", None),
            ("a.txt", None),
        ] {
            assert_eq!(Format::of_name(Path::new(name)), format, "{name}");
        }
    }
}

//! `quipu import`: counters from a CSV or NDJSON file.
//!
//! | file | what it says |
//! |---|---|
//! | here | arguments, and the course of an import |
//! | `source` | a file or stdin, compressed or not |
//! | `rows`, `csv`, `ndjson` | rows in it |
//! | `sender`, `connection` | rows on their way to the server |
//! | `tally`, `report` | what became of them, and what is said about it |
//!
//! A file is looked through before anything is sent, so that one with a bad row changes nothing. Memory is bounded
//! by some packages of rows, whatever the length of the file.

mod connection;
mod csv;
mod ndjson;
mod report;
pub(super) mod rows;
mod sender;
pub(super) mod source;
mod tally;

use std::path::PathBuf;
use std::time::Instant;

use clap::ValueEnum;
use indicatif::ProgressBar;

use self::connection::Target;
use self::rows::{BadRow, Expiry, Row, Rows};
use self::sender::{Sender, Stop};
use self::source::Source;
use self::tally::Tally;
use super::client;
use super::export::Format;
use super::failure::{Failure, system_words};
use super::interrupt::{Interrupt, end_by};
use super::progress;
use super::terminal::{self, print_note};

/// The longest run id: with what is added to it, it stays within the 255 bytes of a request id.
const RUN_ID_BYTES_MAX: usize = 200;
/// Where a server that is named by nobody listens.
const DEFAULT_TARGET: &str = "resp://127.0.0.1:7071";

/// What is done with a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// The counter gets the value and the expiry of the row; what it was counts no more
    Set,
    /// The value is added to the counter, once, however often the import is repeated
    Add,
}

/// import
#[derive(Debug, clap::Args)]
pub struct Args {
    /// CSV with a header, or NDJSON; gzip is recognized; - is stdin
    file: PathBuf,
    /// What to do with a row
    #[arg(short, long, value_enum, default_value = "set")]
    mode: Mode,
    /// How rows are written [default: by the name of the file, else by what it begins with]
    #[arg(short, long, value_enum)]
    format: Option<Format>,
    /// With --mode add: under this name, no line counts twice; repeat it with the same lines in the same order [default:
    /// the bytes of the file]
    #[arg(long, value_name = "NAME")]
    run_id: Option<String>,
    /// Pass over bad and refused rows instead of stopping at the first
    #[arg(long)]
    skip_bad: bool,
    /// Begin with this line, where an import was interrupted
    #[arg(long, value_name = "LINE", default_value_t = 1, hide_default_value = true)]
    from_line: u64,
    /// Only look through the file, and say what would be imported
    #[arg(long)]
    dry_run: bool,
    /// The server's RESP address: resp://[user:password@]host:port
    /// [default: port 7071 of the host of --server]
    #[arg(long, env = "QUIPU_TARGET", value_name = "URL", hide_env_values = true, verbatim_doc_comment)]
    target: Option<String>,
    /// The server's HTTP address, if --target is not given
    #[arg(long, env = "QUIPU_SERVER", value_name = "URL", hide_env_values = true)]
    server: Option<String>,
    /// Draw no progress and print no summary
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

/// Why no more rows are read.
enum End {
    /// There are none.
    Whole,
    /// One is bad or was refused.
    AtProblem,
    /// The file cannot be read further.
    Unreadable(Failure),
}

impl Args {
    /// Imports.
    pub fn run(&self) -> Result<(), Failure> {
        let interrupt = Interrupt::watch().map_err(|error| Failure::general(error.to_string()))?;
        let mut source = Source::open(&self.file).map_err(|error| self.unreadable(&error))?;
        let target = self.target()?;
        if self.dry_run || (source.length().is_some() && !self.skip_bad) {
            let tally = self.look_through(&mut source, &interrupt)?;
            if self.dry_run || tally.bad > 0 {
                return self.tell_findings(&tally);
            }
        }
        let mode = match self.mode {
            Mode::Set => sender::Mode::Set,
            Mode::Add => sender::Mode::Add(format!("import:{}:", self.run_id(&mut source, &interrupt)?)),
        };
        let started = Instant::now();
        let bar = self.bar("importing", &source);
        let mut sender = Sender::open(&target, mode, &interrupt, &bar)?;
        let mut end = self.send_all(&mut source, &bar, &mut sender, &interrupt);
        // Ctrl-C also ends what feeds us: then the end of the input is not the end of the rows.
        if let (Ok(_), Some(signal)) = (&end, interrupt.received()) {
            end = Err(Stop::Signal(signal));
        }
        // Rows that are under way have an outcome, which belongs into what is told.
        if !matches!(end, Err(Stop::Failed(_))) {
            let finished = sender.finish();
            end = end.and_then(|end| finished.map(|()| end));
        }
        bar.finish_and_clear();
        self.summarize(&sender.tally, &target, started)?;
        match end {
            Err(Stop::Signal(signal)) => {
                print_note(&format!("interrupted: {}", self.how_far(&sender.tally)));
                end_by(signal)
            }
            Err(Stop::Failed(failure)) | Ok(End::Unreadable(failure)) => {
                let message = format!("{failure}; {}", self.how_far(&sender.tally));
                Err(if sender.tally.in_effect() > 0 {
                    Failure::partial(message)
                } else {
                    failure.with(message)
                })
            }
            Ok(end) => self.judge(end, &sender.tally),
        }
    }

    fn unreadable(&self, error: &std::io::Error) -> Failure {
        Failure::malformed(format!("cannot read {}: {}", self.file.display(), system_words(error)))
    }

    /// Without a target, the server that other commands would talk to: never one on this machine instead of it.
    fn target(&self) -> Result<Target, Failure> {
        let target = match (&self.target, &self.server) {
            (Some(target), _) => target.clone(),
            (None, None) => DEFAULT_TARGET.to_owned(),
            (None, Some(server)) => {
                let address = client::address(server).map_err(Failure::malformed)?;
                let host = address.strip_suffix(":7070").ok_or_else(|| {
                    Failure::malformed(format!(
                        "import speaks the Redis protocol, and nothing says where {server} does; \
                         give --target resp://host:port (or QUIPU_TARGET)"
                    ))
                })?;
                format!("resp://{host}:7071")
            }
        };
        Target::parse(&target)
    }

    fn run_id(&self, source: &mut Source, interrupt: &Interrupt) -> Result<String, Failure> {
        match (&self.run_id, source.length()) {
            (Some(name), _) if (1..=RUN_ID_BYTES_MAX).contains(&name.len()) => Ok(name.clone()),
            (Some(_), _) => Err(Failure::malformed(format!("--run-id has 1 to {RUN_ID_BYTES_MAX} bytes"))),
            (None, Some(_)) => {
                let identity = source.identity(interrupt).map_err(|error| self.unreadable(&error))?;
                Ok(format!("{identity:032x}"))
            }
            (None, None) => Err(Failure::malformed(
                "what comes through a pipe has no name by which a repetition could be recognized; \
                 give --run-id NAME, and the same again if the import has to be repeated",
            )),
        }
    }

    fn bar(&self, what: &str, source: &Source) -> ProgressBar {
        match source.length() {
            Some(length) => progress::bytes(what, length, self.quiet),
            None => progress::spinner(&format!("{what}: "), self.quiet),
        }
    }

    fn rows(&self, source: &mut Source, bar: &ProgressBar, interrupt: &Interrupt) -> Result<Rows, Failure> {
        let (format, rows) =
            source.rows(self.format, bar, interrupt).map_err(|error| self.unreadable(&error))?;
        rows.map_err(|BadRow { line, reason }| {
            let (file, format) = (self.file.display(), format.name());
            Failure::malformed(format!("{file}, read as {format}: line {line}: {reason}"))
        })
    }

    /// The next row that is meant; a row that cannot be done as it is meant is bad too.
    fn next(&self, rows: &mut Rows, row: &mut Row) -> Result<Option<Result<(), BadRow>>, Failure> {
        loop {
            let Some(read) = rows.next(row).map_err(|error| self.unreadable(&error))? else {
                return Ok(None);
            };
            if row.line < self.from_line {
                continue;
            }
            if read.is_ok() && self.mode == Mode::Add && matches!(row.expiry, Expiry::At(_)) {
                let reason = "expiresAt needs --mode set; an addition can have ttlMs".to_owned();
                return Ok(Some(Err(BadRow { line: row.line, reason })));
            }
            if read.is_ok() && self.mode == Mode::Add && row.body.is_some() {
                let reason = "a counter that is more than a number needs --mode set".to_owned();
                return Ok(Some(Err(BadRow { line: row.line, reason })));
            }
            return Ok(Some(read));
        }
    }

    /// Counts rows and bad ones, and sends nothing.
    fn look_through(&self, source: &mut Source, interrupt: &Interrupt) -> Result<Tally, Failure> {
        let bar = self.bar("looking through", source);
        let (mut tally, mut row) = (Tally::default(), Row::default());
        let mut rows = self.rows(source, &bar, interrupt)?;
        while let Some(read) = self.next(&mut rows, &mut row)? {
            match read {
                Ok(()) => tally.imported(row.line),
                Err(bad) => tally.bad(bad),
            }
            if (tally.imported + tally.bad).is_multiple_of(ROWS_PER_LOOK) {
                bar.set_message(format!("{} rows", terminal::grouped(tally.imported.into())));
                if let Some(signal) = interrupt.received() {
                    bar.finish_and_clear();
                    end_by(signal);
                }
            }
        }
        bar.finish_and_clear();
        Ok(tally)
    }

    fn send_all(
        &self,
        source: &mut Source,
        bar: &ProgressBar,
        sender: &mut Sender<'_>,
        interrupt: &Interrupt,
    ) -> Result<End, Stop> {
        let mut row = Row::default();
        let mut rows = match self.rows(source, bar, interrupt) {
            Ok(rows) => rows,
            Err(failure) => return Ok(End::Unreadable(failure)),
        };
        loop {
            match self.next(&mut rows, &mut row) {
                Ok(None) => return Ok(End::Whole),
                Ok(Some(Ok(()))) => {
                    if sender.push(&row)? {
                        bar.set_message(format!(
                            "{} rows",
                            terminal::grouped(sender.tally.in_effect().into())
                        ));
                        if let Some(signal) = interrupt.received() {
                            return Err(Stop::Signal(signal));
                        }
                    }
                }
                Ok(Some(Err(bad))) => sender.tally.bad(bad),
                Err(failure) => return Ok(End::Unreadable(failure)),
            }
            if sender.tally.failed() > 0 && !self.skip_bad {
                return Ok(End::AtProblem);
            }
        }
    }
}

/// How often a look through a file says how far it is.
const ROWS_PER_LOOK: u64 = 10_000;

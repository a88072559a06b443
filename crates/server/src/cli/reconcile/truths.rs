//! The source of truth: a query of PostgreSQL, which can be asked again, or a file, which says what it says.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use indicatif::ProgressBar;
use percent_encoding::percent_decode_str;
use quipu_external::source::{Source as Query, SourceError, Truth};
use tokio::runtime::Runtime;
use xxhash_rust::xxh3::xxh3_128;

use super::Args;
use crate::cli::export::Format;
use crate::cli::failure::{Failure, system_words};
use crate::cli::import::rows::{BadRow, Row, Rows};
use crate::cli::import::source::Source as Input;
use crate::cli::interrupt::Interrupt;
use crate::cli::terminal;
use crate::mirror::without_password;

/// Where the truth comes from.
pub enum Truths {
    /// A query.
    Postgres {
        /// Runs while it is asked.
        runtime: Runtime,
        query: Box<Query>,
        /// For people: without passwords.
        shown: String,
    },
    /// A file, or stdin.
    File {
        path: PathBuf,
        rows: Rows,
        row: Row,
        /// As of when it is right, if that is known.
        as_of_ms: Option<u64>,
        /// The counters so far, 16 bytes each, so that none comes twice.
        seen: HashSet<u128>,
    },
}

impl Truths {
    pub fn open(args: &Args, interrupt: &Interrupt) -> Result<Truths, Failure> {
        match postgres(&args.source, args.query.as_deref()).map_err(Failure::malformed)? {
            Some((url, query)) => {
                if args.as_of.is_some() {
                    let why = "a query is right as of when it is asked; --as-of is for files";
                    return Err(Failure::malformed(why));
                }
                Truths::connect(&url, &query)
            }
            None => Truths::read(args, interrupt),
        }
    }

    fn connect(url: &str, query: &str) -> Result<Truths, Failure> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::general(error.to_string()))?;
        let shown = without_password(url);
        let query = runtime.block_on(Query::open(url, query)).map_err(|error| failure(&shown, &error))?;
        Ok(Truths::Postgres { runtime, query: Box::new(query), shown })
    }

    fn read(args: &Args, interrupt: &Interrupt) -> Result<Truths, Failure> {
        let path = PathBuf::from(&args.source);
        let unreadable = |error: &std::io::Error| unreadable(&path, error);
        let mut input = Input::open(&path).map_err(|error| unreadable(&error))?;
        let written = std::fs::metadata(&path).and_then(|file| file.modified()).ok();
        let written = written.filter(|_| input.length().is_some());
        let written_ms =
            written.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).map(|since| since.as_millis());
        let (format, rows): (Format, _) =
            input.rows(args.format, &ProgressBar::hidden(), interrupt).map_err(|error| unreadable(&error))?;
        let rows = rows.map_err(|BadRow { line, reason }| {
            let format = format.name();
            Failure::malformed(format!("{}, read as {format}: line {line}: {reason}", path.display()))
        })?;
        let as_of_ms = args.as_of.or_else(|| written_ms.and_then(|ms| u64::try_from(ms).ok()));
        Ok(Truths::File { path, rows, row: Row::default(), as_of_ms, seen: HashSet::new() })
    }

    /// What it is called, for people.
    pub fn shown(&self) -> String {
        match self {
            Truths::Postgres { shown, .. } => shown.clone(),
            Truths::File { path, .. } => path.display().to_string(),
        }
    }

    /// Whether it can be asked again what holds by then.
    pub fn is_live(&self) -> bool {
        matches!(self, Truths::Postgres { .. })
    }

    /// As of when it is right, where that is not the moment of the last look.
    pub fn as_of_ms(&self) -> Option<u64> {
        match self {
            Truths::Postgres { .. } => None,
            Truths::File { as_of_ms, .. } => *as_of_ms,
        }
    }

    /// From now on it says what holds at this moment.
    pub fn look(&mut self) -> Result<(), Failure> {
        match self {
            Truths::Postgres { runtime, query, shown } => {
                runtime.block_on(query.look()).map_err(|error| failure(shown, &error))
            }
            Truths::File { .. } => Ok(()),
        }
    }

    /// Begins to give all it has.
    pub fn begin(&mut self) -> Result<(), Failure> {
        match self {
            Truths::Postgres { runtime, query, shown } => {
                runtime.block_on(query.begin()).map_err(|error| failure(shown, &error))
            }
            Truths::File { .. } => Ok(()),
        }
    }

    /// The next ones; none behind the last.
    pub fn next(&mut self, count: usize) -> Result<Vec<Truth>, Failure> {
        match self {
            Truths::Postgres { runtime, query, shown } => {
                runtime.block_on(query.next(count)).map_err(|error| failure(shown, &error))
            }
            Truths::File { path, rows, row, seen, .. } => {
                let mut found = Vec::with_capacity(count);
                while found.len() < count
                    && let Some(read) = rows.next(row).map_err(|error| unreadable(path, &error))?
                {
                    let bad = |line, reason: String| {
                        let shown = path.display();
                        Failure::malformed(format!("{shown}: line {line}: {reason}; nothing was changed"))
                    };
                    read.map_err(|BadRow { line, reason }| bad(line, reason))?;
                    if !seen.insert(xxh3_128(&row.key)) {
                        return Err(bad(row.line, format!("a second row for {}", terminal::key(&row.key))));
                    }
                    found.push(Truth { key: std::mem::take(&mut row.key), value: row.value });
                }
                Ok(found)
            }
        }
    }

    /// What it says about some counters. A file cannot be asked.
    pub fn of(&mut self, keys: &[Vec<u8>]) -> Result<HashMap<Vec<u8>, i64>, Failure> {
        match self {
            Truths::Postgres { runtime, query, shown } => {
                runtime.block_on(query.of(keys)).map_err(|error| failure(shown, &error))
            }
            Truths::File { .. } => Ok(HashMap::new()),
        }
    }
}

fn failure(shown: &str, error: &SourceError) -> Failure {
    let message = format!("the source {shown}: {error}; nothing was changed");
    match error {
        SourceError::Postgres(error) if error.as_db_error().is_none() => Failure::general(message),
        _ => Failure::malformed(message),
    }
}

fn unreadable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::malformed(format!(
        "cannot read {}: {}; nothing was changed",
        path.display(),
        system_words(error)
    ))
}

/// Address and query, if the source is PostgreSQL.
fn postgres(source: &str, query: Option<&str>) -> Result<Option<(String, String)>, String> {
    if !source.starts_with("postgres://") && !source.starts_with("postgresql://") {
        return match query {
            Some(_) => Err("--query belongs to a --source that is postgres://...".to_owned()),
            None => Ok(None),
        };
    }
    // The query comes last: it may have any letter in it, also those that part parameters.
    let found = ["?query=", "&query="].iter().filter_map(|name| Some((source.find(name)?, name.len()))).min();
    match (found, query) {
        (Some(_), Some(_)) => Err("the query stands in --source and in --query; give one".to_owned()),
        (None, None) => Err("which query? Add ?query=SELECT... to the source, or give --query".to_owned()),
        (None, Some(query)) => Ok(Some((source.to_owned(), query.to_owned()))),
        (Some((start, length)), None) => {
            let query = percent_decode_str(&source[start + length..]).decode_utf8();
            let query = query.map_err(|_| "the query is not UTF-8".to_owned())?;
            Ok(Some((source[..start].to_owned(), query.into_owned())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::postgres;

    #[test]
    fn sources() {
        let found = |source, query| {
            postgres(source, query).map(|found| found.map(|(url, sql)| format!("{url} {sql}")))
        };
        for (source, query, expected) in [
            ("a.csv", None, Ok(None)),
            ("postgres://h/d?query=SELECT 1, 2", None, Ok(Some("postgres://h/d SELECT 1, 2"))),
            (
                "postgresql://u:p@h/d?connect_timeout=3&query=SELECT%20a%20%3D%20b & c + 1 % 2?",
                None,
                Ok(Some("postgresql://u:p@h/d?connect_timeout=3 SELECT a = b & c + 1 % 2?")),
            ),
            ("postgres://h/d", Some("SELECT 1"), Ok(Some("postgres://h/d SELECT 1"))),
            ("postgres://h/d", None, Err(())),
            ("postgres://h/d?query=a", Some("b"), Err(())),
            ("a.csv", Some("b"), Err(())),
        ] {
            let expected = expected.map(|found| found.map(str::to_owned));
            assert_eq!(found(source, query).map_err(drop), expected, "{source}");
        }
    }
}

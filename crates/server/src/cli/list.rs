//! Commands that walk over many counters page by page: list and top. Export walks the same way.

use std::ffi::OsString;
use std::io::{BufWriter, StdoutLock, Write};
use std::os::unix::ffi::OsStrExt;
use std::time::Instant;

use indicatif::ProgressBar;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::client::{Call, Client, encode};
use super::counter::{COLUMNS, Counter};
use super::failure::{Failure, RETRY_PAUSE, RETRY_TIME};
use super::interrupt::Interrupt;
use super::progress;
use super::terminal::{self, Screen, print_note};

/// Counters of the first page of `list`: soon there for a person.
const FIRST_PAGE: u64 = 1_000;
/// The most counters of a page that a server gives.
pub const PAGE_MAX: u64 = 10_000;

/// Which counters.
#[derive(Debug, clap::Args)]
pub struct Selection {
    /// Only counters whose key begins with this
    #[arg(short, long, value_name = "PREFIX")]
    pub prefix: Option<OsString>,
}

/// list
#[derive(Debug, clap::Args)]
pub struct List {
    #[command(flatten)]
    selection: Selection,
    /// At most so many [default: all]
    #[arg(short = 'n', long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    limit: Option<u64>,
    #[command(flatten)]
    client: Client,
}

/// top
#[derive(Debug, clap::Args)]
pub struct Top {
    /// Only counters whose key begins with this
    #[arg(value_name = "PREFIX")]
    beginning: Option<OsString>,
    /// The same, as list takes it
    #[arg(short, long, value_name = "PREFIX", conflicts_with = "beginning", hide = true)]
    prefix: Option<OsString>,
    /// How many
    #[arg(short = 'n', long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=PAGE_MAX))]
    number: u64,
    #[command(flatten)]
    client: Client,
}

impl List {
    /// Prints counters in the order of their keys.
    pub fn run(&self) -> Result<(), Failure> {
        print_all(&self.client, &self.selection, "key", self.limit.unwrap_or(u64::MAX))
    }
}

impl Top {
    /// Prints the largest counters.
    pub fn run(&self) -> Result<(), Failure> {
        let selection = Selection { prefix: self.beginning.clone().or_else(|| self.prefix.clone()) };
        print_all(&self.client, &selection, "value", self.number)
    }
}

fn print_all(client: &Client, selection: &Selection, order: &'static str, limit: u64) -> Result<(), Failure> {
    let pages = Pages::new(client, selection, Some(order), FIRST_PAGE.min(limit));
    let screen = Screen::stdout();
    if client.json {
        return pages.print(limit, |out, counter: &[Value], _| {
            counter.iter().try_for_each(|counter| writeln!(out, "{counter}"))
        });
    }
    pages.print(limit, |out, counters: &[Counter], is_first| match (screen.is_terminal, counters) {
        (true, []) if is_first => {
            print_note("there are no counters here");
            Ok(())
        }
        (true, counters) => {
            let table = screen.table(COLUMNS, counters.iter().map(|counter| counter.row(&screen)));
            let rows = table.split_once('\n').map_or("", |(_, rows)| rows);
            writeln!(out, "{}", if is_first { &table } else { rows })
        }
        (false, counters) => counters
            .iter()
            .try_for_each(|counter| writeln!(out, "{}\t{}", terminal::key(&counter.key()), counter.value)),
    })
}

/// Asks until a server that restarts is there again.
pub fn patiently<T>(
    client: &Client,
    interrupt: &Interrupt,
    bar: &ProgressBar,
    mut ask: impl FnMut() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let give_up = Instant::now() + RETRY_TIME;
    let mut is_told = false;
    loop {
        match ask() {
            Err(failure) if failure.is_passing() && Instant::now() < give_up => {
                if !std::mem::replace(&mut is_told, true) {
                    progress::note(bar, &format!("{} does not answer; waiting for it", client.server));
                }
                if interrupt.wait(RETRY_PAUSE).is_some() {
                    return Err(failure);
                }
            }
            answered => return answered,
        }
    }
}

/// The pages of a list, one call each.
pub struct Pages<'a> {
    client: &'a Client,
    /// Which counters in which order.
    query: String,
    /// Counters of the next page.
    limit: u64,
    /// Where the next page begins; `None` where there is none.
    cursor: Option<String>,
}

#[derive(Deserialize)]
struct Page<T> {
    counters: Vec<T>,
    cursor: Option<String>,
}

impl<'a> Pages<'a> {
    /// Without an order, pages come in the one that is cheapest for the server.
    pub fn new(
        client: &'a Client,
        selection: &Selection,
        order: Option<&'static str>,
        limit: u64,
    ) -> Pages<'a> {
        let mut query = String::new();
        if let Some(order) = order {
            query.push_str(&format!("&order={order}"));
        }
        if let Some(prefix) = &selection.prefix {
            query.push_str(&format!("&prefix={}", encode(prefix.as_bytes())));
        }
        Pages { client, query, limit, cursor: Some(String::new()) }
    }

    /// The next page, until there is none.
    pub fn next<T: DeserializeOwned>(&mut self) -> Result<Option<Vec<T>>, Failure> {
        let Some(cursor) = &self.cursor else { return Ok(None) };
        let path = format!("counters?limit={}{}&cursor={cursor}", self.limit, self.query);
        let page: Page<T> = self.client.fetch(&Call::get(path))?;
        self.cursor = page.cursor;
        Ok(Some(page.counters))
    }

    /// The same, but a server that restarts is waited for: its cursors outlive it.
    pub fn next_patiently<T: DeserializeOwned>(
        &mut self,
        interrupt: &Interrupt,
        bar: &ProgressBar,
    ) -> Result<Option<Vec<T>>, Failure> {
        patiently(self.client, interrupt, bar, || self.next())
    }

    /// Prints pages until they or `limit` end. `print_page` is told which is the first.
    fn print<T: DeserializeOwned>(
        mut self,
        limit: u64,
        print_page: impl Fn(&mut BufWriter<StdoutLock<'_>>, &[T], bool) -> std::io::Result<()>,
    ) -> Result<(), Failure> {
        let mut out = BufWriter::new(std::io::stdout().lock());
        let (mut left, mut is_first) = (limit, true);
        while left > 0
            && let Some(mut counters) = self.next()?
        {
            counters.truncate(usize::try_from(left).unwrap_or(usize::MAX));
            left -= counters.len() as u64;
            print_page(&mut out, &counters, is_first)
                .and_then(|()| out.flush())
                .map_err(|error| terminal::unprintable(&error))?;
            // Whoever wants more than a few wants them fast.
            (is_first, self.limit) = (false, PAGE_MAX.min(left.max(1)));
        }
        Ok(())
    }
}

//! The commands of the binary.
//!
//! | file | what it says |
//! |---|---|
//! | `client`, `counter` | one HTTP call to a server, blocking; a counter as it is answered |
//! | `counters` | incr, decr, add, set, reset, del, get, mget |
//! | `uniques`, `quotas`, `holds` | observe, merge; window, acquire; hold, adjust |
//! | `history`, `audit` | history, audit |
//! | `list` | list, top |
//! | `sum` | sum |
//! | `hot` | the keys that are asked for most |
//! | `export`, `import` | counters to a file, and from one |
//! | `mirror` | how the table in PostgreSQL is doing |
//! | `reconcile` | counters beside a source of truth |
//! | `watch`, `follow` | counters while they change |
//! | `policy` | policy set, get, list, del |
//! | `settings` | config show, check, template |
//! | `check` | verify a data folder |
//! | `cluster` | cluster init, invite, join, dev |
//! | `backend` | backend |
//! | `failure` | what went wrong, for a person and as an exit code |
//! | `terminal`, `progress`, `interrupt` | how things look, how far they have come, and Ctrl-C |
//! | `help` | the first page of help, and `docs/cli.md` |
//!
//! Human output on a terminal, plain text behind a pipe, JSON with `--json`; exit code 0 only on success, the
//! others stand in [`failure::EXIT_CODES`].

mod audit;
mod backend;
mod check;
mod client;
mod cluster;
mod counter;
mod counters;
mod export;
pub(crate) mod failure;
mod follow;
mod help;
mod history;
mod holds;
mod hot;
mod import;
mod interrupt;
mod list;
mod mirror;
mod policy;
mod progress;
mod quotas;
mod reconcile;
mod settings;
mod sum;
pub(crate) mod terminal;
mod uniques;
mod watch;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use quipu_engine::OpenError;
use quipu_store::Durability;
use serde_json::json;

use crate::config::secret::SecretUrl;
use crate::config::{Config, Flags};
use crate::deployment::Addresses;
use crate::{bench, drill, serve};
use failure::Failure;

/// quipu counts: likes and views, stock and quotas, exactly and durably
#[derive(Debug, Parser)]
#[command(name = "quipu", version, help_template = help::overview())]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a server
    #[command(after_help = "Examples:
  quipu serve
  quipu serve --data /var/lib/quipu --memory 4GiB
  quipu serve --config quipu.toml --durability interval:100

One line on stderr says when it serves, and where. SIGTERM, SIGHUP and Ctrl-C \
drain, flush and end it; Ctrl-C once more ends it at once.")]
    Serve {
        #[command(flatten)]
        flags: Flags,
        /// Once it serves, also print where, as one line of JSON on stdout
        #[arg(long)]
        json: bool,
        /// End when the process of this number, which started this one, has ended
        #[arg(long, hide = true, value_name = "PID")]
        parent: Option<u32>,
    },
    /// Add one, or more, to a counter
    #[command(after_help = "Examples:
  quipu incr likes:post:7
  quipu incr stock:7 5 --max 100 --id order-1234
  quipu incr visits:today --ttl 24h")]
    Incr(counters::Step),
    /// Take one, or more, from a counter
    #[command(
        after_help = "Examples:\n  quipu decr stock:7 2 --min 0\n  quipu decr stock:7 50 --min 0 --saturate"
    )]
    Decr(counters::Step),
    /// Add any number, negative ones too, to a counter
    #[command(
        after_help = "Examples:\n  quipu add balance:7 -120 --id refund-88\n  quipu add balance:7 500 --json"
    )]
    Add(counters::Add),
    /// Give a counter a value
    #[command(
        after_help = "Examples:\n  quipu set stock:7 100 --ttl 24h\n  quipu set stock:7 90 --if-version 4"
    )]
    Set(counters::Set),
    /// Set a counter back to zero
    #[command(after_help = "Example:\n  quipu reset visits:today")]
    Reset(counters::Change),
    /// Delete a counter
    #[command(after_help = "Example:\n  quipu del stock:7")]
    Del(counters::Change),
    /// Correct a counter, and say why
    #[command(
        after_help = "Example:\n  quipu adjust balance:7 -120 --reason 'counted twice, ticket 88' --dim tenant=acme"
    )]
    Adjust(holds::Adjust),
    /// Count different items, like visitors
    #[command(after_help = "Examples:
  quipu observe visitors:today user-7 user-8
  cut -d' ' -f1 access.log | quipu observe addresses:today -

Prints how many different ones there are: the very number up to 256, then an estimate with a standard error of 0.81 %.")]
    Observe(uniques::Observe),
    /// Make several counters of different items one
    #[command(after_help = "Example:\n  quipu merge visitors:week visitors:mon visitors:tue")]
    Merge(uniques::Merge),
    /// Count within a limit, if it leaves room
    #[command(after_help = "Examples:
  quipu acquire calls:user:7 --limit 100 --window 1h
  quipu acquire calls:user:7 --limit 100 --window 1h --amount 5 --soft
  quipu acquire '{user-7}:day' --limit 1000 --window 24h --and '{user-7}:minute' 10 1m

Prints what is left. Over the limit nothing is counted, and the exit code is 15.")]
    Acquire(quotas::Acquire),
    /// Set an amount aside until it is counted, given back, or over
    #[command(after_help = "Examples:
  hold=$(quipu hold stock:7 3 --ttl 15m --max 100)
  quipu hold commit $hold 2
  quipu hold void $hold

Prints the name of the hold. A counter that is called commit, void or help stands behind all flags and --.")]
    Hold(holds::Hold),
    /// Show what a counter counted when
    #[command(after_help = "Examples:
  quipu window calls:user:7
  quipu window calls:user:7 --last 15m
  quipu window calls:user:7 --from 2026-02-23T08:00:00Z --buckets

Behind a pipe: the sum, or with --buckets a line for each bucket, time and sum parted by a tab.")]
    Window(quotas::Window),
    /// Show what the value of a counter was
    #[command(after_help = "Examples:
  quipu history likes:post:7 --step hour
  quipu history likes:post:7 --at 2026-02-23T10:00:00Z

A policy with --history-minutes, --history-hours or --history-days keeps it. Behind a pipe: time and value parted by a tab.")]
    History(history::Args),
    /// Show who changed a counter, when and why
    #[command(after_help = "Examples:
  quipu policy set 'balance:*' --audit 30d
  quipu adjust balance:7 -120 --reason 'counted twice, ticket 88' --actor anna
  quipu audit balance:7 --from 2026-02-23T00:00:00Z

The newest change comes first. A policy with --audit says for which counters it is kept, and for how long; deleting a counter \
leaves its trail alone. Behind a pipe: time, action, change, value, version, who, reason and request id parted by tabs.")]
    Audit(audit::Args),
    /// Show a counter
    #[command(after_help = "Examples:
  quipu get likes:post:7
  quipu get likes:post:7 --json | jq .version

A counter that does not exist reads as 0.")]
    Get(counters::Get),
    /// Show several counters
    #[command(
        after_help = "Examples:\n  quipu mget likes:post:7 likes:post:8\n  quipu mget a b | sort -k2 -n"
    )]
    Mget(counters::GetMany),
    /// List counters by key
    #[command(
        visible_alias = "ls",
        after_help = "Examples:
  quipu list --prefix likes:
  quipu list --limit 20
  quipu list --json | jq -r 'select(.value < 0) | .counterKey'

Behind a pipe: key and value, parted by a tab. With --json: one object a line."
    )]
    List(list::List),
    /// List the largest counters, the largest first
    #[command(after_help = "Examples:\n  quipu top\n  quipu top likes: -n 100 --json")]
    Top(list::Top),
    /// Add up all counters of a pattern
    #[command(after_help = "Examples:
  quipu sum 'likes:*'
  quipu sum 'views:*:2026-02-23' --parts
  quipu sum 'views:*' --json | jq .count

On a terminal: sum, count, smallest and largest value. Behind a pipe: the sum. Where a part of a cluster does not answer \
that is an error, unless --partial says otherwise.")]
    Sum(sum::Sum),
    /// List the keys that are asked for most, the hottest first
    #[command(after_help = "Examples:
  quipu hot
  quipu hot -n 5 --json | jq -r '.keys[].key'

Requests of the last ten seconds, changes and reads, in the whole cluster. Behind a pipe: key, requests per second and \
share of all requests, parted by tabs. With --json: the answer of GET /api/v1/hot.")]
    Hot(hot::Args),
    /// Follow counters while they change
    #[command(after_help = "Examples:
  quipu watch likes:post:7 likes:post:8
  quipu watch --prefix likes: --interval 200ms
  quipu watch stock:7 --json | jq --unbuffered .value

On a terminal: a table of value and rate, redrawn in place. Behind a pipe: a line for each counter at the start (of a \
prefix the first 1,000) and as soon as it changes, at most once an interval (key, value, change per second). Changes come \
from the server as they happen; a restart of it is waited for.")]
    Watch(watch::Args),
    /// Read counters from a file, or from stdin, into a server
    #[command(after_help = "Examples:
  quipu import counters.csv
  quipu import --dry-run counters.csv
  quipu import --mode add visits-2026-02-23.ndjson.gz
  psql --csv -c 'SELECT page AS key, count(*) AS value FROM visits
      WHERE day = 20260223 GROUP BY page ORDER BY page' |
    quipu import --mode add --run-id day-2026-02-23 -

Columns (CSV) or fields (NDJSON): key, or keyBase64 where a key is no text; value, a whole number; and perhaps one of \
ttlMs (milliseconds) and expiresAt (RFC 3339, or milliseconds since 1970).

  key,value,expiresAt                  {\"key\":\"likes:7\",\"value\":12}
  likes:7,12,                          {\"key\":\"code:9\",\"value\":1,\"ttlMs\":60000}
  code:9,1,2026-02-23T08:15:30Z

--mode set, the default, makes counters as the file says, and may be repeated at will; what was counted meanwhile is \
overwritten. --mode add counts on top. Each line has an id, made of the run and its number, and the server knows it again \
for as long as it remembers ids (24 hours by default): an import that was interrupted is simply started again. The run is \
the bytes of the file, or --run-id; under a --run-id lines are known by their number alone, so what comes again must come \
in the same order (from a database: with ORDER BY).

A file with a bad row is refused before anything is sent. What comes through a pipe cannot be looked through first: \
there the import stops at the bad row, and says which rows are imported.")]
    Import(import::Args),
    /// Write counters to a file, or to stdout
    #[command(after_help = "Examples:
  quipu export > counters.csv
  quipu export --prefix stock: --output stock.ndjson.gz
  quipu export --server http://old:7070 |
    quipu import - --target resp://new:7071

Columns: key (or keyBase64 where a key is no text), value, expiresAt, version, updatedAt. Counters that change meanwhile \
are written as they were at some moment of the export, each for itself. With --json: NDJSON, or with --output a summary \
as JSON.")]
    Export(export::Args),
    /// Compare counters with a source of truth, and correct them
    #[command(after_help = "Examples:
  quipu reconcile --source 'postgres://app@db/shop?query=SELECT item AS key, sum(quantity) AS value FROM stock GROUP BY item'
  quipu reconcile --source postgres://app@db/shop --query 'SELECT key, value FROM likes_by_post' --prefix likes:
  quipu reconcile --source counted.csv --as-of 2026-02-23T10:00:00Z --apply --reason 'recount of 23 Feb'
  quipu reconcile --source postgres://app@db/shop --query \"$SQL\" --apply --every 1h --report drift.ndjson

Nothing is changed without --apply. The exit code is 0 if nothing differs (or all was corrected), 16 if something does, 13 if \
a correction was refused.

A query is read as of one moment. A counter is judged if it did not change for --settle before that moment, nor since; \
others are looked at again, up to --rounds times, and are busy after that: not judged, and not corrected. A file cannot be \
asked again: counters that changed since --as-of are busy.

A correction adds what is missing, so what is counted meanwhile stays; repeating a run that was killed corrects nothing \
twice. Rows have 16 bytes of memory each (files, or with --prefix), else none.")]
    Reconcile(Box<reconcile::Args>),
    /// The table in PostgreSQL that a server writes its counters to
    #[command(subcommand, after_help = "Example:\n  quipu mirror status")]
    Mirror(mirror::Command),
    /// Bounds and expiry for all keys of a pattern
    #[command(subcommand, after_help = "Example:\n  quipu policy set 'stock:*' --min 0")]
    Policy(policy::Command),
    /// Several servers that count as one
    #[command(
        subcommand,
        after_help = "Examples:
  quipu cluster dev --nodes 3
  quipu cluster init --data one && quipu cluster invite --data one > two.toml"
    )]
    Cluster(cluster::Command),
    /// Show the Redis that keeps a server's counters, and the archive behind it
    #[command(after_help = "Examples:
  quipu backend
  quipu backend --json | jq .archive.recoveries[0].gap

Of a server that was started with --backend: whether everything can be counted, how far behind PostgreSQL is, and what Redis \
has lost and got back.")]
    Backend(backend::Args),
    /// Verify a data folder that no server is using
    #[command(after_help = "Examples:
  quipu check ./quipu-data
  quipu check /backup/quipu --quiet || echo damaged

The log and every counter are read, and the sums are compared with the ledgers; exit code 14 means that something is \
damaged or does not agree. Before that the recovery is finished as a start would do it (what a crash left half-written at \
the end of the log is cut off), so check needs a folder it may write to: of a backup that is read-only, check a copy.")]
    Check(check::Args),
    /// Cause a failure on a stage of its own, and show the remedy and the proof
    #[command(
        subcommand,
        after_help = "Examples:
  quipu drill store-down
  quipu drill backlog --changes 1000000

Needs redis-server, redis-cli and PostgreSQL installed; nothing of yours is touched."
    )]
    Drill(drill::Command),
    /// Offer load to a Redis-protocol server and measure what it takes
    Bench(Box<bench::Args>),
    /// Settings, and where they come from
    #[command(subcommand, after_help = "Example:\n  quipu config show --config quipu.toml")]
    Config(settings::Command),
    /// Print a completion script for a shell
    #[command(after_help = "Examples:
  source <(quipu completions bash)
  quipu completions bash > ~/.local/share/bash-completion/completions/quipu
  quipu completions zsh > \"${fpath[1]}/_quipu\"
  quipu completions fish > ~/.config/fish/completions/quipu.fish")]
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
        /// Print JSON, for programs
        #[arg(long)]
        json: bool,
    },
    /// Print the whole manual, with all exit codes, as Markdown
    #[command(after_help = "Example:\n  quipu manual | less")]
    Manual {
        /// Print JSON, for programs
        #[arg(long)]
        json: bool,
    },
}

/// Runs the command line. The exit code is the only thing `main` needs to know. A server calls `tidy_memory` now and
/// then, because only the binary knows its allocator.
pub fn main(tidy_memory: fn()) -> ExitCode {
    // A server must survive a client that goes away, and a drill has servers to end; there the signal stays ignored.
    let is_survived = std::env::args_os().nth(1).is_some_and(|name| name == "serve" || name == "drill");
    if !is_survived && let Err(error) = interrupt::end_with_the_reader() {
        terminal::print_note(&format!("a closed pipe will be an error: {error}"));
    }
    // Usage errors end the process with exit code 2 here, as the table of exit codes says.
    let cli = Cli::parse();
    match run(cli.command, tidy_memory) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            terminal::print_error(&failure.to_string());
            ExitCode::from(failure.exit_code)
        }
    }
}

fn run(command: Command, tidy_memory: fn()) -> Result<(), Failure> {
    match command {
        Command::Serve { flags, json, parent } => {
            let (config, _) = settings::load(&flags)?;
            let announce = |addresses| {
                if json {
                    announce(&config, addresses)
                }
            };
            let served = serve::run(&config, parent, announce, tidy_memory);
            served.map_err(|error| match error.downcast_ref::<OpenError>() {
                // A setting that makes sense, but not for this data folder.
                Some(OpenError::Options(_)) => Failure::usage(error),
                _ => error.into(),
            })
        }
        Command::Incr(step) => step.run(counters::Direction::Up),
        Command::Decr(step) => step.run(counters::Direction::Down),
        Command::Add(add) => add.run(),
        Command::Set(set) => set.run(),
        Command::Reset(change) => change.reset(),
        Command::Del(change) => change.delete(),
        Command::Adjust(args) => args.run(),
        Command::Observe(args) => args.run(),
        Command::Merge(args) => args.run(),
        Command::Acquire(args) => args.run(),
        Command::Hold(args) => args.run(),
        Command::Window(args) => args.run(),
        Command::History(args) => args.run(),
        Command::Audit(args) => args.run(),
        Command::Get(get) => get.run(),
        Command::Mget(get) => get.run(),
        Command::List(args) => args.run(),
        Command::Top(args) => args.run(),
        Command::Sum(args) => args.run(),
        Command::Hot(args) => args.run(),
        Command::Watch(args) => args.run(),
        Command::Import(args) => args.run(),
        Command::Export(args) => args.run(),
        Command::Reconcile(args) => args.run(),
        Command::Mirror(command) => command.run(),
        Command::Policy(command) => command.run(),
        Command::Cluster(command) => command.run(),
        Command::Backend(args) => args.run(),
        Command::Check(args) => args.run(),
        Command::Drill(command) => command.run(),
        Command::Bench(args) => bench::run(*args),
        Command::Config(command) => command.run(),
        Command::Completions { shell, json } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "quipu", &mut script);
            let script = String::from_utf8_lossy(&script);
            match json {
                true => terminal::print(json!({ "shell": shell.to_string(), "script": script })),
                false => terminal::print(script.trim_end()),
            }
        }
        Command::Manual { json } => {
            let manual = help::manual(Cli::command());
            match json {
                true => terminal::print(json!({ "manual": manual, "exitCodes": help::exit_codes() })),
                false => terminal::print(manual.trim_end()),
            }
        }
    }
}

/// For scripts that let the system choose ports.
fn announce(config: &Config, addresses: Addresses) {
    let Addresses { http, resp, resp_cluster } = addresses;
    let is_here = config.backend.is_none();
    // What a node of a cluster acknowledges is on disks, whatever it was told.
    let durability = if resp_cluster.is_some() { Durability::Sync } else { config.durability };
    let shown = |url: &Option<SecretUrl>| url.as_ref().map(SecretUrl::to_string);
    let printed = terminal::print(json!({
        "http": http, "resp": resp, "respCluster": resp_cluster,
        "data": is_here.then_some(&config.data), "durability": is_here.then(|| durability.to_string()),
        "backend": shown(&config.backend), "archive": shown(&config.archive),
        "version": env!("CARGO_PKG_VERSION"), "pid": std::process::id(),
    }));
    // A server serves also where nobody reads this.
    if let Err(failure) = printed {
        terminal::print_note(&failure.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::{Cli, help};
    use clap::{CommandFactory, Parser};

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    /// Negative numbers look like flags, and must not be taken for them.
    #[test]
    fn negative_numbers_are_numbers() {
        for line in [
            "quipu add k -5",
            "quipu add k -- -5",
            "quipu add -- -5 -5",
            "quipu incr k -5",
            "quipu set k -5",
            "quipu incr k --min -5 --max -1",
            "quipu policy set p --min -5",
            "quipu adjust k -5 --reason r",
            "quipu hold k -5 --ttl 1s",
            "quipu hold commit h -5",
            "quipu hold --ttl 1s -- commit -5",
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).is_ok(), "{line}");
        }
    }

    #[test]
    fn every_command_shows_an_example_and_speaks_json() {
        fn walk(command: &clap::Command) {
            for inner in command.get_subcommands() {
                let help = inner.get_after_help().map(ToString::to_string).unwrap_or_default();
                let name = inner.get_name();
                assert!(help.contains("Example"), "{name} shows no example");
                let speaks_json = inner.get_arguments().any(|argument| argument.get_long() == Some("json"));
                assert!(inner.has_subcommands() || speaks_json, "{name} has no --json");
                walk(inner);
            }
        }
        walk(&Cli::command());
    }

    #[test]
    fn the_first_page_names_every_command_and_fits_a_screen() {
        let page = Cli::command().render_help().to_string();
        assert!(page.lines().count() <= 24, "{page}");
        assert!(page.lines().all(|line| line.chars().count() <= 80), "{page}");
        for command in Cli::command().get_subcommands() {
            let name = command.get_name();
            let words = || page.split([' ', ',', '\n']).filter(|word| *word == name);
            assert!(words().next().is_some(), "{name} is missing in\n{page}");
        }
    }

    /// `cargo xtask fix` writes it.
    #[test]
    fn the_page_about_the_command_line_is_fresh() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cli.md");
        let written = std::fs::read_to_string(path).unwrap_or_default();
        assert!(written == help::manual(Cli::command()), "docs/cli.md is stale; run `cargo xtask fix`");
    }
}

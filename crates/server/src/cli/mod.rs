//! The commands of the binary.
//!
//! | file | what it says |
//! |---|---|
//! | `client` | one HTTP call to a server, blocking |
//! | `counters` | incr, decr, add, set, reset, del, get, mget |
//! | `policy` | policy set, get, list, del |
//! | `check` | verify a data folder |
//! | `failure` | what went wrong, for a person and as an exit code |
//!
//! Human output by default, the API's JSON with `--json`; exit code 0 only on success, the others stand in
//! [`quipu_wire::refusal`].

mod check;
mod client;
mod counters;
mod failure;
mod policy;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};

use crate::config::{self, Flags, Resolved};
use crate::{bench, serve};
use failure::Failure;

/// Counts: likes and views, stock and quotas, exactly and durably.
#[derive(Debug, Parser)]
#[command(name = "quipu", version, propagate_version = true, after_help = EXAMPLE)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLE: &str = "Example:\n  quipu serve &\n  quipu incr likes:post:7\n  quipu get likes:post:7";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a server
    #[command(after_help = "Example:\n  quipu serve --data /var/lib/quipu --memory 4GiB")]
    Serve(Flags),
    /// Add one, or more, to a counter
    #[command(after_help = "Example:\n  quipu incr stock:7 5 --max 100 --id order-1234")]
    Incr(counters::Step),
    /// Take one, or more, from a counter
    #[command(after_help = "Example:\n  quipu decr stock:7 2 --min 0")]
    Decr(counters::Step),
    /// Add any number, negative ones too, to a counter
    #[command(after_help = "Example:\n  quipu add balance:7 -120 --id refund-88")]
    Add(counters::Add),
    /// Give a counter a value
    #[command(after_help = "Example:\n  quipu set stock:7 100 --ttl 24h")]
    Set(counters::Set),
    /// Set a counter back to zero
    #[command(after_help = "Example:\n  quipu reset visits:today")]
    Reset(counters::Change),
    /// Delete a counter
    #[command(after_help = "Example:\n  quipu del stock:7")]
    Del(counters::Change),
    /// Show a counter
    #[command(after_help = "Example:\n  quipu get likes:post:7")]
    Get(counters::Get),
    /// Show several counters
    #[command(after_help = "Example:\n  quipu mget likes:post:7 likes:post:8")]
    Mget(counters::GetMany),
    /// Limits by key pattern
    #[command(subcommand, after_help = "Example:\n  quipu policy set 'stock:*' --min 0")]
    Policy(policy::Command),
    /// Verify a data folder that no server is using
    #[command(after_help = "Example:\n  quipu check ./quipu-data")]
    Check(check::Args),
    /// Offer load to a Redis-protocol server and measure what it takes
    Bench(Box<bench::Args>),
    /// Settings
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Print a completion script for a shell
    #[command(after_help = "Example:\n  quipu completions bash > /etc/bash_completion.d/quipu")]
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Print every setting, its value, and where it comes from
    #[command(after_help = "Example:\n  quipu config show --config quipu.toml")]
    Show {
        #[command(flatten)]
        flags: Flags,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// Runs the command line. The exit code is the only thing `main` needs to know.
pub fn main() -> ExitCode {
    // Usage errors end the process with exit code 2 here, as the table of exit codes says.
    let cli = Cli::parse();
    match run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("quipu: {failure}");
            ExitCode::from(failure.exit_code)
        }
    }
}

fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Serve(flags) => {
            let (config, _) = config::load(&flags, environment).map_err(Failure::usage)?;
            Ok(serve::run(&config)?)
        }
        Command::Incr(step) => step.run(counters::Direction::Up),
        Command::Decr(step) => step.run(counters::Direction::Down),
        Command::Add(add) => add.run(),
        Command::Set(set) => set.run(),
        Command::Reset(change) => change.reset(),
        Command::Del(change) => change.delete(),
        Command::Get(get) => get.run(),
        Command::Mget(get) => get.run(),
        Command::Policy(command) => command.run(),
        Command::Check(args) => args.run(),
        Command::Bench(args) => Ok(bench::run(*args)?),
        Command::Config(ConfigCommand::Show { flags, json }) => {
            let (_, resolved) = config::load(&flags, environment).map_err(Failure::usage)?;
            show_config(&resolved, json);
            Ok(())
        }
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Cli::command(), "quipu", &mut std::io::stdout());
            Ok(())
        }
    }
}

/// A variable that is not UTF-8 cannot be a setting; it reads as its nearest text and is refused by name.
fn environment(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

fn show_config(resolved: &[Resolved], json: bool) {
    if json {
        let rows: Vec<_> = resolved
            .iter()
            .map(|Resolved { setting, text, source }| {
                serde_json::json!({"name": setting.name, "value": text, "source": source.to_string()})
            })
            .collect();
        println!("{}", serde_json::json!({ "settings": rows }));
        return;
    }
    let width = |of: fn(&Resolved) -> usize| resolved.iter().map(of).max().unwrap_or(0);
    let (names, values) = (width(|row| row.setting.name.len()), width(|row| row.text.len()));
    for Resolved { setting, text, source } in resolved {
        println!("{:names$}  {text:values$}  {source}", setting.name);
    }
}

#[cfg(test)]
mod tests {
    use super::Cli;
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
        ] {
            assert!(Cli::try_parse_from(line.split(' ')).is_ok(), "{line}");
        }
    }

    #[test]
    fn every_command_shows_an_example() {
        fn walk(command: &clap::Command) {
            for inner in command.get_subcommands() {
                let help = inner.get_after_help().map(ToString::to_string).unwrap_or_default();
                assert!(
                    inner.has_subcommands() || help.contains("Example"),
                    "{} shows no example",
                    inner.get_name()
                );
                walk(inner);
            }
        }
        walk(&Cli::command());
    }
}

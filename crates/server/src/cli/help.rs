//! The first page of help, and the same knowledge as `docs/cli.md`.

use clap::Command;
use clap::builder::styling::Style;
use serde_json::{Value, json};

use super::failure::EXIT_CODES;

/// All commands in groups, on one screen; the library would give each a line of its own. A test keeps it complete.
const OVERVIEW: &str = "\
{about}

Usage: quipu <COMMAND> [ARGUMENTS] [OPTIONS]

Count    incr, decr, add          Add to a counter, or take from it
         set, adjust, reset, del  Give it a value, correct, zero, delete it
         observe, merge           Count different items, like visitors
         acquire, hold            Count within a limit; set an amount aside
Read     get, mget, list, top     Show counters, one, several, or the largest
         window, history, audit   What was counted when; past values; who did it
         sum, hot, watch          Add up; find the hottest; follow changes
Move     import, export           Read counters from a file, write them to one
         reconcile, mirror        Compare with a source of truth; a copy in SQL
Rule     policy                   Kind, bounds and limits of keys of a pattern
Operate  serve                    Run a server
         cluster, backend         Several servers as one; a Redis below them
         config, check            Settings; verify a data folder
         bench, drill             Measure under load; rehearse failures
         completions, manual      Help the shell; all help as one page

Each explains itself: quipu COMMAND --help
Try it:
  quipu serve &
  quipu incr likes:post:7
";

/// The first page: its groups are set in bold where there is bold.
pub fn overview() -> String {
    let bold = Style::new().bold();
    let emphasize = |line: &str| match line.split_once(' ') {
        Some((group, rest)) if rest.starts_with(' ') || group == "Usage:" => {
            format!("{bold}{group}{bold:#} {rest}\n")
        }
        _ => format!("{line}\n"),
    };
    OVERVIEW
        .lines()
        .map(|line| if line.starts_with(' ') { format!("{line}\n") } else { emphasize(line) })
        .collect()
}

/// The width of help in `docs/cli.md`.
const DOCUMENT_COLUMNS: usize = 100;

const INTRODUCTION: &str = "\
# The command line

Written by `cargo xtask fix` from the definitions of the commands; edit those.

Where stdout is a terminal, commands print for people: tables, `1,234,567`, `3m 20s`. Where it is not, they print plain
text: `1234567`, columns parted by tabs, no header. `--json` prints JSON in both cases: one object, or one a line where there
may be many. Errors and notes go to stderr. `NO_COLOR` is respected.

## Exit codes

| code | meaning |
|---|---|
";

/// `docs/cli.md`, and what `quipu manual` prints.
pub fn manual(command: Command) -> String {
    let mut text = INTRODUCTION.to_owned();
    for (code, meaning) in EXIT_CODES {
        text.push_str(&format!("| {code} | {} |\n", meaning.replace('|', "\\|")));
    }
    let mut command = command.term_width(DOCUMENT_COLUMNS);
    command.build();
    for inner in command.get_subcommands_mut() {
        describe(inner, &mut text);
    }
    text
}

/// Every exit code, for programs.
pub fn exit_codes() -> Vec<Value> {
    EXIT_CODES.iter().map(|(code, meaning)| json!({ "code": code, "meaning": meaning })).collect()
}

fn describe(command: &mut Command, text: &mut String) {
    if command.get_name() == "help" {
        return;
    }
    let name = command.get_bin_name().unwrap_or(command.get_name()).to_owned();
    let help = command.render_long_help().to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    text.push_str(&format!("\n## {name}\n\n```text\n{}\n```\n", lines.join("\n").trim_end()));
    command.get_subcommands_mut().for_each(|inner| describe(inner, text));
}

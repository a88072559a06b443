//! The table as a page for people: `docs/commands.md`, which a test compares with this and `cargo xtask fix` rewrites.

use std::fmt::Write as _;

use super::{CommandSpec, commands};
use crate::differences::{DIFFERENCES, Difference};

/// The chapters: the group in the table, the title, and what is to be said before the commands.
const CHAPTERS: &[(&str, &str, &str)] = &[
    (
        "string",
        "Counters",
        "An increment without an id counts twice when a client library sends it again because the reply was lost; many \
         do so by default. `Q.ADD` with an id does not.",
    ),
    ("quipu", "Counters, exactly once", "Commands that Redis does not have."),
    (
        "hyperloglog",
        "Uniques",
        "Counters of different items, with Redis's sketches: GET and DUMP give what Redis would give, and SET and RESTORE take what \
         Redis gave.",
    ),
    ("generic", "Keys", ""),
    (
        "transactions",
        "Transactions",
        "All commands about counters of a transaction are one record in the log: done or not done, and never seen half \
         done. As in Redis, a command that is refused does not stop the others.",
    ),
    ("connection", "Connections", ""),
    ("server", "Server", ""),
    (
        "cluster",
        "Cluster",
        "The cluster port of a node speaks the Redis Cluster protocol: who asks about a slot that another node leads is sent there \
         (`MOVED`), and keys of one command or transaction share a slot (`CROSSSLOT`). SCAN, KEYS, RANDOMKEY and \
         DBSIZE speak of what the node leads, so that clients can put the answers of all nodes together; Q.SUM and Q.TOP speak of all counters. On the RESP port, where \
         every node answers everything, these are answered as by a Redis without a cluster; but what is done as one (MSET, DEL of several \
         keys, a transaction, Q.BATCH) shares a slot there too.",
    ),
];

/// The whole page.
pub fn render() -> String {
    let mut page = String::from(
        "# Commands\n\n\
         Any Redis client works on the RESP port, with RESP2 or RESP3. The commands below answer as Redis 7.0 does, error \
         texts\nincluded, but for what is listed [at the end](#what-differs-from-redis); `INCREX` is that of Redis 8.8. \
         All others are unknown\ncommands. `COMMAND DOCS` and `HELP` say the same as this page, which is written from the \
         table in\n`crates/wire/src/commands/table.rs` by `cargo xtask fix`.\n",
    );
    for (group, title, note) in CHAPTERS {
        // Writing to a string cannot fail.
        let _ = write!(page, "\n## {title}\n\n");
        if !note.is_empty() {
            let _ = write!(page, "{}\n\n", wrapped(note, ""));
        }
        page.push_str("| command | what it does |\n|---|---|\n");
        commands().filter(|spec| spec.group == *group).for_each(|spec| write_rows(&mut page, spec));
    }
    page.push_str("\n## What differs from Redis\n\n");
    for Difference { name, here, reason, .. } in DIFFERENCES {
        let _ = writeln!(page, "- {}", wrapped(&format!("**{name}**: {here} *{reason}*"), "  "));
    }
    page
}

/// A command, or the subcommands of a container.
fn write_rows(page: &mut String, spec: &CommandSpec) {
    let subcommands = spec.subcommands();
    let is_command_itself = subcommands.is_empty() || spec.arity == -1;
    let shown = subcommands.iter().filter(|spec| spec.last_name() != "help");
    for spec in is_command_itself.then_some(spec).into_iter().chain(shown) {
        let name = spec.name.replace('|', " ").to_ascii_uppercase();
        // A bar ends a cell of the table, in code too.
        let call = format!("{name} {}", spec.syntax).trim_end().replace('|', "\\|");
        let _ = writeln!(page, "| `{call}` | {} |", spec.summary);
    }
}

/// Lines of at most 120 characters, the further ones after `indent`.
fn wrapped(text: &str, indent: &str) -> String {
    const WIDTH: usize = 120;
    let (mut lines, mut length) = (String::new(), indent.len());
    for word in text.split(' ') {
        if length + word.len() + 1 > WIDTH {
            let _ = write!(lines, "\n{indent}{word}");
            length = indent.len() + word.len();
        } else {
            let space = if lines.is_empty() { "" } else { " " };
            let _ = write!(lines, "{space}{word}");
            length += space.len() + word.len();
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::{CHAPTERS, commands, render};

    #[test]
    fn every_command_has_its_chapter() {
        for spec in commands() {
            assert!(CHAPTERS.iter().any(|(group, ..)| *group == spec.group), "{}", spec.name);
        }
        let page = render();
        for spec in super::super::ROWS.iter().filter(|spec| spec.last_name() != "help") {
            let name = spec.name.replace('|', " ").to_ascii_uppercase();
            assert!(page.contains(&format!("| `{name}")), "{name}");
        }
        assert!(page.lines().all(|line| line.len() <= 400), "lines that nobody reads");
    }
}

//! The subcommands of commands that have some: their arity is checked where a command's is, and `HELP` is read from here.
//!
//! Arities are those of Redis, the name of the command included; a test asks a real server.

use crate::commands::Command;
use crate::resp::{Encoder, errors};

/// All there is to know of a subcommand without running it.
#[derive(Debug)]
pub struct Subcommand {
    /// In lower case.
    pub name: &'static str,
    /// Arguments with both names; negative means at least that many.
    pub arity: i8,
    /// What follows the name, as `HELP` shows it.
    pub operands: &'static str,
    /// One line for people.
    pub summary: &'static str,
}

const fn row(name: &'static str, arity: i8, operands: &'static str, summary: &'static str) -> Subcommand {
    Subcommand { name, arity, operands, summary }
}

const HELP: Subcommand = row("help", 2, "", "Print this help.");

static CLIENT: &[Subcommand] = &[
    row("getname", 2, "", "Answer the name of this connection."),
    row("id", 2, "", "Answer the number of this connection."),
    row("info", 2, "", "Describe this connection."),
    row(
        "kill",
        -3,
        "<ip:port> | <option> <value> ...",
        "Close connections: ADDR, LADDR, ID, TYPE, USER, SKIPME.",
    ),
    row("list", -2, "[TYPE (NORMAL|MASTER|REPLICA|PUBSUB) | ID <id> ...]", "Describe all connections."),
    row("no-evict", 3, "(ON|OFF)", "Accepted: connections are not evicted."),
    row("no-touch", 3, "(ON|OFF)", "Accepted: reading leaves no trace."),
    row("reply", 3, "(ON|OFF|SKIP)", "Send replies, none, or none to the next command."),
    row("setinfo", 4, "(LIB-NAME|LIB-VER) <value>", "Tell what library is used."),
    row("setname", 3, "<name>", "Name this connection."),
    HELP,
];

static COMMAND: &[Subcommand] = &[
    row("count", 2, "", "How many commands there are."),
    row("docs", -2, "[<name> ...]", "Describe commands for people."),
    row("getkeys", -4, "<command> ...", "Which of the arguments are keys."),
    row("info", -2, "[<name> ...]", "Describe commands for programs."),
    row("list", -2, "[FILTERBY (MODULE|ACLCAT|PATTERN) <value>]", "The names of the commands."),
    HELP,
];

static CONFIG: &[Subcommand] = &[
    row("get", -3, "<pattern> ...", "Settings and their values."),
    row("resetstat", 2, "", "Begin to count anew what INFO tells."),
    row("rewrite", 2, "", "Refused: settings are kept by whoever starts the server."),
    row("set", -4, "<setting> <value> ...", "Change settings; all or none."),
    HELP,
];

/// The subcommands of a command; none if it has no such.
pub fn subcommands(command: Command) -> &'static [Subcommand] {
    match command {
        Command::Client => CLIENT,
        Command::CommandInfo => COMMAND,
        Command::Config => CONFIG,
        _ => &[],
    }
}

/// Why so many arguments, the first after the command's name being `name`, are no subcommand; nothing if they are one or
/// the command has none.
pub fn refuse_subcommand(command: Command, name: Option<&[u8]>, argument_count: usize) -> Option<Vec<u8>> {
    let (rows, name) = (subcommands(command), name?);
    if rows.is_empty() {
        return None;
    }
    let container = command.spec().name;
    let Some(found) = rows.iter().find(|row| name.eq_ignore_ascii_case(row.name.as_bytes())) else {
        return Some(errors::unknown_subcommand(container, name));
    };
    let bound = usize::from(found.arity.unsigned_abs());
    let fits = if found.arity < 0 { argument_count >= bound } else { argument_count == bound };
    (!fits).then(|| errors::wrong_arity(&format!("{container}|{}", found.name)).into_bytes())
}

/// Writes what `HELP` answers, in the form of Redis.
pub fn encode_help(command: Command, encoder: &mut Encoder<'_>) {
    let rows = subcommands(command);
    encoder.array(1 + 2 * rows.len());
    let container = command.spec().name.to_ascii_uppercase();
    encoder.simple(format!("{container} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    for row in rows {
        encoder.simple(format!("{} {}", row.name.to_ascii_uppercase(), row.operands).trim_end());
        encoder.simple(format!("    {}", row.summary));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused() {
        let cases = [
            (Command::Get, Some("a"), 2, None),
            (Command::Client, None, 1, None),
            (Command::Client, Some("ID"), 2, None),
            (Command::Client, Some("id"), 3, Some("ERR wrong number of arguments for 'client|id' command")),
            (
                Command::Client,
                Some("KILL"),
                2,
                Some("ERR wrong number of arguments for 'client|kill' command"),
            ),
            (Command::Client, Some("kill"), 9, None),
            (Command::Config, Some("Foo"), 2, Some("ERR unknown subcommand 'Foo'. Try CONFIG HELP.")),
            (Command::CommandInfo, None, 1, None),
        ];
        for (command, name, count, expected) in cases {
            let refused = refuse_subcommand(command, name.map(str::as_bytes), count);
            let refused = refused.map(|text| String::from_utf8(text).expect("ours is text"));
            assert_eq!(refused.as_deref(), expected, "{command:?} {name:?} {count}");
        }
    }
}

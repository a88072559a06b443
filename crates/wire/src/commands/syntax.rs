//! The arguments of a command, read from the line people read: `key [EX seconds | PERSIST]`.
//!
//! ```text
//!   UPPER        a word as it stands            lower        a value
//!   UPPER lower  a value behind its word        [ ... ]      may be left out
//!   a | b        one of them                    < ... >      belongs together
//!   a [a ...]    one or more                    < ... > ...  one or more
//! ```

use crate::resp::Encoder;

/// One argument, as `COMMAND DOCS` describes it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Argument {
    /// The word itself, or what the value is called.
    name: String,
    kind: Kind,
    /// The word in front of the value.
    token: Option<String>,
    optional: bool,
    multiple: bool,
    /// Where it comes several times, the word in front of it does too.
    repeats_token: bool,
    /// The parts of a choice or block.
    arguments: Vec<Argument>,
}

/// What is written in place of the argument.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Kind {
    #[default]
    String,
    Integer,
    Key,
    Pattern,
    UnixTime,
    PureToken,
    OneOf,
    Block,
}

impl Kind {
    fn of_value(name: &str) -> Kind {
        match name {
            "key" => Kind::Key,
            "pattern" => Kind::Pattern,
            "unix-time-seconds" | "unix-time-milliseconds" => Kind::UnixTime,
            "seconds" | "milliseconds" | "increment" | "decrement" | "delta" | "min" | "max" | "version"
            | "epoch" | "sequence" | "count" | "index" | "ttl" | "frequency" | "protover" | "client-id"
            | "cursor" | "slot" | "numreplicas" | "timeout" | "lowerbound" | "upperbound" => Kind::Integer,
            _ => Kind::String,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::String => "string",
            Kind::Integer => "integer",
            Kind::Key => "key",
            Kind::Pattern => "pattern",
            Kind::UnixTime => "unix-time",
            Kind::PureToken => "pure-token",
            Kind::OneOf => "oneof",
            Kind::Block => "block",
        }
    }
}

/// Reads the notation above. The table is ours, so there is nothing to refuse; a test reads every row of it.
pub fn parse(syntax: &str) -> Vec<Argument> {
    let spaced = ["[", "]", "<", ">"]
        .iter()
        .fold(syntax.to_owned(), |text, bracket| text.replace(bracket, &format!(" {bracket} ")));
    let words: Vec<&str> = spaced.split_whitespace().collect();
    Parser { words: &words }.sequence()
}

struct Parser<'w> {
    words: &'w [&'w str],
}

impl Parser<'_> {
    fn next(&mut self) -> Option<&str> {
        let (word, rest) = self.words.split_first()?;
        self.words = rest;
        Some(word)
    }

    fn takes(&mut self, word: &str) -> bool {
        let is_next = self.words.first() == Some(&word);
        if is_next {
            self.next();
        }
        is_next
    }

    /// Arguments one after the other, up to what ends them.
    fn sequence(&mut self) -> Vec<Argument> {
        let mut arguments: Vec<Argument> = Vec::new();
        while !matches!(self.words.first(), None | Some(&"|" | &"]" | &">" | &"...")) {
            if self.takes("[") {
                let (inner, repeats) = self.alternatives();
                match repeats {
                    true => repeat(&mut arguments, inner),
                    false => arguments.push(Argument { optional: true, ..inner }),
                }
            } else {
                arguments.push(self.one());
            }
        }
        arguments
    }

    /// A word, a word with its values, a value, or a group in `<>`.
    fn one(&mut self) -> Argument {
        if self.takes("<") {
            let (inner, _) = self.alternatives();
            return Argument { multiple: self.takes("..."), ..inner };
        }
        let word = self.next().unwrap_or_default().to_owned();
        if word.bytes().any(|byte| byte.is_ascii_lowercase()) {
            return Argument { kind: Kind::of_value(&word), name: word, ..Argument::default() };
        }
        let name = word.to_ascii_lowercase();
        let values = match self.words.first() {
            Some(&"<") => vec![self.one()],
            Some(next) if next.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-') => {
                self.sequence()
            }
            _ => Vec::new(),
        };
        match values.len() {
            0 => Argument { name, kind: Kind::PureToken, token: Some(word), ..Argument::default() },
            _ => Argument { token: Some(word), ..block(name, values) },
        }
    }

    /// What stands in brackets, whose end is taken too, and whether it is what comes before, again.
    fn alternatives(&mut self) -> (Argument, bool) {
        let mut choices = Vec::new();
        loop {
            let choice = self.sequence();
            choices.push(block(joined(&choice), choice));
            if !self.takes("|") {
                break;
            }
        }
        let repeats = self.takes("...");
        self.next();
        match choices.len() {
            1 => (choices.remove(0), repeats),
            _ => {
                let name = joined(&choices);
                (Argument { name, kind: Kind::OneOf, arguments: choices, ..Argument::default() }, repeats)
            }
        }
    }
}

/// The last arguments, which `again` names once more, may come any number of times.
fn repeat(arguments: &mut Vec<Argument>, again: Argument) {
    match again.kind {
        Kind::Block => {
            arguments.truncate(arguments.len().saturating_sub(again.arguments.len()));
            arguments.push(Argument { multiple: true, repeats_token: again.token.is_some(), ..again });
        }
        _ => {
            if let Some(last) = arguments.last_mut() {
                last.multiple = true;
            }
        }
    }
}

fn block(name: String, mut arguments: Vec<Argument>) -> Argument {
    match arguments.len() {
        1 => arguments.remove(0),
        _ => Argument { name, kind: Kind::Block, arguments, ..Argument::default() },
    }
}

fn joined(arguments: &[Argument]) -> String {
    let names: Vec<&str> = arguments.iter().map(|argument| argument.name.as_str()).collect();
    names.join("_")
}

/// Writes the array that `COMMAND DOCS` shows under `arguments`.
pub fn encode(arguments: &[Argument], encoder: &mut Encoder<'_>) {
    encoder.array(arguments.len());
    for argument in arguments {
        let repeats_token = (argument.repeats_token, "multiple_token");
        let flags: Vec<&str> =
            [(argument.optional, "optional"), (argument.multiple, "multiple"), repeats_token]
                .into_iter()
                .filter_map(|(is_set, name)| is_set.then_some(name))
                .collect();
        let is_key = argument.kind == Kind::Key;
        let has_parts = !argument.arguments.is_empty();
        let present = [is_key, argument.token.is_some(), !flags.is_empty(), has_parts];
        encoder.map(2 + present.into_iter().filter(|is_present| *is_present).count());
        for text in ["name", &argument.name, "type", argument.kind.name()] {
            encoder.bulk(text.as_bytes());
        }
        if is_key {
            encoder.bulk(b"key_spec_index");
            encoder.integer(0);
        }
        if let Some(token) = &argument.token {
            encoder.bulk(b"token");
            encoder.bulk(token.as_bytes());
        }
        if !flags.is_empty() {
            encoder.bulk(b"flags");
            encoder.set(flags.len());
            flags.iter().for_each(|flag| encoder.simple(flag));
        }
        if has_parts {
            encoder.bulk(b"arguments");
            encode(&argument.arguments, encoder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Argument, Kind, parse};
    use crate::commands::ROWS;

    /// Back to the notation, to see that nothing was lost.
    fn show(arguments: &[Argument]) -> String {
        arguments.iter().map(show_one).collect::<Vec<_>>().join(" ")
    }

    fn show_one(argument: &Argument) -> String {
        let choices: Vec<String> = argument.arguments.iter().map(show_one).collect();
        let value = match argument.kind {
            Kind::PureToken => String::new(),
            Kind::OneOf if argument.optional && argument.token.is_none() => choices.join(" | "),
            Kind::OneOf => format!("<{}>", choices.join(" | ")),
            Kind::Block => show(&argument.arguments),
            _ => argument.name.clone(),
        };
        let value = match (argument.multiple, argument.kind) {
            (true, Kind::OneOf) => format!("{value} ..."),
            (true, _) if argument.repeats_token => value,
            (true, _) => format!("{value} [{value} ...]"),
            (false, _) => value,
        };
        let shown = match &argument.token {
            Some(token) => format!("{token} {value}").trim_end().to_owned(),
            None => value,
        };
        let shown = if argument.repeats_token { format!("{shown} [{shown} ...]") } else { shown };
        if argument.optional { format!("[{shown}]") } else { shown }
    }

    #[test]
    fn every_row_is_read_whole() {
        for spec in ROWS {
            assert_eq!(show(&parse(spec.syntax)), spec.syntax, "{}", spec.name);
        }
    }

    #[test]
    fn parts() {
        let cases: &[(&str, &str)] = &[
            ("", ""),
            ("key", "key:key"),
            ("key [key ...]", "key:key*"),
            ("key value [key value ...]", "key_value:block*(key:key value:string)"),
            ("key [NX | XX]", "key:key nx_xx:oneof?(nx:pure-token xx:pure-token)"),
            ("[EX seconds | PERSIST]", "seconds_persist:oneof?(seconds:integer persist:pure-token)"),
            (
                "[version [AUTH username password]]",
                "version_auth:block?(version:integer auth:block?(username:string password:string))",
            ),
            ("<ON | OFF>", "on_off:oneof(on:pure-token off:pure-token)"),
            ("[ID client-id [client-id ...]]", "client-id:integer?*"),
            ("[DIM name value [DIM name value ...]]", "dim:block?*(name:string value:string)"),
        ];
        fn tell(arguments: &[Argument]) -> String {
            let one = |argument: &Argument| {
                let parts = match argument.arguments.as_slice() {
                    [] => String::new(),
                    parts => format!("({})", tell(parts)),
                };
                let optional = if argument.optional { "?" } else { "" };
                let multiple = if argument.multiple { "*" } else { "" };
                format!("{}:{}{optional}{multiple}{parts}", argument.name, argument.kind.name())
            };
            arguments.iter().map(one).collect::<Vec<_>>().join(" ")
        }
        for (syntax, expected) in cases {
            assert_eq!(tell(&parse(syntax)), *expected, "{syntax}");
        }
    }
}

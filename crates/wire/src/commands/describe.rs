//! A row as `COMMAND INFO`, `COMMAND DOCS` and `HELP` show it.

use super::{Command, CommandSpec, KeyUse, syntax};
use crate::resp::Encoder;

impl CommandSpec {
    /// Writes the ten fields of `COMMAND INFO`.
    pub fn encode_info(&self, encoder: &mut Encoder<'_>) {
        encoder.array(10);
        encoder.bulk(self.name.as_bytes());
        encoder.integer(self.arity.into());
        encode_names(encoder, self.flags.names());
        for place in [self.keys.first, self.keys.last, self.keys.step] {
            encoder.integer(place.into());
        }
        encode_names(encoder, self.categories().names());
        encoder.set(self.tips.len());
        self.tips.iter().for_each(|tip| encoder.bulk(tip.as_bytes()));
        self.encode_key_specification(encoder);
        encoder.set(self.subcommands().len());
        self.subcommands().iter().for_each(|spec| spec.encode_info(encoder));
    }

    /// Where the keys are, in the general form of Redis 7: from an index, a range.
    fn encode_key_specification(&self, encoder: &mut Encoder<'_>) {
        if self.keys.first == 0 {
            return encoder.set(0);
        }
        let note = match self.command {
            Command::Set => Some("RW and ACCESS due to the optional `GET` argument"),
            Command::GetEx => Some("RW and UPDATE because it changes the TTL"),
            _ => None,
        };
        encoder.set(1);
        encoder.map(3 + usize::from(note.is_some()));
        if let Some(note) = note {
            encoder.bulk(b"notes");
            encoder.bulk(note.as_bytes());
        }
        encoder.bulk(b"flags");
        encode_names(encoder, self.key_use.names());
        let last = if self.keys.last < 0 { self.keys.last } else { self.keys.last - self.keys.first };
        encode_search(encoder, "begin_search", "index", &[("index", self.keys.first)]);
        encode_search(
            encoder,
            "find_keys",
            "range",
            &[("lastkey", last), ("keystep", self.keys.step), ("limit", 0)],
        );
    }

    /// Writes the name and the fields of `COMMAND DOCS`: one pair of the map that command answers.
    pub fn encode_docs(&self, encoder: &mut Encoder<'_>) {
        let (arguments, subcommands) = (syntax::parse(self.syntax), self.subcommands());
        encoder.bulk(self.name.as_bytes());
        encoder.map(3 + usize::from(!arguments.is_empty()) + usize::from(!subcommands.is_empty()));
        for text in ["summary", self.summary, "since", self.since, "group", self.group] {
            encoder.bulk(text.as_bytes());
        }
        if !arguments.is_empty() {
            encoder.bulk(b"arguments");
            syntax::encode(&arguments, encoder);
        }
        if !subcommands.is_empty() {
            encoder.bulk(b"subcommands");
            encoder.map(subcommands.len());
            subcommands.iter().for_each(|spec| spec.encode_docs(encoder));
        }
    }

    /// What a call with these arguments does to its keys. Only SET depends on them: without GET it writes and does
    /// not look.
    pub fn key_use_of<'b>(&self, arguments: impl Iterator<Item = &'b [u8]>) -> KeyUse {
        let mut options = arguments.skip(3);
        match self.command {
            Command::Set if options.any(|word| word.eq_ignore_ascii_case(b"get")) => {
                KeyUse::RW.with(KeyUse::ACCESS, true).with(KeyUse::UPDATE, true)
            }
            Command::Set => KeyUse::OW.with(KeyUse::UPDATE, true),
            _ => self.key_use,
        }
    }
}

impl KeyUse {
    /// Writes the names of what is done.
    pub fn encode(self, encoder: &mut Encoder<'_>) {
        encode_names(encoder, self.names());
    }
}

/// Answers the `HELP` of a container: a line for each subcommand with its arguments, and one that says what it does.
pub fn encode_help(container: &CommandSpec, encoder: &mut Encoder<'_>) {
    let subcommands = container.subcommands();
    encoder.array(1 + 2 * subcommands.len());
    let name = container.name.to_ascii_uppercase();
    encoder.simple(format!("{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    // HELP itself comes last.
    let (help, others): (Vec<_>, Vec<_>) = subcommands.iter().partition(|spec| spec.last_name() == "help");
    for spec in others.into_iter().chain(help) {
        encoder.simple(format!("{} {}", spec.last_name().to_ascii_uppercase(), spec.syntax).trim_end());
        encoder.simple(format!("    {}", spec.summary));
    }
}

fn encode_names(encoder: &mut Encoder<'_>, names: impl Iterator<Item = &'static str> + Clone) {
    encoder.set(names.clone().count());
    names.for_each(|name| encoder.simple(name));
}

fn encode_search(encoder: &mut Encoder<'_>, title: &str, kind: &str, numbers: &[(&str, i8)]) {
    encoder.bulk(title.as_bytes());
    encoder.map(2);
    for text in ["type", kind, "spec"] {
        encoder.bulk(text.as_bytes());
    }
    encoder.map(numbers.len());
    for (name, number) in numbers {
        encoder.bulk(name.as_bytes());
        encoder.integer((*number).into());
    }
}

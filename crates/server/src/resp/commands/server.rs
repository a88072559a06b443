//! COMMAND and CONFIG: what the server can do and how it is set.

use std::sync::atomic::Ordering;

use quipu_wire::commands::{COMMANDS, Command, CommandSpec, lookup};
use quipu_wire::glob::matches_ignoring_case;
use quipu_wire::resp::{Arguments, Encoder, errors};
use quipu_wire::subcommands::encode_help;

use super::{Complaint, is_option};
use crate::resp::Shared;
use crate::resp::admission::KEEP_ALIVE;
use crate::resp::inbox::Message;

/// Parameters that Redis does not let anyone set, not even to what they are.
const IMMUTABLE: [&str; 2] = ["databases", "io-threads"];

/// Answers COMMAND and its subcommands.
pub fn command(arguments: Arguments<'_, '_>, encoder: &mut Encoder<'_>) -> Result<(), Complaint> {
    let (subcommand, operands) =
        (arguments.get(1).unwrap_or_default().to_ascii_lowercase(), arguments.tail(2));
    match (subcommand.as_slice(), operands.len()) {
        _ if arguments.len() == 1 => all(encoder),
        (b"info", 0) => all(encoder),
        (b"count", _) => encoder.integer(COMMANDS.len() as i64),
        (b"info", _) => {
            encoder.array(operands.len());
            for name in operands.iter() {
                match lookup(name) {
                    Some(spec) => spec.encode_info(encoder),
                    None => encoder.null(),
                }
            }
        }
        (b"docs", count) => {
            let asked: Vec<&CommandSpec> = match count {
                0 => COMMANDS.iter().collect(),
                _ => operands.iter().filter_map(lookup).collect(),
            };
            encoder.map(asked.len());
            asked.iter().for_each(|spec| spec.encode_docs(encoder));
        }
        (b"list", _) => list(operands, encoder)?,
        (b"getkeys", _) => keys(operands, encoder)?,
        (b"help", _) => encode_help(Command::CommandInfo, encoder),
        _ => return Err(errors::unknown_subcommand("command", arguments.get(1).unwrap_or_default()).into()),
    }
    Ok(())
}

fn all(encoder: &mut Encoder<'_>) {
    encoder.array(COMMANDS.len());
    COMMANDS.iter().for_each(|spec| spec.encode_info(encoder));
}

fn list(operands: Arguments<'_, '_>, encoder: &mut Encoder<'_>) -> Result<(), Complaint> {
    let names: Vec<&str> = match operands.first() {
        None if operands.is_empty() => COMMANDS.iter().map(|spec| spec.name).collect(),
        Some([by, kind, value]) if operands.len() == 3 && is_option(by, "filterby") => {
            let admits = |spec: &&CommandSpec| match kind.to_ascii_lowercase().as_slice() {
                b"pattern" => Ok(matches_ignoring_case(value, spec.name.as_bytes())),
                b"aclcat" => {
                    let is_value = |name: &str| name.as_bytes()[1..].eq_ignore_ascii_case(value);
                    Ok(spec.categories().names().any(is_value))
                }
                b"module" => Ok(false),
                _ => Err(Complaint::from(errors::SYNTAX)),
            };
            let mut names = Vec::new();
            for spec in COMMANDS {
                if admits(&spec)? {
                    names.push(spec.name);
                }
            }
            names
        }
        _ => return Err(errors::SYNTAX.into()),
    };
    encoder.array(names.len());
    names.iter().for_each(|name| encoder.bulk(name.as_bytes()));
    Ok(())
}

fn keys(command: Arguments<'_, '_>, encoder: &mut Encoder<'_>) -> Result<(), Complaint> {
    let spec = lookup(command.name()).ok_or("ERR Invalid command specified")?;
    if spec.keys.first == 0 {
        return Err("ERR The command has no key arguments".into());
    }
    if !spec.accepts(command.len()) {
        return Err("ERR Invalid number of arguments specified for command".into());
    }
    let positions: Vec<usize> = spec.key_positions(command.len()).collect();
    encoder.array(positions.len());
    positions.iter().for_each(|at| encoder.bulk(command.get(*at).unwrap_or_default()));
    Ok(())
}

/// Answers CONFIG GET, SET, RESETSTAT and REWRITE.
pub fn config(
    shared: &Shared,
    arguments: Arguments<'_, '_>,
    encoder: &mut Encoder<'_>,
) -> Result<(), Complaint> {
    let (subcommand, operands) =
        (arguments.get(1).unwrap_or_default().to_ascii_lowercase(), arguments.tail(2));
    match subcommand.as_slice() {
        b"get" => {
            let parameters = parameters(shared);
            let found = asked(&parameters, operands);
            encoder.map(found.len());
            for (name, value) in found {
                encoder.bulk(&name);
                encoder.bulk(value.as_bytes());
            }
        }
        b"set" if !operands.len().is_multiple_of(2) => return Err(errors::SYNTAX.into()),
        b"set" => {
            set(shared, operands)?;
            encoder.ok();
        }
        b"resetstat" => {
            shared.statistics.reset();
            encoder.ok();
        }
        b"rewrite" => return Err("ERR The server is running without a config file".into()),
        b"help" => encode_help(Command::Config, encoder),
        _ => return Err(errors::unknown_subcommand("config", arguments.get(1).unwrap_or_default()).into()),
    }
    Ok(())
}

/// The parameters that any of the patterns asks for, each once. A name that is no pattern is answered as it was spelled.
fn asked<'p>(
    parameters: &'p [(&'static str, String)],
    patterns: Arguments<'_, '_>,
) -> Vec<(Vec<u8>, &'p String)> {
    let mut found: Vec<(Vec<u8>, &String)> = Vec::new();
    for pattern in patterns.iter() {
        let is_pattern = pattern.iter().any(|byte| b"[*?".contains(byte));
        for (name, value) in parameters {
            let name = name.as_bytes();
            let is_meant = if is_pattern {
                matches_ignoring_case(pattern, name)
            } else {
                pattern.eq_ignore_ascii_case(name)
            };
            if is_meant && !found.iter().any(|(known, _)| known.eq_ignore_ascii_case(name)) {
                found.push((if is_pattern { name } else { pattern }.to_vec(), value));
            }
        }
    }
    found
}

/// The parameters of Redis that clients and load generators ask for, with the values that describe this server.
fn parameters(shared: &Shared) -> Vec<(&'static str, String)> {
    let options = &shared.options;
    let sync_policy = match options.durability.as_str() {
        "sync" => "always",
        "none" => "no",
        _ => "everysec",
    };
    vec![
        ("appendfsync", sync_policy.into()),
        ("appendonly", "yes".into()),
        ("bind", shared.address.ip().to_string()),
        ("databases", "1".into()),
        ("io-threads", shared.inboxes.len().to_string()),
        ("maxclients", shared.connections_max.load(Ordering::Relaxed).to_string()),
        ("maxmemory", "0".into()),
        ("maxmemory-policy", "noeviction".into()),
        ("notify-keyspace-events", String::new()),
        ("port", shared.address.port().to_string()),
        ("proto-max-bulk-len", options.limits.argument_bytes.to_string()),
        ("save", String::new()),
        ("tcp-keepalive", KEEP_ALIVE.as_secs().to_string()),
        ("timeout", (shared.idle_ms.load(Ordering::Relaxed) / 1000).to_string()),
    ]
}

/// All or none: every pair is checked before one is set. What cannot be changed may be set to what it is.
fn set(shared: &Shared, operands: Arguments<'_, '_>) -> Result<(), Complaint> {
    let parameters = parameters(shared);
    let (mut connections_max, mut idle_s) = (None, None);
    let mut seen: Vec<&str> = Vec::new();
    let mut words = operands.iter();
    while let (Some(word), Some(value)) = (words.next(), words.next()) {
        let found = parameters.iter().find(|(name, _)| word.eq_ignore_ascii_case(name.as_bytes()));
        let Some((name, current)) = found else {
            let unknown = "ERR Unknown option or number of arguments for CONFIG SET - '";
            return Err(errors::quoting(unknown, word, "'").into());
        };
        // Redis names what cannot be set as it was spelled, and what was set wrongly by its name.
        let failed_as = |name: &[u8], why: &str| {
            let failed = "ERR CONFIG SET failed (possibly related to argument '";
            Complaint::from(errors::quoting(failed, name, &format!("') - {why}")))
        };
        let failed = |why: &str| failed_as(name.as_bytes(), why);
        if seen.contains(name) {
            return Err(failed_as(word, "duplicate parameter"));
        }
        seen.push(name);
        let number = || {
            let number = str::from_utf8(value).ok().and_then(|text| text.parse::<u64>().ok());
            number.ok_or_else(|| failed("argument couldn't be parsed into an integer"))
        };
        if *name == "maxclients" {
            let number = number()?;
            if !(1..=u64::from(u32::MAX)).contains(&number) {
                return Err(failed("argument must be between 1 and 4294967295 inclusive"));
            }
            connections_max = Some(number as usize);
        } else if *name == "timeout" {
            let number = number()?;
            if number > i32::MAX as u64 {
                return Err(failed("argument must be between 0 and 2147483647 inclusive"));
            }
            idle_s = Some(number);
        } else if IMMUTABLE.contains(name) || value != current.as_bytes() {
            return Err(failed_as(word, "can't set immutable config"));
        }
    }
    if let Some(number) = connections_max {
        shared.connections_max.store(number, Ordering::Relaxed);
    }
    if let Some(seconds) = idle_s {
        shared.idle_ms.store(seconds * 1000, Ordering::Relaxed);
        // They sleep for as long as nobody sends anything.
        shared.inboxes.iter().for_each(|inbox| inbox.push(Message::Look));
    }
    Ok(())
}

//! COMMAND: what the server can do.

use quipu_wire::commands::{Command, CommandSpec, ROWS, commands, lookup, lookup_whole};
use quipu_wire::glob::matches_ignoring_case;
use quipu_wire::resp::{Arguments, Encoder, errors};

use super::{Complaint, is_option};

/// Answers COMMAND or a subcommand of it.
pub fn answer(
    command: Command,
    operands: Arguments<'_, '_>,
    encoder: &mut Encoder<'_>,
) -> Result<(), Complaint> {
    match command {
        Command::CommandCount => encoder.integer(commands().count() as i64),
        Command::CommandInfo if !operands.is_empty() => {
            encoder.array(operands.len());
            for name in operands.iter() {
                match lookup_whole(name) {
                    Some(spec) => spec.encode_info(encoder),
                    None => encoder.null(),
                }
            }
        }
        Command::CommandDocs => {
            let asked: Vec<&CommandSpec> = match operands.is_empty() {
                true => commands().collect(),
                false => operands.iter().filter_map(lookup_whole).collect(),
            };
            encoder.map(asked.len());
            asked.iter().for_each(|spec| spec.encode_docs(encoder));
        }
        Command::CommandList => list(operands, encoder)?,
        Command::CommandGetKeys => {
            let (_, positions) = keys(operands)?;
            encoder.array(positions.len());
            positions.iter().for_each(|at| encoder.bulk(operands.get(*at).unwrap_or_default()));
        }
        Command::CommandGetKeysAndFlags => {
            let (spec, positions) = keys(operands)?;
            encoder.array(positions.len());
            for at in positions {
                encoder.array(2);
                encoder.bulk(operands.get(at).unwrap_or_default());
                spec.key_use_of(operands.iter()).encode(encoder);
            }
        }
        _ => {
            encoder.array(commands().count());
            commands().for_each(|spec| spec.encode_info(encoder));
        }
    }
    Ok(())
}

/// The names, of subcommands too.
fn list(operands: Arguments<'_, '_>, encoder: &mut Encoder<'_>) -> Result<(), Complaint> {
    let names: Vec<&str> = match operands.first() {
        None if operands.is_empty() => ROWS.iter().map(|spec| spec.name).collect(),
        Some([by, kind, value]) if operands.len() == 3 && is_option(by, "filterby") => {
            let is_category = |name: &str| name.as_bytes()[1..].eq_ignore_ascii_case(value);
            let admits = |spec: &&CommandSpec| match kind.to_ascii_lowercase().as_slice() {
                b"pattern" => Ok(matches_ignoring_case(value, spec.name.as_bytes())),
                b"aclcat" => Ok(spec.categories().names().any(is_category)),
                b"module" => Ok(false),
                _ => Err(Complaint::from(errors::SYNTAX)),
            };
            let mut names = Vec::new();
            for spec in ROWS {
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

/// The row of a whole command and the places of its keys.
fn keys(command: Arguments<'_, '_>) -> Result<(&'static CommandSpec, Vec<usize>), Complaint> {
    let spec = lookup(command.name()).and_then(|spec| match (spec.subcommands(), command.get(1)) {
        ([_, ..], Some(name)) => spec.subcommand(name),
        _ => Some(spec),
    });
    let spec = spec.ok_or("ERR Invalid command specified")?;
    if spec.keys.first == 0 {
        return Err("ERR The command has no key arguments".into());
    }
    if !spec.accepts(command.len()) {
        return Err("ERR Invalid number of arguments specified for command".into());
    }
    Ok((spec, spec.key_positions(command.len()).collect()))
}

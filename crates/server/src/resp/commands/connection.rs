//! Commands about the connection itself.

use quipu_wire::commands::Command;
use quipu_wire::number::parse_i64;
use quipu_wire::resp::{Arguments, Encoder, Protocol, errors};
use quipu_wire::subcommands::encode_help;

use super::{Complaint, Drafted, integer, is_option};
use crate::resp::plan::Draft;
use crate::resp::session::{Mute, Session};
use crate::resp::{REDIS_VERSION, Shared};

/// The one user there is as long as no login is configured; any password will do for it, as in Redis.
const DEFAULT_USER: &str = "default";
/// The longest name of a connection or a library: it is shown in a list, for people.
const NAME_BYTES_MAX: usize = 256;

/// PING.
pub fn ping(draft: &mut Draft, session: &Session, arguments: Arguments<'_, '_>) -> Drafted {
    match (arguments.len(), arguments.get(1)) {
        (1, _) => draft.fixed(b"+PONG\r\n"),
        (2, Some(message)) => draft.literal(session.protocol, |encoder| encoder.bulk(message)),
        _ => return Err(errors::wrong_arity("ping").into()),
    }
    Ok(())
}

/// SELECT: there is only database 0.
pub fn select(draft: &mut Draft, number: &[u8]) -> Drafted {
    match parse_i64(number).map(i32::try_from) {
        Some(Ok(0)) => draft.fixed(b"+OK\r\n"),
        Some(Ok(_)) => return Err(errors::DB_OUT_OF_RANGE.into()),
        Some(Err(_)) => return Err(errors::OUT_OF_INT_RANGE.into()),
        None => return Err(errors::NOT_AN_INTEGER.into()),
    }
    Ok(())
}

/// AUTH, while no password is configured.
pub fn authenticate(draft: &mut Draft, arguments: Arguments<'_, '_>) -> Drafted {
    match (arguments.len(), arguments.get(1)) {
        (2, _) => return Err(errors::NO_PASSWORD_CONFIGURED.into()),
        (3, Some(user)) => check_user(user)?,
        _ => return Err(errors::SYNTAX.into()),
    }
    draft.fixed(b"+OK\r\n");
    Ok(())
}

fn check_user(user: &[u8]) -> Drafted {
    if user == DEFAULT_USER.as_bytes() { Ok(()) } else { Err(errors::WRONG_PASSWORD.into()) }
}

/// HELLO: everything is checked before anything is changed.
pub fn hello(draft: &mut Draft, session: &mut Session, arguments: Arguments<'_, '_>) -> Drafted {
    let protocol = match arguments.get(1) {
        None => session.protocol,
        Some(number) => {
            let number = integer(number).map_err(|_| errors::PROTOCOL_NOT_AN_INTEGER)?;
            Protocol::from_number(number).ok_or(errors::NO_PROTOCOL)?
        }
    };
    let mut name = None;
    let options = arguments.tail(2);
    let mut at = 0;
    while let Some(option) = options.get(at) {
        let left = options.len() - at - 1;
        if is_option(option, "auth") && left >= 2 {
            check_user(options.get(at + 1).unwrap_or_default())?;
            at += 3;
        } else if is_option(option, "setname") && left >= 1 {
            name = options.get(at + 1);
            check_name(name.unwrap_or_default(), "Client names")?;
            at += 2;
        } else {
            return Err(errors::quoting("ERR Syntax error in HELLO option '", option, "'").into());
        }
    }
    if let Some(name) = name {
        session.card.profile.lock().name = name.to_vec();
    }
    session.protocol = protocol;
    let id = session.card.id as i64;
    draft.literal(protocol, |encoder| {
        encoder.map(7);
        let mut pair = |name: &str, value: &str| {
            encoder.bulk(name.as_bytes());
            encoder.bulk(value.as_bytes());
        };
        pair("server", "quipu");
        pair("version", REDIS_VERSION);
        encoder.bulk(b"proto");
        encoder.integer(protocol.number());
        encoder.bulk(b"id");
        encoder.integer(id);
        for text in ["mode", "standalone", "role", "master", "modules"] {
            encoder.bulk(text.as_bytes());
        }
        encoder.array(0);
    });
    Ok(())
}

/// The subcommands of CLIENT that concern only the connection; the others are in `client`. Says whether the subcommand
/// is one of these.
pub fn client(
    draft: &mut Draft,
    session: &mut Session,
    arguments: Arguments<'_, '_>,
) -> Result<bool, Complaint> {
    let subcommand = arguments.get(1).unwrap_or_default().to_ascii_lowercase();
    let operands = arguments.tail(2);
    let protocol = session.protocol;
    match subcommand.as_slice() {
        b"id" => {
            let id = session.card.id as i64;
            draft.literal(protocol, |encoder| encoder.integer(id));
        }
        b"getname" => {
            let name = session.card.profile.lock().name.clone();
            draft.literal(
                protocol,
                |encoder| if name.is_empty() { encoder.null() } else { encoder.bulk(&name) },
            );
        }
        b"setname" => {
            check_name(operands.name(), "Client names")?;
            session.card.profile.lock().name = operands.name().to_vec();
            draft.fixed(b"+OK\r\n");
        }
        b"setinfo" => set_info(draft, session, operands)?,
        // Nothing is evicted and reads leave no trace, so both are always on.
        b"no-evict" | b"no-touch" => {
            if !is_option(operands.name(), "on") && !is_option(operands.name(), "off") {
                return Err(errors::SYNTAX.into());
            }
            draft.fixed(b"+OK\r\n");
        }
        b"reply" => reply(draft, session, operands.name())?,
        b"help" => draft.literal(protocol, |encoder| encode_help(Command::Client, encoder)),
        _ => return Ok(false),
    }
    Ok(true)
}

fn set_info(draft: &mut Draft, session: &Session, operands: Arguments<'_, '_>) -> Drafted {
    let [attribute, value] = operands.first().unwrap_or_default();
    let mut profile = session.card.profile.lock();
    let (place, what) = if is_option(attribute, "lib-name") {
        (&mut profile.library_name, "lib-name")
    } else if is_option(attribute, "lib-ver") {
        (&mut profile.library_version, "lib-ver")
    } else {
        return Err(errors::quoting("ERR Unrecognized option '", attribute, "'").into());
    };
    check_name(value, what)?;
    *place = value.to_vec();
    draft.fixed(b"+OK\r\n");
    Ok(())
}

fn reply(draft: &mut Draft, session: &mut Session, mode: &[u8]) -> Drafted {
    if is_option(mode, "on") {
        session.mute = Mute::No;
        draft.fixed(b"+OK\r\n");
    } else if is_option(mode, "off") {
        session.mute = Mute::All;
    } else if is_option(mode, "skip") {
        // Once everything is silent there is nothing more to skip.
        if session.mute != Mute::All {
            session.mute = Mute::Next;
        }
    } else {
        return Err(errors::SYNTAX.into());
    }
    Ok(())
}

/// Names stand in one line, separated by blanks, so they have none.
fn check_name(name: &[u8], what: &str) -> Drafted {
    if name.iter().any(|byte| !(b'!'..=b'~').contains(byte)) {
        return Err(format!("ERR {what} cannot contain spaces, newlines or special characters.").into());
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(format!("ERR {what} cannot be longer than {NAME_BYTES_MAX} bytes").into());
    }
    Ok(())
}

/// TIME: seconds and microseconds.
pub fn time(shared: &Shared, encoder: &mut Encoder<'_>) {
    let now_ms = shared.clock.now_ms();
    encoder.array(2);
    encoder.bulk((now_ms / 1000).to_string().as_bytes());
    encoder.bulk((now_ms % 1000 * 1000).to_string().as_bytes());
}

//! PING, HELLO, AUTH and what else concerns the connection itself.

use quipu_wire::resp::{Arguments, Encoder, Protocol, errors};

use super::{Complaint, Drafted, integer, is_option};
use crate::resp::plan::Draft;
use crate::resp::session::Session;
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
pub fn select(draft: &mut Draft, session: &Session, number: &[u8]) -> Drafted {
    match i32::try_from(integer(number)?) {
        Ok(0) => draft.fixed(b"+OK\r\n"),
        Ok(_) if session.card.is_of_cluster => return Err(errors::SELECT_IN_CLUSTER.into()),
        Ok(_) => return Err(errors::DB_OUT_OF_RANGE.into()),
        Err(_) => return Err(errors::OUT_OF_INT_RANGE.into()),
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

/// What HELLO asks for.
pub struct Hello<'b> {
    /// The protocol to speak; none leaves it.
    pub protocol: Option<Protocol>,
    name: Option<&'b [u8]>,
}

impl<'b> Hello<'b> {
    /// Everything is checked before anything is changed.
    pub fn read(arguments: Arguments<'_, 'b>) -> Result<Hello<'b>, Complaint> {
        let protocol = match arguments.get(1) {
            None => None,
            Some(number) => {
                let number = integer(number).map_err(|_| errors::PROTOCOL_NOT_AN_INTEGER)?;
                Some(Protocol::from_number(number).ok_or(errors::NO_PROTOCOL)?)
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
        Ok(Hello { protocol, name })
    }
}

/// HELLO.
pub fn hello(draft: &mut Draft, session: &mut Session, arguments: Arguments<'_, '_>) -> Drafted {
    let Hello { protocol, name } = Hello::read(arguments)?;
    if let Some(name) = name {
        session.set_name(name);
    }
    let protocol = protocol.unwrap_or(session.protocol);
    session.protocol = protocol;
    let id = session.card.id as i64;
    let mode = session.card.mode();
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
        for text in ["mode", mode, "role", "master", "modules"] {
            encoder.bulk(text.as_bytes());
        }
        encoder.array(0);
    });
    Ok(())
}

/// Names stand in one line, separated by blanks, so they have none.
pub fn check_name(name: &[u8], what: &str) -> Drafted {
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

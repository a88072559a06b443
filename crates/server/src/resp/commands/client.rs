//! CLIENT: what a connection is called, whether it is answered, and connections looking at each other.

use std::fmt::Write as _;
use std::sync::Arc;

use quipu_wire::commands::Command;
use quipu_wire::number::parse_i64;
use quipu_wire::resp::{Arguments, Encoder, errors};

use super::connection::check_name;
use super::{Complaint, Drafted, integer, is_option};
use crate::resp::Shared;
use crate::resp::inbox::Message;
use crate::resp::plan::Draft;
use crate::resp::session::{Card, Mute, Session};

/// Subcommands that change what is agreed on with this connection. Says whether `command` is one of these.
pub fn agree(
    draft: &mut Draft,
    session: &mut Session,
    command: Command,
    arguments: Arguments<'_, '_>,
) -> Result<bool, Complaint> {
    let operand = arguments.get(2).unwrap_or_default();
    match command {
        Command::ClientSetName => {
            check_name(operand, "Client names")?;
            session.set_name(operand);
            draft.fixed(b"+OK\r\n");
        }
        Command::ClientSetInfo => {
            set_info(session, operand, arguments.get(3).unwrap_or_default())?;
            draft.fixed(b"+OK\r\n");
        }
        Command::ClientReply => reply(draft, session, operand)?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn set_info(session: &Session, attribute: &[u8], value: &[u8]) -> Drafted {
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
    Ok(())
}

fn reply(draft: &mut Draft, session: &mut Session, mode: &[u8]) -> Drafted {
    if is_option(mode, "on") {
        // Inside EXEC what SKIP has promised for the next command stays promised, as in Redis.
        if session.mute != Mute::Next {
            session.mute = Mute::No;
        }
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

/// Answers the other subcommands. `Ok(true)`: the connection itself is to be closed after the reply.
pub fn answer(
    shared: &Shared,
    session: &Session,
    command: Command,
    arguments: Arguments<'_, '_>,
    now_ms: u64,
    encoder: &mut Encoder<'_>,
) -> Result<bool, Complaint> {
    let operands = arguments.tail(2);
    match command {
        Command::ClientId => encoder.integer(session.card.id as i64),
        Command::ClientGetName => match session.card.profile.lock().name.as_slice() {
            [] => encoder.null(),
            name => encoder.bulk(name),
        },
        Command::ClientInfo => encoder.verbatim(b"txt", line(&session.card, now_ms).as_bytes()),
        Command::ClientList => {
            let wanted = listed(operands)?;
            let cards = shared.registry.all();
            let lines: String =
                cards.iter().filter(|card| wanted.admits(card)).map(|card| line(card, now_ms)).collect();
            encoder.verbatim(b"txt", lines.as_bytes());
        }
        Command::ClientKill => return kill(shared, session, operands, encoder),
        // Connections are not evicted and reads leave no trace, so both are always on.
        Command::ClientNoEvict | Command::ClientNoTouch => match operands.name() {
            mode if is_option(mode, "on") || is_option(mode, "off") => encoder.ok(),
            _ => return Err(errors::SYNTAX.into()),
        },
        _ => answer_untracked(command, arguments, encoder)?,
    }
    Ok(false)
}

/// What Redis says to a connection that is not tracked and of clients that are not blocked.
fn answer_untracked(command: Command, arguments: Arguments<'_, '_>, encoder: &mut Encoder<'_>) -> Drafted {
    let operands = arguments.tail(2);
    match command {
        Command::ClientGetRedir => encoder.integer(-1),
        Command::ClientTrackingInfo => {
            encoder.map(3);
            encoder.bulk(b"flags");
            encoder.set(1);
            encoder.bulk(b"off");
            encoder.bulk(b"redirect");
            encoder.integer(-1);
            encoder.bulk(b"prefixes");
            encoder.array(0);
        }
        Command::ClientTracking => match operands.name() {
            mode if is_option(mode, "off") && operands.len() == 1 => encoder.ok(),
            mode if is_option(mode, "on") => {
                return Err("ERR tracking is not supported: changes are not pushed to clients".into());
            }
            _ => return Err(errors::SYNTAX.into()),
        },
        Command::ClientCaching => {
            return Err(
                "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or \
                        OPTOUT mode enabled"
                    .into(),
            );
        }
        Command::ClientUnblock => {
            let is_reason = |word: &[u8]| is_option(word, "timeout") || is_option(word, "error");
            match (operands.len(), operands.get(1)) {
                (1, _) => {}
                (2, Some(reason)) if is_reason(reason) => {}
                (2, _) => return Err("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR".into()),
                _ => {
                    return Err(errors::unknown_or_wrong_arity(
                        "client",
                        arguments.get(1).unwrap_or_default(),
                    )
                    .into());
                }
            }
            integer(operands.name())?;
            encoder.integer(0);
        }
        other => return Err(errors::unknown_subcommand("client", other.spec().last_name().as_bytes()).into()),
    }
    Ok(())
}

/// One connection as CLIENT LIST shows it: the fields of Redis that mean something here, in Redis's order.
fn line(card: &Card, now_ms: u64) -> String {
    let profile = card.profile.lock();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (age_s, idle_s) = (
        now_ms.saturating_sub(card.connected_at_ms) / 1000,
        now_ms.saturating_sub(profile.last_active_ms) / 1000,
    );
    let multi = profile.transaction_commands.map_or(-1, i64::from);
    let mut line = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(
        line,
        "id={} addr={} laddr={} name={} age={age_s} idle={idle_s} flags=N db=0 sub=0 psub=0 ssub=0 multi={multi} \
         cmd={} user=default redir=-1 resp={} lib-name={} lib-ver={}",
        card.id,
        card.peer,
        card.local,
        text(&profile.name),
        profile.last_command,
        profile.protocol.number(),
        text(&profile.library_name),
        text(&profile.library_version),
    );
    line
}

/// Which connections a command is about; what is not given admits all.
#[derive(Default)]
struct Filter {
    ids: Option<Vec<i64>>,
    peer: Option<String>,
    local: Option<String>,
    /// A type or user that no connection has.
    nobody: bool,
}

impl Filter {
    fn admits(&self, card: &Card) -> bool {
        !self.nobody
            && self.ids.as_ref().is_none_or(|ids| ids.contains(&(card.id as i64)))
            && self.peer.as_ref().is_none_or(|peer| card.peer.to_string() == *peer)
            && self.local.as_ref().is_none_or(|local| card.local.to_string() == *local)
    }

    /// Replicas and subscribers are types of Redis that connections here never are.
    fn restrict_type(&mut self, name: &[u8]) -> Result<(), Complaint> {
        match name.to_ascii_lowercase().as_slice() {
            b"normal" => Ok(()),
            b"master" | b"replica" | b"slave" | b"pubsub" => {
                self.nobody = true;
                Ok(())
            }
            _ => Err(errors::quoting("ERR Unknown client type '", name, "'").into()),
        }
    }
}

fn listed(operands: Arguments<'_, '_>) -> Result<Filter, Complaint> {
    let mut filter = Filter::default();
    match (operands.name(), operands.len()) {
        (_, 0) => {}
        (word, 2) if is_option(word, "type") => filter.restrict_type(operands.get(1).unwrap_or_default())?,
        (word, 2..) if is_option(word, "id") => {
            let id = |text| parse_i64(text).ok_or("ERR Invalid client ID");
            filter.ids = Some(operands.tail(1).iter().map(id).collect::<Result<_, _>>()?);
        }
        _ => return Err(errors::SYNTAX.into()),
    }
    Ok(filter)
}

fn kill(
    shared: &Shared,
    session: &Session,
    operands: Arguments<'_, '_>,
    encoder: &mut Encoder<'_>,
) -> Result<bool, Complaint> {
    let (filter, skip_me, by_address) = match operands.len() {
        1 => {
            let peer = Some(String::from_utf8_lossy(operands.name()).into_owned());
            (Filter { peer, ..Filter::default() }, false, true)
        }
        _ => {
            let (filter, skip_me) = killed(operands)?;
            (filter, skip_me, false)
        }
    };
    let is_me = |card: &Arc<Card>| card.id == session.card.id;
    let condemned: Vec<Arc<Card>> = shared
        .registry
        .all()
        .into_iter()
        .filter(|card| filter.admits(card) && !(skip_me && is_me(card)))
        .collect();
    for card in condemned.iter().filter(|card| !is_me(card)) {
        shared.inboxes[card.event_loop].push(Message::Close(card.token));
    }
    match (by_address, condemned.len()) {
        (true, 0) => return Err("ERR No such client".into()),
        (true, _) => encoder.ok(),
        (false, count) => encoder.integer(count as i64),
    }
    Ok(condemned.iter().any(is_me))
}

/// Reads `ID id`, `ADDR address` and so on; whether the caller is spared is told beside.
fn killed(operands: Arguments<'_, '_>) -> Result<(Filter, bool), Complaint> {
    let (mut filter, mut skip_me) = (Filter::default(), true);
    let mut words = operands.iter();
    while let Some(word) = words.next() {
        let value = words.next().ok_or(errors::SYNTAX)?;
        let text = || String::from_utf8_lossy(value).into_owned();
        match word.to_ascii_lowercase().as_slice() {
            b"id" => {
                let id = parse_i64(value).filter(|id| *id > 0);
                filter.ids = Some(vec![id.ok_or("ERR client-id should be greater than 0")?]);
            }
            b"addr" => filter.peer = Some(text()),
            b"laddr" => filter.local = Some(text()),
            b"type" => filter.restrict_type(value)?,
            b"user" if value == b"default" => {}
            b"user" => return Err(errors::quoting("ERR No such user '", value, "'").into()),
            b"skipme" if is_option(value, "yes") => skip_me = true,
            b"skipme" if is_option(value, "no") => skip_me = false,
            _ => return Err(errors::SYNTAX.into()),
        }
    }
    Ok((filter, skip_me))
}

//! CLIENT INFO, LIST and KILL: connections looking at each other.

use std::fmt::Write as _;
use std::sync::Arc;

use quipu_wire::number::parse_i64;
use quipu_wire::resp::{Arguments, Encoder, errors};

use super::{Complaint, is_option};
use crate::resp::Shared;
use crate::resp::inbox::Message;
use crate::resp::session::{Card, Session};

/// Answers the subcommand, or says that there is no such one. `Ok(true)`: the connection itself is to be closed after
/// the reply.
pub fn answer(
    shared: &Shared,
    session: &Session,
    arguments: Arguments<'_, '_>,
    now_ms: u64,
    encoder: &mut Encoder<'_>,
) -> Result<bool, Complaint> {
    let subcommand = arguments.get(1).unwrap_or_default();
    let operands = arguments.tail(2);
    if is_option(subcommand, "info") {
        encoder.verbatim(b"txt", line(&session.card, now_ms).as_bytes());
    } else if is_option(subcommand, "list") {
        let wanted = listed(operands)?;
        let cards = shared.registry.all();
        let lines: String =
            cards.iter().filter(|card| wanted.admits(card)).map(|card| line(card, now_ms)).collect();
        encoder.verbatim(b"txt", lines.as_bytes());
    } else if is_option(subcommand, "kill") {
        return kill(shared, session, operands, encoder);
    } else {
        return Err(errors::unknown_subcommand("client", subcommand).into());
    }
    Ok(false)
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

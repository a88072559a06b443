//! Commands whose answer is known at once, because it is about the server or the connection and not about counters.

use quipu_wire::commands::{Command, encode_help, lookup};
use quipu_wire::resp::{Arguments, Encoder, errors};

use super::Shared;
use super::commands::{
    Complaint, Drafted, client, cluster, config, connection, diagnose, info, introspect, own,
};
use super::interpret::Interpreter;
use super::session::Card;

impl Interpreter<'_> {
    /// Drafts the answer. Says whether the connection ends with it.
    pub(super) fn draft_answer(
        &mut self,
        command: Command,
        arguments: Arguments<'_, '_>,
    ) -> Result<bool, Complaint> {
        let (draft, session) = (&mut *self.draft, &mut *self.session);
        let operand = arguments.get(1).unwrap_or_default();
        match command {
            Command::Ping => connection::ping(draft, session, arguments)?,
            Command::Select => connection::select(draft, session, operand)?,
            Command::Auth => connection::authenticate(draft, arguments)?,
            Command::Hello => connection::hello(draft, session, arguments)?,
            Command::Echo => draft.literal(session.protocol, |encoder| encoder.bulk(operand)),
            Command::Unwatch => {
                session.watched.forget();
                draft.fixed(b"+OK\r\n");
            }
            Command::ReadOnly | Command::ReadWrite
                if session.card.is_of_cluster || self.shared.counters.has_older() =>
            {
                session.looks_anywhere = command == Command::ReadOnly;
                draft.fixed(b"+OK\r\n");
            }
            other if other.spec().container_name() == "client" && other != Command::ClientHelp => {
                return self.client(other, arguments);
            }
            other => {
                let (shared, card) = (self.shared, &*session.card);
                draft.try_literal(session.protocol, |encoder| {
                    about_server(shared, card, other, arguments, encoder)
                })?;
            }
        }
        Ok(false)
    }

    fn client(&mut self, command: Command, arguments: Arguments<'_, '_>) -> Result<bool, Complaint> {
        if client::agree(self.draft, self.session, command, arguments)? {
            return Ok(false);
        }
        self.session.publish(self.now_ms);
        let (shared, session, now_ms) = (self.shared, &*self.session, self.now_ms);
        self.draft.try_literal(session.protocol, |encoder| {
            client::answer(shared, session, command, arguments, now_ms, encoder)
        })
    }
}

/// Answers that depend on nothing of the connection but where it came in.
fn about_server(
    shared: &Shared,
    card: &Card,
    command: Command,
    arguments: Arguments<'_, '_>,
    encoder: &mut Encoder<'_>,
) -> Drafted {
    let spec = command.spec();
    match spec.container_name() {
        container if spec.name.ends_with("|help") && command != Command::ClusterHelp => {
            encode_help(lookup(container.as_bytes()).unwrap_or(spec), encoder);
        }
        "command" => introspect::answer(command, arguments.tail(2), encoder)?,
        "config" => config::answer(shared, card, command, arguments.tail(2), encoder)?,
        "latency" | "slowlog" | "memory" => diagnose::answer(shared, command, arguments, encoder)?,
        "wait" => cluster::wait(shared.map.as_deref(), arguments, encoder)?,
        "cluster" | "asking" | "readonly" | "readwrite" | "role" => {
            let map = shared.map.as_deref().filter(|_| card.is_of_cluster);
            cluster::answer(map, command, arguments, shared.clock.now_ms(), encoder)?;
        }
        "q.policy" => own::answer_policies(&*shared.counters, arguments.get(2), encoder),
        "info" => encoder.verbatim(b"txt", info::text(shared, card, arguments.tail(1)).as_bytes()),
        "time" => connection::time(shared, encoder),
        other => return Err(errors::unknown_command(other.as_bytes(), std::iter::empty()).into()),
    }
    Ok(())
}

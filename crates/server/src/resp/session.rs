//! What a connection has agreed on, and the list of all connections.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mio::Token;
use parking_lot::Mutex;
use quipu_counting::Origin;
use quipu_wire::resp::{Arguments, Encoder, Protocol};

use super::transaction::Staged;
use super::watch::Watched;

/// The most commands of one transaction: they are executed as one, with their partitions locked.
pub const TRANSACTION_COMMANDS_MAX: u32 = 65_536;
/// The most bytes of one transaction while it is collected.
pub const TRANSACTION_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The state of one connection that commands read and change.
#[derive(Debug)]
pub struct Session {
    /// What others may know of this connection.
    pub card: Arc<Card>,
    /// What replies look like.
    pub protocol: Protocol,
    /// The transaction that is being collected.
    pub transaction: Option<Transaction>,
    /// The transaction that is being executed in steps.
    pub staged: Option<Box<Staged>>,
    /// The keys that must stay as they are for the next transaction to run.
    pub watched: Watched,
    /// Whether replies are sent.
    pub mute: Mute,
    /// READONLY: whoever holds a counter may be asked to look at it.
    pub looks_anywhere: bool,
    /// Partitions of which looks were sent to another node.
    pub sent_away: BTreeSet<u16>,
    /// For CLIENT LIST.
    pub last_command: &'static str,
    /// Who it is, for trails, once it was asked for.
    origin: Option<Arc<Origin>>,
}

impl Session {
    /// A new connection.
    pub fn new(card: Arc<Card>) -> Session {
        Session {
            card,
            protocol: Protocol::Resp2,
            transaction: None,
            staged: None,
            watched: Watched::default(),
            mute: Mute::No,
            looks_anywhere: false,
            sent_away: BTreeSet::new(),
            last_command: "NULL",
            origin: None,
        }
    }

    /// Who it is, for trails.
    pub fn origin(&mut self) -> &Arc<Origin> {
        let card = &self.card;
        self.origin.get_or_insert_with(|| Arc::new(Origin::new(&card.profile.lock().name, card.peer)))
    }

    /// CLIENT SETNAME.
    pub fn set_name(&mut self, name: &[u8]) {
        self.card.profile.lock().name = name.to_vec();
        self.origin = None;
    }

    /// RESET: as if new.
    pub fn reset(&mut self) {
        // Its own reply stays skipped if it was to be.
        let mute = if self.mute == Mute::This { Mute::This } else { Mute::No };
        *self = Session { mute, last_command: self.last_command, ..Session::new(Arc::clone(&self.card)) };
        self.card.profile.lock().name.clear();
    }

    /// Lets CLIENT LIST see what happened in this wake-up.
    pub fn publish(&self, now_ms: u64) {
        let mut profile = self.card.profile.lock();
        profile.last_active_ms = now_ms;
        profile.last_command = self.last_command;
        profile.protocol = self.protocol;
        profile.transaction_commands = self.transaction.as_ref().map(|transaction| transaction.commands);
    }
}

/// CLIENT REPLY.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mute {
    /// Replies are sent.
    No,
    /// The reply of the next command is not sent.
    Next,
    /// The reply of the command that is being read is not sent.
    This,
    /// No reply is sent.
    All,
}

/// The commands between MULTI and EXEC, kept as the frames they came in.
#[derive(Debug, Default)]
pub struct Transaction {
    /// One frame after the other.
    pub frames: Vec<u8>,
    /// How many frames.
    pub commands: u32,
    /// A command was refused when it was queued, so EXEC will refuse all.
    pub aborted: bool,
    /// The slot of its keys; kept on the port of the Redis Cluster protocol.
    pub slot: Option<u16>,
    /// Its keys have more than one.
    pub crosses_slots: bool,
    /// Some of its commands write.
    pub writes: bool,
}

impl Transaction {
    /// Keeps a command for EXEC; says no if there is no room.
    pub fn queue(&mut self, arguments: Arguments<'_, '_>) -> bool {
        let bytes: usize = arguments.iter().map(<[u8]>::len).sum();
        if self.commands == TRANSACTION_COMMANDS_MAX || self.frames.len() + bytes > TRANSACTION_BYTES_MAX {
            return false;
        }
        let mut encoder = Encoder::new(&mut self.frames, Protocol::Resp2);
        encoder.array(arguments.len());
        arguments.iter().for_each(|argument| encoder.bulk(argument));
        self.commands += 1;
        true
    }
}

/// One connection as others see it.
#[derive(Debug)]
pub struct Card {
    /// Unique for the life of the server.
    pub id: u64,
    /// The other end.
    pub peer: SocketAddr,
    /// This end.
    pub local: SocketAddr,
    /// Whether it speaks the Redis Cluster protocol: who asks about slots of another node is sent there.
    pub is_of_cluster: bool,
    /// Which loop serves it.
    pub event_loop: usize,
    /// Under which token.
    pub token: Token,
    /// When it was accepted.
    pub connected_at_ms: u64,
    /// What changes.
    pub profile: Mutex<Profile>,
}

impl Card {
    /// What HELLO and INFO call it.
    pub fn mode(&self) -> &'static str {
        if self.is_of_cluster { "cluster" } else { "standalone" }
    }
}

/// The part of a [`Card`] that changes.
#[derive(Debug, Default)]
pub struct Profile {
    /// CLIENT SETNAME.
    pub name: Vec<u8>,
    /// CLIENT SETINFO LIB-NAME.
    pub library_name: Vec<u8>,
    /// CLIENT SETINFO LIB-VER.
    pub library_version: Vec<u8>,
    /// The last command of the last wake-up.
    pub last_command: &'static str,
    /// When that was.
    pub last_active_ms: u64,
    /// What replies look like.
    pub protocol: Protocol,
    /// Commands queued in a transaction, if there is one.
    pub transaction_commands: Option<u32>,
}

/// All connections.
#[derive(Debug, Default)]
pub struct Registry {
    last_id: AtomicU64,
    cards: Mutex<BTreeMap<u64, Arc<Card>>>,
}

impl Registry {
    /// An id that was never used.
    pub fn next_id(&self) -> u64 {
        self.last_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Lists a connection.
    pub fn add(&self, card: &Arc<Card>) {
        self.cards.lock().insert(card.id, Arc::clone(card));
    }

    /// A connection is gone.
    pub fn remove(&self, id: u64) {
        self.cards.lock().remove(&id);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.cards.lock().len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of them, in the order of their ids.
    pub fn all(&self) -> Vec<Arc<Card>> {
        self.cards.lock().values().cloned().collect()
    }
}

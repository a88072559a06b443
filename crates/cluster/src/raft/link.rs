//! The way to the other replicas of a group: what openraft wants to be said to them, and snapshots piece by piece.
//!
//! ```text
//! question := 1 head append | 2 head ask | 3 head ask in advance | 4 head transfer
//!           | 5 head id:v offset:v bytes                     a piece of a snapshot
//!           | 6 head id:v length:v vote mark                 that was all of it: install it
//! head     := group:v from:16 to:16                          the data folders of both, 0 if not known: a node that has lost
//!                                                            its disk is not the one that the others count on
//! answer   := 0 (what message.rs says; for 5 nothing, for 6 a vote) | 1 length:v why not
//! ```

use std::future::Future;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, TransferLeaderRequest,
    TransferLeaderResponse, VoteRequest, VoteResponse,
};
use openraft::type_config::alias::SnapshotOf;
use quipu_engine::Engine;
use quipu_wire::entry::{Malformed, Reader, put_bytes, put_varint};

use super::codec::{put_vote, read_vote};
use super::machine::SnapshotSource;
use super::message;
use super::meta_machine::MetaState;
use super::types::{NodeId, Types, Vote};
use crate::blocking::blocking;
use crate::transport::{Transport, Unreached};

/// The first byte of a question. Those that are no replica's business are larger.
pub(super) mod kind {
    pub const APPEND: u8 = 1;
    pub const VOTE: u8 = 2;
    pub const PRE_VOTE: u8 = 3;
    pub const TRANSFER: u8 = 4;
    pub const PIECE: u8 = 5;
    pub const INSTALL: u8 = 6;
}

/// A piece of a snapshot.
const PIECE_BYTES: usize = 1 << 20;
/// How long a replica may take to take a piece.
const PIECE_MAX: Duration = Duration::from_secs(10);
/// How long it may take to install a snapshot. One whose answer is lost is sent again after this.
pub(super) const INSTALL_MAX: Duration = Duration::from_secs(120);

/// The way to the other replicas.
pub(super) struct Links {
    pub(super) group: u16,
    pub(super) meta: Arc<MetaState>,
    pub(super) engine: Arc<Engine>,
    pub(super) transport: Arc<dyn Transport>,
}

impl RaftNetworkFactory<Types> for Links {
    type Network = Link;

    async fn new_client(&mut self, target: NodeId, _node: &()) -> Link {
        Link {
            group: self.group,
            target,
            meta: Arc::clone(&self.meta),
            engine: Arc::clone(&self.engine),
            transport: Arc::clone(&self.transport),
        }
    }
}

/// The way to one of them.
pub(super) struct Link {
    group: u16,
    target: NodeId,
    meta: Arc<MetaState>,
    engine: Arc<Engine>,
    transport: Arc<dyn Transport>,
}

impl Link {
    fn question(&self, kind: u8) -> Vec<u8> {
        let mut question = vec![kind];
        put_varint(&mut question, u64::from(self.group));
        question.extend_from_slice(&self.engine.folder_number().to_le_bytes());
        question.extend_from_slice(&self.meta.folder(self.target).unwrap_or(0).to_le_bytes());
        question
    }

    async fn ask<T>(
        &self,
        question: Vec<u8>,
        within: Duration,
        read: impl FnOnce(&mut Reader<'_>) -> Result<T, Malformed>,
    ) -> Result<T, RPCError<Types>> {
        let network = |error: Unreached| RPCError::Network(NetworkError::new(&error));
        let answering = self.transport.ask(self.target, Bytes::from(question));
        let answer = match tokio::time::timeout(within, answering).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(unreached)) => return Err(RPCError::Unreachable(Unreachable::new(&unreached))),
            Err(_) => return Err(network(Unreached::lost(format!("node {} does not answer", self.target)))),
        };
        let mut reader = Reader::new(&answer);
        let read = match reader.byte() {
            Ok(0) => read(&mut reader).map_err(|error| error.to_string()),
            Ok(_) => Err(reader
                .bytes()
                .map_or_else(|error| error.to_string(), |why| String::from_utf8_lossy(why).into_owned())),
            Err(error) => Err(error.to_string()),
        };
        read.map_err(|why| RPCError::Unreachable(Unreachable::new(&Unreached::lost(why))))
    }
}

impl Link {
    /// Asks for a vote, or whether one would be given.
    async fn ask_vote(
        &self,
        kind: u8,
        rpc: &VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        let mut question = self.question(kind);
        message::put_ask(&mut question, rpc);
        self.ask(question, option.soft_ttl(), message::read_given).await
    }
}

/// Tells snapshots on their way to one replica apart.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl RaftNetworkV2<Types> for Link {
    type SnapshotData = SnapshotSource;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        let mut question = self.question(kind::APPEND);
        message::put_append(&mut question, &rpc);
        self.ask(question, option.soft_ttl(), message::read_appended).await
    }

    async fn vote(
        &mut self,
        rpc: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        self.ask_vote(kind::VOTE, &rpc, option).await
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        self.ask_vote(kind::PRE_VOTE, &rpc, option).await
    }

    async fn transfer_leader(
        &mut self,
        req: TransferLeaderRequest<Types>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, RPCError<Types>> {
        let mut question = self.question(kind::TRANSFER);
        message::put_transfer(&mut question, &req);
        self.ask(question, option.soft_ttl(), |reader| reader.flag()).await.map(|_| Ok(()))
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: SnapshotOf<Types, SnapshotSource>,
        cancel: impl Future<Output = ReplicationClosed> + Send + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        tokio::select! {
            biased;
            closed = cancel => Err(StreamingError::Closed(closed)),
            sent = self.send(vote, snapshot) => sent,
        }
    }
}

impl Link {
    /// Sends a snapshot piece by piece and waits until it is installed.
    async fn send(
        &self,
        vote: Vote,
        snapshot: SnapshotOf<Types, SnapshotSource>,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let local = |error: io::Error| StreamingError::Unreachable(Unreachable::new(&error));
        let scratch = self.engine.scratch_folder();
        let read = blocking(move || snapshot.snapshot.into_file(scratch)).await;
        let (mut file, mark) = read.and_then(|read| read).map_err(local)?;
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let mut offset = 0;
        loop {
            let mut piece = vec![0; PIECE_BYTES];
            let count = file.read(&mut piece).map_err(local)?;
            if count == 0 {
                break;
            }
            let mut question = self.question(kind::PIECE);
            put_varint(&mut question, id);
            put_varint(&mut question, offset);
            put_bytes(&mut question, &piece[..count]);
            self.ask(question, PIECE_MAX, |_| Ok(())).await.map_err(streaming)?;
            offset += count as u64;
        }
        let mut question = self.question(kind::INSTALL);
        put_varint(&mut question, id);
        put_varint(&mut question, offset);
        put_vote(&mut question, &vote);
        put_bytes(&mut question, &mark);
        let vote = self.ask(question, INSTALL_MAX, read_vote).await.map_err(streaming)?;
        Ok(SnapshotResponse { vote })
    }
}

fn streaming(error: RPCError<Types>) -> StreamingError<Types> {
    match error {
        RPCError::Timeout(error) => StreamingError::Timeout(error),
        RPCError::Unreachable(error) => StreamingError::Unreachable(error),
        RPCError::Network(error) => StreamingError::Network(error),
        RPCError::RemoteError(error) => StreamingError::Unreachable(Unreachable::new(&error)),
    }
}

//! What nodes ask each other.
//!
//! Questions of one node to another, and answers, beside those of the replicas (`raft/link.rs`, 1 to 6):
//!
//! ```text
//! 16 partition:v batch          do this, or look, if you lead the partition   -> replies
//! 17 partition:v                bring it the policies that all nodes agreed on, if you lead it ->
//! 18 change                     have this agreed on by all nodes              -> 0 | 1 why refused
//! 19 partition:v                who belongs to it, if you lead it             -> nodes:v node:v*
//! 20 partition:v nodes:v node:v*    see that these hold it, if you lead it    -> 0 not yet | 1 they do
//! 21 partition:v index:v        hold it: its leader will tell you more; take part once you have what is before this entry ->
//! 22 partition:v node:v         let that node lead, if you do                 ->
//! 23                            who leads what you hold?                      -> count:v (partition:v leader:v)*
//! 24 group:v                    would you lead it?                            -> 0 | 1
//! 25                            up to which entry do all nodes agree, if you lead them? -> index:v
//! 32 count:v partition:v*       up to which entry is agreed on what you lead? -> count:v (partition:v index:v)*
//! 33 partition:v (0 | 1 max_staleness_ms:v) batch    look, if you hold it and are not further behind -> staleness_ms:v replies
//! 34 partition:v listing        a page of its counters, if you lead it        -> more:1 count:v (key cell)* (place:v kind:1)*
//!                               (last, those that have more than their numbers)
//! 35 partition:v draw:v         any of its keys, if you lead it               -> 0 | 1 key
//! 36 partition:v place:v        what did you remember under this number?      -> 0 | 1 key
//! 37 partition:v within_ms:v pattern part    add up the counters that match, or that part of them, if you lead it
//!     -> sum:16 count:v min:z max:z has_more_groups:1 count:v (values:v value* sum:16)*     part: a `Slice`, or empty
//! 38 version:v (0 | 1 interest) count:v partition:v*    what changed of what I watch?
//!     -> 0 say what you watch | 1 is_new:1 count:v (partition:v (4 not here | bits:1 count:v key*))*     bits: 1 cleared, 2 lost
//! interest := count:v key* count:v prefix*
//! 40 most:v                     which keys were asked for most at you?        -> told (see `hot.rs`)
//! 41 partition:v audit_query    a page of a counter's trail, if you lead the partition -> more:1 (0 | 1 since_ms:v) count:v change*
//! audit_query := key from_ms:v to_ms:v (0 | 1 before:v) limit:v      (changes: see `quipu_wire::audit`)
//! 42                            what time is it?                              -> time_ms:v
//! 43                            of what you lead, what do exactly those hold who shall? -> count:v (partition:v 0 | 1)*
//! listing := prefix order:1 (0 | 1 value:z key) limit:v      order: 0 storage, 1 key, 2 value; only what comes after the place
//! key, prefix, pattern, part, value := length:v bytes
//! answer := 0 (what stands above) | 1 (0 | 1 leader:v) | 2 no quorum | 3 unknown | 4 length:v why it has stopped | 5 too much to do
//!         | 6 who asks was removed from the cluster
//! ```

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use quipu_counting::Batch;
use quipu_wire::batch::{put_replies, read_batch};
use quipu_wire::entry::{Malformed, Reader, put_bytes, put_varint};
use tokio::time::Instant;

use crate::belonging::JOIN_ASK_MAX;
use crate::meta::{Change, removed};
use crate::node::{ANSWER_MAX, LOST_AFTER, Node};
use crate::raft::group::refusal;
use crate::raft::{NodeId, NotDone};

/// How long somebody waits who found no leader before looking again.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How long a leader that has too much to do is asked again. More of it would make it worse, and who asked may come later.
pub(crate) const BUSY_MAX: Duration = Duration::from_millis(500);
/// How often somebody follows what others say about who leads, before waiting until they agree.
pub(crate) const HINTS_MAX: u32 = 3;
/// How often a node asks who leads the partitions it does not hold, and how long it waits for an answer.
pub(crate) const HEAR_PAUSE: Duration = Duration::from_secs(1);

/// The first byte of a question. Those of replicas are smaller.
pub(crate) mod kind {
    pub const DO: u8 = 16;
    pub const BRING: u8 = 17;
    pub const CHANGE: u8 = 18;
    pub const MEMBERS: u8 = 19;
    pub const RESHAPE: u8 = 20;
    pub const HOLD: u8 = 21;
    pub const LET_LEAD: u8 = 22;
    pub const LEADERS: u8 = 23;
    pub const WOULD_LEAD: u8 = 24;
    pub const AGREED_BY_ALL: u8 = 25;
    pub const AGREED: u8 = 32;
    pub const LOOK: u8 = 33;
    pub const PAGE: u8 = 34;
    pub const DRAW: u8 = 35;
    pub const PLACE: u8 = 36;
    pub const ADD_UP: u8 = 37;
    pub const CHANGES: u8 = 38;
    pub const HOT: u8 = 40;
    pub const AUDIT: u8 = 41;
    pub const TIME: u8 = 42;
    pub const PLACED: u8 = 43;
}

impl Node {
    /// Answers a question of another node.
    pub async fn receive(&self, from: NodeId, asked: &[u8]) -> Bytes {
        let answer = self.answer(from, asked).await;
        Bytes::from(answer.unwrap_or_else(|malformed| not_done(&NotDone::Stopped(malformed.to_string()))))
    }

    async fn answer(&self, from: NodeId, asked: &[u8]) -> Result<Vec<u8>, Malformed> {
        let mut reader = Reader::new(asked);
        let asked_for = reader.byte()?;
        if self.meta.read(|meta| meta.removed.contains(&from)) {
            let why = removed(from);
            return Ok(match asked_for {
                0..kind::DO => refusal(&why),
                kind::CHANGE => [&[0], &encode_refused(Some(why))[..]].concat(),
                _ => not_done(&NotDone::NotMember),
            });
        }
        if asked_for < kind::DO {
            let number = u16::try_from(reader.varint()?).map_err(|_| Malformed("group number"))?;
            let theirs = u128::from_le_bytes(reader.array()?);
            let wanted = u128::from_le_bytes(reader.array()?);
            if wanted != 0 && wanted != self.engine.folder_number() {
                return Ok(refusal("this node has lost the data folder it had"));
            }
            if self.meta.folder(from).is_some_and(|known| known != theirs) {
                return Ok(refusal("this is not the data folder that node had"));
            }
            return Ok(match self.group(number) {
                _ if number == self.partitions => self.nodes.answer(from, asked_for, &mut reader).await,
                Some(group) => group.answer(from, asked_for, &mut reader).await,
                None => refusal("this node does not hold the partition"),
            });
        }
        let done = match asked_for {
            kind::DO => {
                let partition = read_partition(&mut reader)?;
                let mut batch = Batch::default();
                read_batch(&mut reader, &mut batch)?;
                self.check_partition(partition, &batch)?;
                Node::check_size(&batch).map_err(|_| Malformed("a batch beyond all limits"))?;
                let wants_whole = batch.wants_whole;
                self.do_here(partition, batch).await.map(|replies| {
                    let mut out = Vec::new();
                    put_replies(&mut out, &replies, wants_whole);
                    out
                })
            }
            kind::BRING => {
                let partition = read_partition(&mut reader)?;
                match self.leading(partition) {
                    Ok(group) => {
                        self.bring_policies(partition, &group, self.patience).await.map(|()| Vec::new())
                    }
                    Err(why) => Err(why),
                }
            }
            kind::CHANGE => {
                let change = Change::decode(&asked[1..])?;
                // A stranger does not know where the leader is, nor does a node that has lost its data folder and joins as if it were one.
                let is_stranger = matches!(change, Change::Join(node, _) if node == from)
                    || !self.meta.read(|meta| meta.nodes.contains_key(&from));
                match self.change_here(&change).await {
                    Err(NotDone::NotLeader(Some(leader))) if leader != self.id && is_stranger => {
                        self.ask(leader, asked.to_vec(), JOIN_ASK_MAX, read_refused).await
                    }
                    done => done,
                }
                .map(encode_refused)
            }
            kind::MEMBERS => {
                let partition = read_partition(&mut reader)?;
                self.members(partition).await.map(|members| encode_nodes(&members))
            }
            kind::RESHAPE => {
                let partition = read_partition(&mut reader)?;
                let replicas = read_nodes(&mut reader)?;
                self.reshape(partition, replicas).map(|is_done| vec![u8::from(is_done)])
            }
            kind::HOLD => {
                let (partition, complete_at) = (read_partition(&mut reader)?, reader.varint()?);
                self.hold(partition, complete_at).await.map(|()| Vec::new()).map_err(NotDone::Stopped)
            }
            kind::LET_LEAD => {
                let (partition, node) = (read_partition(&mut reader)?, reader.varint()?);
                match self.leading(partition) {
                    Ok(group)
                        if group.heirs(self.id).contains(&node) && self.would_lead(partition, node).await =>
                    {
                        group.hand_over(node).await;
                        Ok(Vec::new())
                    }
                    other => other.map(|_| Vec::new()),
                }
            }
            kind::LEADERS => {
                // Who has lost a leader must not send others to it.
                let known =
                    |partition| Some((partition, self.moving(partition)?.leader_heard_within(LOST_AFTER)?));
                let leaders: Vec<(u16, NodeId)> = (0..self.partitions).filter_map(known).collect();
                Ok(encode_pairs(&leaders))
            }
            kind::WOULD_LEAD => {
                let number = read_partition(&mut reader)?;
                let would = match self.group(number) {
                    _ if number == self.partitions => self.may_lead(&self.nodes),
                    Some(group) => self.may_lead(&group),
                    None => false,
                };
                Ok(vec![u8::from(would)])
            }
            kind::AGREED_BY_ALL => {
                self.nodes.agreed().await.map(encode_number).ok_or(NotDone::NotLeader(None))
            }
            kind::AGREED | kind::LOOK => self.answer_look(asked_for, &mut reader).await?,
            kind::CHANGES => self.answer_watch(from, &mut reader)?,
            kind::PAGE | kind::DRAW | kind::PLACE | kind::AUDIT => {
                self.answer_walk(asked_for, &mut reader).await?
            }
            kind::ADD_UP => self.answer_add_up(&mut reader).await?,
            kind::HOT => Ok(self.answer_hot(&mut reader)?),
            kind::TIME => {
                let mut out = Vec::new();
                // Who was set right while it ran, and does not believe it before its next start, must not call others wrong.
                put_varint(&mut out, (self.clock)().max((self.wall_clock)()));
                Ok(out)
            }
            kind::PLACED => Ok(self.answer_placed()),
            _ => return Err(Malformed("a question that this version does not know")),
        };
        Ok(match done {
            Ok(body) => [&[0], &body[..]].concat(),
            Err(why) => not_done(&why),
        })
    }

    pub(crate) async fn ask<T>(
        &self,
        node: NodeId,
        asked: Vec<u8>,
        within: Duration,
        read: impl FnOnce(&mut Reader<'_>) -> Result<T, Malformed>,
    ) -> Result<T, NotDone> {
        let answer = if node == self.id {
            // Boxed, because answering may ask on.
            Box::pin(self.receive(node, &asked)).await
        } else {
            match tokio::time::timeout(within, self.transport.ask(node, Bytes::from(asked))).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(unreached)) if !unreached.was_sent => return Err(NotDone::NotReached(unreached.why)),
                _ => return Err(NotDone::Unknown),
            }
        };
        let mut reader = Reader::new(&answer);
        let read = match reader.byte() {
            Ok(0) => read(&mut reader).map(Ok),
            Ok(kind) => read_not_done(kind, &mut reader).map(Err),
            Err(malformed) => Err(malformed),
        };
        // What was answered was heard, and perhaps done.
        let answer = read.unwrap_or(Err(NotDone::Unknown));
        if matches!(answer, Err(NotDone::NotMember)) {
            self.cast_out();
        }
        answer
    }

    /// Asks whoever leads a partition something that may be asked again.
    pub(crate) async fn ask_leader<T>(
        &self,
        partition: u16,
        asked: Vec<u8>,
        read: impl Fn(&mut Reader<'_>) -> Result<T, Malformed>,
    ) -> Result<T, NotDone> {
        let ask = |target| self.ask(target, asked.clone(), ANSWER_MAX, &read);
        self.with_leader(partition, ask).await.map(|(_, answer)| answer)
    }

    /// Asks, in a manner that may be repeated, one node after the other until one of them leads a partition. Says who it was.
    pub(crate) async fn with_leader<T, Asked: Future<Output = Result<T, NotDone>>>(
        &self,
        partition: u16,
        ask: impl Fn(NodeId) -> Asked,
    ) -> Result<(NodeId, T), NotDone> {
        let (until, busy_until) = (Instant::now() + self.patience, Instant::now() + BUSY_MAX);
        let (mut hint, mut hints) = (None, 0);
        loop {
            if self.is_cast_out() {
                return Err(NotDone::NotMember);
            }
            for target in hint.take().map_or_else(|| self.candidates(partition), |hint| vec![hint]) {
                match self.while_it_leads(partition, target, ask(target)).await {
                    Ok(answer) => return Ok((target, answer)),
                    Err(NotDone::NotLeader(Some(leader))) if leader != target && hints < HINTS_MAX => {
                        hints += 1;
                        hint = Some(leader);
                        break;
                    }
                    Err(NotDone::Stopped(why)) => return Err(NotDone::Stopped(why)),
                    Err(NotDone::Busy) if Instant::now() >= busy_until => return Err(NotDone::Busy),
                    Err(_) => {}
                }
            }
            if Instant::now() >= until {
                return Err(NotDone::NotLeader(None));
            }
            if hint.is_none() {
                tokio::time::sleep(LOOK_AGAIN).await;
                hints = 0;
            }
        }
    }
}

pub(crate) fn question(kind: u8, partition: u16, put: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = vec![kind];
    put_varint(&mut out, u64::from(partition));
    put(&mut out);
    out
}

pub(crate) fn read_partition(reader: &mut Reader<'_>) -> Result<u16, Malformed> {
    u16::try_from(reader.varint()?).map_err(|_| Malformed("partition number"))
}

/// A number of nodes, as they are asked for and told.
pub(crate) fn encode_nodes(nodes: &BTreeSet<NodeId>) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, nodes.len() as u64);
    nodes.iter().for_each(|node| put_varint(&mut out, *node));
    out
}

pub(crate) fn read_nodes(reader: &mut Reader<'_>) -> Result<BTreeSet<NodeId>, Malformed> {
    (0..reader.count()?).map(|_| reader.varint()).collect()
}

fn encode_number(number: u64) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, number);
    out
}

/// A number for each of some partitions: who leads it, or up to where it is agreed on.
pub(crate) fn encode_pairs(pairs: &[(u16, u64)]) -> Vec<u8> {
    let mut out = Vec::new();
    put_varint(&mut out, pairs.len() as u64);
    for (partition, number) in pairs {
        put_varint(&mut out, u64::from(*partition));
        put_varint(&mut out, *number);
    }
    out
}

pub(crate) fn read_pairs(reader: &mut Reader<'_>) -> Result<Vec<(u16, u64)>, Malformed> {
    (0..reader.count()?).map(|_| Ok((read_partition(reader)?, reader.varint()?))).collect()
}

fn encode_refused(refused: Option<String>) -> Vec<u8> {
    let mut out = vec![u8::from(refused.is_some())];
    if let Some(why) = refused {
        put_bytes(&mut out, why.as_bytes());
    }
    out
}

pub(crate) fn read_refused(reader: &mut Reader<'_>) -> Result<Option<String>, Malformed> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if reader.flag()? { reader.bytes().map(|why| Some(text(why))) } else { Ok(None) }
}

/// Whether somebody waits for the answer who asked the other node; of those there may be any number. What replicas ask, and nodes for
/// themselves, must not wait behind it. A new kind is added here too.
pub(crate) fn is_for_clients(question: &[u8]) -> bool {
    match question.first() {
        Some(
            &(kind::DO
            | kind::LOOK
            | kind::PAGE
            | kind::DRAW
            | kind::PLACE
            | kind::ADD_UP
            | kind::HOT
            | kind::AUDIT),
        ) => true,
        Some(
            &(0..kind::DO
            | kind::BRING
            | kind::CHANGE
            | kind::MEMBERS
            | kind::RESHAPE
            | kind::HOLD
            | kind::LET_LEAD
            | kind::LEADERS
            | kind::WOULD_LEAD
            | kind::AGREED_BY_ALL
            | kind::AGREED
            | kind::CHANGES
            | kind::TIME
            | kind::PLACED),
        ) => false,
        // What this version does not know is refused at once.
        Some(_) | None => false,
    }
}

/// The answer to such a question where too many are not answered yet: nothing was done.
pub(crate) fn too_many() -> Bytes {
    Bytes::from(not_done(&NotDone::Busy))
}

fn not_done(why: &NotDone) -> Vec<u8> {
    match why {
        NotDone::NotLeader(leader) => {
            let mut out = vec![1, u8::from(leader.is_some())];
            leader.iter().for_each(|leader| put_varint(&mut out, *leader));
            out
        }
        NotDone::NoQuorum => vec![2],
        NotDone::Unknown => vec![3],
        NotDone::Busy => vec![5],
        NotDone::NotMember => vec![6],
        NotDone::NotReached(why) | NotDone::Stopped(why) => {
            let mut out = vec![4];
            put_bytes(&mut out, why.as_bytes());
            out
        }
    }
}

fn read_not_done(kind: u8, reader: &mut Reader<'_>) -> Result<NotDone, Malformed> {
    Ok(match kind {
        1 => NotDone::NotLeader(if reader.flag()? { Some(reader.varint()?) } else { None }),
        2 => NotDone::NoQuorum,
        3 => NotDone::Unknown,
        4 => NotDone::Stopped(String::from_utf8_lossy(reader.bytes()?).into_owned()),
        5 => NotDone::Busy,
        6 => NotDone::NotMember,
        _ => return Err(Malformed("unknown answer; sent by a newer version?")),
    })
}

#[cfg(test)]
mod tests {
    use super::{is_for_clients, kind};

    #[test]
    fn what_clients_wait_for_takes_no_places_of_replicas() {
        let for_clients = (0..=u8::MAX).filter(|kind| is_for_clients(&[*kind]));
        let expected =
            [kind::DO, kind::LOOK, kind::PAGE, kind::DRAW, kind::PLACE, kind::ADD_UP, kind::HOT, kind::AUDIT];
        assert_eq!(for_clients.collect::<Vec<_>>(), expected);
        assert!(!is_for_clients(&[]));
    }
}

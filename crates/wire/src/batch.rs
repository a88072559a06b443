//! The codec of batches and their replies: what an entry of a replicated log holds, and what one node asks of another.
//!
//! Unlike a record of a single node's log, which says what was decided, a batch says what is asked: every replica decides,
//! and comes to the same. Keys are written out, because a replica may begin anywhere.
//!
//! ```text
//! batch    := requests:v request*  groups:v group*  [origins:v (start:v (0 | 1 origin))* [1]]     see `crate::audit`; 1: wants whole counters
//! request  := verb:1 key [id index:v] argument*     verb: bit 7 says that an id follows; the rest is
//!             0 read                               1 check: condition
//!             2 add 1, nothing else asked          3 add, nothing else asked: delta:z
//!             4 add: delta:z min:z max:z saturate:1 expiry condition
//!             5 set: value:z expiry condition      6 reset: condition
//!             7 delete: condition                  8 expire: expiry when:1
//!             9 count                             10 clear
//!            11 observe: hashes                   12 join: sketch
//!            13 replace: sketch expiry condition  14 acquire: frame amount:z soft:1 (0 | 1 limit:z)
//!            15 reserve: as 4, ttl_ms:v           16 end: birth:v number:v (0 void | 1 commit | 2 commit amount:z)
//!            17 overwrite: as 5                   18 told: told, as 4
//!            19 restore: whole expiry condition  20 slice: slice
//!            21 observe: hashes at_ms:v
//! condition := 0 always | 1 exists | 2 absent | 3 version:v | 4 birth:v version:v
//! expiry   := 0 keep | 1 clear | 2 in:v | 3 at:v | 4 in:v if none | 5 at:v if none
//! when     := 0 always, 1 none, 2 some, 3 later, 4 earlier, 5 some and later, 6 some and earlier
//! group    := kind:1 start:v end:v argument*        0 atomic | 1 session: producer epoch:v sequence:v | 2 guard: until:v
//! replies  := count:v reply*
//! reply    := flags:1 refusal:1 previous:z applied:z cell [detail]   flags: 1 duplicate, 2 existed, 4 exists, 8 detail; from 16 on the kind
//! detail   := 0 body (0 | 1 frame) | 1 used:z limit:z reset_ms:v window_ms:v | 2 number:v expires_at_ms:v | 3 exact:1
//!           | 4 earliest_ms:v latest_ms:v | 5 value:z partial:1 groups:v (values:v value* sum:z)* | 6 declared | 255 index:v (as in that reply)
//! key, id, producer, hashes, sketch, frame, told, whole, slice, body, value, declared := length:v bytes
//! ```
//! Numbers, cells and refusals are coded as in [`crate::entry`].

use std::collections::HashMap;
use std::sync::Arc;

use quipu_counting::action::{Expire, Set};
use quipu_counting::batch::RequestId;
use quipu_counting::body::{put_frame, read_frame};
use quipu_counting::bytes::Bytes;
use quipu_counting::rollup::{Declared, Sliced};
use quipu_counting::{
    Acquire, Action, Add, Batch, Body, Condition, Detail, Ending, ExpireWhen, Expiry, Group, GroupKind,
    ID_BYTES_MAX, KEY_BYTES_MAX, Kind, Origin, Refusal, Reply, Request,
};

use crate::audit::{put_origin, read_origin};
use crate::entry::{
    Malformed, Reader, put_bytes, put_cell, put_refusal, put_varint, put_zigzag, read_refusal,
};

const HAS_ID: u8 = 0x80;
/// The most bytes that belong to one request: more than any counter has.
const PAYLOAD_BYTES_MAX: usize = 8 << 20;

/// Appends a batch, without replies.
pub fn put_batch(out: &mut Vec<u8>, batch: &Batch) {
    put_varint(out, batch.requests.len() as u64);
    for request in &batch.requests {
        put_request(out, batch, request);
    }
    put_varint(out, batch.groups.len() as u64);
    for group in &batch.groups {
        put_group(out, batch, group);
    }
    if batch.origins().is_empty() && !batch.wants_whole {
        return;
    }
    put_varint(out, batch.origins().len() as u64);
    for (start, origin) in batch.origins() {
        put_varint(out, *start as u64);
        out.push(u8::from(origin.is_some()));
        origin.iter().for_each(|origin| put_origin(out, origin));
    }
    if batch.wants_whole {
        out.push(1);
    }
}

/// Reads a batch, which is the last of what there is to read, into an empty one. Whatever the bytes, what comes out can be run.
pub fn read_batch(reader: &mut Reader<'_>, batch: &mut Batch) -> Result<(), Malformed> {
    let requests = reader.count()?;
    batch.requests.reserve(requests);
    for _ in 0..requests {
        read_request(reader, batch)?;
    }
    let mut from = 0;
    for _ in 0..reader.count()? {
        let group = read_group(reader, batch)?;
        if group.start < from || group.start > group.end || group.end > requests {
            return Err(Malformed("groups out of order"));
        }
        from = group.end;
        batch.groups.push(group);
    }
    if !reader.is_empty() {
        read_origins(reader, batch)?;
        batch.wants_whole = !reader.is_empty() && reader.flag()?;
    }
    Ok(())
}

fn read_origins(reader: &mut Reader<'_>, batch: &mut Batch) -> Result<(), Malformed> {
    let count = reader.count()?;
    let mut origins: Vec<(usize, Option<Arc<Origin>>)> = Vec::with_capacity(count);
    for _ in 0..count {
        let start = usize::try_from(reader.varint()?).map_err(|_| Malformed("place of an origin"))?;
        if origins.last().is_some_and(|(last, _)| *last > start) {
            return Err(Malformed("origins out of order"));
        }
        let origin = if reader.flag()? { Some(Arc::new(read_origin(reader)?)) } else { None };
        origins.push((start, origin));
    }
    if origins.is_empty() && reader.is_empty() {
        return Err(Malformed("no origin where there should be one"));
    }
    batch.set_origins(origins);
    Ok(())
}

/// The most bytes that the bodies of counters take in one answer, as long as each is no larger itself. Far less than a message may have.
pub const BODIES_BYTES_MAX: usize = 32 << 20;

/// Appends replies, with whole counters or without the cells of their roll-ups. A body that several of them show is there once; what is beyond [`BODIES_BYTES_MAX`] is refused.
pub fn put_replies(out: &mut Vec<u8>, replies: &[Reply], with_rollups: bool) {
    put_varint(out, replies.len() as u64);
    let bodies_to = out.len() + BODIES_BYTES_MAX;
    let mut shown: HashMap<*const Body, usize> = HashMap::new();
    for (index, reply) in replies.iter().enumerate() {
        let body = match reply.detail.as_deref() {
            Some(Detail::Body(body, _)) => Some(Arc::as_ptr(body)),
            _ => None,
        };
        let before = body.and_then(|body| shown.get(&body).copied());
        let refused;
        let reply = match body {
            Some(_) if before.is_none() && out.len() > bodies_to => {
                let refusal = Some(Refusal::TooLarge);
                refused = Reply { refusal, detail: None, ..reply.clone() };
                &refused
            }
            _ => reply,
        };
        if let (Some(body), true) = (body, reply.detail.is_some()) {
            shown.entry(body).or_insert(index);
        }
        let bit = |condition: bool, bit: u8| if condition { bit } else { 0 };
        let detail = bit(reply.detail.is_some(), 8);
        let kind = (reply.kind as u8) << 4;
        out.push(bit(reply.duplicate, 1) | bit(reply.existed, 2) | bit(reply.exists, 4) | detail | kind);
        put_refusal(out, reply.refusal);
        put_zigzag(out, reply.previous);
        put_zigzag(out, reply.applied);
        put_cell(out, &reply.cell);
        match (&reply.detail, before) {
            (Some(_), Some(before)) => {
                out.push(SHOWN_BEFORE);
                put_varint(out, before as u64);
            }
            (Some(detail), None) => put_detail(out, detail, with_rollups),
            (None, _) => {}
        }
    }
}

/// Stands for the detail of an earlier reply, by its index.
const SHOWN_BEFORE: u8 = u8::MAX;

/// Reads replies.
pub fn read_replies(reader: &mut Reader<'_>) -> Result<Vec<Reply>, Malformed> {
    let count = reader.count()?;
    let mut replies = Vec::with_capacity(count);
    for _ in 0..count {
        let flags = reader.byte()?;
        let Some((kind, _)) = Kind::ALL.get(usize::from(flags >> 4)) else {
            return Err(Malformed("unknown reply flag; sent by a newer version?"));
        };
        replies.push(Reply {
            duplicate: flags & 1 != 0,
            existed: flags & 2 != 0,
            exists: flags & 4 != 0,
            refusal: read_refusal(reader.byte()?)?,
            previous: reader.zigzag()?,
            applied: reader.zigzag()?,
            cell: reader.cell()?,
            kind: *kind,
            detail: if flags & 8 != 0 { Some(read_shown(reader, &replies)?) } else { None },
        });
    }
    Ok(replies)
}

fn read_shown(reader: &mut Reader<'_>, replies: &[Reply]) -> Result<Arc<Detail>, Malformed> {
    let kind = reader.byte()?;
    if kind != SHOWN_BEFORE {
        return read_detail(kind, reader).map(Arc::new);
    }
    let before = usize::try_from(reader.varint()?).ok().and_then(|index| replies.get(index));
    before.and_then(|reply| reply.detail.clone()).ok_or(Malformed("a detail that was not shown before"))
}

fn put_detail(out: &mut Vec<u8>, detail: &Detail, with_rollups: bool) {
    match detail {
        Detail::Body(body, frame) => {
            out.push(0);
            let mut bytes = Vec::new();
            match with_rollups {
                true => body.put(&mut bytes),
                false => body.put_without_rollups(&mut bytes),
            }
            put_bytes(out, &bytes);
            out.push(u8::from(frame.is_some()));
            if let Some(frame) = frame {
                bytes.clear();
                put_frame(&mut bytes, frame);
                put_bytes(out, &bytes);
            }
        }
        Detail::Quota { used, limit, reset_ms, window_ms } => {
            out.push(1);
            put_zigzag(out, *used);
            put_zigzag(out, *limit);
            put_varint(out, *reset_ms);
            put_varint(out, *window_ms);
        }
        Detail::Hold { number, expires_at_ms } => {
            out.push(2);
            put_varint(out, *number);
            put_varint(out, *expires_at_ms);
        }
        Detail::Seen { is_exact } => {
            out.push(3);
            out.push(u8::from(*is_exact));
        }
        Detail::Bound { earliest_ms, latest_ms } => {
            out.push(4);
            put_varint(out, *earliest_ms);
            put_varint(out, *latest_ms);
        }
        Detail::Sliceable(_) | Detail::Sliced(_) => {
            out.push(5);
            let sliced = detail.sliced().unwrap_or_default();
            put_zigzag(out, sliced.value);
            out.push(u8::from(sliced.is_partial));
            put_varint(out, sliced.groups.len() as u64);
            for (values, sum) in &sliced.groups {
                put_varint(out, values.len() as u64);
                values.iter().for_each(|value| put_bytes(out, value.as_bytes()));
                put_zigzag(out, *sum);
            }
        }
        Detail::Declared(declared) => {
            out.push(6);
            let mut bytes = Vec::new();
            declared.put(&mut bytes);
            put_bytes(out, &bytes);
        }
    }
}

fn read_detail(kind: u8, reader: &mut Reader<'_>) -> Result<Detail, Malformed> {
    Ok(match kind {
        0 => {
            let body = Body::read(reader.bytes()?).ok_or(Malformed("body of a counter"))?;
            let frame = match reader.flag()? {
                true => {
                    let frame = read_frame(&mut Bytes::new(reader.bytes()?));
                    Some(frame.ok_or(Malformed("how time is cut"))?)
                }
                false => None,
            };
            Detail::Body(Arc::new(body), frame)
        }
        1 => Detail::Quota {
            used: reader.zigzag()?,
            limit: reader.zigzag()?,
            reset_ms: reader.varint()?,
            window_ms: reader.varint()?,
        },
        2 => Detail::Hold { number: reader.varint()?, expires_at_ms: reader.varint()? },
        3 => Detail::Seen { is_exact: reader.flag()? },
        4 => Detail::Bound { earliest_ms: reader.varint()?, latest_ms: reader.varint()? },
        5 => {
            let (value, is_partial) = (reader.zigzag()?, reader.flag()?);
            let mut groups = Vec::new();
            for _ in 0..reader.count()? {
                let mut values = Vec::new();
                for _ in 0..reader.count()? {
                    let value = std::str::from_utf8(reader.bytes()?);
                    values.push(value.map_err(|_| Malformed("value of a dimension"))?.to_owned());
                }
                groups.push((values, reader.zigzag()?));
            }
            Detail::Sliced(Sliced { value, groups, is_partial })
        }
        6 => {
            let declared = Declared::read(&mut Bytes::new(reader.bytes()?));
            Detail::Declared(declared.ok_or(Malformed("roll-ups of a policy"))?)
        }
        _ => return Err(Malformed("unknown detail of a reply; sent by a newer version?")),
    })
}

fn put_request(out: &mut Vec<u8>, batch: &Batch, request: &Request) {
    let verb = match request.action {
        Action::Read => 0,
        Action::Check(_) => 1,
        Action::Add(add) if add == Add::plain(1) => 2,
        Action::Add(add) if add == Add::plain(add.delta) => 3,
        Action::Add(_) => 4,
        Action::Set(_) => 5,
        Action::Reset(_) => 6,
        Action::Delete(_) => 7,
        Action::Expire(_) => 8,
        Action::Count => 9,
        Action::Clear => 10,
        Action::Observe { at_ms: None, .. } => 11,
        Action::Observe { at_ms: Some(_), .. } => 21,
        Action::Join { .. } => 12,
        Action::Replace { .. } => 13,
        Action::Acquire(_) => 14,
        Action::Reserve(..) => 15,
        Action::End { .. } => 16,
        Action::Overwrite(_) => 17,
        Action::Told { .. } => 18,
        Action::Restore { .. } => 19,
        Action::Slice { .. } => 20,
    };
    out.push(if request.id.is_some() { verb | HAS_ID } else { verb });
    put_bytes(out, batch.bytes(request.key));
    if let Some(RequestId { span, index }) = request.id {
        put_bytes(out, batch.bytes(span));
        put_varint(out, u64::from(index));
    }
    if let Some(payload) = request.action.payload() {
        put_bytes(out, batch.bytes(payload));
    }
    match request.action {
        Action::Read
        | Action::Slice { .. }
        | Action::Count
        | Action::Clear
        | Action::Observe { at_ms: None, .. }
        | Action::Join { .. } => {}
        Action::Observe { at_ms: Some(at_ms), .. } => put_varint(out, at_ms),
        Action::Check(condition) | Action::Reset(condition) | Action::Delete(condition) => {
            put_condition(out, condition);
        }
        Action::Add(_) if verb == 2 => {}
        Action::Add(add) => {
            put_zigzag(out, add.delta);
            if verb == 4 {
                put_guards(out, &add);
            }
        }
        Action::Told { add, .. } => {
            put_zigzag(out, add.delta);
            put_guards(out, &add);
        }
        Action::Reserve(add, ttl_ms) => {
            put_zigzag(out, add.delta);
            put_guards(out, &add);
            put_varint(out, ttl_ms);
        }
        Action::Replace { expiry, condition, .. } | Action::Restore { expiry, condition, .. } => {
            put_expiry(out, expiry);
            put_condition(out, condition);
        }
        Action::Acquire(acquire) => {
            put_zigzag(out, acquire.amount);
            out.push(u8::from(acquire.is_soft));
            out.push(u8::from(acquire.limit.is_some()));
            if let Some(limit) = acquire.limit {
                put_zigzag(out, limit);
            }
        }
        Action::End { birth, number, ending } => {
            put_varint(out, birth);
            put_varint(out, number);
            match ending {
                Ending::Void => out.push(0),
                Ending::Commit(None) => out.push(1),
                Ending::Commit(Some(amount)) => {
                    out.push(2);
                    put_zigzag(out, amount);
                }
            }
        }
        Action::Set(set) | Action::Overwrite(set) => {
            put_zigzag(out, set.value);
            put_expiry(out, set.expiry);
            put_condition(out, set.condition);
        }
        Action::Expire(expire) => {
            put_expiry(out, expire.expiry);
            out.push(expire.when as u8);
        }
    }
}

fn put_guards(out: &mut Vec<u8>, add: &Add) {
    put_zigzag(out, add.min);
    put_zigzag(out, add.max);
    out.push(u8::from(add.saturate));
    put_expiry(out, add.expiry);
    put_condition(out, add.condition);
}

fn read_guarded(reader: &mut Reader<'_>) -> Result<Add, Malformed> {
    Ok(Add {
        delta: reader.zigzag()?,
        min: reader.zigzag()?,
        max: reader.zigzag()?,
        saturate: reader.flag()?,
        expiry: read_expiry(reader)?,
        condition: read_condition(reader)?,
    })
}

fn read_set(reader: &mut Reader<'_>) -> Result<Set, Malformed> {
    Ok(Set { value: reader.zigzag()?, expiry: read_expiry(reader)?, condition: read_condition(reader)? })
}

fn read_ending(reader: &mut Reader<'_>) -> Result<Ending, Malformed> {
    Ok(match reader.byte()? {
        0 => Ending::Void,
        1 => Ending::Commit(None),
        2 => Ending::Commit(Some(reader.zigzag()?)),
        _ => return Err(Malformed("unknown ending of a hold; sent by a newer version?")),
    })
}

fn read_request(reader: &mut Reader<'_>, batch: &mut Batch) -> Result<(), Malformed> {
    let verb = reader.byte()?;
    let key = reader.bytes_up_to(KEY_BYTES_MAX)?;
    let id = match verb & HAS_ID {
        0 => None,
        _ => {
            let id = reader.bytes_up_to(ID_BYTES_MAX)?;
            Some((id, u32::try_from(reader.varint()?).map_err(|_| Malformed("index under an id"))?))
        }
    };
    let action = match verb & !HAS_ID {
        0 => Action::Read,
        1 => Action::Check(read_condition(reader)?),
        2 => Action::Add(Add::plain(1)),
        3 => Action::Add(Add::plain(reader.zigzag()?)),
        4 => Action::Add(read_guarded(reader)?),
        5 => Action::Set(read_set(reader)?),
        17 => Action::Overwrite(read_set(reader)?),
        6 => Action::Reset(read_condition(reader)?),
        7 => Action::Delete(read_condition(reader)?),
        8 => Action::Expire(Expire { expiry: read_expiry(reader)?, when: read_when(reader)? }),
        9 => Action::Count,
        10 => Action::Clear,
        11 => Action::Observe { items: batch.intern(reader.bytes_up_to(PAYLOAD_BYTES_MAX)?), at_ms: None },
        21 => {
            let items = batch.intern(reader.bytes_up_to(PAYLOAD_BYTES_MAX)?);
            Action::Observe { items, at_ms: Some(reader.varint()?) }
        }
        12 => Action::Join { sketch: batch.intern(reader.bytes_up_to(PAYLOAD_BYTES_MAX)?) },
        13 => {
            let sketch = batch.intern(reader.bytes_up_to(PAYLOAD_BYTES_MAX)?);
            Action::Replace { sketch, expiry: read_expiry(reader)?, condition: read_condition(reader)? }
        }
        14 => {
            let frame = batch.intern(reader.bytes_up_to(PAYLOAD_BYTES_MAX)?);
            let (amount, is_soft) = (reader.zigzag()?, reader.flag()?);
            let limit = if reader.flag()? { Some(reader.zigzag()?) } else { None };
            Action::Acquire(Acquire { amount, limit, frame, is_soft })
        }
        18 => {
            let told = batch.intern(reader.bytes_up_to(PAYLOAD_BYTES_MAX)?);
            Action::Told { add: read_guarded(reader)?, told }
        }
        19 => {
            let whole = batch.intern(reader.bytes_up_to(PAYLOAD_BYTES_MAX)?);
            Action::Restore { whole, expiry: read_expiry(reader)?, condition: read_condition(reader)? }
        }
        20 => Action::Slice { slice: batch.intern(reader.bytes_up_to(PAYLOAD_BYTES_MAX)?) },
        15 => Action::Reserve(read_guarded(reader)?, reader.varint()?),
        16 => {
            let (birth, number) = (reader.varint()?, reader.varint()?);
            Action::End { birth, number, ending: read_ending(reader)? }
        }
        _ => return Err(Malformed("unknown verb; sent by a newer version?")),
    };
    if key.is_empty() != action.is_global() {
        return Err(Malformed("a key where none belongs, or none where one does"));
    }
    match id {
        Some((id, index)) => batch.push_with_id(key, action, id, index),
        None => batch.push(key, action),
    };
    Ok(())
}

fn put_group(out: &mut Vec<u8>, batch: &Batch, group: &Group) {
    out.push(match group.kind {
        GroupKind::Atomic => 0,
        GroupKind::Session { .. } => 1,
        GroupKind::Guard { .. } => 2,
    });
    put_varint(out, group.start as u64);
    put_varint(out, group.end as u64);
    match group.kind {
        GroupKind::Atomic => {}
        GroupKind::Session { producer, epoch, sequence } => {
            put_bytes(out, batch.bytes(producer));
            put_varint(out, epoch);
            put_varint(out, sequence);
        }
        GroupKind::Guard { until } => put_varint(out, until as u64),
    }
}

fn read_group(reader: &mut Reader<'_>, batch: &mut Batch) -> Result<Group, Malformed> {
    let place = |number: u64| usize::try_from(number).map_err(|_| Malformed("place of a group"));
    let kind = reader.byte()?;
    let (start, end) = (place(reader.varint()?)?, place(reader.varint()?)?);
    let kind = match kind {
        0 => GroupKind::Atomic,
        1 => {
            let producer = batch.intern(reader.bytes_up_to(ID_BYTES_MAX)?);
            GroupKind::Session { producer, epoch: reader.varint()?, sequence: reader.varint()? }
        }
        2 => {
            let only_looks = |request: &Request| matches!(request.action, Action::Check(_));
            if !batch.requests.get(start..end).is_some_and(|checks| checks.iter().all(only_looks)) {
                return Err(Malformed("a guard that does more than look"));
            }
            GroupKind::Guard { until: place(reader.varint()?)? }
        }
        _ => return Err(Malformed("unknown kind of group; sent by a newer version?")),
    };
    Ok(Group { start, end, kind })
}

fn put_condition(out: &mut Vec<u8>, condition: Condition) {
    match condition {
        Condition::Always => out.push(0),
        Condition::Exists => out.push(1),
        Condition::Absent => out.push(2),
        Condition::Version(version) => {
            out.push(3);
            put_varint(out, version);
        }
        Condition::Tag { birth, version } => {
            out.push(4);
            put_varint(out, birth);
            put_varint(out, version);
        }
    }
}

fn read_condition(reader: &mut Reader<'_>) -> Result<Condition, Malformed> {
    Ok(match reader.byte()? {
        0 => Condition::Always,
        1 => Condition::Exists,
        2 => Condition::Absent,
        3 => Condition::Version(reader.varint()?),
        4 => Condition::Tag { birth: reader.varint()?, version: reader.varint()? },
        _ => return Err(Malformed("unknown condition; sent by a newer version?")),
    })
}

fn put_expiry(out: &mut Vec<u8>, expiry: Expiry) {
    let (tag, number) = match expiry {
        Expiry::Keep => (0, None),
        Expiry::Clear => (1, None),
        Expiry::In(ms) => (2, Some(ms)),
        Expiry::At(ms) => (3, Some(ms)),
        Expiry::InIfNone(ms) => (4, Some(ms)),
        Expiry::AtIfNone(ms) => (5, Some(ms)),
    };
    out.push(tag);
    if let Some(number) = number {
        put_varint(out, number);
    }
}

fn read_expiry(reader: &mut Reader<'_>) -> Result<Expiry, Malformed> {
    Ok(match reader.byte()? {
        0 => Expiry::Keep,
        1 => Expiry::Clear,
        2 => Expiry::In(reader.varint()?),
        3 => Expiry::At(reader.varint()?),
        4 => Expiry::InIfNone(reader.varint()?),
        5 => Expiry::AtIfNone(reader.varint()?),
        _ => return Err(Malformed("unknown expiry; sent by a newer version?")),
    })
}

fn read_when(reader: &mut Reader<'_>) -> Result<ExpireWhen, Malformed> {
    let number = usize::from(reader.byte()?);
    ExpireWhen::ALL
        .get(number)
        .copied()
        .ok_or(Malformed("unknown condition of an expiry; sent by a newer version?"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use quipu_counting::body::{Event, Shape};
    use quipu_counting::unique::hash;
    use quipu_counting::{Cell, Slice, Unique};

    use super::*;

    fn condition() -> impl Strategy<Value = Condition> {
        prop_oneof![
            Just(Condition::Always),
            Just(Condition::Exists),
            Just(Condition::Absent),
            any::<u64>().prop_map(Condition::Version),
            any::<(u64, u64)>().prop_map(|(birth, version)| Condition::Tag { birth, version }),
        ]
    }

    fn expiry() -> impl Strategy<Value = Expiry> {
        prop_oneof![
            Just(Expiry::Keep),
            Just(Expiry::Clear),
            any::<u64>().prop_map(Expiry::In),
            any::<u64>().prop_map(Expiry::At),
            any::<u64>().prop_map(Expiry::InIfNone),
            any::<u64>().prop_map(Expiry::AtIfNone),
        ]
    }

    fn action() -> impl Strategy<Value = Action> {
        let add = (any::<(i64, i64, i64, bool)>(), expiry(), condition()).prop_map(
            |((delta, min, max, saturate), expiry, condition)| {
                Action::Add(Add { delta, min, max, saturate, expiry, condition })
            },
        );
        let set = (any::<i64>(), expiry(), condition())
            .prop_map(|(value, expiry, condition)| Action::Set(Set { value, expiry, condition }));
        let expire = (expiry(), 0..ExpireWhen::ALL.len())
            .prop_map(|(expiry, when)| Action::Expire(Expire { expiry, when: ExpireWhen::ALL[when] }));
        prop_oneof![
            Just(Action::Read),
            condition().prop_map(Action::Check),
            Just(Action::Add(Add::plain(1))),
            any::<i64>().prop_map(|delta| Action::Add(Add::plain(delta))),
            add,
            set,
            condition().prop_map(Action::Reset),
            condition().prop_map(Action::Delete),
            expire,
            Just(Action::Count),
            Just(Action::Clear),
        ]
    }

    type Asked = (Vec<u8>, Action, Option<(Vec<u8>, u32)>);

    fn asked() -> impl Strategy<Value = Asked> {
        let bytes = |least| prop::collection::vec(any::<u8>(), least..20);
        (bytes(1), action(), prop::option::of((bytes(0), any::<u32>())))
    }

    fn batch_of(asked: &[Asked], groups: &[u8]) -> Batch {
        let mut batch = Batch::default();
        let mut kinds = groups.iter();
        for requests in asked.chunks(3) {
            let start = batch.requests.len();
            for (key, action, id) in requests {
                let key: &[u8] = if action.is_global() { &[] } else { key };
                match id {
                    Some((id, index)) => batch.push_with_id(key, *action, id, *index),
                    None => batch.push(key, *action),
                };
            }
            let is_check = |request: &Request| matches!(request.action, Action::Check(_));
            match kinds.next() {
                Some(0) => batch.group(start, GroupKind::Atomic),
                Some(1) => {
                    let producer = batch.intern(b"producer");
                    batch.group(start, GroupKind::Session { producer, epoch: 7, sequence: u64::MAX });
                }
                Some(2) if batch.requests[start..].iter().all(is_check) => {
                    batch.group(start, GroupKind::Guard { until: batch.requests.len() + 1 });
                }
                _ => {}
            }
        }
        batch
    }

    /// What a batch says, with all its bytes written out.
    fn said(batch: &Batch) -> String {
        let requests = batch.requests.iter().map(|request| {
            let id = request.id.map(|id| (batch.bytes(id.span), id.index));
            format!("{:?} {:?} {id:?}", batch.bytes(request.key), request.action)
        });
        let groups = batch.groups.iter().map(|group| match group.kind {
            GroupKind::Session { producer, epoch, sequence } => {
                format!("{}..{} {:?} {epoch} {sequence}", group.start, group.end, batch.bytes(producer))
            }
            kind => format!("{}..{} {kind:?}", group.start, group.end),
        });
        requests.chain(groups).collect::<Vec<_>>().join("\n")
    }

    proptest! {
        #[test]
        fn a_batch_is_read_as_written(
            asked in prop::collection::vec(asked(), 0..12),
            groups in prop::collection::vec(0u8..4, 0..4),
        ) {
            let batch = batch_of(&asked, &groups);
            let mut bytes = Vec::new();
            put_batch(&mut bytes, &batch);
            let mut read = Batch::default();
            let mut reader = Reader::new(&bytes);
            read_batch(&mut reader, &mut read).unwrap();
            prop_assert!(reader.is_empty());
            prop_assert_eq!(said(&read), said(&batch));
            for length in 0..bytes.len() {
                prop_assert!(read_batch(&mut Reader::new(&bytes[..length]), &mut Batch::default()).is_err());
            }
        }

        #[test]
        fn any_bytes_are_an_error_or_a_batch_that_can_be_walked(
            bytes in prop::collection::vec(any::<u8>(), 0..60),
        ) {
            let mut batch = Batch::default();
            if read_batch(&mut Reader::new(&bytes), &mut batch).is_ok() {
                said(&batch);
            }
            let _ = read_replies(&mut Reader::new(&bytes));
        }
    }

    #[test]
    fn who_wants_whole_counters_says_so() {
        let mut batch = Batch::default();
        batch.push(b"likes", Action::Read);
        for wants_whole in [false, true] {
            batch.wants_whole = wants_whole;
            let (mut bytes, mut read) = (Vec::new(), Batch::default());
            put_batch(&mut bytes, &batch);
            read_batch(&mut Reader::new(&bytes), &mut read).unwrap();
            assert_eq!(read.wants_whole, wants_whole);
            let mut more = Batch::default();
            more.append(&read);
            assert_eq!(more.wants_whole, wants_whole);
        }
    }

    #[test]
    fn replies_are_read_as_written() {
        let cell = Cell { value: i64::MIN, version: u64::MAX, updated_at_ms: 3, birth: 4, expires_at_ms: 5 };
        let declared = Declared::new(&[vec!["day".into()], vec!["tenant".into()]]).unwrap().unwrap();
        let detailed = |detail| Reply { detail: Some(Arc::new(detail)), ..Reply::state(Some(cell)) };
        let replies = [
            Reply::state(None),
            Reply::state(Some(cell)),
            Reply {
                refusal: Some(Refusal::Fenced),
                duplicate: true,
                applied: i64::MAX,
                ..Reply::state(None)
            },
            detailed(Detail::Sliced(Sliced {
                value: -3,
                groups: vec![(vec!["a".into(), String::new()], i64::MIN), (Vec::new(), 1)],
                is_partial: true,
            })),
            detailed(Detail::Declared(declared.clone())),
        ];
        let mut bytes = Vec::new();
        put_replies(&mut bytes, &replies, false);
        assert_eq!(read_replies(&mut Reader::new(&bytes)).unwrap(), replies);
    }

    #[test]
    fn a_part_of_a_value_is_asked_for_as_written() {
        let mut batch = Batch::default();
        let slice = Slice::parse("tenant:a,day:*").unwrap();
        let action = slice.action(&mut batch);
        batch.push(b"likes", action);
        let (mut bytes, mut read) = (Vec::new(), Batch::default());
        put_batch(&mut bytes, &batch);
        read_batch(&mut Reader::new(&bytes), &mut read).unwrap();
        assert_eq!(Slice::read(read.payload(0)), Some(slice));
    }

    #[test]
    fn what_was_seen_is_read_as_written_with_its_time() {
        for at_ms in [None, Some(0), Some(u64::MAX)] {
            let mut batch = Batch::default();
            let items = batch.intern(b"hashes");
            batch.push(b"visitors", Action::Observe { items, at_ms });
            let (mut bytes, mut read) = (Vec::new(), Batch::default());
            put_batch(&mut bytes, &batch);
            read_batch(&mut Reader::new(&bytes), &mut read).unwrap();
            assert!(
                matches!(read.requests[0].action, Action::Observe { at_ms: known, .. } if known == at_ms)
            );
            assert_eq!(read.payload(0), b"hashes");
        }
    }

    #[test]
    fn an_increment_costs_its_key_and_two_bytes() {
        let mut batch = Batch::default();
        batch.push(b"counter:1", Action::Add(Add::plain(1)));
        let (mut one, mut two) = (Vec::new(), Vec::new());
        put_batch(&mut one, &batch);
        batch.push(b"counter:2", Action::Add(Add::plain(1)));
        put_batch(&mut two, &batch);
        assert_eq!(two.len() - one.len(), 9 + 2);
    }

    #[test]
    fn a_body_is_sent_once_and_not_without_end() {
        let body = |items: u64| {
            let mut unique = Unique::new();
            for item in 0..items {
                unique.observe(hash(&item.to_le_bytes()));
            }
            let mut body = Body::new(Shape::Unique);
            body.apply(Event::Replace(unique), 0).unwrap();
            Arc::new(body)
        };
        let shown = |body: &Arc<Body>| Reply {
            detail: Some(Arc::new(Detail::Body(Arc::clone(body), None))),
            ..Reply::state(None)
        };
        let same = body(100_000);
        let mut bytes = Vec::new();
        let replies = vec![shown(&same); 1_000];
        put_replies(&mut bytes, &replies, false);
        assert!(bytes.len() < 100_000, "{}", bytes.len());
        assert_eq!(read_replies(&mut Reader::new(&bytes)).unwrap(), replies);

        bytes.clear();
        let many: Vec<Reply> = (0..4_000).map(|_| shown(&Arc::new(Body::clone(&same)))).collect();
        put_replies(&mut bytes, &many, false);
        assert!(bytes.len() < BODIES_BYTES_MAX + (1 << 20), "{}", bytes.len());
        let read = read_replies(&mut Reader::new(&bytes)).unwrap();
        assert_eq!(read.len(), many.len());
        assert_eq!(read[0], many[0]);
        assert_eq!(read[3_999].refusal, Some(Refusal::TooLarge));
    }
}

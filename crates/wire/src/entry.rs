//! The one binary codec of log records, cells and remembered ids.
//!
//! A record is what one batch did, as decided: it is applied again after a restart, never decided again, so a
//! change of the rules cannot rewrite the past. Of a counter that is more than its cell the log says what happened to the rest;
//! replay finds the rest itself in the checkpoint.
//!
//! ```text
//! record   := section*                      one per partition that changed; one without effects moves the sequence on
//! section  := partition:v  time_ms:v  sequence:v  length:v  effect*   (length counts the effects' bytes)
//! effect   := 0x01 id:v key            define: from here on id is this key, which does not exist
//!           | 0x02 id:v key cell       define: from here on id is this key, which is this cell
//!           | 0x03 id:v                add 1
//!           | 0x04 id:v delta:z        add: value + delta, version + 1, updated at the section's time
//!           | 0x05 id:v cell           put: the cell is now this
//!           | 0x06 id:v                remove
//!           | 0x07 remembered          a request id with its outcome
//!           | 0x08 producer session    a producer's last sequence
//!           | 0x09 pattern policy      a policy is stored
//!           | 0x0a pattern             a policy is removed
//!           | 0x0b                     every cell of the partition is removed
//!           | 0x0c id:v delta:z identity:16   add under a request id: the addition of exactly this, with no bounds and
//!                                      conditions, which is remembered with its outcome at the section's time
//!           | 0x0d id:v times:v delta:z  add so many times, delta in all: version + times
//!           | 0x0e id:v cell events    put, and the body changes by these events (see `quipu_counting::body`)
//!           | 0x10 key keep_ms:v change  a row of the counter's trail, kept so long (see `crate::audit`); an empty key stands for all
//!           | 0x0f id:v key cell       define: as 0x02, of a counter with a body, which is in the checkpoint or known already
//! key      := length:v bytes          producer, pattern, events: the same
//! cell     := value:z version:v updated_at_ms:v birth:v expires:v
//!             (expires: 0 for never, else 1 + expires_at_ms)
//! remembered := identity:16 fingerprint:8 at_ms:v outcome
//! outcome  := flags:1 value:z change:z version:v birth:v      (change: value minus previous, wrapping)
//!             (flags: bits 0-5 refusal number, bit 6 existed, bit 7 exists)
//! session  := epoch:v sequence:v refusal:1
//! policy   := flags:1 [min:z] [max:z] [ttl_ms:v] [kind:1] [frame keep_ms:v] [limit:z] [history]
//!             [more:v [audit_ms:v] [lateness_ms:v] [rollups] [keep_ms:v*6] [stripes:v]]
//!             (flags: 1 min, 2 max, 4 ttl, 8 saturate, 16 disabled, 32 kind, 64 window, 128 limit; of kind, bit 7: soft, bit 6: history,
//!             bit 5: more; of more, bit 0: audit, bit 1: lateness, bit 2: rollups, bit 3: how long cells by minute, hour, day, week,
//!             month and year are kept, bit 6: stripes)
//! history  := minutes_ms:v hours_ms:v days_ms:v
//! v = unsigned LEB128, z = zigzag LEB128; fixed numbers little-endian
//! ```
//!
//! `sequence` is the partition's after the section. Ids are local to one partition. They are not request ids but
//! record numbers of the process that wrote them, defined again after every checkpoint and when a record has moved.

use quipu_counting::body::{Keeping, put_frame, put_retention, read_frame};
use quipu_counting::bytes::Bytes;
use quipu_counting::rollup::{CellsKept, Declared};
use quipu_counting::series::Retention;
use quipu_counting::{
    Cell, Identity, KEY_BYTES_MAX, Kind, NEVER, Outcome, Policy, Refusal, Remembered, Session,
};

/// The bytes are not what this version writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed record: {0}")]
pub struct Malformed(pub &'static str);

/// One section of a record.
#[derive(Clone, Copy, Debug)]
pub struct Section<'a> {
    /// Which partition.
    pub partition: u16,
    /// Entry time of the section's changes.
    pub time_ms: u64,
    /// The partition's sequence after the section.
    pub sequence: u64,
    effects: Reader<'a>,
}

/// One effect of a batch on a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect<'a> {
    /// From here on `id` stands for `key`, whose state is `cell`.
    Define {
        /// The id.
        id: u32,
        /// The key.
        key: &'a [u8],
        /// Its cell before what follows, if it exists.
        cell: Option<Cell>,
        /// Whether it has a body.
        has_body: bool,
    },
    /// The most frequent change in its shortest form.
    Add {
        /// The id.
        id: u32,
        /// By how much in all.
        delta: i64,
        /// In how many changes.
        times: u64,
    },
    /// The cell is now this.
    Put {
        /// The id.
        id: u32,
        /// The cell.
        cell: Cell,
    },
    /// The cell is now this, and its body changed.
    PutWhole {
        /// The id.
        id: u32,
        /// The cell.
        cell: Cell,
        /// How the body changed.
        events: &'a [u8],
    },
    /// The cell no longer exists.
    Remove {
        /// The id.
        id: u32,
    },
    /// An addition without bounds and conditions under a request id: what it came to is remembered.
    AddUnder {
        /// The id of the key.
        id: u32,
        /// By how much: as asked, and as done.
        delta: i64,
        /// The identity of the request id.
        identity: Identity,
    },
    /// A request id is remembered.
    Remember(Remembered),
    /// A producer session moved on.
    Session {
        /// The producer's name.
        producer: &'a [u8],
        /// Its state.
        session: Session,
    },
    /// A policy is stored or removed.
    Policy {
        /// The pattern.
        pattern: &'a [u8],
        /// The policy; `None` removes.
        policy: Option<Policy>,
    },
    /// Every cell of the partition is removed.
    Clear,
    /// A row of a trail.
    Audit {
        /// Of which counter; empty for all.
        key: &'a [u8],
        /// How long it is kept.
        keep_ms: u64,
        /// The row, see [`crate::audit`].
        change: &'a [u8],
    },
}

/// Appends the header of a section whose effects are `effects`.
pub fn put_section(out: &mut Vec<u8>, partition: u16, time_ms: u64, sequence: u64, effects: &[u8]) {
    put_varint(out, u64::from(partition));
    put_varint(out, time_ms);
    put_varint(out, sequence);
    put_varint(out, effects.len() as u64);
    out.extend_from_slice(effects);
}

/// The most bytes the header of a section takes.
pub const SECTION_HEADER_BYTES_MAX: usize = 3 + 10 + 10 + 10;
/// The most bytes the effects of one request take, beside its key: define, put and remember.
pub const EFFECTS_BYTES_MAX: usize =
    (1 + 5 + 2 + CELL_BYTES_MAX) + (1 + 5 + CELL_BYTES_MAX) + (1 + REMEMBERED_BYTES_MAX) + EVENTS_BYTES_MAX;
/// The most bytes the events of one request take, beside the bytes that belong to the request, and what policies have it say.
const EVENTS_BYTES_MAX: usize = 192;
const CELL_BYTES_MAX: usize = 5 * 10;
/// The most bytes a remembered id takes.
pub const REMEMBERED_BYTES_MAX: usize = 16 + 8 + 10 + 1 + 4 * 10;

/// Appends a define.
pub fn put_define(out: &mut Vec<u8>, id: u32, key: &[u8], cell: Option<&Cell>, has_body: bool) {
    out.push(match (cell, has_body) {
        (None, _) => 0x01,
        (Some(_), false) => 0x02,
        (Some(_), true) => 0x0f,
    });
    put_varint(out, u64::from(id));
    put_bytes(out, key);
    if let Some(cell) = cell {
        put_cell(out, cell);
    }
}

/// Appends additions of `delta` in all.
#[inline]
pub fn put_add(out: &mut Vec<u8>, id: u32, delta: i64, times: u64) {
    match (times, delta) {
        (1, 1) => {
            out.push(0x03);
            put_varint(out, u64::from(id));
        }
        (1, _) => {
            out.push(0x04);
            put_varint(out, u64::from(id));
            put_zigzag(out, delta);
        }
        _ => {
            out.push(0x0d);
            put_varint(out, u64::from(id));
            put_varint(out, times);
            put_zigzag(out, delta);
        }
    }
}

/// Appends an addition under a request id.
#[inline]
pub fn put_add_under(out: &mut Vec<u8>, id: u32, delta: i64, identity: Identity) {
    out.push(0x0c);
    put_varint(out, u64::from(id));
    put_zigzag(out, delta);
    out.extend_from_slice(&identity.to_le_bytes());
}

/// Appends a put or a remove.
pub fn put_put(out: &mut Vec<u8>, id: u32, cell: Option<&Cell>) {
    out.push(if cell.is_some() { 0x05 } else { 0x06 });
    put_varint(out, u64::from(id));
    if let Some(cell) = cell {
        put_cell(out, cell);
    }
}

/// Appends a put with events of the body.
pub fn put_whole(out: &mut Vec<u8>, id: u32, cell: &Cell, events: &[u8]) {
    out.push(0x0e);
    put_varint(out, u64::from(id));
    put_cell(out, cell);
    put_bytes(out, events);
}

/// Appends a remembered id.
pub fn put_remember(out: &mut Vec<u8>, remembered: &Remembered) {
    out.push(0x07);
    put_remembered(out, remembered);
}

/// Appends a session.
pub fn put_session(out: &mut Vec<u8>, producer: &[u8], session: &Session) {
    out.push(0x08);
    put_bytes(out, producer);
    put_session_value(out, session);
}

/// Appends a policy, or its removal.
pub fn put_policy(out: &mut Vec<u8>, pattern: &[u8], policy: Option<&Policy>) {
    out.push(if policy.is_some() { 0x09 } else { 0x0a });
    put_bytes(out, pattern);
    if let Some(policy) = policy {
        put_policy_value(out, policy);
    }
}

/// Appends the removal of everything.
pub fn put_clear(out: &mut Vec<u8>) {
    out.push(0x0b);
}

/// Appends a row of a trail.
pub fn put_audit(out: &mut Vec<u8>, key: &[u8], keep_ms: u64, change: &[u8]) {
    out.push(0x10);
    put_bytes(out, key);
    put_varint(out, keep_ms);
    put_bytes(out, change);
}

/// The sections of a record.
pub fn sections(record: &[u8]) -> impl Iterator<Item = Result<Section<'_>, Malformed>> {
    let mut reader = Reader::new(record);
    std::iter::from_fn(move || {
        if reader.is_empty() {
            return None;
        }
        let section = read_section(&mut reader);
        if section.is_err() {
            reader = Reader::new(&[]);
        }
        Some(section)
    })
}

fn read_section<'a>(reader: &mut Reader<'a>) -> Result<Section<'a>, Malformed> {
    let partition = u16::try_from(reader.varint()?).map_err(|_| Malformed("partition number"))?;
    let time_ms = reader.varint()?;
    let sequence = reader.varint()?;
    let effects = Reader::new(reader.bytes()?);
    Ok(Section { partition, time_ms, sequence, effects })
}

impl<'a> Section<'a> {
    /// The effects in order.
    pub fn effects(&self) -> impl Iterator<Item = Result<Effect<'a>, Malformed>> + use<'a> {
        let mut reader = self.effects;
        std::iter::from_fn(move || {
            if reader.is_empty() {
                return None;
            }
            let effect = read_effect(&mut reader);
            if effect.is_err() {
                reader = Reader::new(&[]);
            }
            Some(effect)
        })
    }
}

fn read_effect<'a>(reader: &mut Reader<'a>) -> Result<Effect<'a>, Malformed> {
    let tag = reader.byte()?;
    Ok(match tag {
        0x01 | 0x02 | 0x0f => {
            let id = reader.id()?;
            let key = reader.bytes()?;
            if key.is_empty() || key.len() > KEY_BYTES_MAX {
                return Err(Malformed("key length"));
            }
            let cell = if tag == 0x01 { None } else { Some(reader.cell()?) };
            Effect::Define { id, key, cell, has_body: tag == 0x0f }
        }
        0x03 => Effect::Add { id: reader.id()?, delta: 1, times: 1 },
        0x04 => Effect::Add { id: reader.id()?, delta: reader.zigzag()?, times: 1 },
        0x05 => Effect::Put { id: reader.id()?, cell: reader.cell()? },
        0x06 => Effect::Remove { id: reader.id()? },
        0x07 => {
            let identity = u128::from_le_bytes(reader.array()?);
            Effect::Remember(reader.remembered_value(identity)?)
        }
        0x08 => Effect::Session { producer: reader.bytes()?, session: reader.session()? },
        0x09 => Effect::Policy { pattern: reader.bytes()?, policy: Some(reader.policy()?) },
        0x0a => Effect::Policy { pattern: reader.bytes()?, policy: None },
        0x0b => Effect::Clear,
        0x0c => Effect::AddUnder {
            id: reader.id()?,
            delta: reader.zigzag()?,
            identity: Identity::from_le_bytes(reader.array()?),
        },
        0x0e => Effect::PutWhole { id: reader.id()?, cell: reader.cell()?, events: reader.bytes()? },
        0x0d => Effect::Add { id: reader.id()?, times: reader.varint()?, delta: reader.zigzag()? },
        0x10 => Effect::Audit {
            key: reader.bytes_up_to(KEY_BYTES_MAX)?,
            keep_ms: reader.varint()?,
            change: reader.bytes()?,
        },
        _ => return Err(Malformed("unknown effect; written by a newer version?")),
    })
}

/// Appends a cell.
pub fn put_cell(out: &mut Vec<u8>, cell: &Cell) {
    put_zigzag(out, cell.value);
    put_varint(out, cell.version);
    put_varint(out, cell.updated_at_ms);
    put_varint(out, cell.birth);
    put_varint(out, if cell.expires_at_ms == NEVER { 0 } else { cell.expires_at_ms + 1 });
}

/// Appends an identity and what is remembered under it.
pub fn put_remembered(out: &mut Vec<u8>, remembered: &Remembered) {
    out.extend_from_slice(&remembered.identity.to_le_bytes());
    put_remembered_value(out, remembered);
}

fn put_remembered_value(out: &mut Vec<u8>, remembered: &Remembered) {
    let outcome = &remembered.outcome;
    out.extend_from_slice(&remembered.fingerprint.to_le_bytes());
    put_varint(out, remembered.at_ms);
    let refusal = outcome.refusal.map_or(0, Refusal::number);
    debug_assert!(refusal < 1 << 6);
    out.push(refusal | u8::from(outcome.existed) << 6 | u8::from(outcome.exists) << 7);
    put_zigzag(out, outcome.value);
    put_zigzag(out, outcome.value.wrapping_sub(outcome.previous));
    put_varint(out, outcome.version);
    put_varint(out, outcome.birth);
}

/// Appends the state of a session.
pub fn put_session_value(out: &mut Vec<u8>, session: &Session) {
    put_varint(out, session.epoch);
    put_varint(out, session.sequence);
    put_refusal(out, session.refusal);
}

/// Appends the number of a refusal; 0 for none.
pub fn put_refusal(out: &mut Vec<u8>, refusal: Option<Refusal>) {
    out.push(refusal.map_or(0, Refusal::number));
}

/// Appends a policy.
pub fn put_policy_value(out: &mut Vec<u8>, policy: &Policy) {
    let bit = |condition: bool, bit: u8| if condition { bit } else { 0 };
    let more = [
        (policy.audit_ms.is_some(), POLICY_MORE_AUDIT),
        (policy.lateness_ms.is_some(), POLICY_MORE_LATENESS),
        (policy.rollups.is_some(), POLICY_MORE_ROLLUPS),
        (!policy.rollups_kept.is_for_ever(), POLICY_MORE_KEPT),
        (policy.strong, POLICY_MORE_STRONG),
        (policy.stripes.is_some(), POLICY_MORE_STRIPES),
    ];
    let more: u64 = more.into_iter().filter(|(is_there, _)| *is_there).map(|(_, bit)| bit).sum();
    let has_kind = policy.kind.is_some() || policy.soft || policy.history.is_some() || more != 0;
    out.push(
        bit(policy.min.is_some(), 1)
            | bit(policy.max.is_some(), 2)
            | bit(policy.ttl_ms.is_some(), 4)
            | bit(policy.saturate, 8)
            | bit(policy.disabled, 16)
            | bit(has_kind, 32)
            | bit(policy.window.is_some(), 64)
            | bit(policy.limit.is_some(), 128),
    );
    if let Some(min) = policy.min {
        put_zigzag(out, min);
    }
    if let Some(max) = policy.max {
        put_zigzag(out, max);
    }
    if let Some(ttl_ms) = policy.ttl_ms {
        put_varint(out, ttl_ms);
    }
    if has_kind {
        let kind = policy.kind.map_or(0, |kind| 1 + kind as u8);
        out.push(
            kind | bit(policy.soft, POLICY_SOFT)
                | bit(policy.history.is_some(), POLICY_HISTORY)
                | bit(more != 0, POLICY_MORE),
        );
    }
    if let Some(keeping) = &policy.window {
        let mut frame = Vec::new();
        put_frame(&mut frame, &keeping.frame);
        put_bytes(out, &frame);
        put_varint(out, keeping.keep_ms);
    }
    if let Some(limit) = policy.limit {
        put_zigzag(out, limit);
    }
    if let Some(history) = &policy.history {
        put_retention(out, history);
    }
    if more != 0 {
        put_varint(out, more);
    }
    if let Some(audit_ms) = policy.audit_ms {
        put_varint(out, audit_ms);
    }
    if let Some(lateness_ms) = policy.lateness_ms {
        put_varint(out, lateness_ms);
    }
    if let Some(rollups) = &policy.rollups {
        let mut declared = Vec::new();
        rollups.put(&mut declared);
        put_bytes(out, &declared);
    }
    if !policy.rollups_kept.is_for_ever() {
        policy.rollups_kept.to_ms().into_iter().for_each(|ms| put_varint(out, ms));
    }
    if let Some(stripes) = policy.stripes {
        put_varint(out, u64::from(stripes));
    }
}

const POLICY_SOFT: u8 = 0x80;
const POLICY_HISTORY: u8 = 0x40;
const POLICY_MORE: u8 = 0x20;
const POLICY_MORE_AUDIT: u64 = 1;
const POLICY_MORE_LATENESS: u64 = 2;
const POLICY_MORE_ROLLUPS: u64 = 4;
const POLICY_MORE_KEPT: u64 = 8;
const POLICY_MORE_STRONG: u64 = 16;
const POLICY_MORE_STRIPES: u64 = 64;
const POLICY_MORE_ALL: u64 = POLICY_MORE_AUDIT
    | POLICY_MORE_LATENESS
    | POLICY_MORE_ROLLUPS
    | POLICY_MORE_KEPT
    | POLICY_MORE_STRONG
    | POLICY_MORE_STRIPES;

/// Appends bytes behind their length.
pub fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends an unsigned number.
#[inline]
pub fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Appends a signed number.
#[inline]
pub fn put_zigzag(out: &mut Vec<u8>, number: i64) {
    put_varint(out, (number << 1) as u64 ^ (number >> 63) as u64);
}

/// Reads what the functions above wrote. Never panics, whatever the bytes.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads from the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    /// Bytes not yet read.
    pub fn len(&self) -> usize {
        self.rest.len()
    }

    /// Whether everything is read.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// One byte.
    pub fn byte(&mut self) -> Result<u8, Malformed> {
        let (first, rest) = self.rest.split_first().ok_or(Malformed("cut short"))?;
        self.rest = rest;
        Ok(*first)
    }

    /// So many bytes.
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (first, rest) = self.rest.split_first_chunk::<N>().ok_or(Malformed("cut short"))?;
        self.rest = rest;
        Ok(*first)
    }

    /// Bytes behind their length.
    pub fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = usize::try_from(self.varint()?).map_err(|_| Malformed("length"))?;
        if length > self.rest.len() {
            return Err(Malformed("length beyond the end"));
        }
        let (bytes, rest) = self.rest.split_at(length);
        self.rest = rest;
        Ok(bytes)
    }

    /// Bytes behind their length, which has a limit.
    pub fn bytes_up_to(&mut self, limit: usize) -> Result<&'a [u8], Malformed> {
        self.bytes().and_then(|bytes| if bytes.len() <= limit { Ok(bytes) } else { Err(Malformed("length")) })
    }

    /// How many things follow, each of at least one byte: no more than there are bytes.
    pub fn count(&mut self) -> Result<usize, Malformed> {
        let count = self.varint()?;
        usize::try_from(count)
            .ok()
            .filter(|count| *count <= self.rest.len())
            .ok_or(Malformed("more things than bytes"))
    }

    /// Yes or no.
    pub fn flag(&mut self) -> Result<bool, Malformed> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("neither yes nor no")),
        }
    }

    /// An unsigned number.
    #[inline]
    pub fn varint(&mut self) -> Result<u64, Malformed> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(Malformed("number too large"));
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Malformed("number too long"))
    }

    /// A signed number.
    pub fn zigzag(&mut self) -> Result<i64, Malformed> {
        let number = self.varint()?;
        Ok((number >> 1) as i64 ^ -((number & 1) as i64))
    }

    fn id(&mut self) -> Result<u32, Malformed> {
        u32::try_from(self.varint()?).map_err(|_| Malformed("id"))
    }

    /// A cell.
    pub fn cell(&mut self) -> Result<Cell, Malformed> {
        Ok(Cell {
            value: self.zigzag()?,
            version: self.varint()?,
            updated_at_ms: self.varint()?,
            birth: self.varint()?,
            expires_at_ms: match self.varint()? {
                0 => NEVER,
                later => later - 1,
            },
        })
    }

    /// What is remembered of an id.
    pub fn remembered_value(&mut self, identity: u128) -> Result<Remembered, Malformed> {
        let fingerprint = u64::from_le_bytes(self.array()?);
        let at_ms = self.varint()?;
        let flags = self.byte()?;
        let value = self.zigzag()?;
        let outcome = Outcome {
            refusal: read_refusal(flags & 0x3f)?,
            existed: flags & 0x40 != 0,
            exists: flags & 0x80 != 0,
            value,
            previous: value.wrapping_sub(self.zigzag()?),
            version: self.varint()?,
            birth: self.varint()?,
        };
        Ok(Remembered { identity, fingerprint, at_ms, outcome })
    }

    /// Of an identity and what is remembered under it, only when that was.
    pub fn remembered_at_ms(&mut self) -> Result<u64, Malformed> {
        let _identity_and_fingerprint: [u8; 16 + 8] = self.array()?;
        self.varint()
    }

    /// A session.
    pub fn session(&mut self) -> Result<Session, Malformed> {
        Ok(Session { epoch: self.varint()?, sequence: self.varint()?, refusal: read_refusal(self.byte()?)? })
    }

    /// A policy.
    pub fn policy(&mut self) -> Result<Policy, Malformed> {
        let flags = self.byte()?;
        let mut policy = Policy {
            min: if flags & 1 != 0 { Some(self.zigzag()?) } else { None },
            max: if flags & 2 != 0 { Some(self.zigzag()?) } else { None },
            ttl_ms: if flags & 4 != 0 { Some(self.varint()?) } else { None },
            saturate: flags & 8 != 0,
            disabled: flags & 16 != 0,
            ..Policy::default()
        };
        let (mut has_history, mut has_more) = (false, false);
        if flags & 32 != 0 {
            let kind = self.byte()?;
            policy.soft = kind & POLICY_SOFT != 0;
            has_history = kind & POLICY_HISTORY != 0;
            has_more = kind & POLICY_MORE != 0;
            policy.kind = match usize::from(kind & !POLICY_SOFT & !POLICY_HISTORY & !POLICY_MORE) {
                0 => None,
                number => {
                    let known = Kind::ALL.get(number - 1);
                    Some(known.ok_or(Malformed("unknown kind of counter; written by a newer version?"))?.0)
                }
            };
        }
        if flags & 64 != 0 {
            let frame = read_frame(&mut Bytes::new(self.bytes()?)).ok_or(Malformed("how time is cut"))?;
            policy.window = Some(Keeping { frame, keep_ms: self.varint()? });
        }
        if flags & 128 != 0 {
            policy.limit = Some(self.zigzag()?);
        }
        if has_history {
            let (minutes_ms, hours_ms, days_ms) = (self.varint()?, self.varint()?, self.varint()?);
            policy.history = Some(Retention { minutes_ms, hours_ms, days_ms });
        }
        if has_more {
            let more = self.varint()?;
            if more & !POLICY_MORE_ALL != 0 {
                return Err(Malformed("unknown part of a policy; written by a newer version?"));
            }
            policy.strong = more & POLICY_MORE_STRONG != 0;
            if more & POLICY_MORE_AUDIT != 0 {
                policy.audit_ms = Some(self.varint()?);
            }
            if more & POLICY_MORE_LATENESS != 0 {
                policy.lateness_ms = Some(self.varint()?);
            }
            if more & POLICY_MORE_ROLLUPS != 0 {
                let declared = Declared::read(&mut Bytes::new(self.bytes()?));
                policy.rollups = Some(declared.ok_or(Malformed("roll-ups of a policy"))?);
            }
            if more & POLICY_MORE_KEPT != 0 {
                let mut kept = CellsKept::default().to_ms();
                for ms in &mut kept {
                    *ms = self.varint()?;
                }
                policy.rollups_kept = CellsKept::from_ms(kept);
            }
            if more & POLICY_MORE_STRIPES != 0 {
                let stripes = u16::try_from(self.varint()?);
                policy.stripes = Some(stripes.map_err(|_| Malformed("stripes of a policy"))?);
            }
        }
        Ok(policy)
    }
}

/// From the number of a refusal; 0 is none.
pub fn read_refusal(number: u8) -> Result<Option<Refusal>, Malformed> {
    match number {
        0 => Ok(None),
        number => Refusal::from_number(number)
            .map(Some)
            .ok_or(Malformed("unknown refusal; written by a newer version?")),
    }
}

#[cfg(test)]
mod tests {
    use quipu_counting::window::Frame;

    use super::*;

    fn all_effects(key: &[u8]) -> Vec<Effect<'_>> {
        let cell =
            Cell { value: i64::MIN, version: u64::MAX, updated_at_ms: 1, birth: 7, expires_at_ms: NEVER };
        let outcome = Outcome {
            refusal: Some(Refusal::AboveCeiling),
            existed: true,
            exists: false,
            value: -5,
            previous: i64::MAX,
            version: 3,
            birth: 9,
        };
        let remembered =
            Remembered { identity: u128::MAX - 1, fingerprint: 77, at_ms: 1_700_000_000_000, outcome };
        let policy = Policy {
            min: Some(-1),
            max: Some(i64::MAX),
            saturate: true,
            ttl_ms: Some(5),
            disabled: true,
            kind: Some(Kind::Window),
            window: Some(Keeping {
                frame: Frame::Sliding { span_ms: 60_000, bucket_ms: 1_000 },
                keep_ms: 120_000,
            }),
            limit: Some(7),
            soft: true,
            history: Some(Retention { minutes_ms: 1, hours_ms: 2, days_ms: 3 }),
            lateness_ms: Some(u64::MAX),
            audit_ms: Some(86_400_000),
            rollups: Declared::new(&[vec!["day".into()], vec!["tenant".into(), "day".into()]]).unwrap(),
            rollups_kept: CellsKept::new([("minute", 60_000), ("year", u64::MAX)]).unwrap(),
            strong: true,
            stripes: Some(64),
        };
        vec![
            Effect::Define { id: 1, key, cell: None, has_body: false },
            Effect::Define { id: 3, key, cell: Some(cell), has_body: true },
            Effect::PutWhole { id: 3, cell, events: b"events" },
            Effect::Define {
                id: u32::MAX,
                key,
                cell: Some(Cell { expires_at_ms: 0, ..cell }),
                has_body: false,
            },
            Effect::Add { id: 1, delta: 1, times: 1 },
            Effect::Add { id: 300, delta: -1, times: 1 },
            Effect::Add { id: 300, delta: i64::MIN, times: u64::MAX },
            Effect::Put { id: 1, cell },
            Effect::Remove { id: 1 },
            Effect::Remember(remembered),
            Effect::Session { producer: b"p", session: Session { epoch: 1, sequence: 2, refusal: None } },
            Effect::Policy { pattern: b"a*", policy: Some(policy) },
            Effect::Policy { pattern: b"a*", policy: None },
            Effect::Clear,
            Effect::AddUnder { id: 70_000, delta: i64::MIN, identity: u128::MAX / 3 },
            Effect::Audit { key, keep_ms: 86_400_000, change: b"change" },
        ]
    }

    fn put(out: &mut Vec<u8>, effect: &Effect<'_>) {
        match effect {
            Effect::Define { id, key, cell, has_body } => put_define(out, *id, key, cell.as_ref(), *has_body),
            Effect::PutWhole { id, cell, events } => put_whole(out, *id, cell, events),
            Effect::Add { id, delta, times } => put_add(out, *id, *delta, *times),
            Effect::AddUnder { id, delta, identity } => put_add_under(out, *id, *delta, *identity),
            Effect::Put { id, cell } => put_put(out, *id, Some(cell)),
            Effect::Remove { id } => put_put(out, *id, None),
            Effect::Remember(remembered) => put_remember(out, remembered),
            Effect::Session { producer, session } => put_session(out, producer, session),
            Effect::Policy { pattern, policy } => put_policy(out, pattern, policy.as_ref()),
            Effect::Clear => put_clear(out),
            Effect::Audit { key, keep_ms, change } => put_audit(out, key, *keep_ms, change),
        }
    }

    #[test]
    fn what_is_written_is_read() {
        let effects = all_effects(b"counter:1");
        let mut body = Vec::new();
        effects.iter().for_each(|effect| put(&mut body, effect));
        let mut record = Vec::new();
        put_section(&mut record, 15, 42, 99, &body);
        put_section(&mut record, 3, 43, 1, &[]);
        let sections: Vec<Section<'_>> = sections(&record).collect::<Result<_, _>>().unwrap();
        assert_eq!(sections.len(), 2);
        assert_eq!((sections[0].partition, sections[0].time_ms, sections[0].sequence), (15, 42, 99));
        assert_eq!(sections[0].effects().collect::<Result<Vec<_>, _>>().unwrap(), effects);
        assert_eq!(sections[1].effects().count(), 0);
    }

    #[test]
    fn cut_or_changed_bytes_are_an_error_or_another_record_but_never_a_panic() {
        let mut body = Vec::new();
        all_effects(b"counter:1").iter().for_each(|effect| put(&mut body, effect));
        let mut record = Vec::new();
        put_section(&mut record, 15, 42, 99, &body);
        let walk = |bytes: &[u8]| -> Result<usize, Malformed> {
            let mut count = 0;
            for section in sections(bytes) {
                for effect in section?.effects() {
                    effect?;
                    count += 1;
                }
            }
            Ok(count)
        };
        for length in 1..record.len() {
            assert!(walk(&record[..length]).is_err(), "cut at {length}");
        }
        for position in 0..record.len() {
            for bit in 0..8 {
                let mut changed = record.clone();
                changed[position] ^= 1 << bit;
                let _ = walk(&changed);
            }
        }
    }

    #[test]
    fn a_plain_increment_is_short() {
        let mut out = Vec::new();
        put_add(&mut out, 60_000, 1, 1);
        assert_eq!(out.len(), 4);
    }
}

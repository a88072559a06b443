//! Request ids: recognizing the same request when it comes again.
//!
//! The scope of an id is (namespace, key, id). Its *identity* is a 128-bit keyed hash of that, so that a
//! remembered id costs the same whatever its length and nobody can aim for a collision. The *fingerprint* is a
//! hash of what was asked: the same id with another fingerprint is an error of the caller.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;
use siphasher::sip128::SipHasher13 as SipHasher13Wide;

use crate::action::{Action, Condition, Ending, ExpireWhen, Expiry};
use crate::batch::{Batch, Group, Reply};
use crate::cell::Cell;
use crate::kinds::split_join;
use crate::refusal::Refusal;

/// The identity of a request id in its scope.
pub type Identity = u128;

/// The secret of a data folder that keys its identities. Drawn once, at creation, and kept with the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdentityKey(pub [u8; 16]);

impl IdentityKey {
    /// The identity of item `index` of the request `id` on `key`.
    pub fn identity(&self, namespace: u32, key: &[u8], id: &[u8], index: u32) -> Identity {
        // In one piece: the hasher takes whole words much faster than many short writes.
        let (mut short, mut long) = ([0; 256], Vec::new());
        let length = 10 + key.len() + id.len();
        let scope = if length <= short.len() {
            &mut short[..length]
        } else {
            long.resize(length, 0);
            &mut long[..]
        };
        scope[..4].copy_from_slice(&namespace.to_le_bytes());
        scope[4..8].copy_from_slice(&index.to_le_bytes());
        scope[8..10].copy_from_slice(&(key.len() as u16).to_le_bytes());
        scope[10..10 + key.len()].copy_from_slice(key);
        scope[10 + key.len()..].copy_from_slice(id);
        SipHasher13Wide::new_with_key(&self.0).hash(scope).as_u128()
    }
}

/// What is remembered of a decision: enough to give the same reply again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Why it was refused, if it was.
    pub refusal: Option<Refusal>,
    /// Whether the counter existed before.
    pub existed: bool,
    /// Whether the counter existed after.
    pub exists: bool,
    /// The value of that time.
    pub value: i64,
    /// The value before it.
    pub previous: i64,
    /// The version of that time.
    pub version: u64,
    /// The birth of the counter of that time.
    pub birth: u64,
}

impl Outcome {
    /// What to remember of a reply.
    pub fn of(reply: &Reply) -> Outcome {
        Outcome {
            refusal: reply.refusal,
            existed: reply.existed,
            exists: reply.exists,
            value: reply.cell.value,
            previous: reply.previous,
            version: reply.cell.version,
            birth: reply.cell.birth,
        }
    }
}

impl Outcome {
    /// What an accepted addition to a counter that existed came to.
    pub fn of_addition(before: &Cell, after: &Cell) -> Outcome {
        Outcome {
            refusal: None,
            existed: true,
            exists: true,
            value: after.value,
            previous: before.value,
            version: after.version,
            birth: after.birth,
        }
    }
}

/// A remembered request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// Which request.
    pub identity: Identity,
    /// What it asked.
    pub fingerprint: u64,
    /// Entry time; the id is forgotten one window later.
    pub at_ms: u64,
    /// What was decided.
    pub outcome: Outcome,
}

impl Remembered {
    /// Whether the id still counts at `now_ms`. A function of entry times alone, so that every replica and
    /// every replay agrees however late the bytes are dropped.
    pub fn is_current(&self, now_ms: u64, window_ms: u64) -> bool {
        now_ms.saturating_sub(self.at_ms) < window_ms
    }

    /// What a request with this identity is told now.
    pub fn answer(&self, fingerprint: u64) -> Reply {
        let mut reply = Reply::replay(&self.outcome);
        if reply.exists && reply.refusal.is_none() {
            reply.cell.updated_at_ms = self.at_ms;
        }
        if self.fingerprint != fingerprint {
            reply.refusal = Some(Refusal::IdReused);
            reply.duplicate = false;
            // Nothing was done for this request: the state of that time, before and after alike.
            reply.existed = reply.exists;
            reply.previous = reply.cell.value;
            reply.applied = 0;
        }
        reply
    }
}

/// The fingerprint of one action. Stored: the encoding below must not change for actions that exist.
pub fn fingerprint(action: &Action) -> u64 {
    let mut hasher = SipHasher13::new();
    write_action(&mut hasher, action);
    hasher.finish()
}

/// The fingerprint of a request of a batch: of its action and the bytes that belong to it.
pub fn request_fingerprint(batch: &Batch, index: usize) -> u64 {
    let mut hasher = SipHasher13::new();
    write_request(&mut hasher, batch, index);
    hasher.finish()
}

fn write_request(hasher: &mut SipHasher13, batch: &Batch, index: usize) {
    let action = &batch.requests[index].action;
    write_action(hasher, action);
    match (action, batch.payload(index)) {
        // What the sources of a merge have seen differs from time to time.
        (Action::Join { .. }, payload) => hasher.write(match split_join(payload) {
            (Some(asked_for), _) => asked_for,
            (None, sketch) => sketch,
        }),
        (_, payload) => hasher.write(payload),
    }
}

/// A hash of several keys in any order, by which who names the same ones is recognized.
pub fn keys_fingerprint(keys: &[Vec<u8>]) -> u64 {
    let mut keys: Vec<&Vec<u8>> = keys.iter().collect();
    keys.sort_unstable();
    keys.dedup();
    let mut hasher = SipHasher13::new();
    for key in keys {
        hasher.write_u16(key.len() as u16);
        hasher.write(key);
    }
    hasher.finish()
}

/// The fingerprint of the first item of an all-or-none group covers the whole group, so that the same id with
/// any other item in it is noticed.
pub fn group_fingerprint(batch: &Batch, group: &Group) -> u64 {
    let mut hasher = SipHasher13::new();
    for index in group.start..group.end {
        let key = batch.key(index);
        hasher.write_u16(key.len() as u16);
        hasher.write(key);
        write_request(&mut hasher, batch, index);
    }
    hasher.finish()
}

fn write_action(hasher: &mut SipHasher13, action: &Action) {
    match action {
        Action::Read => hasher.write_u8(0),
        Action::Add(add) => {
            hasher.write_u8(1);
            hasher.write_i64(add.delta);
            hasher.write_i64(add.min);
            hasher.write_i64(add.max);
            hasher.write_u8(u8::from(add.saturate));
            write_expiry(hasher, add.expiry);
            write_condition(hasher, add.condition);
        }
        Action::Set(set) => {
            hasher.write_u8(2);
            hasher.write_i64(set.value);
            write_expiry(hasher, set.expiry);
            write_condition(hasher, set.condition);
        }
        Action::Reset(condition) => {
            hasher.write_u8(3);
            write_condition(hasher, *condition);
        }
        Action::Delete(condition) => {
            hasher.write_u8(4);
            write_condition(hasher, *condition);
        }
        Action::Expire(expire) => {
            hasher.write_u8(5);
            write_expiry(hasher, expire.expiry);
            hasher.write_u8(match expire.when {
                ExpireWhen::Always => 0,
                ExpireWhen::None => 1,
                ExpireWhen::Some => 2,
                ExpireWhen::Later => 3,
                ExpireWhen::Earlier => 4,
                ExpireWhen::SomeAndLater => 5,
                ExpireWhen::SomeAndEarlier => 6,
            });
        }
        Action::Count => hasher.write_u8(6),
        Action::Clear => hasher.write_u8(7),
        Action::Check(condition) => {
            hasher.write_u8(8);
            write_condition(hasher, *condition);
        }
        Action::Overwrite(set) => {
            hasher.write_u8(15);
            write_action(hasher, &Action::Set(*set));
        }
        Action::Told { add, .. } => {
            hasher.write_u8(16);
            write_action(hasher, &Action::Add(*add));
        }
        Action::Slice { .. } => hasher.write_u8(17),
        Action::Observe { at_ms: None, .. } => hasher.write_u8(9),
        Action::Observe { at_ms: Some(at_ms), .. } => {
            hasher.write_u8(18);
            hasher.write_u64(*at_ms);
        }
        Action::Join { .. } => hasher.write_u8(10),
        Action::Replace { expiry, condition, .. } => {
            hasher.write_u8(11);
            write_expiry(hasher, *expiry);
            write_condition(hasher, *condition);
        }
        Action::Restore { expiry, condition, .. } => {
            hasher.write_u8(17);
            write_expiry(hasher, *expiry);
            write_condition(hasher, *condition);
        }
        Action::Acquire(acquire) => {
            hasher.write_u8(12);
            hasher.write_i64(acquire.amount);
            hasher.write_u8(u8::from(acquire.limit.is_some()));
            hasher.write_i64(acquire.limit.unwrap_or(0));
            hasher.write_u8(u8::from(acquire.is_soft));
        }
        Action::Reserve(add, ttl_ms) => {
            hasher.write_u8(13);
            hasher.write_u64(*ttl_ms);
            write_action(hasher, &Action::Add(*add));
        }
        Action::End { birth, number, ending } => {
            hasher.write_u8(14);
            hasher.write_u64(*birth);
            hasher.write_u64(*number);
            let (kind, amount) = match ending {
                Ending::Void => (0, 0),
                Ending::Commit(None) => (1, 0),
                Ending::Commit(Some(amount)) => (2, *amount),
            };
            hasher.write_u8(kind);
            hasher.write_i64(amount);
        }
    }
}

fn write_expiry(hasher: &mut SipHasher13, expiry: Expiry) {
    let (kind, ms) = match expiry {
        Expiry::Keep => (0, 0),
        Expiry::Clear => (1, 0),
        Expiry::In(ms) => (2, ms),
        Expiry::At(ms) => (3, ms),
        Expiry::InIfNone(ms) => (4, ms),
        Expiry::AtIfNone(ms) => (5, ms),
    };
    hasher.write_u8(kind);
    hasher.write_u64(ms);
}

fn write_condition(hasher: &mut SipHasher13, condition: Condition) {
    let (kind, first, second) = match condition {
        Condition::Always => (0, 0, 0),
        Condition::Exists => (1, 0, 0),
        Condition::Absent => (2, 0, 0),
        Condition::Version(version) => (3, version, 0),
        Condition::Tag { birth, version } => (4, birth, version),
    };
    hasher.write_u8(kind);
    hasher.write_u64(first);
    hasher.write_u64(second);
}

#[cfg(test)]
mod tests {
    use super::{IdentityKey, fingerprint};
    use crate::{Action, Add, Condition, Expire, ExpireWhen, Expiry, Set};

    #[test]
    fn identities_tell_scopes_apart() {
        let key = IdentityKey(*b"0123456789abcdef");
        let one = key.identity(0, b"ab", b"c", 0);
        assert_eq!(one, key.identity(0, b"ab", b"c", 0));
        for other in [
            key.identity(0, b"a", b"bc", 0),
            key.identity(1, b"ab", b"c", 0),
            key.identity(0, b"ab", b"c", 1),
            IdentityKey(*b"0123456789abcdeg").identity(0, b"ab", b"c", 0),
        ] {
            assert_ne!(one, other);
        }
    }

    /// These numbers are on disk in every data folder: one action of every kind, and one for every form of
    /// expiry and condition.
    #[test]
    fn fingerprints_are_stable() {
        let guarded = Add { saturate: true, min: -3, max: 10, expiry: Expiry::In(5), ..Add::plain(-1) };
        let set = |expiry, condition| Action::Set(Set { value: -7, expiry, condition });
        let expire = |when| Action::Expire(Expire { expiry: Expiry::In(5), when });
        let tag = Condition::Tag { birth: 9, version: 4 };
        for (action, number) in [
            (Action::Read, 0x68a914128e01e473),
            (Action::Add(Add::plain(1)), 0x25770b3e7192869f),
            (Action::Add(guarded), 0xba826c89292ae9a2),
            (set(Expiry::Keep, Condition::Always), 0xeb7e6fbc525e5358),
            (set(Expiry::Clear, Condition::Exists), 0x3f7106f4192289a4),
            (set(Expiry::At(5), Condition::Absent), 0x63e00a2def4d2b4c),
            (set(Expiry::InIfNone(5), Condition::Version(3)), 0x68032b04df005143),
            (set(Expiry::AtIfNone(5), tag), 0x097ddc50df9b8c52),
            (Action::Reset(Condition::Always), 0x31679f5016e40478),
            (Action::Delete(Condition::Always), 0x0f68c4295a0bc77a),
            (expire(ExpireWhen::Always), 0x3b56c9baffa053ff),
            (expire(ExpireWhen::None), 0x266fd3bffbf7cec4),
            (expire(ExpireWhen::Some), 0x49dc5e68efc9014e),
            (expire(ExpireWhen::Later), 0x40d60b4043c5f96e),
            (expire(ExpireWhen::Earlier), 0x5aced1621973786b),
            (expire(ExpireWhen::SomeAndLater), 0xa00d8c4e0a9d3aa5),
            (expire(ExpireWhen::SomeAndEarlier), 0x07524901dd4f7c6f),
            (Action::Count, 0xeab20fd51a4c72d6),
            (Action::Clear, 0xfff3eb0c707197bf),
            (Action::Check(tag), 0x112a33424c50461b),
        ] {
            assert_eq!(fingerprint(&action), number, "{action:?}");
        }
    }
}

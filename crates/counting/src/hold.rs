//! Holds: amounts set aside until they are taken, given back, or their time is over.
//!
//! A hold is one of a counter's numbers. Whoever made it names it by a [`HoldId`]. Exactly one thing ends it: a
//! call that commits or voids it ([`Holds::end`]), or its time, which needs nobody to come by: from that
//! millisecond on it counts nowhere, however late [`Holds::forget_expired`] removes its bytes.

use std::collections::BTreeMap;
use std::ops::RangeToInclusive;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

use crate::{KEY_BYTES_MAX, varint};

/// The most holds one counter has at a time, about 1 MB. Ten thousand carts that wait for their payment are a
/// busy sale; more would be a client that never commits, and bytes that every checkpoint writes.
pub const HOLDS_MAX: usize = 10_000;
/// The longest time for which something is set aside: a month, for what waits for a payment. What is to stay longer is
/// counted, not held.
pub const TTL_MS_MAX: u64 = 30 * 24 * 3_600_000;
/// What one hold costs: 16 and 24 bytes in two trees, whose nodes are little more than half full when numbers
/// ascend, and the links between nodes.
const HOLD_BYTES: usize = 96;

/// An amount set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// How much; negative if it is set aside for a decrement.
    pub amount: i64,
    /// When it ends by itself, UTC milliseconds.
    pub expires_at_ms: u64,
}

impl Hold {
    /// Whether it still counts at `now_ms`.
    pub fn is_live(&self, now_ms: u64) -> bool {
        self.expires_at_ms > now_ms
    }
}

/// What is set aside at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outstanding {
    /// The sum of the positive amounts: how much higher the value may come to be.
    pub up: i128,
    /// The sum of the negative amounts: how much lower.
    pub down: i128,
    /// How many holds.
    pub count: usize,
}

impl Outstanding {
    /// All of it.
    pub fn sum(&self) -> i128 {
        self.up + self.down
    }

    fn include(&mut self, amount: i64) {
        self.up += i128::from(amount.max(0));
        self.down += i128::from(amount.min(0));
        self.count += 1;
    }

    fn exclude(&mut self, amount: i64) {
        self.up -= i128::from(amount.max(0));
        self.down -= i128::from(amount.min(0));
        self.count -= 1;
    }
}

/// The holds of one counter, those included that are over and not yet forgotten.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    /// When each ends.
    expiries: BTreeMap<u64, u64>,
    /// How much each sets aside, by when it ends and its number.
    amounts: BTreeMap<(u64, u64), i64>,
    /// Over all of them.
    total: Outstanding,
}

impl Holds {
    /// Sets something aside under a number that the caller never gives twice. Refuses a number it knows, and
    /// more than [`HOLDS_MAX`]: [`forget_expired`](Holds::forget_expired) first.
    #[must_use]
    pub fn reserve(&mut self, number: u64, hold: Hold) -> bool {
        if self.len() >= HOLDS_MAX || self.expiries.contains_key(&number) {
            return false;
        }
        self.expiries.insert(number, hold.expires_at_ms);
        self.amounts.insert((hold.expires_at_ms, number), hold.amount);
        self.total.include(hold.amount);
        true
    }

    /// The hold with this number, unless its time is over.
    pub fn get(&self, number: u64, now_ms: u64) -> Option<Hold> {
        let expires_at_ms = *self.expiries.get(&number)?;
        let amount = *self.amounts.get(&(expires_at_ms, number))?;
        Some(Hold { amount, expires_at_ms }).filter(|hold| hold.is_live(now_ms))
    }

    /// Takes the hold with this number out, unless its time is over: what it set aside is free again, or becomes
    /// part of the value by the caller's doing.
    pub fn end(&mut self, number: u64, now_ms: u64) -> Option<Hold> {
        let hold = self.get(number, now_ms)?;
        self.expiries.remove(&number);
        self.amounts.remove(&(hold.expires_at_ms, number));
        self.total.exclude(hold.amount);
        Some(hold)
    }

    /// Removes those whose time is over, and says how many. Changes no answer but [`len`](Holds::len)'s.
    pub fn forget_expired(&mut self, now_ms: u64) -> usize {
        let before = self.len();
        while let Some(first) = self.amounts.first_entry() {
            let (expires_at_ms, number) = *first.key();
            if expires_at_ms > now_ms {
                break;
            }
            self.total.exclude(first.remove());
            self.expiries.remove(&number);
        }
        before - self.len()
    }

    /// What is set aside at `now_ms`. Looks at those only whose time is over and that are not yet forgotten.
    pub fn outstanding(&self, now_ms: u64) -> Outstanding {
        let mut outstanding = self.total;
        for amount in self.amounts.range(expired(now_ms)).map(|(_, amount)| amount) {
            outstanding.exclude(*amount);
        }
        outstanding
    }

    /// When the first of those ends by itself that still count, and for more.
    pub fn first_end_of_up(&self, now_ms: u64) -> Option<u64> {
        let mut live = self.amounts.range((now_ms.saturating_add(1), 0)..);
        live.find(|(_, amount)| **amount > 0).map(|((expires_at_ms, _), _)| *expires_at_ms)
    }

    /// All of them by number, those included whose time is over.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Hold)> + '_ {
        self.expiries.iter().filter_map(|(number, expires_at_ms)| {
            let amount = *self.amounts.get(&(*expires_at_ms, *number))?;
            Some((*number, Hold { amount, expires_at_ms: *expires_at_ms }))
        })
    }

    /// How many there are, those included whose time is over.
    pub fn len(&self) -> usize {
        self.expiries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.expiries.is_empty()
    }

    /// What they cost, themselves included, estimated.
    pub fn memory_bytes(&self) -> usize {
        size_of::<Holds>() + self.len() * HOLD_BYTES
    }

    /// Appends their bytes: how many; for each by number the distance from the one before, less one (of the first:
    /// from 0), the amount and the expiry.
    pub fn put(&self, out: &mut Vec<u8>) {
        varint::put(out, self.len() as u64);
        let mut next = 0;
        for (number, hold) in self.iter() {
            varint::put(out, number - next);
            varint::put_signed(out, hold.amount);
            varint::put(out, hold.expires_at_ms);
            next = number.saturating_add(1);
        }
    }

    /// From all of `bytes`. Nothing if [`put`](Holds::put) would not write exactly these.
    pub fn read(mut bytes: &[u8]) -> Option<Holds> {
        let bytes = &mut bytes;
        let count = usize::try_from(varint::read(bytes)?).ok().filter(|count| *count <= HOLDS_MAX)?;
        let mut holds = Holds::default();
        let mut next = Some(0);
        for _ in 0..count {
            let number = varint::read(bytes)?.checked_add(next?)?;
            let amount = varint::read_signed(bytes)?;
            let expires_at_ms = varint::read(bytes)?;
            if !holds.reserve(number, Hold { amount, expires_at_ms }) {
                return None;
            }
            next = number.checked_add(1);
        }
        bytes.is_empty().then_some(holds)
    }
}

/// The places of holds whose time is over.
fn expired(now_ms: u64) -> RangeToInclusive<(u64, u64)> {
    ..=(now_ms, u64::MAX)
}

/// What a caller names a hold by. The key finds the counter, its birth tells it from an earlier or later one of
/// that name, the number is the hold's own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldId {
    /// The counter.
    pub key: Vec<u8>,
    /// The counter's birth.
    pub birth: u64,
    /// Which of its holds.
    pub number: u64,
}

/// The first byte of every hold id, so that another form can follow.
const HOLD_ID_VERSION: u8 = 1;
/// The longest text of a hold id: version, two numbers and a key, three bytes in four characters.
const HOLD_ID_TEXT_BYTES_MAX: usize = (1 + 10 + 10 + KEY_BYTES_MAX).div_ceil(3) * 4;

impl HoldId {
    /// Under which index of its request id the end is remembered: no client's request has this one.
    pub const INDEX: u32 = u32::MAX;

    /// The request id under which the end of the hold is remembered: one for all ways to end it, so that it ends once.
    pub fn request_id(&self) -> Vec<u8> {
        let mut id = b"hold:".to_vec();
        id.extend_from_slice(&self.birth.to_be_bytes());
        id.extend_from_slice(&self.number.to_be_bytes());
        id
    }

    /// As text of letters, digits, `-` and `_`, which may stand in a URL as it is.
    pub fn text(&self) -> String {
        let mut bytes = vec![HOLD_ID_VERSION];
        varint::put(&mut bytes, self.birth);
        varint::put(&mut bytes, self.number);
        bytes.extend_from_slice(&self.key);
        BASE64_URL_SAFE_NO_PAD.encode(bytes)
    }

    /// From its one text; nothing from any other.
    pub fn parse(text: &str) -> Option<HoldId> {
        if text.len() > HOLD_ID_TEXT_BYTES_MAX {
            return None;
        }
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).ok()?;
        let (version, mut rest) = bytes.split_first()?;
        let birth = varint::read(&mut rest)?;
        let number = varint::read(&mut rest)?;
        let is_key = (1..=KEY_BYTES_MAX).contains(&rest.len());
        (*version == HOLD_ID_VERSION && is_key).then(|| HoldId { key: rest.to_vec(), birth, number })
    }
}

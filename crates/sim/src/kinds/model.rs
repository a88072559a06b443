//! What must be answered: whole counters in memory, and what is remembered of requests.

use std::collections::BTreeMap;

use quipu_counting::identity::{group_fingerprint, request_fingerprint};
use quipu_counting::kinds::{
    Asked, Decided, RULES, Ruled, WholeItem, decide_whole, decide_whole_group, recall,
};
use quipu_counting::{
    Action, Batch, Cell, Change, Deed, Group, GroupKind, Kind, Outcome, Policies, Refusal, Remembered, Reply,
    Whole,
};
use rand::Rng;
use rand::rngs::SmallRng;

use super::asks::{Ask, Item};

/// See the head of this file. Cheap to copy: bodies are shared.
#[derive(Clone, Default)]
pub struct Model {
    pub counters: BTreeMap<Vec<u8>, Whole>,
    pub policies: Policies,
    /// What was done to whom, the oldest first, where a policy has it kept.
    pub trails: BTreeMap<Vec<u8>, Vec<Trace>>,
    /// By request id, and there by item.
    known: BTreeMap<u64, Known>,
}

/// A row of a trail: what was done, by how much, and what it came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    pub deed: Deed,
    pub applied: i64,
    pub held: i64,
    pub value: i64,
    pub version: u64,
}

/// A request that is remembered.
#[derive(Clone)]
struct Known {
    ask: Ask,
    items: Vec<Remembered>,
}

impl Model {
    /// A request that is remembered, if there is any.
    pub fn any_known(&self, random: &mut SmallRng) -> Option<&Ask> {
        let place = random.random_range(0..self.known.len().max(1));
        self.known.values().nth(place).map(|known| &known.ask)
    }

    /// Forgets requests that the other does not know: nobody can tell whether they survived.
    pub fn forget_unknown_to(&mut self, other: &Model) {
        self.known.retain(|id, _| other.known.contains_key(id));
    }

    /// What is answered to an ask whose requests begin at `start` of the batch, and done. Births are those of the replies that were
    /// given, which only the engine knows.
    pub fn ask(&mut self, ask: &Ask, batch: &Batch, start: usize, births: &[u64], now_ms: u64) -> Vec<Reply> {
        let group = Group { start, end: start + ask.items.len(), kind: GroupKind::Atomic };
        let prints: Vec<u64> = (group.start..group.end)
            .map(|index| match ask.is_group && index == start {
                true => group_fingerprint(batch, &group),
                false => request_fingerprint(batch, index),
            })
            .collect();
        if let Some(known) = ask.id.and_then(|id| self.known.get(&id)) {
            let items = ask.items.iter().zip(&known.items).zip(&prints);
            return items.map(|((item, known), print)| self.again(item, known, *print, now_ms)).collect();
        }
        let replies = match ask.is_group {
            true => self.settle_all(&ask.items, births, now_ms),
            false => vec![self.settle(&ask.items[0], births[0], now_ms)],
        };
        let refusal = replies
            .iter()
            .filter_map(|reply| reply.refusal)
            .find(|refusal| *refusal != Refusal::GroupAborted);
        if let (Some(id), true) = (ask.id, refusal.is_none_or(Refusal::is_remembered)) {
            let remembered = |(reply, fingerprint): (&Reply, &u64)| {
                let outcome = Outcome::of(reply);
                Remembered { identity: 0, fingerprint: *fingerprint, at_ms: now_ms, outcome }
            };
            let items = replies.iter().zip(&prints).map(remembered).collect();
            self.known.insert(id, Known { ask: ask.clone(), items });
        }
        replies
    }

    /// What a look at a counter is told.
    pub fn read(&self, key: &[u8], now_ms: u64) -> Reply {
        let mut whole = self.counters.get(key).cloned().unwrap_or_default();
        let asked = Asked { action: &Action::Read, payload: &[] };
        decide_whole(&mut whole, asked, self.ruled(key), now_ms, 0).reply
    }

    fn again(&self, item: &Item, known: &Remembered, print: u64, now_ms: u64) -> Reply {
        let mut reply = known.answer(print);
        let whole = self.counters.get(&item.key).cloned().unwrap_or_default();
        let whole =
            if whole.cell.is_some_and(|cell| cell.is_live(now_ms)) { whole } else { Whole::default() };
        reply.kind = whole.body.as_ref().map_or(Kind::Sum, |body| body.kind());
        if item.action.is_for_whole() && reply.refusal.is_none() {
            let asked = Asked { action: &item.action, payload: &item.payload };
            reply.detail = recall(&whole, asked, self.ruled(&item.key), (&reply, known.at_ms), now_ms);
        }
        reply
    }

    fn ruled(&self, key: &[u8]) -> Ruled<'_> {
        Ruled { limits: self.policies.limits(key), policy: self.policies.policy_for(key), rules: RULES }
    }

    fn settle(&mut self, item: &Item, birth: u64, now_ms: u64) -> Reply {
        let mut whole = self.counters.remove(&item.key).unwrap_or_default();
        let asked = Asked { action: &item.action, payload: &item.payload };
        let before = whole.cell;
        let decided = decide_whole(&mut whole, asked, self.ruled(&item.key), now_ms, birth);
        self.trace(item, before, &decided, now_ms);
        self.counters.insert(item.key.clone(), whole);
        decided.reply
    }

    /// Notes a change, if a policy wants it.
    fn trace(&mut self, item: &Item, before: Option<Cell>, decided: &Decided, now_ms: u64) {
        let after = match decided.change {
            Change::Keep => return,
            Change::Put(cell) => Some(cell),
            Change::Remove => None,
        };
        let before = before.filter(|cell| cell.is_live(now_ms));
        if self.policies.limits(&item.key).audit_ms == 0 || before.or(after).is_none() {
            return;
        }
        let value = |cell: Option<Cell>| cell.map_or(0, |cell| cell.value);
        self.trails.entry(item.key.clone()).or_default().push(Trace {
            deed: Deed::of(&item.action, &item.payload).0,
            applied: value(after).saturating_sub(value(before)),
            held: decided.held,
            value: value(after),
            version: after.or(before).map_or(0, |cell| cell.version),
        });
    }

    fn settle_all(&mut self, items: &[Item], births: &[u64], now_ms: u64) -> Vec<Reply> {
        let mut keys: Vec<&Vec<u8>> = items.iter().map(|item| &item.key).collect();
        keys.sort_unstable();
        keys.dedup();
        let counters: Vec<Whole> =
            keys.iter().map(|key| self.counters.get(*key).cloned().unwrap_or_default()).collect();
        let whole_items: Vec<WholeItem<'_>> = items
            .iter()
            .zip(births)
            .map(|(item, birth)| WholeItem {
                counter: keys.binary_search(&&item.key).unwrap_or_default(),
                asked: Asked { action: &item.action, payload: &item.payload },
                ruled: self.ruled(&item.key),
                sequence: *birth,
                now_ms,
            })
            .collect();
        let (decided, after) = match decide_whole_group(&whole_items, &counters) {
            Ok(decided) => decided,
            Err((_, replies)) => return replies,
        };
        let mut replies = Vec::new();
        for (item, decided) in items.iter().zip(decided) {
            let before = self.counters.get(&item.key).and_then(|whole| whole.cell);
            self.trace(item, before, &decided, now_ms);
            let cell = match decided.change {
                Change::Keep => before,
                Change::Put(cell) => Some(cell),
                Change::Remove => None,
            };
            self.counters.entry(item.key.clone()).or_default().cell = cell;
            replies.push(decided.reply);
        }
        let after: Vec<(Vec<u8>, Whole)> = keys.into_iter().cloned().zip(after).collect();
        self.counters.extend(after);
        replies
    }
}

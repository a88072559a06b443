//! Requests of a batch that belong together: all or none, once per producer and sequence, only if checks hold.

use std::collections::HashMap;

use super::*;

/// What the requests of a group are for.
struct Members {
    /// Of each request, which of the group's counters it is for.
    counters: Vec<usize>,
    /// Of each counter, the first request for it.
    firsts: Vec<usize>,
    /// Of each request, the sequence that its change would take.
    sequences: Vec<u64>,
    /// Of each partition, the last of them.
    last_sequences: Vec<u64>,
}

impl Members {
    /// Of each request, the counter and the sequence.
    fn items(&self) -> impl Iterator<Item = (usize, u64)> {
        self.counters.iter().copied().zip(self.sequences.iter().copied())
    }
}

/// All are told that nothing was done, and one of them why.
fn refuse_all((refused, told): (usize, Vec<Reply>), replies: &mut Vec<Reply>) -> Option<Refusal> {
    let refusal = told[refused].refusal;
    replies.extend(told);
    refusal
}

impl Run<'_, '_> {
    /// Returns the next request that is to be decided.
    pub(super) fn group(&mut self, batch: &Batch, group: &Group, replies: &mut Vec<Reply>) -> usize {
        match group.kind {
            GroupKind::Atomic => self.atomic(batch, group, replies),
            GroupKind::Session { producer, epoch, sequence } => {
                let producer = batch.bytes(producer);
                self.session(batch, group, producer, Session { epoch, sequence, refusal: None }, replies);
            }
            GroupKind::Guard { until } => return self.guard(batch, group, until, replies),
        }
        group.end
    }

    /// Checks before requests that run only if all of them hold.
    pub(super) fn guard(
        &mut self,
        batch: &Batch,
        group: &Group,
        until: usize,
        replies: &mut Vec<Reply>,
    ) -> usize {
        let from = replies.len();
        for index in group.start..group.end {
            debug_assert!(matches!(batch.requests[index].action, Action::Check(_)), "a guard only looks");
            replies.push(self.single(batch, index));
        }
        if replies[from..].iter().all(|reply| reply.refusal.is_none()) {
            return group.end;
        }
        let until = until.min(batch.requests.len()).max(group.end);
        // What comes next may repeat the counter of the last request that is skipped, not the one looked at last.
        self.last = None;
        let aborted = Reply { refusal: Some(Refusal::GroupAborted), ..Reply::state(None) };
        replies.extend(std::iter::repeat_n(aborted, until - group.end));
        until
    }

    /// An all-or-none group. Its id, if it has one, is remembered item by item, and the first item's
    /// fingerprint covers the whole group.
    pub(super) fn atomic(&mut self, batch: &Batch, group: &Group, replies: &mut Vec<Reply>) {
        let print = |index: usize| match (self.places[index].identity, index == group.start) {
            (0, _) => 0,
            (_, true) => group_fingerprint(batch, group),
            (_, false) => request_fingerprint(batch, index),
        };
        let prints: Vec<u64> = (group.start..group.end).map(print).collect();
        let known: Vec<Option<Remembered>> =
            (group.start..group.end).map(|index| self.remembered(self.places[index])).collect();
        if let Some(any) = known.iter().flatten().next() {
            // The same group, or one that shares counters with it: then none of it was asked for under this id.
            let is_same = known[0].is_some_and(|first| first.fingerprint == prints[0]);
            for (offset, (known, print)) in known.iter().zip(&prints).enumerate() {
                replies.push(match known {
                    Some(known) if is_same => self.answer_again(batch, group.start + offset, known, *print),
                    _ => any.answer(!any.fingerprint),
                });
            }
            return;
        }
        let from = replies.len();
        let refusal = self.all_or_none(batch, group, replies);
        if !refusal.is_none_or(Refusal::is_remembered) {
            // Not a decision about the counters: the whole group may be asked again.
            return;
        }
        for (offset, print) in prints.into_iter().enumerate() {
            let place = self.places[group.start + offset];
            if place.identity != 0 {
                self.held(place.partition).remember_reply(
                    place.identity,
                    print,
                    &replies[from + offset],
                    false,
                );
            }
        }
    }

    /// Decides a group, and carries it out if every item is accepted. Says why not, else.
    pub(super) fn all_or_none(
        &mut self,
        batch: &Batch,
        group: &Group,
        replies: &mut Vec<Reply>,
    ) -> Option<Refusal> {
        let members = self.members(batch, group);
        let decided = match (group.start..group.end).any(|index| self.is_for_whole(batch, index)) {
            true => self.all_or_none_of_wholes(batch, group, &members, replies),
            false => self.all_or_none_of_cells(batch, group, &members, replies),
        };
        if decided.is_none() {
            // Births were given out by counting items, also those that change nothing: none twice.
            for (held, last) in self.guards.iter_mut().zip(members.last_sequences) {
                if let Some(held) = held {
                    held.sequence = held.sequence.max(last);
                }
            }
        }
        decided
    }

    /// Whether a request is for a counter that is more than its numbers, or that only such counters know.
    fn is_for_whole(&self, batch: &Batch, index: usize) -> bool {
        let (key, place) = (batch.key(index), self.places[index]);
        let held = self.guards[usize::from(place.partition)].as_ref();
        batch.requests[index].action.is_for_whole()
            || held.is_some_and(|held| {
                held.limits(key).is_for_whole || held.has_body(held.table.find(place.hash, key))
            })
    }

    fn members(&self, batch: &Batch, group: &Group) -> Members {
        let mut counter_of: HashMap<&[u8], usize> = HashMap::new();
        let (mut counters, mut firsts, mut sequences) = (Vec::new(), Vec::new(), Vec::new());
        let mut taken: Vec<u64> =
            self.guards.iter().map(|held| held.as_ref().map_or(0, |held| held.sequence)).collect();
        for index in group.start..group.end {
            counters.push(*counter_of.entry(batch.key(index)).or_insert_with(|| {
                firsts.push(index);
                firsts.len() - 1
            }));
            let taken = &mut taken[usize::from(self.places[index].partition)];
            *taken += 1;
            sequences.push(*taken);
        }
        Members { counters, firsts, sequences, last_sequences: taken }
    }

    /// The counter of a request as it lies there.
    fn found(&mut self, batch: &Batch, index: usize) -> (Option<RecordNumber>, Option<Cell>) {
        let (key, place) = (batch.key(index), self.places[index]);
        let held = self.held(place.partition);
        let found = held.table.find(place.hash, key);
        (found, found.and_then(|number| held.table.cell(number)))
    }

    /// On copies of the cells.
    fn all_or_none_of_cells(
        &mut self,
        batch: &Batch,
        group: &Group,
        members: &Members,
        replies: &mut Vec<Reply>,
    ) -> Option<Refusal> {
        let mut cells: Vec<Option<Cell>> =
            members.firsts.iter().map(|index| self.found(batch, *index).1).collect();
        let mut items = Vec::with_capacity(group.end - group.start);
        for (index, (counter, sequence)) in (group.start..).zip(members.items()) {
            let held = self.held(self.places[index].partition);
            items.push(GroupItem {
                cell: counter,
                action: &batch.requests[index].action,
                limits: held.limits(batch.key(index)),
                sequence,
                now_ms: held.time_ms,
            });
        }
        let verdicts = match decide_group(&items, &mut cells) {
            Ok(verdicts) => verdicts,
            Err(refused) => return refuse_all(refused, replies),
        };
        for (index, verdict) in (group.start..).zip(verdicts) {
            let (found, before) = self.found(batch, index);
            let place = self.places[index];
            self.held(place.partition).change(place.hash, batch.key(index), found, before, &verdict.change);
            replies.push(verdict.reply);
        }
        None
    }

    /// On copies of the counters with all they have.
    fn all_or_none_of_wholes(
        &mut self,
        batch: &Batch,
        group: &Group,
        members: &Members,
        replies: &mut Vec<Reply>,
    ) -> Option<Refusal> {
        let policies = self.guards.iter().flatten().next().map(|held| Arc::clone(&held.policies))?;
        let mut counters: Vec<Whole> = Vec::with_capacity(members.firsts.len());
        for index in &members.firsts {
            let (_, cell) = self.found(batch, *index);
            let held = self.held(self.places[*index].partition);
            counters.push(Whole { cell, body: held.bodies.get(batch.key(*index)).cloned() });
        }
        let mut items = Vec::with_capacity(group.end - group.start);
        let rules = self.scope.rules();
        for (index, (counter, sequence)) in (group.start..).zip(members.items()) {
            let (key, held) = (batch.key(index), self.held(self.places[index].partition));
            items.push(WholeItem {
                counter,
                asked: Asked { action: &batch.requests[index].action, payload: batch.payload(index) },
                ruled: Ruled { limits: held.limits(key), policy: policies.policy_for(key), rules },
                sequence,
                now_ms: held.time_ms,
            });
        }
        let (decided, after) = match decide_whole_group(&items, &counters) {
            Ok(decided) => decided,
            Err(refused) => return refuse_all(refused, replies),
        };
        for ((index, decided), counter) in (group.start..).zip(decided).zip(&members.counters) {
            let (found, before) = self.found(batch, index);
            let (key, place) = (batch.key(index), self.places[index]);
            let held = self.held(place.partition);
            if let Some(number) = found {
                held.save_image(number, before);
            }
            // Nobody looks before all of it is done, so the body may be there at once as it is in the end.
            let body = after[*counter].body.clone();
            held.change_whole(place.hash, key, (found, before), &decided, body);
            let keep_ms = held.limits(key).audit_ms;
            if keep_ms > 0 {
                let told = Told { held: decided.held, ..told(batch, index) };
                held.trace_change(key, keep_ms, before, &decided.change, told);
            }
            replies.push(decided.reply);
        }
        None
    }

    /// A producer's batch. Every reply of the group carries the producer's last sequence as its version.
    pub(super) fn session(
        &mut self,
        batch: &Batch,
        group: &Group,
        producer: &[u8],
        asked: Session,
        replies: &mut Vec<Reply>,
    ) {
        // Where partitions are ordered apart, each knows how far a producer is with it.
        let home = match self.scope {
            Scope::Node => self.engine.session_partition(producer),
            Scope::Partition { index, .. } => index,
        };
        let held = self.held(home);
        let known = held.sessions.get(producer).map(|(session, _)| *session);
        let is_full = known.is_none() && held.sessions.len() >= SESSIONS_PER_PARTITION_MAX;
        let (last, duplicate, refusal) = match admit(known.as_ref(), asked.epoch, asked.sequence) {
            SessionVerdict::Fenced { epoch } => (epoch, false, Some(Refusal::Fenced)),
            SessionVerdict::Duplicate { last, refusal } => (last, true, refusal),
            SessionVerdict::Fresh if is_full => (0, false, Some(Refusal::TooManyProducers)),
            SessionVerdict::Fresh => {
                let mut ignored = Vec::new();
                let refusal = self.all_or_none(batch, group, &mut ignored);
                // A state of the service, such as a disabled policy, does not use the sequence up.
                if refusal.is_none_or(Refusal::is_remembered) {
                    self.held(home).set_session(producer, Session { refusal, ..asked });
                }
                (asked.sequence, false, refusal)
            }
        };
        let reply =
            Reply { refusal, duplicate, cell: Cell { version: last, ..Cell::ABSENT }, ..Reply::state(None) };
        replies.extend(std::iter::repeat_n(reply, group.end - group.start));
    }
}

//! Requests of a batch that belong together: all or none, once per producer and sequence, only if checks hold.

use super::*;

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

    /// Decides the group on copies of its cells and carries it out if every item is accepted.
    pub(super) fn all_or_none(
        &mut self,
        batch: &Batch,
        group: &Group,
        replies: &mut Vec<Reply>,
    ) -> Option<Refusal> {
        let is_for_whole = |index: usize| {
            let (key, place) = (batch.key(index), self.places[index]);
            let held = self.guards[usize::from(place.partition)].as_ref();
            batch.requests[index].action.is_for_whole()
                || held.is_some_and(|held| {
                    held.limits(key).is_for_whole || held.has_body(held.table.find(place.hash, key))
                })
        };
        if (group.start..group.end).any(is_for_whole) {
            return self.all_or_none_of_whole(batch, group, replies);
        }
        let mut cells: Vec<Option<Cell>> = Vec::new();
        let mut cell_of: std::collections::HashMap<&[u8], usize> = std::collections::HashMap::new();
        let mut taken = vec![0u64; self.guards.len()];
        let mut items = Vec::with_capacity(group.end - group.start);
        for index in group.start..group.end {
            let (key, place) = (batch.key(index), self.places[index]);
            let held = self.held(place.partition);
            let limits = held.limits(key);
            let cell = *cell_of.entry(key).or_insert_with(|| {
                cells.push(held.table.find(place.hash, key).and_then(|number| held.table.cell(number)));
                cells.len() - 1
            });
            let taken = &mut taken[usize::from(place.partition)];
            *taken += 1;
            items.push(GroupItem {
                cell,
                action: &batch.requests[index].action,
                limits,
                sequence: held.sequence + *taken,
                now_ms: held.time_ms,
            });
        }
        let last_sequences: Vec<u64> = (self.guards.iter().zip(&taken))
            .map(|(held, taken)| held.as_ref().map_or(0, |held| held.sequence + taken))
            .collect();
        match decide_group(&items, &mut cells) {
            Ok(verdicts) => {
                for (index, verdict) in (group.start..group.end).zip(verdicts) {
                    let (key, place) = (batch.key(index), self.places[index]);
                    let held = self.held(place.partition);
                    let found = held.table.find(place.hash, key);
                    let before = found.and_then(|number| held.table.cell(number));
                    held.change(place.hash, key, found, before, &verdict.change);
                    replies.push(verdict.reply);
                }
                // Births were given out by counting items, also those that change nothing: none twice.
                for (held, last) in self.guards.iter_mut().zip(last_sequences) {
                    if let Some(held) = held {
                        held.sequence = held.sequence.max(last);
                    }
                }
                None
            }
            Err((refused, refusals)) => {
                let refusal = refusals[refused].refusal;
                replies.extend(refusals);
                refusal
            }
        }
    }

    /// The same for counters that are more than their numbers.
    pub(super) fn all_or_none_of_whole(
        &mut self,
        batch: &Batch,
        group: &Group,
        replies: &mut Vec<Reply>,
    ) -> Option<Refusal> {
        let mut counters: Vec<Whole> = Vec::new();
        let mut counter_of: std::collections::HashMap<&[u8], usize> = std::collections::HashMap::new();
        let mut taken = vec![0u64; self.guards.len()];
        let policies = self.guards.iter().flatten().next().map(|held| Arc::clone(&held.policies))?;
        let mut items = Vec::with_capacity(group.end - group.start);
        for index in group.start..group.end {
            let (key, place) = (batch.key(index), self.places[index]);
            let held = self.held(place.partition);
            let counter = *counter_of.entry(key).or_insert_with(|| {
                let cell = held.table.find(place.hash, key).and_then(|number| held.table.cell(number));
                counters.push(Whole { cell, body: held.bodies.get(key).cloned() });
                counters.len() - 1
            });
            let taken = &mut taken[usize::from(place.partition)];
            *taken += 1;
            items.push(WholeItem {
                counter,
                asked: Asked { action: &batch.requests[index].action, payload: batch.payload(index) },
                ruled: Ruled { limits: held.limits(key), policy: policies.policy_for(key) },
                sequence: held.sequence + *taken,
                now_ms: held.time_ms,
            });
        }
        let last_sequences: Vec<u64> = (self.guards.iter().zip(&taken))
            .map(|(held, taken)| held.as_ref().map_or(0, |held| held.sequence + taken))
            .collect();
        let (settled, after) = match settle_group(&items, &counters) {
            Ok(settled) => settled,
            Err((refused, refusals)) => {
                let refusal = refusals[refused].refusal;
                replies.extend(refusals);
                return refusal;
            }
        };
        let in_the_end: Vec<usize> = items.iter().map(|item| item.counter).collect();
        for ((index, settled), counter) in (group.start..group.end).zip(settled).zip(in_the_end) {
            let (key, place) = (batch.key(index), self.places[index]);
            let held = self.held(place.partition);
            let found = held.table.find(place.hash, key);
            let before = found.and_then(|number| held.table.cell(number));
            if let Some(number) = found {
                held.save_image(number, before);
            }
            // Nobody looks before all of it is done, so the body may be there at once as it is in the end.
            let body = after[counter].body.clone();
            held.change_whole(place.hash, key, (found, before), &settled, body);
            let keep_ms = held.limits(key).audit_ms;
            if keep_ms > 0 {
                held.trace_change(key, keep_ms, before, &settled.change, told(batch, index));
            }
            replies.push(settled.reply);
        }
        // Births were given out by counting items, also those that change nothing: none twice.
        for (held, last) in self.guards.iter_mut().zip(last_sequences) {
            if let Some(held) = held {
                held.sequence = held.sequence.max(last);
            }
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

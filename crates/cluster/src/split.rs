//! A batch cut into what each partition is asked, and put together again.
//!
//! Requests that belong together (an all-or-none group, a producer's, a guard with all it guards) stay together, so their
//! counters must share a slot; where they do not, each of them is refused, and the others run.

use quipu_counting::slot::{partition, slot};
use quipu_counting::{Batch, GroupKind, Refusal, Reply};

/// What one partition is asked.
#[derive(Debug)]
pub struct Part {
    /// Which.
    pub partition: u16,
    /// What.
    pub batch: Batch,
    /// Where its replies belong, in order.
    pub places: Vec<usize>,
}

/// A batch in parts, and its replies as far as they are known.
#[derive(Debug)]
pub struct Split {
    /// At most one for each partition.
    pub parts: Vec<Part>,
    /// One for each request: a refusal where something cannot be asked at all, otherwise to be filled in.
    replies: Vec<Reply>,
    /// Requests about all counters, in order, and whether some partition has answered them.
    globals: Vec<(usize, bool)>,
}

fn refused(refusal: Refusal) -> Reply {
    Reply { refusal: Some(refusal), ..Reply::state(None) }
}

impl Split {
    /// Cuts a batch for so many partitions.
    pub fn of(batch: &Batch, partitions: u16) -> Split {
        let mut split = Split {
            parts: Vec::new(),
            replies: vec![Reply::state(None); batch.requests.len()],
            globals: Vec::new(),
        };
        let mut groups = batch.groups.iter().peekable();
        let mut index = 0;
        while index < batch.requests.len() {
            let mut inner = Vec::new();
            let mut end = index + 1;
            // A guard takes the groups along that it guards.
            while let Some(group) = groups.next_if(|group| group.start < end) {
                let until = match group.kind {
                    GroupKind::Guard { until } => until.min(batch.requests.len()),
                    GroupKind::Atomic | GroupKind::Session { .. } => group.end,
                };
                end = end.max(group.end).max(until);
                inner.push(group);
            }
            split.unit(batch, index..end, &inner, partitions);
            index = end;
        }
        split
    }

    fn unit(
        &mut self,
        batch: &Batch,
        range: std::ops::Range<usize>,
        groups: &[&quipu_counting::Group],
        partitions: u16,
    ) {
        let is_global = |index: usize| batch.requests[index].action.is_global();
        if range.len() == 1 && groups.is_empty() && is_global(range.start) {
            self.globals.push((range.start, false));
            for number in 0..partitions {
                self.part(number).take(batch, range.clone(), groups);
            }
            return;
        }
        let home = slot(batch.key(range.start));
        let is_elsewhere = |index: usize| is_global(index) || slot(batch.key(index)) != home;
        if range.clone().any(is_elsewhere) {
            range.for_each(|index| self.replies[index] = refused(Refusal::CrossSlot));
            return;
        }
        self.part(partition(home, partitions)).take(batch, range, groups);
    }

    fn part(&mut self, partition: u16) -> &mut Part {
        let at = match self.parts.iter().position(|part| part.partition == partition) {
            Some(at) => at,
            None => {
                self.parts.push(Part { partition, batch: Batch::default(), places: Vec::new() });
                self.parts.len() - 1
            }
        };
        &mut self.parts[at]
    }

    /// Takes over what a part was told.
    pub fn answer(&mut self, places: &[usize], replies: &[Reply]) {
        for (place, reply) in places.iter().zip(replies) {
            let known = &mut self.replies[*place];
            match self.globals.iter_mut().find(|(global, _)| global == place) {
                Some((_, is_answered)) => {
                    *is_answered = true;
                    match &mut known.refusal {
                        // Of all partitions together.
                        None => {
                            let counted = known.cell.value.saturating_add(reply.cell.value);
                            *known = reply.clone();
                            known.cell.value = counted;
                        }
                        // Some have done it and some have not.
                        Some(refusal) => *refusal = Refusal::OutcomeUnknown,
                    }
                }
                None => *known = reply.clone(),
            }
        }
    }

    /// A part could not be asked, or not be answered.
    pub fn refuse(&mut self, places: &[usize], refusal: Refusal) {
        for place in places {
            let is_half_done = self.globals.contains(&(*place, true));
            let refusal = if is_half_done { Refusal::OutcomeUnknown } else { refusal };
            self.replies[*place] = refused(refusal);
        }
    }

    /// All replies, in the order of the requests, as far as they are known.
    pub fn replies(&self) -> &[Reply] {
        &self.replies
    }
}

impl Part {
    fn take(&mut self, batch: &Batch, range: std::ops::Range<usize>, groups: &[&quipu_counting::Group]) {
        let moved = |index: usize| index - range.start + self.places.len();
        let groups: Vec<_> = groups
            .iter()
            .map(|group| {
                let kind = match group.kind {
                    GroupKind::Guard { until } => GroupKind::Guard { until: moved(until) },
                    GroupKind::Session { producer, epoch, sequence } => {
                        let producer = self.batch.intern(batch.bytes(producer));
                        GroupKind::Session { producer, epoch, sequence }
                    }
                    GroupKind::Atomic => GroupKind::Atomic,
                };
                quipu_counting::Group { start: moved(group.start), end: moved(group.end), kind }
            })
            .collect();
        for index in range {
            self.batch.push_from(batch, index);
            self.places.push(index);
        }
        self.batch.groups.extend(groups);
    }
}

#[cfg(test)]
mod tests {
    use quipu_counting::{Action, Add, Cell, Condition};

    use super::*;

    const PARTITIONS: u16 = 4;

    fn add(batch: &mut Batch, key: &str) {
        batch.push(key.as_bytes(), Action::Add(Add::plain(1)));
    }

    fn keys(part: &Part) -> Vec<String> {
        (0..part.batch.requests.len())
            .map(|index| String::from_utf8_lossy(part.batch.key(index)).into_owned())
            .collect()
    }

    /// Answers every request with its place.
    fn answered(mut split: Split) -> Vec<Reply> {
        for part in std::mem::take(&mut split.parts) {
            let reply = |place: &usize| Reply {
                cell: Cell { value: *place as i64 + 1, ..Cell::ABSENT },
                ..Reply::state(None)
            };
            split.answer(&part.places, &part.places.iter().map(reply).collect::<Vec<_>>());
        }
        split.replies
    }

    #[test]
    fn requests_keep_their_order_and_find_their_replies() {
        let mut batch = Batch::default();
        let names: Vec<String> = (0..40).map(|number| format!("counter:{}", number % 13)).collect();
        names.iter().for_each(|name| add(&mut batch, name));
        let split = Split::of(&batch, PARTITIONS);
        assert_eq!(split.parts.len(), usize::from(PARTITIONS));
        for part in &split.parts {
            assert!(part.places.is_sorted());
            for (place, key) in part.places.iter().zip(keys(part)) {
                assert_eq!(key, names[*place]);
                assert_eq!(partition(slot(key.as_bytes()), PARTITIONS), part.partition);
            }
        }
        let values: Vec<i64> = answered(split).iter().map(|reply| reply.cell.value).collect();
        assert_eq!(values, (1..=40).collect::<Vec<i64>>());
    }

    #[test]
    fn what_belongs_together_stays_together_or_is_refused() {
        let mut batch = Batch::default();
        add(&mut batch, "alone");
        add(&mut batch, "a{tag}");
        add(&mut batch, "b{tag}");
        batch.group(1, GroupKind::Atomic);
        add(&mut batch, "one");
        add(&mut batch, "two");
        batch.group(3, GroupKind::Atomic);
        batch.push(b"c{tag}", Action::Check(Condition::Exists));
        let start = batch.requests.len() - 1;
        batch.group(start, GroupKind::Guard { until: start + 3 });
        add(&mut batch, "d{tag}");
        add(&mut batch, "e{tag}");
        batch.group(start + 1, GroupKind::Atomic);
        add(&mut batch, "after");
        let split = Split::of(&batch, PARTITIONS);
        let tagged = split.parts.iter().find(|part| keys(part).contains(&"a{tag}".to_string())).unwrap();
        let at = |key: &str| keys(tagged).iter().position(|known| known == key).unwrap();
        let shape: Vec<String> = (tagged.batch.groups.iter())
            .map(|group| format!("{}..{} {:?}", group.start, group.end, group.kind))
            .collect();
        let (first, check) = (at("a{tag}"), at("c{tag}"));
        let expected = [
            format!("{first}..{} Atomic", first + 2),
            format!("{check}..{} Guard {{ until: {} }}", check + 1, check + 3),
            format!("{}..{} Atomic", check + 1, check + 3),
        ];
        assert_eq!(shape, expected);
        let replies = answered(split);
        let refusals: Vec<usize> =
            (0..replies.len()).filter(|place| replies[*place].refusal == Some(Refusal::CrossSlot)).collect();
        assert_eq!(refusals, [3, 4]);
        assert!(
            replies
                .iter()
                .enumerate()
                .all(|(place, reply)| reply.refusal.is_some() || reply.cell.value == place as i64 + 1)
        );
    }

    #[test]
    fn a_count_is_that_of_all_partitions() {
        let mut batch = Batch::default();
        batch.push(b"", Action::Count);
        let mut split = Split::of(&batch, PARTITIONS);
        assert_eq!(split.parts.len(), usize::from(PARTITIONS));
        for (part, counted) in std::mem::take(&mut split.parts).iter().zip(1..) {
            let cell = Cell { value: counted, ..Cell::ABSENT };
            split.answer(&part.places, &[Reply { cell, ..Reply::state(None) }]);
        }
        assert_eq!(split.replies()[0].cell.value, 1 + 2 + 3 + 4);
        let mut split = Split::of(&batch, PARTITIONS);
        split.refuse(&[0], Refusal::NoLeader);
        assert_eq!(split.replies[0].refusal, Some(Refusal::NoLeader));
        split.answer(&[0], &[Reply::state(None)]);
        assert_eq!(split.replies[0].refusal, Some(Refusal::OutcomeUnknown), "half done");
        split.refuse(&[0], Refusal::NoLeader);
        assert_eq!(split.replies()[0].refusal, Some(Refusal::OutcomeUnknown));
    }
}

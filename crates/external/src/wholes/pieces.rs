//! Units that have to be done together or not at all, because they share a counter, an id, a producer, or a client: then none may
//! be seen without those before it. What shares nothing is a piece of its own, and others do not hold it up.

use std::collections::HashMap;

use super::known::Needs;
use crate::units::Unit;

/// Puts units into pieces. Within a piece they keep their order.
pub(crate) fn pieces(units: Vec<Unit>) -> Vec<(Vec<Unit>, Needs)> {
    let needs: Vec<Needs> = units
        .iter()
        .map(|unit| {
            let mut needs = Needs::default();
            needs.add(unit);
            needs
        })
        .collect();
    let mut joined = Joined { parents: (0..units.len()).collect() };
    let mut first_with: HashMap<(u8, &[u8]), usize> = HashMap::new();
    for (place, needs) in needs.iter().enumerate() {
        // Ids are names of their counters too, so counters are enough.
        let keys = needs.keys.iter().map(|key| (0, &key[..]));
        let producers = needs.producers.iter().map(|producer| (1, &producer[..]));
        for name in keys.chain(producers) {
            let first = *first_with.entry(name).or_insert(place);
            joined.join(first, place);
        }
        if place > 0 && units[place].is_of_same_batch(&units[place - 1]) {
            joined.join(place - 1, place);
        }
    }
    let mut piece_of: HashMap<usize, usize> = HashMap::new();
    let mut pieces: Vec<(Vec<Unit>, Needs)> = Vec::new();
    for (place, unit) in units.into_iter().enumerate() {
        let piece = *piece_of.entry(joined.root(place)).or_insert_with(|| {
            pieces.push(Default::default());
            pieces.len() - 1
        });
        pieces[piece].1.add(&unit);
        pieces[piece].0.push(unit);
    }
    pieces
}

/// Which places belong together.
struct Joined {
    parents: Vec<usize>,
}

impl Joined {
    fn root(&mut self, mut place: usize) -> usize {
        while self.parents[place] != place {
            self.parents[place] = self.parents[self.parents[place]];
            place = self.parents[place];
        }
        place
    }

    /// The earlier of the two roots stays one, so that pieces are in the order of their first units.
    fn join(&mut self, one: usize, other: usize) {
        let (one, other) = (self.root(one), self.root(other));
        self.parents[one.max(other)] = one.min(other);
    }
}

#[cfg(test)]
mod tests {
    use quipu_counting::{Action, Add, Batch};

    use super::*;
    use crate::units::split;

    fn units(batches: &[&[&str]]) -> Vec<Unit> {
        let of_batch = |keys: &&[&str]| {
            let mut batch = Batch::default();
            keys.iter().for_each(|key| _ = batch.push(key.as_bytes(), Action::Add(Add::plain(1))));
            split(batch, 0, Box::new(|_, _| {}))
        };
        batches.iter().flat_map(of_batch).collect()
    }

    fn keys(pieces: &[(Vec<Unit>, Needs)]) -> Vec<String> {
        let keys = |units: &[Unit]| {
            let key =
                |unit: &Unit| String::from_utf8_lossy(unit.batch().key(unit.range().start)).into_owned();
            units.iter().map(key).collect::<Vec<_>>().join(" ")
        };
        pieces.iter().map(|(units, _)| keys(units)).collect()
    }

    #[test]
    fn what_shares_a_counter_or_a_client_is_one_piece() {
        let found = pieces(units(&[&["a"], &["b"], &["a"], &["c"], &["d"], &["c", "d"], &["e"]]));
        assert_eq!(keys(&found), ["a a", "b", "c d c d", "e"]);
        assert_eq!(found[2].1.keys.len(), 2);
    }
}

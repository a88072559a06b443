//! A retry of anything that was decided is answered as the first time and changes nothing.

use quipu_counting::{Action, Add, Unavailable};
use quipu_engine::Engine;

use crate::ask::{Ask, Unit};
use crate::observe;
use crate::oracle::answers::compare;
use crate::oracle::model::{Asked, Model};
use crate::violation::{Invariant, Violation};

/// Sends every request again whose id is known, and every producer's last sequence. The outer error is the
/// machine's.
pub fn check(engine: &Engine, model: &mut Model, now: u64) -> Result<Result<(), Violation>, Unavailable> {
    let before = observe::everything(engine, &model.universe, now)?;
    model.advance_all(now);
    for unit in retries(model) {
        let ask = Ask { units: vec![unit] };
        let mut batch = ask.batch(&model.universe);
        engine.run(&mut batch, now)?;
        let (expected, edits) = model.ask(&ask, now);
        assert!(edits.is_empty(), "the model knows every id that is retried here");
        for (expected, reply) in expected.iter().zip(&batch.replies) {
            if let Err(difference) = compare(expected, reply, &mut model.births) {
                let what = format!("a retry in {ask:?} {difference}");
                return Ok(Err(Violation::new(Invariant::ExactlyOnce, what)));
            }
        }
    }
    let after = observe::everything(engine, &model.universe, now)?;
    if before.cells != after.cells {
        return Ok(Err(Violation::new(Invariant::ExactlyOnce, "retries changed counters")));
    }
    Ok(Ok(()))
}

fn retries(model: &Model) -> Vec<Unit> {
    let by_id =
        model.ids.iter().filter(|((key, id, index), _)| *index == 0 && model.known((*key, *id, 0)).is_some());
    let mut units: Vec<Unit> = by_id
        .map(|((key, id, _), known)| match &known.asked {
            Asked::Single(action) => Unit::Single { key: *key, action: *action, id: Some(*id) },
            Asked::Group(items) => Unit::Atomic { items: items.clone(), id: Some(*id) },
        })
        .collect();
    units.extend(model.sessions.iter().map(|(producer, session)| {
        let items = vec![(0, Action::Add(Add::plain(1)))];
        Unit::Session { producer: *producer, epoch: session.epoch, sequence: session.sequence, items }
    }));
    units
}

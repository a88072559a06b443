//! All-or-none groups: either every item is accepted, each seeing what the ones before it did, or none leaves a
//! trace.

use quipu_counting::rules::GroupItem;
use quipu_counting::{
    Action, Add, Cell, Change, Condition, Expire, ExpireWhen, Expiry, Limits, NEVER, Refusal, Reply, Set,
    decide, decide_group,
};

const NOW: u64 = 1_000_000;

/// One item of a script: which cell, what, under which limits.
type Item = (usize, Action, Limits);

/// Name, cells before, items, values after.
type Case = (&'static str, Vec<Option<Cell>>, Vec<Item>, Vec<Option<i64>>);

fn cell(value: i64, expires_at_ms: u64) -> Option<Cell> {
    Some(Cell { value, version: 4, updated_at_ms: NOW - 500, birth: 9, expires_at_ms })
}

fn add(delta: i64) -> Action {
    Action::Add(Add::plain(delta))
}

fn set(value: i64) -> Action {
    Action::Set(Set { value, expiry: Expiry::Keep, condition: Condition::Always })
}

fn free(cell: usize, action: Action) -> Item {
    (cell, action, Limits::NONE)
}

/// An addition to a stock that must not fall below zero.
fn stock(cell: usize, delta: i64) -> Item {
    (cell, add(delta), Limits { floor: 0, ..Limits::NONE })
}

fn items(script: &[Item]) -> Vec<GroupItem<'_>> {
    (100..)
        .zip(script)
        .map(|(sequence, (cell, action, limits))| GroupItem {
            cell: *cell,
            action,
            limits: *limits,
            sequence,
            now_ms: NOW,
        })
        .collect()
}

fn values(cells: &[Option<Cell>]) -> Vec<Option<i64>> {
    cells.iter().map(|cell| cell.map(|cell| cell.value)).collect()
}

#[test]
fn accepted_groups_change_every_cell() {
    let delete = Action::Delete(Condition::Always);
    let cases: [Case; 9] = [
        ("empty", vec![cell(5, NEVER)], vec![], vec![Some(5)]),
        ("a transfer", vec![cell(5, NEVER), None], vec![stock(0, -5), stock(1, 5)], vec![Some(0), Some(5)]),
        ("twice the same", vec![cell(5, NEVER)], vec![stock(0, -2), stock(0, -3)], vec![Some(0)]),
        ("first in, then out", vec![None], vec![stock(0, 3), stock(0, -3)], vec![Some(0)]),
        ("a read between", vec![cell(5, NEVER)], vec![free(0, add(1)), free(0, Action::Read)], vec![Some(6)]),
        ("deleted, born again", vec![cell(5, NEVER)], vec![free(0, delete), free(0, add(1))], vec![Some(1)]),
        ("born, deleted", vec![None], vec![free(0, add(1)), free(0, delete)], vec![None]),
        ("expired before", vec![cell(5, NOW)], vec![stock(0, 1), stock(0, -1)], vec![Some(0)]),
        ("untouched", vec![None, cell(7, NEVER)], vec![free(0, Action::Read)], vec![None, Some(7)]),
    ];
    for (name, mut cells, script, after) in cases {
        let verdicts =
            decide_group(&items(&script), &mut cells).unwrap_or_else(|no| panic!("{name}: {no:?}"));
        assert_eq!(verdicts.len(), script.len(), "{name}");
        assert_eq!(values(&cells), after, "{name}");
    }
}

#[test]
fn items_on_one_cell_see_each_other() {
    let seen = |version| Condition::Tag { birth: 9, version };
    let add_if = |condition| Action::Add(Add { condition, ..Add::plain(10) });
    let mut cells = vec![cell(5, NEVER)];
    let script = [
        free(0, add_if(seen(4))),
        free(0, add_if(seen(5))),
        free(0, Action::Read),
        free(0, Action::Delete(seen(6))),
        free(0, add_if(Condition::Absent)),
    ];
    let verdicts =
        decide_group(&items(&script), &mut cells).expect("each condition holds after the item before");
    let told: Vec<(i64, i64, u64)> = verdicts
        .iter()
        .map(|verdict| (verdict.reply.previous, verdict.reply.applied, verdict.reply.cell.version))
        .collect();
    assert_eq!(told, [(5, 10, 5), (15, 10, 6), (25, 0, 6), (25, -25, 0), (0, 10, 1)]);
    let reborn = Cell { value: 10, version: 1, updated_at_ms: NOW, birth: 104, expires_at_ms: NEVER };
    assert_eq!(cells, [Some(reborn)], "born by the fifth item, with that item's sequence");
    assert_eq!(verdicts[4].change, Change::Put(reborn));
}

#[test]
fn a_refused_item_undoes_the_group_wherever_it_stands() {
    let before = vec![cell(5, NEVER), None, cell(7, NOW), cell(9, NOW + 60), cell(i64::MAX, NEVER)];
    let accepted = [
        free(0, add(1)),
        free(1, set(3)),
        free(2, add(4)),
        free(3, Action::Expire(Expire { expiry: Expiry::Clear, when: ExpireWhen::Always })),
        free(3, Action::Delete(Condition::Always)),
        free(0, Action::Reset(Condition::Always)),
        free(0, Action::Read),
    ];
    let disabled = Limits { disabled: true, ..Limits::NONE };
    let poisons = [
        (free(4, add(1)), Refusal::Overflow),
        (stock(1, -100), Refusal::BelowFloor),
        ((0, set(11), Limits { ceiling: 10, ..Limits::NONE }), Refusal::AboveCeiling),
        (free(2, Action::Delete(Condition::Version(99))), Refusal::ConditionUnmet),
        ((1, add(1), disabled), Refusal::Disabled),
    ];
    for (poison, refusal) in poisons {
        for place in 0..=accepted.len() {
            let mut script = accepted.to_vec();
            script.insert(place, poison);
            let mut cells = before.clone();
            let (index, replies) =
                decide_group(&items(&script), &mut cells).expect_err("one item is refused");
            assert_eq!(cells, before, "{refusal:?} at {place} left a trace");
            assert_eq!(index, place);
            let expected: Vec<Reply> = script
                .iter()
                .enumerate()
                .map(|(other, (cell, ..))| {
                    let refusal = if other == place { refusal } else { Refusal::GroupAborted };
                    let live = before[*cell].filter(|cell| cell.is_live(NOW));
                    Reply { refusal: Some(refusal), ..Reply::state(live) }
                })
                .collect();
            assert_eq!(replies, expected, "{refusal:?} at {place}");
        }
    }
}

/// Two items that fit alone and not together.
#[test]
fn bounds_hold_for_the_group_as_a_whole() {
    let before = vec![cell(5, NEVER), None];
    let cases = [
        (vec![stock(0, -3), stock(0, -3)], 1, Refusal::BelowFloor),
        (vec![stock(0, -5), stock(1, 5), stock(1, -6)], 2, Refusal::BelowFloor),
        (vec![free(0, add(i64::MAX - 5)), free(0, add(1))], 1, Refusal::Overflow),
        (vec![free(0, Action::Delete(Condition::Always)), stock(0, -1)], 1, Refusal::BelowFloor),
        // In this order there is nothing to take yet.
        (vec![stock(1, -5), stock(1, 5)], 0, Refusal::BelowFloor),
    ];
    for (script, index, refusal) in cases {
        let mut cells = before.clone();
        let (at, replies) = decide_group(&items(&script), &mut cells).expect_err("must not fit");
        assert_eq!((at, replies[at].refusal), (index, Some(refusal)), "{script:?}");
        assert_eq!(cells, before);
    }
}

/// An accepted group is its items one after the other: no rule of its own.
#[test]
fn a_group_decides_as_its_items_would_alone() {
    let script = [
        free(0, add(4)),
        free(1, Action::Add(Add { expiry: Expiry::In(0), ..Add::plain(2) })),
        free(1, Action::Read),
        (0, Action::Add(Add { max: 6, saturate: true, ..Add::plain(9) }), Limits::NONE),
        (1, add(1), Limits { ttl_ms: 60, ..Limits::NONE }),
        free(0, Action::Expire(Expire { expiry: Expiry::At(NOW), when: ExpireWhen::None })),
        free(0, set(-1)),
    ];
    let before = vec![cell(5, NEVER), cell(1, NOW - 1)];
    let mut alone = before.clone();
    let mut expected = Vec::new();
    for item in items(&script) {
        let verdict = decide(alone[item.cell], item.action, &item.limits, item.now_ms, item.sequence);
        match verdict.change {
            Change::Keep => {}
            Change::Put(cell) => alone[item.cell] = Some(cell),
            Change::Remove => alone[item.cell] = None,
        }
        expected.push(verdict);
    }
    let mut together = before;
    assert_eq!(decide_group(&items(&script), &mut together).expect("nothing is refused"), expected);
    assert_eq!(together, alone);
}

/// Items of different partitions have different entry times.
#[test]
fn each_item_has_the_time_of_its_partition() {
    let (early, late) = (NOW, NOW + 10);
    let action = Action::Add(Add { condition: Condition::Exists, ..Add::plain(1) });
    let item = |cell, now_ms| GroupItem { cell, action: &action, limits: Limits::NONE, sequence: 1, now_ms };
    let before = vec![cell(5, late), cell(5, late)];
    let mut cells = before.clone();
    assert!(decide_group(&[item(0, early), item(1, early)], &mut cells).is_ok());
    let mut cells = before.clone();
    let (index, replies) =
        decide_group(&[item(0, early), item(1, late)], &mut cells).expect_err("the second is gone");
    assert_eq!(index, 1);
    assert_eq!((replies[0].exists, replies[1].exists), (true, false));
    assert_eq!(cells, before);
}

//! What the checker refuses: each single deletion, a unit that is freed too early, other orders on two ranks.

use std::collections::BTreeMap;

use model_parallel::Action::{Free, Gather, ReduceScatter, Update, Wait};
use model_parallel::{Schedule, UNBOUNDED, check};
use sharded_state::Sharing;

use crate::cases::CASE;
use crate::numbers::{SHARINGS, strategies, without_recomputation};

/// The laws that a deletion can break, each with the number of deletions that break it: from the lists of all strategies for four
/// units, two ranks, and one to three micro-batches.
const LAWS: [(&str, usize); 10] = [
    ("never does Forward", 360),
    ("never does Recompute", 150),
    ("never does Backward", 360),
    ("never does AllReduce", 108),
    ("never does ReduceScatter", 72),
    ("never does Update", 180),
    ("no Gather is on its way, and a Wait needs one before it", 198),
    ("the layers of a unit run after its Wait", 126),
    ("the parameters are there already", 54),
    ("A unit ends a step in the state in which it began", 144),
];

fn refused(schedule: Schedule) -> String {
    check(schedule, UNBOUNDED).unwrap_err().to_string()
}

#[test]
fn each_single_deletion_is_refused_by_a_law() {
    let mut found = BTreeMap::new();
    for strategy in strategies() {
        for micro_batches in 1..=3 {
            let schedule = strategy.schedule(4, micro_batches, 2);
            check(schedule.clone(), UNBOUNDED).unwrap();
            for position in 0..schedule.lists[0].len() {
                let mut broken = schedule.clone();
                let deleted = broken.lists[0].remove(position);
                let told = refused(broken);
                let laws = LAWS.iter().filter(|(law, _)| told.contains(law)).collect::<Vec<_>>();
                let [(law, _)] = laws[..] else { panic!("{strategy:?}, {deleted}: {told}") };
                assert!(told.contains(&format!("unit {}", deleted.unit)), "{deleted}: {told}");
                *found.entry(*law).or_insert(0) += 1;
            }
        }
    }
    assert_eq!(found, LAWS.into_iter().collect::<BTreeMap<_, _>>());
}

/// Three units in chunks, one micro-batch. The function gets the list of two ranks.
fn zero3(edit: impl FnOnce(&mut Vec<model_parallel::Instruction>)) -> Schedule {
    let strategy = Sharing::Zero3.plain();
    let mut schedule = strategy.schedule(3, 1, 2);
    edit(&mut schedule.lists[0]);
    schedule
}

#[test]
fn parameters_are_there_while_they_are_used() {
    let at = |list: &[model_parallel::Instruction], unit, action| {
        list.iter().position(|it| it.unit == unit && it.action == action).unwrap()
    };
    // `Gather`, `Free`, and the row arrives when the unit is freed.
    let told = refused(zero3(|list| {
        let (wait, free) = (at(list, 0, Wait), at(list, 0, Free));
        let freed = list.remove(free);
        list.insert(wait, freed);
    }));
    let law = "stage 0, instruction 1, Free of unit 0: a unit is not freed while its parameters are on their way";
    assert_eq!(told, law);
    let told = refused(zero3(|list| {
        let update = at(list, 0, Update);
        let it = list[update];
        list[update] = model_parallel::Instruction { action: Gather, ..it };
        list.push(it);
        list.push(model_parallel::Instruction { action: Wait, ..it });
    }));
    assert!(told.contains("a unit is not updated while its parameters are on their way"), "{told}");
    let told = refused(zero3(|list| {
        let free = at(list, 1, Free);
        list.insert(free, list[free]);
    }));
    assert!(told.contains("the unit is freed already"), "{told}");
    let told = refused(zero3(|list| {
        let gather = at(list, 1, Gather);
        list.insert(gather, list[gather]);
    }));
    assert!(told.contains("the parameters are on their way already"), "{told}");
    // The passes of the last unit after its `Free`.
    let told = refused(zero3(|list| {
        let free = at(list, 2, Free);
        list.swap(free, free - 1);
    }));
    assert!(told.contains("the layers of a unit run after its Gather and its Wait"), "{told}");
}

#[test]
fn an_update_before_the_sum_is_refused() {
    let told = refused(zero3(|list| {
        let position = |action| list.iter().position(|it| it.unit == 1 && it.action == action);
        let (sum, update) = (position(ReduceScatter).unwrap(), position(Update).unwrap());
        list.swap(sum, update);
    }));
    let law = "The update uses the gradients that are summed over all replicas";
    assert!(told.contains(law), "{told}");
}

/// Each list is sound alone. Together a gather of one unit would meet the sum of another.
#[test]
fn other_orders_of_collectives_are_refused_before_the_first_step() {
    let mut tried = [0; SHARINGS.len()];
    for strategy in without_recomputation() {
        let schedule = CASE.schedule(strategy);
        let list = &schedule.lists[0];
        for first in 0..list.len() {
            let later = (first + 1..list.len()).find(|&at| list[at].action.is_collective());
            let (true, Some(second)) = (list[first].action.is_collective(), later) else {
                continue;
            };
            // The later collective before the earlier one, or the earlier one after the later one.
            for (from, to) in [(first, second), (second, first)] {
                let mut other = schedule.clone();
                let moved = other.lists[0].remove(from);
                other.lists[0].insert(to, moved);
                if check(other.clone(), UNBOUNDED).is_err() {
                    continue;
                }
                let whole = strategy.sharing == Sharing::Ddp;
                let told = CASE.train_lists(whole, &[schedule.clone(), other]).unwrap_err();
                let number = list[..first].iter().filter(|it| it.action.is_collective()).count();
                let [one, two] = [list[first], list[second]];
                let expected = format!(
                    "collective {number}: replica 0 starts {one}, replica 1 {two}. All replicas start their collectives \
                     in one order"
                );
                assert!(told.contains(&expected), "{told}");
                tried[SHARINGS.iter().position(|it| *it == strategy.sharing).unwrap()] += 1;
            }
        }
    }
    assert!(tried.iter().all(|tried| *tried > 0), "{tried:?}");
}

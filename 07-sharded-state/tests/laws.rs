//! What the checker refuses: each single deletion, a unit that is freed too early, other orders on two ranks.

use std::collections::BTreeMap;

use model_parallel::Action::{Free, Gather, Update, Wait};
use model_parallel::{Instruction, UNBOUNDED, check};
use sharded_state::Sharing;

use crate::cases::CASE;
use crate::numbers::{SHARINGS, strategies, without_recomputation};
use crate::sentences::{place, refused, zero3};

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

#[test]
fn parameters_are_there_while_they_are_used() {
    let [mut early, mut updated, mut twice_freed, mut twice_gathered, mut late] =
        [(); 5].map(|()| zero3());
    // `Gather`, `Free`, and the row arrives when the unit is freed.
    let (wait, free) = (place(&early, 0, Wait), place(&early, 0, Free));
    early.lists[0][wait..=free].rotate_right(1);
    let update = place(&updated, 0, Update);
    let it = updated.lists[0][update];
    updated.lists[0][update].action = Gather;
    updated.lists[0].extend([it, Instruction { action: Wait, ..it }]);
    for (schedule, action) in [(&mut twice_freed, Free), (&mut twice_gathered, Gather)] {
        let place = place(schedule, 1, action);
        schedule.lists[0].insert(place, Instruction { unit: 1, action });
    }
    // The passes of the last unit after its `Free`.
    let free = place(&late, 2, Free);
    late.lists[0].swap(free, free - 1);
    let freed = "stage 0, instruction 1, Free of unit 0: a unit is not freed while its parameters are on their way";
    for (schedule, law) in [
        (early, freed),
        (updated, "a unit is not updated while its parameters are on their way"),
        (twice_freed, "the unit is freed already"),
        (twice_gathered, "the parameters are on their way already"),
        (late, "the layers of a unit run after its Gather and its Wait"),
    ] {
        let told = refused(schedule);
        assert!(told.contains(law), "{told}");
    }
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

//! Instructions in any order: the checker says no, or the schedule runs to its end with nothing used too early.
//!
//! Whether it should say no is found out a second time, by an execution that is as simple as can be.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

use std::cell::Cell;
use std::collections::{HashSet, VecDeque};

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::{Config, TestRunner};

use super::schedules::earliest;
use crate::prelude::*;

/// A generated schedule.
fn generated() -> impl Strategy<Value = Schedule> {
    let kind = prop_oneof![
        Just(Kind::Naive),
        Just(Kind::GPipe),
        Just(Kind::OneFOneB),
        Just(Kind::ZbH1),
        (2..4usize).prop_map(|chunks| Kind::Interleaved { chunks }),
    ];
    (kind, 1..5usize, 1..5usize).prop_map(|(kind, stages, micro_batches)| {
        let micro_batches = match kind {
            Kind::Interleaved { .. } => micro_batches.div_ceil(3) * stages,
            _ => micro_batches,
        };
        kind.schedule(stages, micro_batches).unwrap()
    })
}

/// A generated schedule whose instructions change places: a few, by a few places; or all of a stage.
fn permuted() -> impl Strategy<Value = Schedule> {
    let moves = prop::collection::vec((any::<Index>(), any::<Index>(), 1..8usize), 0..4);
    (generated(), moves, prop::bool::weighted(0.1), any::<Index>()).prop_perturb(
        |(mut schedule, moves, all, which), mut random| {
            for (stage, from, by) in moves {
                let list = stage.get(&schedule.lists).len();
                let stage = stage.index(schedule.stages());
                let from = from.index(list);
                let instruction = schedule.lists[stage].remove(from);
                schedule.lists[stage].insert((from + by).min(list - 1), instruction);
            }
            if all {
                let stage = which.index(schedule.stages());
                let list = &mut schedule.lists[stage];
                for end in (1..list.len()).rev() {
                    list.swap(end, random.random_range(0..=end));
                }
            }
            schedule
        },
    )
}

/// Does this schedule run to its end, with the gradients of each unit added in ascending order? Queues without limits, and
/// what is there is looked up.
fn runs(schedule: &Schedule) -> bool {
    let (stages, units, placement) = (schedule.stages(), schedule.units(), &schedule.placement);
    let mut done = vec![HashSet::new(); stages];
    // To each stage: the queues of activations and of gradients, by sender.
    let mut queues = vec![vec![[VecDeque::new(), VecDeque::new()]; stages]; stages];
    let mut next = vec![0; stages];
    let mut added = vec![0; units];
    loop {
        let before = next.clone();
        for stage in 0..stages {
            while let Some(&instruction) = schedule.lists[stage].get(next[stage]) {
                let Instruction { unit, action } = instruction;
                let has = |unit, action| done[stage].contains(&Instruction { unit, action });
                let backward =
                    |unit, i| has(unit, Action::Backward(i)) || has(unit, Action::BackwardInput(i));
                let is_here = |unit: usize| placement.get(unit) == Some(&stage);
                let ready = match action {
                    Action::Forward(i) if unit == 0 => !has(unit, Action::Forward(i)),
                    Action::Forward(i) if is_here(unit - 1) => has(unit - 1, Action::Forward(i)),
                    Action::Forward(i) => has(unit, Action::RecvActivation(i)),
                    Action::Backward(i) | Action::BackwardInput(i) => {
                        has(unit, Action::Forward(i))
                            && (unit + 1 == units
                                || is_here(unit + 1) && backward(unit + 1, i)
                                || has(unit, Action::RecvGradient(i)))
                    }
                    Action::BackwardWeight(i) => has(unit, Action::BackwardInput(i)),
                    Action::SendActivation(i) => {
                        queues[placement[unit + 1]][stage][0].push_back((unit + 1, i));
                        has(unit, Action::Forward(i))
                    }
                    Action::SendGradient(i) => {
                        queues[placement[unit - 1]][stage][1].push_back((unit - 1, i));
                        backward(unit, i)
                    }
                    Action::RecvActivation(i) => {
                        let queue = &mut queues[stage][placement[unit - 1]][0];
                        let Some(message) = queue.pop_front() else { break };
                        message == (unit, i)
                    }
                    Action::RecvGradient(i) => {
                        let queue = &mut queues[stage][placement[unit + 1]][1];
                        let Some(message) = queue.pop_front() else { break };
                        message == (unit, i)
                    }
                    Action::Update => added[unit] == schedule.micro_batches,
                    Action::AllReduce | Action::ForwardOnly(_) => false,
                };
                let adds = action.adds_gradients().then(|| action.micro_batch().unwrap());
                if !ready || adds.is_some_and(|i| i != added[unit]) {
                    return false;
                }
                added[unit] += usize::from(adds.is_some());
                done[stage].insert(instruction);
                next[stage] += 1;
            }
        }
        if next == before {
            return (0..stages).all(|stage| next[stage] == schedule.lists[stage].len());
        }
    }
}

/// Checks the predicted times: nothing begins before the end of what it needs, and a stage does one thing at a time.
fn in_time(checked: &Checked) {
    let cost = |stage: usize| Cost {
        forward: 1.0 + stage as f64,
        backward: 2.0 + 0.5 * stage as f64,
        backward_input: 2.0,
        backward_weight: 0.5 * stage as f64,
        update: 1.0,
        ..Cost::UNITS
    };
    let schedule = checked.schedule();
    let (costs, message) = (schedule.placement.iter().copied().map(cost).collect::<Vec<_>>(), 0.25);
    let timeline = checked.simulate(&costs, message).unwrap();
    assert_eq!(timeline.spans.len(), schedule.lists.concat().len());
    for (span, earliest) in earliest(checked, &timeline, message) {
        assert!(span.start >= earliest, "{span:?} before {earliest}");
    }
    for stage in 0..schedule.stages() {
        let spans: Vec<_> = timeline.of_stage(stage).collect();
        assert!(spans.windows(2).all(|two| two[1].start >= two[0].end), "one thing at a time");
    }
}

#[test]
fn any_order_is_rejected_or_runs_to_its_end() {
    let (accepted, rejected) = (Cell::new(0), Cell::new(0));
    let config = Config { cases: 4000, failure_persistence: None, ..Config::default() };
    let property = |schedule: Schedule| {
        let found = check(schedule.clone(), UNBOUNDED);
        prop_assert_eq!(found.is_ok(), runs(&schedule), "{:?}", found);
        match found {
            Ok(checked) => {
                accepted.set(accepted.get() + 1);
                in_time(&checked);
                // And with the smallest channels that suffice, not with smaller ones.
                let smallest = checked.smallest_capacity();
                in_time(&check(schedule.clone(), smallest).unwrap());
                if let Some(smaller) = smallest.checked_sub(1) {
                    prop_assert!(check(schedule, smaller).is_err());
                }
            }
            Err(_) => rejected.set(rejected.get() + 1),
        }
        Ok(())
    };
    TestRunner::new(config).run(&permuted(), property).unwrap();
    assert!(accepted.get() > 500 && rejected.get() > 500, "{accepted:?} and {rejected:?}");
}

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
                let list = stage.get(&schedule.instructions).len();
                let stage = stage.index(schedule.stages());
                let from = from.index(list);
                let instruction = schedule.instructions[stage].remove(from);
                schedule.instructions[stage].insert((from + by).min(list - 1), instruction);
            }
            if all {
                let stage = which.index(schedule.stages());
                let list = &mut schedule.instructions[stage];
                for end in (1..list.len()).rev() {
                    list.swap(end, random.random_range(0..=end));
                }
            }
            schedule
        },
    )
}

/// Does this schedule run to its end? Queues without limits, and what is there is looked up.
fn runs(schedule: &Schedule) -> bool {
    let (stages, parts) = (schedule.stages(), schedule.stages() * schedule.chunks);
    let mut done = vec![HashSet::new(); stages];
    // To each stage: the queues of activations and of gradients, by sender.
    let mut queues = vec![vec![[VecDeque::new(), VecDeque::new()]; stages]; stages];
    let mut next = vec![0; stages];
    loop {
        let before = next.clone();
        for stage in 0..stages {
            while let Some(&instruction) = schedule.instructions[stage].get(next[stage]) {
                let Instruction { chunk, action } = instruction;
                let part = chunk * stages + stage;
                let has = |chunk, action| done[stage].contains(&Instruction { chunk, action });
                let backward = |chunk, i| {
                    has(chunk, Action::Backward(i)) || has(chunk, Action::BackwardInput(i))
                };
                let ready = match action {
                    Action::Forward(i) if part == 0 => !has(chunk, Action::Forward(i)),
                    Action::Forward(i) if stages == 1 => has(chunk - 1, Action::Forward(i)),
                    Action::Forward(i) => has(chunk, Action::RecvActivation(i)),
                    Action::Backward(i) | Action::BackwardInput(i) => {
                        has(chunk, Action::Forward(i))
                            && (part + 1 == parts
                                || stages == 1 && backward(chunk + 1, i)
                                || has(chunk, Action::RecvGradient(i)))
                    }
                    Action::BackwardWeight(i) => has(chunk, Action::BackwardInput(i)),
                    Action::SendActivation(i) => {
                        let queue = &mut queues[(part + 1) % stages][stage][0];
                        queue.push_back((part + 1, i));
                        has(chunk, Action::Forward(i))
                    }
                    Action::SendGradient(i) => {
                        let queue = &mut queues[(part - 1) % stages][stage][1];
                        queue.push_back((part - 1, i));
                        backward(chunk, i)
                    }
                    Action::RecvActivation(i) => {
                        let queue = &mut queues[stage][(part - 1) % stages][0];
                        let Some(message) = queue.pop_front() else { break };
                        message == (part, i)
                    }
                    Action::RecvGradient(i) => {
                        let queue = &mut queues[stage][(part + 1) % stages][1];
                        let Some(message) = queue.pop_front() else { break };
                        message == (part, i)
                    }
                    Action::Update => (0..schedule.chunks).all(|chunk| {
                        (0..schedule.micro_batches).all(|i| {
                            let last = stages == 1
                                || chunk * stages + stage == 0
                                || has(chunk, Action::SendGradient(i));
                            last && (has(chunk, Action::Backward(i))
                                || has(chunk, Action::BackwardWeight(i)))
                        })
                    }),
                };
                if !ready {
                    return false;
                }
                done[stage].insert(instruction);
                next[stage] += 1;
            }
        }
        if next == before {
            return (0..stages).all(|stage| next[stage] == schedule.instructions[stage].len());
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
    };
    let schedule = checked.schedule();
    let (costs, message) = ((0..schedule.stages()).map(cost).collect::<Vec<_>>(), 0.25);
    let timeline = predict(checked, &costs, message).unwrap();
    assert_eq!(timeline.spans.len(), schedule.instructions.concat().len());
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

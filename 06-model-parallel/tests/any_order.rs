//! Instructions in any order: the checker says no, or the schedule runs to its end with nothing used too early.
//!
//! Whether it should say no is found out a second time, by an execution that is as simple as can be. Then real executors
//! train by lists that the checker accepts, with the bits of one device.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

use model_parallel::partition::cut_by_hand;
use model_parallel::simulate::Span;
use proptest::prelude::*;
use proptest::sample::{Index, subsequence};
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, TestRunner};

use super::pipelines::training::{Case, dense, hash, on_ranks, sorted};
use super::schedules::earliest;
use crate::prelude::*;

/// A generated schedule.
fn generated(stages: Range<usize>, chunks: Range<usize>) -> impl Strategy<Value = Schedule> {
    let kind = prop_oneof![
        Just(Kind::Naive),
        Just(Kind::GPipe),
        Just(Kind::OneFOneB),
        Just(Kind::ZbH1),
        chunks.prop_map(|chunks| Kind::Interleaved { chunks }),
    ];
    (kind, stages, 1..5usize).prop_map(|(kind, stages, micro_batches)| {
        let micro_batches = match kind {
            Kind::Interleaved { .. } => micro_batches.div_ceil(3) * stages,
            _ => micro_batches,
        };
        kind.schedule(stages, micro_batches).unwrap()
    })
}

/// A generated schedule for one or two replicas, and for a model whose first units may have nothing to train.
fn varied() -> impl Strategy<Value = Schedule> {
    let all = (generated(1..5, 2..4), 1..3usize, any::<Index>());
    all.prop_map(|(schedule, replicas, first)| {
        let first = first.index(schedule.units());
        schedule.with_replicas(replicas).trained_from(first)
    })
}

/// A generated schedule whose instructions change places: a few, by a few places; or all of a stage.
fn permuted() -> impl Strategy<Value = Schedule> {
    let moves = prop::collection::vec((any::<Index>(), any::<Index>(), 1..8usize), 0..4);
    (varied(), moves, prop::bool::weighted(0.1), any::<Index>()).prop_perturb(
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
    let (mut added, mut summed) = (vec![0; units], vec![schedule.replicas == 1; units]);
    loop {
        let before = next.clone();
        for stage in 0..stages {
            while let Some(&instruction) = schedule.lists[stage].get(next[stage]) {
                let Instruction { unit, action } = instruction;
                let has = |unit, action| done[stage].contains(&Instruction { unit, action });
                let backward =
                    |unit, i| has(unit, Action::Backward(i)) || has(unit, Action::BackwardInput(i));
                let forward =
                    |unit, i| has(unit, Action::Forward(i)) || has(unit, Action::ForwardOnly(i));
                let is_here = |unit: usize| placement.get(unit) == Some(&stage);
                let ready = match action {
                    Action::Forward(i) | Action::ForwardOnly(i) => {
                        unit == 0
                            || is_here(unit - 1) && forward(unit - 1, i)
                            || has(unit, Action::RecvActivation(i))
                    }
                    Action::Backward(i) | Action::BackwardInput(i) => {
                        has(unit, Action::Forward(i))
                            && (unit + 1 == units
                                || is_here(unit + 1) && backward(unit + 1, i)
                                || has(unit, Action::RecvGradient(i)))
                    }
                    Action::BackwardWeight(i) => has(unit, Action::BackwardInput(i)),
                    Action::SendActivation(i) => {
                        queues[placement[unit + 1]][stage][0].push_back((unit + 1, i));
                        forward(unit, i)
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
                    Action::AllReduce => {
                        summed[unit] = true;
                        added[unit] == schedule.micro_batches
                    }
                    Action::Update => added[unit] == schedule.micro_batches && summed[unit],
                    _ => panic!("{action:?} is in no pipeline"),
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
        all_reduce: 4.0,
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
        let is_sum = |span: &&Span| span.instruction.action == Action::AllReduce;
        let (sums, others): (Vec<&Span>, Vec<&Span>) = timeline.of_stage(stage).partition(is_sum);
        for spans in [sums, others] {
            assert!(spans.windows(2).all(|two| two[1].start >= two[0].end), "one thing at a time");
        }
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

/// Lists that the checker accepts.
#[derive(Debug)]
struct Lists {
    /// The number of first layers with nothing to train.
    frozen: usize,
    cut: Vec<Range<usize>>,
    checked: Checked,
    by_shards: bool,
}

const LAYERS: usize = 6;

/// A small model. One of its later layers has nothing to train, either.
fn model(frozen: usize) -> Case {
    let layers = Layers::dense(&[6, 7, 5, 6, 8, 7, 10]).unwrap();
    Case { layers, frozen: (0..frozen).chain([3]).collect(), steps: 2, ..dense() }
}

/// More samples than there are micro-batches.
const SAMPLES: usize = 13;

/// Units anywhere: all micro-batches forward and then backward, or one after the other.
fn anywhere() -> impl Strategy<Value = Schedule> {
    let placement = (1..4usize).prop_flat_map(|stages| {
        let others = prop::collection::vec(0..stages, 0..=6 - stages);
        let all = others.prop_map(move |others| (0..stages).chain(others).collect::<Vec<_>>());
        (Just(stages), all.prop_shuffle())
    });
    let all = (placement, 1..5usize, any::<bool>(), any::<bool>());
    all.prop_map(|((stages, placement), micro_batches, all_forward, in_halves)| {
        let units = placement.len();
        let empty = Schedule { placement, ..Schedule::of(stages, micro_batches, |_| vec![]) };
        let of = |unit, actions: Vec<Action>| {
            actions.into_iter().map(move |action| Instruction { unit, action })
        };
        let forward = |unit: usize, i: usize| of(unit, vec![Action::Forward(i)]);
        let backward = |unit: usize, i: usize| match in_halves {
            true => of(unit, vec![Action::BackwardInput(i), Action::BackwardWeight(i)]),
            false => of(unit, vec![Action::Backward(i)]),
        };
        let mut all = Vec::new();
        let at_once = if all_forward { micro_batches } else { 1 };
        for first in (0..micro_batches).step_by(at_once) {
            let group = first..first + at_once;
            all.extend(
                (0..units).flat_map(|unit| group.clone().flat_map(move |i| forward(unit, i))),
            );
            all.extend(
                (0..units)
                    .rev()
                    .flat_map(|unit| group.clone().flat_map(move |i| backward(unit, i))),
            );
        }
        let list =
            |stage| all.iter().copied().filter(|it| empty.placement[it.unit] == stage).collect();
        Schedule { lists: (0..stages).map(list).collect(), ..empty.clone() }.complete()
    })
}

/// Lists that are accepted: instructions of generated lists change places, and only as far as the checker accepts.
fn accepted() -> impl Strategy<Value = Lists> {
    let schedule = prop_oneof![generated(1..4, 2..3), anywhere()];
    let all = (schedule, 0..3usize).prop_flat_map(|(schedule, frozen)| {
        let begins = subsequence((1..LAYERS).collect::<Vec<_>>(), schedule.units() - 1);
        let cut = begins.prop_map(|begins| cut_by_hand(&begins, LAYERS).unwrap());
        let moves = prop::collection::vec((any::<Index>(), any::<Index>(), any::<Index>()), 30);
        (Just(schedule), Just(frozen), cut, 1..3usize, any::<bool>(), moves)
    });
    all.prop_map(|(schedule, frozen, cut, replicas, by_shards, moves)| {
        let first = cut.iter().take_while(|layers| layers.end <= frozen).count();
        let schedule = schedule.with_replicas(replicas).trained_from(first);
        let mut checked = check(schedule, UNBOUNDED).unwrap();
        for (stage, from, to) in moves {
            let mut schedule = checked.schedule().clone();
            let list = stage.index(schedule.stages());
            let list = &mut schedule.lists[list];
            let instruction = list.remove(from.index(list.len()));
            list.insert(to.index(list.len() + 1), instruction);
            checked = check(schedule, UNBOUNDED).unwrap_or(checked);
        }
        Lists { frozen, cut, checked, by_shards }
    })
}

#[test]
fn lists_that_are_accepted_have_the_bits_of_one_device() {
    let (mut runner, strategy) = (TestRunner::deterministic(), accepted());
    let lists = (0..1_200).map(|_| strategy.new_tree(&mut runner).unwrap().current());
    let mut by_mesh = BTreeMap::<_, Vec<Lists>>::new();
    for lists in lists {
        let schedule = lists.checked.schedule();
        by_mesh.entry((schedule.stages(), schedule.replicas)).or_default().push(lists);
    }
    let all = by_mesh.values().flatten().map(|lists| format!("{:?}", lists.checked));
    let different = all.collect::<HashSet<_>>().len();
    assert!(different > 1_000, "{different} different lists");
    let mut one_device = HashMap::new();
    for ((stages, data), of_mesh) in by_mesh {
        let mesh = Mesh { data, ..Mesh::pipeline(stages) };
        let ranks = on_ranks(mesh.devices(), |rank| {
            let executed = of_mesh.iter().map(|lists| {
                let Lists { frozen, cut, checked, by_shards } = lists;
                let case = model(*frozen);
                let done = case.on_rank(rank.into(), mesh, checked, cut, SAMPLES, *by_shards);
                let (whole, sums, _) = done.unwrap_or_else(|error| panic!("{lists:?}: {error}"));
                (whole, sums.into_iter().map(|sums| sums.loss).collect::<Vec<f64>>())
            });
            Ok(executed.collect::<Vec<_>>())
        });
        let ranks = ranks.unwrap();
        for (number, lists) in of_mesh.iter().enumerate() {
            let micro_batches = lists.checked.schedule().micro_batches * data;
            let key = (lists.frozen, micro_batches, lists.by_shards);
            let (weights, losses) =
                one_device.entry(key).or_insert_with(|| match lists.by_shards {
                    true => model(lists.frozen).data_parallel(1, SAMPLES, micro_batches),
                    false => model(lists.frozen).on_micro_batches(SAMPLES, micro_batches),
                });
            let of_lists = ranks.iter().map(|of_rank| &of_rank[number]);
            let (replicas, of_ranks): (Vec<_>, Vec<_>) =
                of_lists.map(|(whole, losses)| (whole.clone().map(sorted), losses)).unzip();
            let replicas: Vec<_> = replicas.into_iter().flatten().collect();
            assert_eq!(replicas.len(), data);
            assert!(replicas.iter().all(|it| hash(it) == hash(&replicas[0])), "{lists:?}");
            assert!(of_ranks.iter().all(|it| *it == of_ranks[0]), "{lists:?}");
            if data == 1 || lists.by_shards {
                assert_eq!(of_ranks[0], losses, "{lists:?}");
                assert_eq!(hash(&replicas[0]), hash(weights), "{lists:?}");
            } else {
                // Each replica adds its own micro-batches first.
                let difference = largest_difference(&replicas[0], weights).unwrap();
                assert!(difference < 1e-12, "{difference:e}: {lists:?}");
            }
        }
    }
}

/// A caller that updates the weights gets all gradients in the order of the weights.
#[test]
fn a_list_may_update_its_units_in_any_order() {
    let mut schedule = Schedule { placement: vec![0, 0], ..Schedule::of(1, 1, |_| vec![]) };
    let passes = [(0, Action::Forward(0)), (1, Action::Forward(0))].into_iter().chain([
        (1, Action::Backward(0)),
        (1, Action::Update),
        (0, Action::Backward(0)),
        (0, Action::Update),
    ]);
    schedule.lists[0] = passes.map(|(unit, action)| Instruction { unit, action }).collect();
    let checked = check(schedule, UNBOUNDED).unwrap();
    let shapes = on_ranks(1, |rank| {
        let case = dense();
        let unit = |layers: Range<usize>| case.build(layers, &Alone(Device::Cpu).into());
        let (units, mesh) = (vec![unit(0..2)?, unit(2..5)?], Mesh::pipeline(1));
        let executor =
            Executor::new(&checked, units, rank.into(), mesh, case.sample, Settings::IMAGES)?;
        let found = executor.backward(&case.share(0, SAMPLES, 1))?.gradients;
        let parameters = executor.weights().parameters.iter();
        let expected = parameters.map(|named| named.tensor.dims().to_vec()).collect::<Vec<_>>();
        Ok((found.iter().map(|it| it.dims().to_vec()).collect::<Vec<_>>(), expected))
    });
    let (found, expected) = shapes.unwrap().remove(0);
    assert_eq!(found, expected);
}

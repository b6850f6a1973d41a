//! Instructions in any order: the checker says no, or the schedule runs to its end with nothing used too early.
//!
//! Whether it should say no is found out a second time, by an execution that is as simple as can be. Then real executors
//! train by lists that the checker accepts, with the bits of one device.

#![expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]

use std::cell::Cell;
use std::collections::{HashMap, HashSet, VecDeque};

use candle_nn::init::Init;
use concise_wrapper::model::Step;
use concise_wrapper::weights::Weights;
use model_parallel::partition::cut_by_hand;
use model_parallel::simulate::Span;
use proptest::prelude::*;
use proptest::sample::{Index, subsequence};
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{Config, TestRunner};

use super::pipelines::training::{Case, on_ranks, sorted};
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

/// Lists that the checker accepts, for a small model whose first `bare` layers have nothing to train.
#[derive(Debug)]
struct Lists {
    bare: usize,
    cut: Vec<Range<usize>>,
    checked: Checked,
    by_shards: bool,
}

/// Dense layers. Some layers have nothing to train: the first ones, and one in the middle.
const DENSE: [(usize, usize); 5] = [(6, 7), (7, 5), (5, 6), (6, 8), (8, 10)];

/// More samples than there are micro-batches.
const SAMPLES: usize = 13;

fn model(bare: usize) -> Case {
    let without = |layers: Layers| {
        layers
            .then(|_: &VarBuilder<'_>, _: &Norms| Ok(|x: &Tensor| flatten(x)?.affine(0.75, 0.125)))
    };
    let mut layers = (0..bare).fold(Layers::named("small"), |layers, _| without(layers));
    for (number, (inputs, outputs)) in DENSE.into_iter().enumerate() {
        if number == 2 {
            layers = without(layers);
        }
        layers = layers.then(move |vb: &VarBuilder<'_>, _: &Norms| {
            let init = Init::Uniform { lo: -0.5, up: 0.5 };
            let weight =
                vb.get_with_hints((inputs, outputs), &format!("dense{number}.weight"), init)?;
            let bias = vb.get_with_hints(outputs, &format!("dense{number}.bias"), init)?;
            Ok(move |x: &Tensor| linear(&flatten(x)?, &weight, &bias)?.tanh())
        });
    }
    Case { name: "small model", layers, sample: &[2, 3], steps: 2, rate: 0.5 }
}

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
    let all = (schedule, 0..3usize).prop_flat_map(|(schedule, bare)| {
        let layers = bare + DENSE.len() + 1;
        let begins = subsequence((1..layers).collect::<Vec<_>>(), schedule.units() - 1);
        let cut = begins.prop_map(move |begins| cut_by_hand(&begins, layers).unwrap());
        let moves = prop::collection::vec((any::<Index>(), any::<Index>(), any::<Index>()), 30);
        (Just(schedule), Just(bare), cut, 1..3usize, any::<bool>(), moves)
    });
    all.prop_map(|(schedule, bare, cut, replicas, by_shards, moves)| {
        let first = cut.iter().take_while(|layers| layers.end <= bare).count();
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
        Lists { bare, cut, checked, by_shards }
    })
}

/// One device, which adds the gradients of the micro-batches up.
struct OneDevice {
    network: Network<Stage>,
    micro_batches: usize,
}

impl Model for OneDevice {
    fn hosts(&self) -> Shards {
        Shards::new(0..self.micro_batches, self.micro_batches)
    }

    fn backward(&self, batch: &LocalBatch) -> Result<Step, Error> {
        let (mut sums, mut gradients) = (BatchSums::of_no_samples(), Vec::new());
        for batch in &batch.shards {
            let share = LocalBatch { shards: vec![batch.clone()], samples: batch.len() };
            let done = self.network.backward(&share)?;
            sums += done.sums.read()?;
            gradients = match gradients.is_empty() {
                true => done.gradients,
                false => gradients
                    .iter()
                    .zip(&done.gradients)
                    .map(|(sum, it)| sum + it)
                    .collect::<Result<_, _>>()?,
            };
        }
        Ok(Step { sums: sums.into(), gradients })
    }

    fn weights(&self) -> &Weights {
        self.network.weights()
    }

    fn evaluate(&self, images: &Dataset) -> Result<BatchSums, Error> {
        self.network.evaluate(images)
    }
}

/// Two steps of one rank: the loss of each. The caller updates the weights after the first one, and the list in the second.
fn losses(case: &Case, model: &impl Model) -> Result<Vec<f64>, Error> {
    let mut sgd = Sgd::new(Momentum { momentum: 0.9, weight_decay: 1e-3 });
    let step = |step: usize| {
        let (hosts, batch) = (model.hosts(), case.share(step, SAMPLES, model.hosts().of));
        let share = LocalBatch { shards: batch.shards[hosts.held].to_vec(), samples: SAMPLES };
        let done = match step {
            0 => model.backward(&share)?,
            _ => model.step(&share, &mut sgd, case.rate)?,
        };
        if step == 0 {
            sgd.step(model.weights(), &done.gradients, case.rate, SAMPLES)?;
        }
        Ok(done.sums.read()?.loss)
    };
    (0..case.steps).map(step).collect()
}

type Trained = (Vec<(String, Tensor)>, Vec<f64>);

/// The weights and losses of one device, with these micro-batches.
fn on_one_device(bare: usize, micro_batches: usize, by_shards: bool) -> Trained {
    let case = model(bare);
    let trained = on_ranks(1, |rank| {
        let network = case.layers.build(0..case.layers.len(), 1, DType::F64, &Device::Cpu)?;
        if by_shards {
            let ddp = Ddp::new(network, rank, Reduction::Reproducible { shards: micro_batches })?;
            let losses = losses(&case, &ddp)?;
            return Ok((ddp.weights().snapshot()?, losses));
        }
        let one = OneDevice { network, micro_batches };
        let losses = losses(&case, &one)?;
        Ok((one.weights().snapshot()?, losses))
    });
    let (weights, losses) = trained.unwrap().remove(0);
    (sorted(weights), losses)
}

/// Trains by these lists: the weights of the whole model on the first rank of each replica, and the losses on all.
fn executed(
    lists: &Lists,
    rank: &Rank,
) -> Result<(Option<Vec<(String, Tensor)>>, Vec<f64>), Error> {
    let (case, schedule) = (model(lists.bare), lists.checked.schedule());
    let mesh = Mesh { data: schedule.replicas, ..Mesh::pipeline(schedule.stages()) };
    let units = schedule.units_of(mesh.coordinate(rank.rank(), Axis::Pipeline));
    let unit =
        |unit: usize| case.layers.build(lists.cut[unit].clone(), 1, DType::F64, &Device::Cpu);
    let networks = units.map(unit).collect::<Result<_, _>>()?;
    let (all, by_shards) = (rank.into(), lists.by_shards);
    let executor = Executor::with(
        &lists.checked,
        networks,
        all,
        mesh,
        case.sample,
        (cross_entropy, by_shards),
    )?;
    let losses = losses(&case, &executor)?;
    Ok((executor.whole(executor.weights().snapshot()?)?, losses))
}

#[test]
fn lists_that_are_accepted_have_the_bits_of_one_device() {
    let (mut runner, strategy) = (TestRunner::deterministic(), accepted());
    let lists: Vec<Lists> =
        (0..1_200).map(|_| strategy.new_tree(&mut runner).unwrap().current()).collect();
    let different: HashSet<String> = lists.iter().map(|it| format!("{:?}", it.checked)).collect();
    assert!(different.len() > 1_000, "{} different lists", different.len());
    let mut one_device = HashMap::new();
    for (stages, replicas) in [(1, 1), (2, 1), (3, 1), (1, 2), (2, 2), (3, 2)] {
        let fits = |lists: &&Lists| {
            let schedule = lists.checked.schedule();
            (schedule.stages(), schedule.replicas) == (stages, replicas)
        };
        let lists: Vec<&Lists> = lists.iter().filter(fits).collect();
        let ranks = on_ranks(stages * replicas, |rank| {
            let executed = lists.iter().map(|lists| {
                executed(lists, rank).unwrap_or_else(|error| panic!("{lists:?}: {error}"))
            });
            Ok(executed.collect::<Vec<_>>())
        });
        let ranks = ranks.unwrap();
        for (number, lists) in lists.into_iter().enumerate() {
            let micro_batches = lists.checked.schedule().micro_batches * replicas;
            let key = (lists.bare, micro_batches, lists.by_shards);
            let (weights, losses) = one_device
                .entry(key)
                .or_insert_with(|| on_one_device(lists.bare, micro_batches, lists.by_shards));
            let all = ranks.iter().map(|of_rank| &of_rank[number]);
            let found: Vec<_> =
                all.clone().filter_map(|(whole, _)| whole.clone()).map(sorted).collect();
            assert_eq!(found.len(), replicas);
            let hash = |weights| WeightsHash::new(weights).unwrap();
            assert!(found.iter().all(|it| hash(it) == hash(&found[0])), "replicas: {lists:?}");
            let of_all: Vec<_> = all.map(|(_, losses)| losses).collect();
            assert!(of_all.iter().all(|it| *it == of_all[0]), "losses: {lists:?}");
            if replicas == 1 || lists.by_shards {
                assert_eq!(of_all[0], losses, "{lists:?}");
                assert_eq!(hash(&found[0]), hash(weights), "{lists:?}");
            } else {
                // Each replica sums its own micro-batches first.
                let difference = largest_difference(&found[0], weights).unwrap();
                assert!(difference < 1e-12, "{difference:e}: {lists:?}");
            }
        }
    }
}

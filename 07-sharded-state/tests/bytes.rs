//! What a rank holds and sends: counted, simulated, and in closed form.

use candle_core::Device;
use model_parallel::execute::Settings;
use model_parallel::layers::ParameterSpec;
use model_parallel::partition::{Setting, each, measure};
use model_parallel::{Bytes, Cost, UNBOUNDED, check};
use params_and_allreduce::Algorithm;
use sharded_state::{Sharing, Strategy, memory};

use crate::cases::{CASE, Case, Net};
use crate::numbers::{strategies, without_recomputation};

/// Each parameter can be cut into two, three or four equal chunks.
const DIVISIBLE: Net = Net::Dense(&[12, 24, 36, 24, 12]);

/// The costs of units on micro-batches of two samples.
fn costs(case: &Case) -> Vec<Cost> {
    let (layers, mut optimizer) = (case.net.layers(), case.updates.optimizer());
    let setting = Setting { sample: case.net.sample(), rows: 2, tries: 1, parts: case.parts };
    measure(&layers, &each(layers.len()), setting, case.dtype, &Device::Cpu, &mut *optimizer)
        .unwrap()
}

fn simulated(case: &Case, strategy: Strategy, costs: &[Cost]) -> Bytes {
    // The executor leaves out the instructions of units before the first unit that is trained.
    let first = costs.iter().position(|unit| unit.parameters > 0).unwrap();
    let schedule = case.schedule(strategy).trained_from(first);
    let checked = check(schedule, UNBOUNDED).unwrap();
    checked.simulate(costs, 0.0).unwrap().held(0).peak
}

#[test]
fn the_bytes_sent_around_the_ring_are_the_formulas() {
    let settings = Settings { algorithm: Algorithm::Ring, ..CASE.settings };
    for ranks in 1..=4 {
        let case = Case { net: DIVISIBLE, ranks, steps: 2, settings, ..CASE };
        let costs = costs(&case);
        for strategy in strategies() {
            let expected = memory::sent(strategy.sharing, &costs, ranks);
            // Loss, correct answers, samples, and whether to go on: one-shot, in f64.
            let sums = 4 * 8 * (ranks - 1);
            for (rank, sent) in case.train(strategy).sent.into_iter().enumerate() {
                let what = format!("rank {rank} of {ranks}, {strategy:?}");
                assert_eq!(sent as usize, expected + sums, "{what}");
            }
        }
    }
}

#[test]
fn the_formulas_are_the_literatures() {
    let unit = Cost { parameters: 1200, optimizer: 2400, ..Cost::default() };
    let units = vec![unit; 100];
    let whole = 1200 * 100;
    for (sharing, sent) in [
        (Sharing::Ddp, 2 * whole),
        (Sharing::Zero1, 2 * whole),
        (Sharing::Zero2, 2 * whole),
        (Sharing::Zero3, 3 * whole - 1200),
    ] {
        assert_eq!(memory::sent(sharing, &units, 4), sent * 3 / 4);
        assert_eq!(memory::sent(sharing, &units, 1), 0);
    }
    let held = |sharing| {
        let strategy = Strategy { sharing, prefetches: true, recomputes: None };
        memory::held(strategy, &units, 1, 4)
    };
    let of = |parameters, gradients, optimizer| Bytes {
        parameters,
        gradients,
        optimizer,
        ..Bytes::default()
    };
    // What is whole for a moment: a unit, or three.
    assert_eq!(held(Sharing::Ddp), of(whole, whole, 2 * whole));
    assert_eq!(held(Sharing::Zero1), of(whole + whole / 4 + 1200, whole + 1200, whole / 2));
    assert_eq!(held(Sharing::Zero2), of(whole + whole / 4 + 1200, 3 * 1200, whole / 2));
    assert_eq!(held(Sharing::Zero3), of(whole / 4 + 2 * 1200, 3 * 1200, whole / 2));
}

/// In closed form, predicted, and measured on each rank.
#[test]
fn predicted_peaks_are_the_measured_peaks() {
    let (mut largest, mut compared) = (0f64, 0);
    for net in [CASE.net, DIVISIBLE, Net::Lenet, Net::Pooled, Net::ResNet18] {
        let has_norms = matches!(net, Net::ResNet18);
        let all = if has_norms { without_recomputation().collect() } else { strategies() };
        for ranks in 1..=3 {
            for micro_batches in 1..=3 {
                let samples = 2 * ranks * micro_batches;
                let case = Case { net, ranks, micro_batches, samples, steps: 2, ..CASE };
                let costs = costs(&case);
                for &strategy in &all {
                    let what = format!("{net:?}, {ranks}, {micro_batches}, {strategy:?}");
                    let predicted = simulated(&case, strategy, &costs);
                    let closed = memory::held(strategy, &costs, micro_batches, ranks);
                    let Bytes { parameters, gradients, optimizer, .. } = predicted;
                    let of_state = Bytes { parameters, gradients, optimizer, ..Bytes::default() };
                    assert_eq!(closed, of_state, "{what}");
                    for (rank, measured) in case.train(strategy).measured.iter().enumerate() {
                        let error = predicted.largest_error(measured.held.peak);
                        let peak = measured.held.peak;
                        assert!(error <= 0.1, "rank {rank}, {what}: {predicted:?} and {peak:?}");
                        largest = largest.max(error);
                        compared += 1;
                    }
                }
            }
        }
    }
    println!("{compared} ranks, {:.1} % at most", 100.0 * largest);
}

/// The bound of the literature: a chunk of everything, and the two largest units. Also with unequal units.
#[test]
fn zero3_holds_a_chunk_of_everything_and_two_units() {
    let net = Net::Dense(&[24, 36, 12, 48, 24, 12]);
    for ranks in [2, 3, 4] {
        let case = Case { net, ranks, steps: 2, ..CASE };
        let costs = costs(&case);
        let whole: usize = costs.iter().map(|unit| unit.parameters).sum();
        let state: usize = costs.iter().map(|unit| unit.optimizer).sum();
        let mut sizes: Vec<usize> = costs.iter().map(|unit| unit.parameters).collect();
        sizes.sort_unstable();
        let [.., second, largest] = *sizes else { panic!("two units") };
        for strategy in strategies() {
            if strategy.sharing == Sharing::Ddp {
                continue;
            }
            for measured in case.train(strategy).measured {
                let peak = measured.held.peak;
                // AdamW counts the steps of each tensor: 8 bytes each.
                let error = peak.optimizer.abs_diff(state / ranks);
                assert!(error <= 16 * costs.len(), "{strategy:?}: {} {state}", peak.optimizer);
                if strategy.sharing == Sharing::Zero3 {
                    let one = whole / ranks + largest;
                    let bound = if strategy.prefetches { one + second } else { one };
                    assert!(peak.parameters <= bound, "{strategy:?}: {} {bound}", peak.parameters);
                }
            }
        }
    }
}

/// On a mesh with a tensor axis, a rank has a chunk of its part of each layer.
#[test]
fn ranks_of_a_mesh_hold_chunks_of_parts() {
    for net in [Net::Dense(&[24, 36, 24, 48, 12]), Net::Gpt] {
        let case = Case { net, parts: 2, steps: 2, ..CASE };
        let layers = net.layers();
        let of_rank = |unit| {
            let parameters = layers.parameters(unit..unit + 1).unwrap();
            let parts = |it: &ParameterSpec| if it.cut.is_some() { case.parts } else { 1 };
            let parameters = parameters.iter().map(|it| 8 * it.elements() / parts(it)).sum();
            Cost { parameters, optimizer: 2 * parameters, ..Cost::default() }
        };
        let costs: Vec<Cost> = (0..case.units()).map(of_rank).collect();
        for strategy in strategies() {
            let expected = memory::held(strategy, &costs, case.micro_batches, case.ranks);
            for measured in case.train(strategy).measured {
                let Bytes { parameters, gradients, .. } = measured.held.peak;
                let expected = (expected.parameters, expected.gradients);
                assert_eq!((parameters, gradients), expected, "{net:?} {strategy:?}");
            }
        }
    }
}

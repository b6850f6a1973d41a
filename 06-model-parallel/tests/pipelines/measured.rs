//! What a pipeline measures of itself is of the same kind as what was predicted.

use model_parallel::Action::{RecvActivation, RecvGradient, SendActivation, SendGradient};

use model_parallel::partition::{self, Setting, measure};

use super::training::{CONSTANTS, checked, cut, dense, lenet, resnet18};
use crate::prelude::*;

#[test]
fn the_measured_timeline_has_what_was_predicted() {
    let (case, cut) = (dense(), cut("1,4", 5));
    let stage = Cost { update: 0.1, ..Cost::UNITS };
    for kind in [Kind::Naive, Kind::GPipe, Kind::OneFOneB, Kind::ZbH1] {
        let checked = checked(kind, 3, 4);
        let predicted = checked.simulate(&[stage; 3], 0.0).unwrap();
        let (.., stages) = case.pipeline(&checked, &cut, 8);
        let of_step = |step: usize| stages.iter().map(move |stage| stage.steps[step].clone());
        for step in 0..5 {
            let measured = Timeline::joined(of_step(step));
            assert_eq!(measured.stages, 3);
            for stage in 0..3 {
                let list = |timeline: &Timeline| -> Vec<_> {
                    timeline.of_stage(stage).map(|span| span.instruction).collect()
                };
                assert_eq!(list(&measured), list(&predicted), "{kind}");
                let spans: Vec<_> = measured.of_stage(stage).collect();
                assert!(spans.iter().all(|span| span.start <= span.end));
                assert!(spans.windows(2).all(|pair| pair[0].end <= pair[1].start));
            }
            // What is received was sent before.
            for sent in &measured.spans {
                let (to, action) = match sent.instruction.action {
                    SendActivation(i) => (sent.stage + 1, RecvActivation(i)),
                    SendGradient(i) => (sent.stage - 1, RecvGradient(i)),
                    _ => continue,
                };
                let received = measured.of_stage(to).find(|span| span.instruction.action == action);
                assert!(sent.start <= received.unwrap().end, "{kind}: {sent:?}");
            }
            assert!((0.0..1.0).contains(&measured.bubble()), "{}", measured.bubble());
        }
    }
}

/// With chunks the last stage sends to the first, and two stages send each other activations and gradients.
#[test]
fn chunks_execute_their_lists_and_send_what_is_expected() {
    let (case, cut) = (dense(), cut("1,2,4", 5));
    for (chunks, stages) in [(2, 2), (4, 1)] {
        let checked = checked(Kind::Interleaved { chunks }, stages, 4);
        let (.., measured) = case.pipeline(&checked, &cut, 8);
        for (stage, measured) in measured.iter().enumerate() {
            let spans = measured.steps[0].iter();
            let list: Vec<_> = spans.map(|span| span.instruction).collect();
            assert_eq!(list, checked.schedule().lists[stage]);
            // Eight samples of the widths at the cuts that separate two stages, forward or backward.
            let numbers = if stages == 1 { 0 } else { 17 + 13 + 9 };
            assert_eq!(measured.held.sent, 8 * 8 * numbers, "{chunks} chunks, stage {stage}");
        }
    }
}

/// Bytes at the peak are what one micro-batch keeps, as often as the checker says that it is alive.
#[test]
fn the_measured_peak_is_the_predicted_number_of_micro_batches() {
    for case in [lenet(), dense()] {
        let cut = cut("1,2,4", case.layers.len());
        let peaks = |kind| -> Vec<(usize, usize)> {
            let checked = checked(kind, 4, 5);
            let (.., stages) = case.pipeline(&checked, &cut, 10);
            let units = checked.simulate(&[Cost::UNITS; 4], 0.0).unwrap();
            let alive = (0..4).map(|stage| units.held(stage).peak.activations);
            stages.iter().map(|measured| measured.held.peak.activations).zip(alive).collect()
        };
        let one: Vec<usize> = peaks(Kind::Naive).into_iter().map(|(bytes, _)| bytes).collect();
        for kind in [Kind::GPipe, Kind::OneFOneB] {
            for (stage, (bytes, alive)) in peaks(kind).into_iter().enumerate() {
                assert_eq!(bytes, alive * one[stage], "{} {kind}, stage {stage}", case.name);
            }
        }
    }
}

/// Of parameters, gradients, the optimizer's state, activations and messages, on each stage of every schedule.
#[test]
fn predicted_peaks_are_the_measured_peaks() {
    const MICRO_BATCHES: usize = 6;
    let (rows, mut compared) = (2, 0);
    for case in [dense(), lenet(), resnet18()] {
        let layers = case.layers.len();
        let alone = checked(Kind::Naive, 1, MICRO_BATCHES);
        let whole = std::slice::from_ref(&(0..layers)).to_vec();
        let (.., one) = case.pipeline(&alone, &whole, rows * MICRO_BATCHES);
        for stages in [2, 3] {
            let interleaved = Kind::Interleaved { chunks: 2 };
            for kind in [Kind::Naive, Kind::GPipe, Kind::OneFOneB, interleaved, Kind::ZbH1] {
                let parts = stages * kind.chunks();
                let Ok(cut) = partition::cut(&vec![1.0; layers], parts) else { continue };
                let setting = Setting { sample: case.sample, rows, tries: 1, parts: 1 };
                let (cpu, mut sgd) = (Device::Cpu, Sgd::new(CONSTANTS));
                let costs = measure(&case.layers, &cut, setting, case.dtype, &cpu, &mut sgd);
                let checked = checked(kind, stages, MICRO_BATCHES);
                let predicted = checked.simulate(&costs.unwrap(), 0.0).unwrap();
                let (.., measured) = case.pipeline(&checked, &cut, rows * MICRO_BATCHES);
                for (stage, measured) in measured.iter().enumerate() {
                    let what = format!("{}, {kind}, stage {stage} of {stages}", case.name);
                    let (peak, held) = (predicted.held(stage).peak, measured.held);
                    let error = peak.largest_error(held.peak);
                    assert!(error <= 0.1, "{what}: {peak:?} and {:?}", held.peak);
                    let (total, of_one) = (predicted.held(stage).total, one[0].held.total);
                    assert!(total.abs_diff(held.total) * 10 <= held.total, "{what}: {total}");
                    // A stage of 1F1B holds less than one device with the same micro-batches.
                    let is_less = held.total < of_one;
                    assert!(is_less || kind != Kind::OneFOneB, "{what}: {} {of_one}", held.total);
                    compared += 1;
                }
            }
        }
    }
    // Five layers are no six parts.
    assert_eq!(compared, 3 * 5 * (2 + 3) - 2 * 3);
}

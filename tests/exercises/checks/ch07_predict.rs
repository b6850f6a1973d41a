//! Chapter 7, `book/src/ch07-more-devices.md`: the step time of your own machine, predicted before it is measured.
//!
//! An experiment: the prediction of the answer against the measurements in its metrics files.

use serde::Deserialize;

use crate::metrics::{lines, reason};
use crate::prelude::*;

/// The prediction and the measurements.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// The metrics file of one device.
    pub one: &'static str,
    /// The metrics file of up to four devices.
    pub four: &'static str,
    /// The seconds of a step on two devices and on four.
    pub predicted: [f64; 2],
    /// The reason.
    pub reason: &'static str,
}

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] = laws![
    a_prediction_comes_from_one_device,
    two_and_four_devices_are_measured,
    the_prediction_is_no_measurement,
    the_prediction_holds,
    the_reason
];

const PROGRAM: &str =
    "cargo run --release -p cost-model -- … --metrics FILE, as the exercise's text says";

/// The part of the measured time by which a prediction may be off.
const OFF: f64 = 0.25;

/// The numbers of devices of the prediction.
const DEVICES: [usize; 2] = [2, 4];

/// The number of bytes of LeNet's gradients, the bytes per second of the slow link, and the seconds of a message.
const LINK: (f64, f64, f64) = (516_272.0, 100e6, 200e-6);

/// A step of training, as the program writes it.
#[derive(Clone, Debug, Deserialize)]
struct Step {
    model: String,
    batch_size: usize,
    devices: usize,
    how: Option<How>,
    predicted: Predicted,
    measured: f64,
}

#[derive(Clone, Debug, Deserialize)]
struct How {
    slow: bool,
    way: String,
    overlap: bool,
}

#[derive(Clone, Debug, Deserialize)]
struct Predicted {
    seconds: f64,
}

/// The steps of a file, all of LeNet.
fn steps(file: &'static str) -> Vec<Step> {
    let lines = lines(&[file], PROGRAM);
    if let Some(other) =
        lines.iter().find(|line| !["calibration", "step"].contains(&line.kind.as_str()))
    {
        panic!(
            "{file}: a line of kind {}, which another program writes\n  run {PROGRAM}",
            other.kind
        );
    }
    let steps = lines.iter().filter(|line| line.kind == "step").map(|line| line.read::<Step>());
    let mut steps: Vec<Step> = steps.collect();
    steps.retain(|step| step.model == "LeNet" && step.batch_size == 256);
    assert!(
        !steps.is_empty(),
        "{file}: no step of LeNet with a batch of 256\n  run {PROGRAM}, to its end"
    );
    steps
}

/// The seconds of a step on one device.
fn alone(answer: Answer) -> f64 {
    let steps = steps(answer.one);
    if let Some(other) = steps.iter().find(|step| step.devices > 1) {
        let law = "a prediction comes from measurements of something else";
        let got = format!("a step on {} devices", other.devices);
        fail(&format!("{} is the file of one device", answer.one), "one device alone", &got, law);
    }
    steps[0].measured
}

/// The step on so many devices: over the slow link, around a ring, after the backward pass.
fn measured(answer: Answer, devices: usize) -> Step {
    let fits = |step: &Step| {
        let how = |how: &How| how.slow && how.way == "ring" && !how.overlap;
        step.devices == devices && step.how.as_ref().is_some_and(how)
    };
    steps(answer.four).into_iter().find(fits).unwrap_or_else(|| {
        panic!(
            "{}: no step on {devices} devices over the slow link, around a ring, without overlap\n  run {PROGRAM}",
            answer.four
        )
    })
}

fn a_prediction_comes_from_one_device(answer: Answer) {
    alone(answer);
}

fn two_and_four_devices_are_measured(answer: Answer) {
    for devices in DEVICES {
        measured(answer, devices);
    }
}

fn the_prediction_is_no_measurement(answer: Answer) {
    for (devices, predicted) in DEVICES.into_iter().zip(answer.predicted) {
        let step = measured(answer, devices);
        for (what, number) in
            [("measured", step.measured), ("predicted by the program", step.predicted.seconds)]
        {
            if (predicted / number - 1.0).abs() < 1e-4 {
                let law = "a prediction is made before the run, and from other measurements";
                fail(
                    &format!("{devices} devices"),
                    "a number of your own",
                    &format!("what was {what}: {number}"),
                    law,
                );
            }
        }
    }
}

fn the_prediction_holds(answer: Answer) {
    let one = alone(answer);
    for (devices, predicted) in DEVICES.into_iter().zip(answer.predicted) {
        let measured = measured(answer, devices).measured;
        // Written so that NaN is off.
        let holds = (predicted / measured - 1.0).abs() <= OFF;
        if !holds {
            let todo = if predicted.is_nan() { "TODO: " } else { "" };
            let got = match guess(one, devices, predicted) {
                "" => predicted.to_string(),
                guess => format!("{predicted}\n{guess}"),
            };
            let law = "a step is what one device computes, which more devices than cores do not divide, and the messages of \
                       the ring: 2 (k − 1) steps in a row, each with a k-th of the bytes and one latency";
            let what = format!("{todo}the seconds of a step on {devices} devices");
            fail(&what, &format!("{measured:.5} ± {:.0} %, measured", 100.0 * OFF), &got, law);
        }
    }
}

/// What was left out of a prediction that is off.
fn guess(one: f64, devices: usize, predicted: f64) -> &'static str {
    let (bytes, bandwidth, latency) = LINK;
    let k = devices as f64;
    let ring = 2.0 * (k - 1.0) * (latency + bytes / k / bandwidth);
    let whole = 2.0 * (k - 1.0) * (latency + bytes / bandwidth);
    let near = |number: f64| (predicted / number - 1.0).abs() < 0.03;
    // One device's time divided by the number of cores, which is unknown.
    let shared = |with: f64| (2..=devices).any(|cores| near(one / cores as f64 + with));
    match () {
        () if near(1e3 * (one / k + ring)) || near(1e3 * (one / 2.0 + ring)) => {
            "these are milliseconds"
        }
        () if shared(0.0) => "that is without the messages",
        () if near(ring) => "these are the messages alone",
        () if shared(whole) => "that is a ring whose messages are whole tensors",
        () if shared(2.0 * (k - 1.0) * bytes / k / bandwidth) => {
            "that is without the latency of the messages"
        }
        () if near(one / k + ring) => "that is as if each device had a core of its own",
        () => "",
    }
}

fn the_reason(answer: Answer) {
    reason(answer.reason);
}

//! Chapter 8, `book/src/ch08-more-devices.md`: the step time of your own machine, predicted before it is measured.
//!
//! Predictions for machines and links, compared with stage 8's formula of the ring. The message names a mistake only if the mistake
//! explains all predictions of the answer.

use cost_model::all_reduce::Way;
use cost_model::link::Link;

use crate::call;
use crate::prelude::*;

/// The seconds of a step on one device, the cores, the devices, the bytes of the gradients, and the link; the seconds of a step.
pub type Answer = fn(f64, usize, usize, f64, &Link) -> f64;

pub const LAWS: &[Law<Answer>] = laws![a_step_computes_and_sends];

/// The relative error of a prediction.
const OFF: f64 = 1e-4;

const STEP: &str = "a step is what one device computes, which more devices than cores do not divide, and the messages of \
                    the ring: 2 (k − 1) steps in a row, each with a k-th of the bytes and one latency";

/// The seconds on one device, cores, devices, bytes, latency and bandwidth. The cases are: the machine of the book; more cores; one
/// core; one device; many devices; messages of latency only; messages of bytes only; chunks of two and a half bytes; three devices
/// on two cores, none of which is idle.
const CASES: [(f64, usize, usize, f64, f64, f64); 10] = [
    (0.0213, 2, 2, 516_272.0, 200e-6, 100e6),
    (0.0213, 2, 4, 516_272.0, 200e-6, 100e6),
    (0.0213, 8, 4, 516_272.0, 200e-6, 100e6),
    (0.0213, 1, 4, 516_272.0, 200e-6, 100e6),
    (0.0213, 2, 1, 516_272.0, 200e-6, 100e6),
    (1.5, 64, 64, 44_700_000.0, 5e-6, 12.5e9),
    (0.25, 4, 8, 4096.0, 0.01, 1e9),
    (0.25, 16, 8, 40_960_000.0, 0.0, 1e6),
    (0.25, 4, 4, 10.0, 0.0, 1.0),
    (0.0213, 2, 3, 516_272.0, 200e-6, 100e6),
];

/// A machine and a link, and the two parts of the right prediction.
struct Case {
    alone: f64,
    cores: usize,
    devices: usize,
    bytes: f64,
    link: Link,
    compute: f64,
    ring: f64,
}

shown!(Case { alone, cores, devices, bytes, link: Link { latency, wire, .. }, .. } =>
    "alone = {alone} s, cores = {cores}, devices = {devices}, bytes = {bytes}, latency = {latency} s, wire = {wire} s");

impl Case {
    fn new(numbers: (f64, usize, usize, f64, f64, f64)) -> Self {
        let (alone, cores, devices, bytes, latency, bandwidth) = numbers;
        let link = Link::new(latency, bandwidth);
        let ring = Way::Ring.takes(devices, bytes, link).seconds;
        let compute = alone / devices.min(cores) as f64;
        Self { alone, cores, devices, bytes, link, compute, ring }
    }

    /// So many messages, each of so many bytes.
    fn messages(&self, count: f64, bytes: f64) -> f64 {
        count * self.link.message(bytes)
    }

    fn k(&self) -> f64 {
        self.devices as f64
    }

    /// The bytes that a rank sends.
    fn sent(&self) -> f64 {
        2.0 * (self.k() - 1.0) * self.bytes / self.k()
    }
}

/// A mistake, and its prediction.
const MISTAKES: [(&str, fn(&Case) -> f64); 13] = [
    ("these are milliseconds", |it| 1e3 * (it.compute + it.ring)),
    ("that is without the messages", |it| it.compute),
    ("these are the messages alone", |it| it.ring),
    ("that is a ring whose messages are whole tensors", |it| {
        it.compute + it.messages(2.0 * (it.k() - 1.0), it.bytes)
    }),
    ("that is without the latency of the messages", |it| it.compute + it.sent() * it.link.wire),
    ("that is with one latency in place of one for each message", |it| {
        it.compute + it.messages(1f64.min(it.k() - 1.0), it.sent())
    }),
    ("that is as if each device had a core of its own", |it| it.alone / it.k() + it.ring),
    ("that is as if no device shared the batch", |it| it.alone + it.ring),
    ("that is as if the cores shared the batch, however few devices there are", |it| {
        it.alone / it.cores as f64 + it.ring
    }),
    ("that is half of the messages: k − 1", |it| it.compute + 0.5 * it.ring),
    ("that is with 2 k messages", |it| it.compute + it.messages(2.0 * it.k(), it.bytes / it.k())),
    ("that is the longer part alone: without overlap, both parts add up", |it| {
        it.compute.max(it.ring)
    }),
    ("link.wire is the seconds for one byte, and not the bytes in a second", |it| {
        it.compute + 2.0 * (it.k() - 1.0) * (it.link.latency + it.bytes / it.k() / it.link.wire)
    }),
];

fn near(one: f64, other: f64) -> bool {
    (one - other).abs() <= OFF * other.abs()
}

fn a_step_computes_and_sends(answer: Answer) -> Outcome {
    let found = call::within("predicting", move || {
        CASES.map(Case::new).map(|case| {
            given(case.to_string());
            answer(case.alone, case.cores, case.devices, case.bytes, &case.link)
        })
    })?;
    let cases = CASES.map(Case::new);
    let explains =
        |of: fn(&Case) -> f64| cases.iter().zip(found).all(|(it, found)| near(found, of(it)));
    let guess = MISTAKES.into_iter().find(|(_, of)| explains(*of)).map(|(text, _)| text.to_owned());
    cases.iter().zip(found).try_for_each(|(case, found)| {
        let right = case.compute + case.ring;
        let [all, compute, ring] = [right, case.compute, case.ring].map(short);
        demand(near(found, right), || {
            let right = format!("{all} s: {compute} to compute, {ring} of messages");
            let finding = Finding::new(format!("{case}: the seconds of a step"));
            finding.expected(right, format!("{found} s")).note(guess.clone()).law(STEP)
        })
    })
}

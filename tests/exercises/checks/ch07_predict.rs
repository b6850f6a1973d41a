//! Chapter 7, `book/src/ch07-more-devices.md`: the step time of your own machine, predicted before it is measured.
//!
//! Predictions for machines and links, compared with stage 7's formula of the ring. The message names a mistake only if the mistake
//! gives all predictions of the answer.

use cost_model::all_reduce::Way;
use cost_model::hosts::Hosts;
use cost_model::link::Link;

use crate::prelude::*;

/// The seconds of a step on one device, the cores, the devices, the bytes of the gradients, and the link; the seconds of a step.
pub type Answer = fn(f64, usize, usize, f64, &Link) -> f64;

/// The laws of an answer.
pub const LAWS: &[Law<Answer>] = laws![a_step_computes_and_sends];

/// The relative error of a prediction: chunks may be whole numbers of elements.
const OFF: f64 = 1e-4;

const STEP: &str = "a step is what one device computes, which more devices than cores do not divide, and the messages of \
                    the ring: 2 (k − 1) steps in a row, each with a k-th of the bytes and one latency";

/// A machine and a link, and the parts of the right prediction.
struct Case {
    alone: f64,
    cores: usize,
    devices: usize,
    bytes: f64,
    link: Link,
    compute: f64,
    ring: f64,
}

impl Case {
    fn new(
        (alone, cores, devices, bytes, latency, bandwidth): (f64, usize, usize, f64, f64, f64),
    ) -> Self {
        let link = Link::new(latency, bandwidth);
        let ring = Way::Ring.cost(devices, bytes, &Hosts::one(link)).seconds;
        Self {
            alone,
            cores,
            devices,
            bytes,
            link,
            compute: alone / devices.min(cores) as f64,
            ring,
        }
    }

    fn told(&self) -> String {
        let Self { alone, cores, devices, bytes, link, .. } = self;
        format!(
            "alone = {alone} s, cores = {cores}, devices = {devices}, bytes = {bytes}, latency = {} s, wire = {} s",
            link.latency, link.wire
        )
    }

    /// A ring of so many messages, each of so many bytes.
    fn messages(&self, count: f64, bytes: f64) -> f64 {
        count * self.link.message(bytes)
    }

    fn k(&self) -> f64 {
        self.devices as f64
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
    ("that is without the latency of the messages", |it| {
        it.compute + 2.0 * (it.k() - 1.0) * it.bytes / it.k() * it.link.wire
    }),
    ("that is with one latency in place of one for each message", |it| {
        let bytes = 2.0 * (it.k() - 1.0) * it.bytes / it.k();
        it.compute + if it.devices > 1 { it.link.message(bytes) } else { 0.0 }
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

fn a_step_computes_and_sends(answer: Answer) {
    // The machine of the book; more cores; one core; one device alone; many devices; a latency that is everything, and a
    // bandwidth that is. Devices are no more than the cores, or a multiple of them: there is more than one way to deal three
    // devices to two cores.
    let cases = [
        (0.0213, 2, 2, 516_272.0, 200e-6, 100e6),
        (0.0213, 2, 4, 516_272.0, 200e-6, 100e6),
        (0.0213, 8, 4, 516_272.0, 200e-6, 100e6),
        (0.0213, 1, 4, 516_272.0, 200e-6, 100e6),
        (0.0213, 2, 1, 516_272.0, 200e-6, 100e6),
        (1.5, 64, 64, 44_700_000.0, 5e-6, 12.5e9),
        (0.25, 4, 8, 4096.0, 0.01, 1e9),
        (0.25, 16, 8, 40_960_000.0, 0.0, 1e6),
    ]
    .map(Case::new);
    within("predicting", move || {
        let ask = |case: &Case| {
            given(case.told());
            answer(case.alone, case.cores, case.devices, case.bytes, &case.link)
        };
        let found: Vec<f64> = cases.iter().map(ask).collect();
        let Some(wrong) =
            (0..found.len()).find(|&at| !near(found[at], cases[at].compute + cases[at].ring))
        else {
            return;
        };
        let fits = |of: fn(&Case) -> f64| {
            cases.iter().zip(&found).all(|(case, &found)| near(found, of(case)))
        };
        let guess = MISTAKES.into_iter().find(|(_, of)| fits(*of));
        let guess = guess.map(|(text, _)| format!("\n{text}")).unwrap_or_default();
        let (case, got) = (&cases[wrong], found[wrong]);
        let parts = format!(
            "{} s: {} to compute, {} of messages",
            short(case.compute + case.ring),
            short(case.compute),
            short(case.ring)
        );
        fail(
            &format!("{}: the seconds of a step", case.told()),
            &parts,
            &format!("{got} s{guess}"),
            STEP,
        )
    });
}

//! Chapter 8, `book/src/ch08-more-devices.md`: the step time of your own machine, predicted before it is measured.
//!
//! Check your answer: `cargo course check ch08_predict`

use cost_model::link::Link;

/// The seconds of a training step on several devices, before anybody has measured the step.
///
/// The devices share a batch equally. Each device computes the gradients of its share. After the backward pass, the devices sum
/// the gradients around a ring. Nothing overlaps.
///
/// | name | what |
/// | --- | --- |
/// | `alone` | the seconds of a step with the whole batch on one device, which uses one core |
/// | `cores` | the number of cores of the machine, at least 1 |
/// | `devices` | the number of devices k, at least 1; each uses one core. If there are more devices than cores, the devices share the cores, and no core is idle |
/// | `bytes` | the bytes of all gradients; the ring's chunks are equally large |
/// | `link` | the link between two devices: `link.latency` seconds for each message, and `link.wire` seconds for each byte |
/// | result | the seconds of a step |
///
/// A step takes half of the time if half of the images are left: take this for granted here, although chapter 8 finds a fixed
/// part. `link.handling` is 0. Each rank sends to the next rank and
/// receives from the rank before at the same time.
///
/// `cargo course run ch08_predict` measures one device of your machine, prints your prediction for two and for four devices,
/// and measures them afterwards. Do not use stage 8's `Way::takes`.
pub fn predict(alone: f64, cores: usize, devices: usize, bytes: f64, link: &Link) -> f64 {
    // TODO: which part of a step gets shorter with more devices, and which one gets longer?
    todo!("the seconds of a step")
}

// The check of this answer. Leave this line as it is.
exercises::check!(ch08_predict, predict, run);

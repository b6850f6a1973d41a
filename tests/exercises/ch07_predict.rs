//! Chapter 7, `book/src/ch07-more-devices.md`: the step time of your own machine, predicted before it is measured.
//!
//! Check your answer: `cargo course check ch07_predict`

use exercises::checks::ch07_predict::Answer;

/// An experiment: your answer is a prediction, the measurements, and a reason.
///
/// How long does a step of LeNet take on two and on four devices of your machine, over a slow link? The batch of 256 images is
/// shared out. The gradients are 516,272 bytes. The ranks sum them around a ring, after the backward pass. The link carries
/// 100 MB/s, and each message takes 200 µs besides.
///
/// 1. Measure one device:
///
///    ```text
///    mkdir -p target/predict
///    cargo run --release -p cost-model -- --device cpu --threads-per-device 1 --model lenet --algorithm ring \
///        --devices 1 --metrics target/predict/one.jsonl
///    ```
///
/// 2. Compute the seconds of a step on two and on four devices from this measurement, the numbers above and the number of your
///    cores. Write them below, before the next step.
/// 3. Measure two and four devices: the same command with `--devices 4 --metrics target/predict/four.jsonl`. It takes a
///    minute or two on a quiet machine.
///
/// The prediction may be 25 % off. Nobody sees when you wrote it: the exercise is worth as much as your honesty.
pub const ANSWER: Answer = Answer {
    // TODO: measure one device, predict, then measure two and four.
    // The metrics of one device.
    one: "target/predict/one.jsonl",
    // The metrics of up to four devices.
    four: "target/predict/four.jsonl",
    // The seconds of a step on two devices and on four.
    predicted: [f64::NAN, f64::NAN],
    // In a sentence: which part of the step decides whether four devices are faster than two?
    reason: "",
};

// The check of this answer. Leave this line as it is.
exercises::check!(ch07_predict, ANSWER);

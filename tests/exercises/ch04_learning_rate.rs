//! Chapter 4, `book/src/ch04-data-parallel.md`: the best learning rate when the global batch grows.
//!
//! Check your answer: `cargo course check ch04_learning_rate`

use exercises::checks::ch04_learning_rate::Answer;

/// An experiment: your answer is numbers that you measure, and a reason.
///
/// In the chapter, two devices share one batch, and nothing changes. Many users keep the batch of each device instead: k
/// devices then have k times the global batch. Which learning rate is the best now?
///
/// 1. Write down your expectation: does the best rate grow, shrink or stay when the global batch doubles?
/// 2. Train on one device with a batch of 16, with at least four rates. Make the range so wide that the best rate is
///    neither the lowest nor the highest.
/// 3. Train on two devices with a global batch of 32, with the same rates. Change nothing else.
/// 4. Write your numbers below.
///
/// A run, from the folder of the course. All runs together take some minutes:
///
/// ```text
/// mkdir -p target/rates
/// cargo run --release -p scratch-data-parallel -- --device cpu --threads-per-device 1 --data synthetic --train-size 6000 \
///     --test-size 1000 --epochs 4 --devices 1 --batch-size 16 --lr 0.1 --metrics target/rates/one-0.1.jsonl
/// ```
///
/// With `--devices 2`, the program trains on one device with all images of the batch first, and then on two.
pub const ANSWER: Answer = Answer {
    // TODO: run the experiment, then write your numbers. Of two numbers, the first is for one device, the second for two.
    // The metrics files, or folders of them.
    metrics: &["target/rates"],
    // The steps of an epoch.
    steps: [0, 0],
    // The rate with the highest test accuracy after the last epoch.
    best_rate: [f64::NAN, f64::NAN],
    // How much test accuracy two devices lose if they keep the best rate of one device, from 0 to 1.
    lost_by_keeping_the_rate: f64::NAN,
    // In a sentence: why is the best rate of two devices another, or the same?
    reason: "",
};

// The check of this answer. Leave this line as it is.
exercises::check!(ch04_learning_rate, ANSWER);

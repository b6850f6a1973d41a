//! Chapter 5b, `book/src/ch05b-batch-norm.md`: the cause of a lower accuracy on two devices.
//!
//! Check your answer: `cargo course check ch05_batch_norm_gap`

use exercises::checks::ch05_batch_norm_gap::{Answer, LostIn, Suspect};

/// An experiment: your answer is numbers that you measure, a cause, and a reason.
///
/// Two devices train with twice the batch and twice the rate, and the test accuracy is lower. Two suspects changed at the same
/// time: the batch and the rate. The accuracy can be lost in the weights, or in the running statistics of the test.
///
/// 1. Write down your expectation: which suspect is it?
/// 2. Find the settings that separate the suspects, and the two places. Run each with seeds 1, 2 and 3, since accuracy also
///    differs by chance.
/// 3. Write your numbers below. Accuracies are means over the seeds, from 0 to 1.
///
/// A run, from the folder of the course. It takes about half a minute on two cores:
///
/// ```text
/// mkdir -p target/gap
/// cargo run --release -p concise-wrapper -- --device cpu --threads-per-device 1 --data synthetic --width 8 --train-size 4096 \
///     --test-size 1000 --epochs 4 --bn sync --scale none --batch-size 256 --lr 0.1 --seed 1 --metrics target/gap/256-0.1-1.jsonl
/// ```
///
/// With `--scale none`, batch and rate are those of the flags. With `--bn sync`, two devices train as one, so that the number
/// of devices is no suspect. `--test-norm batch` normalises test images by the statistics of their own batch.
pub const ANSWER: Answer = Answer {
    // TODO: run the experiment, then write your numbers. All of them are about the runs on two devices.
    // The metrics files, or folders of them.
    metrics: &["target/gap"],
    // The accuracy that is lost with twice the batch.
    lost_by_batch: f64::NAN,
    // The accuracy that is lost with twice the rate.
    lost_by_rate: f64::NAN,
    // The accuracy that is lost with both.
    lost_by_both: f64::NAN,
    // The accuracy that comes back, with both, if test images are normalised by the statistics of their own batch.
    regained_by_statistics: f64::NAN,
    // The standard deviation over the seeds with the smaller batch and rate: of n accuracies, divided by n − 1.
    spread: f64::NAN,
    // The suspect that loses more accuracy if it changes alone: Suspect::Batch or Suspect::Rate.
    suspect: Suspect::Unknown,
    // Where the accuracy is lost with both: LostIn::Weights, or LostIn::Statistics, the running statistics of the test.
    lost_in: LostIn::Unknown,
    // The steps of an epoch with twice the batch, and the steps over which a running statistic averages.
    steps: 0,
    remembered: 0,
    // In a sentence, for yourself: how does the suspect lower the accuracy? Nobody judges the sentence, only the numbers.
    reason: "",
};

// The check of this answer. Leave this line as it is.
exercises::check!(ch05_batch_norm_gap, ANSWER);

//! Chapter 4, `book/src/ch04-data-parallel.md`: test accuracy on all devices.
//!
//! Check your answer: `cargo course check ch04_accuracy`

use candle_core::{D, DType, Tensor};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};

/// The share of all test images that were classified correctly, 0 to 1: the same number on every rank.
///
/// The test images are split over the ranks. Each rank has the logits of its images, `[Bᵣ, 10]` (f64), and
/// their labels, `[Bᵣ]` (u32). An image is classified correctly when its largest logit is at its label; of several equal
/// largest logits, the first is the answer. Shards may differ in size, and a rank may have no images at all: `[0, 10]` and
/// `[0]`. All ranks together have at least one image. The ranks send a few numbers, and no logits.
///
/// Fails when a tensor operation fails, or another rank stops or stalls.
pub fn accuracy(rank: &impl Communicator, logits: &Tensor, labels: &Tensor) -> Result<f64, Error> {
    // TODO: the accuracy of all images together.
    todo!("the accuracy on all devices")
}

// The check of this answer. Leave this line as it is.
exercises::check!(ch04_accuracy, accuracy, run);

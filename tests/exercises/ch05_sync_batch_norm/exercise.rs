//! Chapter 5, `book/src/ch05b-batch-norm.md`: batch norm by the statistics of all ranks' images.
//!
//! Check your answer: `cargo course check ch05_sync_batch_norm`

use candle_core::{DType, Device, Tensor};
use ops::batch_norm::Statistics;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};

/// Mean and variance of each channel over the images of *all* ranks: on every rank the same, to the last bit.
///
/// A rank brings what its own shard became in the layer before: `x`, `[Bᵣ, C, H, W]` (f32). Shards may differ
/// in size, and a rank may have no images at all: `[0, C, H, W]`. All ranks together have at least one. Of what
/// comes back,
///
/// - `mean` is `[C]` (f64), over all images and pixels;
/// - `variance` is `[C]` (f64): the mean squared distance from that mean. (It is what a batch is normalised with.
///   The unbiased estimate, divided by one less, is for the running statistics, which are not asked for.)
/// - `count` is the number of values of *one* channel on all ranks: ΣBᵣ · H · W.
///
/// Every layer waits for these messages, so they have to be small: a few numbers for each channel, however many
/// images there are; and few, however many channels there are.
///
/// Means and variances are to be right in six digits, and a channel's values may lie far from zero and close
/// together: between 10,000 and 10,000.01, say. f32 has no room for that, and even in f64 it matters what is
/// subtracted from what.
///
/// `Statistics::of(&x)` computes the statistics of a rank's own images, and refuses a batch without any. You may
/// use it or not. `Statistics::merge` is not to be called: write it.
///
/// Fails when a tensor operation fails, or another rank stops or stalls.
pub fn statistics(rank: &impl Communicator, x: &Tensor) -> Result<Statistics, Error> {
    // TODO: what does this rank tell the others, and what does everyone make of it?
    todo!("the statistics of all ranks' images")
}

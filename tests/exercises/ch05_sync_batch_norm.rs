//! Chapter 5, `book/src/ch05b-batch-norm.md`: batch norm by the statistics of all ranks' images.
//!
//! Check your answer: `cargo course check ch05_sync_batch_norm`

use candle_core::{DType, Device, Tensor};
use ops::batch_norm::Statistics;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};

/// Mean and variance of each channel over the images of *all* ranks: on every rank the same, to the last bit.
///
/// Each rank has the output of the layer before for its own shard: `x`, `[Bᵣ, C, H, W]` (f32). Shards may differ in size, and a
/// rank may have no images: `[0, C, H, W]`. All ranks together have at least one image.
///
/// | result | shape | content |
/// | --- | --- | --- |
/// | `mean` | `[C]` (f64) | the mean over all images and pixels |
/// | `variance` | `[C]` (f64) | the mean squared distance from that mean, divided by `count` and not by one less |
/// | `count` | – | the number of values of *one* channel on all ranks: ΣBᵣ · H · W |
///
/// Every layer waits for these messages. Their size must not grow with the number of images, and their number must not grow with
/// the number of channels.
///
/// Means and variances are right to six digits. The values of a channel may lie far from zero and close together, for example
/// between 10,000 and 10,000.01. f32 has too few digits for such values, and even in f64 a difference of large numbers loses them.
///
/// `Statistics::of(&x)` computes the statistics of a rank's own images, and refuses a batch without images. You may use this
/// function. Do not call `Statistics::merge`: write it.
///
/// Fails when a tensor operation fails, or another rank stops or stalls.
pub fn statistics(rank: &impl Communicator, x: &Tensor) -> Result<Statistics, Error> {
    // TODO: which numbers does this rank send, and how does every rank merge them?
    todo!("the statistics of all ranks' images")
}

// The check of this answer. Leave this line as it is.
exercises::check!(ch05_sync_batch_norm, statistics, run);

//! Joins shards to a batch.

use candle_core::{Device, Result, Tensor, bail};
use devices::move_view;

/// Joins shards along their first dimension, in order, on one device: `[B₀, …]`, `[B₁, …]`, … →
/// `[B₀ + B₁ + …, …]`.
///
/// A single shard that is already on `device` is returned without a copy, and shares its memory.
/// Fails when there are no shards, or when shards differ in more than the first dimension.
// ANCHOR: gather
pub fn gather(shards: &[Tensor], device: &Device) -> Result<Tensor> {
    if shards.is_empty() {
        bail!("nothing to gather: there are no shards");
    }
    let moved: Vec<Tensor> =
        shards.iter().map(|shard| move_view(shard, device)).collect::<Result<_>>()?;
    Tensor::cat(&moved, 0)
}
// ANCHOR_END: gather

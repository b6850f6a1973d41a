//! Shards put together again.

use candle_core::{Device, Result, Tensor, bail};
use devices::move_view;

/// Joins shards along their first dimension, in order, on one device: `[B₀, …]`, `[B₁, …]`, … →
/// `[B₀ + B₁ + …, …]`. A single shard that is on `device` already comes back as it is, and shares its memory.
///
/// # Errors
///
/// When there are none, or they differ in more than the first dimension.
pub fn gather(shards: &[Tensor], device: &Device) -> Result<Tensor> {
    if shards.is_empty() {
        bail!("nothing to gather: there are no shards");
    }
    let moved: Vec<Tensor> =
        shards.iter().map(|shard| move_view(shard, device)).collect::<Result<_>>()?;
    Tensor::cat(&moved, 0)
}

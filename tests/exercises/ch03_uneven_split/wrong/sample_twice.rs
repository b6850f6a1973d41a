// expect: sample 2 is in shards 0 and 1

use candle_core::{Result, Tensor, bail};

/// Sizes are rounded up, starts are rounded down: neighbours overlap.
pub fn split_batch(
    images: &Tensor,
    labels: &Tensor,
    shards: usize,
) -> Result<Vec<(Tensor, Tensor)>> {
    let samples = images.dim(0)?;
    if shards == 0 || labels.dim(0)? != samples {
        bail!("{samples} images and {} labels in {shards} shards", labels.dim(0)?);
    }
    (0..shards)
        .map(|shard| {
            let start = shard * samples / shards;
            let size = samples.div_ceil(shards).min(samples - start);
            Ok((images.narrow(0, start, size)?, labels.narrow(0, start, size)?))
        })
        .collect()
}

// expect: the largest has 4 samples, the smallest 2

use candle_core::{Result, Tensor, bail};

/// The last device takes all that is left over, and everyone waits for it.
pub fn split_batch(
    images: &Tensor,
    labels: &Tensor,
    shards: usize,
) -> Result<Vec<(Tensor, Tensor)>> {
    let samples = images.dim(0)?;
    if shards == 0 || labels.dim(0)? != samples {
        bail!("{samples} images and {} labels in {shards} shards", labels.dim(0)?);
    }
    let size = samples / shards;
    (0..shards)
        .map(|shard| {
            let start = shard * size;
            let size = if shard + 1 == shards { samples - start } else { size };
            Ok((images.narrow(0, start, size)?, labels.narrow(0, start, size)?))
        })
        .collect()
}

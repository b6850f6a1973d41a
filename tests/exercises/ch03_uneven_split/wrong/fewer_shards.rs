// expect: 3 samples in 5 shards: got 3 of them

use candle_core::{Result, Tensor, bail};

/// candle's `chunk` makes no empty chunks: a device without a shard has nothing to index.
pub fn split_batch(
    images: &Tensor,
    labels: &Tensor,
    shards: usize,
) -> Result<Vec<(Tensor, Tensor)>> {
    if shards == 0 || labels.dim(0)? != images.dim(0)? {
        bail!("{} images and {} labels in {shards} shards", images.dim(0)?, labels.dim(0)?);
    }
    Ok(images.chunk(shards, 0)?.into_iter().zip(labels.chunk(shards, 0)?).collect())
}

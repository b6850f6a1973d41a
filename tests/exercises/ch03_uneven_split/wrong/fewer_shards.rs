// expect: got 3 shards
// candle's `chunk` makes no empty chunks: a device without a shard has nothing to index.

use candle_core::{Result, Tensor, bail};

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

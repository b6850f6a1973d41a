// expect: sample 8 is in no shard

use candle_core::{Result, Tensor, bail};

/// Every shard gets B / k samples; what is left over is in none.
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
    let cut = |tensor: &Tensor, shard: usize| tensor.narrow(0, shard * size, size);
    (0..shards).map(|shard| Ok((cut(images, shard)?, cut(labels, shard)?))).collect()
}

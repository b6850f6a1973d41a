//! What is left is shared out over the shards that are left, rounded up: so the first are the larger ones.

use candle_core::{Result, Tensor, bail};

pub fn split_batch(
    images: &Tensor,
    labels: &Tensor,
    shards: usize,
) -> Result<Vec<(Tensor, Tensor)>> {
    let samples = images.dim(0)?;
    if labels.dim(0)? != samples {
        bail!("{samples} images, but {} labels", labels.dim(0)?);
    }
    if shards == 0 {
        bail!("a batch of {samples} cannot be cut into 0 shards");
    }
    let mut start = 0;
    let mut cut = |shard| {
        let size = (samples - start).div_ceil(shards - shard);
        let pair = (images.narrow(0, start, size)?, labels.narrow(0, start, size)?);
        start += size;
        Ok(pair)
    };
    (0..shards).map(&mut cut).collect()
}

exercises::check!(ch03_uneven_split, split_batch);

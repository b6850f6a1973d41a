// expect: the image of sample 1 has the label of sample 4

use candle_core::{Device, Result, Tensor, bail};

/// Images are cut into runs, labels are dealt out like cards. All sizes are right.
pub fn split_batch(
    images: &Tensor,
    labels: &Tensor,
    shards: usize,
) -> Result<Vec<(Tensor, Tensor)>> {
    let samples = images.dim(0)?;
    if shards == 0 || labels.dim(0)? != samples {
        bail!("{samples} images and {} labels in {shards} shards", labels.dim(0)?);
    }
    let mut start = 0;
    (0..shards)
        .map(|shard| {
            let dealt: Vec<u32> = (shard as u32..samples as u32).step_by(shards).collect();
            let size = dealt.len();
            let labels = labels.index_select(&Tensor::from_vec(dealt, size, &Device::Cpu)?, 0)?;
            let pair = (images.narrow(0, start, size)?, labels);
            start += size;
            Ok(pair)
        })
        .collect()
}

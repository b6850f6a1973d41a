//! Cuts a batch into shards.

use candle_core::{Result, Tensor, bail};

use crate::shard_range;

/// Cuts one shard out of a batch: images `[B, …]` and labels `[B]` → the shard's images and labels.
///
/// The shard is a view and shares the batch's memory. Move it to a GPU with [`move_view`](devices::move_view), which copies
/// the shard alone, and not the whole batch. Fails when the numbers of images and labels differ. Panics when `shard` is not
/// below `shards`.
// ANCHOR: cut_shard
pub fn cut_shard(
    images: &Tensor,
    labels: &Tensor,
    shards: usize,
    shard: usize,
) -> Result<(Tensor, Tensor)> {
    let samples = images.dim(0)?;
    if labels.dim(0)? != samples {
        bail!("{samples} images, but {} labels", labels.dim(0)?);
    }
    let range = shard_range(samples, shards, shard);
    let cut = |tensor: &Tensor| tensor.narrow(0, range.start, range.len());
    Ok((cut(images)?, cut(labels)?))
}
// ANCHOR_END: cut_shard

/// Cuts a batch into all its shards. [`cut_shard`] cuts each of them. Fails when `shards` is 0, or when the numbers of
/// images and labels differ.
// ANCHOR: split_batch
pub fn split_batch(
    images: &Tensor,
    labels: &Tensor,
    shards: usize,
) -> Result<Vec<(Tensor, Tensor)>> {
    if shards == 0 {
        bail!("a batch of {} cannot be cut into 0 shards", images.dim(0)?);
    }
    (0..shards).map(|shard| cut_shard(images, labels, shards, shard)).collect()
}
// ANCHOR_END: split_batch

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::gather;

    #[test]
    fn images_stay_with_their_labels_and_come_back_in_order() {
        let images = Tensor::arange(0f32, 50.0, &Device::Cpu).unwrap().reshape((10, 5)).unwrap();
        let labels = Tensor::arange(0u32, 10, &Device::Cpu).unwrap();
        for shards in [1, 2, 3, 4, 7, 10, 12] {
            let parts = split_batch(&images, &labels, shards).unwrap();
            assert_eq!(parts.len(), shards);
            for (images, labels) in &parts {
                let first_pixels = images.narrow(1, 0, 1).unwrap().flatten_all().unwrap();
                let expected = (labels.to_dtype(DType::F32).unwrap() * 5.0).unwrap();
                assert_eq!(
                    first_pixels.to_vec1::<f32>().unwrap(),
                    expected.to_vec1::<f32>().unwrap()
                );
            }
            let (parts, _): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
            let joined = gather(&parts, &Device::Cpu).unwrap();
            assert_eq!(joined.to_vec2::<f32>().unwrap(), images.to_vec2::<f32>().unwrap());
        }
    }

    /// All shards together would not fit into memory.
    #[test]
    fn a_shard_is_cut_without_the_others() {
        const SHARDS: usize = 1 << 40;
        let images = Tensor::arange(0f32, 12.0, &Device::Cpu).unwrap().reshape((6, 2)).unwrap();
        let labels = Tensor::arange(0u32, 6, &Device::Cpu).unwrap();
        let cut = |shard| cut_shard(&images, &labels, SHARDS, shard).unwrap();
        let (shard, its_labels) = cut(5);
        assert_eq!(shard.to_vec2::<f32>().unwrap(), [[10.0, 11.0]]);
        assert_eq!(its_labels.to_vec1::<u32>().unwrap(), [5]);
        let (last, its_labels) = cut(SHARDS - 1);
        assert_eq!((last.dims(), last.dtype()), (&[0, 2][..], DType::F32));
        assert_eq!(its_labels.dims(), [0]);
    }

    #[test]
    fn a_batch_that_cannot_be_split_is_an_error() {
        let images = Tensor::zeros((4, 1), DType::F32, &Device::Cpu).unwrap();
        let labels = Tensor::zeros(3, DType::U32, &Device::Cpu).unwrap();
        assert!(split_batch(&images, &labels, 2).is_err());
        let labels = Tensor::zeros(4, DType::U32, &Device::Cpu).unwrap();
        let error = split_batch(&images, &labels, 0).unwrap_err();
        assert!(error.to_string().contains("cannot be cut into 0 shards"));
    }
}

//! Cuts a batch into shards, and joins shards to a batch.

use candle_core::{Device, Result, Tensor, bail};
use devices::move_view;

use crate::shard_range;

/// Cuts a batch into shards: images `[B, …]` and labels `[B]` → the images and labels of each shard.
///
/// A shard is a view and shares the batch's memory. Move a shard to a GPU with [`move_view`], which copies the shard alone.
/// Fails when `shards` is 0, or when the numbers of images and labels differ.
// ANCHOR: split_batch
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
    let shard = |shard| {
        let range = shard_range(samples, shards, shard);
        let cut = |tensor: &Tensor| tensor.narrow(0, range.start, range.len());
        Ok((cut(images)?, cut(labels)?))
    };
    (0..shards).map(shard).collect()
}
// ANCHOR_END: split_batch

/// Joins shards along their first dimension, in order, on one device: `[B₀, …]`, `[B₁, …]`, … →
/// `[B₀ + B₁ + …, …]`.
///
/// A single shard that is already on `device` is returned without a copy, and shares its memory.
/// Fails when there are no shards, or when shards differ in more than the first dimension.
// ANCHOR: gather
pub fn gather(shards: &[Tensor], device: &Device) -> Result<Tensor> {
    let moved: Vec<Tensor> =
        shards.iter().map(|shard| move_view(shard, device)).collect::<Result<_>>()?;
    Tensor::cat(&moved, 0)
}
// ANCHOR_END: gather

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;

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

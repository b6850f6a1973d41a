//! An epoch in batches: every sample once, in an order that only seed and epoch decide.

use candle_core::{DType, Result};
use rand::seq::SliceRandom;

use super::{Batch, Dataset};
use crate::random;

/// Cuts a data set into batches, shuffled anew each epoch.
///
/// Every device of a run has a loader with the same seed, so all see the same batches without a word
/// being exchanged.
#[derive(Clone, Copy, Debug)]
pub struct Loader<'a> {
    dataset: &'a Dataset,
    batch_size: usize,
    seed: u64,
    dtype: DType,
}

impl<'a> Loader<'a> {
    /// A loader of batches of `batch_size` samples; the last one of an epoch may be shorter.
    ///
    /// # Panics
    ///
    /// When `batch_size` is 0.
    pub fn new(dataset: &'a Dataset, batch_size: usize, seed: u64, dtype: DType) -> Self {
        assert!(batch_size > 0, "a batch has at least one sample");
        Self { dataset, batch_size, seed, dtype }
    }

    /// Batches in an epoch.
    pub fn batches_per_epoch(&self) -> usize {
        self.dataset.len().div_ceil(self.batch_size)
    }

    /// Samples in an epoch.
    pub fn samples_per_epoch(&self) -> usize {
        self.dataset.len()
    }

    /// The order of the samples in an epoch: a permutation of all indices.
    pub fn order(&self, epoch: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..).take(self.dataset.len()).collect();
        order.shuffle(&mut random::generator(self.seed, &format!("shuffle/{epoch}")));
        order
    }

    /// The batches of an epoch, in CPU memory.
    pub fn epoch(&self, epoch: usize) -> impl Iterator<Item = Result<Batch>> + use<'a> {
        let order = self.order(epoch);
        let Self { dataset, batch_size, dtype, .. } = *self;
        (0..self.batches_per_epoch()).map(move |batch| {
            let end = order.len().min((batch + 1) * batch_size);
            dataset.batch(&order[batch * batch_size..end], dtype)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CLASSES, PIXELS};
    use super::*;

    /// Ten samples that can be told apart: sample i is filled with the value i.
    fn ten() -> Dataset {
        let images = (0..10).map(|i| [i; PIXELS]).collect();
        Dataset::new(images, (0..10).map(|i| i % CLASSES as u8).collect()).unwrap()
    }

    #[test]
    fn every_sample_once_an_epoch_and_the_last_batch_short() {
        let dataset = ten();
        let loader = Loader::new(&dataset, 4, 7, DType::F32);
        let batches: Vec<Batch> = loader.epoch(0).collect::<Result<_>>().unwrap();
        let sizes: Vec<usize> = batches.iter().map(Batch::len).collect();
        assert_eq!(sizes, [4, 4, 2]);
        assert_eq!(loader.batches_per_epoch(), 3);
        let mut labels: Vec<u32> =
            batches.iter().flat_map(|b| b.labels.to_vec1::<u32>().unwrap()).collect();
        labels.sort_unstable();
        assert_eq!(labels, (0..10).collect::<Vec<u32>>());
    }

    #[test]
    fn the_order_depends_on_seed_and_epoch_alone() {
        let dataset = ten();
        let order =
            |batch, seed, epoch| Loader::new(&dataset, batch, seed, DType::F32).order(epoch);
        assert_eq!(order(4, 7, 0), order(3, 7, 0));
        assert_ne!(order(4, 7, 0), order(4, 7, 1));
        assert_ne!(order(4, 7, 0), order(4, 8, 0));
    }

    #[test]
    fn image_and_label_stay_together_and_pixels_are_scaled() {
        let batch = ten().batch(&[3, 9], DType::F64).unwrap();
        assert_eq!(batch.images.dims(), [2, 1, 28, 28]);
        assert_eq!(batch.labels.to_vec1::<u32>().unwrap(), [3, 9]);
        let pixel = batch.images.flatten_from(1).unwrap().to_vec2::<f64>().unwrap()[1][100];
        assert_eq!(pixel, f64::from(9.0f32 / 255.0));
    }
}

//! Loads the batches of one rank: its shards of every global batch.

use std::ops::Range;

use candle_core::DType;
use datasets::loader::{Epochs, Prefetch, prefetch};
use datasets::{Batch, Dataset};

use crate::epoch_share;

// ANCHOR: loader
/// The shards of each batch that belong to one rank. Usually a batch has one shard for each rank.
#[derive(Clone, Debug)]
pub struct Shards {
    /// The indices of the rank's shards.
    pub held: Range<usize>,
    /// The number of shards of a batch.
    pub of: usize,
    /// The samples of a shard.
    pub sampler: EpochShare,
}

/// A function with the arguments of [`epoch_share`], which returns the samples of one shard in an epoch.
pub type EpochShare = fn(usize, usize, usize, usize, u64, usize) -> Vec<Vec<u32>>;

impl Shards {
    /// The whole batch, as one shard.
    pub const WHOLE: Self = Self::new(0..1, 1);

    /// Some of the `of` shards of each batch, with the samples of [`epoch_share`].
    pub const fn new(held: Range<usize>, of: usize) -> Self {
        Self { held, of, sampler: epoch_share }
    }

    /// The one shard of a rank, where each rank has one.
    pub fn of_rank(rank: usize, world_size: usize) -> Self {
        Self::new(rank..rank + 1, world_size)
    }
}

/// A rank's part of one global batch, in CPU memory.
#[derive(Clone, Debug)]
pub struct LocalBatch {
    /// The shards of the rank. If a batch has fewer samples than shards, the last shards of the batch are empty.
    pub shards: Vec<Batch>,
    /// The number of samples of the global batch. Of a text, the number of tokens.
    pub samples: usize,
}

/// Loads a rank's shards of every batch, with the samples of its sampler.
#[derive(Clone, Debug)]
pub struct ShardLoader {
    dataset: Dataset,
    dtype: DType,
    global_batch: usize,
    seed: u64,
    shards: Shards,
}

impl ShardLoader {
    /// Makes a loader of a rank's shards. A batch of all ranks together has `global_batch` samples. Panics when
    /// `global_batch` is 0, or a shard is not below `shards.of`.
    pub fn new(
        dataset: &Dataset,
        global_batch: usize,
        seed: u64,
        dtype: DType,
        shards: Shards,
    ) -> Self {
        assert!(global_batch > 0, "a batch has at least one sample");
        assert!(shards.held.end <= shards.of, "shards {:?} of {}", shards.held, shards.of);
        Self { dataset: dataset.clone(), dtype, global_batch, seed, shards }
    }
}

impl Epochs for ShardLoader {
    type Batch = LocalBatch;

    fn batches_per_epoch(&self) -> usize {
        self.dataset.len().div_ceil(self.global_batch)
    }

    fn samples_per_epoch(&self) -> usize {
        self.dataset.count_labels(self.dataset.len())
    }

    fn rest_of_epoch(&self, epoch: usize, done: usize) -> Prefetch<LocalBatch> {
        let Self { dataset, dtype, global_batch, seed, shards: Shards { held, of, sampler } } =
            self.clone();
        let dataset = dataset.of_epoch(seed, epoch);
        let share = |shard| sampler(dataset.len(), global_batch, of, shard, seed, epoch);
        let shares: Vec<Vec<Vec<u32>>> = held.map(share).collect();
        prefetch(done..self.batches_per_epoch(), move |step| {
            // A sampler with too few steps has no samples in the steps that it lacks.
            let samples = |share: &Vec<Vec<u32>>| share.get(step).cloned().unwrap_or_default();
            let shards = shares.iter().map(|share| dataset.batch(&samples(share), dtype));
            let samples = global_batch.min(dataset.len() - step * global_batch);
            let (shards, samples) =
                (shards.collect::<Result<_, _>>()?, dataset.count_labels(samples));
            Ok(LocalBatch { shards, samples })
        })
    }
}
// ANCHOR_END: loader

#[cfg(test)]
mod tests {
    use candle_core::Result;
    use datasets::PIXELS;

    use super::*;
    use crate::Sampler;

    /// Ten samples in batches of four: every loader reads the samples of its samplers, and knows the size of the batch.
    #[test]
    fn shards_have_the_samples_of_their_samplers() {
        let dataset = Dataset::new(vec![[0; PIXELS]; 10], (0..10).collect()).unwrap();
        let shards = Shards::new(1..3, 3);
        let loader = ShardLoader::new(&dataset, 4, 7, DType::F32, shards);
        let batches: Vec<LocalBatch> = loader.rest_of_epoch(2, 1).collect::<Result<_>>().unwrap();
        assert_eq!(batches.iter().map(|batch| batch.samples).collect::<Vec<_>>(), [4, 2]);
        for (step, batch) in (1..).zip(batches) {
            for (shard, batch) in (1..).zip(batch.shards) {
                let sampler = Sampler::new(10, 4, 3, shard, 7);
                let expected = sampler.epoch(2).nth(step).unwrap();
                assert_eq!(batch.labels.to_vec1::<u32>().unwrap(), expected);
            }
        }
    }

    /// Five windows of four bytes in batches of three: the shards of all ranks have the windows of the epoch, and the divisor
    /// counts tokens.
    #[test]
    fn shards_of_a_text_have_the_windows_of_their_epoch() {
        let text = Dataset::text((0..27).collect(), 4).unwrap();
        for epoch in 0..3 {
            let loader = ShardLoader::new(&text, 3, 7, DType::F32, Shards::new(0..3, 3));
            let batches: Vec<LocalBatch> = loader.epoch(epoch).collect::<Result<_>>().unwrap();
            assert_eq!(batches.iter().map(|batch| batch.samples).collect::<Vec<_>>(), [12, 8]);
            assert_eq!(loader.samples_per_epoch(), 20);
            let shards = batches.iter().flat_map(|batch| &batch.shards);
            assert_eq!(
                shards.clone().map(|it| it.samples()).collect::<Vec<_>>(),
                [1, 1, 1, 1, 1, 0]
            );
            let mut labels: Vec<u32> = Vec::new();
            for shard in shards {
                labels.extend(shard.labels.flatten_all().unwrap().to_vec1::<u32>().unwrap());
            }
            labels.sort_unstable();
            let expected: Vec<u32> =
                text.of_epoch(7, epoch).labels().iter().map(|&byte| byte.into()).collect();
            assert_eq!(labels, expected, "epoch {epoch}");
        }
    }
}

//! A model's share of an epoch: of every global batch the shards that it hosts, made ahead of time.

use std::ops::Range;

use candle_core::DType;
use datasets::loader::{Epochs, Prefetch, batch_of, epoch_order, prefetch};
use datasets::{Batch, Dataset};
use split_batch::split::shard_range;

/// Some shards of every batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    /// The shards.
    pub shards: Range<usize>,
    /// Into how many shards a batch is cut.
    pub of: usize,
}

impl Hosts {
    /// The whole batch, in one piece.
    pub const WHOLE: Self = Self { shards: 0..1, of: 1 };
}

/// A model's part of one global batch, in CPU memory.
#[derive(Clone, Debug)]
pub struct Share {
    /// The shards that the model hosts. A shard may be empty where a batch has few samples.
    pub shards: Vec<Batch>,
    /// Samples of the whole batch, over all ranks: what an update divides by.
    pub samples: usize,
}

/// Cuts a data set into global batches, shuffled anew each epoch, and a model's shards out of each.
///
/// Every rank has the same seed and so the same batches; nothing is exchanged. Only the rank's own images
/// are read. It is the rule of stage 3's [`Sampler`](split_batch::sampler::Sampler), for several shards.
#[derive(Clone, Debug)]
pub struct Shares {
    dataset: Dataset,
    batch_size: usize,
    seed: u64,
    dtype: DType,
    hosts: Hosts,
}

impl Shares {
    /// The shards `hosts` of batches of `batch_size` samples over all ranks; the last one of an epoch may
    /// be shorter.
    ///
    /// # Panics
    ///
    /// When `batch_size` is 0.
    pub fn new(
        dataset: &Dataset,
        batch_size: usize,
        seed: u64,
        dtype: DType,
        hosts: Hosts,
    ) -> Self {
        assert!(batch_size > 0, "a batch has at least one sample");
        Self { dataset: dataset.clone(), batch_size, seed, dtype, hosts }
    }
}

impl Epochs for Shares {
    type Batch = Share;

    fn batches_per_epoch(&self) -> usize {
        self.dataset.len().div_ceil(self.batch_size)
    }

    fn samples_per_epoch(&self) -> usize {
        self.dataset.len()
    }

    fn rest_of_epoch(&self, epoch: usize, done: usize) -> Prefetch<Share> {
        let order = epoch_order(self.dataset.len(), self.seed, epoch);
        let Self { dataset, batch_size, dtype, hosts, .. } = self.clone();
        prefetch(done..self.batches_per_epoch(), move |step| {
            let batch = batch_of(&order, batch_size, step);
            let shard = |shard| {
                let samples = shard_range(batch.len(), hosts.of, shard);
                dataset.batch(&batch[samples], dtype)
            };
            let shards = hosts.shards.clone().map(shard).collect::<Result<_, _>>()?;
            Ok(Share { shards, samples: batch.len() })
        })
    }
}

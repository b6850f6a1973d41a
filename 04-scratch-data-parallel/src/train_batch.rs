//! One step of data-parallel training.

// ANCHOR: imports
use candle_core::{Device, Tensor};
use datasets::Batch;
use harness::records::BatchSums;
use harness::report::trace::COMPUTE;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{self, Communicator};
use single_gpu::lenet::Lenet;
use single_gpu::sgd::sgd;
use single_gpu::train::{Step, local_gradients};
use tracing::info_span;
use trainer::{sums_from_tensor, sums_to_tensor};

use crate::Error;
// ANCHOR_END: imports

/// Makes one training step on this rank's device. All ranks call it together, with the same batch.
///
/// `batch` is the whole batch, in CPU memory. The function returns the sums of loss and correct answers over the whole
/// batch, and the gradients of the update. Both are the same on every rank.
///
/// # Errors
///
/// When the batch does not fit the model, and the errors of communication.
// ANCHOR: train_batch
pub fn train_batch(
    rank: &(impl Communicator + ?Sized),
    model: &Lenet,
    batch: &Batch,
    learning_rate: f64,
    algorithm: Algorithm,
) -> Result<Step, Error> {
    let shard = cut_shard(batch, rank.world_size(), rank.rank(), rank.device())?;
    let local = local_gradients(model, &shard)?;
    // Data parallelism: sums over the shard become sums over the batch.
    let mut gradients = Vec::new();
    for gradient in &local.gradients {
        gradients.push(rank.all_reduce(gradient, algorithm)?);
    }
    // The only division is by the size of the whole batch. Every rank makes the same update.
    sgd(model.parameters(), &gradients, learning_rate, batch.len())?;
    Ok(Step { sums: allreduce_sums(rank, local.sums, algorithm)?, gradients })
}
// ANCHOR_END: train_batch

// ANCHOR: cut_shard
/// Cuts one shard out of a batch, and moves the shard to its device.
pub(crate) fn cut_shard(
    batch: &Batch,
    shards: usize,
    index: usize,
    device: &Device,
) -> Result<Batch, Error> {
    let _span = info_span!(target: COMPUTE, "shard").entered();
    let (images, labels) = split_batch::cut_shard(&batch.images, &batch.labels, shards, index)?;
    Ok(Batch { images, labels }.to_device(device)?)
}
// ANCHOR_END: cut_shard

// ANCHOR: allreduce
/// Adds up each tensor of a list over all ranks, in one all-reduce each.
pub(crate) fn allreduce_all(
    rank: &(impl Communicator + ?Sized),
    tensors: &[Tensor],
    algorithm: Algorithm,
) -> Result<Vec<Tensor>, Error> {
    tensors.iter().map(|tensor| Ok(rank.all_reduce(tensor, algorithm)?)).collect()
}

/// Adds up loss, correct answers, samples and interrupts over the shards of all ranks. Every rank gets the same sums.
///
/// # Errors
///
/// The errors of communication.
pub fn allreduce_sums(
    rank: &(impl Communicator + ?Sized),
    sums: BatchSums,
    algorithm: Algorithm,
) -> Result<BatchSums, communicator::Error> {
    let total = rank.all_reduce(&sums_to_tensor(&sums, rank.device())?, algorithm)?;
    Ok(sums_from_tensor(&total)?)
}
// ANCHOR_END: allreduce

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;

    /// All shards together would not fit into memory.
    #[test]
    fn a_shard_is_cut_without_the_others() {
        const SHARDS: usize = 1 << 40;
        let images = Tensor::arange(0f32, 12.0, &Device::Cpu).unwrap().reshape((6, 2)).unwrap();
        let labels = Tensor::arange(0u32, 6, &Device::Cpu).unwrap();
        let batch = Batch { images, labels };
        let shard = cut_shard(&batch, SHARDS, 5, &Device::Cpu).unwrap();
        assert_eq!(shard.images.to_vec2::<f32>().unwrap(), [[10.0, 11.0]]);
        assert_eq!(shard.labels.to_vec1::<u32>().unwrap(), [5]);
        let last = cut_shard(&batch, SHARDS, SHARDS - 1, &Device::Cpu).unwrap();
        assert_eq!((last.images.dims(), last.images.dtype()), (&[0, 2][..], DType::F32));
        assert_eq!(last.labels.dims(), [0]);
    }
}

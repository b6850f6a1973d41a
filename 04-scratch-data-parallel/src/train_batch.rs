//! One step of data-parallel training.

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

/// One step on this rank's device; all ranks call it together, with the same batch.
///
/// `batch` is the whole batch, in CPU memory. What comes back is about the whole batch too, and is the
/// same on every rank: the sums of loss and correct answers, and the gradients that the update used.
///
/// # Errors
///
/// When the batch does not fit the model, or another rank stops or stalls.
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
    // The lines that make it data-parallel: sums over the shard become sums over the batch.
    let mut gradients = Vec::new();
    for gradient in &local.gradients {
        gradients.push(rank.all_reduce(gradient, algorithm)?);
    }
    // Divided once, by the size of the whole batch. Every rank makes the same update.
    sgd(model.parameters(), &gradients, learning_rate, batch.len())?;
    Ok(Step { sums: allreduce_sums(rank, local.sums, algorithm)?, gradients })
}
// ANCHOR_END: train_batch

/// A shard of the batch, on the device that works on it.
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

/// The sum over all ranks of each tensor of a list, one after the other.
pub(crate) fn allreduce_all(
    rank: &(impl Communicator + ?Sized),
    tensors: &[Tensor],
    algorithm: Algorithm,
) -> Result<Vec<Tensor>, Error> {
    tensors.iter().map(|tensor| Ok(rank.all_reduce(tensor, algorithm)?)).collect()
}

/// Loss, correct answers, samples and interrupts of all ranks' shards together, the same on every rank.
///
/// # Errors
///
/// When another rank stops or stalls.
pub fn allreduce_sums(
    rank: &(impl Communicator + ?Sized),
    sums: BatchSums,
    algorithm: Algorithm,
) -> Result<BatchSums, communicator::Error> {
    let total = rank.all_reduce(&sums_to_tensor(&sums, rank.device())?, algorithm)?;
    Ok(sums_from_tensor(&total)?)
}

#[cfg(test)]
mod tests {
    use candle_core::DType;

    use super::*;

    /// There are more shards than memory has room for.
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

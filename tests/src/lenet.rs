//! A LeNet in which the images show from the first step on.

use candle_core::{DType, Device};
use datasets::Batch;
use single_gpu::lenet::Lenet;
use split_batch::loader::LocalBatch;

/// Weights ten times as large as usual, of the seed 1. With those of a fresh LeNet the loss hardly depends on the images,
/// and gradients are so small that most of their bits are lost in the update: a difference could hide.
/// Panics when the tensors cannot be made.
#[expect(clippy::unwrap_used, reason = "in a test a panic is the right answer")]
pub fn with_large_weights(dtype: DType) -> Lenet {
    let lenet = Lenet::new(1, dtype, &Device::Cpu).unwrap();
    for parameter in lenet.parameters().iter() {
        let value = parameter.value.as_detached_tensor();
        parameter.value.set(&(value * 10.0).unwrap()).unwrap();
    }
    lenet
}

/// Cuts a batch into `of` shards, and returns the shards with the numbers `held`.
/// Fails when the numbers of images and labels differ.
pub fn local_batch(
    batch: &Batch,
    of: usize,
    held: impl IntoIterator<Item = usize>,
) -> candle_core::Result<LocalBatch> {
    let all = split_batch::split_batch(&batch.images, &batch.labels, of)?;
    let shard = |index: usize| {
        let (images, labels) = all[index].clone();
        Batch { images, labels }
    };
    Ok(LocalBatch { shards: held.into_iter().map(shard).collect(), samples: batch.len() })
}

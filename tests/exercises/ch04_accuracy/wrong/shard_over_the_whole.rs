// expect: EXPECT

use candle_core::{D, DType, Tensor};
use params_and_allreduce::communicator::{Communicator, Error};
use params_and_allreduce::{Algorithm, allreduce};

/// This shard's correct answers over all images: with k devices about 1/k of the truth.
pub fn accuracy(
    rank: &impl Communicator,
    logits: &Tensor,
    labels: &Tensor,
) -> Result<f64, Error> {
    let answers = logits.argmax(D::Minus1)?;
    let correct = answers.eq(labels)?.to_dtype(DType::F64)?.sum_all()?.to_scalar::<f64>()?;
    let images = labels.elem_count() as f64;
    let total = allreduce(rank, &Tensor::new(images, rank.device())?, Algorithm::default())?;
    Ok(correct / total.to_scalar::<f64>()?)
}

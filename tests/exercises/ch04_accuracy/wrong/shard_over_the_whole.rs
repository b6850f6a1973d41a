// expect: this rank's correct answers over all ranks' images

use candle_core::{D, DType, Tensor};
use params_and_allreduce::communicator::{Communicator, Error};
use params_and_allreduce::{Algorithm, allreduce};

/// This shard's correct answers over all images: with k devices about 1/k of the truth.
pub fn accuracy(rank: &impl Communicator, logits: &Tensor, labels: &Tensor) -> Result<f64, Error> {
    let (correct, images) = count(logits, labels)?;
    let total = allreduce(rank, &Tensor::new(images, rank.device())?, Algorithm::default())?;
    Ok(correct / total.to_scalar::<f64>()?)
}

/// Correct answers and images.
fn count(logits: &Tensor, labels: &Tensor) -> Result<(f64, f64), Error> {
    if labels.elem_count() == 0 {
        return Ok((0.0, 0.0));
    }
    let right = logits.argmax(D::Minus1)?.eq(labels)?;
    let correct = right.to_dtype(DType::F64)?.sum_all()?.to_scalar()?;
    Ok((correct, labels.elem_count() as f64))
}

// expect: got      0.7500: the accuracy of this rank's shard alone

use candle_core::{D, DType, Tensor};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};

/// Every rank reports the accuracy of its own shard.
pub fn accuracy(rank: &impl Communicator, logits: &Tensor, labels: &Tensor) -> Result<f64, Error> {
    let (correct, images) = count(logits, labels)?;
    Ok(if images > 0.0 { correct / images } else { 0.0 })
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

// expect: empty tensor for reduce

use candle_core::{D, DType, Tensor};
use params_and_allreduce::communicator::{Communicator, Error};
use params_and_allreduce::{Algorithm, allreduce};

/// Asks for the largest logit of no images, which is an error: the rank fails, and with it all others.
pub fn accuracy(rank: &impl Communicator, logits: &Tensor, labels: &Tensor) -> Result<f64, Error> {
    let (correct, images) = count(logits, labels)?;
    let counts = Tensor::new(&[correct, images], rank.device())?;
    let sums = allreduce(rank, &counts, Algorithm::default())?.to_vec1::<f64>()?;
    Ok(sums[0] / sums[1])
}

/// Correct answers and images.
fn count(logits: &Tensor, labels: &Tensor) -> Result<(f64, f64), Error> {
    let right = logits.argmax(D::Minus1)?.eq(labels)?;
    let correct = right.to_dtype(DType::F64)?.sum_all()?.to_scalar()?;
    Ok((correct, labels.elem_count() as f64))
}

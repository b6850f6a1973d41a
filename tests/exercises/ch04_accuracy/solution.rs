//! Counts can be added up, accuracies cannot.


use candle_core::{D, DType, Tensor};
use params_and_allreduce::communicator::{Communicator, Error};
use params_and_allreduce::{Algorithm, allreduce};

/// The share of all test images that were classified correctly, 0 to 1: the same number on every rank.
pub fn accuracy(
    rank: &impl Communicator,
    logits: &Tensor,
    labels: &Tensor,
) -> Result<f64, Error> {
    let answers = logits.argmax(D::Minus1)?;
    // Counted in f64, in which whole numbers are exact up to 2⁵³: the bytes that `eq` returns end at 255.
    let correct = answers.eq(labels)?.to_dtype(DType::F64)?.sum_all()?.to_scalar::<f64>()?;
    let counts = Tensor::new(&[correct, labels.elem_count() as f64], rank.device())?;
    let sums = allreduce(rank, &counts, Algorithm::default())?.to_vec1::<f64>()?;
    Ok(sums[0] / sums[1])
}

//! Counts can be added up, accuracies cannot.

use candle_core::{D, DType, Tensor};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};

pub fn accuracy(rank: &impl Communicator, logits: &Tensor, labels: &Tensor) -> Result<f64, Error> {
    let counts = [correct(logits, labels)?, labels.elem_count() as f64];
    let counts = Tensor::new(&counts, rank.device())?;
    let sums = rank.all_reduce(&counts, Algorithm::default())?.to_vec1::<f64>()?;
    Ok(sums[0] / sums[1])
}

/// How many images are classified correctly.
fn correct(logits: &Tensor, labels: &Tensor) -> Result<f64, Error> {
    // The largest of no logits is an error.
    if labels.elem_count() == 0 {
        return Ok(0.0);
    }
    let right = logits.argmax(D::Minus1)?.eq(labels)?;
    // Whole numbers are exact in f64 up to 2⁵³. The bytes that `eq` returns end at 255.
    Ok(right.to_dtype(DType::F64)?.sum_all()?.to_scalar()?)
}

exercises::check!(ch04_accuracy, accuracy, run);

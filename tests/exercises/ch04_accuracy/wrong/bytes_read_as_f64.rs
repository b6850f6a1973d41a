// expect: failed: unexpected dtype, expected: F64

use candle_core::{D, Tensor};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};

/// Bytes, where f64 was to be read.
pub fn accuracy(rank: &impl Communicator, logits: &Tensor, labels: &Tensor) -> Result<f64, Error> {
    let counts = [correct(logits, labels)?, labels.elem_count() as f64];
    let counts = Tensor::new(&counts, rank.device())?;
    let sums = rank.all_reduce(&counts, Algorithm::default())?.to_vec1::<f64>()?;
    Ok(sums[0] / sums[1])
}

fn correct(logits: &Tensor, labels: &Tensor) -> Result<f64, Error> {
    if labels.elem_count() == 0 {
        return Ok(0.0);
    }
    let right = logits.argmax(D::Minus1)?.eq(labels)?;
    Ok(right.sum_all()?.to_scalar()?)
}

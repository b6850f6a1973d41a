// expect: EXPECT

use candle_core::{D, DType, Tensor};
use params_and_allreduce::communicator::{Communicator, Error};
use params_and_allreduce::{Algorithm, allreduce};

/// Every rank reports the accuracy of its own shard.
pub fn accuracy(
    rank: &impl Communicator,
    logits: &Tensor,
    labels: &Tensor,
) -> Result<f64, Error> {
    let answers = logits.argmax(D::Minus1)?;
    let correct = answers.eq(labels)?.to_dtype(DType::F64)?.sum_all()?.to_scalar::<f64>()?;
    let images = labels.elem_count() as f64;
    Ok(if images > 0.0 { correct / images } else { 0.0 })
}

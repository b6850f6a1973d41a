// expect: EXPECT

use candle_core::{D, DType, Tensor};
use params_and_allreduce::communicator::{Communicator, Error};
use params_and_allreduce::{Algorithm, allreduce};

/// Gathers the counts on rank 0; the others go by their own shard.
pub fn accuracy(
    rank: &impl Communicator,
    logits: &Tensor,
    labels: &Tensor,
) -> Result<f64, Error> {
    let answers = logits.argmax(D::Minus1)?;
    let correct = answers.eq(labels)?.to_dtype(DType::F64)?.sum_all()?.to_scalar::<f64>()?;
    let images = labels.elem_count() as f64;
    if rank.rank() > 0 {
        rank.send(0, &Tensor::new(&[correct, images], rank.device())?)?;
        return Ok(if images > 0.0 { correct / images } else { 0.0 });
    }
    let mut sums = [correct, images];
    for other in 1..rank.world_size() {
        let counts = rank.recv(other, &2.into(), DType::F64)?.to_vec1::<f64>()?;
        sums[0] += counts[0];
        sums[1] += counts[1];
    }
    Ok(sums[0] / sums[1])
}

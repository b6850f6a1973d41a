// expect: got      1.0000: the accuracy of this rank's shard alone

use candle_core::{D, DType, Tensor};
use params_and_allreduce::communicator::{Communicator, Error};
use params_and_allreduce::{Algorithm, allreduce};

/// Gathers the counts on rank 0; the others go by their own shard.
pub fn accuracy(rank: &impl Communicator, logits: &Tensor, labels: &Tensor) -> Result<f64, Error> {
    let (correct, images) = count(logits, labels)?;
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

/// Correct answers and images.
fn count(logits: &Tensor, labels: &Tensor) -> Result<(f64, f64), Error> {
    if labels.elem_count() == 0 {
        return Ok((0.0, 0.0));
    }
    let right = logits.argmax(D::Minus1)?.eq(labels)?;
    let correct = right.to_dtype(DType::F64)?.sum_all()?.to_scalar()?;
    Ok((correct, labels.elem_count() as f64))
}

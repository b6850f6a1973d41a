// expect: got      messages sent: 2, as with 2 calls, or one of Algorithm::

use candle_core::Tensor;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};

/// One call for the weights, another for the biases.
pub fn allreduce_fused(
    rank: &impl Communicator,
    tensors: &[Tensor],
    algorithm: Algorithm,
) -> Result<Vec<Tensor>, Error> {
    let (weights, biases): (Vec<_>, Vec<_>) = tensors.iter().partition(|it| it.rank() > 1);
    let mut weights = together(rank, &weights, algorithm)?.into_iter();
    let mut biases = together(rank, &biases, algorithm)?.into_iter();
    let next = |tensor: &Tensor| if tensor.rank() > 1 { weights.next() } else { biases.next() };
    Ok(tensors.iter().filter_map(next).collect())
}

fn together(
    rank: &impl Communicator,
    tensors: &[&Tensor],
    algorithm: Algorithm,
) -> Result<Vec<Tensor>, Error> {
    if tensors.is_empty() {
        return Ok(Vec::new());
    }
    let flat = tensors.iter().map(|it| it.flatten_all()).collect::<Result<Vec<_>, _>>()?;
    let sums = rank.all_reduce(&Tensor::cat(&flat, 0)?, algorithm)?;
    let mut offset = 0;
    let mut cut = |tensor: &&Tensor| {
        let elements = tensor.elem_count();
        let sum = sums.narrow(0, offset, elements)?.reshape(tensor.shape())?;
        offset += elements;
        Ok(sum)
    };
    tensors.iter().map(&mut cut).collect()
}

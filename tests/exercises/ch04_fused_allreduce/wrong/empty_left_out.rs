// expect: tensors [[2], [0, 4], [3]] F32: rank 0 gets 2 sums back

use candle_core::Tensor;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};

/// Leaves tensors without elements out, and then has one result too few.
pub fn allreduce_fused(
    rank: &impl Communicator,
    tensors: &[Tensor],
    algorithm: Algorithm,
) -> Result<Vec<Tensor>, Error> {
    if tensors.is_empty() {
        return Ok(Vec::new());
    }
    let flat = tensors.iter().map(Tensor::flatten_all).collect::<Result<Vec<_>, _>>()?;
    let sums = rank.all_reduce(&Tensor::cat(&flat, 0)?, algorithm)?;
    let mut offset = 0;
    let mut cut = |tensor: &Tensor| {
        let elements = tensor.elem_count();
        let sum = sums.narrow(0, offset, elements)?.reshape(tensor.shape())?;
        offset += elements;
        Ok(sum)
    };
    tensors.iter().filter(|tensor| tensor.elem_count() > 0).map(&mut cut).collect()
}

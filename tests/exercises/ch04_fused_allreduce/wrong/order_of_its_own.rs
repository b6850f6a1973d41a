// expect: got      701: tensor 0[0] of rank 0 + tensor 1[0] of rank 1

use candle_core::Tensor;
use params_and_allreduce::communicator::{Communicator, Error};
use params_and_allreduce::{Algorithm, allreduce};

/// Each rank starts with another tensor, "to spread the work": position p is another element on each.
pub fn allreduce_fused(
    rank: &impl Communicator,
    tensors: &[Tensor],
    algorithm: Algorithm,
) -> Result<Vec<Tensor>, Error> {
    if tensors.is_empty() {
        return Ok(Vec::new());
    }
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.rotate_left(rank.rank() % tensors.len());
    let flat = order
        .iter()
        .map(|&index| &tensors[index])
        .map(Tensor::flatten_all)
        .collect::<Result<Vec<_>, _>>()?;
    let sums = allreduce(rank, &Tensor::cat(&flat, 0)?, algorithm)?;
    let mut offset = 0;
    let mut cut = |index: usize| {
        let tensor = &tensors[index];
        let elements = tensor.elem_count();
        let sum = sums.narrow(0, offset, elements)?.reshape(tensor.shape())?;
        offset += elements;
        Ok((index, sum))
    };
    let mut results = order.into_iter().map(&mut cut).collect::<Result<Vec<_>, Error>>()?;
    results.sort_by_key(|&(index, _)| index);
    Ok(results.into_iter().map(|(_, sum)| sum).collect())
}

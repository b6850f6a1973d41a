// expect: rank 0 sends 200 bytes

use candle_core::{DType, Tensor};
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};

/// Adds up in f64, whatever the type of the tensors: f32 is twice as many bytes then.
pub fn allreduce_fused(
    rank: &impl Communicator,
    tensors: &[Tensor],
    algorithm: Algorithm,
) -> Result<Vec<Tensor>, Error> {
    if tensors.is_empty() {
        return Ok(Vec::new());
    }
    let flat = tensors.iter().map(Tensor::flatten_all).collect::<Result<Vec<_>, _>>()?;
    let row = Tensor::cat(&flat, 0)?.to_dtype(DType::F64)?;
    let sums = rank.all_reduce(&row, algorithm)?.to_dtype(tensors[0].dtype())?;
    let mut offset = 0;
    let mut cut = |tensor: &Tensor| {
        let elements = tensor.elem_count();
        let sum = sums.narrow(0, offset, elements)?.reshape(tensor.shape())?;
        offset += elements;
        Ok(sum)
    };
    tensors.iter().map(&mut cut).collect()
}

// expect: got      17171716: the sum rounded to f32

use candle_core::{DType, Tensor};
use params_and_allreduce::communicator::{Communicator, Error};
use params_and_allreduce::{Algorithm, allreduce};

/// The joined message is always f32: half of the digits of an f64 are gone.
pub fn allreduce_fused(
    rank: &impl Communicator,
    tensors: &[Tensor],
    algorithm: Algorithm,
) -> Result<Vec<Tensor>, Error> {
    if tensors.is_empty() {
        return Ok(Vec::new());
    }
    let flat = tensors.iter().map(Tensor::flatten_all).collect::<Result<Vec<_>, _>>()?;
    let sums = allreduce(rank, &Tensor::cat(&flat, 0)?.to_dtype(DType::F32)?, algorithm)?;
    let mut offset = 0;
    let mut cut = |tensor: &Tensor| {
        let elements = tensor.elem_count();
        let sum =
            sums.narrow(0, offset, elements)?.reshape(tensor.shape())?.to_dtype(tensor.dtype())?;
        offset += elements;
        Ok(sum)
    };
    tensors.iter().map(&mut cut).collect()
}

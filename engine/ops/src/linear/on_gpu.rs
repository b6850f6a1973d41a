//! The dense layer on a GPU: cuBLAS computes the products, and our kernels add bias and relu.

use candle_core::backend::BackendStorage as _;
use candle_core::{CudaStorage, Result, Shape, Tensor};

use super::Linear;
use crate::gpu::{Channels, add_bias, bias_gradients, on_gpu};

impl Linear {
    pub(super) fn forward_on_gpu(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
    ) -> Result<CudaStorage> {
        let (samples, _) = x.dims2()?;
        let shape = Shape::from((samples, self.outputs));
        let sizes = (1, samples, self.outputs, self.inputs);
        on_gpu([x, weight, bias], |[of_x, of_weight, bias]| {
            let (x, weight) = (x.layout(), weight.layout());
            let mut y = of_x.storage.matmul(of_weight.storage, sizes, x, weight)?;
            add_bias(&mut y, Channels::of(&shape)?, bias, self.with_relu)?;
            Ok(y)
        })
    }

    /// Computes the gradients of the input if needed, of the weight, and of the bias.
    pub(super) fn backward_on_gpu(
        &self,
        x: &Tensor,
        weight: &Tensor,
        y: &Tensor,
        grad: &Tensor,
    ) -> Result<[Option<Tensor>; 3]> {
        let (grad, dbias) = bias_gradients(self.with_relu.then_some(y), grad)?;
        let dweight = x.detach().t()?.matmul(&grad)?;
        let dx = if x.track_op() { Some(grad.matmul(&weight.detach().t()?)?) } else { None };
        Ok([dx, Some(dweight), Some(dbias)])
    }
}

//! The dense layer on a GPU: cuBLAS computes the products, and our kernels add bias and relu.

use candle_core::backend::BackendStorage as _;
use candle_core::{CudaStorage, Layout, Result, Shape, Tensor};

use super::Linear;
use crate::gpu::{Channels, Operand, add_bias, bias_gradients};

impl Linear {
    pub(super) fn forward_on_gpu(
        &self,
        (x, x_layout): (&CudaStorage, &Layout),
        (weight, weight_layout): (&CudaStorage, &Layout),
        bias: Operand<'_>,
    ) -> Result<(CudaStorage, Shape)> {
        let (samples, _) = x_layout.shape().dims2()?;
        let shape = Shape::from((samples, self.outputs));
        let sizes = (1, samples, self.outputs, self.inputs);
        let mut y = x.matmul(weight, sizes, x_layout, weight_layout)?;
        add_bias(&mut y, Channels::of(&shape)?, bias, self.with_relu)?;
        Ok((y, shape))
    }

    /// Computes the gradients of input, weight and bias.
    pub(super) fn backward_on_gpu(
        &self,
        x: &Tensor,
        weight: &Tensor,
        y: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (grad, dbias) = bias_gradients(self.with_relu.then_some(y), grad)?;
        let dweight = x.detach().t()?.matmul(&grad)?;
        let dx = if x.track_op() { Some(grad.matmul(&weight.detach().t()?)?) } else { None };
        Ok((dx, Some(dweight), Some(dbias)))
    }
}

//! The dense layer on a GPU: its products by cuBLAS, and kernels of ours for bias and rectifier.

use candle_core::backend::BackendStorage as _;
use candle_core::{CudaStorage, Layout, Result, Shape, Tensor};

use super::Linear;
use crate::gpu::blocks::Channels;
use crate::gpu::{self, Operand};

/// A tensor as an operation is given it.
type Given<'a> = (&'a CudaStorage, &'a Layout);

impl Linear {
    /// What bias and rectifier see of an output of so many samples.
    fn channels(&self, samples: usize) -> Channels {
        Channels { images: samples, channels: self.outputs, plane: 1 }
    }

    /// The gradients of input, weight and bias: the products are cuBLAS's.
    pub(super) fn backward_on_gpu(
        &self,
        x: &Tensor,
        weight: &Tensor,
        y: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let sizes = self.channels(x.dim(0)?);
        let behind_relu = self.with_relu.then_some(y);
        let (grad, dbias) = gpu::bias::gradients(sizes, behind_relu, grad)?;
        let dweight = x.detach().t()?.matmul(&grad)?;
        let dx = if x.track_op() { Some(grad.matmul(&weight.detach().t()?)?) } else { None };
        Ok((dx, Some(dweight), Some(dbias)))
    }

    pub(super) fn forward_on_gpu(
        &self,
        (x, x_layout): Given<'_>,
        (weight, weight_layout): Given<'_>,
        (bias, bias_layout): Given<'_>,
    ) -> Result<(CudaStorage, Shape)> {
        let (samples, _) = x_layout.shape().dims2()?;
        let sizes = (1, samples, self.outputs, self.inputs);
        let mut y = x.matmul(weight, sizes, x_layout, weight_layout)?;
        let (sizes, bias) = (self.channels(samples), Operand::new(bias, bias_layout)?);
        gpu::bias::add(x.device(), &mut y, sizes, bias, self.with_relu)?;
        Ok((y, (samples, self.outputs).into()))
    }
}

//! The convolution on a GPU: its products by cuDNN, and a kernel of ours for what follows them.

use candle_core::backend::BackendStorage as _;
use candle_core::{CudaStorage, Result, Shape, Tensor, bail};

use super::Conv2d;
use super::finish::Finish;
use crate::gpu::blocks::Channels;
use crate::gpu::pass::Pass;
use crate::gpu::{self, Operand, convolution, on_gpu};

type Memory<'a> = Operand<'a, CudaStorage>;

impl Conv2d {
    /// What a bias and its gradient see of the products.
    fn channels(&self) -> Channels {
        let g = &self.geometry;
        Channels { images: g.batch, channels: g.out_channels, plane: g.pixels() }
    }

    pub(super) fn forward_on_gpu(
        &self,
        x: Memory<'_>,
        weight: Memory<'_>,
        bias: Option<Memory<'_>>,
    ) -> Result<(CudaStorage, Shape)> {
        let (gpu, sizes) = (x.storage.device(), self.channels());
        let pass = match self.finish {
            Finish::Plain => Pass::Output,
            Finish::ReluPool(_) => Pass::OutputForRelu,
        };
        let mut z = convolution::product(gpu, &self.geometry, pass, [x, weight])?;
        let y = match (&self.finish, bias) {
            (Finish::Plain, None) => z,
            (Finish::Plain, Some(bias)) => {
                gpu::bias::add(gpu, &mut z, sizes, bias, false)?;
                z
            }
            (Finish::ReluPool(windows), Some(bias)) => {
                let of_z = Operand::whole(&z, sizes.elements());
                let y = gpu::pooling::bias_relu_pool(gpu, sizes, windows, of_z, bias)?;
                // The backward pass asks it what was above zero.
                let _ = self.before_bias.set(z);
                y
            }
            (Finish::ReluPool(_), None) => bail!("conv2d: a relu and a pool follow a bias"),
        };
        Ok((y, self.shape()))
    }

    /// The gradients of the input, where it is wanted, of the weight, and of the bias, if there is one.
    pub(super) fn backward_on_gpu(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (g, sizes) = (&self.geometry, self.channels());
        let z_shape = (g.batch, g.out_channels, g.out_h, g.out_w);
        let (dz, dbias) = match (&self.finish, bias) {
            (Finish::Plain, None) => (grad.clone(), None),
            (Finish::Plain, Some(_)) => {
                let (dz, dbias) = gpu::bias::gradients(sizes, None, grad)?;
                (dz, Some(dbias))
            }
            (Finish::ReluPool(windows), Some(bias)) => {
                let Some(z) = self.before_bias.get() else {
                    bail!("conv2d: the forward pass left nothing behind")
                };
                let z = Operand::whole(z, sizes.elements());
                let (dz, dbias) = on_gpu([bias, grad], |gpu, [bias, grad]| {
                    gpu::pooling::bias_relu_pool_gradient(gpu, sizes, windows, z, bias, grad)
                })?;
                (gpu::tensor(dz, z_shape), Some(gpu::tensor(dbias, g.out_channels)))
            }
            (Finish::ReluPool(_), None) => bail!("conv2d: a relu and a pool follow a bias"),
        };
        let product = |pass, operands| {
            on_gpu(operands, |gpu, operands| convolution::product(gpu, g, pass, operands))
        };
        let dweight = product(Pass::WeightGradient, [x, &dz])?;
        // The first layer's input is data: its gradient is a third of the work, and nobody wants it.
        let dx = if x.track_op() {
            let dx = product(Pass::InputGradient, [weight, &dz])?;
            Some(gpu::tensor(dx, x.shape()))
        } else {
            None
        };
        Ok((dx, Some(gpu::tensor(dweight, weight.shape())), dbias))
    }
}

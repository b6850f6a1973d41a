//! The convolution on a GPU: cuDNN computes the products, our kernels compute the epilogue.

use candle_core::{CudaStorage, Result, Shape, Storage, Tensor, bail};

use super::cudnn;
use super::geometry::Pass;
use super::results::Epilogue;
use super::{Conv2d, record_output};
use crate::backward::Wanted;
use crate::kernels::gpu::{self, on_gpu, tensor};

impl Conv2d {
    /// The shape of the products' output.
    fn planes(&self) -> Shape {
        let g = &self.geometry;
        (g.batch, g.out_channels, g.out_h, g.out_w).into()
    }

    fn product(&self, pass: Pass, operands: [&Tensor; 2]) -> Result<CudaStorage> {
        on_gpu(&operands, |of| cudnn::product(&self.geometry, pass, [of[0], of[1]]))
    }

    /// Convolves `x`, runs the epilogue, and records the result on the tape.
    pub(super) fn forward_on_gpu(
        self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
    ) -> Result<Tensor> {
        let pass = match self.epilogue {
            Epilogue::Plain => Pass::Output,
            Epilogue::ReluPool(_) => Pass::OutputForRelu,
        };
        let sums = self.product(pass, [x, weight])?;
        let (y, before_bias) = match (&self.epilogue, bias) {
            (Epilogue::Plain, None) => (Storage::Cuda(sums), None),
            (Epilogue::Plain, Some(bias)) => {
                (gpu::add_bias(&tensor(sums, self.planes()), bias, false)?, None)
            }
            (Epilogue::ReluPool(windows), Some(bias)) => {
                // The backward pass derives the relu mask from these sums.
                let z = tensor(sums, self.planes());
                (gpu::bias_relu_pool(windows, &z, bias)?, Some(z))
            }
            (Epilogue::ReluPool(_), None) => bail!("conv2d: a relu and a pool follow a bias"),
        };
        let (of_x, of_weight, of_bias) = (x.clone(), weight.clone(), bias.cloned());
        record_output(y, self.shape(), [x, weight], bias, move |dy, wanted| {
            let (bias, sums, dy) = (of_bias.as_ref(), before_bias.as_ref(), dy.contiguous()?);
            self.backward_on_gpu(&of_x, &of_weight, bias, sums, &dy, wanted)
        })
    }

    /// Computes the gradients that are wanted: of the input, and of the weight and the bias.
    /// `before_bias` is the operand of bias and relu.
    fn backward_on_gpu(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        before_bias: Option<&Tensor>,
        grad: &Tensor,
        wanted: Wanted,
    ) -> Result<[Option<Tensor>; 3]> {
        let (dz, dbias) = match (&self.epilogue, bias, before_bias) {
            (Epilogue::ReluPool(windows), Some(bias), Some(z)) => {
                let (dz, dbias) = gpu::bias_relu_pool_gradient(windows, [z, bias, grad])?;
                (dz, Some(dbias))
            }
            (_, Some(_), _) if wanted.weights => {
                let (dz, dbias) = gpu::bias_gradients(None, grad)?;
                (dz, Some(dbias))
            }
            _ => (grad.clone(), None),
        };
        let dweight =
            wanted.weights.then(|| self.product(Pass::WeightGradient, [x, &dz])).transpose()?;
        let dx =
            wanted.input.then(|| self.product(Pass::InputGradient, [weight, &dz])).transpose()?;
        Ok([
            dx.map(|dx| tensor(dx, x.shape())),
            dweight.map(|dweight| tensor(dweight, weight.shape())),
            dbias.filter(|_| wanted.weights),
        ])
    }
}

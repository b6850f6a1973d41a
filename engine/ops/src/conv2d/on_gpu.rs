//! The convolution on a GPU: cuDNN computes the products, our kernels compute the epilogue.

use candle_core::{Result, Storage, Tensor, bail};

use super::cudnn;
use super::geometry::Pass;
use super::results::Epilogue;
use super::{Conv2d, record_output};
use crate::backward::Wanted;
use crate::kernels::element::tensor;
use crate::kernels::gpu::{self, on_gpu};

impl Conv2d {
    fn product(&self, pass: Pass, operands: [&Tensor; 2]) -> Result<Storage> {
        on_gpu(&operands, |of| cudnn::product(&self.geometry, pass, [of[0], of[1]]))
            .map(Storage::Cuda)
    }

    /// Convolves `x`, runs the epilogue, and records the result on the tape.
    pub(super) fn forward_on_gpu(
        self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
    ) -> Result<Tensor> {
        let g = &self.geometry;
        let sums = |pass| {
            let sums = self.product(pass, [x, weight])?;
            Ok::<_, candle_core::Error>(tensor(sums, (g.batch, g.out_channels, g.out_h, g.out_w)))
        };
        let (y, before_bias) = match (&self.epilogue, bias) {
            (Epilogue::Plain, None) => (self.product(Pass::Output, [x, weight])?, None),
            (Epilogue::Plain, Some(bias)) => {
                (gpu::add_bias(&sums(Pass::Output)?, bias, false)?, None)
            }
            (Epilogue::ReluPool(windows), Some(bias)) => {
                // The backward pass derives the relu mask from these sums.
                let z = sums(Pass::OutputForRelu)?;
                (gpu::bias_relu_pool(windows, &z, bias)?, Some(z))
            }
            (Epilogue::ReluPool(_), None) => bail!("conv2d: a relu and a pool follow a bias"),
        };
        let (of_x, of_weight, of_bias) = (x.clone(), weight.clone(), bias.cloned());
        record_output(y, self.shape(), [x, weight], bias, move |dy, wanted| {
            let operands = [&of_x, &of_weight, dy];
            self.backward_on_gpu(operands, of_bias.as_ref(), before_bias.as_ref(), wanted)
        })
    }

    /// Computes the gradients that are wanted. `before_bias` is the operand of bias and relu.
    fn backward_on_gpu(
        &self,
        [x, weight, grad]: [&Tensor; 3],
        bias: Option<&Tensor>,
        before_bias: Option<&Tensor>,
        wanted: Wanted,
    ) -> Result<[Option<Tensor>; 3]> {
        let (dz, dbias) = match (&self.epilogue, bias, before_bias) {
            (Epilogue::ReluPool(windows), Some(bias), Some(z)) => {
                let (dz, dbias) = gpu::bias_relu_pool_gradient(windows, [z, bias, grad])?;
                (dz, wanted.weights.then_some(dbias))
            }
            (_, Some(_), _) if wanted.weights => {
                let (dz, dbias) = gpu::bias_gradients(None, grad)?;
                (dz, Some(dbias))
            }
            _ => (grad.clone(), None),
        };
        let gradient = |pass, other, of: &Tensor| {
            self.product(pass, [other, &dz]).map(|gradient| tensor(gradient, of.shape()))
        };
        let dweight = wanted.weights.then(|| gradient(Pass::WeightGradient, x, weight));
        let dweight = dweight.transpose()?;
        let dx = wanted.input.then(|| gradient(Pass::InputGradient, weight, x)).transpose()?;
        Ok([dx, dweight, dbias])
    }
}

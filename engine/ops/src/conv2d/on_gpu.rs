//! The convolution on a GPU: cuDNN computes the products, our kernels compute the epilogue.

use candle_core::{CudaStorage, Result, Storage, Tensor, bail};

use super::cudnn::{Pass, product};
use super::epilogue::Epilogue;
use super::{Conv2d, record_output};
use crate::avg_pool2d::Windows;
use crate::backward::Wanted;
use crate::gpu::{
    Channels, Launch, Operand, PartialSums, Source, add_bias, alloc, bias_gradients, blocks_of,
    on_gpu, tensor,
};

impl Conv2d {
    /// The sizes of the products' output, before a bias.
    fn channels(&self) -> Channels {
        let g = &self.geometry;
        Channels { images: g.batch, channels: g.out_channels, plane: g.pixels() }
    }

    /// Convolves `x`, runs the epilogue, and records the result on the tape.
    pub(super) fn forward_on_gpu(
        self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
    ) -> Result<Tensor> {
        let (g, sizes) = (&self.geometry, self.channels());
        let (y, before_bias) = match (&self.epilogue, bias) {
            (Epilogue::Plain, bias) => {
                let mut y = on_gpu([x, weight], |operands| product(g, Pass::Output, operands))?;
                if let Some(bias) = bias {
                    on_gpu([bias], |[bias]| add_bias(&mut y, sizes, bias, false))?;
                }
                (y, None)
            }
            (Epilogue::ReluPool(windows), Some(bias)) => {
                on_gpu([x, weight, bias], |[x, weight, bias]| {
                    let z = product(g, Pass::OutputForRelu, [x, weight])?;
                    let of_z = Operand::whole(&z, sizes.elements());
                    let y = bias_relu_pool(sizes, windows, of_z, bias)?;
                    // The backward pass derives the relu mask from these sums.
                    Ok((y, Some(z)))
                })?
            }
            (Epilogue::ReluPool(_), None) => bail!("conv2d: a relu and a pool follow a bias"),
        };
        let (of_x, of_weight, of_bias) = (x.clone(), weight.clone(), bias.cloned());
        record_output(Storage::Cuda(y), self.shape(), [x, weight], bias, move |dy, wanted| {
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
        before_bias: Option<&CudaStorage>,
        grad: &Tensor,
        wanted: Wanted,
    ) -> Result<[Option<Tensor>; 3]> {
        let (g, sizes) = (&self.geometry, self.channels());
        let (dz, dbias) = match (&self.epilogue, bias, before_bias) {
            (Epilogue::Plain, Some(_), _) if wanted.weights => {
                let (dz, dbias) = bias_gradients(None, grad)?;
                (dz, Some(dbias))
            }
            (Epilogue::Plain, ..) => (grad.clone(), None),
            (Epilogue::ReluPool(windows), Some(bias), Some(z)) => {
                let z = Operand::whole(z, sizes.elements());
                let (dz, dbias) = on_gpu([bias, grad], |[bias, grad]| {
                    bias_relu_pool_gradient(sizes, windows, z, bias, grad)
                })?;
                let shape = (g.batch, g.out_channels, g.out_h, g.out_w);
                (tensor(dz, shape), Some(tensor(dbias, g.out_channels)))
            }
            (Epilogue::ReluPool(_), ..) => bail!("conv2d: a relu and a pool follow a bias"),
        };
        let product = |pass, operands| on_gpu(operands, |operands| product(g, pass, operands));
        let dweight =
            wanted.weights.then(|| product(Pass::WeightGradient, [x, &dz])).transpose()?;
        let dx = wanted.input.then(|| product(Pass::InputGradient, [weight, &dz])).transpose()?;
        Ok([
            dx.map(|dx| tensor(dx, x.shape())),
            dweight.map(|dweight| tensor(dweight, weight.shape())),
            dbias.filter(|_| wanted.weights),
        ])
    }
}

/// Computes the mean over each window of `max(z + bias, 0)`, for `z` of `sizes`.
pub(crate) fn bias_relu_pool(
    sizes: Channels,
    windows: &Windows,
    z: Operand<'_>,
    bias: Operand<'_>,
) -> Result<CudaStorage> {
    let n = sizes.images * sizes.channels * windows.out_plane();
    Launch::new(z.gpu(), Source::Pooling, "bias_relu_pool", z.dtype())
        .count(n)
        .count(sizes.channels)
        .windows(windows)
        .memory(z, sizes.elements())
        .memory(bias, sizes.channels)
        .compute(n, blocks_of(n))
}

/// Computes the gradients of `z` and of the bias, for windows that do not overlap.
pub(crate) fn bias_relu_pool_gradient(
    sizes: Channels,
    windows: &Windows,
    z: Operand<'_>,
    bias: Operand<'_>,
    grad: Operand<'_>,
) -> Result<(CudaStorage, CudaStorage)> {
    let (gpu, dtype) = (grad.gpu(), grad.dtype());
    let mut dz = alloc(gpu, sizes.elements(), dtype)?;
    let mut sums = PartialSums::alloc(gpu, sizes.parts(), sizes.channels, dtype)?;
    Launch::new(gpu, Source::Pooling, "bias_relu_pool_gradient", dtype)
        .channels(sizes)
        .windows(windows)
        .memory(z, sizes.elements())
        .memory(bias, sizes.channels)
        .memory(grad, sizes.images * sizes.channels * windows.out_plane())
        .result(&mut dz)
        .sums(&mut sums)
        .run(sizes.blocks())?;
    Ok((dz, sums.totals()?.rounded))
}

//! Two-dimensional convolution with its epilogue.
//!
//! Four algorithms compute the convolution behind one operation. The choice depends on shapes
//! alone:
//!
//! | algorithm | used for | cost per output and pair of channels |
//! | --- | --- | --- |
//! | `direct` | small patches, such as a single grey channel | R² multiplications, no preparation |
//! | `winograd` | 3×3, 5×5 kernels at stride 1 | a fifth to less than half of R², and transforms |
//! | `sampled` | strided 1×1 kernels | the cost of `unfolded`, on the pixels that kernels read |
//! | `unfolded` | everything else | R², as one im2col matrix product near the processor's peak |
//!
//! A NaN or an infinity reaches the results that depend on it, and no others, with every algorithm.
//! Planes that are not finite after `winograd` are computed again by `unfolded`.
//!
//! All algorithms work on blocks of sixteen images side by side (`lanes`). They run the epilogue
//! (`finish`) on every finished plane while the plane is in the cache, and divide their work into
//! tasks by shape. The bits of a result therefore depend on shapes and values alone, never on the
//! number of threads. An image's result never depends on the contents of the other images of its
//! batch. The number of images may change the choice of algorithm.
//!
//! The backward pass prepares the input again, because this is cheaper than keeping the prepared
//! input.

mod composed;
#[cfg(feature = "cudnn")]
mod cudnn;
mod direct;
mod finish;
#[cfg(test)]
pub(super) mod formula;
mod frame;
pub(super) mod geometry;
mod gradients;
mod input;
#[cfg(feature = "cudnn")]
pub(crate) mod on_gpu;
mod output;
mod sampled;
#[cfg(test)]
mod tests;
mod unfold;
mod unfolded;
mod way;
mod winograd;

use std::sync::OnceLock;

use candle_core::backend::BackendStorage as _;
use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor};

use super::avg_pool2d::{Windows, avg_pool2d};
use super::element::{Element, cpu_elements, elements, for_dtype};
use super::relu::relu;
use super::rounded::{is_rounded, rounded};
use crate::backward::{apply2, apply3};
use composed::composed;
use finish::{Finish, Signs};
use geometry::Geometry;
use gradients::{Gradients, Upstream};
use output::Output;
use way::Way;
#[cfg(feature = "cudnn")]
use {crate::gpu::Operand, candle_core::CudaStorage};

/// Convolves `x` with `weight` and adds `bias`, if there is one.
///
/// `[B, C, H, W]`, `[O, C, KH, KW]`, `[O]` → `[B, O, H', W']` with
/// `H' = (H + 2·padding − KH) / stride + 1`, rounded down. The kernel is not flipped, as usual in
/// this field. The padding consists of zeros, and zero times a weight that is NaN or infinite is
/// NaN.
///
/// If the weights are finite, an output with a patch of zeros equals its bias exactly. On a GPU
/// only [`conv2d_relu_pool`] guarantees this; here the result depends on cuDNN.
///
/// # Errors
///
/// When the shapes do not fit, when a size other than the batch's or `stride` is 0, or on a dtype
/// other than f32, f64 and bf16. On a GPU without cuDNN also when the last patches leave different
/// numbers of rows and columns over.
pub fn conv2d(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    stride: usize,
    padding: usize,
) -> Result<Tensor> {
    let geometry = Geometry::new(x, weight, bias, stride, padding)?;
    if is_rounded(x) {
        let wide = |x: Tensor, weight: Tensor, bias: Option<&Tensor>| {
            conv2d(&x, &weight, bias, stride, padding)
        };
        match bias {
            Some(bias) => rounded("conv2d", [x, weight, bias], |[x, weight, bias]| {
                wide(x, weight, Some(&bias))
            }),
            None => rounded("conv2d", [x, weight], |[x, weight]| wide(x, weight, None)),
        }
    } else if has_operation(x) {
        Conv2d::new(geometry, Finish::Plain).apply(x, weight, bias)
    } else {
        composed(x, weight, bias, stride, padding)
    }
}

/// Computes [`conv2d`](fn@conv2d) at stride 1 without padding, then [`relu`](fn@crate::relu), then
/// [`avg_pool2d`](fn@crate::avg_pool2d) over `pool`×`pool` windows that do not overlap.
///
/// The result has the same bits as the three operations in sequence, in a fraction of the time: the
/// CPU never writes the intermediate results to memory. On a GPU the bits are the same where cuDNN
/// has the same algorithm for both.
///
/// On every device, an output of the convolution with a patch of zeros equals its bias exactly. The
/// slope of the relu changes at 0, and training begins with a bias of 0. A rounding error must not
/// turn this 0 into a positive number.
///
/// # Errors
///
/// The errors of the three operations.
pub fn conv2d_relu_pool(x: &Tensor, weight: &Tensor, bias: &Tensor, pool: usize) -> Result<Tensor> {
    let geometry = Geometry::new(x, weight, Some(bias), 1, 0)?;
    if is_rounded(x) {
        // The three separate operations round each result that they write to memory.
        avg_pool2d(&relu(&conv2d(x, weight, Some(bias), 1, 0)?)?, pool, pool)
    } else if has_operation(x) {
        let windows = Windows::new(geometry.out_h, geometry.out_w, pool, pool)?;
        Conv2d::new(geometry, Finish::ReluPool(windows)).apply(x, weight, Some(bias))
    } else {
        avg_pool2d(&relu(&composed(x, weight, Some(bias), 1, 0)?)?, pool, pool)
    }
}

/// Returns whether this crate has an operation for the device: for the CPU, and for a GPU with
/// cuDNN.
fn has_operation(x: &Tensor) -> bool {
    x.device().is_cpu() || cfg!(feature = "cudnn")
}

/// One application of the convolution with its epilogue.
struct Conv2d {
    geometry: Geometry,
    finish: Finish,
    /// The relu masks that the forward pass recorded for the backward pass.
    signs: OnceLock<Vec<Signs>>,
    /// The operand of bias and relu on a GPU, kept for the backward pass.
    #[cfg(feature = "cudnn")]
    before_bias: OnceLock<CudaStorage>,
}

impl Conv2d {
    fn new(geometry: Geometry, finish: Finish) -> Self {
        Self {
            geometry,
            finish,
            signs: OnceLock::new(),
            #[cfg(feature = "cudnn")]
            before_bias: OnceLock::new(),
        }
    }

    fn apply(self, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        let (x, weight) = (x.contiguous()?, weight.contiguous()?);
        match bias {
            Some(bias) => apply3(&x, &weight, &bias.contiguous()?, self),
            None => apply2(&x, &weight, self),
        }
    }

    fn shape(&self) -> Shape {
        let (height, width) = self.finish.size(&self.geometry);
        (self.geometry.batch, self.geometry.out_channels, height, width).into()
    }

    fn forward<T: Element>(&self, x: &[T], weight: &[T], bias: Option<&[T]>) -> CpuStorage {
        let g = &self.geometry;
        let mut output = Output::new(g, &self.finish, bias);
        Way::new(g).forward(g, x, weight, &mut output);
        // The cell is empty: every application has an operation of its own.
        let _ = self.signs.set(output.signs);
        T::to_cpu_storage_owned(output.y)
    }

    /// Computes the gradients of the input if needed, of the weight, and of the bias if there is
    /// one.
    fn backward(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let (g, grad) = (&self.geometry, grad.contiguous()?);
        #[cfg(feature = "cudnn")]
        if grad.device().is_cuda() {
            return self.backward_on_gpu(x, weight, bias, &grad);
        }
        let (x_storage, x_layout) = x.storage_and_layout();
        let (weight_storage, weight_layout) = weight.storage_and_layout();
        let (grad_storage, grad_layout) = grad.storage_and_layout();
        // The first layer's input is data. Its gradient is a third of the work, and nothing uses
        // it.
        let want_dx = x.track_op();
        let way = if want_dx { Way::with_dx(g) } else { Way::new(g) };
        for_dtype!(x.dtype(), "conv2d", T => {
            let mut gradients = Gradients::<T>::new(g, want_dx, bias.is_some());
            let upstream = Upstream {
                geometry: g,
                finish: &self.finish,
                grad: elements(&grad_storage, grad_layout)?,
                signs: self.signs.get().map_or(&[], Vec::as_slice),
            };
            let x = elements(&x_storage, x_layout)?;
            let weights = elements(&weight_storage, weight_layout)?;
            // An empty batch adds nothing to the zeros.
            if g.batch > 0 {
                way.backward(g, x, weights, &upstream, &mut gradients);
            }
            let tensor = |values, shape: Shape| Tensor::from_vec(values, shape, grad.device());
            let dbias: Option<Vec<T>> = gradients.bias.into_iter().collect();
            let x_shape = (g.batch, g.in_channels, g.height, g.width).into();
            Ok((
                gradients.x.map(|dx| tensor(dx, x_shape)).transpose()?,
                Some(tensor(gradients.weight, weight.shape().clone())?),
                dbias.map(|dbias| tensor(dbias, g.out_channels.into())).transpose()?,
            ))
        })
    }
}

impl CustomOp3 for Conv2d {
    fn name(&self) -> &'static str {
        "conv2d"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        for_dtype!(x.dtype(), "conv2d", T => {
            let bias = cpu_elements::<T>(bias, bias_layout)?;
            let (x, weight) = (cpu_elements(x, x_layout)?, cpu_elements(weight, weight_layout)?);
            Ok((self.forward::<T>(x, weight, Some(bias)), self.shape()))
        })
    }

    #[cfg(feature = "cudnn")]
    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        x_layout: &Layout,
        weight: &CudaStorage,
        weight_layout: &Layout,
        bias: &CudaStorage,
        bias_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let (x, weight) = (Operand::new(x, x_layout)?, Operand::new(weight, weight_layout)?);
        self.forward_on_gpu(x, weight, Some(Operand::new(bias, bias_layout)?))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        _y: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        self.backward(x, weight, Some(bias), grad)
    }
}

/// The convolution without a bias.
impl CustomOp2 for Conv2d {
    fn name(&self) -> &'static str {
        "conv2d"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        for_dtype!(x.dtype(), "conv2d", T => {
            let (x, weight) = (cpu_elements(x, x_layout)?, cpu_elements(weight, weight_layout)?);
            Ok((self.forward::<T>(x, weight, None), self.shape()))
        })
    }

    #[cfg(feature = "cudnn")]
    fn cuda_fwd(
        &self,
        x: &CudaStorage,
        x_layout: &Layout,
        weight: &CudaStorage,
        weight_layout: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        let (x, weight) = (Operand::new(x, x_layout)?, Operand::new(weight, weight_layout)?);
        self.forward_on_gpu(x, weight, None)
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _y: &Tensor,
        grad: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let (dx, dweight, _) = self.backward(x, weight, None, grad)?;
        Ok((dx, dweight))
    }
}

//! Two-dimensional convolution, and what follows it.
//!
//! Four ways to compute it, behind one operation; which one is taken depends on shapes alone:
//!
//! | way | for | cost an output and pair of channels |
//! | --- | --- | --- |
//! | `direct` | patches of few numbers: a single grey channel | R² multiplications, no preparation |
//! | `winograd` | 3×3 and 5×5 kernels that move one pixel at a time | a fifth to less than a half of R², and transforms |
//! | `sampled` | 1×1 kernels that move by several pixels | that of `unfolded`, which is given only what they look at |
//! | `unfolded` | everything else | R², as one matrix product near the processor's peak |
//!
//! A NaN or an infinity reaches the results that depend on it, and no others, whatever the way: planes that are not finite
//! after `winograd` are computed again by `unfolded`.
//!
//! All of them work on blocks of sixteen images side by side (`lanes`), hand every finished
//! plane to what follows (`finish`) while it is in the cache, and divide their work into tasks by shape.
//! So bits depend on shapes and values alone, never on the number of threads, and an image's result never on what
//! the other images of its batch are. (How many there are may choose the way.) The backward pass makes what it
//! needs of the input anew, which is cheaper than keeping it.

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
/// `H' = (H + 2·padding − KH) / stride + 1`, rounded down. As everywhere in this field, the kernel is
/// not flipped. The padding consists of zeros, and zero times a weight that is NaN or infinite is NaN. With finite weights,
/// an output that sees nothing but zeros is exactly its bias; on a GPU this holds for [`conv2d_relu_pool`], and here is up
/// to cuDNN.
///
/// # Errors
///
/// When the shapes do not fit, when a size other than the batch's or `stride` is 0, or on a dtype other than
/// f32, f64 and bf16; on a GPU without cuDNN also when the last patches leave a number of rows over that is not the
/// number of columns.
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

/// [`conv2d`](fn@conv2d) at stride 1 without padding, then [`relu`](fn@crate::relu), then
/// [`avg_pool2d`](fn@crate::avg_pool2d) over `pool`×`pool` windows that do not overlap.
///
/// The same bits as the three one after the other (on a GPU, where cuDNN has the same algorithm for both), in a
/// fraction of the time: on the CPU, what lies between them is never written to memory.
///
/// An output of the convolution that sees nothing but zeros is exactly its bias, on every device. The relu's slope
/// changes at 0, and a bias of 0, with which training begins, must not be taken for more.
///
/// # Errors
///
/// Those of the three.
pub fn conv2d_relu_pool(x: &Tensor, weight: &Tensor, bias: &Tensor, pool: usize) -> Result<Tensor> {
    let geometry = Geometry::new(x, weight, Some(bias), 1, 0)?;
    if is_rounded(x) {
        // What the three write to memory is rounded each time.
        avg_pool2d(&relu(&conv2d(x, weight, Some(bias), 1, 0)?)?, pool, pool)
    } else if has_operation(x) {
        let windows = Windows::new(geometry.out_h, geometry.out_w, pool, pool)?;
        Conv2d::new(geometry, Finish::ReluPool(windows)).apply(x, weight, Some(bias))
    } else {
        avg_pool2d(&relu(&composed(x, weight, Some(bias), 1, 0)?)?, pool, pool)
    }
}

/// Whether there is an operation of ours for the device: on a GPU, where there is cuDNN.
fn has_operation(x: &Tensor) -> bool {
    x.device().is_cpu() || cfg!(feature = "cudnn")
}

/// One application of the operation.
struct Conv2d {
    geometry: Geometry,
    finish: Finish,
    /// What the forward pass noted for the backward pass.
    signs: OnceLock<Vec<Signs>>,
    /// The same on a GPU: what bias and relu were applied to.
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
        // Nobody set it before: every application has an operation of its own.
        let _ = self.signs.set(output.signs);
        T::to_cpu_storage_owned(output.y)
    }

    /// The gradients of the input, where it is wanted, of the weight, and of the bias, if there is one.
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
        // The first layer's input is data: its gradient is a third of the work, and nobody wants it.
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
            // Without images nothing is added to the zeros.
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

/// Without a bias.
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

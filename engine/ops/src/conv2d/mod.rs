//! Two-dimensional convolution with its epilogue.
//!
//! Three algorithms compute the convolution behind one operation. The choice depends on shapes alone:
//!
//! | algorithm | used for | cost per output and pair of channels |
//! | --- | --- | --- |
//! | `direct` | small patches, such as a single grey channel | R² multiplications, no preparation |
//! | `winograd` | 3×3, 5×5 kernels at stride 1 | a fifth to less than half of R², and transforms |
//! | `im2col` | everything else | R², as one matrix product near the processor's peak |
//!
//! With every algorithm, a NaN or an infinity reaches the results that depend on it, and no others.
//!
//! All algorithms work on blocks of sixteen images side by side (`simd`). They run the epilogue on every finished plane while
//! the plane is in the cache, and divide their work into tasks by shape. The bits therefore depend on shapes and values alone,
//! never on the number of threads or on the other images of a batch, though their number may change the choice of algorithm.
//! The backward pass prepares the input again, which is cheaper than keeping the prepared input.

#[cfg_attr(not(feature = "cudnn"), path = "no_cudnn.rs")]
mod cudnn;
mod direct;
pub(super) mod geometry;
mod im2col;
mod on_gpu;
mod padded_plane;
mod results;
#[cfg(test)]
pub(super) mod tests;
mod winograd;

use candle_core::{DType, Result, Shape, Storage, Tensor, bail};

use crate::Element;
use crate::avg_pool2d;
use crate::backward::{Kind, Wanted, record_node};
use crate::copies::{is_rounded, rounded};
use crate::kernels::element::{cpu_memory, for_dtype, lock};
use crate::kernels::memory::product;
use crate::kernels::simd::LANES;
use crate::kernels::windows::Windows;
use crate::relu;
use direct::{Direct, LARGEST_PATCH};
use geometry::Geometry;
use im2col::Im2col;
use results::{Epilogue, Gradients, Output, ReluMask, Upstream};
use winograd::Winograd;

/// Convolves `x` with `weight` and adds `bias`, if there is one.
///
/// `[B, C, H, W]`, `[O, C, KH, KW]`, `[O]` → `[B, O, H', W']` with `H' = (H + 2·padding − KH) / stride + 1`, rounded down.
/// The kernel is not flipped, as usual in this field. The padding consists of zeros, and zero times a weight that is NaN or
/// infinite is NaN.
///
/// If the weights are finite, an output with a patch of zeros equals its bias exactly, except on a GPU: there only
/// [`conv2d_relu_pool`] guarantees it. Fails when the shapes do not fit, when a size other than the batch's or `stride` is 0,
/// when the machine has too little memory, or on a dtype other than f32, f64 and bf16. On a GPU without cuDNN it also fails
/// when the last patches leave different numbers of rows and columns over.
pub fn conv2d(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    stride: usize,
    padding: usize,
) -> Result<Tensor> {
    let geometry = Geometry::new(x, weight, bias, stride, padding)?;
    if is_rounded(x) {
        let operands: Vec<_> = [x, weight].into_iter().chain(bias).collect();
        rounded("conv2d", &operands, |of| conv2d(&of[0], &of[1], of.get(2), stride, padding))
    } else if has_operation(x) {
        Conv2d { geometry, epilogue: Epilogue::Plain }.forward(x, weight, bias)
    } else {
        composed(x, weight, bias, stride, padding)
    }
}

/// Computes [`conv2d`](fn@conv2d) at stride 1 without padding, then [`relu`](fn@crate::relu), then
/// [`avg_pool2d`](fn@crate::avg_pool2d) over `pool`×`pool` windows that do not overlap.
///
/// The result has the bits of the three operations in sequence, on a GPU where cuDNN has the same
/// algorithm for both. The CPU never writes the intermediate results to memory. On every device, an
/// output of the convolution with a patch of zeros equals its bias exactly: the slope of the relu
/// changes at 0, and training begins with a bias of 0. Fails like the three operations.
pub fn conv2d_relu_pool(x: &Tensor, weight: &Tensor, bias: &Tensor, pool: usize) -> Result<Tensor> {
    let geometry = Geometry::new(x, weight, Some(bias), 1, 0)?;
    if is_rounded(x) {
        // The three separate operations round each result that they write to memory.
        avg_pool2d(&relu(&conv2d(x, weight, Some(bias), 1, 0)?)?, pool, pool)
    } else if has_operation(x) {
        let windows = Windows::new(geometry.out_h, geometry.out_w, pool, pool)?;
        Conv2d { geometry, epilogue: Epilogue::ReluPool(windows) }.forward(x, weight, Some(bias))
    } else {
        avg_pool2d(&relu(&composed(x, weight, Some(bias), 1, 0)?)?, pool, pool)
    }
}

/// Whether this crate has an operation for the device: for the CPU, and for a GPU with cuDNN.
fn has_operation(x: &Tensor) -> bool {
    x.device().is_cpu() || cudnn::PRESENT
}

struct Conv2d {
    geometry: Geometry,
    epilogue: Epilogue,
}

impl Conv2d {
    /// Convolves `x`, runs the epilogue, and records the result on the tape.
    fn forward(self, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
        if x.device().is_cpu() {
            self.check_memory(x.dtype())?;
        }
        let (x, weight) = (x.contiguous()?, weight.contiguous()?);
        let bias = bias.map(Tensor::contiguous).transpose()?;
        if x.device().is_cuda() {
            return self.forward_on_gpu(&x, &weight, bias.as_ref());
        }
        let g = &self.geometry;
        let (y, relu_masks) = for_dtype!(x.dtype(), "conv2d", T => {
            // Without a bias, the weight serves as a placeholder.
            let locked = lock(&[&x, &weight, bias.as_ref().unwrap_or(&weight)]);
            let [x, weight, of_bias] = locked.elements::<T, 3>()?;
            let of_bias = bias.is_some().then_some(of_bias);
            let mut output = Output::new(g, &self.epilogue, of_bias);
            // An empty batch has no outputs.
            if g.batch > 0 {
                Algorithm::new(g).forward(x, weight, &mut output);
            }
            (cpu_memory(output.y), output.relu_masks)
        });
        let (of_x, of_weight, has_bias) = (x.clone(), weight.clone(), bias.is_some());
        record_output(y, self.shape(), [&x, &weight], bias.as_ref(), move |dy, wanted| {
            self.backward(&of_x, &of_weight, has_bias, &relu_masks, dy, wanted)
        })
    }

    /// Computes the gradients that are wanted: of the input, and of the weight and the bias.
    fn backward(
        &self,
        x: &Tensor,
        weight: &Tensor,
        has_bias: bool,
        relu_masks: &[ReluMask],
        grad: &Tensor,
        wanted: Wanted,
    ) -> Result<[Option<Tensor>; 3]> {
        let g = &self.geometry;
        // Both halves of a backward pass choose the algorithm of the whole pass.
        let algorithm = if x.track_op() { Algorithm::with_dx(g) } else { Algorithm::new(g) };
        if algorithm == Algorithm::Im2col && g.batch > 0 {
            g.check_memory(Im2col(g).numbers_backward(), x.dtype())?;
        }
        for_dtype!(x.dtype(), "conv2d", T => {
            let locked = lock(&[x, weight, grad]);
            let [of_x, of_weight, grad] = locked.elements::<T, 3>()?;
            let mut gradients = Gradients::<T>::new(g, wanted, has_bias);
            let upstream = Upstream { geometry: g, epilogue: &self.epilogue, grad, relu_masks };
            // An empty batch adds nothing to the zeros.
            if g.batch > 0 {
                algorithm.backward(of_x, of_weight, &upstream, &mut gradients);
            }
            let tensor = |values, shape: &Shape| Tensor::from_vec(values, shape, x.device());
            let dbias: Option<Vec<T>> = gradients.bias.into_iter().collect();
            Ok([
                gradients.x.map(|dx| tensor(dx, x.shape())).transpose()?,
                gradients.weight.map(|dweight| tensor(dweight, weight.shape())).transpose()?,
                dbias.map(|dbias| tensor(dbias, &g.out_channels.into())).transpose()?,
            ])
        })
    }

    /// Fails when the machine has too little memory for a forward pass on the CPU: for the output and
    /// the planes of a block of images, or for the im2col matrix. An empty batch needs no memory.
    fn check_memory(&self, dtype: DType) -> Result<()> {
        let (g, (height, width)) = (&self.geometry, self.epilogue.size(&self.geometry));
        if g.batch == 0 {
            return Ok(());
        }
        let output = product(&[g.batch, g.out_channels, height, width]);
        g.check_memory(output.saturating_add(g.block()), dtype)?;
        match Algorithm::new(g) {
            Algorithm::Im2col => g.check_memory(Im2col(g).numbers_forward(), dtype),
            _ => Ok(()),
        }
    }

    fn shape(&self) -> Shape {
        let (height, width) = self.epilogue.size(&self.geometry);
        (self.geometry.batch, self.geometry.out_channels, height, width).into()
    }
}

/// Records the output of a convolution on the tape. `backward` computes the gradients of input,
/// weight and bias, as far as they are wanted, from the gradient of the output.
fn record_output(
    y: Storage,
    shape: Shape,
    [x, weight]: [&Tensor; 2],
    bias: Option<&Tensor>,
    backward: impl Fn(&Tensor, Wanted) -> Result<[Option<Tensor>; 3]> + Send + Sync + 'static,
) -> Result<Tensor> {
    let inputs: Vec<_> = [x, weight].into_iter().chain(bias).collect();
    record_node("conv2d", (y, shape), &inputs, Kind::InHalves, move |_, dy, wanted| {
        backward(&dy.sum()?, wanted)
    })
}

/// The fewest input and output channels for Winograd's algorithm: its transforms cost time per
/// channel, and it saves multiplications per pair of channels.
const ENOUGH_CHANNELS: usize = 8;

/// The fixed cost of a weight, in units of the cost of one column of a product.
///
/// A transformed weight and its gradient are written and read six times in a step. These are 24 bytes, or 2.4 ns at 10 GB/s.
/// A column's three multiplications and additions take 0.06 ns at 100 GFLOP/s.
const WEIGHT: usize = 40;

/// 3×3 kernels: 4×4 inputs become 2×2 outputs.
type Winograd2<'a> = Winograd<'a, 2, 3, 4>;
/// 3×3 kernels: 6×6 inputs become 4×4 outputs.
type Winograd4<'a> = Winograd<'a, 4, 3, 6>;
/// 5×5 kernels: 7×7 inputs become 3×3 outputs.
type Winograd3<'a> = Winograd<'a, 3, 5, 7>;

/// The algorithms for a convolution. The number in a name is the number of output rows of a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    Direct,
    Winograd2,
    Winograd4,
    Winograd3,
    Im2col,
}

impl Algorithm {
    /// Chooses the algorithm for a pass without the input's gradient.
    fn new(g: &Geometry) -> Self {
        if g.patch() <= LARGEST_PATCH { Self::Direct } else { Self::with_dx(g) }
    }

    /// Chooses the algorithm for a backward pass with the input's gradient.
    ///
    /// Large tiles need the fewest multiplications, but every place of a tile has its own weights.
    /// If few tiles share these weights, smaller tiles are faster.
    fn with_dx(g: &Geometry) -> Self {
        let images = g.batch.next_multiple_of(LANES);
        let cost = |places, tiles| places * (images * tiles + WEIGHT);
        let (cost2, cost4, cost3) = (
            cost(Winograd2::PLACES, Winograd2::new(g).tiles()),
            cost(Winograd4::PLACES, Winograd4::new(g).tiles()),
            cost(Winograd3::PLACES, Winograd3::new(g).tiles()),
        );
        // The last third of the im2col cost is a reserve for the transforms.
        let limit = cost(g.kernel_h * g.kernel_w, g.pixels()) * 2 / 3;
        let enough = g.in_channels.min(g.out_channels) >= ENOUGH_CHANNELS;
        match (g.kernel_h, g.kernel_w, g.stride) {
            (3, 3, 1) if enough && cost4 < cost2.min(limit) => Self::Winograd4,
            (3, 3, 1) if enough && cost2 < limit => Self::Winograd2,
            (5, 5, 1) if enough && cost3 < limit => Self::Winograd3,
            _ => Self::Im2col,
        }
    }
}

impl Algorithm {
    /// Convolves, and runs the epilogue.
    fn forward<T: Element>(self, x: &[T], weight: &[T], output: &mut Output<'_, T>) {
        let g = output.geometry;
        match self {
            Self::Direct => Direct::new(g).forward(x, weight, output),
            Self::Winograd2 => Winograd2::new(g).forward(x, weight, output),
            Self::Winograd4 => Winograd4::new(g).forward(x, weight, output),
            Self::Winograd3 => Winograd3::new(g).forward(x, weight, output),
            Self::Im2col => Im2col(g).forward(x, weight, output),
        }
    }

    /// Adds the gradients to zeros.
    fn backward<T: Element>(
        self,
        x: &[T],
        weight: &[T],
        up: &Upstream<'_, T>,
        to: &mut Gradients<T>,
    ) {
        let g = up.geometry;
        match self {
            Self::Direct => Direct::new(g).backward(x, up, to),
            Self::Winograd2 => Winograd2::new(g).backward(x, weight, up, to),
            Self::Winograd4 => Winograd4::new(g).backward(x, weight, up, to),
            Self::Winograd3 => Winograd3::new(g).backward(x, weight, up, to),
            Self::Im2col => Im2col(g).backward(x, weight, up, to),
        }
    }
}

/// Computes [`conv2d`](fn@conv2d) by candle's convolution, for a GPU without cuDNN. Fails when the
/// last patches leave m rows and n columns of the padded input uncovered, and m ≠ n.
fn composed(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    stride: usize,
    padding: usize,
) -> Result<Tensor> {
    // candle's backward pass uses the number of uncovered rows for the columns too.
    let beyond = |axis| Ok::<_, candle_core::Error>(x.dim(axis)? + 2 * padding - weight.dim(axis)?);
    let (rows, columns) = (beyond(2)? % stride, beyond(3)? % stride);
    if rows != columns {
        bail!(
            "conv2d: on this device stride {stride} must leave as many rows over as columns, not {rows} and \
             {columns}"
        );
    }
    let y = x.conv2d(weight, padding, stride, 1, 1)?;
    match bias {
        Some(bias) => y.broadcast_add(&bias.reshape((1, bias.dim(0)?, 1, 1))?),
        None => Ok(y),
    }
}

//! Images processed channel by channel: the division of the work into blocks, sums over a channel,
//! and a bias for each channel.

use candle_core::backend::BackendStorage as _;
use candle_core::{CudaDevice, CudaStorage, DType, Result, Shape, Storage, Tensor, bail};

use super::kernel::Source;
use super::launch::{Launch, alloc, blocks_of};
use super::operand::{on_gpu, tensor};
use super::{THREADS, VECTOR};

/// Images `[images, channels, plane]`. A dense layer's output has planes of one element. The values of a channel are divided
/// into parts, one for each block. A GPU then has work for all its processors even if there are few channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Channels {
    pub(crate) images: usize,
    pub(crate) channels: usize,
    pub(crate) plane: usize,
}

impl Channels {
    /// The number of a channel's values per block, thirty-two for each thread: with fewer, the work
    /// before and after a block's loop would cost as much as the loop.
    const PART: usize = 32 * THREADS;

    /// Returns the sizes of `[B, C, …]`.
    pub(crate) fn of(shape: &Shape) -> Result<Self> {
        let [images, channels, plane @ ..] = shape.dims() else {
            bail!("images [B, C, …] were expected, got {shape:?}");
        };
        Ok(Self { images: *images, channels: *channels, plane: plane.iter().product() })
    }

    /// Returns the number of elements in a vector, which must not reach beyond a plane.
    pub(crate) fn vector(&self) -> usize {
        if self.plane.is_multiple_of(VECTOR) { VECTOR } else { 1 }
    }

    pub(crate) fn parts(&self) -> usize {
        (self.images * self.plane).div_ceil(Self::PART).max(1)
    }

    /// Returns the number of blocks: one for each part of each channel.
    pub(super) fn blocks(&self) -> usize {
        self.channels * self.parts()
    }

    pub(super) fn elements(&self) -> usize {
        self.images * self.channels * self.plane
    }
}

impl<'a> Launch<'a> {
    /// Adds the first arguments of kernels that process images by channel, with planes in vectors.
    pub(super) fn channels(self, sizes: Channels) -> Self {
        let plane = sizes.plane / self.vector();
        self.count(sizes.images).count(sizes.channels).count(plane).count(sizes.parts())
    }

    /// Adds the memory for a kernel's sums, and for totals if there is only one part.
    pub(super) fn sums(self, to: &'a mut PartialSums) -> Self {
        let PartialSums { sums, rounded, parts, n } = to;
        let dtype = rounded.dtype();
        self.result(DType::F64, sums, *parts * *n).result(dtype, rounded, *n)
    }
}

/// Sums over parts, which become totals. If there is only one part, its kernel writes the totals.
pub(super) struct PartialSums {
    /// The sums, `[parts, n]` in f64.
    sums: CudaStorage,
    /// The totals, `[n]`.
    rounded: CudaStorage,
    parts: usize,
    n: usize,
}

impl PartialSums {
    /// Allocates memory for n sums over each of the parts, and for totals of this type.
    pub(super) fn alloc(gpu: &CudaDevice, parts: usize, n: usize, dtype: DType) -> Result<Self> {
        let (sums, rounded) = (alloc(gpu, parts * n, DType::F64)?, alloc(gpu, n, dtype)?);
        Ok(Self { sums, rounded, parts, n })
    }

    /// Returns the n totals after a kernel has written the sums: in f64, where they are the first elements of this memory,
    /// and in the type of the parameters whose gradients they are.
    pub(super) fn totals(mut self) -> Result<[CudaStorage; 2]> {
        let (n, parts) = (self.n, self.parts);
        if parts > 1 {
            let (gpu, dtype) = (self.sums.device().clone(), self.rounded.dtype());
            let launch =
                Launch::new(&gpu, Source::Bias, "merged_sums", dtype).count(n).count(parts);
            // SAFETY: `merged_sums(n, parts, sums, rounded)` reads [parts, n] sums. Block i of n writes element i of both.
            unsafe { launch.sums(&mut self).run(n) }?;
        }
        Ok([self.sums, self.rounded])
    }
}

// ANCHOR: add_bias
/// Computes y + bias in memory of `y`, which has these sizes, then max(·, 0) if `relu`.
pub(crate) fn add_bias(
    mut y: CudaStorage,
    sizes: Channels,
    bias: &Tensor,
    relu: bool,
) -> Result<Storage> {
    let (n, dtype) = (sizes.elements(), y.dtype());
    on_gpu([bias], |[bias]| {
        let launch = Launch::new(bias.gpu(), Source::Bias, "add_bias", dtype)
            .count(n)
            .count(sizes.channels)
            .count(sizes.plane)
            .flag(relu)
            .memory(bias, sizes.channels)
            .result(dtype, &mut y, n);
        // SAFETY: `add_bias(n, channels, plane, relu, bias, y)` visits n elements of y and reads element i / plane % channels
        // of the bias.
        unsafe { launch.run(blocks_of(n)) }
    })?;
    Ok(Storage::Cuda(y))
}
// ANCHOR_END: add_bias

/// Computes the gradients of a biased tensor and of its bias, `[channels]`. `behind_relu` is the output of the relu that
/// follows, if one does.
pub(crate) fn bias_gradients(
    behind_relu: Option<&Tensor>,
    grad: &Tensor,
) -> Result<(Tensor, Tensor)> {
    let (sizes, dtype) = (Channels::of(grad.shape())?, grad.dtype());
    let n = sizes.elements();
    let (dz, sums) = on_gpu([behind_relu.unwrap_or(grad), grad], |[y, grad]| {
        let gpu = grad.gpu();
        let mut sums = PartialSums::alloc(gpu, sizes.parts(), sizes.channels, dtype)?;
        let launch = |name| Launch::new(gpu, Source::Bias, name, dtype).channels(sizes);
        if behind_relu.is_none() {
            let launch = launch("channel_sums").memory(grad, n).sums(&mut sums);
            // SAFETY: `channel_sums(IMAGES, grad, sums, rounded)` visits each element of the images. The block of a part
            // writes the part's sum.
            unsafe { launch.run(sizes.blocks()) }?;
            return Ok((None, sums));
        }
        let mut dz = alloc(gpu, n, dtype)?;
        let launch = launch("relu_gradient_and_channel_sums").memory(y, n).memory(grad, n);
        let launch = launch.result(dtype, &mut dz, n).sums(&mut sums);
        // SAFETY: `relu_gradient_and_channel_sums(IMAGES, y, grad, dz, sums, rounded)`, as above.
        unsafe { launch.run(sizes.blocks()) }?;
        Ok((Some(dz), sums))
    })?;
    let dz = dz.map_or_else(|| grad.clone(), |dz| tensor(dz, grad.shape()));
    let [_, dbias] = sums.totals()?;
    Ok((dz, tensor(dbias, sizes.channels)))
}

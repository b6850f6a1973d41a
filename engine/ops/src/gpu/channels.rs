//! Images processed channel by channel: the division of the work into blocks, sums over a channel,
//! and a bias for each channel.

use candle_core::backend::BackendStorage as _;
use candle_core::{CudaDevice, CudaStorage, DType, Result, Shape, Tensor, bail};

use super::kernels::{Source, THREADS, VECTOR};
use super::launch::{Launch, alloc, blocks_of};
use super::operand::{Operand, on_gpu, tensor};

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
    pub(crate) fn blocks(&self) -> usize {
        self.channels * self.parts()
    }

    pub(crate) fn elements(&self) -> usize {
        self.images * self.channels * self.plane
    }
}

impl Launch<'_> {
    /// Adds the first arguments of kernels that process images by channel, with planes in vectors.
    pub(crate) fn channels(self, sizes: Channels) -> Self {
        let plane = sizes.plane / self.vector();
        self.count(sizes.images).count(sizes.channels).count(plane).count(sizes.parts())
    }
}

/// Sums over parts, which become totals. If there is only one part, its kernel writes the totals.
pub(crate) struct PartialSums {
    /// The sums, `[parts, n]` in f64.
    sums: CudaStorage,
    /// The totals, `[n]`.
    rounded: CudaStorage,
    parts: usize,
    n: usize,
}

/// The totals of n sums.
pub(crate) struct Totals<S> {
    /// The totals in f64: the first n elements of this memory.
    pub(crate) exact: S,
    /// The totals in the type of the parameters whose gradients they are.
    pub(crate) rounded: S,
}

impl PartialSums {
    /// Allocates memory for n sums over each of the parts, and for totals of this type.
    pub(crate) fn alloc(gpu: &CudaDevice, parts: usize, n: usize, dtype: DType) -> Result<Self> {
        let (sums, rounded) = (alloc(gpu, parts * n, DType::F64)?, alloc(gpu, n, dtype)?);
        Ok(Self { sums, rounded, parts, n })
    }

    /// Returns the totals, after a kernel has written the sums to [`Launch::sums`].
    pub(crate) fn totals(mut self) -> Result<Totals<CudaStorage>> {
        let Self { sums, rounded, parts, n } = &mut self;
        if *parts > 1 {
            let gpu = sums.device().clone();
            let launch = Launch::new(&gpu, Source::Bias, "merged_sums", rounded.dtype());
            launch.count(*n).count(*parts).result(sums).result(rounded).run(*n)?;
        }
        Ok(Totals { exact: self.sums, rounded: self.rounded })
    }
}

impl<'a> Launch<'a> {
    /// Adds the memory for a kernel's sums, and for totals if there is only one part.
    pub(crate) fn sums(self, PartialSums { sums, rounded, .. }: &'a mut PartialSums) -> Self {
        self.result(sums).result(rounded)
    }
}

// ANCHOR: add_bias
/// Computes y + bias in place, then max(·, 0) if `relu`.
pub(crate) fn add_bias(
    y: &mut CudaStorage,
    sizes: Channels,
    bias: Operand<'_>,
    relu: bool,
) -> Result<()> {
    let n = sizes.elements();
    Launch::new(bias.gpu(), Source::Bias, "add_bias", y.dtype())
        .count(n)
        .count(sizes.channels)
        .count(sizes.plane)
        .flag(relu)
        .memory(bias, sizes.channels)
        .result(y)
        .run(blocks_of(n))
}
// ANCHOR_END: add_bias

/// Computes the gradients of a biased tensor and of its bias, `[channels]`, on a GPU. `behind_relu`
/// is the output of the relu that follows, if one does.
pub(crate) fn bias_gradients(
    behind_relu: Option<&Tensor>,
    grad: &Tensor,
) -> Result<(Tensor, Tensor)> {
    let (sizes, dtype) = (Channels::of(grad.shape())?, grad.dtype());
    let n = sizes.elements();
    let (dz, sums) = on_gpu([behind_relu.unwrap_or(grad), grad], |[y, grad]| {
        let gpu = grad.gpu();
        let mut sums = PartialSums::alloc(gpu, sizes.parts(), sizes.channels, dtype)?;
        if behind_relu.is_none() {
            let launch = Launch::new(gpu, Source::Bias, "channel_sums", dtype).channels(sizes);
            launch.memory(grad, n).sums(&mut sums).run(sizes.blocks())?;
            return Ok((None, sums));
        }
        let mut dz = alloc(gpu, n, dtype)?;
        Launch::new(gpu, Source::Bias, "relu_gradient_and_channel_sums", dtype)
            .channels(sizes)
            .memory(y, n)
            .memory(grad, n)
            .result(&mut dz)
            .sums(&mut sums)
            .run(sizes.blocks())?;
        Ok((Some(dz), sums))
    })?;
    let dz = dz.map_or_else(|| grad.clone(), |dz| tensor(dz, grad.shape()));
    Ok((dz, tensor(sums.totals()?.rounded, sizes.channels)))
}

//! Images processed channel by channel: the division into blocks, sums over a channel, and a bias for each channel.

use candle_core::{DType, Result, Storage, Tensor};

use super::kernel::Source;
use super::launch::{Launch, blocks_of};
use super::{THREADS, VECTOR};
use crate::kernels::element::tensor;
use crate::kernels::windows::Channels;

/// The values of a channel are divided into parts, one for each block, as there may be fewer channels than processors.
impl Channels {
    /// A channel's values per block. With fewer, the work before and after a block's loop would cost as much as the loop.
    const PART: usize = 32 * THREADS;

    /// Returns the number of elements in a vector, which must not reach beyond a plane.
    pub(crate) fn vector(&self) -> usize {
        if self.plane.is_multiple_of(VECTOR) { VECTOR } else { 1 }
    }

    pub(crate) fn parts(&self) -> usize {
        self.count().div_ceil(Self::PART).max(1)
    }

    /// Returns the number of blocks: one for each part of each channel.
    pub(super) fn blocks(&self) -> usize {
        self.channels * self.parts()
    }

    /// Describes the last results of a kernel that adds up n numbers over each part: the sums, `[parts, n]` in f64, and the
    /// totals, `[n]`, which the kernel writes if there is only one part.
    pub(super) fn sums(&self, n: usize, dtype: DType) -> [(usize, DType); 2] {
        [(self.parts() * n, DType::F64), (n, dtype)]
    }

    /// Returns the totals of these results, `[n]`: in f64, and in the type of the parameters whose gradients they are.
    pub(super) fn totals(&self, n: usize, [sums, rounded]: [Storage; 2]) -> Result<[Tensor; 2]> {
        let parts = self.parts();
        let (sums, rounded) = (tensor(sums, (parts, n)), tensor(rounded, n));
        if parts > 1 {
            let launch = Launch::new(Source::Bias, "merged_sums", &rounded).count(n).count(parts);
            let launch = launch.memory_as(DType::F64, [&sums], parts * n).memory([&rounded], n);
            // SAFETY: `merged_sums(n, parts, sums, rounded)` reads [parts, n] sums. Block i of n writes element i of both.
            let [] = unsafe { launch.run(n, []) }?;
        }
        Ok([sums.get(0)?, rounded])
    }
}

impl Launch<'_> {
    /// Adds the first arguments of kernels that process images by channel, with planes in vectors.
    pub(super) fn channels(self, sizes: Channels) -> Self {
        let plane = sizes.plane / self.kernel.vector;
        self.count(sizes.images).count(sizes.channels).count(plane).count(sizes.parts())
    }
}

// ANCHOR: add_bias
/// Computes x + bias for a contiguous `x`, `[B, C, …]`, then max(·, 0) if `relu`.
pub(crate) fn add_bias(x: &Tensor, bias: &Tensor, relu: bool) -> Result<Storage> {
    let sizes = Channels::of(x.shape())?;
    let n = sizes.elements();
    let launch = Launch::new(Source::Bias, "add_bias", x)
        .count(n)
        .count(sizes.channels)
        .count(sizes.plane)
        .count(relu)
        .memory([x], n)
        .memory([bias], sizes.channels);
    // SAFETY: `add_bias(n, channels, plane, relu, x, bias, y)` visits n elements of x and y and reads element
    // i / plane % channels of the bias.
    unsafe { launch.compute(n, blocks_of(n)) }
}
// ANCHOR_END: add_bias

/// Computes the gradients of a biased tensor and of its bias, `[channels]`. `relu` is the output of the relu that follows.
pub(crate) fn bias_gradients(relu: Option<&Tensor>, grad: &Tensor) -> Result<(Tensor, Tensor)> {
    let (sizes, dtype) = (Channels::of(grad.shape())?, grad.dtype());
    let (n, channels, blocks) = (sizes.elements(), sizes.channels, sizes.blocks());
    let [sums, rounded] = sizes.sums(channels, dtype);
    let launch = |kernel| Launch::new(Source::Bias, kernel, grad).channels(sizes);
    let (dz, sums) = if let Some(y) = relu {
        let launch = launch("relu_gradient_and_channel_sums").memory([y, grad], n);
        // SAFETY: `relu_gradient_and_channel_sums(IMAGES, y, grad, dz, sums, rounded)` visits each element of the images. The
        // block of a part writes the part's sum.
        let [dz, sums @ ..] = unsafe { launch.run(blocks, [(n, dtype), sums, rounded]) }?;
        (tensor(dz, grad.shape()), sums)
    } else {
        let launch = launch("channel_sums").memory([grad], n);
        // SAFETY: `channel_sums(IMAGES, grad, sums, rounded)`, as above.
        (grad.clone(), unsafe { launch.run(blocks, [sums, rounded]) }?)
    };
    let [_, dbias] = sizes.totals(channels, sums)?;
    Ok((dz, dbias))
}

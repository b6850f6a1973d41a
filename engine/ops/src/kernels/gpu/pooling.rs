//! Average pooling, also of what a convolution's bias and relu leave.

use candle_core::{Result, Shape, Storage, Tensor, bail};

use super::kernel::Source;
use super::launch::{Launch, blocks_of};
use crate::kernels::element::tensor;
use crate::kernels::windows::{Channels, Windows};

impl Launch<'_> {
    /// Adds the sizes of the windows, and the weight of an element in its window's mean.
    fn windows(self, windows: &Windows) -> Self {
        let Windows { height, width, kernel, stride, out_height, out_width } = *windows;
        let fits = |windows: usize, size| windows == 0 || (windows - 1) * stride + kernel <= size;
        let fit = fits(out_height, height) && fits(out_width, width);
        let launch = self.check(fit, || format!("the windows reach beyond a plane: {windows:?}"));
        let sizes = [height, width, kernel, stride, out_height, out_width];
        sizes.into_iter().fold(launch, Self::count).number(windows.share::<f64>())
    }
}

/// Makes a launch of one of the file's kernels, which count their results first.
fn launch<'a>(kernel: &'static str, of: &'a Tensor, results: usize) -> Launch<'a> {
    Launch::new(Source::Pooling, kernel, of).count(results)
}

/// Returns the number of planes of `elements`, each with a number of elements that is at least 1.
fn planes(elements: usize, plane: usize) -> Result<usize> {
    if plane == 0 || !elements.is_multiple_of(plane) {
        bail!("{elements} elements are not planes of {plane}");
    }
    Ok(elements / plane)
}

/// Computes the mean over each window of contiguous planes.
pub(crate) fn avg_pool2d(windows: &Windows, x: &Tensor) -> Result<Storage> {
    let n = planes(x.elem_count(), windows.in_plane())? * windows.out_plane();
    let launch = launch("avg_pool2d", x, n).windows(windows).memory([x], x.elem_count());
    // SAFETY: `avg_pool2d(n, WINDOWS, share, x, y)` reads the windows of n outputs, all of which lie in their planes.
    unsafe { launch.compute(n, blocks_of(n)) }
}

/// Computes the gradient of planes of shape `x` from the gradient of the means.
pub(crate) fn avg_pool2d_gradient(windows: &Windows, dy: &Tensor, x: &Shape) -> Result<Tensor> {
    let n = x.elem_count();
    let of_dy = planes(n, windows.in_plane())? * windows.out_plane();
    let launch = launch("avg_pool2d_gradient", dy, n).windows(windows).memory([dy], of_dy);
    // SAFETY: `avg_pool2d_gradient(n, WINDOWS, share, grad, dx)` reads the outputs of n elements' windows.
    Ok(tensor(unsafe { launch.compute(n, blocks_of(n)) }?, x))
}

/// Computes the mean over each window of `max(z + bias, 0)`, for contiguous images `z`.
pub(crate) fn bias_relu_pool(windows: &Windows, z: &Tensor, bias: &Tensor) -> Result<Storage> {
    let sizes = Channels::of(z.shape())?;
    let n = planes(sizes.elements(), windows.in_plane())? * windows.out_plane();
    let launch = launch("bias_relu_pool", z, n).count(sizes.channels).windows(windows);
    let launch = launch.memory([z], sizes.elements()).memory([bias], sizes.channels);
    // SAFETY: `bias_relu_pool(n, channels, WINDOWS, share, z, bias, y)` reads as `avg_pool2d` does, and a channel's bias.
    unsafe { launch.compute(n, blocks_of(n)) }
}

/// Computes the gradients of `z` and of the bias, for windows that do not overlap.
pub(crate) fn bias_relu_pool_gradient(
    windows: &Windows,
    [z, bias, grad]: [&Tensor; 3],
) -> Result<(Tensor, Tensor)> {
    let (sizes, dtype) = (Channels::of(z.shape())?, z.dtype());
    let (n, channels) = (sizes.elements(), sizes.channels);
    if sizes.plane != windows.in_plane() || windows.kernel != windows.stride {
        bail!("bias_relu_pool_gradient: {windows:?} of planes of {}", sizes.plane);
    }
    let [sums, rounded] = sizes.sums(channels, dtype);
    let launch = Launch::new(Source::Pooling, "bias_relu_pool_gradient", z)
        .channels(sizes)
        .windows(windows)
        .memory([z], n)
        .memory([bias], channels)
        .memory([grad], sizes.images * channels * windows.out_plane());
    // SAFETY: `bias_relu_pool_gradient(IMAGES, WINDOWS, share, z, bias, grad, dz, sums, rounded)` visits each element of
    // the images, and reads the output of its window if there is one. The block of a part writes the part's sum.
    let [dz, sums @ ..] = unsafe { launch.run(sizes.blocks(), [(n, dtype), sums, rounded]) }?;
    let [_, dbias] = sizes.totals(channels, sums)?;
    Ok((tensor(dz, z.shape()), dbias))
}

/// Computes the means of planes of so many `pixels`, for contiguous `x`.
pub(crate) fn global_avg_pool(x: &Tensor, pixels: usize) -> Result<Storage> {
    let n = planes(x.elem_count(), pixels)?;
    let launch = launch("global_avg_pool", x, n).count(pixels).memory([x], n * pixels);
    // SAFETY: `global_avg_pool(n, pixels, x, y)` reads n planes and writes n means.
    unsafe { launch.compute(n, blocks_of(n)) }
}

/// Computes the gradient of planes of shape `x` from the gradient of their means.
pub(crate) fn global_avg_pool_gradient(dy: &Tensor, x: &Shape, pixels: usize) -> Result<Tensor> {
    let n = x.elem_count();
    let of_dy = planes(n, pixels)?;
    let launch = launch("global_avg_pool_gradient", dy, n).count(pixels).memory([dy], of_dy);
    // SAFETY: `global_avg_pool_gradient(n, pixels, grad, dx)` reads the gradient of each of the n elements' planes.
    Ok(tensor(unsafe { launch.compute(n, blocks_of(n)) }?, x))
}

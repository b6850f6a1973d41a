//! Average pooling, also of what a convolution's bias and relu leave.

use candle_core::{Result, Shape, Storage, Tensor, bail};

use super::bias::{Channels, PartialSums};
use super::kernel::Source;
use super::launch::{Launch, alloc, blocks_of};
use super::operand::{on_gpu, tensor};
use crate::kernels::element;
use crate::kernels::windows::Windows;

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

/// Returns the number of planes of `elements`, each with a number of elements that is at least 1.
fn planes(elements: usize, plane: usize) -> Result<usize> {
    if plane == 0 || !elements.is_multiple_of(plane) {
        bail!("{elements} elements are not planes of {plane}");
    }
    Ok(elements / plane)
}

/// Computes the mean over each window of contiguous planes.
pub(crate) fn avg_pool2d(windows: &Windows, x: &Tensor) -> Result<Storage> {
    let of_x = x.elem_count();
    let n = planes(of_x, windows.in_plane())? * windows.out_plane();
    // SAFETY: `avg_pool2d(n, WINDOWS, share, x, y)` reads the windows of n outputs, all of which lie in their planes.
    unsafe {
        Source::Pooling.compute("avg_pool2d", [x], (n, blocks_of(n)), |launch, [x]| {
            launch.count(n).windows(windows).memory(x, of_x)
        })
    }
}

/// Computes the gradient of planes of shape `x` from the gradient of the means.
pub(crate) fn avg_pool2d_gradient(windows: &Windows, dy: &Tensor, x: &Shape) -> Result<Tensor> {
    let n = x.elem_count();
    let of_dy = planes(n, windows.in_plane())? * windows.out_plane();
    // SAFETY: `avg_pool2d_gradient(n, WINDOWS, share, grad, dx)` reads the outputs of n elements' windows.
    let dx = unsafe {
        Source::Pooling.compute("avg_pool2d_gradient", [dy], (n, blocks_of(n)), |launch, [dy]| {
            launch.count(n).windows(windows).memory(dy, of_dy)
        })
    };
    Ok(element::tensor(dx?, x))
}

/// Computes the mean over each window of `max(z + bias, 0)`, for contiguous images `z`.
pub(crate) fn bias_relu_pool(windows: &Windows, z: &Tensor, bias: &Tensor) -> Result<Storage> {
    let sizes = Channels::of(z.shape())?;
    let n = planes(sizes.elements(), windows.in_plane())? * windows.out_plane();
    // SAFETY: `bias_relu_pool(n, channels, WINDOWS, share, z, bias, y)` reads as `avg_pool2d` does, and a channel's bias.
    unsafe {
        let blocks = blocks_of(n);
        Source::Pooling.compute("bias_relu_pool", [z, bias], (n, blocks), |launch, [z, bias]| {
            let launch = launch.count(n).count(sizes.channels).windows(windows);
            launch.memory(z, sizes.elements()).memory(bias, sizes.channels)
        })
    }
}

/// Computes the gradients of `z` and of the bias, for windows that do not overlap.
pub(crate) fn bias_relu_pool_gradient(
    windows: &Windows,
    [z, bias, grad]: [&Tensor; 3],
) -> Result<(Tensor, Tensor)> {
    let (sizes, dtype) = (Channels::of(z.shape())?, z.dtype());
    let n = sizes.elements();
    if sizes.plane != windows.in_plane() || windows.kernel != windows.stride {
        bail!("bias_relu_pool_gradient: {windows:?} of planes of {}", sizes.plane);
    }
    let (dz, sums) = on_gpu([z, bias, grad], |[z, bias, grad]| {
        let mut dz = alloc(z.gpu(), n, dtype)?;
        let mut sums = PartialSums::alloc(z.gpu(), sizes.parts(), sizes.channels, dtype)?;
        let launch = Launch::new(z.gpu(), Source::Pooling, "bias_relu_pool_gradient", dtype);
        let launch = launch.channels(sizes).windows(windows).memory(z, n);
        let launch = launch.memory(bias, sizes.channels);
        let launch = launch.memory(grad, sizes.images * sizes.channels * windows.out_plane());
        let launch = launch.result(dtype, &mut dz, n).sums(&mut sums);
        // SAFETY: `bias_relu_pool_gradient(IMAGES, WINDOWS, share, z, bias, grad, dz, sums, rounded)` visits each element of
        // the images, and reads the output of its window if there is one. The block of a part writes the part's sum.
        unsafe { launch.run(sizes.blocks()) }?;
        Ok((dz, sums))
    })?;
    let [_, dbias] = sums.totals()?;
    Ok((tensor(dz, z.shape()), tensor(dbias, sizes.channels)))
}

/// Computes the means of planes of so many `pixels`, for contiguous `x`.
pub(crate) fn global_avg_pool(x: &Tensor, pixels: usize) -> Result<Storage> {
    let n = planes(x.elem_count(), pixels)?;
    // SAFETY: `global_avg_pool(n, pixels, x, y)` reads n planes and writes n means.
    unsafe {
        Source::Pooling.compute("global_avg_pool", [x], (n, blocks_of(n)), |launch, [x]| {
            launch.count(n).count(pixels).memory(x, n * pixels)
        })
    }
}

/// Computes the gradient of planes of shape `x` from the gradient of their means.
pub(crate) fn global_avg_pool_gradient(dy: &Tensor, x: &Shape, pixels: usize) -> Result<Tensor> {
    let n = x.elem_count();
    let (kernel, of_dy) = ("global_avg_pool_gradient", planes(n, pixels)?);
    // SAFETY: `global_avg_pool_gradient(n, pixels, grad, dx)` reads the gradient of each of the n elements' planes.
    let dx = unsafe {
        Source::Pooling.compute(kernel, [dy], (n, blocks_of(n)), |launch, [dy]| {
            launch.count(n).count(pixels).memory(dy, of_dy)
        })
    };
    Ok(element::tensor(dx?, x))
}

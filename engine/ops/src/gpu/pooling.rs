//! Average pooling: over windows, alone and behind a bias and a relu, and over whole planes.

use candle_core::Result;
use candle_core::backend::BackendStorage;

use super::bias::OfParts;
use super::blocks::{Channels, blocks_of};
use super::kernel::Source;
use super::launch::{Launch, Operand};
use super::machine::Machine;
use crate::avg_pool2d::Windows;

impl<S: BackendStorage> Launch<'_, S> {
    /// The sizes of windows, and what each element has of its window's mean.
    fn windows(self, windows: &Windows) -> Self {
        let Windows { height, width, kernel, stride, out_height, out_width } = *windows;
        let sizes = [height, width, kernel, stride, out_height, out_width];
        sizes.into_iter().fold(self, Self::count).number(windows.share::<f64>())
    }
}

/// The mean over each window of each of `x`'s planes.
pub(crate) fn avg_pool2d<M: Machine>(
    machine: &M,
    windows: &Windows,
    x: Operand<'_, M::Storage>,
) -> Result<M::Storage> {
    let n = x.elements / windows.in_plane() * windows.out_plane();
    let mut y = machine.room(n, x.dtype())?;
    let launch = Launch::new(Source::Pooling, "avg_pool2d", x.dtype());
    machine
        .run(launch.count(n).windows(windows).read(x, x.elements).write(&mut y), blocks_of(n))?;
    Ok(y)
}

/// The gradient of `x`.
pub(crate) fn gradient<M: Machine>(
    machine: &M,
    windows: &Windows,
    grad: Operand<'_, M::Storage>,
) -> Result<M::Storage> {
    let n = grad.elements / windows.out_plane() * windows.in_plane();
    let mut dx = machine.room(n, grad.dtype())?;
    let launch = Launch::new(Source::Pooling, "avg_pool2d_gradient", grad.dtype());
    machine.run(
        launch.count(n).windows(windows).read(grad, grad.elements).write(&mut dx),
        blocks_of(n),
    )?;
    Ok(dx)
}

/// The mean over each window of max(z + bias, 0), for `z` of `sizes`.
pub(crate) fn bias_relu_pool<M: Machine>(
    machine: &M,
    sizes: Channels,
    windows: &Windows,
    z: Operand<'_, M::Storage>,
    bias: Operand<'_, M::Storage>,
) -> Result<M::Storage> {
    let n = sizes.images * sizes.channels * windows.out_plane();
    let mut y = machine.room(n, z.dtype())?;
    let launch = Launch::new(Source::Pooling, "bias_relu_pool", z.dtype());
    let launch = launch.count(n).count(sizes.channels).windows(windows);
    machine.run(
        launch.read(z, sizes.elements()).read(bias, sizes.channels).write(&mut y),
        blocks_of(n),
    )?;
    Ok(y)
}

/// The gradients of `z` and of the bias, for windows that do not overlap.
pub(crate) fn bias_relu_pool_gradient<M: Machine>(
    machine: &M,
    sizes: Channels,
    windows: &Windows,
    z: Operand<'_, M::Storage>,
    bias: Operand<'_, M::Storage>,
    grad: Operand<'_, M::Storage>,
) -> Result<(M::Storage, M::Storage)> {
    let mut dz = machine.room(sizes.elements(), grad.dtype())?;
    let mut sums = OfParts::room(machine, sizes.of_parts(), grad.dtype())?;
    let launch = Launch::new(Source::Pooling, "bias_relu_pool_gradient", grad.dtype());
    let launch = launch
        .channels(sizes)
        .windows(windows)
        .read(z, sizes.elements())
        .read(bias, sizes.channels);
    let launch = launch.read(grad, sizes.images * sizes.channels * windows.out_plane());
    machine.run(launch.write(&mut dz).write_both(sums.both()), sizes.blocks())?;
    Ok((dz, sums.merged(machine)?.rounded))
}

/// The mean of each of `x`'s planes.
pub(crate) fn global_avg_pool<M: Machine>(
    machine: &M,
    pixels: usize,
    x: Operand<'_, M::Storage>,
) -> Result<M::Storage> {
    let n = x.elements / pixels;
    let mut y = machine.room(n, x.dtype())?;
    let launch = Launch::new(Source::Pooling, "global_avg_pool", x.dtype());
    machine.run(launch.count(n).count(pixels).read(x, n * pixels).write(&mut y), blocks_of(n))?;
    Ok(y)
}

/// The gradient of `x`.
pub(crate) fn global_avg_pool_gradient<M: Machine>(
    machine: &M,
    pixels: usize,
    grad: Operand<'_, M::Storage>,
) -> Result<M::Storage> {
    let n = grad.elements * pixels;
    let mut dx = machine.room(n, grad.dtype())?;
    let launch = Launch::new(Source::Pooling, "global_avg_pool_gradient", grad.dtype());
    let launch = launch.count(n).count(pixels).read(grad, grad.elements);
    machine.run(launch.write(&mut dx), blocks_of(n))?;
    Ok(dx)
}

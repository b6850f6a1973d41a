//! Batch normalisation: the four pieces.

use candle_core::backend::BackendStorage;
use candle_core::{DType, Result};

use super::bias::{Merged, OfParts};
use super::blocks::Channels;
use super::kernel::Source;
use super::launch::{Launch, Operand};
use super::machine::Machine;
use crate::element::computed_in;

/// A launch of a kernel that begins with the images' sizes.
fn on_images<'a, S: BackendStorage>(
    name: &'static str,
    dtype: DType,
    sizes: Channels,
) -> Launch<'a, S> {
    Launch::new(Source::BatchNorm, name, dtype).by_vectors(sizes.vector()).channels(sizes)
}

/// Mean and variance of each channel, `[channels]` and `[channels]`, in f64.
pub(crate) fn moments<M: Machine>(
    machine: &M,
    sizes: Channels,
    x: Operand<'_, M::Storage>,
) -> Result<(M::Storage, M::Storage)> {
    let room = |elements| machine.room(elements, DType::F64);
    let (mut means, mut squares) = (room(sizes.blocks())?, room(sizes.blocks())?);
    let launch = on_images("moments_of_parts", x.dtype(), sizes);
    machine.run(
        launch.read_vectors(x, sizes.elements()).write(&mut means).write(&mut squares),
        sizes.blocks(),
    )?;
    if sizes.parts() == 1 {
        // Of the only part, these are the channel's mean and variance.
        return Ok((means, squares));
    }

    let parts = sizes.blocks();
    let of_parts = |storage| Operand::whole(storage, parts);
    let (mut mean, mut variance) = (room(sizes.channels)?, room(sizes.channels)?);
    let launch = on_images("merged_moments", x.dtype(), sizes);
    let launch = launch.read_as(DType::F64, of_parts(&means), parts).read_as(
        DType::F64,
        of_parts(&squares),
        parts,
    );
    machine.run(launch.write(&mut mean).write(&mut variance), sizes.channels)?;
    Ok((mean, variance))
}

/// What a channel is normalised by: its statistics, in f64.
pub(crate) struct Moments<'a, S> {
    pub(crate) mean: Operand<'a, S>,
    pub(crate) variance: Operand<'a, S>,
    /// Added to the variance.
    pub(crate) epsilon: f64,
}

impl<'a, S: BackendStorage> Launch<'a, S> {
    /// A number for each channel, in f64.
    fn read_of_channels(
        self,
        operands: [Operand<'a, S>; 2],
        Channels { channels, .. }: Channels,
    ) -> Self {
        operands
            .into_iter()
            .fold(self, |launch, operand| launch.read_as(DType::F64, operand, channels))
    }
}

/// Normalised, scaled by `weight` and shifted by `bias`, `[channels]` each, then max(·, 0) if `relu`. Beside images in
/// bf16 weight and bias are f32.
pub(crate) fn normalise<M: Machine>(
    machine: &M,
    sizes: Channels,
    x: Operand<'_, M::Storage>,
    [weight, bias]: [Operand<'_, M::Storage>; 2],
    moments: Moments<'_, M::Storage>,
    relu: bool,
) -> Result<M::Storage> {
    let mut y = machine.room(sizes.elements(), x.dtype())?;
    let launch = on_images("normalise", x.dtype(), sizes);
    let launch = launch.flag(relu).number(moments.epsilon).read_vectors(x, sizes.elements());
    let wide = computed_in(x.dtype());
    let launch = launch.read_as(wide, weight, sizes.channels).read_as(wide, bias, sizes.channels);
    let launch = launch.read_of_channels([moments.mean, moments.variance], sizes);
    machine.run(launch.write(&mut y), sizes.blocks())?;
    Ok(y)
}

/// What a backward pass reads of images: what went in, what came out if a relu made it, and the gradient of that.
pub(crate) struct Images<'a, S> {
    pub(crate) x: Operand<'a, S>,
    pub(crate) output: Option<Operand<'a, S>>,
    pub(crate) grad: Operand<'a, S>,
}

impl<'a, S: BackendStorage> Launch<'a, S> {
    /// A kernel that is told of no relu does not look at the output.
    fn images(self, images: &Images<'a, S>, sizes: Channels) -> Self {
        let all = [images.x, images.output.unwrap_or(images.x), images.grad];
        all.into_iter().fold(self, |launch, operand| launch.read_vectors(operand, sizes.elements()))
    }
}

/// Σ dy and then Σ dy·x̂ of each channel, `[2, channels]`: the gradients of bias and weight.
pub(crate) fn gradient_sums<M: Machine>(
    machine: &M,
    sizes: Channels,
    images: &Images<'_, M::Storage>,
    moments: Moments<'_, M::Storage>,
) -> Result<Merged<M::Storage>> {
    let dtype = images.grad.dtype();
    let [parts, channels] = sizes.of_parts();
    let mut sums = OfParts::room(machine, [parts, 2 * channels], computed_in(dtype))?;
    let launch = on_images("gradient_sums_of_parts", dtype, sizes);
    let launch = launch.flag(images.output.is_some()).number(moments.epsilon).images(images, sizes);
    let launch = launch.read_of_channels([moments.mean, moments.variance], sizes);
    machine.run(launch.write_both(sums.both()), sizes.blocks())?;
    sums.merged(machine)
}

/// What the gradient of the images is made of besides them.
pub(crate) struct Slopes<'a, S> {
    pub(crate) weight: Operand<'a, S>,
    pub(crate) moments: Moments<'a, S>,
    /// Σ dy and then Σ dy·x̂ of each channel, `[2, channels]` in f64.
    pub(crate) sums: Operand<'a, S>,
    /// 1 / n of what the statistics were taken over; 0 where they were given, and do not move with the images.
    pub(crate) share: f64,
}

/// The gradient of the images.
pub(crate) fn input_gradient<M: Machine>(
    machine: &M,
    sizes: Channels,
    images: &Images<'_, M::Storage>,
    slopes: Slopes<'_, M::Storage>,
) -> Result<M::Storage> {
    let dtype = images.grad.dtype();
    let Slopes { weight, moments, sums, share } = slopes;
    let mut dx = machine.room(sizes.elements(), dtype)?;
    let launch = on_images("input_gradient", dtype, sizes);
    let launch = launch.flag(images.output.is_some()).number(moments.epsilon).number(share);
    let launch = launch.images(images, sizes).read_as(computed_in(dtype), weight, sizes.channels);
    let launch = launch.read_of_channels([moments.mean, moments.variance], sizes);
    let launch = launch.read_as(DType::F64, sums, 2 * sizes.channels);
    machine.run(launch.write(&mut dx), sizes.blocks())?;
    Ok(dx)
}

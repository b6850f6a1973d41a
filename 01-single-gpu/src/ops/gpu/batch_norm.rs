//! Batch normalisation: the four pieces.

use candle_core::{DType, Result};

use super::bias::{Sums, merged};
use super::machine::{Channels, Launch, Machine, Operand, Source, blocks_of};

/// Mean and variance of each channel, `[channels]` and `[channels]`, in f64.
pub(crate) fn moments<M: Machine>(
    machine: &M,
    sizes: Channels,
    x: Operand<'_, M::Storage>,
) -> Result<(M::Storage, M::Storage)> {
    let room = |elements| machine.room(elements, DType::F64);
    let (mut means, mut squares) = (room(sizes.blocks())?, room(sizes.blocks())?);
    let launch = Launch::new(Source::BatchNorm, "moments_of_parts", x.dtype()).channels(sizes);
    machine.run(launch.read(x).write(&mut means).write(&mut squares), sizes.blocks())?;

    let of_parts = |storage| Operand::whole(storage, sizes.blocks());
    let (mut mean, mut variance) = (room(sizes.channels)?, room(sizes.channels)?);
    let launch = Launch::new(Source::BatchNorm, "merged_moments", x.dtype()).channels(sizes);
    let launch = launch.read(of_parts(&means)).read(of_parts(&squares));
    machine.run(launch.write(&mut mean).write(&mut variance), blocks_of(sizes.channels))?;
    Ok((mean, variance))
}

/// What a channel is normalised by: its statistics, in f64.
pub(crate) struct Moments<'a, S> {
    pub(crate) mean: Operand<'a, S>,
    pub(crate) variance: Operand<'a, S>,
    /// Added to the variance.
    pub(crate) epsilon: f64,
}

/// Normalised, scaled by `weight` and shifted by `bias`, `[channels]` each, then max(·, 0) if `relu`.
pub(crate) fn normalise<M: Machine>(
    machine: &M,
    sizes: Channels,
    x: Operand<'_, M::Storage>,
    [weight, bias]: [Operand<'_, M::Storage>; 2],
    moments: Moments<'_, M::Storage>,
    relu: bool,
) -> Result<M::Storage> {
    let mut y = machine.room(sizes.elements(), x.dtype())?;
    let launch = Launch::new(Source::BatchNorm, "normalise", x.dtype()).channels(sizes);
    let launch = launch.flag(relu).number(moments.epsilon).read(x).read(weight).read(bias);
    let launch = launch.read(moments.mean).read(moments.variance).write(&mut y);
    machine.run(launch, sizes.blocks())?;
    Ok(y)
}

/// What a backward pass reads of images: what went in, what came out if a relu made it, and the gradient of that.
pub(crate) struct Images<'a, S> {
    pub(crate) x: Operand<'a, S>,
    pub(crate) output: Option<Operand<'a, S>>,
    pub(crate) grad: Operand<'a, S>,
}

impl<'a, S> Launch<'a, S> {
    /// A kernel that is told of no relu does not look at the output.
    fn images(self, images: &Images<'a, S>) -> Self {
        self.read(images.x).read(images.output.unwrap_or(images.x)).read(images.grad)
    }
}

/// Σ dy and Σ dy·x̂ of each channel, `[channels]` and `[channels]`, in f64.
pub(crate) fn gradient_sums<M: Machine>(
    machine: &M,
    sizes: Channels,
    images: &Images<'_, M::Storage>,
    moments: Moments<'_, M::Storage>,
) -> Result<(M::Storage, M::Storage)> {
    let dtype = images.grad.dtype();
    let room = || machine.room(sizes.blocks(), DType::F64);
    let (mut of_bias, mut of_weight) = (room()?, room()?);
    let launch = Launch::new(Source::BatchNorm, "gradient_sums_of_parts", dtype).channels(sizes);
    let launch = launch.flag(images.output.is_some()).number(moments.epsilon).images(images);
    let launch = launch.read(moments.mean).read(moments.variance);
    machine.run(launch.write(&mut of_bias).write(&mut of_weight), sizes.blocks())?;
    let merged = |sums| merged(machine, sizes, sums, dtype).map(|Sums { exact, .. }| exact);
    Ok((merged(&of_bias)?, merged(&of_weight)?))
}

/// What the gradient of the images is made of besides them.
pub(crate) struct Slopes<'a, S> {
    pub(crate) weight: Operand<'a, S>,
    pub(crate) moments: Moments<'a, S>,
    /// Σ dy and Σ dy·x̂ of each channel, in f64.
    pub(crate) sums: [Operand<'a, S>; 2],
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
    let Slopes { weight, moments, sums: [of_bias, of_weight], share } = slopes;
    let mut dx = machine.room(sizes.elements(), dtype)?;
    let launch = Launch::new(Source::BatchNorm, "input_gradient", dtype).channels(sizes);
    let launch = launch.flag(images.output.is_some()).number(moments.epsilon).number(share);
    let launch = launch.images(images).read(weight).read(moments.mean).read(moments.variance);
    machine.run(launch.read(of_bias).read(of_weight).write(&mut dx), sizes.blocks())?;
    Ok(dx)
}

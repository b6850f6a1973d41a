//! The pieces of a batch normalisation. Statistics and sums are f64 and stay on the GPU.
//!
//! All images are contiguous and begin where a vector may begin. `wide` is the type of parameters, f32 for bf16 images.

use candle_core::{DType, Result, Storage, Tensor};

use super::kernel::Source;
use super::launch::Launch;
use crate::kernels::element::{computed_in, tensor};
use crate::kernels::windows::Channels;

/// Makes a launch of one of the file's kernels, which visit the planes of images in vectors.
fn launch<'a>(kernel: &'static str, images: &'a Tensor, sizes: Channels) -> Launch<'a> {
    let launch = Launch::new(Source::BatchNorm, kernel, images);
    launch.by_vectors(sizes.vector()).channels(sizes)
}

/// Converts statistics or sums to f64, contiguous.
fn in_f64<const N: usize>(tensors: [&Tensor; N]) -> Result<[Tensor; N]> {
    let mut converted = tensors.map(Tensor::detach);
    for tensor in &mut converted {
        *tensor = tensor.to_dtype(DType::F64)?.contiguous()?;
    }
    Ok(converted)
}

/// Computes the mean and the variance of each channel of a batch `[B, C, …]` with values.
pub(crate) fn moments(x: &Tensor) -> Result<[Tensor; 2]> {
    let sizes = Channels::of(x.shape())?;
    let (blocks, channels) = (sizes.blocks(), sizes.channels);
    let of_parts = launch("moments_of_parts", x, sizes).vectors([x], sizes.elements());
    // SAFETY: `moments_of_parts(IMAGES, x, mean, squares)` visits the images' vectors. Each block writes a number to each result.
    let of_parts = unsafe { of_parts.run(blocks, [(blocks, DType::F64); 2]) }?;
    let of_parts = of_parts.map(|of_parts| tensor(of_parts, blocks));
    if sizes.parts() == 1 {
        // A single part is the whole channel.
        return Ok(of_parts);
    }
    let merged = launch("merged_moments", x, sizes).memory_as(DType::F64, &of_parts, blocks);
    // SAFETY: `merged_moments(IMAGES, means, squares, mean, variance)` reads [parts, channels] numbers of both, and the block
    // of a channel writes one number to each result.
    let merged = unsafe { merged.run(channels, [(channels, DType::F64); 2]) }?;
    Ok(merged.map(|merged| tensor(merged, channels)))
}

/// Normalises images by the mean and the variance of each channel.
pub(crate) fn normalise(
    [x, weight, bias]: [&Tensor; 3],
    moments: [&Tensor; 2],
    epsilon: f64,
    relu: bool,
) -> Result<Storage> {
    let (sizes, wide, moments) =
        (Channels::of(x.shape())?, computed_in(x.dtype()), in_f64(moments)?);
    let channels = sizes.channels;
    let launch = launch("normalise", x, sizes).count(relu).number(epsilon);
    let launch = launch.vectors([x], sizes.elements()).memory_as(wide, [weight, bias], channels);
    let launch = launch.memory_as(DType::F64, &moments, channels);
    // SAFETY: `normalise(IMAGES, relu, epsilon, x, weight, bias, mean, variance, y)` reads each vector, and its channel's numbers.
    unsafe { launch.compute(sizes.elements(), sizes.blocks()) }
}

/// Computes Σ dy and Σ dy·x̂ of each channel, `[2, C]`: in f64, and rounded to the type of the parameters. The images are the
/// input, the output, read only if a relu follows, and its gradient.
pub(crate) fn gradient_sums(
    images: [&Tensor; 3],
    moments: [&Tensor; 2],
    epsilon: f64,
    relu: bool,
) -> Result<[Tensor; 2]> {
    let [x, ..] = images;
    let (sizes, wide, moments) =
        (Channels::of(x.shape())?, computed_in(x.dtype()), in_f64(moments)?);
    let channels = sizes.channels;
    let launch = launch("gradient_sums_of_parts", x, sizes).count(relu).number(epsilon);
    let launch = launch.vectors(images, sizes.elements()).memory_as(DType::F64, &moments, channels);
    // SAFETY: `gradient_sums_of_parts(IMAGES, relu, epsilon, x, y, grad, mean, variance, sums, rounded)` visits each vector
    // of the images. The block of a part writes two sums, and `rounded` has the type `Real`, which is `wide`.
    let sums = unsafe { launch.run(sizes.blocks(), sizes.sums(2 * channels, wide)) }?;
    let [exact, rounded] = sizes.totals(2 * channels, sums)?;
    Ok([exact.reshape((2, channels))?, rounded.reshape((2, channels))?])
}

/// Computes the input's gradient from the images of [`gradient_sums`], the weight, mean and variance, and the sums, `[2, C]`.
/// `count` is the number of values of the statistics, or `None` when the statistics are constants.
pub(crate) fn input_gradient(
    images: [&Tensor; 3],
    weight: &Tensor,
    moments_and_sums: [&Tensor; 3],
    count: Option<usize>,
    epsilon: f64,
    relu: bool,
) -> Result<Tensor> {
    let [x, ..] = images;
    let (sizes, wide) = (Channels::of(x.shape())?, computed_in(x.dtype()));
    let (channels, share) = (sizes.channels, count.map_or(0.0, |count| 1.0 / count as f64));
    let weight = weight.detach().to_dtype(wide)?.contiguous()?;
    let [mean, variance, sums] = in_f64(moments_and_sums)?;
    let launch = launch("input_gradient", x, sizes).count(relu).number(epsilon).number(share);
    let launch = launch.vectors(images, sizes.elements()).memory_as(wide, [&weight], channels);
    let launch = launch.memory_as(DType::F64, [&mean, &variance], channels);
    let launch = launch.memory_as(DType::F64, [&sums], 2 * channels);
    // SAFETY: `input_gradient(IMAGES, relu, epsilon, share, x, y, grad, weight, mean, variance, sums, dx)` visits each vector
    // of the images, and reads the numbers of its channel.
    Ok(tensor(unsafe { launch.compute(sizes.elements(), sizes.blocks()) }?, x.shape()))
}

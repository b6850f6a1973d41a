//! The pieces of a batch normalisation. Statistics and sums are f64 and stay on the GPU.
//!
//! All images are contiguous and begin where a vector may begin. `wide` is the type of parameters, f32 for bf16 images.

use candle_core::{DType, Result, Storage, Tensor};

use super::bias::{Channels, PartialSums};
use super::kernel::Source;
use super::launch::{Launch, alloc};
use super::operand::{Operand, on_gpu, tensor};
use crate::kernels::element::{self, computed_in};

impl<'a> Launch<'a> {
    /// Adds the sizes of images, whose planes the kernel visits in vectors.
    fn sizes(self, sizes: Channels) -> Self {
        self.by_vectors(sizes.vector()).channels(sizes)
    }

    /// Adds images of these sizes.
    fn images<const N: usize>(self, images: [Operand<'a>; N], sizes: Channels) -> Self {
        images.into_iter().fold(self, |launch, images| launch.vectors(images, sizes.elements()))
    }

    /// Adds numbers in f64, `[n]` each.
    fn doubles<const N: usize>(self, values: [Operand<'a>; N], n: usize) -> Self {
        values.into_iter().fold(self, |launch, of| launch.memory_as(DType::F64, of, n))
    }
}

/// Computes the mean and the variance of each channel of a batch `[B, C, …]` with values.
pub(crate) fn moments(x: &Tensor) -> Result<[Tensor; 2]> {
    let sizes = Channels::of(x.shape())?;
    let (blocks, channels) = (sizes.blocks(), sizes.channels);
    let moments = on_gpu([x], |[x]| {
        let alloc = |n| alloc(x.gpu(), n, DType::F64);
        let launch =
            |kernel| Launch::new(x.gpu(), Source::BatchNorm, kernel, x.dtype()).sizes(sizes);
        let (mut means, mut squares) = (alloc(blocks)?, alloc(blocks)?);
        let of_parts = launch("moments_of_parts").images([x], sizes);
        let of_parts = of_parts.result(DType::F64, &mut means, blocks);
        let of_parts = of_parts.result(DType::F64, &mut squares, blocks);
        // SAFETY: `moments_of_parts(IMAGES, x, mean, squares)` visits each vector of the images. The block of a part writes
        // one number to each result.
        unsafe { of_parts.run(blocks) }?;
        if sizes.parts() == 1 {
            // A single part is the whole channel.
            return Ok([means, squares]);
        }
        let (mut mean, mut variance) = (alloc(channels)?, alloc(channels)?);
        let moments = [&means, &squares].map(|of| Operand::whole(of, blocks));
        let merged = launch("merged_moments").doubles(moments, blocks);
        let merged = merged.result(DType::F64, &mut mean, channels);
        let merged = merged.result(DType::F64, &mut variance, channels);
        // SAFETY: `merged_moments(IMAGES, means, squares, mean, variance)` reads [parts, channels] numbers of both, and the
        // block of a channel writes one number to each result.
        unsafe { merged.run(channels) }?;
        Ok([mean, variance])
    })?;
    Ok(moments.map(|values| tensor(values, channels)))
}

/// Converts statistics or sums to f64, contiguous.
fn in_f64<const N: usize>(tensors: [&Tensor; N]) -> Result<[Tensor; N]> {
    let mut converted = tensors.map(Tensor::detach);
    for tensor in &mut converted {
        *tensor = tensor.to_dtype(DType::F64)?.contiguous()?;
    }
    Ok(converted)
}

/// Normalises images by the mean and the variance of each channel.
pub(crate) fn normalise(
    [x, weight, bias]: [&Tensor; 3],
    moments: [&Tensor; 2],
    epsilon: f64,
    relu: bool,
) -> Result<Storage> {
    let (sizes, wide) = (Channels::of(x.shape())?, computed_in(x.dtype()));
    let [mean, variance] = &in_f64(moments)?;
    let tensors = [x, weight, bias, mean, variance];
    let (channels, n) = (sizes.channels, (sizes.elements(), sizes.blocks()));
    // SAFETY: `normalise(IMAGES, relu, epsilon, x, weight, bias, mean, variance, y)` visits each vector of the images, and
    // reads the numbers of its channel.
    unsafe {
        Source::BatchNorm.compute("normalise", tensors, n, |launch, of| {
            let [x, weight, bias, mean, variance] = of;
            let launch = launch.sizes(sizes).flag(relu).number(epsilon).images([x], sizes);
            let launch = launch.memory_as(wide, weight, channels).memory_as(wide, bias, channels);
            launch.doubles([mean, variance], channels)
        })
    }
}

/// Computes Σ dy and Σ dy·x̂ of each channel, `[2, C]`: in f64, and rounded to the type of the parameters. The images are the
/// input, the output, which only a batch norm with a relu reads, and its gradient.
pub(crate) fn gradient_sums(
    [x, y, grad]: [&Tensor; 3],
    moments: [&Tensor; 2],
    epsilon: f64,
    relu: bool,
) -> Result<[Tensor; 2]> {
    let (sizes, wide) = (Channels::of(x.shape())?, computed_in(x.dtype()));
    let [mean, variance] = &in_f64(moments)?;
    let tensors = [x, y, grad, mean, variance];
    let channels = sizes.channels;
    let sums = on_gpu(tensors, |[x, y, grad, mean, variance]| {
        let mut sums = PartialSums::alloc(x.gpu(), sizes.parts(), 2 * channels, wide)?;
        let kernel = "gradient_sums_of_parts";
        let launch = Launch::new(x.gpu(), Source::BatchNorm, kernel, x.dtype());
        let launch = launch.sizes(sizes).flag(relu).number(epsilon);
        let launch = launch.images([x, y, grad], sizes).doubles([mean, variance], channels);
        // SAFETY: `gradient_sums_of_parts(IMAGES, relu, epsilon, x, y, grad, mean, variance, sums, rounded)` visits each
        // vector of the images. The block of a part writes two sums, and `rounded` has the type `Real`, which is `wide`.
        unsafe { launch.sums(&mut sums).run(sizes.blocks()) }?;
        sums.totals()
    })?;
    Ok(sums.map(|sums| tensor(sums, (2, channels))))
}

/// Computes the input's gradient from the images of [`gradient_sums`], the weight, mean and variance, and the sums, `[2, C]`.
/// `count` is the number of values of the statistics, or `None` when the statistics are constants.
pub(crate) fn input_gradient(
    [x, y, grad]: [&Tensor; 3],
    weight: &Tensor,
    moments_and_sums: [&Tensor; 3],
    count: Option<usize>,
    epsilon: f64,
    relu: bool,
) -> Result<Tensor> {
    let (sizes, wide) = (Channels::of(x.shape())?, computed_in(x.dtype()));
    let (channels, share) = (sizes.channels, count.map_or(0.0, |count| 1.0 / count as f64));
    let weight = &weight.detach().to_dtype(wide)?.contiguous()?;
    let [mean, variance, sums] = &in_f64(moments_and_sums)?;
    let tensors = [x, y, grad, weight, mean, variance, sums];
    let n = (sizes.elements(), sizes.blocks());
    // SAFETY: `input_gradient(IMAGES, relu, epsilon, share, x, y, grad, weight, mean, variance, sums, dx)` visits each vector
    // of the images, and reads the numbers of its channel.
    let dx = unsafe {
        Source::BatchNorm.compute("input_gradient", tensors, n, |launch, of| {
            let [x, y, grad, weight, mean, variance, sums] = of;
            let launch = launch.sizes(sizes).flag(relu).number(epsilon).number(share);
            let launch = launch.images([x, y, grad], sizes).memory_as(wide, weight, channels);
            launch.doubles([mean, variance], channels).doubles([sums], 2 * channels)
        })
    };
    Ok(element::tensor(dx?, x.shape()))
}

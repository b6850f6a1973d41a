//! Batch normalisation on the CPU, one block of channels at a time.
//!
//! ```text
//!            channel 0   1   2   3   4   5
//! image 0        ┌───────────┐
//! image 1        │ one block │           memory runs along the rows: in a block each
//! image 2        │ of three  │           image gives one stretch of whole planes
//! image 3        └───────────┘
//! ```
//!
//! One thread computes a block, its images in order, so the bits do not depend on the number of threads. A block usually fits
//! in a core's cache: 64 images of 28×28 pixels are 200 KB. The second of two loops over a block reads from the cache.

use std::ops::Range;

use candle_core::{Result, Storage, Tensor, WithDType};
use rayon::prelude::*;

use super::OutputGradient;
use super::loops::{self, GradientLine, Sums};
use crate::Element;
use crate::kernels::element::{cpu_memory, tensor, with_elements};
use crate::kernels::memory::zeros;
use crate::kernels::simd::vectorised;
use crate::kernels::sums::{Line, Moments, correction, mean_and_squares};
use crate::kernels::windows::Channels;

/// The contiguous elements that a block takes from each image if planes are small: a stretch that is efficient to read.
const STRETCH: usize = 1024;

/// Calls `work` for each block, in parallel: with the block's channels, and with the block's stretch of each image of `out`,
/// which may be empty. Returns the results of all channels, in order.
fn by_block<T: Send, R: Send>(
    &Channels { channels, plane, .. }: &Channels,
    out: &mut [T],
    work: impl Fn(Range<usize>, Vec<&mut [T]>) -> Vec<R> + Sync + Send,
) -> Vec<R> {
    let block = (STRETCH / plane).clamp(1, channels);
    let blocks = (0..channels).step_by(block);
    let blocks = blocks.map(|first| (first..channels.min(first + block), Vec::new()));
    let mut blocks: Vec<(_, Vec<_>)> = blocks.collect();
    for image in out.chunks_exact_mut(channels * plane) {
        for ((_, stretches), stretch) in blocks.iter_mut().zip(image.chunks_mut(block * plane)) {
            stretches.push(stretch);
        }
    }
    let results = blocks.into_par_iter().flat_map_iter(|(channels, out)| {
        vectorised(
            #[inline(always)]
            || work(channels, out),
        )
    });
    results.collect()
}

impl Moments {
    /// Returns the `given` moments of a block's channels, or computes them. Each plane is merged into its channel's sums by
    /// the pairwise formula of Chan, Golub and LeVeque. With `before` earlier planes, and a distance δ from the old mean to
    /// the plane's, the mean moves by δ / (before + 1), and the squares grow by δ² · plane · before / (before + 1).
    #[inline(always)]
    fn of_block<T: Element>(
        sizes: &Channels,
        x: &[T],
        channels: &Range<usize>,
        given: Option<&[Self]>,
    ) -> Vec<Self> {
        if let Some(given) = given {
            return given[channels.clone()].to_vec();
        }
        let mut all = vec![Self { mean: 0.0, variance: 0.0 }; channels.len()];
        for before in 0..sizes.images {
            let share = 1.0 / (before + 1) as f64;
            let spread = sizes.plane as f64 * before as f64 * share;
            for (moments, channel) in all.iter_mut().zip(channels.clone()) {
                let (mean, squares) = mean_and_squares(&x[sizes.plane(before, channel)]);
                let distance = mean - moments.mean;
                moments.mean += distance * share;
                moments.variance += squares + distance * distance * spread;
            }
        }
        for (moments, channel) in all.iter_mut().zip(channels.clone()) {
            moments.variance /= sizes.count() as f64;
            if !moments.variance.is_finite() {
                let planes = (0..sizes.images).flat_map(|image| &x[sizes.plane(image, channel)]);
                *moments = Self::by_definition(planes);
            }
        }
        all
    }
}

/// Computes the moments of each channel of contiguous images.
pub(super) fn moments(x: &Tensor) -> Result<Vec<Moments>> {
    let sizes = &Channels::of(x.shape())?;
    with_elements!("batch_norm", |x| {
        Ok(by_block(
            sizes,
            &mut [(); 0],
            #[inline(always)]
            |channels, _| Moments::of_block(sizes, x, &channels, None),
        ))
    })
}

/// Normalises contiguous images by `given` moments or by their own, and returns the results and the moments.
pub(super) fn normalise(
    [x, weight, bias]: [&Tensor; 3],
    given: Option<&[Moments]>,
    epsilon: f64,
    relu: bool,
) -> Result<(Storage, Vec<Moments>)> {
    let sizes = &Channels::of(x.shape())?;
    with_elements!("batch_norm", |x, weight, bias| {
        let mut y = zeros(x.len());
        let moments = by_block(
            sizes,
            &mut y,
            #[inline(always)]
            |channels, y| {
                let moments = Moments::of_block(sizes, x, &channels, given);
                let lines = moments.iter().zip(channels.clone()).map(|(&moments, channel)| {
                    Line::new(moments, weight[channel], bias[channel], epsilon)
                });
                let lines: Vec<_> = lines.collect();
                for (image, y) in y.into_iter().enumerate() {
                    let planes = y.chunks_exact_mut(sizes.plane).zip(channels.clone());
                    for ((y, channel), line) in planes.zip(&lines) {
                        line.draw(relu, &x[sizes.plane(image, channel)], y);
                    }
                }
                moments
            },
        );
        Ok((cpu_memory(y), moments))
    })
}

impl Sums {
    /// Returns the `given` sums of a block's channels, or computes them.
    #[inline(always)]
    fn of_block<T: Element>(
        sizes: &Channels,
        (images, relu): ([&[T]; 3], bool),
        channels: &Range<usize>,
        (moments, epsilon): (&[Moments], f64),
        given: Option<&[Self]>,
    ) -> Vec<Self> {
        if let Some(given) = given {
            return given[channels.clone()].to_vec();
        }
        let mut all = vec![Self { bias: 0.0, weight: 0.0 }; channels.len()];
        for image in 0..sizes.images {
            for ((sums, moments), channel) in all.iter_mut().zip(moments).zip(channels.clone()) {
                let planes = images.map(|images| &images[sizes.plane(image, channel)]);
                let centre = WithDType::from_f64(moments.mean);
                let [grad, product] = loops::gradient_sums(relu, planes, centre);
                sums.bias += grad;
                sums.weight += product;
            }
        }
        for (sums, moments) in all.iter_mut().zip(moments) {
            // The loops took the distances from the mean rounded to `T`.
            let centre: T = WithDType::from_f64(moments.mean);
            sums.weight += correction(centre, moments.mean, sums.bias);
            sums.weight *= moments.inverse_deviation(epsilon);
        }
        all
    }
}

/// Computes the sums of each channel, unless `given`, and with the layer's `weight` the gradient of the input. `count` is the
/// number of values behind the statistics, or `None` when the statistics are constants.
pub(super) fn gradients(
    dy: &OutputGradient,
    moments: &[Moments],
    epsilon: f64,
    given: Option<&[Sums]>,
    weight: Option<&[f64]>,
    count: Option<usize>,
) -> Result<(Option<Tensor>, Vec<Sums>)> {
    let ([x, y, grad], relu) = (dy.images(), dy.output.is_some());
    let (sizes, shape) = (&Channels::of(x.shape())?, x.shape());
    with_elements!("batch_norm", |x, y, grad| {
        let images = [x, y, grad];
        let mut dx = zeros(weight.map_or(0, |_| x.len()));
        let sums = by_block(
            sizes,
            &mut dx,
            #[inline(always)]
            |channels, dx| {
                let moments = &moments[channels.clone()];
                let of_moments = (moments, epsilon);
                let sums = Sums::of_block(sizes, (images, relu), &channels, of_moments, given);
                let Some(weight) = weight else { return sums };
                let of_channels = weight[channels.clone()].iter().zip(moments).zip(&sums);
                let lines = of_channels.map(|((&weight, &moments), &sums)| {
                    GradientLine::new(moments, sums, weight, count, epsilon)
                });
                let lines: Vec<_> = lines.collect();
                for (image, dx) in dx.into_iter().enumerate() {
                    let planes = dx.chunks_exact_mut(sizes.plane).zip(channels.clone());
                    for ((dx, channel), line) in planes.zip(&lines) {
                        let plane = sizes.plane(image, channel);
                        line.draw(relu, images.map(|images| &images[plane.clone()]), dx);
                    }
                }
                sums
            },
        );
        Ok((weight.map(|_| tensor(cpu_memory(dx), shape)), sums))
    })
}

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
//! One thread computes a block, its images in order, and no sum crosses threads. The bits therefore do not depend on the
//! number of threads. A block usually fits in a core's cache: 64 images of 28×28 pixels are 200 KB. Forward and backward
//! have two loops over a block, and the second loop reads from the cache.

use std::ops::Range;

use candle_core::{Result, Shape, Storage, Tensor, WithDType, bail};
use rayon::prelude::*;

use super::OutputGradient;
use super::loops::{self, GradientLine, Line};
use crate::Element;
use crate::kernels::element::{cpu_memory, for_dtype, lock};
use crate::kernels::memory::zeros;
use crate::kernels::simd::vectorised;

/// The number of contiguous elements that a block takes from each image, if planes are small.
/// Reading a stretch of this length is efficient.
const STRETCH: usize = 1024;

/// The shape `[batch, channels, H, W]` with `plane = H·W`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Planes {
    pub(super) batch: usize,
    pub(super) channels: usize,
    pub(super) plane: usize,
}

impl Planes {
    /// Reads the sizes from the shape of a batch of images. Fails when the shape does not have four
    /// dimensions, or has no elements.
    pub(super) fn new(images: &Shape) -> Result<Self> {
        let &[batch, channels, height, width] = images.dims() else {
            bail!("batch_norm: images [B, C, H, W] expected, got {:?}", images.dims());
        };
        if images.elem_count() == 0 {
            bail!("batch_norm: there are no values in {:?}", images.dims());
        }
        Ok(Self { batch, channels, plane: height * width })
    }

    /// Values in one channel.
    pub(super) fn count(&self) -> usize {
        self.batch * self.plane
    }

    fn block(&self) -> usize {
        (STRETCH / self.plane).clamp(1, self.channels)
    }

    /// Returns the channels of each block, in order.
    pub(super) fn blocks(&self) -> Vec<Range<usize>> {
        (0..self.channels)
            .step_by(self.block())
            .map(|first| first..(first + self.block()).min(self.channels))
            .collect()
    }

    /// Returns a block's elements: for each image, the planes of the block's channels.
    #[inline(always)]
    pub(super) fn of<'a, T>(
        &self,
        x: &'a [T],
        channels: &Range<usize>,
    ) -> impl Iterator<Item = &'a [T]> + use<'a, T> {
        let stretch = channels.start * self.plane..channels.end * self.plane;
        x.chunks_exact(self.channels * self.plane).map(move |image| &image[stretch.clone()])
    }

    /// Returns a block's elements of x, y and grad, image by image.
    #[inline(always)]
    fn of_three<'a, T>(
        &self,
        [x, y, grad]: [&'a [T]; 3],
        channels: &Range<usize>,
    ) -> impl Iterator<Item = [&'a [T]; 3]> + use<'a, T> {
        let (x, y) = (self.of(x, channels), self.of(y, channels));
        x.zip(y).zip(self.of(grad, channels)).map(|((x, y), grad)| [x, y, grad])
    }

    /// Splits `x` into the mutable elements of all blocks: by block, and within a block by image.
    pub(super) fn split_mut<'a, T>(&self, x: &'a mut [T]) -> Vec<Vec<&'a mut [T]>> {
        let mut blocks: Vec<_> =
            self.blocks().iter().map(|_| Vec::with_capacity(self.batch)).collect();
        for image in x.chunks_exact_mut(self.channels * self.plane) {
            let stretches = image.chunks_mut(self.block() * self.plane);
            for (block, stretch) in blocks.iter_mut().zip(stretches) {
                block.push(stretch);
            }
        }
        blocks
    }
}

/// Mean and variance of a channel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moments {
    pub(super) mean: f64,
    pub(super) variance: f64,
}

impl Moments {
    #[inline(always)]
    fn inverse_deviation(self, epsilon: f64) -> f64 {
        1.0 / (self.variance + epsilon).sqrt()
    }

    /// Computes the moments of a block's channels. Each plane is merged into its channel's sums by the pairwise formula of
    /// Chan, Golub and LeVeque. With `before` earlier planes, and a distance δ from the old mean to the plane's, the mean
    /// moves by δ / (before + 1), and the squares grow by δ² · plane · before / (before + 1).
    #[inline(always)]
    fn of_block<T: Element>(planes: &Planes, x: &[T], channels: &Range<usize>) -> Vec<Self> {
        let mut all = vec![Self { mean: 0.0, variance: 0.0 }; channels.len()];
        for (before, image) in planes.of(x, channels).enumerate() {
            let share = 1.0 / (before + 1) as f64;
            let spread = planes.plane as f64 * before as f64 * share;
            for (moments, plane) in all.iter_mut().zip(image.chunks_exact(planes.plane)) {
                let (plane_mean, squares) = loops::mean_and_squares(plane);
                let distance = plane_mean - moments.mean;
                moments.mean += distance * share;
                moments.variance += squares + distance * distance * spread;
            }
        }
        for (channel, moments) in channels.clone().zip(&mut all) {
            moments.variance /= planes.count() as f64;
            if !moments.variance.is_finite() {
                *moments = Self::by_definition(planes, x, channel);
            }
        }
        all
    }

    /// Computes mean and variance of a channel, value by value in f64. In f32 the squares of [`loops::mean_and_squares`]
    /// overflow for numbers above 1e19, and an infinite variance would turn the whole normalised channel into zeros.
    #[cold]
    fn by_definition<T: Element>(planes: &Planes, x: &[T], channel: usize) -> Self {
        let values =
            || planes.of(x, &(channel..channel + 1)).flatten().map(|&x| WithDType::to_f64(x));
        let count = planes.count() as f64;
        let mean = values().sum::<f64>() / count;
        let squares = values().map(|x| (x - mean) * (x - mean)).sum::<f64>();
        Self { mean, variance: squares / count }
    }
}

/// Computes the moments of each channel of contiguous images.
pub(super) fn moments(x: &Tensor) -> Result<Vec<Moments>> {
    let planes = Planes::new(x.shape())?;
    for_dtype!(x.dtype(), "batch_norm", T => {
        let locked = lock(&[x]);
        let [x] = locked.elements::<T, 1>()?;
        let moments = planes.blocks().into_par_iter().flat_map_iter(|channels| {
            vectorised(#[inline(always)] || Moments::of_block(&planes, x, &channels))
        });
        Ok(moments.collect())
    })
}

/// Normalises images by `given` moments or by the batch's, and returns the images and the moments.
/// The tensors are images, weight and bias, all contiguous.
pub(super) fn normalise(
    [x, weight, bias]: [&Tensor; 3],
    given: Option<&[Moments]>,
    epsilon: f64,
    relu: bool,
) -> Result<(Storage, Vec<Moments>)> {
    let planes = Planes::new(x.shape())?;
    for_dtype!(x.dtype(), "batch_norm", T => {
        let locked = lock(&[x, weight, bias]);
        let [x, weight, bias] = locked.elements::<T, 3>()?;
        let mut y = zeros(x.len());
        let blocks = planes.blocks().into_par_iter().zip(planes.split_mut(&mut y));
        let moments = blocks.flat_map_iter(|(channels, y)| {
            vectorised(
                #[inline(always)]
                || {
                    let moments = match given {
                        Some(given) => given[channels.clone()].to_vec(),
                        None => Moments::of_block(&planes, x, &channels),
                    };
                    let parameters = (&weight[channels.clone()], &bias[channels.clone()]);
                    let lines = lines(&moments, parameters, epsilon);
                    for (x, y) in planes.of(x, &channels).zip(y) {
                        let of_channels =
                            x.chunks_exact(planes.plane).zip(y.chunks_exact_mut(planes.plane));
                        for ((x, y), line) in of_channels.zip(&lines) {
                            line.draw(relu, x, y);
                        }
                    }
                    moments
                },
            )
        });
        let moments = moments.collect();
        Ok((cpu_memory(y), moments))
    })
}

/// Builds the loop of each channel of a block.
fn lines<T: Element>(
    moments: &[Moments],
    (weight, bias): (&[T], &[T]),
    epsilon: f64,
) -> Vec<Line<T>> {
    let lines = moments.iter().zip(weight).zip(bias).map(|((moments, &weight), &bias)| {
        let scale = WithDType::to_f64(weight) * moments.inverse_deviation(epsilon);
        Line::new(moments.mean, scale, WithDType::to_f64(bias))
    });
    lines.collect()
}

/// Σ dy and Σ dy·x̂ of a channel: the gradients of its bias and of its weight.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sums {
    pub(super) bias: f64,
    pub(super) weight: f64,
}

impl Sums {
    /// Computes the sums of a block's channels.
    #[inline(always)]
    fn of_block<T: Element>(
        planes: &Planes,
        (pixels, relu): ([&[T]; 3], bool),
        channels: &Range<usize>,
        moments: &[Moments],
        epsilon: f64,
    ) -> Vec<Self> {
        let mut all = vec![Self { bias: 0.0, weight: 0.0 }; channels.len()];
        for of_image in planes.of_three(pixels, channels) {
            for (channel, (sums, moments)) in all.iter_mut().zip(moments).enumerate() {
                let plane = channel * planes.plane..(channel + 1) * planes.plane;
                let plane = of_image.map(|operand| &operand[plane.clone()]);
                let centre = loops::centre::<T>(moments.mean);
                let (grad, product) = loops::gradient_sums(relu, plane, centre);
                sums.bias += grad;
                sums.weight += product;
            }
        }
        for (sums, moments) in all.iter_mut().zip(moments) {
            // The loops took the distances from the mean rounded to `T`.
            let centre = loops::centre::<T>(moments.mean);
            sums.weight += loops::correction(centre, moments.mean, sums.bias);
            sums.weight *= moments.inverse_deviation(epsilon);
        }
        all
    }
}

/// The factors of the input's gradient that belong to the layer.
#[derive(Clone, Copy)]
pub(super) struct Factors<'a> {
    pub(super) weight: &'a [f64],
    /// The number of values behind the statistics, or `None` when the statistics are constants.
    pub(super) count: Option<usize>,
}

impl Factors<'_> {
    /// Builds the gradient loop of each channel of a block.
    fn lines<T: Element>(
        self,
        channels: &Range<usize>,
        moments: &[Moments],
        sums: &[Sums],
        epsilon: f64,
    ) -> Vec<GradientLine<T>> {
        let of_channels = self.weight[channels.clone()].iter().zip(moments).zip(sums);
        let lines = of_channels.map(|((&weight, moments), sums)| {
            let inverse_deviation = moments.inverse_deviation(epsilon);
            let (weight, last) =
                if weight.is_finite() { (weight, None) } else { (1.0, Some(weight)) };
            let slope = weight * inverse_deviation;
            let pull_and_push = self.count.map(|count| {
                let share = slope / count as f64;
                (sums.weight * share * inverse_deviation, sums.bias * share)
            });
            GradientLine::new(moments.mean, slope, pull_and_push, last)
        });
        lines.collect()
    }
}

/// Computes the sums of each channel, unless `given`, and with `factors` the gradient of the input.
pub(super) fn gradients(
    OutputGradient { x, output, grad, .. }: &OutputGradient,
    moments: &[Moments],
    epsilon: f64,
    given: Option<&[Sums]>,
    factors: Option<Factors<'_>>,
) -> Result<(Option<Tensor>, Vec<Sums>)> {
    let planes = Planes::new(x.shape())?;
    for_dtype!(x.dtype(), "batch_norm", T => {
        // Without a relu no loop reads the output, so the gradient serves as a placeholder.
        let locked = lock(&[x, output.as_ref().unwrap_or(grad), grad]);
        let (pixels, relu) = (locked.elements::<T, 3>()?, output.is_some());
        let mut dx = factors.map(|_| zeros(pixels[0].len()));
        let rooms: Vec<Option<_>> = match &mut dx {
            Some(dx) => planes.split_mut(dx).into_iter().map(Some).collect(),
            None => planes.blocks().iter().map(|_| None).collect(),
        };
        let blocks = planes.blocks().into_par_iter().zip(rooms);
        let sums = blocks.flat_map_iter(|(channels, dx)| {
            vectorised(
                #[inline(always)]
                || {
                    let moments = &moments[channels.clone()];
                    let sums = match given {
                        Some(given) => given[channels.clone()].to_vec(),
                        None => Sums::of_block(&planes, (pixels, relu), &channels, moments, epsilon),
                    };
                    if let (Some(factors), Some(dx)) = (factors, dx) {
                        let lines = factors.lines(&channels, moments, &sums, epsilon);
                        for (image, dx) in planes.of_three(pixels, &channels).zip(dx) {
                            let of_channels = dx.chunks_exact_mut(planes.plane).enumerate();
                            for ((channel, dx), line) in of_channels.zip(&lines) {
                                let plane = channel * planes.plane..(channel + 1) * planes.plane;
                                let image = image.map(|operand| &operand[plane.clone()]);
                                line.draw(relu, image, dx);
                            }
                        }
                    }
                    sums
                },
            )
        });
        let sums = sums.collect();
        let dx = dx.map(|dx| Tensor::from_vec(dx, x.shape(), x.device())).transpose()?;
        Ok((dx, sums))
    })
}

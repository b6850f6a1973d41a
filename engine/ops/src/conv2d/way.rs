//! Which way a convolution is computed, chosen by its shape.

use super::direct::{Direct, LARGEST_PATCH};
use super::geometry::Geometry;
use super::gradients::{Gradients, Upstream};
use super::output::Output;
use super::sampled::Sampled;
use super::unfolded::Unfolded;
use super::winograd::Winograd;
use crate::Element;
use crate::lanes::LANES;

/// Channels on either side from which on transforms, which are work for each channel, are paid for by what
/// is saved on each pair of channels.
const ENOUGH_CHANNELS: usize = 8;

/// What a weight costs however few columns it is multiplied with, in columns.
///
/// A transformed weight and its gradient are written and read six times in a step, 24 bytes: 2.4 ns where
/// they come from memory at 10 GB/s. A column's three multiplications and additions take 0.06 ns at
/// 100 GFLOP/s.
const WEIGHT: usize = 40;

/// 3×3 kernels: 4×4 inputs become 2×2 outputs.
type Winograd2<'a> = Winograd<'a, 2, 3, 4>;
/// 3×3 kernels: 6×6 inputs become 4×4 outputs.
type Winograd4<'a> = Winograd<'a, 4, 3, 6>;
/// 5×5 kernels: 7×7 inputs become 3×3 outputs.
type Winograd3<'a> = Winograd<'a, 3, 5, 7>;

/// A way to compute a convolution; a number is that of a tile's rows and columns of outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Direct,
    Winograd2,
    Winograd4,
    Winograd3,
    Sampled,
    Unfolded,
}

impl Way {
    /// The way for a forward pass, and for gradients of weights and bias alone.
    pub(super) fn new(g: &Geometry) -> Self {
        if g.patch() <= LARGEST_PATCH { Self::Direct } else { Self::with_dx(g) }
    }

    /// The way for a backward pass that makes the gradient of the input too.
    ///
    /// Large tiles multiply least, but have more places, each with a weight of its own: where there are few
    /// tiles to share it, smaller ones win.
    pub(super) fn with_dx(g: &Geometry) -> Self {
        let images = g.batch.next_multiple_of(LANES);
        let cost = |places, tiles| places * (images * tiles + WEIGHT);
        let (cost2, cost4, cost3) = (
            cost(Winograd2::PLACES, Winograd2::new(g).tiles()),
            cost(Winograd4::PLACES, Winograd4::new(g).tiles()),
            cost(Winograd3::PLACES, Winograd3::new(g).tiles()),
        );
        // A third is left for the transforms.
        let limit = cost(g.kernel_h * g.kernel_w, g.pixels()) * 2 / 3;
        let enough = g.in_channels.min(g.out_channels) >= ENOUGH_CHANNELS;
        match (g.kernel_h, g.kernel_w, g.stride) {
            (3, 3, 1) if enough && cost4.min(cost2) < limit => {
                if cost4 < cost2 {
                    Self::Winograd4
                } else {
                    Self::Winograd2
                }
            }
            (5, 5, 1) if enough && cost3 < limit => Self::Winograd3,
            _ if Sampled::suits(g) => Self::Sampled,
            _ => Self::Unfolded,
        }
    }

    /// Convolves the batch `x` into `output`.
    pub(super) fn forward<T: Element>(
        self,
        geometry: &Geometry,
        x: &[T],
        weight: &[T],
        output: &mut Output<'_, T>,
    ) {
        match self {
            Self::Direct => Direct::new(geometry).forward(x, weight, output),
            Self::Winograd2 => Winograd2::new(geometry).forward(x, weight, output),
            Self::Winograd4 => Winograd4::new(geometry).forward(x, weight, output),
            Self::Winograd3 => Winograd3::new(geometry).forward(x, weight, output),
            Self::Sampled => Sampled::new(geometry).forward(x, weight, output),
            Self::Unfolded => Unfolded::new(geometry).forward(x, weight, output),
        }
    }

    /// Makes the gradients for the batch `x`.
    pub(super) fn backward<T: Element>(
        self,
        geometry: &Geometry,
        x: &[T],
        weight: &[T],
        upstream: &Upstream<'_, T>,
        gradients: &mut Gradients<T>,
    ) {
        match self {
            Self::Direct => Direct::new(geometry).backward(x, upstream, gradients),
            Self::Winograd2 => Winograd2::new(geometry).backward(x, weight, upstream, gradients),
            Self::Winograd4 => Winograd4::new(geometry).backward(x, weight, upstream, gradients),
            Self::Winograd3 => Winograd3::new(geometry).backward(x, weight, upstream, gradients),
            Self::Sampled => Sampled::new(geometry).backward(x, weight, upstream, gradients),
            Self::Unfolded => Unfolded::new(geometry).backward(x, weight, upstream, gradients),
        }
    }
}

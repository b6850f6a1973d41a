//! Which way a convolution is computed, chosen by its shape.

use super::direct::{Direct, LARGEST_PATCH};
use super::geometry::Geometry;
use super::gradients::{Gradients, Upstream};
use super::output::Output;
use super::unfolded::Unfolded;
use super::winograd::Winograd;
use crate::ops::Element;

/// Channels on either side from which on transforms are a small part of the work.
const ENOUGH_CHANNELS: usize = 8;

/// 3×3 kernels: 6×6 inputs become 4×4 outputs.
type Winograd3<'a> = Winograd<'a, 4, 3, 6>;
/// 5×5 kernels: 7×7 inputs become 3×3 outputs.
type Winograd5<'a> = Winograd<'a, 3, 5, 7>;

/// A way to compute a convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Direct,
    Winograd3,
    Winograd5,
    Unfolded,
}

impl Way {
    /// The way for a forward pass, and for gradients of weights and bias alone.
    pub(super) fn new(g: &Geometry) -> Self {
        if g.patch() <= LARGEST_PATCH { Self::Direct } else { Self::with_dx(g) }
    }

    /// The way for a backward pass that makes the gradient of the input too.
    pub(super) fn with_dx(g: &Geometry) -> Self {
        let enough = g.in_channels.min(g.out_channels) >= ENOUGH_CHANNELS;
        // Tiles that reach beyond the plane are multiplied all the same. Two thirds leave something for
        // the transforms.
        let pays =
            |multiplications: usize| 3 * multiplications < 2 * g.pixels() * g.kernel_h * g.kernel_w;
        match (g.kernel_h, g.kernel_w, g.stride) {
            (3, 3, 1) if enough && pays(Winograd3::multiplications(g)) => Self::Winograd3,
            (5, 5, 1) if enough && pays(Winograd5::multiplications(g)) => Self::Winograd5,
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
            Self::Winograd3 => Winograd3::new(geometry).forward(x, weight, output),
            Self::Winograd5 => Winograd5::new(geometry).forward(x, weight, output),
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
            Self::Winograd3 => {
                Winograd3::new(geometry).backward(x, weight, upstream, gradients);
            }
            Self::Winograd5 => {
                Winograd5::new(geometry).backward(x, weight, upstream, gradients);
            }
            Self::Unfolded => Unfolded::new(geometry).backward(x, weight, upstream, gradients),
        }
    }
}

//! The choice of a convolution's algorithm, by its shape.

use super::direct::LARGEST_PATCH;
use super::geometry::Geometry;
use super::sampled::Sampled;
use super::winograd::Winograd;
use crate::lanes::LANES;

/// The minimum number of input channels and of output channels for Winograd's algorithm. Its
/// transforms cost time per channel, and it saves multiplications per pair of channels.
const ENOUGH_CHANNELS: usize = 8;

/// The fixed cost of a weight, in units of the cost of one column of a product. The fixed cost does
/// not depend on the number of columns.
///
/// A transformed weight and its gradient are written and read six times in a step. These are 24
/// bytes, or 2.4 ns from memory at 10 GB/s. A column's three multiplications and additions take
/// 0.06 ns at 100 GFLOP/s.
const WEIGHT: usize = 40;

/// 3×3 kernels: 4×4 inputs become 2×2 outputs.
pub(super) type Winograd2<'a> = Winograd<'a, 2, 3, 4>;
/// 3×3 kernels: 6×6 inputs become 4×4 outputs.
pub(super) type Winograd4<'a> = Winograd<'a, 4, 3, 6>;
/// 5×5 kernels: 7×7 inputs become 3×3 outputs.
pub(super) type Winograd3<'a> = Winograd<'a, 3, 5, 7>;

/// The algorithms for a convolution. The number in a name is the number of output rows and columns
/// of a tile.
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
    /// Chooses the algorithm for a forward pass, or for a backward pass without the input's
    /// gradient.
    pub(super) fn new(g: &Geometry) -> Self {
        if g.patch() <= LARGEST_PATCH { Self::Direct } else { Self::with_dx(g) }
    }

    /// Chooses the algorithm for a backward pass with the input's gradient.
    ///
    /// Large tiles need the fewest multiplications. They also have more places, and every place has
    /// its own weights. If few tiles share these weights, smaller tiles are faster.
    pub(super) fn with_dx(g: &Geometry) -> Self {
        let images = g.batch.next_multiple_of(LANES);
        let cost = |places, tiles| places * (images * tiles + WEIGHT);
        let (cost2, cost4, cost3) = (
            cost(Winograd2::PLACES, Winograd2::new(g).tiles()),
            cost(Winograd4::PLACES, Winograd4::new(g).tiles()),
            cost(Winograd3::PLACES, Winograd3::new(g).tiles()),
        );
        // The last third of the im2col cost is a reserve for the transforms.
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
}

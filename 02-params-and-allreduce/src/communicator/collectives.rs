//! What an engine does for ranks that have no messages.

use candle_core::Tensor;

use super::Error;

/// The collectives of an engine that moves tensors between all ranks at once, and not between two of them.
///
/// Everything that all ranks do together can be made of these two. What [`collective`](crate::collective) and
/// [`allreduce`](crate::allreduce) make of messages elsewhere, they make of these where there are none.
pub trait Collectives {
    /// The sum of all ranks' tensors, on every rank; it is there when this returns.
    ///
    /// # Errors
    ///
    /// When the engine cannot add this type, or another rank stops or stalls.
    fn sum(&self, tensor: &Tensor) -> Result<Tensor, Error>;

    /// The root's tensor, on every rank, in memory of its own; it is there when this returns.
    ///
    /// # Errors
    ///
    /// When the engine cannot move this type, or another rank stops or stalls.
    fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<Tensor, Error>;
}

//! What ranks do together, beside all-reduce: everything here is made of `send` and `recv`, or, where ranks have no
//! messages, of an engine's [collectives](crate::communicator::Collectives).
//!
//! All ranks call a collective together, in the same order, with tensors of one shape and element type.
//! The results, for three ranks that hold a, b and c, and a sum s = a + b + c cut into s₀ s₁ s₂:
//!
//! ```text
//!                  rank 0     rank 1     rank 2
//! before           a          b          c
//! broadcast from 1 b          b          b
//! reduce-scatter   s₀         s₁         s₂
//! all-gather       a b c      a b c      a b c
//! barrier          nobody goes on before all have arrived
//! ```
//!
//! A reduce-scatter followed by an all-gather of its chunks is an all-reduce: that is the
//! [ring](mod@crate::all_reduce::ring).

pub mod all_gather;
pub mod barrier;
pub mod broadcast;
pub mod chunk;
pub mod reduce_scatter;

pub use all_gather::all_gather;
pub use barrier::barrier;
pub use broadcast::broadcast;
pub use chunk::chunk_range;
pub use reduce_scatter::reduce_scatter;

use crate::communicator::Communicator;

/// The ranks after and before this one when all stand in a ring.
pub(crate) fn neighbours(communicator: &impl Communicator) -> (usize, usize) {
    let (rank, world_size) = (communicator.rank(), communicator.world_size());
    ((rank + 1) % world_size, (rank + world_size - 1) % world_size)
}

//! All-reduce: every rank contributes a tensor, every rank gets the sum.
//!
//! Four ways, and what a rank sends at most, in tensors, when there are n ranks:
//!
//! | algorithm | steps | the busiest rank sends | good for |
//! | --- | --- | --- | --- |
//! | [`mod@one_shot`] | 1 | n − 1 | two ranks; small tensors on a few |
//! | [`mod@naive`] | 2(n − 1) on rank 0 | n − 1 | reading |
//! | [`mod@tree`] | 2⌈log₂ n⌉ | ⌈log₂ n⌉ | small tensors on many ranks |
//! | [`mod@ring`] | 2(n − 1) | 2(n − 1)/n | large tensors |
//!
//! Beside them stand the all-reduces of the engines below, where there are any: NCCL's and MPI's. All of
//! them add in an order that depends on the number of ranks; the sum of [`FixedTree`] does not. [`TreeSum`] makes it of
//! what is there one after the other.
//!
//! Stage 1 adds ([`sum`](fn@ops::sum)): it knows which threads to take, and which kernel.

mod algorithm;
pub mod fixed_tree;
pub mod naive;
pub mod one_shot;
pub mod ring;
mod row;
pub mod tree;
pub mod tree_sum;

use candle_core::Tensor;
use harness::report::trace::COMMUNICATION;
use tracing::info_span;

pub use algorithm::{Algorithm, Ranks};
pub use fixed_tree::FixedTree;
pub use naive::naive;
pub use one_shot::one_shot;
pub use ring::ring;
pub use tree::tree;
pub use tree_sum::TreeSum;

use crate::communicator::{Communicator, Engine, Error};

/// The sum of all ranks' tensors, on every rank.
///
/// All ranks call this together, with the same algorithm and with tensors of one shape and element type.
/// The tensor that went in is left as it was, and the sum has memory of its own. Other ranks may read the
/// tensor that went in, but not after this has returned the sum. Every rank gets the same bits; another
/// algorithm or another number of ranks adds in another order and may round differently.
///
/// Where an engine makes all [`collectives`](Communicator::collectives), it makes this one too, whatever the
/// algorithm.
///
/// Numbers are added in their own element type, as NCCL does: in bf16 and f16 every partial sum is
/// rounded to eight or eleven bits.
///
/// # Errors
///
/// When the tensors differ in shape or type, when another rank stops or stalls, or when the
/// communicator has no such algorithm. After an error others may still read the tensor that went in. (The
/// ring and the engines see numbers in a row: two shapes with equally many elements are one to them.)
pub fn allreduce(
    communicator: &impl Communicator,
    tensor: &Tensor,
    algorithm: Algorithm,
) -> Result<Tensor, Error> {
    let bytes = tensor.elem_count() * tensor.dtype().size_in_bytes();
    let shape = tensor.dims();
    let _span = info_span!(target: COMMUNICATION, "all-reduce", bytes, ?shape).entered();
    let tensor = tensor.detach();
    if let Some(engine) = communicator.collectives() {
        return engine.sum(&tensor);
    }
    match algorithm {
        Algorithm::OneShot => one_shot(communicator, &tensor),
        Algorithm::Naive => naive(communicator, &tensor),
        Algorithm::Tree => tree(communicator, &tensor),
        Algorithm::Ring => ring(communicator, &tensor),
        Algorithm::Nccl => communicator.native_all_reduce(Engine::Nccl, &tensor),
        Algorithm::Mpi => communicator.native_all_reduce(Engine::Mpi, &tensor),
    }
}

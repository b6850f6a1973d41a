//! Chapter 2, `book/src/ch02-all-reduce.md`: all-reduce around a ring.
//!
//! Check your answer: `cargo course check ch02_ring`

use candle_core::Tensor;
use params_and_allreduce::communicator::{Communicator, Error};

/// The sum of all ranks' tensors, made around a ring: reduce-scatter, then all-gather.
///
/// The ranks form a ring. Rank r sends to rank r + 1 only, and the last rank to rank 0. Each rank cuts its tensor, flattened to
/// one row of numbers, into as many chunks as there are ranks. Three ranks with three numbers; a chunk is one number:
///
/// ```text
///                  rank 0       rank 1       rank 2
/// before           1  2  3      10 20 30     100 200 300
/// reduce-scatter   111  ·  ·     ·  222  ·     ·  ·  333     (2 steps)
/// all-gather       111 222 333  111 222 333  111 222 333    (2 steps)
/// ```
///
/// In each step every rank sends one chunk and receives another.
///
/// | name | what | shape |
/// | --- | --- | --- |
/// | `tensor` | the tensor of this rank; all ranks have the same shape and element type | any |
/// | result | the sum over all ranks, in its own memory, the same bits on every rank | the same |
///
/// The check tests the properties of a ring:
///
/// - Any number of elements n on any number of ranks k: k need not divide n, and n may be smaller than k,
///   or 0. Chunks may differ in size, by at most one element, and may be empty. An empty chunk is sent, too.
///   `params_and_allreduce::collectives::chunk_range(n, k, rank)` cuts in this way.
/// - A rank sends 2(k − 1) messages, all of them to the next rank, each as large as a chunk.
/// - The result has its own memory, even with a single rank, and the caller may write to `tensor` after the call. So `send` its
///   chunks: nobody may write again to a tensor that was sent with `send_shared`.
/// - **A send waits for its receiver**: here [`Communicator::send`] returns when the next rank has
///   received the message, as `MPI_Send` does with large messages. If all ranks send first, none ever
///   receives. If all receive first, none ever sends.
///
/// Fails with the error of `send`, `recv` or a sum.
pub fn ring(rank: &impl Communicator, tensor: &Tensor) -> Result<Tensor, Error> {
    // TODO: cut into chunks, pass partial sums around, then pass the finished chunks around.
    todo!("all-reduce around a ring")
}

// The check of this answer. Leave this line as it is.
exercises::check!(ch02_ring, ring, run);

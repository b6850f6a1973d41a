//! Chapter 2, `book/src/ch02-all-reduce.md`: all-reduce around a ring.
//!
//! Check your answer: `cargo course check ch02_ring`

use candle_core::Tensor;
use params_and_allreduce::communicator::{Communicator, Error};

/// The sum of all ranks' tensors, made around a ring: reduce-scatter, then all-gather.
///
/// The ranks stand in a ring. Rank r sends to rank r + 1 only, and the last one to rank 0. Each cuts its
/// tensor, seen as one row of numbers, into as many chunks as there are ranks. Three ranks, three numbers
/// each; a chunk is one number:
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
/// | `tensor` | what this rank brings; all ranks bring the same shape and element type | any |
/// | result | the sum over all ranks, in its own memory, the same bits on every rank | that of `tensor` |
///
/// What makes it a ring, and is checked:
///
/// - Any number of elements n on any number of ranks k: k need not divide n, and n may be smaller than k,
///   or 0. Chunks may differ in size, by at most one element, and may be empty.
/// - A rank sends 2(k − 1) messages, all of them to the next, each as large as a chunk.
/// - The result's memory is its own with a single rank as well, and the caller may write to `tensor` once this has returned:
///   `send` its chunks. A tensor that is sent with `send_shared` is never written to again.
/// - **A send waits for its receiver**: here [`Communicator::send`] returns when the other rank has
///   received the message, as large messages do under MPI. If all ranks send first, none ever
///   receives. If all receive first, none ever sends.
///
/// Fails with what `send`, `recv` and the sums report.
pub fn ring(rank: &impl Communicator, tensor: &Tensor) -> Result<Tensor, Error> {
    // TODO: cut into chunks, pass partial sums around, then pass the finished chunks around.
    todo!("all-reduce around a ring")
}

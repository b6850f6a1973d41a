//! Chapter 2, `book/src/ch02-all-reduce.md`: all-reduce by way of the first rank.
//!
//! Check your answer: `cargo course check ch02_allreduce`

use candle_core::Var;
use params_and_allreduce::communicator::{Communicator, Error};

/// Adds up, over all ranks, each of a list of gradients: gather to rank 0, add there, broadcast back.
///
/// Three ranks, one gradient of one number each:
///
/// ```text
///            rank 0      rank 1   rank 2
/// before     1           2        4
/// gather     1 ← 2       ·        ·
///            3 ← 4       ·        ·
/// broadcast  7 →         7        7
/// ```
///
/// Every rank calls this with its own gradients: as many as the others, with the same shapes in the same
/// order (LeNet's are `[20, 1, 3, 3]`, `[20]`, `[50, 20, 5, 5]`, …). Afterwards each of these *variables*
/// holds the sum over all ranks. The update that comes next holds the same variables, so it is into them
/// that the sum must be written ([`Var::set`]; candle refuses to set a variable to its own memory, which a clone of
/// it or its `as_detached_tensor` has).
///
/// [`Communicator::send`] returns at once; [`Communicator::recv`] waits, and wants to know the shape and
/// element type of what will come. For each gradient, rank 0 sends one message to every other rank, and
/// every other rank one to rank 0. Use `send`: `send_shared` hands out the variable's own memory, and the update writes
/// to that memory.
///
/// Fails with what `send`, `recv` and the sums report.
pub fn allreduce(rank: &impl Communicator, gradients: &mut [Var]) -> Result<(), Error> {
    // TODO: on rank 0 receive, add and send; on every other rank send and receive.
    todo!("all-reduce by way of rank 0")
}

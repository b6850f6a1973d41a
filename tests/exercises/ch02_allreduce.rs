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
/// Every rank calls this function with its own gradients. All ranks have the same number of gradients with the same shapes in
/// the same order, such as LeNet's `[20, 1, 3, 3]`, `[20]`, `[50, 20, 5, 5]`, …. Afterwards each of these *variables* holds the
/// sum over all ranks. The next update uses the same variables, so the sum must be written into them with [`Var::set`]. candle
/// refuses to set a variable to its own memory, and a clone or `as_detached_tensor` of the variable shares this memory.
///
/// [`Communicator::send`] returns at once. [`Communicator::recv`] waits for a message, and takes its shape and element type.
/// For each gradient, rank 0 sends one message to every other rank, and every other rank sends one to rank 0. A single rank sends
/// nothing, and its gradients stay as they are. Use `send` and no collective: `send_shared` shares the variable's memory, and the
/// update writes to that memory.
///
/// Fails with the error of `send`, `recv` or a sum.
pub fn allreduce(rank: &impl Communicator, gradients: &mut [Var]) -> Result<(), Error> {
    // TODO: on rank 0 receive, add and send; on every other rank send and receive.
    todo!("all-reduce by way of rank 0")
}

// The check of this answer. Leave this line as it is.
exercises::check!(ch02_allreduce, allreduce, run);

//! Chapter 7, `book/src/ch07-sharded-state.md`: SGD with momentum whose velocity is in chunks, as in ZeRO 1.
//!
//! Check your answer: `cargo course check ch07_zero1`

use candle_core::Tensor;
use params_and_allreduce::collectives::chunk_range;
use params_and_allreduce::communicator::{Error, SharedCommunicator};

/// Makes a step of SGD with momentum. Each rank holds and updates the velocity of its chunk alone.
///
/// All parameters are one row of n numbers, which every rank has. Rank r of k ranks owns chunk r: the numbers of the range
/// `chunk_range(n, k, r)`. Two ranks, and four parameters:
///
/// ```text
///                         rank 0                 rank 1
/// row                     w0 w1 w2 w3            w0 w1 w2 w3
/// gradient, own share     a0 a1 a2 a3            b0 b1 b2 b3
/// sum, own chunk          a0+b0 a1+b1            a2+b2 a3+b3
/// velocity, own chunk     v0 v1                  v2 v3
/// new row                 u0 u1 u2 u3            u0 u1 u2 u3
/// ```
///
/// With g the sum of all ranks' gradients:
///
/// ```text
/// v ← momentum · v + g
/// w ← w − rate · v
/// ```
///
/// | name | what | shape |
/// | --- | --- | --- |
/// | `row` | the parameters, the same on all ranks | `[n]` |
/// | `gradient` | the gradient on this rank's share of the batch | `[n]` |
/// | `velocity` | this rank's second result of the step before; `None` in the first step, in which all velocities are 0 | `[length of the chunk]` |
/// | `[momentum, rate]` | the constants; nothing else is divided | |
/// | result | the new row, the same bits on all ranks, and the new velocity of this rank's chunk | `[n]`, `[length of the chunk]` |
///
/// - A rank sends at most 2(k − 1) chunks, as in an all-reduce around a ring. If n is no multiple of k, chunks differ by one number.
/// - `comm.reduce_scatter(tensor)` returns the own chunk of the sum, and `comm.all_gather(&chunk, n)` the whole row of n numbers.
/// - A world of one rank is a world, too. A chunk may be empty.
/// - `row`, `gradient` and `velocity` keep their numbers.
///
/// Fails with the error of a collective.
pub fn step(
    comm: &SharedCommunicator,
    row: &Tensor,
    gradient: &Tensor,
    velocity: Option<&Tensor>,
    [momentum, rate]: [f64; 2],
) -> Result<(Tensor, Tensor), Error> {
    // TODO: the sum of the own chunk, the update of the own chunk, and then the whole row again.
    todo!("the new row, and the velocity of the chunk")
}

// The check of this answer. Leave this line as it is.
exercises::check!(ch07_zero1, step, run);

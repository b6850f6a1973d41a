//! Chapter 5, `book/src/ch05-concise-wrapper.md`: buckets travel during the backward pass.
//!
//! Check your answer: `cargo course check ch05_overlap`

use candle_core::Tensor;
use exercises::overlap::Pass;
use params_and_allreduce::communicator::Error;

/// Runs a backward pass, sums its gradients over all ranks in buckets, and returns the sums in the order of the parameters.
///
/// All ranks call this together, each with its own pass and the same `buckets`. A bucket is a list of parameters; each
/// parameter is in one bucket. The functions of the pass, in `tests/exercises/support/overlap.rs`:
///
/// | function | what happens |
/// | --- | --- |
/// | `pass.shapes()` | the shapes of all gradients, by parameter: `&[Shape]` |
/// | `pass.next_gradient()` | the pass computes a gradient: `Some((parameter, gradient))`, or `None` at the end of the pass |
/// | `pass.start(bucket, &row)?` | a second thread begins to sum this row of numbers over all ranks; returns at once |
/// | `pass.wait()?` | waits for the oldest sum that was not waited for, and returns this row |
///
/// As in NCCL, the n-th all-reduce that one rank starts is summed with the n-th of every other rank. If one rank has bucket 0
/// there and another has bucket 1, none of the two ever ends.
///
/// - The ranks get their gradients **in different orders**. No order may cause a deadlock.
/// - As many buckets as possible travel during the backward pass, each as early as the rules allow. No rank waits during
///   its pass.
/// - A pass may end without the gradient of some parameter. This is an error whose text has the parameter's number, such
///   as `Error::Other("parameter 3 has no gradient".to_owned())`. The course's wrapper names the parameter.
/// - A bucket is summed once, as one row of numbers. The sums have the shapes of the gradients (all are f32), and are the
///   same on every rank.
///
/// Fails when the pass ends without the gradient of a parameter, a tensor operation fails, or another rank stops or stalls.
pub fn backward(pass: &Pass<'_>, buckets: &[Vec<usize>]) -> Result<Vec<Tensor>, Error> {
    // TODO: the pass, and the sums of all ranks.
    todo!("buckets that travel during the backward pass")
}

// The check of this answer. Leave this line as it is.
exercises::check!(ch05_overlap, backward, run);

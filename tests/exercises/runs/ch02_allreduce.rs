//! The learner's all-reduce in chapter 2's table and under chapter 4's training.

use candle_core::Var;

use super::data_parallel::{show_speed, show_training};
use super::prelude::*;
pub use crate::checks::ch02_allreduce::Answer;

/// Shows the speed of the sums, and the training with them. Fails with the answer.
pub fn run(allreduce: Answer) -> Run {
    let sums = sums(allreduce);
    show_speed(&sums, Algorithm::Naive)?;
    show_training(&sums, Algorithm::Naive)
}

/// The sums in variables that hold the tensors.
pub(super) fn sums(
    allreduce: Answer,
) -> impl Fn(&Peer, &[Tensor]) -> Result<Vec<Tensor>, CommError> {
    move |rank, tensors| {
        let variables = tensors.iter().map(Var::from_tensor);
        let mut variables: Vec<Var> = variables.collect::<candle_core::Result<_>>()?;
        allreduce(rank, &mut variables)?;
        Ok(variables.iter().map(|variable| variable.as_detached_tensor()).collect())
    }
}

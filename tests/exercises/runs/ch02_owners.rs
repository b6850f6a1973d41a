//! The learner's sums on owners under chapter 4's training.

use super::data_parallel::{show_speed, show_training};
use super::prelude::*;
pub use crate::checks::ch02_owners::Answer;

/// Shows the speed with a part of the tensor for each rank, and the training with owners. Fails with the answer.
pub fn run(answer: Answer) -> Run {
    let sums = sums(answer);
    let in_parts = |rank: &Peer, tensors: &[Tensor]| {
        let parts = tensors[0].chunk(rank.world_size(), 0)?;
        Ok(vec![Tensor::cat(&sums(rank, &parts)?, 0)?])
    };
    show_speed(&in_parts, Algorithm::Naive)?;
    show_training(&sums, Algorithm::Naive)
}

/// The sums on owners, which the answer chooses.
pub(super) fn sums(answer: Answer) -> impl Fn(&Peer, &[Tensor]) -> Result<Vec<Tensor>, CommError> {
    move |rank, tensors| {
        let bytes: Vec<usize> = tensors.iter().map(ops::size_in_bytes).collect();
        (answer.allreduce)(rank, tensors, &(answer.owners)(&bytes, rank.world_size()))
    }
}

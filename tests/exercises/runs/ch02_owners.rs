//! The learner's sums on owners under chapter 4's training.

use std::error::Error;

use candle_core::Tensor;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{self, Communicator as _};

use super::Peer;
use super::data_parallel::{show_speed, show_training};

/// The two functions of an answer.
#[derive(Clone, Copy)]
pub struct Answer {
    /// The sizes of the tensors in bytes and the number of ranks; the owner of each tensor.
    pub owners: fn(&[usize], usize) -> Vec<usize>,
    /// A rank, its tensors and their owners; the sums over all ranks.
    pub allreduce: fn(&Peer, &[Tensor], &[usize]) -> Result<Vec<Tensor>, communicator::Error>,
}

/// Shows the speed with a part of the tensor for each rank, and the training with owners. Fails when the answer does.
pub fn run(answer: Answer) -> Result<(), Box<dyn Error>> {
    let sums = sums(answer);
    let in_parts = |rank: &Peer, tensors: &[Tensor]| {
        let parts = tensors[0].chunk(rank.world_size(), 0)?;
        Ok(vec![Tensor::cat(&sums(rank, &parts)?, 0)?])
    };
    show_speed(&in_parts, Algorithm::Naive)?;
    show_training(&sums, Algorithm::Naive)
}

/// The sums on owners, which the answer chooses.
pub(super) fn sums(
    answer: Answer,
) -> impl Fn(&Peer, &[Tensor]) -> Result<Vec<Tensor>, communicator::Error> {
    move |rank, tensors| {
        let bytes: Vec<usize> = tensors.iter().map(ops::size_in_bytes).collect();
        (answer.allreduce)(rank, tensors, &(answer.owners)(&bytes, rank.world_size()))
    }
}

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

/// The tensors that the table's tensor is cut into: a single tensor would have a single owner.
const TENSORS: usize = 8;

/// Shows the speed of the sums of eight tensors, and the training with owners. Fails when the answer does.
pub fn run(answer: Answer) -> Result<(), Box<dyn Error>> {
    let sums = sums(answer);
    let sum = |rank: &Peer, tensors: &[Tensor]| {
        let sums = sums(rank, &tensors[0].flatten_all()?.chunk(TENSORS, 0)?)?;
        Ok(vec![Tensor::cat(&sums, 0)?.reshape(tensors[0].shape())?])
    };
    show_speed(&sum, Algorithm::Naive)?;
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

//! The learner's one all-reduce for all gradients, under chapter 4's training.

use std::error::Error;

use candle_core::Tensor;
use params_and_allreduce::{Algorithm, communicator};

use super::Peer;
use super::data_parallel::show_training;

/// A rank, its tensors and the algorithm; the sums over all ranks.
pub type Answer = fn(&Peer, &[Tensor], Algorithm) -> Result<Vec<Tensor>, communicator::Error>;

/// Shows what one all-reduce is worth beside one for each gradient. Fails when the answer does.
pub fn run(fused: Answer) -> Result<(), Box<dyn Error>> {
    let algorithm = Algorithm::default();
    show_training(&|rank: &Peer, tensors: &[Tensor]| fused(rank, tensors, algorithm), algorithm)
}

//! A loss that is not a number on one rank is so on all, once it has been added up: whose was it?

use candle_core::Tensor;
use params_and_allreduce::communicator::{Communicator as _, SharedCommunicator};
use params_and_allreduce::{Algorithm, allreduce};
use single_gpu::train::BatchSums;

use crate::Error;

/// Looks for the ranks whose own losses are not finite; all ranks call this together, each with its own, when
/// the sum of all losses is not.
///
/// # Errors
///
/// [`Error::LossOfRank`], the same on all ranks, where some ranks' losses are finite and others' are not. Where
/// all are the same, no rank is to blame, and the training loop says what it knows.
pub(super) fn blame(rank: &SharedCommunicator, own: &[BatchSums]) -> Result<(), Error> {
    let finite = own.iter().all(|sums| sums.loss.is_finite());
    let mut mine = vec![0f32; rank.world_size()];
    mine[rank.rank()] = f32::from(!finite);
    let mine = Tensor::new(mine, rank.device())?;
    let all: Vec<f32> = allreduce(rank, &mine, Algorithm::OneShot)?.to_vec1()?;
    match (all.iter().position(|bad| *bad > 0.0), all.contains(&0.0)) {
        (Some(bad), true) => Err(Error::LossOfRank { rank: rank.number_of(bad) }),
        _ => Ok(()),
    }
}

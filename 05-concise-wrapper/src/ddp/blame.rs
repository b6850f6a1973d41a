//! A loss that is not a number on one rank is so on all, once it has been added up: whose was it?

use candle_core::Tensor;
use harness::records::BatchSums;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::SharedCommunicator;

use crate::Error;

/// Above this mean loss of a sample the weights are running away: who guesses among ten classes loses 2.3.
const RUNNING_AWAY: f64 = 1e3;

/// Looks for the ranks whose own losses are not finite; all ranks call this together, each with its own, when
/// the sum of all losses is not.
///
/// # Errors
///
/// [`Error::LossOfRank`], the same on all ranks, where some ranks' losses are not finite and all others' are ordinary.
/// Elsewhere no rank is to blame: weights that run away do so on all, though on some images a step earlier. Then the
/// training loop says what it knows.
pub(super) fn blame(rank: &SharedCommunicator, own: &[BatchSums]) -> Result<(), Error> {
    let loss: f64 = own.iter().map(|sums| sums.loss).sum();
    let samples: u64 = own.iter().map(|sums| sums.samples).sum();
    let finite = loss.is_finite();
    let running_away = finite && loss.abs() > RUNNING_AWAY * samples as f64;
    // For each rank, whether its loss is not finite; behind them, how many are running away.
    let ranks = rank.world_size();
    let mut mine = vec![0f32; ranks + 1];
    mine[rank.rank()] = f32::from(!finite);
    mine[ranks] = f32::from(running_away);
    let mine = Tensor::new(mine, rank.device())?;
    let all: Vec<f32> = rank.all_reduce(&mine, Algorithm::OneShot)?.to_vec1()?;
    let (not_finite, running_away) = (&all[..ranks], all[ranks]);
    match not_finite.iter().position(|bad| *bad > 0.0) {
        Some(bad) if running_away == 0.0 && not_finite.contains(&0.0) => {
            Err(Error::LossOfRank { rank: rank.world_rank(bad) })
        }
        _ => Ok(()),
    }
}

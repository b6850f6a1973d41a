//! Ranks compare their settings before they train, and their losses if the sum of all losses is not finite.
//!
//! A rank with another learning rate, another seed or another layer trains without an error, and the result is wrong. Or it
//! waits in the middle of a step for a message that no rank sends. So every rank compares its settings with
//! rank 0's before the first step.

use candle_core::{DType, Shape, Tensor};
use harness::records::BatchSums;
use ops::weights_hash::WeightsHash;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::SharedCommunicator;

use crate::weights::{Named, Weights};
use crate::{Error, text};

// ANCHOR: compare
/// Compares named values with rank 0's. All ranks call this together. Fails with [`Error::NotAlike`] on a rank that differs,
/// with the first difference. All ranks without a difference get the error that this rank has stopped.
pub fn compare(rank: &SharedCommunicator, mine: &[(String, String)]) -> Result<(), Error> {
    const NOTHING: &str = "nothing of the kind";
    let first: Vec<(String, String)> = text::value_of_rank_0(&**rank, &mine.to_vec())?;
    let differs = |what: &str, here: &str, there: &str| Error::NotAlike {
        rank: rank.world_rank(rank.rank()),
        first: rank.world_rank(0),
        what: what.to_owned(),
        here: here.to_owned(),
        there: there.to_owned(),
    };
    let (mut here, mut there) = (mine.iter(), first.iter());
    loop {
        match (here.next(), there.next()) {
            (None, None) => break,
            (here, there) if here == there => {}
            (Some((what, here)), Some((other, there))) if what == other => {
                return Err(differs(what, here, there));
            }
            (Some((what, _)), Some((other, _))) => {
                return Err(differs("something else:", what, other));
            }
            (Some((what, here)), None) => return Err(differs(what, here, NOTHING)),
            (None, Some((what, there))) => return Err(differs(what, NOTHING, there)),
        }
    }
    // No rank goes on before all ranks agree.
    Ok(rank.barrier()?)
}
// ANCHOR_END: compare

// ANCHOR: structure
/// Compares the structure of networks: the precision of their layers, then names, shapes and element types of their tensors,
/// in order. All ranks call this together.
pub fn structure(rank: &SharedCommunicator, weights: &Weights) -> Result<(), Error> {
    let entry = |Named { name, tensor }: &Named| of_tensor(name, tensor.dtype(), tensor.shape());
    // Weights in f32 do not show in which type the layers compute.
    let precision = ("precision".to_owned(), weights.precision.to_string());
    compare(rank, &std::iter::once(precision).chain(weights.iter().map(entry)).collect::<Vec<_>>())
}

/// Returns the entry of a tensor for [`compare`].
pub fn of_tensor(name: &str, dtype: DType, shape: &Shape) -> (String, String) {
    (format!("tensor {name}"), format!("{dtype:?} {:?}", shape.dims()))
}

/// Whether all ranks have the same parameters. If not, each rank holds a part of the model. All ranks call this together.
/// Fails when another rank stops or stalls.
pub(crate) fn are_replicas(rank: &SharedCommunicator, weights: &Weights) -> Result<bool, Error> {
    let all = weights.snapshot()?;
    let mine = format!("{:?}", WeightsHash::new(&all[..weights.parameters.len()])?);
    let differs = text::value_of_rank_0(&**rank, &mine)? != mine;
    let differs = Tensor::new(&[f32::from(differs)], rank.device())?;
    let differ = rank.all_reduce(&differs, Algorithm::OneShot)?.to_vec1::<f32>()?;
    Ok(differ == [0.0])
}
// ANCHOR_END: structure

// ANCHOR: check_loss
/// If the sum of all losses is not finite, finds the rank that is the cause. All ranks call this together, each with the sums of
/// its shards. Fails with [`Error::LossOfRank`] on all ranks, if some ranks' losses are not finite and all remaining losses are
/// ordinary. If losses are large, the weights of all ranks run away, and the training loop reports that.
pub(super) fn check_loss(
    rank: &SharedCommunicator,
    own: &[BatchSums],
    loss_of_all: f64,
) -> Result<(), Error> {
    /// Above this mean loss of a sample the weights run away. A guess among ten classes has a loss of 2.3.
    const RUNNING_AWAY: f64 = 1e3;
    if loss_of_all.is_finite() {
        return Ok(());
    }
    let loss: f64 = own.iter().map(|sums| sums.loss).sum();
    let samples: u64 = own.iter().map(|sums| sums.samples).sum();
    // For each rank whether its loss is not finite, then the number of ranks with weights that run away.
    let ranks = rank.world_size();
    let mut mine = vec![0f32; ranks + 1];
    mine[rank.rank()] = f32::from(!loss.is_finite());
    mine[ranks] = f32::from(loss.is_finite() && loss.abs() > RUNNING_AWAY * samples as f64);
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
// ANCHOR_END: check_loss

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use devices::DevicePlan;
    use params_and_allreduce::communicator::Group;
    use params_and_allreduce::thread::{DEFAULT_TIMEOUT, run_ranks};

    use params_and_allreduce::communicator::Communicator as _;

    use super::*;

    #[test]
    fn values_may_have_any_letters() {
        let plan = DevicePlan::slices(2).unwrap();
        let same = run_ranks(&plan, DEFAULT_TIMEOUT, |rank| {
            let data = "two\nlines, \u{1f} and \"quotes\"".to_owned();
            let line: SharedCommunicator = Arc::new(rank.clone());
            compare(&line, &[("data".to_owned(), data)])
        });
        same.unwrap();
    }

    #[test]
    fn some_of_the_ranks_are_named_as_all_know_them() {
        let plan = DevicePlan::slices(3).unwrap();
        let failure = run_ranks(&plan, DEFAULT_TIMEOUT, |rank| match rank.rank() {
            0 => Ok(()),
            number => {
                let pair: SharedCommunicator =
                    Arc::new(Group::new(Arc::new(rank.clone()), vec![1, 2])?);
                compare(&pair, &[("seed".to_owned(), number.to_string())])
            }
        });
        let told = failure.unwrap_err().to_string();
        assert!(told.contains("rank 2 has seed 2, rank 1 has 1: start all ranks alike"), "{told}");
    }
}

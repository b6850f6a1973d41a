//! Ranks compare their settings before they train, and their losses if the sum of all losses is not finite.

use candle_core::Tensor;
use harness::records::BatchSums;
use itertools::EitherOrBoth::{Both, Left, Right};
use itertools::Itertools as _;
use params_and_allreduce::communicator::SharedCommunicator;

use crate::weights::{Named, Weights, is_buffer};
use crate::{Error, text};

// ANCHOR: compare
/// Compares named values with rank 0's. All ranks call this together. Fails with [`Error::NotAlike`] on a rank that differs,
/// with the first difference. All ranks without a difference get the error that this rank has stopped.
pub fn compare(rank: &SharedCommunicator, mine: &[(String, String)]) -> Result<(), Error> {
    let first: Vec<(String, String)> = text::value_of_rank_0(&**rank, &mine.to_vec())?;
    let mut pairs = mine.iter().zip_longest(&first);
    let Some(pair) = pairs.find(|pair| pair.as_ref().both().is_none_or(|(a, b)| a != b)) else {
        // No rank goes on before all ranks agree.
        return Ok(rank.barrier()?);
    };
    let nothing = "nothing of the kind";
    let (what, here, there) = match pair {
        Both((what, here), (other, there)) if what == other => (&**what, &**here, &**there),
        Both((what, _), (other, _)) => ("something else:", &**what, &**other),
        Left((what, here)) => (&**what, &**here, nothing),
        Right((what, there)) => (&**what, nothing, &**there),
    };
    let (rank, first) = (rank.world_rank(rank.rank()), rank.world_rank(0));
    Err(Error::NotAlike(format!("rank {rank} has {what} {here}, rank {first} has {there}")))
}

/// Compares the structure of networks: the precision of their layers, then names, shapes and element types of their tensors,
/// in order. All ranks call this together.
pub fn structure(rank: &SharedCommunicator, weights: &Weights) -> Result<(), Error> {
    let entry = |Named { name, tensor }: &Named| {
        (format!("tensor {name}"), format!("{:?} {:?}", tensor.dtype(), tensor.dims()))
    };
    // Weights in f32 do not show in which type the layers compute.
    let precision = ("precision".to_owned(), weights.precision.to_string());
    let frozen = weights.buffers.iter().map(|named| &named.name).filter(|name| !is_buffer(name));
    let frozen = Some(frozen.format(", ").to_string()).filter(|names| !names.is_empty());
    let frozen = frozen.unwrap_or_else(|| "none".to_owned());
    let settings = [precision, ("frozen parameters".to_owned(), frozen)].into_iter();
    compare(rank, &settings.chain(weights.iter().map(entry)).collect::<Vec<_>>())
}
// ANCHOR_END: compare

// ANCHOR: check_loss
/// If the sum of all losses is not finite, finds the rank that is the cause. All ranks call this together, each with the sums of
/// its shards. Fails with [`Error::LossOfRank`] on all ranks, if some ranks' losses are not finite and all remaining losses are
/// ordinary. If not, the weights of all ranks run away, and the training loop reports that.
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
    let mean = Tensor::new(&[loss / samples.max(1) as f64], rank.device())?;
    let means = rank.all_gather(&mean, rank.world_size())?.to_vec1::<f64>()?;
    let mut finite = means.iter().filter(|mean| mean.is_finite()).peekable();
    let some_are_ordinary =
        finite.peek().is_some() && finite.all(|mean| mean.abs() <= RUNNING_AWAY);
    match means.iter().position(|mean| !mean.is_finite()).filter(|_| some_are_ordinary) {
        Some(bad) => Err(Error::LossOfRank(rank.world_rank(bad))),
        None => Ok(()),
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

    #[test]
    fn a_rank_is_the_cause_of_a_loss_only_if_all_other_losses_are_ordinary() {
        let plan = DevicePlan::slices(2).unwrap();
        let cause = |losses: [f64; 2]| {
            let checked = run_ranks(&plan, DEFAULT_TIMEOUT, |rank| {
                let loss = losses[rank.rank()];
                let own = BatchSums { loss, samples: 1, ..BatchSums::default() };
                check_loss(&rank.into(), &[own], losses.iter().sum())
            });
            checked.err().map(|failure| failure.to_string())
        };
        // The last two are of weights that run away.
        for losses in [[1.0, 2.0], [f64::NAN, f64::INFINITY], [f64::NAN, 1e4]] {
            assert_eq!(cause(losses), None, "{losses:?}");
        }
        let told = cause([f64::NAN, 2.0]).unwrap();
        assert!(told.contains("the loss of rank 0's images is not finite"), "{told}");
    }
}

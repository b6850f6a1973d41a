//! Compares the weights of the replicas, after each epoch and at the end of a run.

use std::fmt::Display;

use harness::report::trace::COMMUNICATION;
use model_state::parameters::Snapshot;
use model_state::weights_hash::WeightsHash;
use params_and_allreduce::communicator::{Communicator, Error};
use tracing::info_span;

// ANCHOR: check
/// A replica with other weights than replica 0.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "replica {replica} holds weights {found}, replica 0 holds {expected}: they started with equal weights, so at \
     least one update differed"
)]
pub struct Differs {
    /// The first replica that differs, counted from 0.
    pub replica: usize,
    /// The hash of its weights.
    pub found: String,
    /// The hash of replica 0's weights.
    pub expected: String,
}

/// Gathers the hashes of all ranks' weights on every rank, in rank order.
///
/// All ranks call this together. Fails when a tensor cannot be hashed, or communication fails.
pub fn hashes(
    rank: &(impl Communicator + ?Sized),
    weights: &Snapshot,
) -> Result<Vec<WeightsHash>, Error> {
    let _span = info_span!(target: COMMUNICATION, "replica check").entered();
    let mine = WeightsHash::new(weights)?.to_tensor(rank.device())?;
    let (bytes, world_size) = (mine.elem_count(), rank.world_size());
    let all = rank.all_gather(&mine, bytes * world_size)?;
    let of = |index: usize| WeightsHash::from_tensor(&all.narrow(0, index * bytes, bytes)?);
    Ok((0..world_size).map(of).collect::<Result<_, _>>()?)
}

/// Checks that all replicas have the same hash. Fails when a replica has another hash than replica 0: the error names the
/// first.
pub fn check<H: Display + PartialEq>(hashes: &[H]) -> Result<(), Differs> {
    let Some(expected) = hashes.first() else { return Ok(()) };
    match hashes.iter().enumerate().find(|(_, hash)| *hash != expected) {
        Some((replica, found)) => {
            Err(Differs { replica, found: found.to_string(), expected: expected.to_string() })
        }
        None => Ok(()),
    }
}

/// Gathers the hashes, and checks them on rank 0. All ranks call this together.
///
/// With a world size of 1, this function does not call `snapshot`. Fails on rank 0 when a replica differs: the error names
/// the first. Fails on all ranks when [`hashes`] or the snapshot fails.
pub fn compare<E: From<Error> + From<Differs>>(
    rank: &(impl Communicator + ?Sized),
    snapshot: impl FnOnce() -> candle_core::Result<Snapshot>,
) -> Result<(), E> {
    if rank.world_size() > 1 {
        let hashes = hashes(rank, &snapshot().map_err(Error::from)?)?;
        if rank.rank() == 0 {
            check(&hashes)?;
        }
    }
    Ok(())
}
// ANCHOR_END: check

/// Says in words whether the replicas agree, as in `2 replicas ended with the same weights`.
pub fn verdict<H: Display + PartialEq>(hashes: &[H]) -> String {
    let weights = if check(hashes).is_ok() { "the same" } else { "DIFFERENT" };
    format!("{} replicas ended with {weights} weights", hashes.len())
}

#[cfg(test)]
mod tests {
    use candle_core::Tensor;
    use devices::DevicePlan;
    use params_and_allreduce::thread::{DEFAULT_TIMEOUT, run_ranks};

    use super::*;

    /// Returns the result of `hashes` on each of three ranks. Each rank has one weight.
    fn gathered(weights: [f32; 3]) -> Vec<Vec<WeightsHash>> {
        let plan = DevicePlan::slices(3).unwrap();
        run_ranks(&plan, DEFAULT_TIMEOUT, |rank| {
            let weight = Tensor::new(weights[rank.rank()], rank.device())?;
            hashes(rank, &vec![("weight".to_owned(), weight)])
        })
        .unwrap()
    }

    #[test]
    fn replicas_that_differ_are_found() {
        let same = gathered([1.0; 3]);
        assert_eq!(check(&same[0]), Ok(()));
        assert_eq!(verdict(&same[0]), "3 replicas ended with the same weights");
        assert!(same[1] == same[0] && same[2] == same[0]);

        let other = f32::from_bits(1.0f32.to_bits() + 1);
        for (weights, replica) in
            [([1.0, 1.0, other], 2), ([other, 1.0, 1.0], 1), ([1.0, other, 1.0], 1)]
        {
            let hashes = &gathered(weights)[0];
            let differs = check(hashes).unwrap_err();
            assert_eq!(
                (differs.replica, differs.found),
                (replica, hashes[replica].to_string()),
                "{weights:?}"
            );
            assert_eq!(differs.expected, hashes[0].to_string());
            assert_eq!(verdict(hashes), "3 replicas ended with DIFFERENT weights", "{weights:?}");
        }
    }
}

//! Whether replicas are still one model: after each epoch, and when a run ends.

use std::fmt::Display;

use harness::report::trace::COMMUNICATION;
use ops::parameters::Snapshot;
use ops::weights_hash::WeightsHash;
use params_and_allreduce::communicator::{Communicator, Error};
use tracing::info_span;

/// A replica whose weights are not those of the first.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "replica {replica} holds weights {found}, replica 0 holds {expected}: they began alike, so that some update \
     was not the same"
)]
pub struct Differs {
    /// The first of them, counted from 0.
    pub replica: usize,
    /// The hash of its weights.
    pub found: String,
    /// That of the first replica's weights.
    pub expected: String,
}

/// The hashes of all ranks' weights, in rank order, on rank 0, and nothing on the others; all ranks call this
/// together.
///
/// # Errors
///
/// When another rank stops or stalls, or a tensor cannot be hashed.
// ANCHOR: check
pub fn hashes(
    line: &(impl Communicator + ?Sized),
    weights: &Snapshot,
) -> Result<Vec<WeightsHash>, Error> {
    let _span = info_span!(target: COMMUNICATION, "replica check").entered();
    let mine = WeightsHash::new(weights)?.to_tensor(line.device())?;
    let (bytes, world_size) = (mine.elem_count(), line.world_size());
    let all = line.all_gather(&mine, bytes * world_size)?;
    if line.rank() > 0 {
        return Ok(Vec::new());
    }
    let of = |rank: usize| WeightsHash::from_tensor(&all.narrow(0, rank * bytes, bytes)?);
    Ok((0..world_size).map(of).collect::<Result<_, _>>()?)
}

/// Makes sure that all replicas have the same weights, by their hashes.
///
/// # Errors
///
/// The first that has others.
pub fn check<H: Display + PartialEq>(hashes: &[H]) -> Result<(), Differs> {
    let Some(expected) = hashes.first() else { return Ok(()) };
    match hashes.iter().enumerate().find(|(_, hash)| *hash != expected) {
        Some((replica, found)) => {
            Err(Differs { replica, found: found.to_string(), expected: expected.to_string() })
        }
        None => Ok(()),
    }
}
// ANCHOR_END: check

/// Gathers the hashes and checks them; all ranks call this together, and rank 0 judges. A replica by itself has
/// nobody to differ from: its `snapshot` is not taken.
///
/// # Errors
///
/// On rank 0, the first replica that differs; and those of [`hashes`] and of the snapshot.
pub fn compare<E: From<Error> + From<Differs>>(
    line: &(impl Communicator + ?Sized),
    snapshot: impl FnOnce() -> candle_core::Result<Snapshot>,
) -> Result<(), E> {
    if line.world_size() > 1 {
        check(&hashes(line, &snapshot().map_err(Error::from)?)?)?;
    }
    Ok(())
}

/// `2 replicas ended with the same weights`, by their hashes.
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

    /// The hashes on every rank, of which each has one weight.
    fn gathered(weights: [f32; 3]) -> Vec<Vec<WeightsHash>> {
        let plan = DevicePlan::slices(3).unwrap();
        run_ranks(&plan, DEFAULT_TIMEOUT, |rank| {
            let weight = Tensor::new(weights[rank.rank()], rank.device())?;
            hashes(rank, &vec![("weight".to_owned(), weight)])
        })
        .unwrap()
    }

    #[test]
    fn replicas_that_differ_are_told_from_those_that_agree() {
        let same = gathered([1.0; 3]);
        assert_eq!(check(&same[0]), Ok(()));
        assert_eq!(verdict(&same[0]), "3 replicas ended with the same weights");
        // Rank 0 judges.
        assert!(same[1].is_empty() && same[2].is_empty());

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

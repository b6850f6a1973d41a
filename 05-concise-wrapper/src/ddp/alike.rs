//! Ranks that were not started alike are told so before they train.
//!
//! A rank with another learning rate, another seed or a layer more trains without complaint, and what
//! comes out is nobody's model; or it waits for ever, in the middle of a step, for a message that the
//! others never send. So every rank compares what it has with what rank 0 has, first thing.

use candle_core::{DType, Shape};
use params_and_allreduce::communicator::SharedCommunicator;

use crate::weights::{Named, Weights};
use crate::{Error, Precision, text};

/// Compares named values with rank 0's; all ranks call this together.
///
/// # Errors
///
/// [`Error::NotAlike`] on a rank that differs, with the first difference. The others are told that it has
/// stopped.
pub fn compare(rank: &SharedCommunicator, mine: &[(String, String)]) -> Result<(), Error> {
    let entries: Vec<(String, String)> = text::value_of_rank_0(&**rank, &mine.to_vec())?;
    let differs = |what: &str, here: &str, there: &str| Error::NotAlike {
        rank: rank.world_rank(rank.rank()),
        first: rank.world_rank(0),
        what: what.to_owned(),
        here: here.to_owned(),
        there: there.to_owned(),
    };
    for (position, (what, here)) in mine.iter().enumerate() {
        match entries.get(position) {
            Some((their_what, there)) if their_what == what && there == here => {}
            Some((their_what, there)) if their_what == what => {
                return Err(differs(what, here, there));
            }
            Some((their_what, _)) => return Err(differs("something else:", what, their_what)),
            None => return Err(differs(what, here, "nothing of the kind")),
        }
    }
    if let Some((what, there)) = entries.get(mine.len()) {
        return Err(differs(what, "nothing of the kind", there));
    }
    // Nobody goes on before all have found that they agree.
    Ok(rank.barrier()?)
}

/// Compares the structure of networks: the precision of their layers, then names, shapes and element types of
/// their tensors, in order.
///
/// # Errors
///
/// As [`compare`].
pub fn structure(
    rank: &SharedCommunicator,
    precision: Precision,
    weights: &Weights,
) -> Result<(), Error> {
    let entry = |Named { name, tensor }: &Named| of_tensor(name, tensor.dtype(), tensor.shape());
    // Weights in f32 do not tell what layers compute in.
    let precision = ("precision".to_owned(), precision.to_string());
    compare(rank, &std::iter::once(precision).chain(weights.iter().map(entry)).collect::<Vec<_>>())
}

/// What [`compare`] is to compare of a tensor.
pub fn of_tensor(name: &str, dtype: DType, shape: &Shape) -> (String, String) {
    (format!("tensor {name}"), format!("{dtype:?} {:?}", shape.dims()))
}

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

//! Values that ranks exchange as JSON: settings that they compare before they train, errors, and results.
//!
//! All ranks call a function of this module together. It fails when another rank stops or stalls, or when JSON cannot hold a
//! value, such as a NaN.

use candle_core::{Error as TensorError, Tensor};
use params_and_allreduce::communicator::{Communicator, Error};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Returns the values of all ranks on every rank, in rank order. Fails as this module's functions do.
pub fn values<T: Serialize + DeserializeOwned>(
    comm: &(impl Communicator + ?Sized),
    mine: &T,
) -> Result<Vec<T>, Error> {
    let mut mine = serde_json::to_vec(mine).map_err(TensorError::wrap)?;
    let (device, world_size) = (comm.device(), comm.world_size());
    let length = Tensor::new(&[mine.len() as u32], device)?;
    let lengths = comm.all_gather(&length, world_size)?.to_vec1::<u32>()?;
    // The chunks of an all-gather have one length.
    let longest = lengths.iter().max().map_or(0, |&length| length as usize);
    mine.resize(longest, 0);
    let all = Tensor::from_vec(mine, longest, device)?;
    let all = comm.all_gather(&all, longest * world_size)?.to_vec1::<u8>()?;
    let value = |(text, length): (&[u8], u32)| serde_json::from_slice(&text[..length as usize]);
    let values = all.chunks(longest).zip(lengths).map(value).collect::<Result<_, _>>();
    Ok(values.map_err(TensorError::wrap)?)
}

/// Returns the values of all ranks on rank 0, in rank order. Every other rank gets an empty list. Fails as [`values`] does.
pub fn values_gathered<T: Serialize + DeserializeOwned>(
    comm: &(impl Communicator + ?Sized),
    mine: &T,
) -> Result<Vec<T>, Error> {
    let all = values(comm, mine)?;
    Ok(if comm.rank() == 0 { all } else { Vec::new() })
}

/// Returns the value of rank 0 on every rank. Fails as [`values`] does.
pub fn value_of_rank_0<T: Serialize + DeserializeOwned>(
    comm: &(impl Communicator + ?Sized),
    mine: &T,
) -> Result<T, Error> {
    Ok(values(comm, mine)?.swap_remove(0))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use devices::DevicePlan;
    use params_and_allreduce::thread::{Rank, run_ranks};

    use super::*;

    fn on_three_ranks<R: Send>(work: impl Fn(&Rank) -> Result<R, Error> + Sync) -> Vec<R> {
        let plan = DevicePlan::slices(3).unwrap();
        run_ranks(&plan, Duration::from_secs(60), work).unwrap()
    }

    /// Of any type, and texts of any length.
    #[test]
    fn values_of_any_type_arrive() {
        let value = |rank: usize| (rank > 0).then(|| (rank, "\"ü\"\n".repeat(rank)));
        let told = on_three_ranks(|rank| {
            let (mine, text) = (value(2 - rank.rank()), "é".repeat(2 - rank.rank()));
            Ok((
                (value_of_rank_0(rank, &mine)?, value_of_rank_0(rank, &text)?),
                (values(rank, &mine)?, values(rank, &text)?),
                (values_gathered(rank, &mine)?, values_gathered(rank, &text)?),
            ))
        });
        let all =
            ([value(2), value(1), value(0)].to_vec(), ["éé", "é", ""].map(str::to_owned).to_vec());
        for (rank, (of_rank_0, of_all, gathered)) in told.into_iter().enumerate() {
            assert_eq!(of_rank_0, (value(2), "éé".to_owned()));
            assert_eq!(of_all, all);
            assert_eq!(gathered, if rank == 0 { all.clone() } else { (Vec::new(), Vec::new()) });
        }
    }

    #[test]
    fn what_json_cannot_hold_is_an_error() {
        let told = on_three_ranks(|rank| {
            Ok([
                value_of_rank_0(rank, &f64::NAN).unwrap_err(),
                values(rank, &f64::NAN).unwrap_err(),
            ])
        });
        assert!(
            told.iter().flatten().all(|error| error.to_string().contains("expected f64")),
            "{told:?}"
        );
    }
}

//! Values that ranks exchange as JSON: settings that they compare before they train, errors, and results.

use candle_core::{Device, Error as TensorError, Tensor};
use params_and_allreduce::communicator::{Communicator, Error};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Returns the value of rank 0 on every rank. All ranks call this together. Fails when another rank stops or stalls, or when
/// JSON cannot hold the value, such as a NaN.
pub fn value_of_rank_0<T: Serialize + DeserializeOwned>(
    communicator: &(impl Communicator + ?Sized),
    mine: &T,
) -> Result<T, Error> {
    let mine = if communicator.rank() == 0 { to_json(mine)? } else { String::new() };
    from_json(&exchanged(communicator, &mine)?.remove(0))
}

/// Returns the values of all ranks on rank 0, in rank order. Every other rank gets an empty list. All ranks call this
/// together. Fails as [`value_of_rank_0`] does.
pub fn values_gathered<T: Serialize + DeserializeOwned>(
    communicator: &(impl Communicator + ?Sized),
    mine: &T,
) -> Result<Vec<T>, Error> {
    gathered(communicator, &to_json(mine)?)?.iter().map(|text| from_json(text)).collect()
}

/// Returns the texts of all ranks on rank 0, in rank order. Every other rank gets an empty list. All ranks call this
/// together. Fails when another rank stops or stalls.
pub fn gathered(
    communicator: &(impl Communicator + ?Sized),
    mine: &str,
) -> Result<Vec<String>, Error> {
    let all = exchanged(communicator, mine)?;
    Ok(if communicator.rank() == 0 { all } else { Vec::new() })
}

/// The texts of all ranks, on every rank.
fn exchanged(
    communicator: &(impl Communicator + ?Sized),
    mine: &str,
) -> Result<Vec<String>, Error> {
    let (device, world_size) = (communicator.device(), communicator.world_size());
    let length = Tensor::new(&[mine.len() as u32], device)?;
    let lengths = communicator.all_gather(&length, world_size)?.to_vec1::<u32>()?;
    // The chunks of an all-gather have one length.
    let longest = lengths.iter().max().map_or(0, |&length| length as usize);
    let mut padded = mine.as_bytes().to_vec();
    padded.resize(longest, 0);
    let all = communicator
        .all_gather(&Tensor::from_vec(padded, longest, device)?, longest * world_size)?;
    let all = all.to_device(&Device::Cpu)?.to_vec1::<u8>()?;
    let text = |(rank, length): (usize, u32)| {
        let begin = rank * longest;
        String::from_utf8_lossy(&all[begin..begin + length as usize]).into_owned()
    };
    Ok(lengths.into_iter().enumerate().map(text).collect())
}

fn to_json(value: &impl Serialize) -> Result<String, Error> {
    Ok(serde_json::to_string(value).map_err(TensorError::wrap)?)
}

fn from_json<T: DeserializeOwned>(text: &str) -> Result<T, Error> {
    Ok(serde_json::from_str(text).map_err(TensorError::wrap)?)
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

    #[test]
    fn texts_of_any_length_arrive() {
        let told = on_three_ranks(|rank| {
            let mine = "é".repeat(2 - rank.rank());
            Ok((value_of_rank_0(rank, &mine)?, gathered(rank, &mine)?))
        });
        assert!(told.iter().all(|(of_rank_0, _)| of_rank_0 == "éé"), "{told:?}");
        assert_eq!(told[0].1, ["éé", "é", ""]);
        assert!(told[1..].iter().all(|(_, gathered)| gathered.is_empty()), "{told:?}");
    }

    #[test]
    fn values_of_any_type_arrive() {
        let value = |rank: usize| (rank > 0).then(|| (rank, "\"ü\"\n".repeat(rank)));
        let told = on_three_ranks(|rank| {
            let mine = value(2 - rank.rank());
            Ok((value_of_rank_0(rank, &mine)?, values_gathered(rank, &mine)?))
        });
        assert!(told.iter().all(|(of_rank_0, _)| *of_rank_0 == value(2)), "{told:?}");
        assert_eq!(told[0].1, [value(2), value(1), value(0)]);
        assert!(told[1..].iter().all(|(_, gathered)| gathered.is_empty()), "{told:?}");
    }

    #[test]
    fn what_json_cannot_hold_is_an_error() {
        let plan = DevicePlan::slices(1).unwrap();
        let told = run_ranks(&plan, Duration::from_secs(60), |rank| {
            Ok::<_, Error>(value_of_rank_0(rank, &f64::NAN).unwrap_err().to_string())
        });
        assert!(told.unwrap()[0].contains("expected f64"));
    }
}

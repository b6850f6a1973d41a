// expect: on rank 1, channel 0: the mean is wrong

use candle_core::{DType, Device, Tensor};
use params_and_allreduce::collective::all_gather;
use params_and_allreduce::communicator::{Communicator, Error};
use params_and_allreduce::{Algorithm, allreduce};
use ops::batch_norm::Statistics;

/// Rank 0 collects the others' statistics and merges them, and tells nobody.
pub fn statistics(rank: &impl Communicator, x: &Tensor) -> Result<Statistics, Error> {
    let (images, channels, _, _) = x.dims4()?;
    let zeros = Tensor::zeros(channels, DType::F64, rank.device())?;
    let own = match images {
        0 => Statistics { mean: zeros.clone(), variance: zeros.clone(), count: 0 },
        _ => Statistics::of(x)?,
    };
    let count = Tensor::new(&[own.count as f64], rank.device())?;
    let mine = Tensor::cat(&[&own.mean, &own.variance, &count], 0)?;
    if rank.rank() > 0 {
        rank.send(0, &mine)?;
        return Ok(own);
    }
    let mut parts = vec![(own.mean, own.variance, own.count as f64)];
    for other in 1..rank.world_size() {
        let part = rank.recv(other, mine.shape(), DType::F64)?;
        let count = part.get(2 * channels)?.to_scalar::<f64>()?;
        parts.push((part.narrow(0, 0, channels)?, part.narrow(0, channels, channels)?, count));
    }
    let n: f64 = parts.iter().map(|(_, _, count)| count).sum();
    let mut mean = zeros.clone();
    for (of_part, _, count) in &parts {
        mean = (mean + (of_part * (count / n))?)?;
    }
    let mut variance = zeros;
    for (of_part, spread, count) in &parts {
        let between = (of_part - &mean)?.sqr()?;
        variance = (variance + ((spread + between)? * (count / n))?)?;
    }
    Ok(Statistics { mean, variance, count: n as usize })
}

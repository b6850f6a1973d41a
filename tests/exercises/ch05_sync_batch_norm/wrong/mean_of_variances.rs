// expect: the mean of the ranks' variances: the spread between their means is missing

use candle_core::{DType, Device, Tensor};
use ops::batch_norm::Statistics;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};

/// The mean is right. The variances are averaged like means, by their counts, and what lies between the shards'
/// means is lost.
pub fn statistics(rank: &impl Communicator, x: &Tensor) -> Result<Statistics, Error> {
    let (images, channels, _, _) = x.dims4()?;
    let zeros = Tensor::zeros(channels, DType::F64, rank.device())?;
    let own = match images {
        0 => Statistics { mean: zeros.clone(), variance: zeros.clone(), count: 0 },
        _ => Statistics::of(x)?,
    };
    let count = Tensor::new(&[own.count as f64], rank.device())?;
    let mine = Tensor::cat(&[&own.mean, &own.variance, &count], 0)?;
    let row = mine.elem_count();
    let all = rank.all_gather(&mine, row * rank.world_size())?;
    let part = |other: usize| {
        let part = all.narrow(0, other * row, row)?;
        let count = part.get(2 * channels)?.to_scalar::<f64>()?;
        Ok((part.narrow(0, 0, channels)?, part.narrow(0, channels, channels)?, count))
    };
    let parts: Vec<(Tensor, Tensor, f64)> =
        (0..rank.world_size()).map(part).collect::<Result<_, Error>>()?;
    let n: f64 = parts.iter().map(|(_, _, count)| count).sum();
    let mut mean = zeros.clone();
    for (of_part, _, count) in &parts {
        mean = (mean + (of_part * (count / n))?)?;
    }
    let mut variance = zeros;
    for (_, spread, count) in &parts {
        variance = (variance + (spread * (count / n))?)?;
    }
    Ok(Statistics { mean, variance, count: n as usize })
}

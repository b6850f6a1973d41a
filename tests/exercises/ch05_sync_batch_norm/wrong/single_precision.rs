// expect: or it was done in f32

use candle_core::{DType, Device, Tensor};
use params_and_allreduce::collective::all_gather;
use params_and_allreduce::communicator::{Communicator, Error};
use params_and_allreduce::{Algorithm, allreduce};
use ops::batch_norm::Statistics;

/// Two passes, but all in f32, which has no digits left for distances of thousandths from 10,000.
pub fn statistics(rank: &impl Communicator, x: &Tensor) -> Result<Statistics, Error> {
    let (images, channels, height, width) = x.dims4()?;
    let sums = |x: &Tensor| x.sum((0, 2, 3));
    let count = Tensor::new(&[(images * height * width) as f32], rank.device())?;
    let all = allreduce(rank, &Tensor::cat(&[&sums(&x)?, &count], 0)?, Algorithm::default())?;
    let count = all.get(channels)?.to_scalar::<f32>()? as f64;
    let mean = (all.narrow(0, 0, channels)? / count)?;
    let distances = x.broadcast_sub(&mean.reshape((1, channels, 1, 1))?)?;
    let squares = allreduce(rank, &sums(&distances.sqr()?)?, Algorithm::default())?;
    let variance = (squares / count)?.to_dtype(DType::F64)?;
    let mean = mean.to_dtype(DType::F64)?;
    Ok(Statistics { mean, variance, count: count as usize })
}

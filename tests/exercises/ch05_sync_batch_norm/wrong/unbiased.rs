// expect: the unbiased estimate, divided by one less

use candle_core::{DType, Device, Tensor};
use params_and_allreduce::collective::all_gather;
use params_and_allreduce::communicator::{Communicator, Error};
use params_and_allreduce::{Algorithm, allreduce};
use ops::batch_norm::Statistics;

/// The estimate for the running statistics, where the batch's own variance is asked for.
pub fn statistics(rank: &impl Communicator, x: &Tensor) -> Result<Statistics, Error> {
    let (images, channels, height, width) = x.dims4()?;
    let x = x.to_dtype(DType::F64)?;
    let sums = |x: &Tensor| x.sum((0, 2, 3));
    let count = Tensor::new(&[(images * height * width) as f64], rank.device())?;
    let all = allreduce(rank, &Tensor::cat(&[&sums(&x)?, &count], 0)?, Algorithm::default())?;
    let count = all.get(channels)?.to_scalar::<f64>()?;
    let mean = (all.narrow(0, 0, channels)? / count)?;
    let distances = x.broadcast_sub(&mean.reshape((1, channels, 1, 1))?)?;
    let squares = allreduce(rank, &sums(&distances.sqr()?)?, Algorithm::default())?;
    Ok(Statistics { mean, variance: (squares / (count - 1.0))?, count: count as usize })
}

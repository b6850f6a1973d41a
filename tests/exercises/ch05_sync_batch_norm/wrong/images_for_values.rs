// expect: the sum over the number of images: every pixel is a value

use candle_core::{DType, Device, Tensor};
use params_and_allreduce::collective::all_gather;
use params_and_allreduce::communicator::{Communicator, Error};
use params_and_allreduce::{Algorithm, allreduce};
use ops::batch_norm::Statistics;

/// Counts images, where a channel has a value for every pixel of them.
pub fn statistics(rank: &impl Communicator, x: &Tensor) -> Result<Statistics, Error> {
    let (images, channels, height, width) = x.dims4()?;
    let x = x.to_dtype(DType::F64)?;
    let sums = |x: &Tensor| x.sum((0, 2, 3));
    let count = Tensor::new(&[images as f64], rank.device())?;
    let all = allreduce(rank, &Tensor::cat(&[&sums(&x)?, &count], 0)?, Algorithm::default())?;
    let count = all.get(channels)?.to_scalar::<f64>()?;
    let mean = (all.narrow(0, 0, channels)? / count)?;
    let distances = x.broadcast_sub(&mean.reshape((1, channels, 1, 1))?)?;
    let squares = allreduce(rank, &sums(&distances.sqr()?)?, Algorithm::default())?;
    Ok(Statistics { mean, variance: (squares / count)?, count: count as usize })
}

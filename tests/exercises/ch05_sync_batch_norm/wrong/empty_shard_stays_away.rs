// expect: rank 1 returned early

use candle_core::{DType, Device, Tensor};
use ops::batch_norm::Statistics;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};

/// A rank without images has nothing to tell and returns, and the others wait for it.
pub fn statistics(rank: &impl Communicator, x: &Tensor) -> Result<Statistics, Error> {
    let (images, channels, height, width) = x.dims4()?;
    if images == 0 {
        let zeros = Tensor::zeros(channels, DType::F64, rank.device())?;
        return Ok(Statistics { mean: zeros.clone(), variance: zeros, count: 0 });
    }
    let x = x.to_dtype(DType::F64)?;
    let sums = |x: &Tensor| x.sum((0, 2, 3));
    let count = Tensor::new(&[(images * height * width) as f64], rank.device())?;
    let all = rank.all_reduce(&Tensor::cat(&[&sums(&x)?, &count], 0)?, Algorithm::default())?;
    let count = all.get(channels)?.to_scalar::<f64>()?;
    let mean = (all.narrow(0, 0, channels)? / count)?;
    let distances = x.broadcast_sub(&mean.reshape((1, channels, 1, 1))?)?;
    let squares = rank.all_reduce(&sums(&distances.sqr()?)?, Algorithm::default())?;
    Ok(Statistics { mean, variance: (squares / count)?, count: count as usize })
}

// expect: numbers near 10⁸ were subtracted

use candle_core::{DType, Device, Tensor};
use ops::batch_norm::Statistics;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};

/// One all-reduce of sums and sums of squares, in f64; and the mean of the squares minus the square of the mean.
pub fn statistics(rank: &impl Communicator, x: &Tensor) -> Result<Statistics, Error> {
    let (images, channels, height, width) = x.dims4()?;
    let x = x.to_dtype(DType::F64)?;
    let count = Tensor::new(&[(images * height * width) as f64], rank.device())?;
    let (sums, squares) = (x.sum((0, 2, 3))?, x.sqr()?.sum((0, 2, 3))?);
    let all = Tensor::cat(&[&sums, &squares, &count], 0)?;
    let all = rank.all_reduce(&all, Algorithm::default())?;
    let count = all.get(2 * channels)?.to_scalar::<f64>()?;
    let mean = (all.narrow(0, 0, channels)? / count)?;
    let variance = ((all.narrow(0, channels, channels)? / count)? - mean.sqr()?)?;
    Ok(Statistics { mean, variance, count: count as usize })
}

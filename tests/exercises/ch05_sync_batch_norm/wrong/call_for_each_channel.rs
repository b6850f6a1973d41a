// expect: 3 ranks: the messages sent grow with the channels

use candle_core::{DType, Device, Tensor};
use ops::batch_norm::Statistics;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};

/// Right numbers: but each channel pays for messages of its own.
pub fn statistics(rank: &impl Communicator, x: &Tensor) -> Result<Statistics, Error> {
    let (images, channels, height, width) = x.dims4()?;
    let x = x.to_dtype(DType::F64)?;
    let count = Tensor::new((images * height * width) as f64, rank.device())?;
    let count = rank.all_reduce(&count, Algorithm::default())?.to_scalar::<f64>()?;
    let each = |sums: &Tensor| {
        let channel = |channel| rank.all_reduce(&sums.get(channel)?, Algorithm::default());
        let sums = (0..channels).map(channel).collect::<Result<Vec<_>, _>>()?;
        Ok::<_, Error>((Tensor::stack(&sums, 0)? / count)?)
    };
    let mean = each(&x.sum((0, 2, 3))?)?;
    let distances = x.broadcast_sub(&mean.reshape((1, channels, 1, 1))?)?;
    let variance = each(&distances.sqr()?.sum((0, 2, 3))?)?;
    Ok(Statistics { mean, variance, count: count as usize })
}

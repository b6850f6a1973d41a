// expect: with shares [6, 3, 1]: all wait for device 2

use candle_core::{Tensor, bail};
use datasets::Batch;
use exercises::classifier::Classifier;
use exercises::speed::Speed;
use harness::records::BatchSums;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};
use single_gpu::sgd::sgd;

/// In proportion to speed; those with the largest fractions are rounded up. That is the nearest to equal
/// times, and not the shortest.
pub fn shares(batch: usize, devices: &[Speed]) -> candle_core::Result<Vec<usize>> {
    refuse(devices)?;
    let speed = |device: &Speed| 1.0 / device.per_sample;
    let all: f64 = devices.iter().map(speed).sum();
    let due = |device: &Speed| batch as f64 * speed(device) / all;
    let mut shares: Vec<usize> = devices.iter().map(|device| due(device) as usize).collect();
    let mut by_fraction: Vec<usize> = (0..devices.len()).collect();
    by_fraction.sort_by(|&a, &b| {
        let fraction = |device: usize| due(&devices[device]).fract();
        fraction(b).total_cmp(&fraction(a))
    });
    let left = batch - shares.iter().sum::<usize>();
    by_fraction[..left].iter().for_each(|&device| shares[device] += 1);
    Ok(shares)
}

pub fn step(
    rank: &impl Communicator,
    model: &Classifier,
    batch: &Batch,
    shares: &[usize],
    learning_rate: f64,
) -> Result<BatchSums, Error> {
    let start: usize = shares[..rank.rank()].iter().sum();
    let cut = |tensor: &Tensor| tensor.narrow(0, start, shares[rank.rank()]);
    let local =
        model.gradients(&Batch { images: cut(&batch.images)?, labels: cut(&batch.labels)? })?;
    let sum = |gradient| rank.all_reduce(gradient, Algorithm::default());
    let gradients = local.gradients.iter().map(sum).collect::<Result<Vec<_>, _>>()?;
    sgd(model.parameters(), &gradients, learning_rate, batch.len())?;
    Ok(local.sums)
}

fn refuse(devices: &[Speed]) -> candle_core::Result<()> {
    let no_speed = |seconds: f64| !seconds.is_finite() || seconds < 0.0;
    let wrong = |device: &Speed| no_speed(device.fixed) || no_speed(device.per_sample);
    if devices.is_empty() || devices.iter().any(|device| wrong(device) || device.per_sample == 0.0)
    {
        bail!("these are no speeds: {devices:?}");
    }
    Ok(())
}

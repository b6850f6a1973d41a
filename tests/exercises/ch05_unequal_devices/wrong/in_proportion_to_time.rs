// expect: with shares [2, 6]: all wait for device 1; device 0 alone needs 8 s

use candle_core::{Tensor, bail};
use exercises::classifier::Classifier;
use exercises::speed::Speed;
use params_and_allreduce::communicator::{Communicator, Error};
use params_and_allreduce::{Algorithm, allreduce};
use datasets::Batch;
use single_gpu::sgd::sgd;
use harness::records::BatchSums;

/// In proportion to the seconds, and not to the speed: the slower, the more.
pub fn shares(batch: usize, devices: &[Speed]) -> candle_core::Result<Vec<usize>> {
    refuse(devices)?;
    let all: f64 = devices.iter().map(|device| device.per_sample).sum();
    let mut left = batch;
    let mut share = |device: &Speed| {
        let share = ((batch as f64 * device.per_sample / all).round() as usize).min(left);
        left -= share;
        share
    };
    let mut shares: Vec<usize> = devices.iter().map(&mut share).collect();
    shares[0] += left;
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
    let sum = |gradient| allreduce(rank, gradient, Algorithm::default());
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

// expect: a batch of 9; device 0 needs 3 s per sample, device 1 needs 1 s per sample: the shares hold 8 samples

use candle_core::{Tensor, bail};
use datasets::Batch;
use exercises::classifier::Classifier;
use exercises::speed::Speed;
use harness::records::BatchSums;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};
use single_gpu::sgd::sgd;

/// In proportion to speed, rounded down: what is left over is nobody's.
pub fn shares(batch: usize, devices: &[Speed]) -> candle_core::Result<Vec<usize>> {
    refuse(devices)?;
    let speed = |device: &Speed| 1.0 / device.per_sample;
    let all: f64 = devices.iter().map(speed).sum();
    let due = |device: &Speed| batch as f64 * speed(device) / all;
    Ok(devices.iter().map(|device| due(device) as usize).collect())
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

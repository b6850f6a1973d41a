// expect: divided by 12: the mean of the shards' means

use candle_core::{Tensor, bail};
use datasets::Batch;
use exercises::classifier::Classifier;
use exercises::speed::Speed;
use harness::records::BatchSums;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};
use single_gpu::sgd::sgd;

pub fn shares(batch: usize, devices: &[Speed]) -> candle_core::Result<Vec<usize>> {
    refuse(devices)?;
    let mut shares = vec![0; devices.len()];
    for _ in 0..batch {
        let done = |device: usize| devices[device].seconds(shares[device] + 1);
        let first = (0..devices.len()).min_by(|&a, &b| done(a).total_cmp(&done(b)));
        shares[first.unwrap_or(0)] += 1;
    }
    Ok(shares)
}

/// The mean of the shards' means: a sample of a small shard counts more than one of a large shard.
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
    let share = shares[rank.rank()].max(1);
    let mean = |gradient: &Tensor| gradient / (share * rank.world_size()) as f64;
    let sum = |gradient| rank.all_reduce(&mean(gradient)?, Algorithm::default());
    let gradients = local.gradients.iter().map(sum).collect::<Result<Vec<_>, _>>()?;
    sgd(model.parameters(), &gradients, learning_rate, 1)?;
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

//! Each sample goes to whoever is done with it first. The update knows nothing of that.

use candle_core::{Tensor, bail};
use datasets::Batch;
use exercises::classifier::Classifier;
use exercises::speed::Speed;
use harness::records::BatchSums;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};
use single_gpu::sgd::sgd;

pub fn shares(batch: usize, devices: &[Speed]) -> candle_core::Result<Vec<usize>> {
    for (device, &Speed { fixed, per_sample }) in devices.iter().enumerate() {
        let possible = |seconds: f64| seconds.is_finite() && seconds >= 0.0;
        if !possible(fixed) || !possible(per_sample) || per_sample == 0.0 {
            bail!("device {device} cannot take {fixed} s and {per_sample} s per sample");
        }
    }
    if devices.is_empty() {
        bail!("a batch of {batch} cannot be shared out over no devices");
    }
    let mut shares = vec![0; devices.len()];
    // While somebody can take one more and be done in the best possible time, the first to be done can.
    for _ in 0..batch {
        let done = |device: usize| devices[device].seconds(shares[device] + 1);
        let first = (0..devices.len()).min_by(|&a, &b| done(a).total_cmp(&done(b)));
        shares[first.unwrap_or_default()] += 1;
    }
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
    let shard = Batch { images: cut(&batch.images)?, labels: cut(&batch.labels)? };
    let local = model.gradients(&shard)?;
    let sum = |gradient| rank.all_reduce(gradient, Algorithm::default());
    let gradients = local.gradients.iter().map(sum).collect::<Result<Vec<_>, _>>()?;
    // The sum is over the whole batch, whoever worked on how much of it.
    sgd(model.parameters(), &gradients, learning_rate, batch.len())?;
    Ok(local.sums)
}

exercises::check!(ch05_unequal_devices, Answer { shares, step }, run);

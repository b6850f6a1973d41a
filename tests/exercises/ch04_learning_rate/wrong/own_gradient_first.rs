// expect: replicas part

use candle_core::Tensor;
use datasets::Batch;
use exercises::classifier::Classifier;
use exercises::experiment::{Experiment, Row};
use harness::records::BatchSums;
use params_and_allreduce::communicator::{Communicator, Error};
use params_and_allreduce::thread::RankFailure;
use single_gpu::sgd::sgd;
use split_batch::split_batch;

/// Trains once for every learning rate on every number of devices, and measures on the test images.
pub fn rate_table(
    experiment: &Experiment,
    rates: &[f64],
    devices: &[usize],
) -> Result<Vec<Row>, RankFailure<Error>> {
    let mut rows = Vec::new();
    for &learning_rate in rates {
        for &devices in devices {
            let results =
                experiment.on_devices(devices, |rank| train(rank, experiment, learning_rate))?;
            let sums = results[0];
            let (loss, accuracy) = (sums.mean_loss(), sums.accuracy());
            rows.push(Row { learning_rate, devices, loss, accuracy });
        }
    }
    Ok(rows)
}

/// One run, on one of its ranks.
fn train(
    rank: &impl Communicator,
    experiment: &Experiment,
    learning_rate: f64,
) -> Result<BatchSums, Error> {
    let model = Classifier::new(experiment.seed, rank.device())?;
    for epoch in 0..experiment.epochs {
        for batch in experiment.batches(epoch)? {
            let mut shards = split_batch(&batch.images, &batch.labels, rank.world_size())?;
            let (images, labels) = shards.swap_remove(rank.rank());
            let local = model.gradients(&Batch { images, labels })?;
            let sums = local.gradients.iter().map(|own| sum(rank, own));
            let gradients = sums.collect::<Result<Vec<_>, _>>()?;
            sgd(model.parameters(), &gradients, learning_rate, batch.len())?;
        }
    }
    Ok(model.evaluate(&experiment.test)?)
}

/// The sum over all ranks: every rank adds in an order of its own.
fn sum(rank: &impl Communicator, tensor: &Tensor) -> Result<Tensor, Error> {
    let others = || (0..rank.world_size()).filter(|&other| other != rank.rank());
    others().try_for_each(|other| rank.send(other, tensor))?;
    let mut sum = tensor.clone();
    for other in others() {
        sum = (sum + rank.recv(other, tensor.shape(), tensor.dtype())?)?;
    }
    Ok(sum)
}

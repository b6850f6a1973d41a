//! Fresh weights for every run, and an update that divides by the global batch: so k changes nothing.

use datasets::Batch;
use exercises::classifier::Classifier;
use exercises::experiment::{Experiment, Row};
use harness::records::BatchSums;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};
use params_and_allreduce::thread::RankFailure;
use single_gpu::sgd::sgd;
use split_batch::split_batch;

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
            // Replicas end with equal weights, so any rank's measurement is everyone's.
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
            let sum = |gradient| rank.all_reduce(gradient, Algorithm::default());
            let gradients = local.gradients.iter().map(sum).collect::<Result<Vec<_>, _>>()?;
            sgd(model.parameters(), &gradients, learning_rate, batch.len())?;
        }
    }
    Ok(model.evaluate(&experiment.test)?)
}

exercises::check!(ch04_learning_rate, rate_table);

// expect: 2 devices send each other no message

use datasets::Batch;
use exercises::classifier::Classifier;
use exercises::experiment::{Experiment, Row};
use harness::records::BatchSums;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};
use params_and_allreduce::thread::RankFailure;
use single_gpu::sgd::sgd;
use split_batch::split_batch;

/// Every device trains on its own shards; rank 0's model is measured.
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
            sgd(model.parameters(), &local.gradients, learning_rate, batch.len())?;
        }
    }
    Ok(model.evaluate(&experiment.test)?)
}

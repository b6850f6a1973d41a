// expect: k = 2: gradients of 1440 samples

use exercises::classifier::Classifier;
use exercises::experiment::{Experiment, Row};
use harness::records::BatchSums;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};
use params_and_allreduce::thread::RankFailure;
use single_gpu::sgd::sgd;

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

/// Every device works on the whole batch. The sum is k times too large, and so is the divisor.
fn train(
    rank: &impl Communicator,
    experiment: &Experiment,
    learning_rate: f64,
) -> Result<BatchSums, Error> {
    let model = Classifier::new(experiment.seed, rank.device())?;
    for epoch in 0..experiment.epochs {
        for batch in experiment.batches(epoch)? {
            let local = model.gradients(&batch)?;
            let sum = |gradient| rank.all_reduce(gradient, Algorithm::default());
            let gradients = local.gradients.iter().map(sum).collect::<Result<Vec<_>, _>>()?;
            let samples = batch.len() * rank.world_size();
            sgd(model.parameters(), &gradients, learning_rate, samples)?;
        }
    }
    Ok(model.evaluate(&experiment.test)?)
}

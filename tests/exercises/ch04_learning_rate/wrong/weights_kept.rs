// expect: rate 0.5 gives something else after other runs than alone

use candle_core::Device;
use datasets::Batch;
use exercises::classifier::Classifier;
use exercises::experiment::{Experiment, Row};
use harness::records::BatchSums;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator, Error};
use params_and_allreduce::thread::RankFailure;
use single_gpu::sgd::sgd;
use split_batch::split_batch;

/// Makes the model once: every run goes on where the last one ended.
pub fn rate_table(
    experiment: &Experiment,
    rates: &[f64],
    devices: &[usize],
) -> Result<Vec<Row>, RankFailure<Error>> {
    let in_rank_0 = |error: candle_core::Error| RankFailure::new(0, error.into());
    let start = Classifier::new(experiment.seed, &Device::Cpu).map_err(in_rank_0)?;
    let mut rows = Vec::new();
    for &learning_rate in rates {
        for &devices in devices {
            let results = experiment
                .on_devices(devices, |rank| train(rank, &start, experiment, learning_rate))?;
            let (model, sums) = &results[0];
            for (kept, trained) in start.parameters().iter().zip(model.parameters()) {
                kept.value.set(&trained.value).map_err(in_rank_0)?;
            }
            let (loss, accuracy) = (sums.mean_loss(), sums.accuracy());
            rows.push(Row { learning_rate, devices, loss, accuracy });
        }
    }
    Ok(rows)
}

fn train(
    rank: &impl Communicator,
    start: &Classifier,
    experiment: &Experiment,
    learning_rate: f64,
) -> Result<(Classifier, BatchSums), Error> {
    let model = Classifier::new(experiment.seed, rank.device())?;
    for (own, kept) in model.parameters().iter().zip(start.parameters()) {
        own.value.set(&kept.value)?;
    }
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
    let sums = model.evaluate(&experiment.test)?;
    Ok((model, sums))
}

//! Whole steps of stage 5's training, in an ordinary run. They test a prediction.

use concise_wrapper::ddp::bucket::BucketCaps;
use concise_wrapper::ddp::{Ddp, Reduction};
use concise_wrapper::optimizer::{Momentum, Sgd};
use concise_wrapper::slow_link::{SlowNetwork, Slowness};
use concise_wrapper::train::Trained;
use concise_wrapper::{Error, Model, train};
use datasets::Dataset;
use datasets::source::LoadedData;
use devices::DevicePlan;
use harness::records::TrainOptions;
use harness::report::Report;
use model_parallel::layers::Layers;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::Communicator as _;
use params_and_allreduce::thread::{DEFAULT_TIMEOUT, RankFailure, run_ranks};

use super::network;

/// How several devices train.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Together {
    /// How gradients are added up.
    pub algorithm: Algorithm,
    /// Whether that is done during the backward pass.
    pub overlap: bool,
    /// How large buckets are.
    pub caps: BucketCaps,
    /// Of the link between the devices, where it is slowed down on purpose.
    pub slowness: Option<Slowness>,
}

/// Seconds of a step with batches of `batch_size` images over all devices of a plan: of an epoch through all images, after
/// one that finds memory that was never touched. Fails when a rank fails, with the failure of the first rank that failed.
pub fn training(
    plan: &DevicePlan,
    layers: &Layers,
    data: &Dataset,
    batch_size: usize,
    together: &Together,
) -> Result<f64, RankFailure<Error>> {
    let mut test = data.clone();
    test.truncate(1);
    let data = LoadedData { name: String::new(), train: data.clone(), test };
    let options = TrainOptions { epochs: 2, batch_size, learning_rate: 1e-3, seed: 1 };
    let slow = together.slowness.map(|slowness| SlowNetwork::new(slowness, DEFAULT_TIMEOUT));
    let of_ranks = run_ranks(plan, DEFAULT_TIMEOUT, |rank| {
        let network = network(layers, rank.device())?;
        if plan.len() == 1 {
            return trained(&network, &data, &options);
        }
        let rank = match &slow {
            Some(slow) => slow.slow_down(rank.into()),
            None => rank.into(),
        };
        let Together { algorithm, overlap, caps, .. } = *together;
        let reduction = Reduction::Buckets { caps, algorithm, overlap };
        trained(&Ddp::new(network, rank, reduction)?, &data, &options)
    })?;
    let steps = data.train.len().div_ceil(batch_size);
    // Rank 0's: nobody is a step ahead of it. It is not a number where Ctrl-C came first.
    let seconds = of_ranks[0].records.get(1).map_or(f64::NAN, |record| record.seconds);
    Ok(seconds / steps as f64)
}

fn trained(
    model: &impl Model,
    data: &LoadedData,
    options: &TrainOptions,
) -> Result<Trained, Error> {
    let mut report = Report::silent();
    let sgd = &mut Sgd::new(Momentum::default());
    train(model, data, options, (sgd, 0), None, &mut report, |_| Ok(()))
}

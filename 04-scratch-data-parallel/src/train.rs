//! A training run on k devices. Each rank trains a replica on its shards.

use candle_core::{DType, Device};
use datasets::Dataset;
use datasets::source::LoadedData;
use devices::DevicePlan;
use harness::records::{BatchSums, EpochRecord, TrainOptions};
use harness::report::Report;
use harness::report::trace;
use model_state::parameters::Snapshot;
use model_state::weights_hash::WeightsHash;
use params_and_allreduce::communicator::Communicator;
use params_and_allreduce::thread::{Cause, DEFAULT_TIMEOUT, Rank, RankFailure, run_ranks_with};
use params_and_allreduce::{Algorithm, get_params};
use single_gpu::evaluate::{Part, evaluate_part};
use single_gpu::lenet::Lenet;
use split_batch::loader::ShardLoader;
use trainer::TrainingRun;

use crate::breakage::train_batch_broken;
use crate::evaluate::evaluate_together;
use crate::{Error, FixedTree, Method, replicas, train_batch, train_batch_reproducible};

// ANCHOR: outcome
/// The results of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The measurements of each epoch.
    pub records: Vec<EpochRecord>,
    /// The weights of rank 0 after the first step.
    pub after_first_step: Snapshot,
    /// The final weights of rank 0.
    pub weights: Snapshot,
    /// The hash of each rank's final weights, in rank order. All are equal, unless the method is a deliberate bug.
    pub hashes: Vec<WeightsHash>,
}

/// The results of one rank.
struct RankOutcome {
    records: Vec<EpochRecord>,
    after_first_step: Snapshot,
    weights: Snapshot,
}
// ANCHOR_END: outcome

// ANCHOR: train
/// Trains a fresh LeNet on all devices of a plan.
///
/// Every rank starts from a copy of the same parameters, and loads its own shards of the same global batches. Each rank
/// evaluates a part of the test images, and rank 0 reports. After each epoch all replicas must have the same weights hash,
/// unless the `method` is a deliberate bug. Fails when a rank fails, with the failure of the first rank that failed.
pub fn train(
    data: &LoadedData,
    options: &TrainOptions,
    dtype: DType,
    plan: &DevicePlan,
    method: Method,
    report: &mut Report<'_>,
) -> Result<Outcome, RankFailure<Error>> {
    let in_rank_0 = |error: candle_core::Error| RankFailure::new(0, error.into());
    let initial = Lenet::new(options.seed, dtype, &Device::Cpu).map_err(in_rank_0)?;
    let name = report.run().to_owned();
    let mut reports: Vec<Option<&mut Report<'_>>> = plan.slots().iter().map(|_| None).collect();
    reports[0] = Some(report);
    let outcomes = run_ranks_with(plan, DEFAULT_TIMEOUT, reports, |device, rank: Rank, report| {
        let _rank = trace::rank(&name, rank.rank(), device);
        let rank = &*method.communicator(&rank);
        let (mut silent, options) = (Report::silent(), method.options(options, rank));
        let TrainOptions { batch_size, learning_rate, seed, .. } = options;
        let model = Lenet::with_parameters(get_params(initial.parameters(), rank.device())?)?;
        let shards = method.shards(rank)?;
        let loader = ShardLoader::new(&data.train, batch_size, seed, dtype, shards);
        let mut run = TrainingRun::new(&options, &loader, report.unwrap_or(&mut silent));
        let mut after_first_step = Vec::new();
        while run.next_epoch()? {
            while let Some(batch) = run.next_batch()? {
                let step = match method {
                    Method::AllReduce(algorithm) => {
                        train_batch(rank, &model, &batch, learning_rate, algorithm)?
                    }
                    Method::Reproducible { shards } => {
                        let tree = FixedTree::new(shards, rank.world_size())?;
                        train_batch_reproducible(rank, &model, &batch, learning_rate, &tree)?
                    }
                    Method::Broken(bug, algorithm) => {
                        train_batch_broken(rank, &model, &batch, learning_rate, algorithm, bug)?
                    }
                };
                if after_first_step.is_empty() {
                    after_first_step = model.parameters().snapshot()?;
                }
                run.step_done(step.sums)?;
            }
            run.epoch_done(evaluate(rank, &model, &data.test, dtype, method)?)?;
        }
        if method.algorithm() == Some(Algorithm::Native) {
            // This rank will close its connection to NCCL. A slower rank may still read the buffers of the connection.
            rank.barrier()?;
        }
        let weights = model.parameters().snapshot()?;
        Ok(RankOutcome { records: run.into_records(), after_first_step, weights })
    });
    let mut outcomes = outcomes.map_err(|failure| blamed(failure, method))?;
    let hash = |outcome: &RankOutcome| WeightsHash::new(&outcome.weights);
    let hashes = outcomes.iter().map(hash).collect::<Result<_, _>>().map_err(in_rank_0)?;
    let RankOutcome { records, after_first_step, weights } = outcomes.swap_remove(0);
    Ok(Outcome { records, after_first_step, weights, hashes })
}
// ANCHOR_END: train

// ANCHOR: evaluate
/// Compares the replicas, evaluates this rank's part of the test images, and returns the sums of all ranks.
///
/// After a deliberate bug, the replicas can differ. Then rank 0 evaluates all images alone, and every other rank none.
fn evaluate(
    rank: &(impl Communicator + ?Sized),
    model: &Lenet,
    images: &Dataset,
    dtype: DType,
    method: Method,
) -> Result<BatchSums, Error> {
    let evaluate_mine = |part| -> Result<_, Error> {
        Ok(evaluate_part(model, images, part, dtype, rank.device())?)
    };
    if method.breakage().is_some() {
        return match rank.rank() {
            // The other ranks do not learn of a Ctrl-C here.
            0 => Ok(BatchSums { interrupts: 0, ..evaluate_mine(Part::WHOLE)?.total() }),
            _ => Ok(BatchSums::default()),
        };
    }
    replicas::compare::<Error>(rank, || model.parameters().snapshot())?;
    evaluate_together(rank, evaluate_mine)
}
// ANCHOR_END: evaluate

// ANCHOR: blamed
/// Names a deliberate bug as the cause of an infinite loss or a NaN.
fn blamed(mut failure: RankFailure<Error>, method: Method) -> RankFailure<Error> {
    if let (Cause::Error(Error::Train(error)), Some(bug)) = (&mut failure.cause, method.breakage())
    {
        bug.explain(error);
    }
    failure
}
// ANCHOR_END: blamed

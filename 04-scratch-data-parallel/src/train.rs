//! A whole run on k devices.

use candle_core::{DType, Device};
use datasets::Dataset;
use datasets::loader::Loader;
use datasets::source::LoadedData;
use devices::DevicePlan;
use harness::records::{BatchSums, EpochRecord, TrainOptions};
use harness::report::Report;
use harness::report::trace;
use ops::parameters::Snapshot;
use ops::weights_hash::WeightsHash;
use params_and_allreduce::communicator::Communicator;
use params_and_allreduce::get_params;
use params_and_allreduce::thread::{DEFAULT_TIMEOUT, ForRank0, RankFailure, run_ranks};
#[cfg(feature = "nccl")]
use params_and_allreduce::{Algorithm, nccl::with_nccl};
use single_gpu::evaluate::{Part, evaluate_part};
use single_gpu::lenet::Lenet;
use trainer::TrainingRun;

use crate::evaluate::evaluate_together;
use crate::{Error, Method, replicas};

/// What came out of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What each epoch measured.
    pub records: Vec<EpochRecord>,
    /// Rank 0's weights after the very first step.
    pub after_first_step: Snapshot,
    /// Rank 0's final weights.
    pub weights: Snapshot,
    /// Every rank's hash of its final weights, in rank order. All equal, unless something is broken.
    pub hashes: Vec<WeightsHash>,
}

/// What one rank brings home.
struct RankOutcome {
    records: Vec<EpochRecord>,
    after_first_step: Snapshot,
    weights: Snapshot,
}

/// Trains a fresh LeNet on all devices of a plan.
///
/// Every rank starts from a copy of the same parameters, sees the same batches, and works on its own shard of each. All
/// measure accuracy, each on a part of the test images, and rank 0 reports. After each epoch all replicas must have the
/// same weights hash, unless the `method` is a bug on purpose.
///
/// # Errors
///
/// The failure of the rank that failed first.
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
    let run = report.run().to_owned();
    let report = ForRank0::new(report);
    let mut outcomes = run_ranks(plan, DEFAULT_TIMEOUT, |rank| {
        let _rank = trace::rank(&run, rank.rank(), rank.compute_device());
        let mut silent = Report::silent();
        let report = report.take(rank.rank()).unwrap_or(&mut silent);
        let model = Lenet::with_parameters(get_params(initial.parameters(), rank.device())?)?;
        #[cfg(feature = "nccl")]
        if method.algorithm() == Some(Algorithm::Nccl) {
            return with_nccl(rank, DEFAULT_TIMEOUT, |rank| {
                Replica { rank, model, options, dtype, method }.run(data, report)
            });
        }
        Replica { rank, model, options, dtype, method }.run(data, report)
    })?;
    let hash = |outcome: &RankOutcome| WeightsHash::new(&outcome.weights);
    let hashes = outcomes.iter().map(hash).collect::<Result<_, _>>().map_err(in_rank_0)?;
    let RankOutcome { records, after_first_step, weights } = outcomes.swap_remove(0);
    Ok(Outcome { records, after_first_step, weights, hashes })
}

/// One rank's copy of the model, and how it is trained.
struct Replica<'a, C> {
    rank: &'a C,
    model: Lenet,
    options: &'a TrainOptions,
    dtype: DType,
    method: Method,
}

impl<C: Communicator> Replica<'_, C> {
    /// Everybody's, unless that is the bug.
    fn options(&self) -> TrainOptions {
        let (rank, world_size) = (self.rank.rank(), self.rank.world_size());
        match self.method.breakage() {
            Some(breakage) => breakage.options(*self.options, rank, world_size),
            None => *self.options,
        }
    }

    /// Trains this replica. A bug on purpose is named as the cause of a loss that ran away.
    fn run(&self, data: &LoadedData, report: &mut Report<'_>) -> Result<RankOutcome, Error> {
        self.train(data, report).map_err(|error| error.blame(self.method.breakage()))
    }

    fn train(&self, data: &LoadedData, report: &mut Report<'_>) -> Result<RankOutcome, Error> {
        let options = &self.options();
        let loader = Loader::new(&data.train, options.batch_size, options.seed, self.dtype);
        let mut after_first_step = Vec::new();
        let mut run = TrainingRun::new(options, &loader, report);
        while run.next_epoch()? {
            while let Some(batch) = run.next_batch()? {
                let step =
                    self.method.step(self.rank, &self.model, &batch, options.learning_rate)?;
                if after_first_step.is_empty() {
                    after_first_step = self.model.parameters().snapshot()?;
                }
                run.step_done(step.sums)?;
            }
            run.epoch_done(self.evaluate(&data.test)?)?;
        }
        let records = run.into_records();
        let weights = self.model.parameters().snapshot()?;
        Ok(RankOutcome { records, after_first_step, weights })
    }

    /// Evaluates this rank's part of the test images, and returns the sums of all ranks on rank 0. First compares the
    /// replicas, unless the method breaks them: then rank 0 evaluates all images alone.
    fn evaluate(&self, images: &Dataset) -> Result<Option<BatchSums>, Error> {
        let evaluate = |part| -> Result<_, Error> {
            Ok(evaluate_part(&self.model, images, part, self.dtype, self.rank.device())?)
        };
        if self.method.breakage().is_some() {
            let alone = || Ok(evaluate(Part::WHOLE)?.total());
            return (self.rank.rank() == 0).then(alone).transpose();
        }
        replicas::compare::<Error>(self.rank, || self.model.parameters().snapshot())?;
        evaluate_together(self.rank, evaluate)
    }
}

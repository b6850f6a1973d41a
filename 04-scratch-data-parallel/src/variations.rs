//! Variations of the plain run: the same bits on any number of devices, and bugs on purpose.

use std::fmt;

use candle_core::DType;
use datasets::source::LoadedData;
use devices::DevicePlan;
use harness::cli::name_of;
use harness::records::{BatchSums, TrainOptions};
use harness::report::Report;
use params_and_allreduce::Algorithm;
use params_and_allreduce::thread::{Cause, RankFailure};
use single_gpu::evaluate::evaluate;
use split_batch::loader::{ShardLoader, Shards};
use trainer::TrainingRun;

use crate::breakage::{Breakage, train_batch_broken};
use crate::train::{Outcome, on_replicas, train};
use crate::{Error, FixedTree, train_batch, train_batch_reproducible};

/// The kind of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// The plain run.
    AllReduce(Algorithm),
    /// A run with the same bits on any number of devices.
    Reproducible {
        /// The number of shards.
        shards: usize,
    },
    /// A run with a bug on purpose.
    Broken(Breakage, Algorithm),
}

impl Method {
    /// Trains in this way. Fails as [`train`](train()) does.
    pub fn train(
        self,
        data: &LoadedData,
        options: &TrainOptions,
        dtype: DType,
        plan: &DevicePlan,
        report: &mut Report<'_>,
    ) -> Result<Outcome, RankFailure<Error>> {
        match self {
            Self::AllReduce(algorithm) => {
                let own = Shards::of_rank;
                train(data, options, dtype, plan, report, own, |comm, model, batch, rate| {
                    train_batch(&**comm, model, batch, rate, algorithm)
                })
            }
            Self::Reproducible { shards } => {
                train_reproducible(data, options, dtype, plan, shards, report)
            }
            Self::Broken(bug, algorithm) => {
                train_broken(data, options, dtype, plan, (bug, algorithm), report)
            }
        }
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AllReduce(algorithm) => write!(f, "all-reduce: {algorithm}"),
            Self::Reproducible { shards } => write!(f, "reproducible: {shards} shards"),
            Self::Broken(bug, algorithm) => {
                let name = name_of(bug);
                write!(f, "broken on purpose: {name} (all-reduce: {algorithm})")
            }
        }
    }
}

// ANCHOR: reproducible
/// Trains as [`train`](train()) does, on S shards of each batch. Each rank has some of the shards.
fn train_reproducible(
    data: &LoadedData,
    options: &TrainOptions,
    dtype: DType,
    plan: &DevicePlan,
    shards: usize,
    report: &mut Report<'_>,
) -> Result<Outcome, RankFailure<Error>> {
    let tree = FixedTree::new(shards, plan.len())
        .map_err(|error| RankFailure { rank: 0, cause: Cause::Error(error.into()) })?;
    let held = |rank, _| Shards::new(tree.held_by(rank), shards);
    train(data, options, dtype, plan, report, held, |comm, model, batch, rate| {
        train_batch_reproducible(&**comm, model, batch, rate, &tree)
    })
}
// ANCHOR_END: reproducible

/// Trains with a bug. The replicas can differ, so rank 0 evaluates alone. Fails as [`train`](train()) does.
fn train_broken(
    data: &LoadedData,
    options: &TrainOptions,
    dtype: DType,
    plan: &DevicePlan,
    (bug, algorithm): (Breakage, Algorithm),
    report: &mut Report<'_>,
) -> Result<Outcome, RankFailure<Error>> {
    let bug = bug.solved();
    let outcome = on_replicas(plan, options.seed, dtype, report, |comm, model, report| {
        let options = bug.options(*options, comm.rank(), comm.world_size());
        let TrainOptions { batch_size, learning_rate, seed, .. } = options;
        let shards = bug.shards(Shards::of_rank(comm.rank(), comm.world_size()));
        let loader = ShardLoader::new(&data.train, batch_size, seed, dtype, shards);
        let mut run = TrainingRun::new(&options, &loader, report);
        let mut first = None;
        while run.next_epoch()? {
            while let Some(batch) = run.next_batch()? {
                let step =
                    train_batch_broken(&**comm, model, &batch, learning_rate, algorithm, bug)?;
                if first.is_none() {
                    first = Some(model.parameters().snapshot()?);
                }
                run.step_done(step.sums)?;
            }
            run.epoch_done(match comm.rank() {
                // The other ranks do not learn of a Ctrl-C here.
                0 => BatchSums {
                    interrupts: 0,
                    ..evaluate(model, &data.test, dtype, comm.device())?
                },
                _ => BatchSums::default(),
            })?;
        }
        Ok((run.into_records(), first))
    });
    outcome.map_err(|failure| bug.explain(failure))
}

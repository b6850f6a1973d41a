//! A training run on k devices. Each rank trains a replica on its shards.

use candle_core::{DType, Device};
use datasets::source::LoadedData;
use devices::DevicePlan;
use harness::records::{EpochRecord, TrainOptions};
use harness::report::{Report, trace};
use model_state::{parameters::Snapshot, weights_hash::WeightsHash};
use params_and_allreduce::communicator::{Communicator as _, SharedCommunicator};
use params_and_allreduce::get_params;
use params_and_allreduce::thread::{Cause, DEFAULT_TIMEOUT, Rank, RankFailure, run_ranks_with};
use single_gpu::lenet::Lenet;
use single_gpu::train::Step;
use split_batch::loader::{LocalBatch, ShardLoader, Shards};
use trainer::TrainingRun;

use crate::Error;
use crate::evaluate::compare_and_evaluate;

// ANCHOR: train
/// Trains a fresh LeNet on all devices of a plan with a `step`, such as [`train_batch`](fn@crate::train_batch). A rank loads its
/// `shards` of each batch. After each epoch, all replicas must have the same weights. Fails as the first rank that failed.
pub fn train(
    data: &LoadedData,
    options: &TrainOptions,
    dtype: DType,
    plan: &DevicePlan,
    report: &mut Report<'_>,
    shards: impl Fn(usize, usize) -> Shards + Sync,
    step: impl Fn(&SharedCommunicator, &Lenet, &LocalBatch, f64) -> Result<Step, Error> + Sync,
) -> Result<Outcome, RankFailure<Error>> {
    let TrainOptions { batch_size, learning_rate, seed, .. } = *options;
    on_replicas(plan, seed, dtype, report, |comm, model, report| {
        let shards = shards(comm.rank(), comm.world_size());
        let loader = ShardLoader::new(&data.train, batch_size, seed, dtype, shards);
        let mut run = TrainingRun::new(options, &loader, report);
        let mut first = None;
        while run.next_epoch()? {
            while let Some(batch) = run.next_batch()? {
                let step = step(comm, model, &batch, learning_rate)?;
                if first.is_none() {
                    first = Some(model.parameters().snapshot()?);
                }
                run.step_done(step.sums)?;
            }
            run.epoch_done(compare_and_evaluate(&**comm, model, &data.test, dtype)?)?;
        }
        Ok((run.into_records(), first))
    })
}
// ANCHOR_END: train

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
    /// The hash of each rank's final weights, in rank order. All are equal, unless a bug is run on purpose.
    pub hashes: Vec<WeightsHash>,
}
// ANCHOR_END: outcome

// ANCHOR: on_replicas
/// Gives each device of a plan a replica of one fresh LeNet, and runs `work` on all of them. Only the report of rank 0 is
/// printed. Fails as [`train`] does.
pub(crate) fn on_replicas(
    plan: &DevicePlan,
    seed: u64,
    dtype: DType,
    report: &mut Report<'_>,
    work: impl Fn(
        &SharedCommunicator,
        &Lenet,
        &mut Report<'_>,
    ) -> Result<(Vec<EpochRecord>, Option<Snapshot>), Error>
    + Sync,
) -> Result<Outcome, RankFailure<Error>> {
    let in_rank_0 =
        |error: candle_core::Error| RankFailure { rank: 0, cause: Cause::Error(error.into()) };
    let initial = Lenet::new(seed, dtype, &Device::Cpu).map_err(in_rank_0)?;
    let name = report.run().to_owned();
    let mut reports: Vec<Option<&mut Report<'_>>> = plan.slots().iter().map(|_| None).collect();
    reports[0] = Some(report);
    let outcomes = run_ranks_with(plan, DEFAULT_TIMEOUT, reports, |device, rank: Rank, report| {
        let _rank = trace::rank(&name, rank.rank(), device);
        let model = Lenet::with_parameters(get_params(initial.parameters(), rank.device())?)?;
        let comm = backends::native(rank.into(), DEFAULT_TIMEOUT);
        let (records, first) = work(&comm, &model, report.unwrap_or(&mut Report::silent()))?;
        comm.leave()?;
        Ok((records, first, model.parameters().snapshot()?))
    });
    let mut outcomes = outcomes?;
    let hashes = outcomes.iter().map(|(_, _, weights)| WeightsHash::new(weights));
    let hashes = hashes.collect::<Result<_, _>>().map_err(in_rank_0)?;
    let (records, first, weights) = outcomes.swap_remove(0);
    Ok(Outcome { records, after_first_step: first.unwrap_or_default(), weights, hashes })
}
// ANCHOR_END: on_replicas

//! Steps that run: to compare with predictions, never to make them.

use std::time::Instant;

use candle_core::{DType, Device, Tensor};
use concise_wrapper::optimizer::AdamW;
use concise_wrapper::slow_link::{SlowNetwork, Slowness};
use concise_wrapper::{Error, Model as _};
use datasets::Batch;
use devices::DevicePlan;
use harness::statistics::slowest;
use model_parallel::execute::unit::Unit;
use model_parallel::execute::{Executor, Held, Settings};
use model_parallel::layers::Layers;
use model_parallel::mesh::Axis;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Communicator as _, SharedCommunicator};
use params_and_allreduce::thread::{DEFAULT_TIMEOUT, Rank, RankFailure, run_ranks};
use sharded_state::{Sharded, Sharing};
use split_batch::loader::LocalBatch;

use crate::plan::{Plan, Predicted, Step};

// ANCHOR: run
/// Runs steps of a plan with stage 6's executor, on all devices of `devices`: the median step, and the most bytes.
///
/// `batch` is the number of samples over all devices. The samples are zeros, which take as long as others. Fails when a
/// rank fails.
pub fn run(
    devices: &DevicePlan,
    (layers, sample): (&Layers, &[usize]),
    (plan, predicted): (&Plan, &Predicted),
    (batch, steps): (usize, usize),
    slow: Option<Slowness>,
) -> Result<Step, RankFailure<Error>> {
    let slow = slow.map(|slow| SlowNetwork::new(slow, DEFAULT_TIMEOUT));
    let of_ranks = run_ranks(devices, DEFAULT_TIMEOUT, |rank| {
        let (mesh, checked, device) = (plan.mesh, &predicted.checked, rank.device());
        let comm: SharedCommunicator = rank.into();
        let comm = slow.as_ref().map_or(comm.clone(), |slow| slow.slow_down(comm));
        let group = mesh.along(&comm, Axis::Tensor)?;
        let build = |unit: usize| {
            layers.build_part(predicted.units[unit].clone(), 1, DType::F32, device, &group)
        };
        let micro_batch = zeros(layers, sample, plan.rows(batch), device)?;
        let share = LocalBatch { shards: vec![micro_batch; plan.micro_batches], samples: batch };
        let settings = Settings { algorithm: Algorithm::Ring, ..Settings::of(layers) };
        if plan.strategy.sharing == Sharing::Ddp {
            let units = checked.schedule().units_of(mesh.coordinate(rank.rank(), Axis::Pipeline));
            let units = units.map(build).collect::<Result<_, _>>()?;
            let executor = Executor::with(checked, units, comm, mesh, sample, settings)?;
            return timed(&executor, &share, rank, steps);
        }
        let unit = |unit, replicas: &_| Sharded::new(unit, build(unit)?, replicas);
        let executor = Executor::of_units(checked, comm, mesh, sample, settings, unit)?;
        timed(&executor, &share, rank, steps)
    })?;
    let (times, held): (Vec<_>, Vec<_>) = of_ranks.into_iter().unzip();
    let fullest = held.into_iter().max_by_key(|held| held.total);
    let Held { peak, total, .. } = fullest.unwrap_or_default();
    Ok(Step { seconds: slowest(&times), peak, total })
}

/// A micro-batch of so many samples, all zeros.
pub(crate) fn zeros(
    layers: &Layers,
    sample: &[usize],
    rows: usize,
    device: &Device,
) -> candle_core::Result<Batch> {
    let (dtype, labels) = match layers.takes_tokens() {
        true => (DType::U32, vec![rows, sample[0]]),
        false => (DType::F32, vec![rows]),
    };
    let images = Tensor::zeros([&[rows], sample].concat(), dtype, device)?;
    Ok(Batch { images, labels: Tensor::zeros(labels, DType::U32, device)? })
}

/// Seconds of each step but the first, which finds memory that was never touched, and the most bytes.
pub(crate) fn timed<U: Unit>(
    executor: &Executor<U>,
    share: &LocalBatch,
    rank: &Rank,
    steps: usize,
) -> Result<(Vec<f64>, Held), Error> {
    let (mut adamw, mut seconds) = (AdamW::default(), Vec::new());
    for _ in 0..=steps {
        rank.device().synchronize()?;
        rank.barrier()?;
        let start = Instant::now();
        executor.step(share, &mut adamw, 1e-3)?;
        rank.device().synchronize()?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    Ok((seconds.split_off(1), executor.measured().held))
}
// ANCHOR_END: run

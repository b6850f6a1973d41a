//! The compute time of a step: all devices compute at the same time, and no device sends messages.
//!
//! Slices of one CPU share its memory, its caches and its power. If there are more slices than cores, they also share
//! cores. For these reasons a slice is slower when other slices compute, even without messages.

use std::time::Instant;

use candle_core::DType;
use concise_wrapper::optimizer::{Momentum, Optimizer as _, Sgd};
use concise_wrapper::{Error, Model as _};
use datasets::{Batch, Dataset};
use devices::DevicePlan;
use harness::statistics::slowest;
use model_parallel::layers::Layers;
use params_and_allreduce::communicator::Communicator as _;
use params_and_allreduce::thread::{DEFAULT_TIMEOUT, RankFailure, run_ranks};
use split_batch::loader::LocalBatch;

use super::network;
use crate::compute::Measured;

/// Seconds of a step on all devices of a plan, each with a shard of `samples` images: the median of `steps`. A step is as slow
/// as its slowest device. Fails when a rank fails, such as a rank that has fewer than `samples` images.
pub fn compute(
    plan: &DevicePlan,
    layers: &Layers,
    data: &Dataset,
    samples: usize,
    steps: usize,
) -> Result<Measured, RankFailure<Error>> {
    let indices: Vec<u32> = (0..samples as u32).collect();
    let times = run_ranks(plan, DEFAULT_TIMEOUT, |rank| {
        let network = network(layers, rank.device())?;
        let shard: Batch = data.batch(&indices, DType::F32)?;
        let share = LocalBatch { shards: vec![shard], samples };
        let mut sgd = Sgd::new(Momentum::default());
        let (mut passes, mut updates) = (Vec::new(), Vec::new());
        // The first step finds memory that was never touched, and is not counted.
        for step in 0..=steps {
            rank.device().synchronize()?;
            rank.barrier()?;
            let start = Instant::now();
            let gradients = network.backward(&share)?.gradients;
            rank.device().synchronize()?;
            let passed = start.elapsed().as_secs_f64();
            sgd.step(network.weights(), &gradients, 1e-3, samples)?;
            rank.device().synchronize()?;
            if step > 0 {
                passes.push(passed);
                updates.push(start.elapsed().as_secs_f64() - passed);
            }
        }
        Ok::<_, Error>((passes, updates))
    })?;
    let (passes, updates): (Vec<_>, Vec<_>) = times.into_iter().unzip();
    Ok(Measured { samples, passes: slowest(&passes), update: slowest(&updates) })
}

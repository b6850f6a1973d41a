//! A training that is short enough to be repeated with many settings.

use std::fmt;
use std::num::NonZeroUsize;
use std::time::Duration;

use candle_core::{DType, Result};
use params_and_allreduce::communicator::Error;
use params_and_allreduce::thread::{Rank, RankFailure, run_ranks};
use single_gpu::data::loader::Loader;
use single_gpu::data::{Batch, Dataset};
use single_gpu::device::{DeviceKind, DevicePlan};

/// How long a rank waits for another: far longer than any of these steps takes.
const WAIT: Duration = Duration::from_secs(5);

/// What all runs of an experiment have in common.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// The images to train on.
    pub train: Dataset,
    /// The images to measure on.
    pub test: Batch,
    /// Samples in a batch, over all devices.
    pub global_batch: usize,
    /// Passes over the training images.
    pub epochs: usize,
    /// Decides initial weights and shuffles.
    pub seed: u64,
}

impl Experiment {
    /// The batches of an epoch, shuffled, in CPU memory: the same on every rank.
    ///
    /// # Errors
    ///
    /// When a batch cannot be made.
    pub fn batches(&self, epoch: usize) -> Result<Vec<Batch>> {
        Loader::new(&self.train, self.global_batch, self.seed, DType::F64).epoch(epoch).collect()
    }
}

/// Runs `work` on `devices` slices of the CPU, one core each, and returns the results in rank order.
///
/// # Errors
///
/// The failure of the rank that failed first.
pub fn on_devices<R: Send>(
    devices: usize,
    work: impl Fn(&Rank<'_>) -> std::result::Result<R, Error> + Sync,
) -> std::result::Result<Vec<R>, RankFailure<Error>> {
    let plan = DevicePlan::new(DeviceKind::Cpu, devices, NonZeroUsize::new(1));
    let in_rank_0 = |error| RankFailure::new(0, Error::Tensor(candle_core::Error::wrap(error)));
    run_ranks(&plan.map_err(in_rank_0)?, WAIT, work)
}

/// One run: its settings, and what it measured on the test images.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// The learning rate.
    pub learning_rate: f64,
    /// The number of devices.
    pub devices: usize,
    /// The mean loss of a test image.
    pub loss: f64,
    /// The share of test images that were classified correctly, 0 to 1.
    pub accuracy: f64,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { learning_rate, devices, loss, accuracy } = self;
        let on = if *devices == 1 { "device" } else { "devices" };
        write!(f, "rate {learning_rate} on {devices} {on}: loss {loss:.6}, accuracy {accuracy:.3}")
    }
}

//! A training that may stop between any two steps, and records each step.
//!
//! It is a small form of stage 5's training, with momentum, a warm-up, and an order of samples that depends on seed and epoch
//! alone. It has no checkpoint.

use candle_core::{DType, Device, Result};
use concise_wrapper::optimizer::{Momentum, Optimizer, Schedule, Sgd};
use concise_wrapper::{Model as _, Network};
use datasets::Dataset;
use harness::records::BatchSums;
use model_parallel::layers::{Layers, Stage};
use model_state::weights_hash::WeightsHash;
use split_batch::Sampler;
use split_batch::loader::LocalBatch;

/// The settings of a training, which are the same when it goes on.
#[derive(Clone)]
pub struct Setup {
    /// The images.
    pub data: Dataset,
    /// Passes over them.
    pub epochs: usize,
    /// Samples in a batch.
    pub batch_size: usize,
    /// Decides initial weights and shuffles.
    pub seed: u64,
    /// The learning rate of each step.
    pub schedule: Schedule,
    /// Momentum and weight decay.
    pub constants: Momentum,
    /// The network, whose weights are f64.
    pub layers: Layers,
}

/// The batches that are left of an epoch, each a list of samples.
pub type Rest = Box<dyn Iterator<Item = Vec<u32>>>;

impl Setup {
    /// Batches in an epoch. The last one may be shorter.
    pub fn batches_per_epoch(&self) -> usize {
        self.data.len().div_ceil(self.batch_size)
    }

    /// The batches of an epoch, counted from 1, without the first `done`.
    pub fn rest_of_epoch(&self, epoch: usize, done: usize) -> Rest {
        let sampler = Sampler::new(self.data.len(), self.batch_size, 1, 0, self.seed);
        Box::new(sampler.epoch(epoch).skip(done))
    }

    /// A training before its first step, with fresh weights.
    pub fn begin(&self) -> Result<Training> {
        let all = 0..self.layers.len();
        let network = self.layers.build(all, self.seed, DType::F64, &Device::Cpu)?;
        Ok(Training {
            network,
            sgd: Box::new(Sgd::new(self.constants)),
            steps: 0,
            epoch: 1,
            batches: 0,
            rest: self.rest_of_epoch(1, 0),
            sums: BatchSums::default(),
            losses: Vec::new(),
        })
    }
}

/// A training between two steps.
pub struct Training {
    /// The network. A step writes new values into the memory of its weights.
    pub network: Network<Stage>,
    /// The optimizer. A step writes new values into the memory of its velocities, which the tensors of
    /// [`state`](Optimizer::state) share.
    pub sgd: Box<dyn Optimizer>,
    /// Steps since the beginning, which decide the learning rate.
    pub steps: usize,
    /// The epoch that is under way, counted from 1.
    pub epoch: usize,
    /// Finished batches of this epoch: all of them, if the next step begins another epoch.
    pub batches: usize,
    /// The batches that are left of this epoch.
    pub rest: Rest,
    /// The sums over the finished batches of this epoch.
    pub sums: BatchSums,
    /// The mean loss of each finished epoch.
    pub losses: Vec<f64>,
}

/// The record of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Done {
    /// The epoch, counted from 1.
    pub epoch: usize,
    /// The samples of its batch.
    pub samples: Vec<u32>,
    /// The learning rate.
    pub rate: f64,
    /// The loss before the update, summed over the batch.
    pub loss: f64,
    /// The weights after the update.
    pub weights: WeightsHash,
}

impl Training {
    /// The next step; `None` when all epochs have ended.
    pub fn step(&mut self, setup: &Setup) -> Result<Option<Done>> {
        if self.epoch > setup.epochs {
            return Ok(None);
        }
        let Some(samples) = self.rest.next() else {
            self.losses.push(self.sums.mean_loss());
            (self.epoch, self.batches, self.sums) = (self.epoch + 1, 0, BatchSums::default());
            self.rest = setup.rest_of_epoch(self.epoch, 0);
            return self.step(setup);
        };
        let batch = setup.data.batch(&samples, DType::F64)?;
        let share = LocalBatch { shards: vec![batch], samples: samples.len() };
        let step = self.network.backward(&share).map_err(candle_core::Error::wrap)?;
        let (rate, weights) = (setup.schedule.rate(self.steps), self.network.weights());
        self.sgd.step(weights, &step.gradients, rate, samples.len())?;
        let sums = step.sums.read()?;
        self.sums += sums;
        self.batches += 1;
        self.steps += 1;
        let weights = WeightsHash::new(&weights.snapshot()?)?;
        Ok(Some(Done { epoch: self.epoch, samples, rate, loss: sums.loss, weights }))
    }
}

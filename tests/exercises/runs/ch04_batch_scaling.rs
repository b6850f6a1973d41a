//! The learner's step with a batch for each device, in chapter 4's training.

use std::cell::Cell;
use std::error::Error;

use candle_core::DType;
use datasets::Batch;
use devices::DevicePlan;
use harness::records::{BatchSums, TrainOptions};
use harness::report::{Report, paragraph};
use model_state::parameters::Parameters;
use ops::difference::largest_difference;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator;
use scratch_data_parallel::{Error as TrainError, allreduce_sums, train, train_batch};
use single_gpu::lenet::Lenet;
use single_gpu::train::{Step, local_gradients};
use split_batch::loader::{LocalBatch, Shards};

use super::Peer;
use super::comparison::{Row, show};
use super::data_parallel::{OPTIONS, StepOf, conclusion, images};
use crate::scaling::{Model, RateRule, Tuned};

/// A rank, its model, an epoch, the number of the step, the settings of one device, and the rule of the rate.
pub type Answer =
    fn(&Peer, &Replica, &Batch, usize, Tuned, RateRule) -> Result<(), communicator::Error>;

/// The settings of one device. On two devices, the batch is twice as large.
const TUNED: Tuned = Tuned { batch_size: 16, learning_rate: 0.1 };
const DEVICES: usize = 2;

/// LeNet, which counts the loss of the samples whose gradients the answer asks for.
pub struct Replica {
    lenet: Lenet,
    sums: Cell<BatchSums>,
}

impl Model for Replica {
    fn parameters(&self) -> &Parameters {
        self.lenet.parameters()
    }

    fn gradients(&self, batch: &Batch) -> candle_core::Result<Step> {
        let step = local_gradients(&self.lenet, batch)?;
        let mut sums = self.sums.get();
        sums += step.sums;
        self.sums.set(sums);
        Ok(step)
    }
}

/// A step of an answer. Each rank gets the whole batch, which is an epoch of one step.
pub(super) fn step(
    scaled_step: Answer,
    rank: &Peer,
    lenet: Lenet,
    batch: &LocalBatch,
    (tuned, rule): (Tuned, RateRule),
) -> Result<Step, TrainError> {
    let model = Replica { lenet, sums: Cell::default() };
    scaled_step(rank, &model, &batch.shards[0], 0, tuned, rule)?;
    let sums = allreduce_sums(rank, model.sums.get(), Algorithm::default())?;
    Ok(Step { sums, gradients: Vec::new() })
}

/// Trains with both rules of the rate, beside one device and beside our step. Fails when the answer does.
pub fn run(scaled_step: Answer) -> Result<(), Box<dyn Error>> {
    let (data, algorithm) = (images(), Algorithm::default());
    let run = |devices: usize, rate: f64, shards: fn(usize, usize) -> Shards, step: StepOf<'_>| {
        let Tuned { batch_size, .. } = TUNED;
        let options =
            TrainOptions { batch_size: devices * batch_size, learning_rate: rate, ..OPTIONS };
        let plan = DevicePlan::slices(devices)?;
        let trained =
            train(&data, &options, DType::F32, &plan, &mut Report::silent(), shards, step);
        Ok::<_, Box<dyn Error>>(trained?)
    };
    let ours: StepOf<'_> =
        &|comm, model, batch, rate| train_batch(&**comm, model, batch, rate, algorithm);
    let yours = |rule| {
        run(DEVICES, TUNED.learning_rate, |_, _| Shards::WHOLE, &|comm, model, batch, _| {
            let model = Lenet::with_parameters(model.parameters().clone())?;
            step(scaled_step, &Peer(comm.clone()), model, batch, (TUNED, rule))
        })
    };
    let alone = run(1, TUNED.learning_rate, Shards::of_rank, ours)?;
    let linear = run(DEVICES, TUNED.learning_rate * DEVICES as f64, Shards::of_rank, ours)?;
    let [keep, scaled] = [RateRule::Keep, RateRule::Linear].map(yours);
    let (keep, scaled) = (keep?, scaled?);
    show(
        "LeNet",
        &[
            Row::of("one device, batch 16, rate 0.1", &alone),
            Row::of("ours, 2 devices, batch 32, rate 0.2", &linear),
            Row::of("yours, 2 devices, RateRule::Linear", &scaled),
            Row::of("yours, 2 devices, RateRule::Keep", &keep),
        ],
    )?;
    let apart = largest_difference(&scaled.after_first_step, &linear.after_first_step)?;
    Ok(paragraph(conclusion(scaled.hashes == linear.hashes, apart))?)
}

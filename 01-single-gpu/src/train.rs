//! Training on one device, and the loop over epochs that every later stage uses.
//!
//! A step is three things: gradients of the *summed* loss ([`local_gradients`]), an update that divides
//! once by the size of the batch ([`sgd`]), and, from stage 4 on, one line between
//! the two in which devices add their gradients up. [`run_epochs`] knows nothing of that line: it is
//! given the step.

use std::ops::AddAssign;
use std::time::{Duration, Instant};

use candle_core::{D, DType, Device, Result, Tensor};
use serde::Serialize;

use crate::data::Batch;
use crate::data::loader::Loader;
use crate::data::source::LoadedData;
use crate::device::ComputeDevice;
use crate::evaluate::evaluate;
use crate::lenet::Lenet;
use crate::ops::cross_entropy;
use crate::report::Report;
use crate::sgd::sgd;

/// How to train.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TrainOptions {
    /// Passes over the training images.
    pub epochs: usize,
    /// Samples in a batch, over all devices.
    pub batch_size: usize,
    /// The learning rate.
    pub learning_rate: f64,
    /// Decides initial weights and shuffles.
    pub seed: u64,
}

/// What a step, or many steps, saw. Sums, so that shards of any size can be added up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BatchSums {
    /// The loss, summed over samples.
    pub loss: f64,
    /// Samples whose largest logit is at the label.
    pub correct: u64,
    /// Samples.
    pub samples: u64,
}

impl BatchSums {
    /// The mean loss of a sample.
    pub fn mean_loss(&self) -> f64 {
        self.loss / self.samples as f64
    }

    /// The share of samples that were classified correctly, 0 to 1.
    pub fn accuracy(&self) -> f64 {
        self.correct as f64 / self.samples as f64
    }
}

impl BatchSums {
    /// The three sums as a tensor `[3]` (f64), to be added up across devices.
    ///
    /// # Errors
    ///
    /// When the tensor cannot be made on `device`.
    pub fn to_tensor(&self, device: &Device) -> Result<Tensor> {
        // Counts are exact in f64 up to 2⁵³.
        Tensor::new(&[self.loss, self.correct as f64, self.samples as f64], device)
    }

    /// The sums that such a tensor holds.
    ///
    /// # Errors
    ///
    /// When it is not `[3]`, f64.
    pub fn from_tensor(tensor: &Tensor) -> Result<Self> {
        let [loss, correct, samples] = tensor.to_vec1::<f64>()?[..] else {
            candle_core::bail!("three sums expected, got {:?}", tensor.dims())
        };
        Ok(Self { loss, correct: correct as u64, samples: samples as u64 })
    }
}

impl AddAssign for BatchSums {
    fn add_assign(&mut self, other: Self) {
        self.loss += other.loss;
        self.correct += other.correct;
        self.samples += other.samples;
    }
}

/// What one step computed.
#[derive(Clone, Debug)]
pub struct Step {
    /// Loss and correct answers of the batch, before the update.
    pub sums: BatchSums,
    /// The gradients that the update used: sums over the batch, in the order of the parameters.
    pub gradients: Vec<Tensor>,
}

/// Loss and gradients of a batch that lies on the model's device; nothing is updated.
///
/// Both are sums over the samples: gradients of shards add up to the gradient of the batch.
///
/// # Errors
///
/// When the batch does not fit the model.
pub fn local_gradients(model: &Lenet, batch: &Batch) -> Result<Step> {
    let logits = model.forward(&batch.images)?;
    let loss = cross_entropy(&logits, &batch.labels)?;
    let gradients = model.parameters().gradients(&loss.backward()?)?;
    Ok(Step { sums: sums(&loss, &logits, batch)?, gradients })
}

/// One step on one device.
///
/// # Errors
///
/// When the batch does not fit the model.
pub fn train_batch(model: &Lenet, batch: &Batch, learning_rate: f64) -> Result<Step> {
    let step = local_gradients(model, batch)?;
    sgd(model.parameters(), &step.gradients, learning_rate, batch.len())?;
    Ok(step)
}

/// Reads loss and correct answers off the device.
pub(crate) fn sums(loss: &Tensor, logits: &Tensor, batch: &Batch) -> Result<BatchSums> {
    let answers = logits.detach().argmax(D::Minus1)?;
    let correct = answers.eq(&batch.labels)?.to_dtype(DType::U32)?.sum_all()?;
    Ok(BatchSums {
        loss: loss.detach().to_dtype(DType::F64)?.to_scalar()?,
        correct: correct.to_scalar::<u32>()?.into(),
        samples: batch.len() as u64,
    })
}

/// One epoch, measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct EpochRecord {
    /// Counted from 1.
    pub epoch: usize,
    /// Mean loss of the epoch's training samples, each before the update it contributed to.
    pub train_loss: f64,
    /// Share of them classified correctly, likewise.
    pub train_accuracy: f64,
    /// Mean loss on the test images after the epoch.
    pub test_loss: f64,
    /// Accuracy on the test images after the epoch.
    pub test_accuracy: f64,
    /// Training time, without the evaluation.
    pub seconds: f64,
    /// Training samples in a second.
    pub images_per_second: f64,
}

/// Why training stopped early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An operation failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
    /// The loss became infinite or not a number.
    #[error(
        "the loss is {loss} at step {step} of epoch {epoch}: the weights have run away, most likely \
         because the learning rate is too large"
    )]
    NotFinite {
        /// Counted from 1.
        epoch: usize,
        /// Counted from 1, within the epoch.
        step: usize,
        /// The loss.
        loss: f64,
    },
    /// Progress or metrics could not be written.
    #[error("cannot write the report: {0}")]
    Report(#[from] std::io::Error),
}

/// Trains for `options.epochs` epochs and measures each.
///
/// `train_batch` is given every batch, in CPU memory, and returns the sums over the *whole* batch.
/// `evaluate` is called after each epoch and returns the sums over the test images, or `None` on a
/// device that leaves evaluation to another; its time does not count.
///
/// # Errors
///
/// The first error of either, or [`Error::NotFinite`].
pub fn run_epochs<E: From<Error>>(
    options: &TrainOptions,
    loader: &Loader,
    report: &mut Report<'_>,
    mut train_batch: impl FnMut(&Batch) -> std::result::Result<BatchSums, E>,
    mut evaluate: impl FnMut() -> std::result::Result<Option<BatchSums>, E>,
) -> std::result::Result<Vec<EpochRecord>, E> {
    let mut records = Vec::with_capacity(options.epochs);
    for epoch in 1..=options.epochs {
        report.epoch_begins(epoch, options.epochs, loader.batches_per_epoch());
        let started = Instant::now();
        let mut train = BatchSums::default();
        for (step, batch) in (1..).zip(loader.epoch(epoch)) {
            let sums = train_batch(&batch.map_err(Error::from)?)?;
            if !sums.loss.is_finite() {
                return Err(Error::NotFinite { epoch, step, loss: sums.loss }.into());
            }
            train += sums;
            report.batch_done(&train, started.elapsed());
        }
        let elapsed = started.elapsed();
        let record = record(epoch, &train, evaluate()?, elapsed);
        report.epoch_ends(&record).map_err(Error::from)?;
        records.push(record);
    }
    Ok(records)
}

fn record(
    epoch: usize,
    train: &BatchSums,
    test: Option<BatchSums>,
    elapsed: Duration,
) -> EpochRecord {
    let seconds = elapsed.as_secs_f64();
    let test = test.unwrap_or_default();
    EpochRecord {
        epoch,
        train_loss: train.mean_loss(),
        train_accuracy: train.accuracy(),
        test_loss: test.mean_loss(),
        test_accuracy: test.accuracy(),
        seconds,
        images_per_second: train.samples as f64 / seconds,
    }
}

/// A finished run on one device.
#[derive(Clone, Debug)]
pub struct Trained {
    /// What each epoch measured.
    pub records: Vec<EpochRecord>,
    /// The final weights, by name, in CPU memory.
    pub weights: Vec<(String, Tensor)>,
}

/// Trains a fresh LeNet on one device, on the device's own threads.
///
/// # Errors
///
/// The first failure of a step, an evaluation or a report; [`Error::NotFinite`] when the loss runs away.
pub fn train(
    data: &LoadedData,
    options: &TrainOptions,
    dtype: DType,
    device: &ComputeDevice,
    report: &mut Report<'_>,
) -> std::result::Result<Trained, Error> {
    device.run(|| {
        let model = Lenet::new(options.seed, dtype, device.tensors())?;
        let loader = Loader::new(&data.train, options.batch_size, options.seed, dtype);
        let records = run_epochs::<Error>(
            options,
            &loader,
            report,
            |batch| {
                let batch = batch.to_device(device.tensors())?;
                Ok(train_batch(&model, &batch, options.learning_rate)?.sums)
            },
            || Ok(Some(evaluate(&model, &data.test, dtype, device)?)),
        )?;
        Ok(Trained { records, weights: model.parameters().snapshot()? })
    })
}

/// Average training time of an epoch in seconds.
pub fn seconds_per_epoch(records: &[EpochRecord]) -> f64 {
    records.iter().map(|record| record.seconds).sum::<f64>() / records.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Dataset, PIXELS};

    #[test]
    fn a_loss_that_is_not_finite_stops_with_its_step() {
        let data = Dataset::new(vec![[0; PIXELS]; 6], vec![0; 6]).unwrap();
        let options = TrainOptions { epochs: 3, batch_size: 2, learning_rate: 1.0, seed: 1 };
        let loader = Loader::new(&data, options.batch_size, options.seed, DType::F32);
        let mut steps = 0;
        let outcome = run_epochs::<Error>(
            &options,
            &loader,
            &mut Report::silent(),
            |batch| {
                steps += 1;
                let loss = if steps == 5 { f64::NAN } else { 1.0 };
                Ok(BatchSums { loss, correct: 0, samples: batch.len() as u64 })
            },
            || Ok(None),
        );
        let error = outcome.unwrap_err();
        assert!(matches!(error, Error::NotFinite { epoch: 2, step: 2, .. }), "{error}");
    }

    #[test]
    fn a_step_on_one_device_lowers_the_loss() {
        let data = Dataset::new(vec![[200; PIXELS]; 4], vec![3; 4]).unwrap();
        let batch = data.batch(&[0, 1, 2, 3], DType::F32).unwrap();
        let model = Lenet::new(1, DType::F32, &Device::Cpu).unwrap();
        let first = train_batch(&model, &batch, 0.1).unwrap().sums;
        let second = train_batch(&model, &batch, 0.1).unwrap().sums;
        assert!(second.loss < first.loss, "{} then {}", first.loss, second.loss);
        // Ten classes and weights near zero: every sample's loss is ln 10.
        approx::assert_relative_eq!(first.mean_loss(), 10f64.ln(), max_relative = 1e-3);
    }
}

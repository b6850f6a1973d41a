//! Training on one device, and the loop over epochs that every later stage uses.
//!
//! A step is three things: gradients of the *summed* loss ([`local_gradients`]), an update that divides
//! once by the size of the batch ([`sgd`]), and, from stage 4 on, one line between
//! the two in which devices add their gradients up. [`run_epochs`] knows nothing of that line: it is
//! given the step.

mod epochs;
mod position;
mod record;

use std::ops::AddAssign;

use candle_core::{D, DType, Device, Result, Tensor};
use serde::Serialize;
use tracing::info_span;

pub use epochs::{Error, continue_epochs, run_epochs};
pub use position::Position;
pub use record::{EpochRecord, epochs_trained, seconds_per_epoch};

use crate::data::Batch;
use crate::data::loader::Loader;
use crate::data::source::LoadedData;
use crate::device::ComputeDevice;
use crate::evaluate::evaluate;
use crate::interrupt;
use crate::lenet::Lenet;
use crate::ops::cross_entropy;
use crate::parameters::Snapshot;
use crate::report::Report;
use crate::report::trace::{self, COMPUTE};
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
    /// How many devices have seen a Ctrl-C. It travels with the sums so that all devices learn of it in
    /// the same step, and stop together.
    pub interrupts: u64,
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
    /// The sums as a tensor `[4]` (f64), to be added up across devices.
    ///
    /// # Errors
    ///
    /// When the tensor cannot be made on `device`.
    pub fn to_tensor(&self, device: &Device) -> Result<Tensor> {
        let Self { loss, correct, samples, interrupts } = *self;
        // Counts are exact in f64 up to 2⁵³.
        Tensor::new(&[loss, correct as f64, samples as f64, interrupts as f64], device)
    }

    /// The sums that such a tensor holds.
    ///
    /// # Errors
    ///
    /// When it is not `[4]`, f64.
    pub fn from_tensor(tensor: &Tensor) -> Result<Self> {
        let [loss, correct, samples, interrupts] = tensor.to_vec1::<f64>()?[..] else {
            candle_core::bail!("four sums expected, got {:?}", tensor.dims())
        };
        let count = |sum: f64| sum as u64;
        Ok(Self {
            loss,
            correct: count(correct),
            samples: count(samples),
            interrupts: count(interrupts),
        })
    }
}

impl AddAssign for BatchSums {
    fn add_assign(&mut self, other: Self) {
        self.loss += other.loss;
        self.correct += other.correct;
        self.samples += other.samples;
        self.interrupts += other.interrupts;
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
    let (logits, loss) = info_span!(target: COMPUTE, "forward").in_scope(|| {
        let logits = model.forward(&batch.images)?;
        let loss = cross_entropy(&logits, &batch.labels)?;
        Ok::<_, candle_core::Error>((logits, loss))
    })?;
    let gradients = info_span!(target: COMPUTE, "backward")
        .in_scope(|| model.parameters().gradients(&loss.backward()?))?;
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

/// Reads loss and correct answers of a batch off its device; the loss is the sum over the batch.
///
/// # Errors
///
/// When the shapes do not fit.
pub fn sums(loss: &Tensor, logits: &Tensor, batch: &Batch) -> Result<BatchSums> {
    let _span = info_span!(target: COMPUTE, "read loss").entered();
    let answers = logits.detach().argmax(D::Minus1)?;
    let correct = answers.eq(&batch.labels)?.to_dtype(DType::U32)?.sum_all()?;
    Ok(BatchSums {
        loss: loss.detach().to_dtype(DType::F64)?.to_scalar()?,
        correct: correct.to_scalar::<u32>()?.into(),
        samples: batch.len() as u64,
        interrupts: interrupt::requested().into(),
    })
}

/// A finished run on one device.
#[derive(Clone, Debug)]
pub struct Trained {
    /// What each epoch measured.
    pub records: Vec<EpochRecord>,
    /// The final weights, by name, in CPU memory.
    pub weights: Snapshot,
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
        let _rank = trace::rank(report.run(), 0, device);
        let model = Lenet::new(options.seed, dtype, device.tensors())?;
        let loader = Loader::new(&data.train, options.batch_size, options.seed, dtype);
        let records = run_epochs::<_, Error>(
            options,
            &loader,
            report,
            |batch| {
                let batch = batch.to_device(device.tensors())?;
                Ok(train_batch(&model, &batch, options.learning_rate)?.sums)
            },
            || Ok(Some(evaluate(&model, &data.test, dtype, device.tensors())?)),
        )?;
        Ok(Trained { records, weights: model.parameters().snapshot()? })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Dataset, PIXELS};

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

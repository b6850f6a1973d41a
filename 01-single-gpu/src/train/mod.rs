//! Training on one device, and the loop over epochs that every later stage uses.
//!
//! A step is three things: gradients of the *summed* loss ([`local_gradients`]), an update that divides
//! once by the size of the batch ([`sgd`]), and, from stage 4 on, one line between
//! the two in which devices add their gradients up. [`run_epochs`] knows nothing of that line: it is
//! given the step.

mod epochs;

use candle_core::{DType, Result, Tensor};
use tracing::info_span;

pub use epochs::{Error, continue_epochs, run_epochs};

use crate::evaluate::evaluate;
use crate::lenet::Lenet;
use crate::sgd::sgd;
use datasets::Batch;
use datasets::loader::Loader;
use datasets::source::LoadedData;
use devices::ComputeDevice;
use harness::records::{BatchSums, EpochRecord, TrainOptions};
use harness::report::Report;
use harness::report::trace::{self, COMPUTE};
use ops::backward::backward;
use ops::cross_entropy;
use ops::parameters::Snapshot;
use trainer::DeferredSums;

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
/// Both are sums over the samples: gradients of shards add up to the gradient of the batch. A batch may be
/// empty, as a shard may: then all are zero, and its rank can take part in what ranks do together.
///
/// # Errors
///
/// When the batch does not fit the model.
pub fn local_gradients(model: &Lenet, batch: &Batch) -> Result<Step> {
    if batch.is_empty() {
        // GPUs have no memory of size 0 that the operations could work on.
        let zeros = model.parameters().iter().map(|parameter| parameter.value.zeros_like());
        let gradients = zeros.collect::<Result<_>>()?;
        return Ok(Step { sums: BatchSums::of_no_samples(), gradients });
    }
    let (unread, gradients) = forward_and_backward(model, batch)?;
    Ok(Step { sums: unread.read()?, gradients })
}

/// The gradients of a batch that is not empty, and what is to be read off the device when it is wanted.
fn forward_and_backward(model: &Lenet, batch: &Batch) -> Result<(DeferredSums, Vec<Tensor>)> {
    let (logits, loss) = info_span!(target: COMPUTE, "forward").in_scope(|| {
        let logits = model.forward(&batch.images)?;
        let loss = cross_entropy(&logits, &batch.labels)?;
        Ok::<_, candle_core::Error>((logits, loss))
    })?;
    let gradients = info_span!(target: COMPUTE, "backward")
        .in_scope(|| model.parameters().gradients(&backward(&loss)?))?;
    Ok((DeferredSums::new(&loss, &logits, batch)?, gradients))
}

/// One step on one device. Its loss is read at the end: a GPU has its update to do before anybody waits for it.
///
/// # Errors
///
/// When the batch is empty, or does not fit the model.
pub fn train_batch(model: &Lenet, batch: &Batch, learning_rate: f64) -> Result<Step> {
    let (unread, gradients) = forward_and_backward(model, batch)?;
    sgd(model.parameters(), &gradients, learning_rate, batch.len())?;
    Ok(Step { sums: unread.read()?, gradients })
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
        let records = run_epochs::<_, Error, _>(
            options,
            &loader,
            report,
            |batch| {
                let batch = batch.to_device(device.tensors())?;
                let (unread, gradients) = forward_and_backward(&model, &batch)?;
                sgd(model.parameters(), &gradients, options.learning_rate, batch.len())?;
                Ok(unread.into_step_sums()?)
            },
            || Ok(Some(evaluate(&model, &data.test, dtype, device.tensors())?)),
        )?;
        Ok(Trained { records, weights: model.parameters().snapshot()? })
    })
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use datasets::{Dataset, PIXELS};

    #[test]
    fn an_empty_batch_counts_nothing_and_has_gradients_of_zero() {
        let data = Dataset::new(vec![[200; PIXELS]; 4], vec![3; 4]).unwrap();
        let model = Lenet::new(1, DType::F64, &Device::Cpu).unwrap();
        let step = local_gradients(&model, &data.batch(&[], DType::F64).unwrap()).unwrap();
        assert_eq!(step.sums, BatchSums::default());
        assert_eq!(step.gradients.len(), model.parameters().len());
        for (parameter, gradient) in model.parameters().iter().zip(&step.gradients) {
            assert_eq!(gradient.shape(), parameter.value.shape());
            let sum = gradient.abs().unwrap().sum_all().unwrap().to_scalar::<f64>().unwrap();
            assert_eq!(sum, 0.0, "{}", parameter.name);
        }
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

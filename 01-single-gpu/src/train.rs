//! A training step on one device, and the loop over epochs and batches.
//!
//! A step computes the gradients of the *summed* loss. Then [`sgd`] divides once, by the size of the
//! batch, and updates the parameters. From stage 4 on, one line between the two adds up the
//! gradients of all devices.

use candle_core::{DType, Result, Tensor};
use tracing::info_span;

use crate::evaluate::evaluate;
use crate::lenet::{LayerFunctions, Lenet};
use crate::sgd::sgd;
use datasets::Batch;
use datasets::loader::Loader;
use datasets::source::LoadedData;
use devices::ComputeDevice;
use harness::records::{BatchSums, EpochRecord, TrainOptions};
use harness::report::Report;
use harness::report::trace::{self, COMPUTE};
use model_state::parameters::Snapshot;
use ops::backward::backward;
use trainer::{Error, StepSums, TrainingRun};

// ANCHOR: train_batch
/// Makes one training step on one device.
///
/// Returns the sums of loss and correct answers over the batch, before the update. On a GPU the
/// sums stay in GPU memory until the caller reads them. A caller that reads them waits for the GPU.
/// A caller that does not read them can start the next step at once. Fails when the batch is empty,
/// or does not fit the model.
pub fn train_batch(model: &Lenet, batch: &Batch, learning_rate: f64) -> Result<StepSums> {
    let span = info_span!(target: COMPUTE, "forward").entered();
    let logits = model.forward(&batch.images)?;
    let loss = model.loss(&logits, &batch.labels)?;
    drop(span);

    let span = info_span!(target: COMPUTE, "backward").entered();
    let gradients = model.parameters().gradients(&backward(&loss)?)?;
    drop(span);

    sgd(model.parameters(), &gradients, learning_rate, batch.len())?;
    StepSums::new(&loss, &logits, batch)
}
// ANCHOR_END: train_batch

// ANCHOR: train
/// A finished run.
#[derive(Clone, Debug)]
pub struct Trained {
    /// The measurements of each epoch.
    pub records: Vec<EpochRecord>,
    /// The final weights, by name, in CPU memory.
    pub weights: Snapshot,
}

/// Trains a new LeNet on one device.
///
/// Call this function on one of the device's threads. `open_in_this_thread` makes the thread that
/// opens the device one of them. Fails when a step, an evaluation or a report fails, and with
/// [`Error::NotFinite`] when the loss is infinite or NaN.
pub fn train(
    data: &LoadedData,
    options: &TrainOptions,
    layers: impl Into<LayerFunctions>,
    dtype: DType,
    device: &ComputeDevice,
    report: &mut Report<'_>,
) -> std::result::Result<Trained, Error> {
    let _rank = trace::rank(report.run(), 0, device);
    let TrainOptions { batch_size, learning_rate, seed, .. } = *options;
    let model = Lenet::new(seed, dtype, device.tensors())?.with_layers(layers);
    let loader = Loader::new(&data.train, batch_size, seed, dtype);
    let mut run = TrainingRun::new(options, &loader, report);
    while run.next_epoch()? {
        while let Some(batch) = run.next_batch()? {
            let batch = batch.to_device(device.tensors())?;
            run.step_done(train_batch(&model, &batch, learning_rate)?)?;
        }
        run.epoch_done(evaluate(&model, &data.test, dtype, device.tensors())?)?;
    }
    Ok(Trained { records: run.into_records(), weights: model.parameters().snapshot()? })
}
// ANCHOR_END: train

// ANCHOR: local_gradients
/// Sums over the samples of a batch, or of one rank's shard.
#[derive(Clone, Debug)]
pub struct Step {
    /// Loss and correct answers of these samples, before the update.
    pub sums: BatchSums,
    /// The gradients, summed over the same samples, in the order of the parameters.
    pub gradients: Vec<Tensor>,
}

/// Computes loss and gradients of a batch on the model's device, without an update.
///
/// Loss and gradients are sums over the samples, so the gradients of shards add up to the gradients
/// of the batch. A shard may be empty. Then all gradients are zero, and the rank of the shard still
/// takes part in the all-reduce. Fails when the batch does not fit the model.
pub fn local_gradients(model: &Lenet, batch: &Batch) -> Result<Step> {
    if batch.is_empty() {
        // The operations need memory, and a GPU cannot allocate memory of size 0.
        let zeros = model.parameters().iter().map(|parameter| parameter.value.zeros_like());
        return Ok(Step {
            sums: BatchSums::of_no_samples(),
            gradients: zeros.collect::<Result<_>>()?,
        });
    }
    let span = info_span!(target: COMPUTE, "forward").entered();
    let logits = model.forward(&batch.images)?;
    let loss = model.loss(&logits, &batch.labels)?;
    drop(span);

    let span = info_span!(target: COMPUTE, "backward").entered();
    let gradients = model.parameters().gradients(&backward(&loss)?)?;
    drop(span);

    Ok(Step { sums: StepSums::new(&loss, &logits, batch)?.read()?, gradients })
}
// ANCHOR_END: local_gradients

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
        let first = train_batch(&model, &batch, 0.1).unwrap().read().unwrap();
        let second = train_batch(&model, &batch, 0.1).unwrap().read().unwrap();
        assert!(second.loss < first.loss, "{} then {}", first.loss, second.loss);
        // Ten classes and weights near zero: every sample's loss is ln 10.
        approx::assert_relative_eq!(first.mean_loss(), 10f64.ln(), max_relative = 1e-3);
    }
}

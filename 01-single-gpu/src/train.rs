//! A training step, and the loop over epochs that every stage uses.
//!
//! A step computes the gradients of the *summed* loss, then [`sgd`] divides once, by the size of
//! the batch, and updates the parameters. From stage 4 on, one line between the two adds up the
//! gradients of all devices. [`run_epochs`] takes the step as a function, so the loop is the same
//! with and without that line.

use std::time::Instant;

use candle_core::{DType, Tensor};
use tracing::info_span;

use crate::evaluate::evaluate;
use crate::lenet::{Layers, Lenet};
use crate::sgd::sgd;
use datasets::Batch;
use datasets::loader::{Epochs, Loader};
use datasets::source::LoadedData;
use devices::ComputeDevice;
use harness::records::{BatchSums, EpochRecord, TrainOptions, TrainerState};
use harness::report::Report;
use harness::report::trace::{self, COMPUTE, STEPS};
use ops::backward::backward;
use ops::parameters::Snapshot;
use trainer::{DeferredSums, StepSums, SumsReader};

// ANCHOR: train_batch
/// The results of a step.
#[derive(Clone, Debug)]
pub struct Step {
    /// Loss and correct answers of the batch, before the update.
    pub sums: BatchSums,
    /// The gradients of the update: sums over the batch, in the order of the parameters.
    pub gradients: Vec<Tensor>,
}

/// Makes one training step on one device.
///
/// # Errors
///
/// When the batch is empty, or does not fit the model.
pub fn train_batch(model: &Lenet, batch: &Batch, learning_rate: f64) -> candle_core::Result<Step> {
    let (sums, gradients) = forward_and_backward(model, batch)?;
    sgd(model.parameters(), &gradients, learning_rate, batch.len())?;
    // Reading the loss waits for the device. By now, a GPU has the update in its queue.
    Ok(Step { sums: sums.read()?, gradients })
}

/// Computes the gradients of a batch that is not empty. Loss and correct answers stay on the device
/// until they are read.
fn forward_and_backward(
    model: &Lenet,
    batch: &Batch,
) -> candle_core::Result<(DeferredSums, Vec<Tensor>)> {
    let (logits, loss) = info_span!(target: COMPUTE, "forward").in_scope(|| {
        let logits = model.forward(&batch.images)?;
        let loss = model.loss(&logits, &batch.labels)?;
        Ok::<_, candle_core::Error>((logits, loss))
    })?;
    let gradients = info_span!(target: COMPUTE, "backward")
        .in_scope(|| model.parameters().gradients(&backward(&loss)?))?;
    Ok((DeferredSums::new(&loss, &logits, batch)?, gradients))
}
// ANCHOR_END: train_batch

// ANCHOR: local_gradients
/// Computes loss and gradients of a batch on the model's device, without an update.
///
/// Both are sums over the samples: the gradients of shards add up to the gradient of the batch. The
/// batch may be empty, since a shard may be. Then all gradients are zero, and the rank of that
/// shard still takes part in the all-reduce.
///
/// # Errors
///
/// When the batch does not fit the model.
pub fn local_gradients(model: &Lenet, batch: &Batch) -> candle_core::Result<Step> {
    if batch.is_empty() {
        // A GPU has no memory of size 0 for the operations to work on.
        let zeros = model.parameters().iter().map(|parameter| parameter.value.zeros_like());
        let gradients = zeros.collect::<Result<_, _>>()?;
        return Ok(Step { sums: BatchSums::of_no_samples(), gradients });
    }
    let (sums, gradients) = forward_and_backward(model, batch)?;
    Ok(Step { sums: sums.read()?, gradients })
}
// ANCHOR_END: local_gradients

// ANCHOR: train
/// A finished run on one device.
#[derive(Clone, Debug)]
pub struct Trained {
    /// The measurements of each epoch.
    pub records: Vec<EpochRecord>,
    /// The final weights, by name, in CPU memory.
    pub weights: Snapshot,
}

/// Trains a fresh LeNet on one device, on the device's own threads.
///
/// # Errors
///
/// The first failure of a step, an evaluation or a report; [`Error::NotFinite`] when the loss is
/// infinite or NaN.
pub fn train(
    data: &LoadedData,
    options: &TrainOptions,
    layers: Layers,
    dtype: DType,
    device: &ComputeDevice,
    report: &mut Report<'_>,
) -> Result<Trained, Error> {
    device.run(|| {
        let _rank = trace::rank(report.run(), 0, device);
        let model = Lenet::new(options.seed, dtype, device.tensors())?.with_layers(layers);
        let loader = Loader::new(&data.train, options.batch_size, options.seed, dtype);
        let train_batch = |batch: &Batch| {
            let batch = batch.to_device(device.tensors())?;
            let (sums, gradients) = forward_and_backward(&model, &batch)?;
            sgd(model.parameters(), &gradients, options.learning_rate, batch.len())?;
            Ok(sums.into_step_sums()?)
        };
        let evaluate = || Ok(Some(evaluate(&model, &data.test, dtype, device.tensors())?));
        let records = run_epochs::<_, Error, _>(options, &loader, report, train_batch, evaluate)?;
        Ok(Trained { records, weights: model.parameters().snapshot()? })
    })
}
// ANCHOR_END: train

// ANCHOR: epochs
/// Trains for `options.epochs` epochs and measures each.
///
/// `train_batch` gets every batch of the `loader`, in CPU memory. It returns the sums over the
/// *whole* batch, or [`DeferredSums`] sums to be read later. `evaluate` runs after each epoch and
/// returns the sums over the test images, or `None` on a device that leaves the evaluation to
/// another device. The time of an epoch does not include the evaluation.
///
/// When the sums of a step count an interrupt, that step is the last one. Its epoch ends early, and
/// is evaluated and recorded as far as it went.
///
/// # Errors
///
/// The first error of either function, or [`Error::NotFinite`].
pub fn run_epochs<L: Epochs, E: From<Error>, S: Into<StepSums>>(
    options: &TrainOptions,
    loader: &L,
    report: &mut Report<'_>,
    train_batch: impl FnMut(&L::Batch) -> Result<S, E>,
    evaluate: impl FnMut() -> Result<Option<BatchSums>, E>,
) -> Result<Vec<EpochRecord>, E> {
    let start = TrainerState::default();
    continue_epochs(options, loader, report, start, train_batch, |_| Ok(()), evaluate)
}

/// Continues [`run_epochs`] from the position of an earlier run. The loop leaves out the batches
/// that the earlier run finished. An interrupt that ended the earlier run does not end this run.
///
/// `after_step` gets the position after each step. When sums are read later, `after_step` gets the
/// position after the steps of those sums. The time of an epoch includes `after_step`.
///
/// # Errors
///
/// The first error of the three functions, or [`Error::NotFinite`].
pub fn continue_epochs<L: Epochs, E: From<Error>, S: Into<StepSums>>(
    options: &TrainOptions,
    loader: &L,
    report: &mut Report<'_>,
    start: TrainerState,
    mut train_batch: impl FnMut(&L::Batch) -> Result<S, E>,
    mut after_step: impl FnMut(&TrainerState) -> Result<(), E>,
    mut evaluate: impl FnMut() -> Result<Option<BatchSums>, E>,
) -> Result<Vec<EpochRecord>, E> {
    let TrainOptions { epochs, learning_rate, .. } = *options;
    let batches_per_epoch = loader.batches_per_epoch();
    let mut state = start;
    state.sums.interrupts = 0;
    let mut reader = SumsReader::default();
    while state.epoch() <= epochs {
        let epoch = state.epoch();
        report
            .epoch_begins(epoch, epochs, batches_per_epoch, state.batches)
            .map_err(Error::from)?;
        let (earlier, started) = (state.elapsed, Instant::now());
        let span = info_span!(target: STEPS, "epoch", epoch).entered();
        let mut batches = loader.rest_of_epoch(epoch, state.batches);
        let mut next = || info_span!(target: COMPUTE, "load").in_scope(|| batches.next());
        let mut step = state.batches;
        while state.sums.interrupts == 0
            && let Some(batch) = next()
        {
            step += 1;
            let _span = info_span!(target: STEPS, "step", step).entered();
            let seen = train_batch(&batch.map_err(Error::from)?)?.into();
            let last = step == batches_per_epoch;
            let Some(sums) = reader.read(seen, last).map_err(Error::from)? else { continue };
            let updated = (epoch, step) != (1, 1);
            check_loss(sums.loss, epoch, step, learning_rate, updated)?;
            state.sums += sums;
            state.batches = step;
            state.elapsed = earlier + started.elapsed();
            report.batches_done(state.batches, &state.sums, state.elapsed);
            after_step(&state)?;
        }
        drop(span);
        let elapsed = earlier + started.elapsed();
        let test = evaluate()?;
        if let Some(test) = test {
            // The test images are the first that see the last update.
            check_loss(test.loss, epoch, state.batches, learning_rate, true)?;
        }
        let part = state.sums.samples as f64 / loader.samples_per_epoch() as f64;
        let record = EpochRecord::new(epoch, part, &state.sums, test, elapsed);
        report.epoch_ends(&record).map_err(Error::from)?;
        let TrainerState { mut records, sums, .. } = state;
        records.push(record);
        state = TrainerState { records, ..TrainerState::default() };
        if sums.interrupts > 0 {
            break;
        }
    }
    Ok(state.records)
}

/// Refuses a loss that is infinite or NaN.
fn check_loss(
    loss: f64,
    epoch: usize,
    step: usize,
    learning_rate: f64,
    updated: bool,
) -> Result<(), Error> {
    if loss.is_finite() {
        return Ok(());
    }
    Err(Error::NotFinite { epoch, step, loss, learning_rate, updated })
}
// ANCHOR_END: epochs

// ANCHOR: errors
/// The reason why training stopped early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An operation failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
    /// The loss became infinite or NaN.
    #[error(
        "the loss is {loss} at step {step} of epoch {epoch}: {}",
        likely_cause(*updated, *learning_rate)
    )]
    NotFinite {
        /// Counted from 1.
        epoch: usize,
        /// Counted from 1, within the epoch. When losses are read later, an earlier step may have
        /// been the first.
        step: usize,
        /// The loss.
        loss: f64,
        /// The learning rate.
        learning_rate: f64,
        /// Whether an update was made before.
        updated: bool,
    },
    /// Progress or metrics could not be written.
    #[error("cannot write the report: {0}")]
    Report(#[from] std::io::Error),
}

/// Names the most likely reason for a loss that is not finite.
fn likely_cause(updated: bool, learning_rate: f64) -> String {
    if !updated {
        return "no update was made yet, so the images or the initial weights are not finite"
            .to_owned();
    }
    // Debug prints a very large or small rate with an exponent.
    format!(
        "the weights have run away, most likely because the learning rate {learning_rate:?} is too \
         large; try a tenth of it"
    )
}
// ANCHOR_END: errors

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;
    use datasets::{Dataset, PIXELS};
    use harness::records::epochs_trained;

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

    /// Trains for three epochs of three steps of two samples. `sums` gets the number of the step,
    /// from 1, and of its samples.
    fn run(sums: impl Fn(usize, u64) -> BatchSums) -> Result<Vec<EpochRecord>, Error> {
        let data = Dataset::new(vec![[0; PIXELS]; 6], vec![0; 6]).unwrap();
        let options = TrainOptions { epochs: 3, batch_size: 2, learning_rate: 3.0, seed: 1 };
        let loader = Loader::new(&data, options.batch_size, options.seed, DType::F32);
        let mut step = 0;
        let train_batch = |batch: &Batch| {
            step += 1;
            Ok(sums(step, batch.len() as u64))
        };
        run_epochs(&options, &loader, &mut Report::silent(), train_batch, || Ok(None))
    }

    #[test]
    fn a_loss_that_is_not_finite_stops_with_its_step() {
        let not_a_number_at = |bad| {
            run(|step, samples| {
                let loss = if step == bad { f64::NAN } else { 1.0 };
                BatchSums { loss, samples, ..BatchSums::default() }
            })
            .unwrap_err()
        };
        let error = not_a_number_at(5);
        assert!(matches!(error, Error::NotFinite { epoch: 2, step: 2, .. }), "{error}");
        assert!(
            error.to_string().contains("the learning rate 3.0 is too large; try a tenth of it")
        );
        // Before the first update, the learning rate cannot be the reason.
        assert!(not_a_number_at(1).to_string().contains("the initial weights are not finite"));
    }

    /// An epoch of one step: the test images are the first that see its update.
    #[test]
    fn a_loss_of_the_test_images_that_is_not_finite_is_the_updates() {
        let data = Dataset::new(vec![[0; PIXELS]; 2], vec![0; 2]).unwrap();
        let options = TrainOptions { epochs: 3, batch_size: 8, learning_rate: 3.0, seed: 1 };
        let loader = Loader::new(&data, options.batch_size, options.seed, DType::F32);
        let sums = |loss| BatchSums { loss, samples: 2, ..BatchSums::default() };
        let (train, test) = (|_: &Batch| Ok(sums(1.0)), || Ok(Some(sums(f64::NAN))));
        let told = run_epochs::<_, Error, _>(&options, &loader, &mut Report::silent(), train, test);
        let told = told.unwrap_err().to_string();
        assert!(
            told.starts_with("the loss is NaN at step 1 of epoch 1: the weights have"),
            "{told}"
        );
    }

    #[test]
    fn after_an_interrupt_that_is_the_last_step_that_was_made() {
        let data = Dataset::new(vec![[0; PIXELS]; 6], vec![0; 6]).unwrap();
        let options = TrainOptions { epochs: 3, batch_size: 2, learning_rate: 3.0, seed: 1 };
        let loader = Loader::new(&data, options.batch_size, options.seed, DType::F32);
        let train = |_: &Batch| Ok(BatchSums { samples: 2, interrupts: 1, ..BatchSums::default() });
        let test = || Ok(Some(BatchSums { loss: f64::NAN, samples: 6, ..BatchSums::default() }));
        let told = run_epochs::<_, Error, _>(&options, &loader, &mut Report::silent(), train, test);
        let told = told.unwrap_err();
        assert!(matches!(told, Error::NotFinite { epoch: 1, step: 1, .. }), "{told}");
    }

    #[test]
    fn a_run_goes_on_from_any_of_its_positions() {
        let data = Dataset::new(vec![[0; PIXELS]; 6], (0..6).collect()).unwrap();
        let options = TrainOptions { epochs: 3, batch_size: 4, learning_rate: 3.0, seed: 1 };
        let loader = Loader::new(&data, options.batch_size, options.seed, DType::F32);
        // Labels of every batch, positions after it, and the records at the end.
        let run = |from: TrainerState| {
            let (mut seen, mut positions) = (Vec::new(), Vec::new());
            let train_batch = |batch: &Batch| {
                let labels = batch.labels.to_vec1::<u32>()?;
                let loss = labels.iter().zip(1..).map(|(&label, at)| f64::from(label * at)).sum();
                seen.push(labels);
                Ok(BatchSums { loss, samples: batch.len() as u64, ..BatchSums::default() })
            };
            let after_step = |at: &TrainerState| {
                positions.push(at.clone());
                Ok::<_, Error>(())
            };
            let report = &mut Report::silent();
            let test = || Ok(None);
            let records =
                continue_epochs(&options, &loader, report, from, train_batch, after_step, test);
            (seen, positions, records.unwrap())
        };
        let measured = |records: &[EpochRecord]| {
            let of = |record: &EpochRecord| (record.epoch, record.part, record.train_loss);
            records.iter().map(of).collect::<Vec<_>>()
        };
        let (seen, positions, records) = run(TrainerState::default());
        assert_eq!((seen.len(), positions.len(), records.len()), (6, 6, 3));
        for (done, mut from) in (1..).zip(positions) {
            assert_eq!(from.steps(loader.batches_per_epoch()), done);
            from.sums.interrupts = 1;
            let (rest, _, again) = run(from);
            assert_eq!(rest, seen[done..], "after {done} steps");
            assert_eq!(measured(&again), measured(&records), "after {done} steps");
        }
    }

    #[test]
    fn an_interrupt_ends_the_run_with_its_step() {
        let interrupted_at = |last| {
            run(|step, samples| {
                assert!(step <= last, "step {step} came after the interrupt at {last}");
                let interrupts = (step == last).into();
                BatchSums { samples, interrupts, ..BatchSums::default() }
            })
            .unwrap()
        };
        for (last, epochs, trained) in [(1, 1, 1.0 / 3.0), (3, 1, 1.0), (5, 2, 5.0 / 3.0)] {
            let records = interrupted_at(last);
            assert_eq!(records.len(), epochs);
            assert!((epochs_trained(&records) - trained).abs() < 1e-12, "{records:?}");
        }
    }

    /// Returns a step's sums on its device: the loss, and one right answer of two.
    fn left(loss: f64) -> DeferredSums {
        let tensor = |values: &[u32]| Tensor::new(values, &Device::Cpu).unwrap();
        let logits = Tensor::new(&[[0f32, 1.0], [0.0, 1.0]], &Device::Cpu).unwrap();
        let batch = Batch { images: tensor(&[0, 0]), labels: tensor(&[1, 0]) };
        DeferredSums::new(&Tensor::new(loss, &Device::Cpu).unwrap(), &logits, &batch).unwrap()
    }

    #[test]
    fn sums_that_are_read_later_are_those_that_are_read_at_once() {
        let data = Dataset::new(vec![[0; PIXELS]; 7], vec![0; 7]).unwrap();
        let options = TrainOptions { epochs: 3, batch_size: 2, learning_rate: 3.0, seed: 1 };
        let loader = Loader::new(&data, options.batch_size, options.seed, DType::F32);
        let run = |later: bool| {
            let (mut step, mut positions) = (0.0, Vec::new());
            let train_batch = |_: &Batch| {
                step += 1.0;
                let unread = left(step);
                Ok(if later { StepSums::Deferred(unread) } else { StepSums::Sums(unread.read()?) })
            };
            let after_step = |at: &TrainerState| {
                positions.push(at.batches);
                Ok::<_, Error>(())
            };
            let (report, begin, test) =
                (&mut Report::silent(), TrainerState::default(), || Ok(None));
            let records =
                continue_epochs(&options, &loader, report, begin, train_batch, after_step, test);
            let of = |record: &EpochRecord| {
                (record.epoch, record.part, record.train_loss, record.train_accuracy)
            };
            (records.unwrap().iter().map(of).collect::<Vec<_>>(), positions)
        };
        let (at_once, every_step) = run(false);
        let (later, positions) = run(true);
        assert_eq!(later, at_once);
        assert_eq!(every_step, [1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4]);
        // The list has the first step and nothing more before the epoch's end, unless a tenth of a
        // second passed.
        assert!(positions.starts_with(&[1]) && positions.ends_with(&[4]), "{positions:?}");
        assert!(positions.len() < every_step.len(), "{positions:?}");
    }

    #[test]
    fn a_loss_that_is_not_finite_is_found_when_it_is_read() {
        let data = Dataset::new(vec![[0; PIXELS]; 6], vec![0; 6]).unwrap();
        let options = TrainOptions { epochs: 3, batch_size: 2, learning_rate: 3.0, seed: 1 };
        let loader = Loader::new(&data, options.batch_size, options.seed, DType::F32);
        let mut step = 0;
        let train = |_: &Batch| {
            step += 1;
            Ok(left(if step == 4 { f64::NAN } else { 1.0 }))
        };
        let report = &mut Report::silent();
        let told = run_epochs::<_, Error, _>(&options, &loader, report, train, || Ok(None));
        let told = told.unwrap_err();
        assert!(matches!(told, Error::NotFinite { epoch: 2, .. }), "{told}");
        let (report, at_once) = (&mut Report::silent(), |_: &Batch| Ok(left(f64::NAN)));
        let told = run_epochs::<_, Error, _>(&options, &loader, report, at_once, || Ok(None));
        let told = told.unwrap_err().to_string();
        assert!(told.contains("no update was made yet"), "{told}");
    }
}

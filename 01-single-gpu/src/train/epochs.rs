//! The loop over epochs and steps: what every stage's training has in common.

use std::time::Instant;

use tracing::info_span;

use datasets::loader::Epochs;
use harness::records::{BatchSums, EpochRecord, TrainOptions, TrainerState};
use harness::report::Report;
use harness::report::trace::{COMPUTE, STEPS};
use trainer::{StepSums, SumsReader};

/// Why training stopped early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An operation failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
    /// The loss became infinite or not a number.
    #[error(
        "the loss is {loss} at step {step} of epoch {epoch}: {}",
        likely_cause(*updated, *learning_rate)
    )]
    NotFinite {
        /// Counted from 1.
        epoch: usize,
        /// Counted from 1, within the epoch. Where losses are read later, an earlier step may have been the first.
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

/// Why a loss is most likely not finite.
fn likely_cause(updated: bool, learning_rate: f64) -> String {
    if !updated {
        return "no update was made yet, so the images or the initial weights are not finite"
            .to_owned();
    }
    // As Debug, a very large or small rate is told with an exponent.
    format!(
        "the weights have run away, most likely because the learning rate {learning_rate:?} is too \
         large; try a tenth of it"
    )
}

/// Trains for `options.epochs` epochs and measures each.
///
/// `train_batch` is given every batch of the `loader`, in CPU memory, and returns the sums over the *whole* batch, read
/// or deferred: see [`StepSums`].
/// `evaluate` is called after each epoch and returns the sums over the test images, or `None` on a
/// device that leaves evaluation to another; its time does not count.
///
/// When a step's sums count an interrupt, that step is the last one: it ends its epoch early, which is
/// evaluated and recorded as far as it went.
///
/// # Errors
///
/// The first error of either, or [`Error::NotFinite`].
pub fn run_epochs<L: Epochs, E: From<Error>, S: Into<StepSums>>(
    options: &TrainOptions,
    loader: &L,
    report: &mut Report<'_>,
    train_batch: impl FnMut(&L::Batch) -> std::result::Result<S, E>,
    evaluate: impl FnMut() -> std::result::Result<Option<BatchSums>, E>,
) -> std::result::Result<Vec<EpochRecord>, E> {
    let begin = TrainerState::default();
    continue_epochs(options, loader, report, begin, train_batch, |_| Ok(()), evaluate)
}

/// As [`run_epochs`], from a position on: batches that are done are left out. The interrupt that may have
/// ended the earlier run there does not count any more.
///
/// `after_step` is told the position after each step, also after the one that an interrupt made the last; of steps
/// whose sums are read later, after those with which they are read. Its time counts.
///
/// # Errors
///
/// As [`run_epochs`], and those of `after_step`.
pub fn continue_epochs<L: Epochs, E: From<Error>, S: Into<StepSums>>(
    options: &TrainOptions,
    loader: &L,
    report: &mut Report<'_>,
    from: TrainerState,
    mut train_batch: impl FnMut(&L::Batch) -> std::result::Result<S, E>,
    mut after_step: impl FnMut(&TrainerState) -> std::result::Result<(), E>,
    mut evaluate: impl FnMut() -> std::result::Result<Option<BatchSums>, E>,
) -> std::result::Result<Vec<EpochRecord>, E> {
    let TrainOptions { epochs, learning_rate, .. } = *options;
    let batches_per_epoch = loader.batches_per_epoch();
    let mut at = from;
    at.sums.interrupts = 0;
    let mut reader = SumsReader::default();
    while at.epoch() <= epochs {
        let epoch = at.epoch();
        report.epoch_begins(epoch, epochs, batches_per_epoch, at.batches).map_err(Error::from)?;
        let (earlier, started) = (at.elapsed, Instant::now());
        let span = info_span!(target: STEPS, "epoch", epoch).entered();
        let mut batches = loader.rest_of_epoch(epoch, at.batches);
        let mut next = || info_span!(target: COMPUTE, "load").in_scope(|| batches.next());
        let mut step = at.batches;
        while at.sums.interrupts == 0
            && let Some(batch) = next()
        {
            step += 1;
            let _span = info_span!(target: STEPS, "step", step).entered();
            let sums = train_batch(&batch.map_err(Error::from)?)?.into();
            let last = step == batches_per_epoch;
            let Some(sums) = reader.read(sums, last).map_err(Error::from)? else { continue };
            if !sums.loss.is_finite() {
                let (loss, updated) = (sums.loss, (epoch, step) != (1, 1));
                return Err(Error::NotFinite { epoch, step, loss, learning_rate, updated }.into());
            }
            at.sums += sums;
            at.batches = step;
            at.elapsed = earlier + started.elapsed();
            report.batches_done(at.batches, &at.sums, at.elapsed);
            after_step(&at)?;
        }
        drop(span);
        let elapsed = earlier + started.elapsed();
        let part = at.sums.samples as f64 / loader.samples_per_epoch() as f64;
        let test = evaluate()?;
        if let Some(test) = test.filter(|test| !test.loss.is_finite()) {
            // The last update did it: no training batch has seen its weights yet.
            let (step, loss, updated) = (at.batches, test.loss, true);
            return Err(Error::NotFinite { epoch, step, loss, learning_rate, updated }.into());
        }
        let record = EpochRecord::new(epoch, part, &at.sums, test, elapsed);
        report.epoch_ends(&record).map_err(Error::from)?;
        let TrainerState { mut records, sums, .. } = at;
        records.push(record);
        at = TrainerState { records, ..TrainerState::default() };
        if sums.interrupts > 0 {
            break;
        }
    }
    Ok(at.records)
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Tensor};

    use super::*;
    use datasets::loader::Loader;
    use datasets::{Batch, Dataset, PIXELS};
    use harness::records::epochs_trained;
    use trainer::DeferredSums;

    /// Three epochs of three steps of two samples; `sums` is told the step, from 1, and its samples.
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
        // Before the first update it cannot be the learning rate.
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

    /// What a step leaves on its device: the loss, and one of two answers right.
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
        // The first step, and then nothing before an epoch was over, unless this machine took a tenth of a second.
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

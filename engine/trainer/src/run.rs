//! The course of a training run: the next batch, the metrics, the reason to stop.
//!
//! Each stage writes this loop with its own step. All stages measure, report, stop and resume in the same way:
//!
//! ```text
//! while run.next_epoch()? {
//!     while let Some(batch) = run.next_batch()? {
//!         run.step_done(sums)?;                // the sums of a step on the batch
//!     }
//!     run.epoch_done(test)?;                   // the sums over the test images
//! }
//! run.into_records()
//! ```

use std::mem;
use std::time::{Duration, Instant};

use candle_core::{Tensor, bail};
use datasets::Batch;
use datasets::loader::{Epochs, Prefetch};
use harness::interrupt;
use harness::records::{BatchSums, EpochRecord, TrainOptions, TrainerState};
use harness::report::Report;
use harness::report::trace::{COMPUTE, STEPS};
use ops::{loss_and_correct, sum};
use tracing::info_span;
use tracing::span::EnteredSpan;

/// The time between two reads: short for a user who watches the progress, and long for a GPU.
const READ_EVERY: Duration = Duration::from_millis(100);

/// A training run between its first step and its last.
pub struct TrainingRun<'a, 'r, L: Epochs> {
    // A step lies within its epoch, so its span is dropped first.
    step_span: Option<EnteredSpan>,
    epoch_span: Option<EnteredSpan>,
    options: TrainOptions,
    loader: &'a L,
    report: &'a mut Report<'r>,
    state: TrainerState,
    /// The sums of the steps since the last read, if they are still on a GPU.
    deferred: Option<(Tensor, u64)>,
    last_read: Option<Instant>,
    /// The rest of the current epoch.
    batches: Option<Prefetch<L::Batch>>,
    /// The current step, counted from 1 within its epoch.
    step: usize,
    started: Instant,
    /// The time of the current epoch in an earlier run.
    earlier: Duration,
    interrupted: bool,
}

impl<'a, 'r, L: Epochs> TrainingRun<'a, 'r, L> {
    /// Begins a run of `options.epochs` epochs over the batches of `loader`.
    pub fn new(options: &TrainOptions, loader: &'a L, report: &'a mut Report<'r>) -> Self {
        Self::resume(options, loader, report, TrainerState::default())
    }

    /// Resumes an earlier run from its state, after the last batch of that run. The interrupt of that run does not end this one.
    pub fn resume(
        options: &TrainOptions,
        loader: &'a L,
        report: &'a mut Report<'r>,
        mut state: TrainerState,
    ) -> Self {
        state.sums.interrupts = 0;
        Self {
            step_span: None,
            epoch_span: None,
            options: *options,
            loader,
            report,
            deferred: None,
            last_read: None,
            batches: None,
            step: 0,
            started: Instant::now(),
            earlier: Duration::ZERO,
            interrupted: false,
            state,
        }
    }

    /// Begins the next epoch. Returns `false` after the last epoch, and after an interrupt.
    pub fn next_epoch(&mut self) -> Result<bool, Error> {
        let (epoch, epochs, done) = (self.state.epoch(), self.options.epochs, self.state.batches);
        if self.interrupted || epoch > epochs {
            return Ok(false);
        }
        self.report.epoch_begins(epoch, epochs, self.loader.batches_per_epoch(), done)?;
        (self.earlier, self.started) = (self.state.elapsed, Instant::now());
        self.epoch_span = Some(info_span!(target: STEPS, "epoch", epoch).entered());
        self.batches = Some(self.loader.rest_of_epoch(epoch, done));
        self.step = done;
        Ok(true)
    }

    /// Returns the next batch of the epoch, in CPU memory, or `None` at the end of the epoch and after the step whose sums count an
    /// interrupt. Fails when the batch cannot be made.
    pub fn next_batch(&mut self) -> Result<Option<L::Batch>, Error> {
        self.step_span = None;
        if self.state.sums.interrupts > 0 {
            interrupt::acknowledge();
            self.batches = None;
        }
        let load = info_span!(target: COMPUTE, "load").entered();
        let batch = self.batches.as_mut().and_then(Iterator::next);
        drop(load);
        let Some(batch) = batch else {
            self.batches = None;
            self.epoch_span = None;
            self.state.elapsed = self.earlier + self.started.elapsed();
            return Ok(None);
        };
        self.step += 1;
        self.step_span = Some(info_span!(target: STEPS, "step", step = self.step).entered());
        Ok(Some(batch?))
    }

    /// Counts a step. `sums` are those of the *whole* batch, over all devices. Returns the state after the step, or `None` while
    /// the sums stay on their device. Fails with [`Error::NotFinite`], or the device's error when the sums are read.
    pub fn step_done(&mut self, sums: impl Into<StepSums>) -> Result<Option<&TrainerState>, Error> {
        let last = self.step == self.loader.batches_per_epoch();
        let Some(sums) = self.read(sums.into(), last)? else { return Ok(None) };
        let updated = (self.state.epoch(), self.step) != (1, 1);
        self.check_loss(sums.loss, updated)?;
        self.state.sums += sums;
        self.state.batches = self.step;
        self.state.elapsed = self.earlier + self.started.elapsed();
        self.report.batches_done(self.step, &self.state.sums, self.state.elapsed);
        Ok(Some(&self.state))
    }

    /// Ends the epoch. `test` are the sums over the test images that were evaluated. An interrupt during the evaluation ends the run
    /// without a result. Then this function returns the state before, from which a run resumes with the evaluation. Fails with
    /// [`Error::NotFinite`], or when the report cannot be written.
    pub fn epoch_done(&mut self, test: BatchSums) -> Result<Option<TrainerState>, Error> {
        let is_cut = self.state.sums.interrupts == 0 && test.interrupts > 0;
        let test = if is_cut { BatchSums::default() } else { test };
        let before = is_cut.then(|| {
            self.state.sums.interrupts = 1;
            self.state.clone()
        });
        // The test images are the first that see the last update.
        self.check_loss(test.loss, true)?;
        let TrainerState { mut records, sums, elapsed, .. } = mem::take(&mut self.state);
        let part = sums.samples as f64 / self.loader.samples_per_epoch() as f64;
        let record = EpochRecord::new(records.len() + 1, part, &sums, test, elapsed);
        self.report.epoch_ends(&record)?;
        records.push(record);
        self.state.records = records;
        self.interrupted = sums.interrupts > 0;
        Ok(before)
    }

    /// Returns the measurements of each epoch.
    pub fn into_records(self) -> Vec<EpochRecord> {
        self.state.records
    }

    /// Adds the sums of a step. Returns the sums of all steps since the last read, or `None` if the next read is not due. Sums in
    /// CPU memory are read at once. On a GPU, so are those of the `last` step of an epoch, and of the first of a run: if its loss
    /// is NaN, no update is the cause. All steps of an epoch are of the same kind.
    fn read(&mut self, step: StepSums, last: bool) -> candle_core::Result<Option<BatchSums>> {
        let (step, samples) = match step {
            StepSums::Sums(sums) => return Ok(Some(sums)),
            StepSums::Deferred(step, samples) => (step, samples),
        };
        let (sums, samples) = match self.deferred.take() {
            Some((earlier, before)) => (sum(&earlier, &step)?, before + samples),
            None => (step, samples),
        };
        // Tests defer sums in CPU memory, as if the sums were on a GPU.
        let on_a_gpu = cfg!(test) || !sums.device().is_cpu();
        let is_recent = self.last_read.is_some_and(|time| time.elapsed() < READ_EVERY);
        if on_a_gpu && is_recent && !last && !interrupt::requested() {
            self.deferred = Some((sums, samples));
            return Ok(None);
        }
        let sums = StepSums::Deferred(sums, samples).read()?;
        self.last_read = Some(Instant::now());
        Ok(Some(sums))
    }

    /// Refuses a loss that is infinite or NaN, and names the most likely cause.
    fn check_loss(&self, loss: f64, updated: bool) -> Result<(), Error> {
        let (epoch, step, rate) = (self.state.epoch(), self.step, self.options.learning_rate);
        let none = "no update was made yet, so the images or the initial weights are not finite";
        let cause = match updated {
            _ if loss.is_finite() => return Ok(()),
            // Debug prints a very large or small rate with an exponent.
            true => format!(
                "the weights have run away, most likely because the learning rate {rate:?} is too large; try a tenth of it"
            ),
            false => none.to_owned(),
        };
        Err(Error::NotFinite { epoch, step, loss, cause })
    }
}

/// The loss and the correct answers of one or more steps. Reading a number from a GPU waits until the GPU's queue is empty, and
/// then the GPU waits for the next step. So sums are added on the GPU, and read only when a report needs them.
#[derive(Clone, Debug)]
pub enum StepSums {
    /// The sums have been read.
    Sums(BatchSums),
    /// The sums are on the device: a tensor `[2]` (f64) of loss and correct answers, and the number of samples.
    Deferred(Tensor, u64),
}

impl StepSums {
    /// Computes the sums of a batch, on its device. `loss` is the sum over its labels, and `logits` has a row for each. Fails when
    /// the shapes do not fit.
    pub fn new(loss: &Tensor, logits: &Tensor, batch: &Batch) -> candle_core::Result<Self> {
        let sums = loss_and_correct(loss, logits, &batch.labels)?;
        Ok(Self::Deferred(sums, batch.len() as u64))
    }

    /// Returns the sums. If they are deferred, waits for the device, and adds whether there was a Ctrl-C.
    pub fn read(&self) -> candle_core::Result<BatchSums> {
        let (sums, samples) = match self {
            Self::Sums(sums) => return Ok(*sums),
            Self::Deferred(sums, samples) => (sums, *samples),
        };
        let _span = info_span!(target: COMPUTE, "read loss").entered();
        let [loss, correct] = sums.to_vec1::<f64>()?[..] else {
            bail!("a loss and a number of answers were expected, got {:?}", sums.dims())
        };
        // Counts are exact in f64 up to 2⁵³.
        let (correct, interrupts) = (correct as u64, interrupt::requested().into());
        Ok(BatchSums { loss, correct, samples, interrupts })
    }
}

impl From<BatchSums> for StepSums {
    fn from(sums: BatchSums) -> Self {
        Self::Sums(sums)
    }
}

/// The reason why training stopped early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An operation failed.
    #[error(transparent)]
    Tensor(#[from] candle_core::Error),
    /// The loss became infinite or NaN.
    #[error("the loss is {loss} at step {step} of epoch {epoch}: {cause}")]
    NotFinite {
        /// Counted from 1.
        epoch: usize,
        /// Counted from 1, within the epoch. When losses are read later, an earlier step may have been the first.
        step: usize,
        /// The loss.
        loss: f64,
        /// The most likely cause, in words.
        cause: String,
    },
    /// Progress or metrics could not be written.
    #[error("cannot write the report: {0}")]
    Report(#[from] std::io::Error),
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Result as CandleResult, Tensor};

    use super::*;
    use datasets::loader::Loader;
    use datasets::{Batch, Dataset, PIXELS};
    use harness::records::epochs_trained;

    const OPTIONS: TrainOptions =
        TrainOptions { epochs: 3, batch_size: 2, learning_rate: 3.0, seed: 1 };

    /// Batches of two of these many samples with labels from 0.
    fn loader(samples: u8, batch_size: usize) -> Loader {
        let data = Dataset::new(vec![[0; PIXELS]; samples.into()], (0..samples).collect()).unwrap();
        Loader::new(&data, batch_size, OPTIONS.seed, DType::F32)
    }

    /// Trains from `state` on. `step` returns the sums of a batch, `after_step` gets each state, and `test` are the sums
    /// over the test images.
    fn train<S: Into<StepSums>>(
        loader: &Loader,
        state: TrainerState,
        mut step: impl FnMut(&Batch) -> CandleResult<S>,
        mut after_step: impl FnMut(&TrainerState),
        test: BatchSums,
    ) -> Result<Vec<EpochRecord>, Error> {
        let report = &mut Report::silent();
        let mut run = TrainingRun::resume(&OPTIONS, loader, report, state);
        while run.next_epoch()? {
            while let Some(batch) = run.next_batch()? {
                if let Some(state) = run.step_done(step(&batch)?)? {
                    after_step(state);
                }
            }
            run.epoch_done(test)?;
        }
        Ok(run.into_records())
    }

    /// Trains for three epochs of three steps of two samples. `sums` gets the number of the step, from 1, and of its
    /// samples.
    fn run<S: Into<StepSums>>(
        sums: impl Fn(usize, u64) -> S,
        test: BatchSums,
    ) -> Result<Vec<EpochRecord>, Error> {
        let mut number = 0;
        let step = |batch: &Batch| {
            number += 1;
            Ok(sums(number, batch.len() as u64))
        };
        train(&loader(6, 2), TrainerState::default(), step, |_| (), test)
    }

    #[test]
    fn a_loss_that_is_not_finite_stops_with_its_step() {
        let none = BatchSums::default();
        let bad = BatchSums { loss: f64::NAN, samples: 6, ..none };
        let loss = |step, first_bad| if step >= first_bad { f64::NAN } else { 1.0 };
        let at_once = |first_bad| {
            let sums = |step, samples| BatchSums { loss: loss(step, first_bad), samples, ..none };
            run(sums, none)
        };
        let later = |first_bad| run(|step, _| deferred(loss(step, first_bad)), none);
        let interrupted = run(|_, samples| BatchSums { samples, interrupts: 1, ..none }, bad);
        // An epoch of one step: the test images are the first that see its update.
        let step = |_: &Batch| Ok(BatchSums { loss: 1.0, samples: 2, ..none });
        let tested = train(&loader(2, 8), TrainerState::default(), step, |_| (), bad);
        let run_away = "the weights have run away, most likely because the learning rate 3.0 is too large; try a tenth of it";
        let no_update =
            "no update was made yet, so the images or the initial weights are not finite";
        for (outcome, places, cause) in [
            (at_once(5), &["step 2 of epoch 2"][..], run_away),
            // Before the first update, the learning rate cannot be the reason.
            (at_once(1), &["step 1 of epoch 1"], no_update),
            (tested, &["step 1 of epoch 1"], run_away),
            // After an interrupt, the step is the last one that was made.
            (interrupted, &["step 1 of epoch 1"], run_away),
            // Sums that are read later: the next read may be that of a later step.
            (later(4), &["step 1 of epoch 2", "step 2 of epoch 2", "step 3 of epoch 2"], run_away),
            (later(1), &["step 1 of epoch 1"], no_update),
        ] {
            let error = outcome.unwrap_err().to_string();
            let expected = |place: &&str| error == format!("the loss is NaN at {place}: {cause}");
            assert!(places.iter().any(expected), "{error}");
        }
    }

    #[test]
    fn a_run_goes_on_from_any_of_its_states() {
        let loader = loader(6, 4);
        // Labels of every batch, states after it, and the records at the end.
        let run = |from: TrainerState| {
            let (mut labels_seen, mut states) = (Vec::new(), Vec::new());
            let step = |batch: &Batch| {
                let labels = batch.labels.to_vec1::<u32>()?;
                let loss = labels.iter().zip(1..).map(|(&label, at)| f64::from(label * at)).sum();
                labels_seen.push(labels);
                Ok(BatchSums { loss, samples: batch.len() as u64, ..BatchSums::default() })
            };
            let after_step = |state: &TrainerState| states.push(state.clone());
            let records = train(&loader, from, step, after_step, BatchSums::default());
            (labels_seen, states, records.unwrap())
        };
        let measured = |records: &[EpochRecord]| {
            let of = |record: &EpochRecord| (record.epoch, record.part, record.train_loss);
            records.iter().map(of).collect::<Vec<_>>()
        };
        let (seen, states, records) = run(TrainerState::default());
        assert_eq!((seen.len(), states.len(), records.len()), (6, 6, 3));
        for (done, mut from) in (1..).zip(states) {
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
            let sums = |step, samples| {
                assert!(step <= last, "step {step} came after the interrupt at {last}");
                let interrupts = (step == last).into();
                BatchSums { samples, interrupts, ..BatchSums::default() }
            };
            run(sums, BatchSums::default()).unwrap()
        };
        for (last, epochs, trained) in [(1, 1, 1.0 / 3.0), (3, 1, 1.0), (5, 2, 5.0 / 3.0)] {
            let records = interrupted_at(last);
            assert_eq!(records.len(), epochs);
            assert!((epochs_trained(&records) - trained).abs() < 1e-12, "{records:?}");
        }
    }

    /// The sums of a step on their device: the loss, and one right answer of two.
    fn deferred(loss: f64) -> StepSums {
        StepSums::Deferred(Tensor::new(&[loss, 1.0], &Device::Cpu).unwrap(), 2)
    }

    #[test]
    fn sums_that_are_read_later_are_those_that_are_read_at_once() {
        let loader = loader(7, 2);
        let run = |later: bool| {
            let (mut number, mut states) = (0.0, Vec::new());
            let step = |_: &Batch| {
                number += 1.0;
                let sums = deferred(number);
                Ok(if later { sums } else { sums.read()?.into() })
            };
            let after_step = |state: &TrainerState| states.push(state.batches);
            let records =
                train(&loader, TrainerState::default(), step, after_step, BatchSums::default());
            let of = |record: &EpochRecord| {
                (record.epoch, record.part, record.train_loss, record.train_accuracy)
            };
            (records.unwrap().iter().map(of).collect::<Vec<_>>(), states)
        };
        let (at_once, every_step) = run(false);
        let (later, states) = run(true);
        assert_eq!(later, at_once);
        assert_eq!(every_step, [1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4]);
        // The list has the first step and nothing more before the epoch's end, unless a tenth of a second passed.
        assert!(states.starts_with(&[1]) && states.ends_with(&[4]), "{states:?}");
        assert!(states.len() < every_step.len(), "{states:?}");
    }
}

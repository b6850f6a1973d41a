//! What steps saw, as long as it is on their device.
//!
//! Reading a number off a GPU means waiting for it: until everything is computed that was queued before. Then the
//! queue is empty, and the GPU waits in turn, for the next step's first kernel. So loss and correct answers of a step
//! stay where they are, and are added up there, until somebody wants to see them.

use std::mem;
use std::time::{Duration, Instant};

use candle_core::{Result, Tensor, bail};
use tracing::info_span;

use super::BatchSums;
use crate::data::Batch;
use crate::interrupt;
use crate::ops::loss_and_correct;
use crate::ops::sum;
use crate::report::trace::COMPUTE;

/// What steps leave on their device is read so often: for a reader it is always, for a GPU it is rare.
const READ_EVERY: Duration = Duration::from_millis(100);

/// Loss and correct answers of a step, or of several, on their device. The default is those of no samples.
#[derive(Clone, Debug, Default)]
pub struct Unread {
    /// `[2]`, f64: loss, correct answers; `None` where there are no samples.
    sums: Option<Tensor>,
    samples: u64,
}

impl Unread {
    /// Those of a batch; `loss` is the sum over it. Nothing waits for the device.
    ///
    /// # Errors
    ///
    /// When the shapes do not fit.
    pub fn new(loss: &Tensor, logits: &Tensor, batch: &Batch) -> Result<Self> {
        let sums = loss_and_correct(loss, logits, &batch.labels)?;
        Ok(Self { sums: Some(sums), samples: batch.len() as u64 })
    }

    /// These and those of later steps on the same device.
    ///
    /// # Errors
    ///
    /// When the device fails.
    pub fn and(self, later: Self) -> Result<Self> {
        let samples = self.samples + later.samples;
        let sums = match (self.sums, later.sums) {
            (Some(sums), Some(later)) => Some(sum(&sums, &later)?),
            (sums, later) => sums.or(later),
        };
        Ok(Self { sums, samples })
    }

    /// Reads them: waits until the device has computed them, and asks whether there was a Ctrl-C.
    ///
    /// # Errors
    ///
    /// When the device fails.
    pub fn read(&self) -> Result<BatchSums> {
        let Some(sums) = &self.sums else { return Ok(BatchSums::of_no_samples()) };
        let _span = info_span!(target: COMPUTE, "read loss").entered();
        let [loss, correct] = sums.to_vec1::<f64>()?[..] else {
            bail!("a loss and a number of answers were expected, got {:?}", sums.dims())
        };
        // Counts are exact in f64 up to 2⁵³.
        let (correct, samples) = (correct as u64, self.samples);
        Ok(BatchSums { loss, correct, samples, interrupts: interrupt::requested().into() })
    }

    /// What the loop over steps is told of them: read at once where they are in CPU memory, as all is computed then.
    ///
    /// # Errors
    ///
    /// When the device fails.
    pub fn seen(self) -> Result<Seen> {
        let on_a_gpu = self.sums.as_ref().is_some_and(|sums| !sums.device().is_cpu());
        Ok(if on_a_gpu { Seen::Later(self) } else { Seen::Sums(self.read()?) })
    }
}

/// Reads loss and correct answers of a batch off its device: [`Unread::new`], then [`Unread::read`].
///
/// # Errors
///
/// Those of the two.
pub fn read_sums(loss: &Tensor, logits: &Tensor, batch: &Batch) -> Result<BatchSums> {
    Unread::new(loss, logits, batch)?.read()
}

/// What the loop over steps is told of each.
#[derive(Clone, Debug)]
pub enum Seen {
    /// It has been read.
    Sums(BatchSums),
    /// It is to be read when somebody wants to see it.
    Later(Unread),
}

impl Seen {
    /// The sums, which are waited for if need be.
    ///
    /// # Errors
    ///
    /// When the device fails.
    pub fn read(self) -> Result<BatchSums> {
        match self {
            Self::Sums(sums) => Ok(sums),
            Self::Later(unread) => unread.read(),
        }
    }
}

impl From<BatchSums> for Seen {
    fn from(sums: BatchSums) -> Self {
        Self::Sums(sums)
    }
}

impl From<Unread> for Seen {
    fn from(unread: Unread) -> Self {
        Self::Later(unread)
    }
}

/// What steps have left on their device since something was read off it.
#[derive(Default)]
pub(super) struct Waiting {
    unread: Unread,
    read: Option<Instant>,
}

impl Waiting {
    /// What is known now, with one more step: everything since something was read last, or nothing if there is time.
    /// The first step of a run is read at once: if its loss is no number, that is no update's fault.
    ///
    /// All steps of an epoch are of one kind, and the `last` one leaves nothing unread.
    pub(super) fn read(&mut self, seen: Seen, last: bool) -> Result<Option<BatchSums>> {
        let later = match seen {
            Seen::Sums(sums) => return Ok(Some(sums)),
            Seen::Later(later) => later,
        };
        let unread = mem::take(&mut self.unread).and(later)?;
        let there_is_time = self.read.is_some_and(|read| read.elapsed() < READ_EVERY);
        if there_is_time && !last && !interrupt::requested() {
            self.unread = unread;
            return Ok(None);
        }
        let sums = unread.read()?;
        self.read = Some(Instant::now());
        Ok(Some(sums))
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::data::loader::Loader;
    use crate::data::{Dataset, PIXELS};
    use crate::report::Report;
    use crate::train::{EpochRecord, Error, Position, TrainOptions, continue_epochs, run_epochs};

    /// What a step leaves on its device: the loss, and one of two answers right.
    fn left(loss: f64) -> Unread {
        let tensor = |values: &[u32]| Tensor::new(values, &Device::Cpu).unwrap();
        let logits = Tensor::new(&[[0f32, 1.0], [0.0, 1.0]], &Device::Cpu).unwrap();
        let batch = Batch { images: tensor(&[0, 0]), labels: tensor(&[1, 0]) };
        Unread::new(&Tensor::new(loss, &Device::Cpu).unwrap(), &logits, &batch).unwrap()
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
                Ok(if later { Seen::Later(unread) } else { Seen::Sums(unread.read()?) })
            };
            let after_step = |at: &Position| {
                positions.push(at.batches);
                Ok::<_, Error>(())
            };
            let (report, begin, test) = (&mut Report::silent(), Position::default(), || Ok(None));
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

//! Deferred metrics: the loss and the correct answers of steps, which stay on their device until they are read.
//!
//! Reading a number from a GPU waits until the GPU's queue is empty, and then the GPU waits for the next step. So the sums of
//! steps are added on the GPU, and read only when a report needs them.

use std::time::{Duration, Instant};

use candle_core::{Result, Tensor, bail};
use tracing::info_span;

use datasets::Batch;
use harness::interrupt;
use harness::records::BatchSums;
use harness::report::trace::COMPUTE;
use ops::{loss_and_correct, sum};

/// The time between two reads: short for a user who watches the progress, and long for a GPU.
const READ_EVERY: Duration = Duration::from_millis(100);

/// The loss and the correct answers of one or more steps.
#[derive(Clone, Debug)]
pub enum StepSums {
    /// The sums have been read.
    Sums(BatchSums),
    /// The sums are on the device: a tensor `[2]` (f64) of loss and correct answers, and the number of samples.
    Deferred(Tensor, u64),
}

impl StepSums {
    /// Computes the sums of a batch, on its device. `loss` is the sum over its samples. Fails when the shapes do not fit.
    pub fn new(loss: &Tensor, logits: &Tensor, batch: &Batch) -> Result<Self> {
        let sums = loss_and_correct(loss, logits, &batch.labels)?;
        Ok(Self::Deferred(sums, batch.len() as u64))
    }

    /// Returns the sums. If they are deferred, waits for the device, and adds whether there was a Ctrl-C.
    pub fn read(&self) -> Result<BatchSums> {
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

/// The deferred sums of the steps since the last read.
#[derive(Default)]
pub(crate) struct SumsReader {
    deferred: Option<(Tensor, u64)>,
    last_read: Option<Instant>,
}

impl SumsReader {
    /// Adds the sums of a step. Returns the sums of all steps since the last read, or `None` if the next read is not due. Sums in
    /// CPU memory are read at once. On a GPU, so are those of the `last` step of an epoch, and of the first of a run: if its loss
    /// is NaN, no update is the cause. All steps of an epoch are of the same kind.
    pub(crate) fn read(&mut self, step: StepSums, last: bool) -> Result<Option<BatchSums>> {
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
}

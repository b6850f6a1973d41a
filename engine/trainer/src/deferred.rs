//! Deferred metrics: the loss and the correct answers of steps, which stay on their device until they are read.
//!
//! Reading a number from a GPU waits until the GPU's queue is empty, and then the GPU waits for the next step. So the
//! sums of a step stay on the GPU. They are added there, and read only when a report needs them.

use std::mem;
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

/// The loss and the correct answers of one or more steps, on their device. The default has no samples.
#[derive(Clone, Debug, Default)]
pub struct DeferredSums {
    /// `[2]`, f64: loss and correct answers. `None` if there are no samples.
    sums: Option<Tensor>,
    samples: u64,
}

impl DeferredSums {
    /// Computes the sums of a batch. `loss` is the sum over its samples. Nothing waits for the device.
    pub fn new(loss: &Tensor, logits: &Tensor, batch: &Batch) -> Result<Self> {
        let sums = loss_and_correct(loss, logits, &batch.labels)?;
        Ok(Self { sums: Some(sums), samples: batch.len() as u64 })
    }

    /// Adds the sums of later steps on the same device.
    fn merge(self, later: Self) -> Result<Self> {
        let sums = match (self.sums, later.sums) {
            (Some(sums), Some(later)) => Some(sum(&sums, &later)?),
            (sums, later) => sums.or(later),
        };
        Ok(Self { sums, samples: self.samples + later.samples })
    }

    /// Waits until the device has computed the sums, and reads them. Adds whether there was a Ctrl-C.
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

    /// Reads the sums at once if they are in CPU memory, where they are computed already. Otherwise they stay deferred.
    /// Fails when the device fails.
    pub fn into_step_sums(self) -> Result<StepSums> {
        let on_a_gpu = self.sums.as_ref().is_some_and(|sums| !sums.device().is_cpu());
        Ok(if on_a_gpu { StepSums::Deferred(self) } else { StepSums::Sums(self.read()?) })
    }
}

/// Computes and reads the sums of a batch: [`DeferredSums::new`], then [`DeferredSums::read`].
pub fn read_sums(loss: &Tensor, logits: &Tensor, batch: &Batch) -> Result<BatchSums> {
    DeferredSums::new(loss, logits, batch)?.read()
}

/// The metrics of a step, as the training loop gets them.
#[derive(Clone, Debug)]
pub enum StepSums {
    /// The sums have been read.
    Sums(BatchSums),
    /// The sums are on the device.
    Deferred(DeferredSums),
}

impl StepSums {
    /// Computes the sums of a batch. `loss` is the sum over its samples. In CPU memory, the sums are read at once; on a
    /// GPU they stay deferred. Fails when the shapes do not fit, or the device fails.
    pub fn new(loss: &Tensor, logits: &Tensor, batch: &Batch) -> Result<Self> {
        DeferredSums::new(loss, logits, batch)?.into_step_sums()
    }

    /// Returns the sums. Waits for the device if they are deferred. Fails when the device fails.
    pub fn read(self) -> Result<BatchSums> {
        match self {
            Self::Sums(sums) => Ok(sums),
            Self::Deferred(sums) => sums.read(),
        }
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
    deferred: DeferredSums,
    last_read: Option<Instant>,
}

impl SumsReader {
    /// Adds the sums of a step. Returns the sums of all steps since the last read, or `None` if the next read is not
    /// due. The `last` step of an epoch is read at once, and so is the first step of a run: if its loss is NaN, no
    /// update is the cause. All steps of an epoch are of the same kind.
    pub(crate) fn read(&mut self, step: StepSums, last: bool) -> Result<Option<BatchSums>> {
        let deferred = match step {
            StepSums::Sums(sums) => return Ok(Some(sums)),
            StepSums::Deferred(step) => mem::take(&mut self.deferred).merge(step)?,
        };
        let is_recent = self.last_read.is_some_and(|time| time.elapsed() < READ_EVERY);
        if is_recent && !last && !interrupt::requested() {
            self.deferred = deferred;
            return Ok(None);
        }
        let sums = deferred.read()?;
        self.last_read = Some(Instant::now());
        Ok(Some(sums))
    }
}

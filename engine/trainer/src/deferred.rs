//! What steps saw, as long as it is on their device.
//!
//! Reading a number off a GPU means waiting for it: until everything is computed that was queued before. Then the
//! queue is empty, and the GPU waits in turn, for the next step's first kernel. So loss and correct answers of a step
//! stay where they are, and are added up there, until somebody wants to see them.

use std::mem;
use std::time::{Duration, Instant};

use candle_core::{Result, Tensor, bail};
use tracing::info_span;

use datasets::Batch;
use harness::interrupt;
use harness::records::BatchSums;
use harness::report::trace::COMPUTE;
use ops::loss_and_correct;
use ops::sum;

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
pub struct Waiting {
    unread: Unread,
    read: Option<Instant>,
}

impl Waiting {
    /// What is known now, with one more step: everything since something was read last, or nothing if there is time.
    /// The first step of a run is read at once: if its loss is no number, that is no update's fault.
    ///
    /// All steps of an epoch are of one kind, and the `last` one leaves nothing unread.
    pub fn read(&mut self, seen: Seen, last: bool) -> Result<Option<BatchSums>> {
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

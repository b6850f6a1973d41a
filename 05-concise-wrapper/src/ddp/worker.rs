//! The background thread of a rank, which communicates on a second connection while the rank's main thread computes. In DDP the
//! thread sums buckets over all ranks.

// ANCHOR: worker
use std::cell::RefCell;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread::{self, JoinHandle};

use candle_core::Tensor;
use devices::Handover;
use harness::report::trace::BACKGROUND;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Error, SharedCommunicator};
use tracing::{Span, info_span};

/// Something that the thread does with the second connection.
type Job<T> = Box<dyn FnOnce(&SharedCommunicator) -> Result<T, Error> + Send>;

/// The main thread's end of the channels to the background thread: jobs, and their results.
pub struct Worker<T> {
    jobs: SyncSender<Job<T>>,
    results: Receiver<Result<T, Error>>,
    thread: Option<JoinHandle<()>>,
}

thread_local! {
    /// The threads of this rank's earlier models.
    static EARLIER: RefCell<Vec<JoinHandle<()>>> = const { RefCell::new(Vec::new()) };
}

impl<T: Send + 'static> Worker<T> {
    /// Starts the thread. All ranks call this together.
    pub fn start(rank: &SharedCommunicator) -> Result<Self, Error> {
        Self::with_queue(rank, 1024)
    }

    /// [`start`](Self::start), with a limit on the number of jobs that wait for the thread. At the limit, a new job waits until
    /// the thread takes one.
    pub fn with_queue(rank: &SharedCommunicator, limit: usize) -> Result<Self, Error> {
        // One thread at a time receives on the second connection.
        EARLIER.take().into_iter().for_each(|thread| drop(thread.join()));
        let rank = rank.background()?;
        let ((jobs, to_do), (done, results)) = (sync_channel::<Job<T>>(limit), channel());
        // The trace shows the thread's work in the tracks of this rank.
        let span = Span::current();
        let work = move || {
            let _span = span.enter();
            for job in to_do {
                let result = job(&rank);
                let failed = result.is_err();
                // After a failure the ranks no longer agree on the next job.
                if done.send(result).is_err() || failed {
                    return;
                }
            }
            let _ = rank.leave();
        };
        // This rank does not wait for the thread: if this rank has failed, all ranks must learn of the failure at once.
        let thread = thread::Builder::new().name("background".to_owned()).spawn(work);
        let thread = Some(thread.map_err(candle_core::Error::wrap)?);
        Ok(Self { jobs, results, thread })
    }

    /// Hands over a job, in the same order on all ranks.
    pub fn add(&self, job: impl FnOnce(&SharedCommunicator) -> Result<T, Error> + Send + 'static) {
        // If the thread has ended, `next` returns its error.
        let _ = self.jobs.send(Box::new(job));
    }

    /// Waits for the result of the next job.
    pub fn next(&self) -> Result<T, Error> {
        let ended =
            |_| Err(Error::Other("the background thread of this rank has ended".to_owned()));
        self.results.recv().unwrap_or_else(ended)
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        EARLIER.with_borrow_mut(|earlier| earlier.extend(self.thread.take()));
    }
}

/// The job that sums a bucket over all ranks. `flat` has its gradients in a row, and the device may still have to do the work that
/// fills the bucket. The sum is in CPU memory, or from NCCL on the rank's GPU.
pub fn sum_bucket(
    bucket: usize,
    flat: &Tensor,
    algorithm: Algorithm,
) -> candle_core::Result<impl FnOnce(&SharedCommunicator) -> Result<Tensor, Error> + Send + use<>> {
    let flat = Handover::new(flat)?;
    Ok(move |rank: &SharedCommunicator| {
        let _span = info_span!(target: BACKGROUND, "bucket", bucket).entered();
        rank.all_reduce_handed_over(flat, algorithm)
    })
}
// ANCHOR_END: worker

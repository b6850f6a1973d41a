//! The background thread of a rank, which sums buckets over all ranks.
//!
//! The thread has a second connection, and on a GPU a second stream. So a bucket travels while the rank's main thread goes on
//! with the backward pass.

// ANCHOR: channels
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use candle_core::{Result, Tensor};
use devices::Event;
use harness::report::trace::BACKGROUND;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{self, SharedCommunicator};
use tracing::{Span, info_span};

type Sum = std::result::Result<Tensor, communicator::Error>;

/// A full bucket.
struct Full {
    bucket: usize,
    /// The gradients in a row.
    flat: Tensor,
    /// The event after which the gradients are in `flat`.
    filled: Event,
}

/// The main thread's end of the channels to the background thread.
pub(super) struct Worker {
    buckets: Sender<Full>,
    sums: Receiver<Sum>,
    /// The thread, if it has to leave NCCL at its end.
    #[cfg(feature = "nccl")]
    thread: Option<thread::JoinHandle<()>>,
}

impl Worker {
    // ANCHOR: start
    /// Starts the thread. With NCCL all ranks call this together: they join NCCL.
    pub(super) fn start(
        rank: SharedCommunicator,
        algorithm: Algorithm,
    ) -> std::result::Result<Self, communicator::Error> {
        #[cfg(feature = "nccl")]
        let nccl = nccl::join(&rank, algorithm)?;
        #[cfg(feature = "nccl")]
        let (rank, joined) = (nccl.clone().map_or(rank, |nccl| nccl as _), nccl.is_some());
        let ((buckets, full), (done, sums)) = (channel::<Full>(), channel());
        // The trace shows the thread's work in the tracks of this rank.
        let span = Span::current();
        let work = move || {
            let _span = span.enter();
            for Full { bucket, flat, filled } in full {
                let _span = info_span!(target: BACKGROUND, "bucket", bucket).entered();
                let sum = match filled.to_device(&flat, rank.device()) {
                    Ok(flat) => rank.all_reduce(&flat, algorithm),
                    Err(error) => Err(error.into()),
                };
                let failed = sum.is_err();
                if failed {
                    // The main thread may free the bucket now. The GPU must not read the bucket any more.
                    let _ = rank.device().synchronize();
                }
                // After a failure the ranks no longer agree on the next bucket.
                if done.send(sum).is_err() || failed {
                    break;
                }
            }
            // If a rank cannot leave, another rank has ended, and has reported that.
            #[cfg(feature = "nccl")]
            let _ = nccl.map(|nccl| nccl.leave());
        };
        let thread = thread::Builder::new().name("buckets".to_owned());
        // The thread ends when this rank drops the worker, or when a rank that the thread waits for has ended. This rank does
        // not wait for the thread: if this rank has failed, all ranks must learn of the failure at once.
        let _thread = thread.spawn(work).map_err(candle_core::Error::wrap)?;
        Ok(Self {
            buckets,
            sums,
            #[cfg(feature = "nccl")]
            thread: joined.then_some(_thread),
        })
    }
    // ANCHOR_END: start

    // ANCHOR: sum
    /// Gives a bucket to the thread, once the device has done all work that fills the bucket. Does not wait.
    pub(super) fn all_reduce(&self, bucket: usize, flat: &Tensor) -> Result<()> {
        let filled = Event::record(flat.device())?;
        // If the thread has ended, its error is the next result of `sum`.
        let _ = self.buckets.send(Full { bucket, flat: flat.clone(), filled });
        Ok(())
    }

    /// Waits for the sum of the next bucket, in the order of [`all_reduce`](Self::all_reduce). On a GPU the sum belongs to
    /// the background's stream.
    pub(super) fn sum(&self) -> Sum {
        let ended =
            || communicator::Error::Other("the thread that sums buckets has ended".to_owned());
        self.sums.recv().unwrap_or_else(|_| Err(ended()))
    }
    // ANCHOR_END: sum
}

// ANCHOR: nccl
/// NCCL's all-reduce in the background thread.
///
/// The ranks join NCCL with messages of the background connection, and leave with a barrier over the same connection. So a
/// rank that joins for its next model first waits for the threads of earlier models.
#[cfg(feature = "nccl")]
mod nccl {
    use std::cell::RefCell;
    use std::sync::Arc;
    use std::thread::JoinHandle;

    use backends::nccl::NcclRank;
    use params_and_allreduce::Algorithm;
    use params_and_allreduce::communicator::{Error, SharedCommunicator};

    thread_local! {
        /// The threads of this rank's earlier models.
        static LEAVING: RefCell<Vec<JoinHandle<()>>> = const { RefCell::new(Vec::new()) };
    }
// ANCHOR_END: channels

    /// Joins NCCL if the ranks have GPUs and messages, and `algorithm` is the native one. All ranks call this together.
    pub(super) fn join(
        messages: &SharedCommunicator,
        algorithm: Algorithm,
    ) -> Result<Option<Arc<NcclRank<SharedCommunicator>>>, Error> {
        let gpu = messages.device().is_cuda();
        if algorithm != Algorithm::Native || !messages.has_messages() || !gpu {
            return Ok(None);
        }
        // A thread waits for its messages no longer than the time limit.
        LEAVING.take().into_iter().for_each(|thread| drop(thread.join()));
        Ok(Some(Arc::new(NcclRank::join(Arc::clone(messages), messages.timeout())?)))
    }

    impl Drop for super::Worker {
        fn drop(&mut self) {
            LEAVING.with_borrow_mut(|leaving| leaving.extend(self.thread.take()));
        }
    }
}
// ANCHOR_END: nccl

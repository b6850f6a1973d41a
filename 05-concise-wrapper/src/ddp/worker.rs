//! The background thread of a rank, which sums buckets over all ranks, on a second connection. So a bucket travels while the
//! rank's main thread goes on with the backward pass.

// ANCHOR: worker
use std::cell::RefCell;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use candle_core::Tensor;
use devices::Handover;
use harness::report::trace::BACKGROUND;
use params_and_allreduce::Algorithm;
use params_and_allreduce::communicator::{Error, SharedCommunicator};
use tracing::{Span, info_span};

/// The main thread's end of the channels to the background thread.
pub struct Worker {
    /// The number of a bucket, and its gradients in a row.
    full: Sender<(usize, Handover)>,
    sums: Receiver<Result<Tensor, Error>>,
    thread: Option<JoinHandle<()>>,
}

thread_local! {
    /// The threads of this rank's earlier models.
    static EARLIER: RefCell<Vec<JoinHandle<()>>> = const { RefCell::new(Vec::new()) };
}

impl Worker {
    /// Starts the thread. All ranks call this together.
    pub fn start(rank: &SharedCommunicator, algorithm: Algorithm) -> Result<Self, Error> {
        // One thread at a time receives on the second connection.
        EARLIER.take().into_iter().for_each(|thread| drop(thread.join()));
        let rank = rank.background()?;
        let ((full, buckets), (done, sums)) = (channel::<(usize, Handover)>(), channel());
        // The trace shows the thread's work in the tracks of this rank.
        let span = Span::current();
        let work = move || {
            let _span = span.enter();
            for (bucket, flat) in buckets {
                let _span = info_span!(target: BACKGROUND, "bucket", bucket).entered();
                let sum = rank.all_reduce_handed_over(flat, algorithm);
                let failed = sum.is_err();
                // After a failure the ranks no longer agree on the next bucket.
                if done.send(sum).is_err() || failed {
                    return;
                }
            }
            let _ = rank.leave();
        };
        // This rank does not wait for the thread: if this rank has failed, all ranks must learn of the failure at once.
        let thread = thread::Builder::new().name("buckets".to_owned()).spawn(work);
        let thread = Some(thread.map_err(candle_core::Error::wrap)?);
        Ok(Self { full, sums, thread })
    }

    /// Hands over a full bucket, in the same order on all ranks. The device may still have to do the work that fills the bucket.
    pub fn add(&self, bucket: usize, flat: &Tensor) -> candle_core::Result<()> {
        // If the thread has ended, `sum` returns its error.
        let _ = self.full.send((bucket, Handover::new(flat)?));
        Ok(())
    }

    /// Waits for the sum of the next bucket. The sum is in CPU memory, or from NCCL on the rank's GPU.
    pub fn sum(&self) -> Result<Tensor, Error> {
        let ended = |_| Err(Error::Other("the thread that sums buckets has ended".to_owned()));
        self.sums.recv().unwrap_or_else(ended)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        EARLIER.with_borrow_mut(|earlier| earlier.extend(self.thread.take()));
    }
}
// ANCHOR_END: worker

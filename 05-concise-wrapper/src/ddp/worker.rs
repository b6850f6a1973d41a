//! The background thread, which adds buckets up over all ranks.

use std::cell::RefCell;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

#[cfg(feature = "nccl")]
use backends::nccl::with_nccl;
use candle_core::{Result, Tensor};
use devices::Event;
use harness::report::trace::BACKGROUND;
use harness::stopwatch::recv_timeout;
use params_and_allreduce::communicator::{Communicator, SharedCommunicator};
use params_and_allreduce::thread::GRACE;
use params_and_allreduce::{Algorithm, communicator};
use tracing::{Span, info_span};

type Sum = std::result::Result<Tensor, communicator::Error>;

/// Whether the thread is connected to the others'. It is open for as long as the thread is there.
type Connected = std::result::Result<(), communicator::Error>;

thread_local! {
    /// The threads of this rank's models that were dropped. With NCCL they take leave of each other over the very line
    /// on which the next model's will join, and messages of both at once would be taken for each other's.
    static LEAVING: RefCell<Vec<Receiver<Connected>>> = const { RefCell::new(Vec::new()) };
}

/// A bucket that is full, in the memory where the next step's gradients will be.
struct Full {
    bucket: usize,
    flat: Tensor,
    /// The event after which the bucket is full.
    filled: Event,
}

/// The background thread.
pub(super) struct Worker {
    buckets: Sender<Full>,
    sums: Receiver<Sum>,
    /// `None` where the thread takes leave of nobody.
    thread: Option<Receiver<Connected>>,
}

impl Worker {
    /// Starts the thread, and connects it; with NCCL all ranks do so together.
    pub(super) fn start(
        communicator: SharedCommunicator,
        algorithm: Algorithm,
    ) -> std::result::Result<Self, communicator::Error> {
        let (buckets, full) = channel();
        let (done, sums) = channel();
        // What this thread does is the rank's work, and belongs on its tracks.
        let rank = Span::current();
        let timeout = communicator.timeout();
        // NCCL's end of the connection belongs to the thread that made it.
        let joins = cfg!(feature = "nccl")
            && algorithm == Algorithm::Native
            && communicator.has_messages()
            && communicator.device().is_cuda();
        let patience = timeout.saturating_add(GRACE);
        if joins {
            left(patience)?;
        }
        let (connected, thread) = channel();
        let work = move || {
            let _rank = rank.enter();
            #[cfg(feature = "nccl")]
            if joins {
                let outcome = with_nccl(&*communicator, timeout, |rank| {
                    let _ = connected.send(Ok(()));
                    add_up(rank, algorithm, &full, &done);
                    Ok::<_, communicator::Error>(())
                });
                // Nobody listens where it is the leave that has failed.
                let _ = outcome.map_err(|error| connected.send(Err(error)));
                return;
            }
            let _ = connected.send(Ok(()));
            add_up(&*communicator, algorithm, &full, &done);
        };
        let builder = thread::Builder::new().name("buckets".to_owned());
        // Nobody waits for its end, but the next model of this rank. It comes when this rank or one that it waits for
        // has ended, and not before: to wait here would keep the others from hearing that this rank has failed.
        builder.spawn(work).map_err(candle_core::Error::wrap)?;
        // Where a rank has several models, all ranks connect them in one order.
        match recv_timeout(&thread, patience) {
            Ok(outcome) => outcome?,
            Err(RecvTimeoutError::Timeout) => return Err(silent("connect the ranks", patience)),
            Err(RecvTimeoutError::Disconnected) => return Err(gone()),
        }
        Ok(Self { buckets, sums, thread: joins.then_some(thread) })
    }

    /// Hands over a bucket that the device has been told to fill, and goes on.
    pub(super) fn add_up(&self, bucket: usize, flat: &Tensor) -> Result<()> {
        let filled = Event::record(flat.device())?;
        // A thread that is gone has left its error behind, for `sum` to find.
        let _ = self.buckets.send(Full { bucket, flat: flat.clone(), filled });
        Ok(())
    }

    /// Waits for the next sum, which is on the background's device.
    pub(super) fn sum(&self) -> Sum {
        self.sums.recv().unwrap_or_else(|_| Err(gone()))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            LEAVING.with_borrow_mut(|leaving| leaving.push(thread));
        }
    }
}

/// Waits until the threads of all models that this rank has dropped have taken leave.
fn left(patience: Duration) -> Connected {
    for thread in LEAVING.take() {
        match recv_timeout(&thread, patience) {
            Err(RecvTimeoutError::Timeout) => return Err(silent("part the ranks", patience)),
            // However that was: it is gone.
            Ok(_) | Err(RecvTimeoutError::Disconnected) => {}
        }
    }
    Ok(())
}

fn silent(what: &str, waited: Duration) -> communicator::Error {
    let seconds = waited.as_secs_f64();
    communicator::Error::Other(format!(
        "NCCL could not {what} within {seconds:.1} s: another rank stopped or stalls"
    ))
}

fn gone() -> communicator::Error {
    communicator::Error::Other("the thread that adds gradients up is gone".to_owned())
}

/// Adds up what comes, one after the other, until nothing more comes or something fails.
fn add_up(
    communicator: &(impl Communicator + ?Sized),
    algorithm: Algorithm,
    full: &Receiver<Full>,
    done: &Sender<Sum>,
) {
    for Full { bucket, flat, filled } in full {
        let _span = info_span!(target: BACKGROUND, "bucket", bucket).entered();
        let carried = filled.to_device(&flat, communicator.device()).map_err(Into::into);
        let sum = carried.and_then(|carried| communicator.all_reduce(&carried, algorithm));
        let failed = sum.is_err();
        if failed {
            // The bucket may be freed now, and somebody might still read it.
            let _ = communicator.device().synchronize();
        }
        // After a failure the ranks no longer agree on what comes next.
        if done.send(sum).is_err() || failed {
            break;
        }
    }
}

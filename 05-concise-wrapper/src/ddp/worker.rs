//! The background thread, which adds buckets up over all ranks.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use candle_core::{Result, Tensor};
use params_and_allreduce::communicator::Communicator;
#[cfg(feature = "nccl")]
use params_and_allreduce::nccl::with_nccl;
use params_and_allreduce::{Algorithm, allreduce, communicator};
use single_gpu::device::Moment;
use single_gpu::report::trace::BACKGROUND;
use tracing::{Span, info_span};

use super::lines::Lines;

type Sum = std::result::Result<Tensor, communicator::Error>;

/// A bucket that is full, in the memory where the next step's gradients will be.
struct Full {
    bucket: usize,
    flat: Tensor,
    /// From when on it is.
    since: Moment,
}

/// The background thread.
pub(super) struct Worker {
    buckets: Sender<Full>,
    sums: Receiver<Sum>,
}

impl Worker {
    pub(super) fn start(lines: Lines, algorithm: Algorithm) -> Result<Self> {
        let (buckets, full) = channel();
        let (done, sums) = channel();
        // What this thread does is the rank's work, and belongs on its tracks.
        let rank = Span::current();
        let communicator = lines.background;
        // Until it is connected: where a rank has several models, all ranks connect them in one order.
        let (connected, connection) = channel::<()>();
        let work = move || {
            let _rank = rank.enter();
            #[cfg(feature = "nccl")]
            if algorithm == Algorithm::Nccl && communicator.collectives().is_none() {
                // NCCL's end of the connection belongs to the thread that made it.
                let joined = with_nccl(&communicator, lines.timeout, |rank| {
                    drop(connected);
                    add_up(rank, algorithm, &full, &done);
                    Ok::<_, communicator::Error>(())
                });
                if let Err(error) = joined {
                    let _ = done.send(Err(error));
                }
                return;
            }
            drop(connected);
            add_up(&communicator, algorithm, &full, &done);
        };
        let builder = thread::Builder::new().name("buckets".to_owned());
        // Nobody waits for its end. It comes when this rank or one that it waits for has ended, and not
        // before: to wait here would keep the others from hearing that this rank has failed.
        builder.spawn(work).map_err(candle_core::Error::wrap)?;
        // Nothing is ever sent: this ends when the thread has let go of its end.
        let _ = connection.recv();
        Ok(Self { buckets, sums })
    }

    /// Hands over a bucket that the device has been told to fill, and goes on.
    pub(super) fn add_up(&self, bucket: usize, flat: &Tensor) -> Result<()> {
        let since = Moment::of(flat.device())?;
        // A thread that is gone has left its error behind, for `sum` to find.
        let _ = self.buckets.send(Full { bucket, flat: flat.clone(), since });
        Ok(())
    }

    /// Waits for the next sum, which is on the background's device.
    pub(super) fn sum(&self) -> Sum {
        let gone = || {
            let text = "the thread that adds gradients up is gone".to_owned();
            candle_core::Error::Msg(text).into()
        };
        self.sums.recv().unwrap_or_else(|_| Err(gone()))
    }
}

/// Adds up what comes, one after the other, until nothing more comes or something fails.
fn add_up(
    communicator: &impl Communicator,
    algorithm: Algorithm,
    full: &Receiver<Full>,
    done: &Sender<Sum>,
) {
    for Full { bucket, flat, since } in full {
        let _span = info_span!(target: BACKGROUND, "bucket", bucket).entered();
        let carried = since.carry(&flat, communicator.device()).map_err(Into::into);
        let sum = carried.and_then(|carried| allreduce(communicator, &carried, algorithm));
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

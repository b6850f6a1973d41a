//! One rank's end of a connection: what is queued on a stream, and waited for with a time limit.

use std::cell::RefCell;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use candle_core::{CudaDevice, Device, Tensor};
use cudarc::driver::CudaStream;
use cudarc::nccl::safe::{Comm, Id};

use super::collective::{Collective, Kind};
use super::{driver, failure, nccl};
use crate::communicator::Error;
use crate::thread::patience::Waited;

/// A sum of small tensors is there within this time; a wait that goes on longer may sleep.
const SPIN: Duration = Duration::from_micros(200);

/// How long it sleeps then.
const NAP: Duration = Duration::from_micros(50);

/// One rank's end of a connection, in the thread that made it.
///
/// NCCL's kernels have a stream of their own. Where two connections share a stream, two ranks that queue a kernel of
/// each in another order wait for each other for ever; and kernels that candle queues while NCCL's wait for another
/// rank need not wait as well. In return the order between the two streams has to be made, by events: before a
/// collective NCCL's waits for candle's, and after it the rank waits for NCCL's.
pub(super) struct Connection {
    rank: usize,
    device: Device,
    stream: Arc<CudaStream>,
    /// `None` once a collective has failed.
    comm: RefCell<Option<Comm>>,
    timeout: Duration,
}

impl Connection {
    /// Joins; all ranks call this together, and it has no time limit.
    pub(super) fn join(
        device: &CudaDevice,
        rank: usize,
        world_size: usize,
        id: Id,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let candles = device.cuda_stream();
        let stream = candles.context().new_stream().map_err(driver)?;
        // A connection belongs to whatever context is current, and making one does not set it.
        stream.context().bind_to_thread().map_err(driver)?;
        let comm = Comm::from_rank(stream.clone(), rank, world_size, id).map_err(nccl)?;
        let comm = RefCell::new(Some(comm));
        Ok(Self { rank, device: Device::Cuda(device.clone()), stream, comm, timeout })
    }

    /// What all ranks do together; it is there when this returns.
    pub(super) fn run(&self, tensor: &Tensor, kind: Kind) -> Result<Tensor, Error> {
        // A copy, where the tensor is not in one piece. It is of candle's stream, on which it would be freed, and NCCL
        // reads it on another: so it is held until that is done.
        let mine = tensor.detach().contiguous().inspect_err(|_| self.tear_down())?;
        let result = self.queue(&mine, kind);
        let done = if result.is_ok() { self.wait(kind) } else { Ok(()) };
        if result.is_err() || done.is_err() {
            self.tear_down();
        }
        done.and(result)
    }

    /// The ranks no longer agree on what comes next. Tearing the connection down ends its kernels; only then can the
    /// tensors be let go.
    fn tear_down(&self) {
        drop(self.comm.take());
    }

    /// Gives the GPU the work to do on a contiguous tensor, which has to be there until it is done.
    fn queue(&self, tensor: &Tensor, kind: Kind) -> Result<Tensor, Error> {
        if !tensor.device().same_device(&self.device) {
            return Err(failure("NCCL: the tensor is not on this rank's GPU".to_owned()));
        }
        match &*self.comm.borrow() {
            None => Err(failure("NCCL: an earlier collective has failed".to_owned())),
            // There is nothing to move, and GPUs have no memory of size 0 to put it.
            Some(_) if tensor.elem_count() == 0 => Ok(tensor.clone()),
            Some(comm) => Ok(tensor.apply_op1_no_bwd(&Collective { comm, kind })?),
        }
    }

    /// Waits until the GPU has done everything that it was given for this connection so far.
    fn wait(&self, kind: Kind) -> Result<(), Error> {
        let done = self.stream.record_event(None).map_err(driver)?;
        let mut since = Waited::new();
        while !done.try_is_complete().map_err(driver)? {
            match since.so_far() {
                waited if waited > self.timeout => {
                    let what = match kind {
                        Kind::Sum => "a sum".to_owned(),
                        Kind::Broadcast { root } => format!("rank {root}'s tensor"),
                    };
                    return Err(failure(format!(
                        "rank {} waited {:.1} s for {what}: another rank stopped, stalls, or gave NCCL \
                         a tensor of another size",
                        self.rank,
                        waited.as_secs_f64()
                    )));
                }
                waited if waited < SPIN => std::hint::spin_loop(),
                _ => thread::sleep(NAP),
            }
        }
        Ok(())
    }
}

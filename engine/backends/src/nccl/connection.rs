//! A connection of NCCL's, in its own thread.
//!
//! NCCL's end of a connection belongs to the thread that made it. A [`Connection`] gives orders to this thread, so any thread
//! may use it. The thread queues the collectives in the order of the orders, and waits for each with a time limit: when a rank
//! dies, NCCL's kernels wait for ever on all other GPUs, until their connection is torn down.
//!
//! NCCL's kernels have their own stream. If two connections shared a stream, two ranks that queue one kernel of each in
//! another order would wait for each other for ever. Before a collective, NCCL's stream waits for candle's. After it, the
//! thread waits for NCCL's stream.

use std::mem;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use candle_core::cuda_backend::{CudaDType, CudaStorageSlice as Slice};
use candle_core::op::BackpropOp;
use candle_core::{self as candle, CudaDevice, CudaStorage, DType, Device, Storage, Tensor};
use cudarc::driver::{CudaView, DeviceRepr, ValidAsZeroBits};
use cudarc::nccl::safe::{Comm, Id, NcclType, ReduceOp};
use harness::lock::locked;
use harness::stopwatch::{Stopwatch, recv_timeout};
use params_and_allreduce::all_reduce;
use params_and_allreduce::communicator::Error;
use params_and_allreduce::thread::GRACE;

use super::{driver, gpu, nccl};
use crate::process::pause;

/// Work for the thread, which has NCCL's end from the moment when it has joined until a collective fails.
type Order = Box<dyn FnOnce(&mut Option<Comm>) + Send>;

/// The reason if the thread does nothing more.
const FAILED: &str = "an earlier collective has failed";

/// A thread, and the channel to it.
type Thread = (Sender<Order>, JoinHandle<()>);

/// A rank's end of a connection. A clone is the same end.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) rank: usize,
    pub(super) world_size: usize,
    pub(super) timeout: Duration,
    pub(super) device: Device,
    /// The reason if there is no thread.
    thread: Arc<Mutex<Result<Thread, &'static str>>>,
}

impl Connection {
    /// Connects the ranks that have the same `id`. All ranks call this together.
    ///
    /// # Errors
    ///
    /// When the device is no GPU, when NCCL cannot connect the ranks, and when some rank does not come in time.
    pub(super) fn open(
        device: &Device,
        (rank, world_size): (usize, usize),
        id: Id,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let (gpu, device) = (gpu(device)?.clone(), device.clone());
        let (orders, taken): (_, Receiver<Order>) = channel();
        let thread = thread::Builder::new().name(format!("nccl {rank}"));
        let thread = thread.spawn(move || {
            let mut comm = None;
            taken.into_iter().for_each(|order| order(&mut comm));
        });
        let thread = (orders, thread.map_err(candle::Error::wrap)?);
        let connection =
            Self { rank, world_size, timeout, device, thread: Arc::new(Mutex::new(Ok(thread))) };
        let seconds = timeout.as_secs_f64();
        let late = format!(
            "rank {rank} waited {seconds:.1} s: not all of the {world_size} ranks have joined NCCL"
        );
        // NCCL has no time limit for this.
        connection.order(timeout, &late, move |comm| {
            let stream = gpu.cuda_stream().context().new_stream().map_err(driver)?;
            // A connection belongs to the current context, and a new stream does not make its context the current one.
            stream.context().bind_to_thread().map_err(driver)?;
            *comm = Some(Comm::from_rank(stream, rank, world_size, id).map_err(nccl)?);
            Ok(())
        })?;
        Ok(connection)
    }

    /// Adds up the tensors of all ranks. NCCL does not compare their shapes.
    pub(super) fn all_reduce(&self, tensor: &Tensor) -> Result<Tensor, Error> {
        let _span = all_reduce::span(tensor);
        self.collective(None, tensor)
    }

    /// Gives every rank the root's tensor.
    pub(super) fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<Tensor, Error> {
        let (rank, world_size) = (self.rank, self.world_size);
        if root >= world_size {
            return Err(Error::NoSuchRank { rank, other: root, world_size });
        }
        self.collective(Some(root), tensor)
    }

    /// Waits for all ranks: no rank has the sum before every rank has given a number.
    pub(super) fn barrier(&self) -> Result<(), Error> {
        self.all_reduce(&Tensor::zeros(1, DType::F32, &self.device)?).map(drop)
    }

    /// Runs a broadcast from `root`, or without a root a sum.
    fn collective(&self, root: Option<usize>, tensor: &Tensor) -> Result<Tensor, Error> {
        let (tensor, device, timeout) = (tensor.detach(), self.device.clone(), self.timeout);
        // The thread finds out by itself that the time is up, unless a call of NCCL does not return.
        let late = "a call of NCCL does not return: another rank stopped or stalls";
        self.order(timeout.saturating_add(GRACE), late, move |own_end| {
            let Some(comm) = own_end else { return refused(FAILED) };
            if !tensor.device().same_device(&device) {
                return refused("the tensor is not on this rank's GPU");
            }
            // If this is a copy, candle frees it in the order of its own stream. NCCL reads it on another stream.
            let tensor = tensor.contiguous()?;
            let result = queue(comm, root, &tensor)?;
            let done = wait(comm, root, timeout);
            if done.is_err() {
                // This ends NCCL's kernels. Only then may the two tensors be freed.
                *own_end = None;
            }
            done.map(|()| result)
        })
    }

    /// Waits until the thread has done some work, at most for `limit`. After an error there are no more orders: the ranks no
    /// longer agree on the next collective.
    fn order<T: Send + 'static>(
        &self,
        limit: Duration,
        late: &str,
        work: impl FnOnce(&mut Option<Comm>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (answer, answered) = channel();
        // The rank may have given up.
        let order: Order = Box::new(move |comm| drop(answer.send(work(comm))));
        match &*locked(&self.thread) {
            Ok((orders, _)) => drop(orders.send(order)),
            Err(why) => return refused(why),
        }
        let outcome = match recv_timeout(&answered, limit) {
            Ok(outcome) => outcome,
            Err(RecvTimeoutError::Timeout) => Err(Error::Other(late.to_owned())),
            Err(RecvTimeoutError::Disconnected) => refused(FAILED),
        };
        let mut thread = locked(&self.thread);
        if outcome.is_err() && thread.is_ok() {
            *thread = Err(FAILED);
        }
        outcome
    }

    /// Whether nothing has failed, and the rank has not left.
    pub(super) fn is_open(&self) -> bool {
        locked(&self.thread).is_ok()
    }

    /// Ends the thread, also if there are clones of this end. All ranks' collectives are done.
    pub(super) fn leave(&self) {
        let thread = mem::replace(&mut *locked(&self.thread), Err("this connection has ended"));
        if let Ok((orders, thread)) = thread {
            drop(orders);
            let _ = thread.join();
        }
    }
}

fn refused<T>(why: &str) -> Result<T, Error> {
    Err(Error::Other(format!("NCCL: {why}")))
}

/// Queues a collective, behind everything that candle has queued.
fn queue(comm: &Comm, root: Option<usize>, tensor: &Tensor) -> Result<Tensor, Error> {
    // A GPU has no memory of size 0.
    if tensor.elem_count() == 0 {
        return Ok(tensor.clone());
    }
    let (storage, layout) = tensor.storage_and_layout();
    let (Storage::Cuda(storage), Some((start, end))) = (&*storage, layout.contiguous_offsets())
    else {
        return refused("expected a contiguous tensor on a GPU");
    };
    let (gpu, range) = (&storage.device, start..end);
    let result = match &storage.slice {
        Slice::F32(values) => call(comm, root, gpu, &values.slice(range))?,
        Slice::F64(values) => call(comm, root, gpu, &values.slice(range))?,
        Slice::F16(values) => call(comm, root, gpu, &values.slice(range))?,
        Slice::BF16(values) => call(comm, root, gpu, &values.slice(range))?,
        Slice::U8(values) => call(comm, root, gpu, &values.slice(range))?,
        Slice::U32(values) => call(comm, root, gpu, &values.slice(range))?,
        Slice::I64(values) => call(comm, root, gpu, &values.slice(range))?,
        _ => return refused("collectives have floats, u8, u32 and i64"),
    };
    Ok(Tensor::from_storage(Storage::Cuda(result), tensor.shape(), BackpropOp::none(), false))
}

fn call<T>(
    comm: &Comm,
    root: Option<usize>,
    gpu: &CudaDevice,
    own: &CudaView<'_, T>,
) -> candle::Result<CudaStorage>
where
    T: CudaDType + NcclType + DeviceRepr + ValidAsZeroBits,
{
    // Of candle's stream, on which the result is read and freed.
    let mut result = gpu.alloc_zeros(own.len())?;
    // Everything that candle has queued comes first: the tensor, and the zeros.
    comm.stream().join(&gpu.cuda_stream()).map_err(driver)?;
    match root {
        None => comm.all_reduce(own, &mut result, &ReduceOp::Sum),
        Some(root) => comm.broadcast(Some(own), &mut result, root as i32),
    }
    .map_err(nccl)?;
    Ok(CudaStorage::wrap_cuda_slice(result, gpu.clone()))
}

/// Waits until the GPU has done everything that was queued.
fn wait(comm: &Comm, root: Option<usize>, timeout: Duration) -> Result<(), Error> {
    let done = comm.stream().record_event(None).map_err(driver)?;
    let mut clock = Stopwatch::start();
    while !done.try_is_complete().map_err(driver)? {
        let waited = clock.elapsed();
        if waited > timeout {
            let what = root.map_or("a sum".to_owned(), |root| format!("rank {root}'s tensor"));
            let (rank, seconds) = (comm.rank(), waited.as_secs_f64());
            return Err(Error::Other(format!(
                "rank {rank} waited {seconds:.1} s for {what}: another rank stopped, stalls, or gave NCCL a tensor of \
                 another size"
            )));
        }
        pause(waited);
    }
    Ok(())
}

//! A connection of NCCL's, in its own thread.
//!
//! NCCL's end of a connection belongs to the thread that made it, and some of NCCL's calls never return. Any thread may use a
//! [`Connection`], which gives orders to NCCL's thread and waits for each with a time limit. When a rank dies, NCCL's kernels
//! wait for ever on all other GPUs, until the thread tears the connection down.
//!
//! Each connection has a stream of its own. If two connections shared a stream, two ranks that queue one kernel of each in
//! another order would wait for each other for ever. Before a collective, this stream waits for candle's. After it, the
//! thread waits for this stream.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use candle_core::cuda_backend::{CudaDType, CudaStorageSlice as Slice};
use candle_core::op::BackpropOp;
use candle_core::{CudaDevice, CudaStorage, DType, Device, Error as TensorError, Storage, Tensor};
use cudarc::driver::{CudaView, DeviceRepr, ValidAsZeroBits};
use cudarc::nccl::safe::{Comm, Id, NcclType, ReduceOp};
use harness::lock::locked;
use harness::stopwatch::{Stopwatch, pause, recv_timeout};
use params_and_allreduce::communicator::Error;
use params_and_allreduce::thread::GRACE;

use super::nccl;

/// Work for the thread, which has NCCL's end from the moment when it has joined until a collective fails.
type Order = Box<dyn FnOnce(&mut Option<Comm>) + Send>;

/// A rank's end of a connection. A clone is the same end.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) rank: usize,
    pub(super) world_size: usize,
    pub(super) timeout: Duration,
    pub(super) device: Device,
    /// To the thread, or the reason why it takes no more orders.
    orders: Arc<Mutex<Result<Sender<Order>, &'static str>>>,
}

impl Connection {
    /// Connects the ranks that have the same `id`. All ranks call this together, in time.
    pub(super) fn open(
        device: &Device,
        (rank, world_size): (usize, usize),
        id: Id,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let (gpu, device) = (device.as_cuda_device()?.clone(), device.clone());
        let (orders, taken) = channel();
        let run = |taken: Receiver<Order>| {
            let mut comm = None;
            taken.into_iter().for_each(|order| order(&mut comm));
        };
        let thread = thread::Builder::new().name(format!("nccl {rank}"));
        thread.spawn(move || run(taken)).map_err(TensorError::wrap)?;
        let orders = Arc::new(Mutex::new(Ok(orders)));
        let connection = Self { rank, world_size, timeout, device, orders };
        // NCCL has no time limit for this.
        connection.order(timeout, "not all ranks have joined NCCL", move |comm| {
            let stream = gpu.cuda_stream().context().new_stream().map_err(TensorError::wrap)?;
            // A connection belongs to the current context, and a new stream does not make its context the current one.
            stream.context().bind_to_thread().map_err(TensorError::wrap)?;
            *comm = Some(Comm::from_rank(stream, rank, world_size, id).map_err(nccl)?);
            Ok(())
        })?;
        Ok(connection)
    }

    /// Waits for all ranks: no rank has the sum before every rank has given a number.
    pub(super) fn barrier(&self) -> Result<(), Error> {
        self.collective(None, &Tensor::zeros(1, DType::F32, &self.device)?).map(drop)
    }

    /// Gives every rank the tensor of `root`, or without a root the sum of all tensors. NCCL does not compare their shapes.
    pub(super) fn collective(&self, root: Option<usize>, tensor: &Tensor) -> Result<Tensor, Error> {
        let (tensor, device, timeout) = (tensor.detach(), self.device.clone(), self.timeout);
        // The thread finds out by itself that the time is up, unless a call of NCCL does not return.
        let late = "a call of NCCL does not return: another rank stopped or stalls";
        self.order(timeout.saturating_add(GRACE), late, move |own_end| {
            let Some(comm) = own_end else { return refused("the connection has ended") };
            if !tensor.device().same_device(&device) {
                return refused("the tensor is not on this rank's GPU");
            }
            // If this is a copy, candle frees it in the order of its own stream. NCCL reads it on another stream.
            let tensor = tensor.contiguous()?;
            let result = queue(comm, root, &tensor)?;
            let done = wait(comm, timeout);
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
        // One order at a time. The rank may have given up when the thread answers.
        let mut orders = locked(&self.orders);
        match &*orders {
            Ok(orders) => drop(orders.send(Box::new(move |comm| drop(answer.send(work(comm)))))),
            Err(why) => return refused(why),
        }
        let (rank, seconds) = (self.rank, limit.as_secs_f64());
        let outcome = recv_timeout(&answered, limit).unwrap_or_else(|why| match why {
            RecvTimeoutError::Disconnected => refused("NCCL's thread has ended"),
            _ => Err(Error::Other(format!("rank {rank} waited {seconds:.1} s: {late}"))),
        });
        if outcome.is_err() {
            *orders = Err("an earlier collective has failed");
        }
        outcome
    }

    /// Whether nothing has failed, and the rank has not left.
    pub(super) fn is_open(&self) -> bool {
        locked(&self.orders).is_ok()
    }

    /// Ends the connection, also if there are clones of this end. All ranks' collectives are done.
    pub(super) fn leave(&self) {
        let _ = self.order(GRACE, "NCCL does not end its connection", |comm| {
            *comm = None;
            Ok(())
        });
        *locked(&self.orders) = Err("this connection has ended");
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
) -> Result<CudaStorage, TensorError>
where
    T: CudaDType + NcclType + DeviceRepr + ValidAsZeroBits,
{
    // Of candle's stream, on which the result is read and freed.
    let mut result = gpu.alloc_zeros(own.len())?;
    // Everything that candle has queued comes first: the tensor, and the zeros.
    comm.stream().join(&gpu.cuda_stream()).map_err(TensorError::wrap)?;
    match root {
        None => comm.all_reduce(own, &mut result, &ReduceOp::Sum),
        Some(root) => comm.broadcast(Some(own), &mut result, root as i32),
    }
    .map_err(nccl)?;
    Ok(CudaStorage::wrap_cuda_slice(result, gpu.clone()))
}

/// Waits until the GPU has done everything that was queued.
fn wait(comm: &Comm, timeout: Duration) -> Result<(), Error> {
    let done = comm.stream().record_event(None).map_err(TensorError::wrap)?;
    let mut clock = Stopwatch::start();
    while !done.try_is_complete().map_err(TensorError::wrap)? {
        let waited = clock.elapsed();
        if waited > timeout {
            let (rank, seconds) = (comm.rank(), waited.as_secs_f64());
            return Err(Error::Other(format!(
                "rank {rank} waited {seconds:.1} s for a collective: another rank stopped, stalls, or gave NCCL a tensor \
                 of another size"
            )));
        }
        pause(waited);
    }
    Ok(())
}

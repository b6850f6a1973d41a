//! A connection of NCCL's, in its own thread.
//!
//! NCCL's end of a connection belongs to the thread that made it, and some of NCCL's calls never return. Any thread may use a
//! [`Connection`], which gives orders to NCCL's thread and waits for each with a time limit. When a rank dies, NCCL's kernels
//! wait for ever on all other GPUs, until the thread tears the connection down.
//!
//! Each connection has a stream of its own. If two connections shared a stream, two ranks that queue one kernel of each in
//! another order would wait for each other for ever. A collective reads and writes a copy of the tensor. Before it, this stream
//! waits until candle's has filled the copy. After it, the thread waits for this stream.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use candle_core::cuda_backend::CudaStorageSlice as Slice;
use candle_core::{DType, Device, Error as TensorError, Tensor};
use cudarc::nccl::safe::{Comm, Id, ReduceOp};
use devices::{GpuCopy, Handover};
use harness::lock::locked;
use harness::stopwatch::{Stopwatch, pause, recv_timeout};
use params_and_allreduce::all_reduce;
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
        self.of_copy(root, Handover::new(tensor)?)
    }

    /// Gives every rank the sum of the tensors that are handed over.
    pub(super) fn all_reduce(&self, tensor: Handover) -> Result<Tensor, Error> {
        let (bytes, shape) = tensor.size();
        let _span = all_reduce::span(bytes, shape);
        self.of_copy(None, tensor)
    }

    /// A collective writes its result to the copy that it reads.
    fn of_copy(&self, root: Option<usize>, tensor: Handover) -> Result<Tensor, Error> {
        let (device, timeout) = (self.device.clone(), self.timeout);
        // The thread finds out by itself that the time is up, unless a call of NCCL does not return.
        let late = "a call of NCCL does not return: another rank stopped or stalls";
        self.order(timeout.saturating_add(GRACE), late, move |own_end| {
            let Some(comm) = &*own_end else { return refused("the connection has ended") };
            let mut copy = match tensor {
                // A GPU has no memory of size 0.
                Handover::Shared(empty) if empty.elem_count() == 0 => return Ok(empty),
                Handover::Copied(copy) if copy.is_on(&device) => copy,
                _ => return refused("the tensor is not on this rank's GPU"),
            };
            let done = queue(comm, root, &mut copy).and_then(|()| wait(comm, timeout));
            if done.is_err() {
                // This ends NCCL's kernels. Only then may the copy be freed.
                *own_end = None;
            }
            done.map(|()| copy.into_tensor())
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

/// Queues a collective, behind the work that fills the copy.
fn queue(comm: &Comm, root: Option<usize>, copy: &mut GpuCopy) -> Result<(), Error> {
    comm.stream().wait(&copy.there).map_err(TensorError::wrap)?;
    macro_rules! queued {
        ($($kind:ident),+) => {
            match &mut copy.storage.slice {
                $(Slice::$kind(memory) => match root {
                    None => comm.all_reduce_in_place(memory, &ReduceOp::Sum),
                    Some(root) => comm.broadcast_in_place(memory, root as i32),
                },)+
                _ => return refused("collectives have floats, u8, u32 and i64"),
            }
        };
    }
    let queued = queued!(F32, F64, F16, BF16, U8, U32, I64);
    queued.map(drop).map_err(|error| nccl(error).into())
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

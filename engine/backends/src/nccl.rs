//! NCCL: NVIDIA's own collectives, between GPUs.
//!
//! GPU kernels send directly from one GPU's memory to another's. All ranks join together, each with its own GPU, and leave
//! together: a slower rank may still read a rank's memory.
//!
//! [`NcclRank`] gives ranks that have messages NCCL's all-reduce. [`connect`] connects processes that a launcher such as
//! `torchrun` has started: they have collectives and no messages, which is enough for DDP.
//!
//! NCCL's end of a connection belongs to the thread that made it, and some of NCCL's calls never return. So each connection
//! has a thread, which takes orders with a time limit. When a rank dies, NCCL's kernels wait for ever on all other GPUs, until
//! the thread tears the connection down.
//!
//! Each connection has a stream of its own: on one stream, two ranks that queue the kernels of two connections in another order
//! would wait for each other for ever. A collective reads and writes a copy of the tensor, after candle's stream has filled it.

mod world;

use std::ffi::c_char;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use candle_core::cuda_backend::CudaStorageSlice as Slice;
use candle_core::{DType, Device, Error as TensorError, Tensor};
use cudarc::nccl::result::NcclError;
use cudarc::nccl::safe::{Comm, Id, ReduceOp};
use devices::{GpuCopy, Handover};
use harness::lock::locked;
use harness::stopwatch::{Stopwatch, pause, recv_timeout};
use params_and_allreduce::communicator::{Communicator, Error, SharedCommunicator};
use params_and_allreduce::thread::GRACE;
use params_and_allreduce::{Algorithm, all_reduce, forward};

use crate::text::values;
pub use world::connect;

/// One rank whose native all-reduce is NCCL's: everything else goes over the messages of another communicator. NCCL does not
/// compare shapes. The order of its additions depends on the number of ranks, and on the way in which their GPUs are
/// connected. After an error there are no more sums.
pub struct NcclRank {
    messages: SharedCommunicator,
    device: Device,
    timeout: Duration,
    /// `None` before the first sum, for which all ranks join.
    connection: Mutex<Option<Connection>>,
}

impl NcclRank {
    /// Makes a rank that joins NCCL at its first sum, and waits at most `timeout` for a sum. All ranks call
    /// [`leave`](Communicator::leave) before one of them drops its rank.
    pub fn new(messages: SharedCommunicator, timeout: Duration) -> Self {
        let device = messages.device().clone();
        Self { messages, device, timeout, connection: Mutex::default() }
    }

    /// The first call joins: all ranks make it together. Fails when a rank's device is no GPU or two ranks share one, and when
    /// NCCL cannot connect the ranks in time.
    fn connection(&self) -> Result<Connection, Error> {
        let mut joined = locked(&self.connection);
        if let Some(connection) = &*joined {
            return Ok(connection.clone());
        }
        let place = (self.messages.rank(), self.messages.world_size());
        let Device::Cuda(gpu) = &self.device else {
            return Err(Error::Other("NCCL adds up tensors on GPUs: use --device cuda".to_owned()));
        };
        // A GPU's number is not enough: every machine counts from 0, and so does a process that has some of the GPUs.
        let gpu = gpu.cuda_stream().context().uuid().map_err(TensorError::wrap)?.bytes.to_vec();
        // Rank 0 makes an identifier for all.
        let id = if place.0 == 0 { Id::new().map_err(nccl)?.internal().to_vec() } else { vec![] };
        let (gpus, ids): (Vec<_>, Vec<Vec<c_char>>) =
            values(&*self.messages, &(gpu, id))?.into_iter().unzip();
        if let Some((one, other)) = sharers(&gpus) {
            return Err(Error::Other(format!(
                "ranks {one} and {other} share a GPU, and NCCL needs one for each rank: use no more devices than there are \
                 GPUs, or another all-reduce"
            )));
        }
        let id = ids[0].as_slice().try_into().map_err(TensorError::wrap)?;
        let connection = Connection::open(&self.device, place, Id::uninit(id), self.timeout)?;
        Ok(joined.insert(connection).clone())
    }
}

impl Communicator for NcclRank {
    forward!(messages: rank, world_size, device, send, send_shared, recv, shares_memory, world_rank);

    fn background(&self) -> Result<SharedCommunicator, Error> {
        let (messages, device) = (self.messages.background()?, self.device.clone());
        Ok(Arc::new(Self { device, ..Self::new(messages, self.timeout) }))
    }

    fn all_reduce(&self, tensor: &Tensor, algorithm: Algorithm) -> Result<Tensor, Error> {
        match algorithm {
            Algorithm::Native => self.all_reduce_handed_over(Handover::new(tensor)?, algorithm),
            _ => self.messages.all_reduce(tensor, algorithm),
        }
    }

    fn all_reduce_handed_over(
        &self,
        tensor: Handover,
        algorithm: Algorithm,
    ) -> Result<Tensor, Error> {
        match algorithm {
            Algorithm::Native => self.connection()?.all_reduce(tensor),
            _ => self.messages.all_reduce_handed_over(tensor, algorithm),
        }
    }

    /// A slower rank may still read the buffers of this rank's connection to NCCL.
    fn leave(&self) -> Result<(), Error> {
        let joined = locked(&self.connection).is_some();
        if joined { self.messages.barrier() } else { Ok(()) }
    }
}

/// The first two ranks that have the same GPU.
fn sharers<T: PartialEq>(gpus: &[T]) -> Option<(usize, usize)> {
    let earlier = |rank: usize| gpus[..rank].iter().position(|gpu| *gpu == gpus[rank]);
    (0..gpus.len()).find_map(|rank| Some((earlier(rank)?, rank)))
}

/// Work for the thread, which has NCCL's end from the moment when it has joined until a collective fails.
type Order = Box<dyn FnOnce(&mut Option<Comm>) + Send>;

/// A rank's end of a connection. A clone is the same end.
#[derive(Clone)]
struct Connection {
    rank: usize,
    world_size: usize,
    timeout: Duration,
    device: Device,
    /// To the thread, or the reason why it takes no more orders.
    orders: Arc<Mutex<Result<Sender<Order>, &'static str>>>,
}

impl Connection {
    /// Connects the ranks that have the same `id`. All ranks call this together, in time.
    fn open(
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
    fn barrier(&self) -> Result<(), Error> {
        let zero = Tensor::zeros(1, DType::F32, &self.device)?;
        self.of_copy(None, Handover::new(&zero)?).map(drop)
    }

    /// Gives every rank the sum of the tensors that are handed over. NCCL does not compare their shapes.
    fn all_reduce(&self, tensor: Handover) -> Result<Tensor, Error> {
        let (bytes, shape) = tensor.size();
        let _span = all_reduce::span(bytes, shape);
        self.of_copy(None, tensor)
    }

    /// Gives every rank the tensor of `root`, or without a root the sum of all tensors. A collective writes its result to the
    /// copy that it reads.
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

    /// Ends the connection, also if there are clones of this end. All ranks' collectives are done.
    fn leave(&self) {
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

fn nccl(error: NcclError) -> TensorError {
    TensorError::Msg(format!("NCCL: {:?}", error.0))
}

#[cfg(test)]
mod tests {
    use devices::DevicePlan;
    use params_and_allreduce::thread::run_ranks;

    use super::*;

    #[test]
    fn slices_of_the_cpu_are_refused() {
        let wait = Duration::from_secs(60);
        let failure = run_ranks(&DevicePlan::slices(2).unwrap(), wait, |rank| {
            let one = Tensor::new(1f32, rank.device())?;
            NcclRank::new(rank.into(), wait).all_reduce(&one, Algorithm::Native)
        });
        let message = failure.unwrap_err().to_string();
        assert!(message.contains("NCCL adds up tensors on GPUs"), "{message}");
    }

    #[test]
    fn two_ranks_on_one_gpu_are_found() {
        assert_eq!(sharers(&[0, 1, 2]), None);
        assert_eq!(sharers(&[0, 1, 0, 1]), Some((0, 2)));
        assert_eq!(sharers(&[3, 1, 1]), Some((1, 2)));
    }
}

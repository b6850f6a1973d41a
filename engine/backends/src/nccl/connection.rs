//! A connection of NCCL's, in its own thread.
//!
//! NCCL's end of a connection belongs to the thread that made it. A [`Connection`] gives orders to this thread, so any thread
//! may use it. The thread queues the collectives in the order of the orders, and waits for each with a time limit: when a rank
//! dies, NCCL's kernels wait for ever on all other GPUs, until their connection is torn down.
//!
//! NCCL's kernels have their own stream. If two connections shared a stream, two ranks that queue one kernel of each in
//! another order would wait for each other for ever. Before a collective, NCCL's stream waits for candle's. After it, the
//! thread waits for NCCL's stream.

use std::hint::spin_loop;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use candle_core::cuda_backend::CudaStorageSlice as Slice;
use candle_core::{
    self as candle, CpuStorage, CudaDevice, CudaStorage, CustomOp1, Device, Layout, Shape, Tensor,
    bail,
};
use cudarc::driver::{CudaSlice, CudaStream, DeviceRepr, ValidAsZeroBits};
use cudarc::nccl::safe::{Comm, Id, NcclType, ReduceOp};
use harness::lock::locked;
use harness::report::trace::COMMUNICATION;
use harness::stopwatch::{Stopwatch, recv_timeout};
use params_and_allreduce::communicator::Error;
use params_and_allreduce::thread::GRACE;
use tracing::info_span;

use super::{driver, nccl};

/// An all-reduce of small tensors is done within this time. A longer wait may sleep.
const SPIN: Duration = Duration::from_micros(200);

/// The time of one sleep.
const NAP: Duration = Duration::from_micros(50);

/// A collective.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Sum,
    Broadcast { root: usize },
}

enum Order {
    Collective { tensor: Tensor, kind: Kind, answer: Sender<Result<Tensor, Error>> },
    Leave,
}

/// A rank's end of a connection. A clone is the same end.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) rank: usize,
    pub(super) world_size: usize,
    pub(super) timeout: Duration,
    orders: Sender<Order>,
    failed: Arc<AtomicBool>,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
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
        let Device::Cuda(gpu) = device.clone() else {
            return Err(Error::Other("NCCL adds up tensors on GPUs: use --device cuda".to_owned()));
        };
        let (orders, taken) = channel();
        let (joined, outcome) = channel();
        let work = move || match Member::join(gpu, rank, world_size, id, timeout) {
            // The rank may have given up.
            Err(error) => drop(joined.send(Err(error))),
            Ok(member) => {
                if joined.send(Ok(())).is_ok() {
                    member.serve(&taken);
                }
            }
        };
        let thread = thread::Builder::new().name(format!("nccl {rank}"));
        let thread = thread.spawn(work).map_err(candle_core::Error::wrap)?;
        let thread = Arc::new(Mutex::new(Some(thread)));
        match recv_timeout(&outcome, timeout) {
            Ok(Ok(())) => {
                Ok(Self { rank, world_size, timeout, orders, failed: Arc::default(), thread })
            }
            Ok(Err(error)) => Err(error.into()),
            Err(RecvTimeoutError::Disconnected) => Err(has_ended()),
            Err(RecvTimeoutError::Timeout) => Err(Error::Other(format!(
                "rank {rank} waited {:.1} s: not all of the {world_size} ranks have joined NCCL",
                timeout.as_secs_f64()
            ))),
        }
    }

    /// Adds up the tensors of all ranks. NCCL does not compare their shapes.
    pub(super) fn all_reduce(&self, tensor: &Tensor) -> Result<Tensor, Error> {
        let bytes = tensor.elem_count() * tensor.dtype().size_in_bytes();
        let shape = tensor.dims();
        let _span = info_span!(target: COMMUNICATION, "all-reduce", bytes, ?shape).entered();
        self.order(tensor, Kind::Sum)
    }

    /// Gives every rank the root's tensor.
    pub(super) fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<Tensor, Error> {
        let (rank, world_size) = (self.rank, self.world_size);
        if root >= world_size {
            return Err(Error::NoSuchRank { rank, other: root, world_size });
        }
        self.order(tensor, Kind::Broadcast { root })
    }

    fn order(&self, tensor: &Tensor, kind: Kind) -> Result<Tensor, Error> {
        let (answer, answered) = channel();
        let order = Order::Collective { tensor: tensor.detach(), kind, answer };
        // The thread finds out by itself that the time is up, unless a call of NCCL does not return.
        let limit = self.timeout.saturating_add(GRACE);
        let sent = self.orders.send(order).map_err(|_| RecvTimeoutError::Disconnected);
        let outcome = match sent.and_then(|()| recv_timeout(&answered, limit)) {
            Ok(outcome) => outcome,
            Err(RecvTimeoutError::Disconnected) => Err(has_ended()),
            Err(RecvTimeoutError::Timeout) => Err(Error::Other(
                "a call of NCCL does not return: another rank stopped or stalls".to_owned(),
            )),
        };
        self.failed.fetch_or(outcome.is_err(), Ordering::Relaxed);
        outcome
    }

    /// Whether a collective has failed. The ranks then no longer agree on the next collective.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Ends the thread, also if there are clones of this end. All ranks' collectives are done.
    pub(super) fn leave(&self) {
        let _ = self.orders.send(Order::Leave);
        let thread = locked(&self.thread).take();
        let _ = thread.map(JoinHandle::join);
    }
}

fn has_ended() -> Error {
    Error::Other("NCCL: this rank's connection has ended".to_owned())
}

/// The thread's side of a connection.
struct Member {
    rank: usize,
    device: Device,
    stream: Arc<CudaStream>,
    /// `None` after a failure.
    comm: Option<Comm>,
    timeout: Duration,
}

impl Member {
    /// Joins. NCCL has no time limit for this.
    fn join(
        gpu: CudaDevice,
        rank: usize,
        world_size: usize,
        id: Id,
        timeout: Duration,
    ) -> candle::Result<Self> {
        let stream = gpu.cuda_stream().context().new_stream().map_err(driver)?;
        // A connection belongs to the current context, and a new stream does not make its context the current one.
        stream.context().bind_to_thread().map_err(driver)?;
        let comm = Some(Comm::from_rank(stream.clone(), rank, world_size, id).map_err(nccl)?);
        Ok(Self { rank, device: Device::Cuda(gpu), stream, comm, timeout })
    }

    fn serve(mut self, orders: &Receiver<Order>) {
        while let Ok(Order::Collective { tensor, kind, answer }) = orders.recv() {
            // The rank may have given up.
            let _ = answer.send(self.run(&tensor, kind));
        }
    }

    /// Runs a collective, and waits until it is done.
    fn run(&mut self, tensor: &Tensor, kind: Kind) -> Result<Tensor, Error> {
        // A copy, if the tensor is not contiguous. It is freed in the order of candle's stream, and NCCL reads it on another
        // stream, so it is kept until NCCL is done.
        let contiguous = tensor.contiguous();
        let result = contiguous.as_ref().map_err(|error| Error::Other(error.to_string()));
        let result = result.and_then(|tensor| self.queue(tensor, kind));
        let result = result.and_then(|result| self.wait(kind).map(|()| result));
        if result.is_err() {
            // This ends the kernels. Only then may the tensors be freed.
            self.comm = None;
        }
        result
    }

    fn queue(&self, tensor: &Tensor, kind: Kind) -> Result<Tensor, Error> {
        let refusal = |text: &str| Err(Error::Other(format!("NCCL: {text}")));
        match &self.comm {
            _ if !tensor.device().same_device(&self.device) => {
                refusal("the tensor is not on this rank's GPU")
            }
            None => refusal("an earlier collective has failed"),
            // A GPU has no memory of size 0.
            Some(_) if tensor.elem_count() == 0 => Ok(tensor.clone()),
            Some(comm) => Ok(tensor.apply_op1_no_bwd(&Collective { comm, kind })?),
        }
    }

    /// Waits until the GPU has done everything that was queued.
    fn wait(&self, kind: Kind) -> Result<(), Error> {
        let done = self.stream.record_event(None).map_err(driver)?;
        let mut clock = Stopwatch::start();
        while !done.try_is_complete().map_err(driver)? {
            match clock.elapsed() {
                waited if waited > self.timeout => {
                    let what = match kind {
                        Kind::Sum => "a sum".to_owned(),
                        Kind::Broadcast { root } => format!("rank {root}'s tensor"),
                    };
                    return Err(Error::Other(format!(
                        "rank {} waited {:.1} s for {what}: another rank stopped, stalls, or gave NCCL a tensor of \
                         another size",
                        self.rank,
                        waited.as_secs_f64()
                    )));
                }
                waited if waited < SPIN => spin_loop(),
                _ => thread::sleep(NAP),
            }
        }
        Ok(())
    }
}

/// A collective as an operation of candle's, which gives access to a tensor's memory. It is queued, and not waited for.
struct Collective<'a> {
    comm: &'a Comm,
    kind: Kind,
}

impl CustomOp1 for Collective<'_> {
    fn name(&self) -> &'static str {
        match self.kind {
            Kind::Sum => "NCCL's all-reduce",
            Kind::Broadcast { .. } => "NCCL's broadcast",
        }
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> candle::Result<(CpuStorage, Shape)> {
        bail!("{}: the tensor is in CPU memory", self.name())
    }

    fn cuda_fwd(
        &self,
        storage: &CudaStorage,
        layout: &Layout,
    ) -> candle::Result<(CudaStorage, Shape)> {
        let Some((start, end)) = layout.contiguous_offsets() else {
            bail!("{}: expected a contiguous tensor", self.name());
        };
        let (device, range) = (&storage.device, start..end);
        let slice = match (&storage.slice, self.kind) {
            (Slice::F32(values), _) => Slice::F32(self.queue(device, values, range)?),
            (Slice::F64(values), _) => Slice::F64(self.queue(device, values, range)?),
            (Slice::F16(values), _) => Slice::F16(self.queue(device, values, range)?),
            (Slice::BF16(values), _) => Slice::BF16(self.queue(device, values, range)?),
            (_, Kind::Sum) => bail!("{}: works on f32, f64, f16 and bf16", self.name()),
            (Slice::U8(values), _) => Slice::U8(self.queue(device, values, range)?),
            (Slice::U32(values), _) => Slice::U32(self.queue(device, values, range)?),
            (Slice::I64(values), _) => Slice::I64(self.queue(device, values, range)?),
            _ => bail!("{}: works on floats, u8, u32 and i64", self.name()),
        };
        Ok((CudaStorage { slice, device: device.clone() }, layout.shape().clone()))
    }
}

impl Collective<'_> {
    fn queue<T: NcclType + DeviceRepr + ValidAsZeroBits>(
        &self,
        device: &CudaDevice,
        values: &CudaSlice<T>,
        range: Range<usize>,
    ) -> candle::Result<CudaSlice<T>> {
        let own = values.slice(range);
        // Of candle's stream, on which the result is read and freed.
        let mut result = device.alloc_zeros(own.len())?;
        // Everything that candle has queued comes first: the tensor, and the zeros.
        self.comm.stream().join(&device.cuda_stream()).map_err(driver)?;
        match self.kind {
            Kind::Sum => self.comm.all_reduce(&own, &mut result, &ReduceOp::Sum),
            Kind::Broadcast { root } => self.comm.broadcast(Some(&own), &mut result, root as i32),
        }
        .map_err(nccl)?;
        Ok(result)
    }
}

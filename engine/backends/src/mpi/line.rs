//! One rank's end of one set of connections to all other ranks.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ::mpi::topology::SimpleCommunicator;
use ::mpi::traits::Communicator as _;
use candle_core::{DType, Device, Shape, Tensor, WithDType};

use super::inquiry::Inquiry;
use super::parcel::{Arrival, Parcel};
use super::postman::{Answer, Order, Postman};
use super::sum::Sum;
use super::waiting::{Waiting, WaitsFor};
use crate::communicator::{Communicator, Engine, Error};
use crate::thread::patience::wait;
use harness::lock::locked;

/// One rank's end of its connections: a value that can be kept, and called from any thread.
///
/// What is sent through it goes to a thread that talks MPI. After the end of the [`World`](super::World) every
/// call fails.
#[derive(Clone, Debug)]
pub struct Line {
    ends: Arc<Ends>,
    device: Device,
}

/// The ends of the channels to and from the postman.
#[derive(Debug)]
pub(super) struct Ends {
    rank: usize,
    world_size: usize,
    timeout: Duration,
    orders: Sender<Order>,
    /// From each rank.
    inboxes: Vec<Mutex<Receiver<Arrival>>>,
    answers: Mutex<Receiver<Answer>>,
    state: Arc<Waiting>,
}

impl Ends {
    /// Starts the thread that talks for a new line. All ranks call this together, and for one line after
    /// the other, so that they agree on which copy of MPI's world is which.
    pub(super) fn connect(
        name: &str,
        timeout: Duration,
    ) -> std::io::Result<(Self, JoinHandle<()>)> {
        let world = SimpleCommunicator::world();
        let (rank, world_size) = (world.rank() as usize, world.size() as usize);
        let state = Arc::new(Waiting::new());
        let (to_postman, orders) = channel();
        let (to_line, inboxes): (Vec<_>, Vec<_>) = (0..world_size)
            .map(|_| channel())
            .map(|(to, from)| (Some(to), Mutex::new(from)))
            .unzip();
        let (answer, answers) = channel();
        let (ready, is_ready) = channel();
        let ends = Self {
            rank,
            world_size,
            timeout,
            orders: to_postman,
            inboxes,
            answers: Mutex::new(answers),
            state: Arc::clone(&state),
        };
        let postman = thread::Builder::new().name(format!("mpi {name}")).spawn(move || {
            // The copy belongs to this thread from beginning to end.
            let world = SimpleCommunicator::world().duplicate();
            let _ = ready.send(());
            Postman::new(world, orders, to_line, answer, state).work();
        })?;
        // An error is a thread that has ended: the first call will tell.
        let _ = is_ready.recv();
        Ok((ends, postman))
    }

    /// The rank's work is done: nothing more is sent, and the others are told so.
    pub(super) fn leave(&self) {
        self.state.leave();
        drop(self.orders.send(Order::Leave));
    }

    pub(super) fn timeout(&self) -> Duration {
        self.timeout
    }

    fn order(&self, order: Order) -> Result<(), Error> {
        let sent = !self.state.has_left() && self.orders.send(order).is_ok();
        if sent { Ok(()) } else { Err(self.stopped(self.rank, "has ended")) }
    }

    fn arrival(&self, from: usize) -> Result<Arrival, Error> {
        let inbox = locked(&self.inboxes[from]);
        if let Ok(arrival) = inbox.try_recv() {
            self.state.goes_on();
            return Ok(arrival);
        }
        self.state.during(WaitsFor::Rank(from), || {
            self.order(Order::Look)?;
            match wait(&inbox, self.timeout) {
                Ok(arrival) => Ok(arrival),
                Err(RecvTimeoutError::Disconnected) => Err(self.stopped(from, "returned early")),
                // Asked while this rank still counts as waiting, so that nobody blames it meanwhile.
                Err(RecvTimeoutError::Timeout) => Err(self.inquiry().about(self.state.whom())),
            }
        })
    }

    /// The sum of all ranks' numbers, made by MPI.
    fn sum<T: WithDType>(
        &self,
        tensor: &Tensor,
        job: impl FnOnce(Vec<T>, Sender<Vec<T>>) -> Sum,
    ) -> Result<Tensor, Error> {
        let mine = tensor.flatten_all()?.to_vec1()?;
        let (to, sum) = channel();
        let sum = self.state.during(WaitsFor::All, || {
            self.order(Order::Sum(job(mine, to)))?;
            match wait(&sum, self.timeout) {
                Ok(sum) => Ok(sum),
                Err(RecvTimeoutError::Disconnected) => Err(self.stopped(self.rank, "has ended")),
                Err(RecvTimeoutError::Timeout) => Err(self.inquiry().about(self.state.whom())),
            }
        })?;
        Ok(Tensor::from_vec(sum, tensor.shape(), tensor.device())?)
    }

    fn inquiry(&self) -> Inquiry<'_> {
        let ask = |rank| self.order(Order::Ask(rank)).is_ok();
        Inquiry::new(self.rank, self.world_size, self.timeout, Box::new(ask), locked(&self.answers))
    }

    /// Whom this rank can exchange messages with.
    fn check(&self, other: usize) -> Result<(), Error> {
        if other == self.rank || other >= self.world_size {
            let (rank, world_size) = (self.rank, self.world_size);
            return Err(Error::NoSuchRank { rank, other, world_size });
        }
        if self.state.has_left() {
            return Err(self.stopped(self.rank, "has ended"));
        }
        Ok(())
    }

    fn stopped(&self, rank: usize, why: &str) -> Error {
        Error::RankStopped { rank, why: why.to_owned(), waiting: self.rank }
    }
}

impl Line {
    pub(super) fn new(ends: &Arc<Ends>, device: &Device) -> Self {
        Self { ends: Arc::clone(ends), device: device.clone() }
    }
}

impl Communicator for Line {
    fn rank(&self) -> usize {
        self.ends.rank
    }

    fn world_size(&self) -> usize {
        self.ends.world_size
    }

    fn device(&self) -> &Device {
        &self.device
    }

    fn send(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.ends.check(to)?;
        self.ends.order(Order::Send(Parcel::tensor(to, tensor)?))
    }

    fn recv(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Tensor, Error> {
        self.ends.check(from)?;
        match self.ends.arrival(from)? {
            Arrival::Tensor { dtype: sent, dims, bytes }
                if sent == dtype && dims == shape.dims() =>
            {
                let tensor = Tensor::from_raw_buffer(&bytes, dtype, &dims, &Device::Cpu)?;
                Ok(tensor.to_device(&self.device)?)
            }
            other => Err(Error::Mismatch {
                rank: from,
                found: other.description(),
                expected: format!("{dtype:?} {:?}", shape.dims()),
                waiting: self.rank(),
            }),
        }
    }

    /// [`Engine::Mpi`]: `MPI_Iallreduce`, for f32 and f64. MPI does not compare shapes: ranks that add tensors
    /// of different sizes are a mistake that it ends the job for, or does not notice.
    fn native_all_reduce(&self, engine: Engine, tensor: &Tensor) -> Result<Tensor, Error> {
        if engine != Engine::Mpi {
            return Err(Error::NoNativeAllReduce { engine });
        }
        let tensor = tensor.detach();
        if tensor.elem_count() == 0 {
            return Ok(tensor);
        }
        match tensor.dtype() {
            DType::F32 => self.ends.sum(&tensor, |mine, to| Sum::F32 { mine, to }),
            DType::F64 => self.ends.sum(&tensor, |mine, to| Sum::F64 { mine, to }),
            other => Err(Error::Other(format!("MPI adds up f32 and f64, not {}", other.as_str()))),
        }
    }
}

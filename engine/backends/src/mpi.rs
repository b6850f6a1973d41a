//! Ranks as processes, on one machine or on many: MPI.
//!
//! `mpirun -n 4 PROGRAM` starts a program four times, and MPI connects the processes. Each process is one rank.
//!
//! ```no_run
//! use std::time::Duration;
//! use backends::mpi;
//! use candle_core::{DType, Tensor};
//! use devices::{DeviceKind, DevicePlan};
//! use params_and_allreduce::Algorithm;
//! use params_and_allreduce::communicator::Communicator as _;
//!
//! let world = mpi::World::connect(Duration::from_secs(300))?;
//! // The devices of this machine. This process takes its own.
//! let plan = DevicePlan::new(DeviceKind::Auto, world.local_size(), None)?;
//! let sum = world.run(&plan, |rank| {
//!     let ones = Tensor::ones(3, DType::F32, rank.device())?;
//!     rank.all_reduce(&ones, Algorithm::Ring)
//! });
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! | file | content |
//! | --- | --- |
//! | `mpi.rs` | the world, and a rank with its [`Communicator`] |
//! | `mpi/connection.rs` | sending, waiting with a time limit, the progress thread |
//! | `mpi/progress.rs` | messages on their way, and questions of other ranks |
//! | `mpi/transfer.rs` | memory that MPI reads or writes; the header of a message |
//! | `mpi/wait_graph.rs` | the rank to name when nothing comes |
//!
//! A rank has two connections, each with a duplicate of MPI's world, so two threads of a rank can communicate at the same
//! time. Tensors of a GPU pass through CPU memory.
//!
//! When a process is killed, `mpirun` ends all. A rank that fails or panics prints the reason and ends the job. A
//! rank that waits for too long names the rank that stalls, and ends the job.

mod connection;
mod progress;
mod transfer;
mod wait_graph;

use std::fmt;
use std::io::{self, Write as _};
use std::marker::PhantomData;
use std::process::exit;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ::mpi::Threading;
use ::mpi::environment::{Universe, processor_name};
use ::mpi::topology::SimpleCommunicator;
use ::mpi::traits::{Communicator as _, Equivalence};
use candle_core::{DType, Device, Shape, Tensor, WithDType};
use devices::{ComputeDevice, DevicePlan, move_view};
use harness::launcher::{self, Started};
use params_and_allreduce::communicator::{Communicator, Error, SharedCommunicator};
use params_and_allreduce::thread::{Cause, attempt};

use crate::print_failure;
use connection::Connection;
use transfer::Header;

/// If MPI has not ended the job within this time, this process ends itself, and `mpirun` ends the job.
const ABORT_LIMIT: Duration = Duration::from_secs(5);

/// The reason why this process has no connection to other processes.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// [`World::connect`] was called before in this process.
    #[error("this process is connected through MPI already, or was: that can be done once")]
    Twice,
    /// The library was built for programs of one thread.
    #[error(
        "this MPI library does not let several threads call it (it offers {0:?}, not Multiple)"
    )]
    Threads(Threading),
    /// MPI connects fewer processes than the launcher has started, so each would train alone.
    #[error(
        "{started}, and MPI connects {connected} of them: this program was built with another MPI library than the \
         launcher's, or srun wants another --mpi (srun --mpi=list)"
    )]
    NotAll {
        /// The processes that the launcher has started.
        started: Started,
        /// The number of processes that MPI connects.
        connected: usize,
    },
    /// The system gave no thread.
    #[error("a thread for MPI could not be started: {0}")]
    Thread(#[from] io::Error),
}

/// All processes that were started together, and this process's place among them.
///
/// It belongs to the thread that made it: MPI has to be finished where it was initialised.
pub struct World {
    rank: usize,
    world_size: usize,
    local_rank: usize,
    local_size: usize,
    connections: [Arc<Connection>; 2],
    progress: Vec<JoinHandle<()>>,
    // Dropped last: this finishes MPI.
    _universe: Universe,
    _of_one_thread: PhantomData<*const ()>,
}

impl World {
    /// Connects this process with all others that `mpirun` started. A program that was started without `mpirun` is a world
    /// of one. All processes call this, once, before anything else.
    ///
    /// A rank waits for a message at most `timeout`.
    ///
    /// # Errors
    ///
    /// When this process was connected before, when several threads cannot use MPI, and when MPI connects another number
    /// of processes than the launcher has started.
    pub fn connect(timeout: Duration) -> Result<Self, ConnectError> {
        let initialised = ::mpi::initialize_with_threading(Threading::Multiple);
        let (universe, threading) = initialised.ok_or(ConnectError::Twice)?;
        if threading < Threading::Multiple {
            return Err(ConnectError::Threads(threading));
        }
        let world = universe.world();
        let connected = world.size() as usize;
        if let Some(started) = launcher::started().filter(|it| it.processes != connected) {
            return Err(ConnectError::NotAll { started, connected });
        }
        // The processes that share this machine's memory, in the order of their ranks.
        let here = world.split_shared(world.rank());
        let (main, thread) = Connection::open("main", timeout)?;
        let (background, second_thread) = Connection::open("background", timeout)?;
        Ok(Self {
            rank: world.rank() as usize,
            world_size: connected,
            local_rank: here.rank() as usize,
            local_size: here.size() as usize,
            connections: [main, background],
            progress: vec![thread, second_thread],
            _universe: universe,
            _of_one_thread: PhantomData,
        })
    }

    /// This process's rank, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of processes.
    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// This process's number among the processes on the same machine, from 0.
    pub fn local_rank(&self) -> usize {
        self.local_rank
    }

    /// The number of processes on this machine. It needs a device for each.
    pub fn local_size(&self) -> usize {
        self.local_size
    }

    /// The name of this process's machine.
    pub fn machine(&self) -> String {
        processor_name()
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }

    /// This rank's communicator before it has a device: received tensors are in CPU memory. It has the same connections as
    /// the rank that [`run`](Self::run) makes.
    pub fn communicator(&self) -> SharedCommunicator {
        Arc::new(Rank { connections: self.connections.clone(), current: 0, device: None })
    }

    /// Runs `work` for this rank, on its device of the plan. The plan has this machine's devices, one for each process.
    /// Other ranks may still work when this returns. They have ended when the world has been dropped.
    ///
    /// `mpirun` may have bound each process to one core. Start it with `--bind-to none` if a device is to have more.
    ///
    /// If the work fails or panics, this prints `rank R failed: …` on standard error and ends the job, with exit code 1.
    pub fn run<R, E>(&self, plan: &DevicePlan, work: impl FnOnce(&Rank) -> Result<R, E> + Send) -> R
    where
        R: Send,
        E: From<Error> + fmt::Display + Send,
    {
        let slot = plan.slots().get(self.local_rank).ok_or_else(|| {
            let (devices, rank) = (plan.len(), self.local_rank);
            Error::Other(format!("{devices} devices are too few: this is process {rank} here"))
        });
        let device = slot.and_then(|slot| Ok(Arc::new(slot.open()?)));
        let outcome = device.map_err(|error| Cause::Error(E::from(error))).and_then(|device| {
            let connections = self.connections.clone();
            let rank = Rank { connections, current: 0, device: Some(Arc::clone(&device)) };
            attempt(&device, || work(&rank))
        });
        outcome.unwrap_or_else(|cause| {
            self.connections[0].wait_to_report();
            print_failure(self.rank, &cause);
            abort()
        })
    }
}

impl Drop for World {
    /// Sends farewells, and waits until the work of all ranks is done.
    fn drop(&mut self) {
        self.connections.iter().for_each(|connection| connection.leave());
        for thread in self.progress.drain(..) {
            if thread.join().is_err() {
                abort();
            }
        }
    }
}

/// Ends all processes of the job, with exit code 1. No destructors run.
#[expect(clippy::disallowed_methods, reason = "ends a job in which nothing can return")]
pub fn abort() -> ! {
    let _ = io::stdout().flush();
    // MPI may wait for another thread that is in a call.
    thread::spawn(|| {
        thread::sleep(ABORT_LIMIT);
        exit(1);
    });
    SimpleCommunicator::world().abort(1)
}

/// One rank: its device, and its end of a connection to all other ranks. A clone is the same end. Any thread may use and
/// drop it.
///
/// After the end of the [`World`] every call fails.
#[derive(Clone, Debug)]
pub struct Rank {
    /// The main connection, and that of the background.
    connections: [Arc<Connection>; 2],
    current: usize,
    /// `None` in [`World::communicator`].
    device: Option<Arc<ComputeDevice>>,
}

impl Rank {
    /// The device that this rank drives.
    ///
    /// # Panics
    ///
    /// Never for a rank that [`World::run`] made.
    pub fn compute_device(&self) -> &ComputeDevice {
        self.device.as_deref().expect("a rank of World::run")
    }

    /// The time that this rank waits for a message.
    pub fn timeout(&self) -> Duration {
        self.connection().timeout
    }

    fn connection(&self) -> &Connection {
        &self.connections[self.current]
    }

    fn native_sum<T>(&self, flat: &Tensor) -> Result<Tensor, Error>
    where
        T: WithDType + Equivalence + Default,
    {
        let sum = self.connection().all_reduce::<T>(flat.to_vec1()?)?;
        Ok(Tensor::from_vec(sum, flat.shape(), self.device())?)
    }
}

impl Communicator for Rank {
    fn rank(&self) -> usize {
        self.connection().rank
    }

    fn world_size(&self) -> usize {
        self.connection().world_size
    }

    /// In the background, tensors are those of the device's second [stream](ComputeDevice::side_stream).
    fn device(&self) -> &Device {
        match &self.device {
            Some(device) if self.current == 0 => device.tensors(),
            Some(device) => device.side_stream(),
            None => &Device::Cpu,
        }
    }

    fn send(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.connection().check(to)?;
        self.connection().send(to, &move_view(&tensor.detach(), &Device::Cpu)?)
    }

    fn recv(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Tensor, Error> {
        self.connection().check(from)?;
        let found = match self.connection().receive(from)? {
            (Some(Header::Tensor { dtype: sent, dims }), bytes)
                if sent == dtype && dims == shape.dims() =>
            {
                let tensor = Tensor::from_raw_buffer(&bytes, dtype, &dims, &Device::Cpu)?;
                return Ok(tensor.to_device(self.device())?);
            }
            (Some(Header::Tensor { dtype, dims }), _) => format!("{dtype:?} {dims:?}"),
            _ => "a message of another program".to_owned(),
        };
        Err(Error::Mismatch {
            rank: from,
            found,
            expected: format!("{dtype:?} {:?}", shape.dims()),
            waiting: self.rank(),
        })
    }

    fn background(&self) -> Result<SharedCommunicator, Error> {
        Ok(Arc::new(Self { current: 1, ..self.clone() }))
    }

    /// Calls `MPI_Iallreduce`, for f32 and f64. MPI does not compare shapes: when ranks add tensors of different sizes, MPI
    /// ends the job, or does not notice.
    fn native_all_reduce(&self, tensor: &Tensor) -> Result<Tensor, Error> {
        let flat = tensor.detach().flatten_all()?;
        let sum = match flat.dtype() {
            _ if flat.elem_count() == 0 => flat,
            DType::F32 => self.native_sum::<f32>(&flat)?,
            DType::F64 => self.native_sum::<f64>(&flat)?,
            other => {
                let other = other.as_str();
                return Err(Error::Other(format!("MPI adds up f32 and f64, not {other}")));
            }
        };
        Ok(sum.reshape(tensor.shape())?)
    }
}

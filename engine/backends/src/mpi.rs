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
//! A rank has two connections, each with a duplicate of MPI's world, so two threads of a rank can communicate at the same
//! time. Tensors of a GPU pass through CPU memory. The file `connection.rs` sends, receives and ends the job, `message.rs`
//! owns the memory that MPI uses, and `wait_graph.rs` finds the rank to name when nothing comes.
//!
//! When a process is killed, `mpirun` ends all. A rank that fails, panics or waits for too long ends the job. One line on
//! standard error names the rank and the reason.

mod connection;
mod message;
mod wait_graph;

use std::marker::PhantomData;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use std::{fmt, mem};

use ::mpi::Threading;
use ::mpi::environment::{Universe, processor_name};
use ::mpi::traits::{Communicator as _, Equivalence};
use candle_core::{DType, Device, Shape, Tensor, WithDType};
use devices::{ComputeDevice, DevicePlan, move_view};
use harness::launcher;
use params_and_allreduce::communicator::{Communicator, Error, SharedCommunicator};
use params_and_allreduce::thread::{Cause, attempt};
use safetensors::View as _;

use connection::Connection;
use message::Header;

/// All processes that were started together, and this process's place among them.
///
/// It belongs to the thread that made it: MPI has to be finished where it was initialised.
pub struct World {
    local_rank: usize,
    local_size: usize,
    /// Without a device.
    rank: Rank,
    progress_threads: Vec<JoinHandle<()>>,
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
    pub fn connect(timeout: Duration) -> Result<Self, Error> {
        let initialised = ::mpi::initialize_with_threading(Threading::Multiple);
        let (universe, threading) = initialised.ok_or_else(|| {
            Error::Other(
                "this process is connected through MPI already, or was: that can be done once"
                    .to_owned(),
            )
        })?;
        if threading < Threading::Multiple {
            return Err(Error::Other(format!(
                "this MPI library does not let several threads call it (it offers {threading:?}, not Multiple)"
            )));
        }
        let world = universe.world();
        let connected = world.size() as usize;
        if let Some(started) = launcher::started().filter(|it| it.processes != connected) {
            // Each would train alone.
            return Err(Error::Other(format!(
                "{started}, and MPI connects {connected} of them: this program was built with another MPI library than the \
                 launcher's, or srun wants another --mpi (srun --mpi=list)"
            )));
        }
        // The processes that share this machine's memory, in the order of their ranks.
        let here = world.split_shared(world.rank());
        let (main, its_thread) = Connection::open("main", timeout)?;
        let (background, second_thread) = Connection::open("background", timeout)?;
        Ok(Self {
            local_rank: here.rank() as usize,
            local_size: here.size() as usize,
            rank: Rank { connection: main, background, device: None, tensors: Device::Cpu },
            progress_threads: vec![its_thread, second_thread],
            _universe: universe,
            _of_one_thread: PhantomData,
        })
    }

    /// This process's rank, from 0.
    pub fn rank(&self) -> usize {
        self.rank.rank()
    }

    /// The number of processes.
    pub fn world_size(&self) -> usize {
        self.rank.world_size()
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
        Arc::new(self.rank.clone())
    }

    /// Runs `work` for this rank, on its device of the plan. The plan has this machine's devices, one for each process.
    /// Other ranks may still work when this returns. They have ended when the world has been dropped.
    ///
    /// `mpirun` may have bound each process to one core. Start it with `--bind-to none` if a device is to have more.
    ///
    /// If the work fails or panics, standard error gets a line `rank R failed: …`, and the job ends with exit code 1.
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
            let (tensors, its_device) = (device.tensors().clone(), Some(Arc::clone(&device)));
            let rank = Rank { device: its_device, tensors, ..self.rank.clone() };
            attempt(&device, || work(&rank))
        });
        outcome.unwrap_or_else(|cause| self.rank.connection.fail(&cause.to_string()))
    }
}

impl Drop for World {
    /// Sends farewells, and waits until the work of all ranks is done.
    fn drop(&mut self) {
        self.rank.connection.leave();
        self.rank.background.leave();
        for thread in mem::take(&mut self.progress_threads) {
            if thread.join().is_err() {
                connection::end_job(&format!("rank {} failed: MPI's thread panicked", self.rank()));
            }
        }
    }
}

/// One rank: its device, and its end of a connection to all other ranks. A clone is the same end. Any thread may use and
/// drop it.
///
/// After the end of the [`World`] every call fails.
#[derive(Clone)]
pub struct Rank {
    connection: Arc<Connection>,
    background: Arc<Connection>,
    /// `None` in [`World::communicator`].
    device: Option<Arc<ComputeDevice>>,
    tensors: Device,
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
        self.connection.timeout
    }

    fn check(&self, other: usize) -> Result<(), Error> {
        let (rank, world_size) = (self.rank(), self.world_size());
        if other == rank || other >= world_size {
            return Err(Error::NoSuchRank { rank, other, world_size });
        }
        Ok(())
    }

    fn native_sum<T>(&self, flat: &Tensor) -> Result<Tensor, Error>
    where
        T: WithDType + Equivalence + Default,
    {
        let sum = self.connection.all_reduce::<T>(flat.to_vec1()?)?;
        Ok(Tensor::from_vec(sum, flat.shape(), self.device())?)
    }
}

impl Communicator for Rank {
    fn rank(&self) -> usize {
        self.connection.rank
    }

    fn world_size(&self) -> usize {
        self.connection.world_size
    }

    /// In the background, tensors are those of the device's second [stream](ComputeDevice::side_stream).
    fn device(&self) -> &Device {
        &self.tensors
    }

    fn send(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.check(to)?;
        let tensor = move_view(&tensor.detach(), &Device::Cpu)?;
        let header = Header { dtype: tensor.dtype(), dims: tensor.dims().to_vec() };
        let Some(header) = header.encode() else {
            let dtype = tensor.dtype().as_str();
            return Err(Error::Other(format!("tensors of {dtype} are not sent between processes")));
        };
        self.connection.send(to, header, tensor.data().into_owned())
    }

    fn recv(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Tensor, Error> {
        self.check(from)?;
        let (found, bytes) = self.connection.recv(from)?;
        let expected = Header { dtype, dims: shape.dims().to_vec() };
        if found != expected {
            let (found, expected) = (found.to_string(), expected.to_string());
            return Err(Error::Mismatch { rank: from, found, expected, waiting: self.rank() });
        }
        Ok(Tensor::from_raw_buffer(&bytes, dtype, shape.dims(), self.device())?)
    }

    fn background(&self) -> Result<SharedCommunicator, Error> {
        let side_stream = self.device.as_ref().map(|device| device.side_stream().clone());
        let (connection, tensors) =
            (Arc::clone(&self.background), side_stream.unwrap_or(Device::Cpu));
        Ok(Arc::new(Self { connection, tensors, ..self.clone() }))
    }

    /// Calls `MPI_Iallreduce`, for f32 and f64. MPI does not compare shapes: when ranks add tensors of different sizes, MPI
    /// ends the job, or does not notice.
    fn native_all_reduce(&self, tensor: &Tensor) -> Result<Tensor, Error> {
        let flat = tensor.flatten_all()?;
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

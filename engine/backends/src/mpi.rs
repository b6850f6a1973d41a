//! Ranks as processes, on one machine or on many: MPI.
//!
//! `mpirun -n 4 PROGRAM` starts a program four times, and MPI connects the processes. Each process is one rank. The program
//! `all-reduce-table` shows how. A rank that fails, panics or waits for too long ends the job, and so does `mpirun` when a
//! process is killed. One line on standard error names the rank and the reason.
//!
//! The file `connection.rs` sends, receives and ends the job. `wait_graph.rs` finds the rank to name when nothing comes.

mod connection;
mod wait_graph;

use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use ::mpi::Threading;
use ::mpi::environment::Universe;
use ::mpi::traits::{Communicator as _, CommunicatorCollectives as _};
use candle_core::{DType, Device, Shape, Tensor};
use devices::{ComputeDevice, CoreSet, DevicePlan, available_cores, move_view};
use harness::launcher;
use params_and_allreduce::communicator::{Communicator, Error, SharedCommunicator};
use params_and_allreduce::thread::{Cause, attempt};
use safetensors::View as _;

use connection::Connection;

/// All processes that were started together, and this process's place among them. It belongs to the thread that made it: MPI
/// has to be finished where it was initialised.
pub struct World {
    /// This process's number among the processes on the same machine, from 0.
    pub local_rank: usize,
    /// The number of processes on this machine. It needs a device for each.
    pub local_size: usize,
    /// The number of cores that this process may use: those that it shares with other processes of this machine are
    /// divided between them.
    pub cores: NonZeroUsize,
    /// This process's rank before it has a device: it receives tensors in CPU memory. It has the same connections as the rank
    /// that [`run`](Self::run) makes.
    pub rank: Rank,
    progress_threads: Vec<JoinHandle<()>>,
    // Dropped last: this finishes MPI.
    _universe: Universe,
    _of_one_thread: PhantomData<*const ()>,
}

impl World {
    /// Connects this process with all others that `mpirun` started. A program that was started without `mpirun` is a world
    /// of one. All processes call this, once, before anything else. A rank waits for a message at most `timeout`. Fails when
    /// this process was connected before, when several threads cannot use MPI, and when MPI connects another number of
    /// processes than the launcher has started.
    pub fn connect(timeout: Duration) -> Result<Self, Error> {
        let initialised = ::mpi::initialize_with_threading(Threading::Multiple);
        let again = || Error::Other("MPI connects a process once, and not again".to_owned());
        let (universe, threading) = initialised.ok_or_else(again)?;
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
        let mine = CoreSet::of_this_process();
        let mut all = vec![0; mine.0.len() * here.size() as usize];
        here.all_gather_into(&mine.0[..], &mut all[..]);
        let (connection, thread) = Connection::open(timeout)?;
        let (background, second_thread) = Connection::open(timeout)?;
        Ok(Self {
            local_rank: here.rank() as usize,
            local_size: here.size() as usize,
            cores: mine.share(&all, available_cores()),
            rank: Rank { connection, background, device: None, tensors: Device::Cpu },
            progress_threads: vec![thread, second_thread],
            _universe: universe,
            _of_one_thread: PhantomData,
        })
    }

    /// Runs `work` for this rank, on its device of the plan. The plan has this machine's devices, one for each process.
    /// Other ranks may still work when this returns. They have ended when the world has been dropped. If the work fails or
    /// panics, standard error gets a line `rank R failed: …`, and the job ends with exit code 1.
    pub fn run<R, E>(&self, plan: &DevicePlan, work: impl FnOnce(&Rank) -> Result<R, E> + Send) -> R
    where
        R: Send,
        E: From<Error> + fmt::Display + Send,
    {
        let device = plan.slots()[self.local_rank].open().map_err(Error::from);
        let outcome = device.map_err(|error| Cause::Error(E::from(error))).and_then(|device| {
            let (tensors, device) = (device.tensors().clone(), Arc::new(device));
            let rank = Rank { device: Some(Arc::clone(&device)), tensors, ..self.rank.clone() };
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
        for thread in self.progress_threads.drain(..) {
            let panicked = |_| self.rank.connection.fail("failed: MPI's thread panicked");
            thread.join().unwrap_or_else(panicked);
        }
    }
}

/// One rank: its device, and its end of a connection to all other ranks. A clone is the same end. Any thread may use it. After
/// the end of the [`World`] every call fails.
#[derive(Clone)]
pub struct Rank {
    connection: Arc<Connection>,
    background: Arc<Connection>,
    /// `None` in [`World::rank`].
    device: Option<Arc<ComputeDevice>>,
    tensors: Device,
}

impl Rank {
    /// The device that this rank drives. Only a rank that [`World::run`] made has one.
    pub fn compute_device(&self) -> &ComputeDevice {
        self.device.as_deref().expect("a rank of World::run")
    }

    fn check(&self, other: usize) -> Result<(), Error> {
        let (rank, world_size) = (self.rank(), self.world_size());
        if other == rank || other >= world_size {
            return Err(Error::NoSuchRank { rank, other, world_size });
        }
        Ok(())
    }
}

impl From<&Rank> for SharedCommunicator {
    fn from(rank: &Rank) -> Self {
        Arc::new(rank.clone())
    }
}

impl Communicator for Rank {
    fn rank(&self) -> usize {
        self.connection.rank
    }

    fn world_size(&self) -> usize {
        self.connection.world_size
    }

    /// In the background, tensors are in CPU memory.
    fn device(&self) -> &Device {
        &self.tensors
    }

    fn send(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        self.check(to)?;
        let tensor = move_view(&tensor.detach(), &Device::Cpu)?;
        let kind = kind(tensor.dtype(), tensor.dims());
        self.connection.send(to, &kind, tensor.data().into_owned())
    }

    fn recv(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Tensor, Error> {
        self.check(from)?;
        let (found, bytes) = self.connection.recv(from)?;
        let expected = kind(dtype, shape.dims());
        if found != expected {
            return Err(Error::Mismatch { rank: from, found, expected, waiting: self.rank() });
        }
        Ok(Tensor::from_raw_buffer(&bytes, dtype, shape.dims(), self.device())?)
    }

    fn background(&self) -> Result<SharedCommunicator, Error> {
        let (connection, tensors) = (Arc::clone(&self.background), Device::Cpu);
        Ok(Arc::new(Self { connection, tensors, ..self.clone() }))
    }

    /// Calls `MPI_Iallreduce`, for f32 and f64. MPI does not compare shapes: when ranks add tensors of different sizes, MPI
    /// ends the job, or does not notice.
    fn native_all_reduce(&self, tensor: &Tensor) -> Result<Tensor, Error> {
        let flat = tensor.flatten_all()?;
        let sum = match flat.dtype() {
            DType::F32 => self.connection.all_reduce::<f32>(&flat)?,
            DType::F64 => self.connection.all_reduce::<f64>(&flat)?,
            _ if flat.elem_count() == 0 => flat,
            dtype => {
                let why = format!("MPI adds up f32 and f64, not {}", dtype.as_str());
                return Err(Error::Other(why));
            }
        };
        Ok(sum.to_device(self.device())?.reshape(tensor.shape())?)
    }
}

/// The type and shape of a tensor, as messages and errors name it: `F32 [2, 3]`.
fn kind(dtype: DType, dims: &[usize]) -> String {
    format!("{dtype:?} {dims:?}")
}

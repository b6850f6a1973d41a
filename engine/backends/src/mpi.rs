//! Ranks as processes, on one machine or on many: MPI.
//!
//! `mpirun -n 4 PROGRAM` starts a program four times, and MPI connects the processes. Each process is one rank. The program
//! `all-reduce-table` shows how. A rank that fails, panics or waits for too long ends the job, and so does `mpirun` when a
//! process is killed. One line on standard error names the rank and the reason.
//!
//! The file `connection.rs` sends, receives and ends the job. `wait_graph.rs` finds the rank to name when nothing comes.

mod connection;
mod wait_graph;

use std::marker::PhantomData;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use ::mpi::Threading;
use ::mpi::environment::Universe;
use ::mpi::traits::{Communicator as _, CommunicatorCollectives as _};
use candle_core::{DType, Device, Shape, Tensor};
use devices::{ComputeDevice, CoreSet, DeviceSlot, available_cores, move_view};
use harness::launcher;
use params_and_allreduce::communicator::{Communicator, Error, SharedCommunicator, check_other};
use params_and_allreduce::{Algorithm, all_reduce};
use safetensors::View as _;

use crate::{Processes, native};
use connection::Connection;

/// What a process holds of MPI. It belongs to the thread that made it: MPI has to be finished where it was initialised.
struct World {
    rank: Rank,
    progress_threads: Vec<JoinHandle<()>>,
    // Dropped last: this finishes MPI.
    _universe: Universe,
    _of_one_thread: PhantomData<*const ()>,
}

/// Connects this process with all others that `mpirun` started. A program that was started without `mpirun` is a world of
/// one. All processes call this, once, before anything else. A rank waits for a message at most `timeout`. Fails when this
/// process was connected before, when several threads cannot use MPI, and when MPI connects another number of processes than
/// the launcher has started.
pub fn connect(timeout: Duration) -> Result<Processes, Error> {
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
    let (local_rank, devices_here) = (here.rank() as usize, here.size() as usize);
    let mine = CoreSet::of_this_process();
    let mut all = vec![0; mine.0.len() * devices_here];
    here.all_gather_into(&mine.0[..], &mut all[..]);
    let cores = Some(mine.share(&all, available_cores()));
    let (connection, thread) = Connection::open(timeout)?;
    let (background, second_thread) = Connection::open(timeout)?;
    let rank = Rank { connection, background, tensors: Device::Cpu };
    let comm = Arc::new(rank.clone());
    let world = Box::new(World {
        rank,
        progress_threads: vec![thread, second_thread],
        _universe: universe,
        _of_one_thread: PhantomData,
    });
    Ok(Processes { comm, has_messages: true, local_rank, devices_here, cores, world })
}

impl crate::World for World {
    fn open(&self, slot: DeviceSlot) -> Result<(Arc<ComputeDevice>, SharedCommunicator), Error> {
        let device = Arc::new(slot.open()?);
        let comm = Rank { tensors: device.tensors().clone(), ..self.rank.clone() };
        Ok((device, native(Arc::new(comm), self.rank.connection.timeout)))
    }

    fn fail(&self, why: &str) -> ! {
        self.rank.connection.fail(why)
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

/// One rank's end of a connection to all other ranks, for any thread. After the end of the [`Processes`] every call fails.
#[derive(Clone)]
struct Rank {
    connection: Arc<Connection>,
    background: Arc<Connection>,
    /// The device of received tensors.
    tensors: Device,
}

impl Communicator for Rank {
    fn rank(&self) -> usize {
        self.connection.rank
    }

    fn world_size(&self) -> usize {
        self.connection.world_size
    }

    fn device(&self) -> &Device {
        &self.tensors
    }

    fn send(&self, to: usize, tensor: &Tensor) -> Result<(), Error> {
        check_other(self, to)?;
        let tensor = move_view(&tensor.detach(), &Device::Cpu)?;
        self.connection.send(to, kind(tensor.dtype(), tensor.dims()), tensor.data().into_owned())
    }

    fn recv(&self, from: usize, shape: &Shape, dtype: DType) -> Result<Tensor, Error> {
        check_other(self, from)?;
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

    /// Calls `MPI_Iallreduce` for [`Algorithm::Native`], with f32 and f64. MPI does not compare shapes: when ranks add tensors
    /// of different sizes, MPI ends the job, or does not notice.
    fn all_reduce(&self, tensor: &Tensor, algorithm: Algorithm) -> Result<Tensor, Error> {
        if algorithm != Algorithm::Native || self.world_size() == 1 {
            return all_reduce::all_reduce(self, tensor, algorithm);
        }
        let _span = all_reduce::span(ops::size_in_bytes(tensor), tensor.shape());
        let flat = tensor.detach().flatten_all()?;
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

//! Processes that a launcher such as `torchrun` started, connected by NCCL and nothing else.
//!
//! ```no_run
//! use std::time::Duration;
//! use backends::nccl;
//! use candle_core::{DType, Tensor};
//! use harness::launcher;
//! use params_and_allreduce::communicator::Communicator as _;
//!
//! let place = launcher::place()?.expect("RANK and WORLD_SIZE");
//! let world = nccl::World::connect(&place, Duration::from_secs(300))?;
//! let first = world.run(|rank| rank.broadcast(&Tensor::ones(3, DType::F32, rank.device())?, 0));
//! # Ok::<_, Box<dyn std::error::Error>>(())
//! ```
//!
//! NCCL connects the ranks that have the same identifier, which says where rank 0 listens. Without messages, every rank makes
//! the identifier from an address that all know. NCCL does so if its variable `NCCL_COMM_ID` is set. A running program cannot
//! change its environment safely, so a process without the variable starts itself anew.

use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, exit};
use std::sync::Arc;
use std::time::Duration;
use std::{env, fmt, fs, thread};

use candle_core::{DType, Device, Shape, Tensor};
use cudarc::nccl::safe::Id;
use devices::{ComputeDevice, DeviceKind, DevicePlan, PlanError};
use harness::launcher::{MEETING, Place};
use params_and_allreduce::Algorithm;
use params_and_allreduce::collectives::chunk_range;
use params_and_allreduce::communicator::{Communicator, Error, SharedCommunicator};
use params_and_allreduce::thread::{Cause, attempt};

use super::{Connection, nccl};
use crate::process::print_failure;

/// NCCL's variable for the time at which ranks connect. With 0 they connect when they join, which has a time limit here, and
/// not in the first collective.
const CONNECT_LATER: &str = "NCCL_RUNTIME_CONNECT";

/// NCCL sends a rank's last bytes within this time after its work is done.
const LAST_BYTES: Duration = Duration::from_millis(100);

/// The reason why this process is not connected to other processes.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No GPUs.
    #[error("NCCL connects GPUs: {0}")]
    NoGpu(#[from] PlanError),
    /// Fewer GPUs than processes.
    #[error(
        "LOCAL_RANK is {0}, and there is no GPU of that number here: NCCL needs one for each process (nvidia-smi -L)"
    )]
    TooFewGpus(usize),
    /// The program could not be started anew.
    #[error("to set {MEETING} this program starts itself anew, and could not: {0}")]
    Restart(io::Error),
    /// At this address, the GPU or NCCL refuses.
    #[error("at {0}: {1}")]
    Join(String, Error),
}

/// All processes that were started together, and this process's place among them.
pub struct World {
    local_rank: usize,
    rank: Rank,
}

impl World {
    /// Connects this process with all others. All of them call this, once, before anything else: if `NCCL_COMM_ID` is not
    /// set, the program starts anew.
    ///
    /// A rank waits at most `timeout` for a collective, and for all ranks to come here.
    ///
    /// # Errors
    ///
    /// When this process has no GPU, and when NCCL cannot connect it with all others in time.
    pub fn connect(place: &Place, timeout: Duration) -> Result<Self, ConnectError> {
        if env::var_os(MEETING).is_none_or(|meeting| meeting.is_empty()) {
            start_anew(place).map_err(ConnectError::Restart)?;
        }
        // The GPUs up to this process's number.
        let plan = DevicePlan::new(DeviceKind::Cuda, place.local_rank + 1, None)?;
        if !plan.has_a_gpu_each() {
            return Err(ConnectError::TooFewGpus(place.local_rank));
        }
        let connect = || {
            let device = Arc::new(plan.slots()[place.local_rank].open()?);
            let open = |stream| {
                let id = Id::new().map_err(nccl)?;
                Connection::open(stream, (place.rank, place.world_size), id, timeout)
            };
            let main = open(device.tensors())?;
            // Both listen at the same address, so the first has to be complete.
            main.barrier()?;
            let background = open(device.side_stream())?;
            Ok(Rank { device, connection: main, background })
        };
        let rank = connect().map_err(|error| ConnectError::Join(place.meeting.clone(), error))?;
        Ok(Self { local_rank: place.local_rank, rank })
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

    /// The name of this process's machine.
    pub fn machine(&self) -> String {
        let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        name.trim().to_owned()
    }

    /// This rank's communicator.
    pub fn communicator(&self) -> SharedCommunicator {
        Arc::new(self.rank.clone())
    }

    /// Runs `work` for this rank. Other ranks may still work when this returns. They have ended when the world has been
    /// dropped.
    ///
    /// If the work fails or panics, this prints `rank R failed: …` on standard error and ends the process, with exit code 1.
    /// The launcher then ends the job.
    pub fn run<R, E>(&self, work: impl FnOnce(&Rank) -> Result<R, E> + Send) -> R
    where
        R: Send,
        E: fmt::Display + Send,
    {
        attempt(&self.rank.device, || work(&self.rank)).unwrap_or_else(|cause| self.end(&cause))
    }

    /// Prints the reason, and ends this process. No destructors run.
    #[expect(clippy::disallowed_methods, reason = "ends a process in which nothing can return")]
    fn end<E: fmt::Display>(&self, cause: &Cause<E>) -> ! {
        print_failure(&format!("rank {} {cause}", self.rank()));
        let _ = io::stdout().flush();
        exit(1)
    }
}

impl Drop for World {
    /// Waits until the work of all ranks is done: a slower rank may still read this rank's memory.
    fn drop(&mut self) {
        let connections = [&self.rank.connection, &self.rank.background];
        if !connections.iter().all(|it| it.is_open()) {
            // The failure is reported elsewhere.
            return;
        }
        let outcome = connections.iter().try_for_each(|it| it.barrier());
        outcome.unwrap_or_else(|error| self.end(&Cause::Error(error)));
        thread::sleep(LAST_BYTES);
        connections.iter().for_each(|it| it.leave());
    }
}

/// Starts this program anew, in this process, with NCCL's variables. Returns only if that is not possible.
fn start_anew(place: &Place) -> io::Result<()> {
    let mut again = Command::new(env::current_exe()?);
    again.args(env::args_os().skip(1)).env(MEETING, &place.meeting);
    if env::var_os(CONNECT_LATER).is_none() {
        again.env(CONNECT_LATER, "0");
    }
    let _ = io::stdout().flush();
    Err(again.exec())
}

/// One rank inside its own process: its GPU, and its end of a connection to all other ranks. A clone is the same end. Any
/// thread may use and drop it.
///
/// It has collectives, and no messages.
#[derive(Clone, Debug)]
pub struct Rank {
    device: Arc<ComputeDevice>,
    connection: Connection,
    background: Connection,
}

impl Rank {
    /// The device that this rank drives.
    pub fn compute_device(&self) -> &ComputeDevice {
        &self.device
    }

    /// The time that this rank waits for a collective.
    pub fn timeout(&self) -> Duration {
        self.connection.timeout
    }
}

fn no_messages<T>() -> Result<T, Error> {
    let text = "NCCL alone connects these ranks: it has collectives of all ranks, and no messages between two";
    Err(Error::Other(text.to_owned()))
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
        &self.connection.device
    }

    fn send(&self, _to: usize, _tensor: &Tensor) -> Result<(), Error> {
        no_messages()
    }

    fn recv(&self, _from: usize, _shape: &Shape, _dtype: DType) -> Result<Tensor, Error> {
        no_messages()
    }

    fn background(&self) -> Result<SharedCommunicator, Error> {
        Ok(Arc::new(Self { connection: self.background.clone(), ..self.clone() }))
    }

    /// Every algorithm is NCCL's.
    fn all_reduce(&self, tensor: &Tensor, _algorithm: Algorithm) -> Result<Tensor, Error> {
        self.connection.all_reduce(tensor)
    }

    fn broadcast(&self, tensor: &Tensor, root: usize) -> Result<Tensor, Error> {
        self.connection.broadcast(tensor, root)
    }

    /// One broadcast for each rank: NCCL's all-gather needs chunks of one length.
    fn all_gather(&self, chunk: &Tensor, len: usize) -> Result<Tensor, Error> {
        let (rank, world_size) = (self.rank(), self.world_size());
        let length = |rank| chunk_range(len, world_size, rank).len();
        if chunk.dims() != [length(rank)] {
            let (expected, found) = (length(rank), chunk.dims());
            return Err(Error::Other(format!(
                "rank {rank} of {world_size} gathers {len} elements: its chunk must be [{expected}], not {found:?}"
            )));
        }
        let chunks = (0..world_size).map(|root| match root {
            _ if root == rank => self.broadcast(chunk, root),
            _ => self.broadcast(&Tensor::zeros(length(root), chunk.dtype(), self.device())?, root),
        });
        Ok(Tensor::cat(&chunks.collect::<Result<Vec<_>, _>>()?, 0)?)
    }

    fn reduce_scatter(&self, tensor: &Tensor) -> Result<Tensor, Error> {
        let sum = self.connection.all_reduce(&tensor.flatten_all()?)?;
        let chunk = chunk_range(sum.elem_count(), self.world_size(), self.rank());
        Ok(sum.narrow(0, chunk.start, chunk.len())?.force_contiguous()?)
    }

    fn barrier(&self) -> Result<(), Error> {
        self.connection.barrier()
    }

    fn has_messages(&self) -> bool {
        false
    }
}
